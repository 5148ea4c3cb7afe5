//! Several VsphereCloudConfigs for one vCenter are reported. VDO changes no driver if they contradict each other.

use api::finding::{Finding, Severity};

use super::*;

fn reported(world: &World) -> Option<Finding> {
    world.plan().findings.into_iter().find(|finding| finding.code == "VDO-1013")
}

/// A world in which both drivers run and the VsphereCloudConfig `twin` has this address.
fn with_twin(address: &str) -> World {
    let mut world = World::installed();
    world.facts.vcenters.insert("twin".into(), vcenter(address, "first"));
    world
}

fn names(list: &[&str]) -> Vec<api::text::ObjectName> {
    list.iter().map(|name| api::text::ObjectName((*name).into())).collect()
}

/// The cloud provider uses both.
fn use_both(world: &mut World) {
    world.edit_spec(|config| {
        config.spec.cloud_provider.as_mut().unwrap().vsphere_cloud_configs = names(&["vc", "twin"]);
    });
}

fn twin(world: &mut World) -> &mut VcenterConnection {
    world.facts.vcenters.get_mut("twin").unwrap()
}

#[test]
fn two_objects_for_one_vcenter_are_reported_with_a_fix_that_ends_it() {
    for address in ["vc.example.com", "VC.Example.COM", "vc.example.com:443", "vc.example.com."] {
        let mut world = with_twin(address);
        assert_eq!(reported(&world), None, "the VDOConfig does not name {address}");
        use_both(&mut world);
        world.settle();
        let finding = reported(&world).unwrap();
        assert_eq!(finding.severity, Severity::Warning, "{address}: the settings are the same");
        let seen = finding.seen.as_deref().unwrap();
        assert!(seen.starts_with("twin, vc are for the same vCenter, "), "{seen}");
        assert!(seen.to_lowercase().contains("vc.example.com"), "{seen}");
        let objects: Vec<&str> =
            finding.objects.iter().map(|object| object.name.as_str()).collect();
        assert_eq!(objects, ["vmware-system-vdo/twin", "vmware-system-vdo/vc"]);
        for driver in [Driver::Cpi, Driver::Csi] {
            assert_eq!(world.driver(driver).next, Next::Nothing, "{address}: {driver}");
        }
        let patch = finding.remedy[1].split('\'').nth(1).unwrap();
        let patch: Value = serde_json::from_str(patch).unwrap();
        let expected = json!({"spec": {
            "cloudProvider": {"vsphereCloudConfigs": ["twin"]},
            "storageProvider": {"vsphereCloudConfig": "twin"},
        }});
        assert_eq!(patch, expected);
        assert!(
            finding.remedy[2].starts_with(
                "kubectl delete vspherecloudconfig --namespace vmware-system-vdo vc   "
            )
        );
        world.edit_spec(|config| {
            config.spec.cloud_provider.as_mut().unwrap().vsphere_cloud_configs = names(&["twin"]);
            config.spec.storage_provider.as_mut().unwrap().vsphere_cloud_config =
                Some(api::text::ObjectName("twin".into()));
        });
        world.settle();
        assert_eq!(reported(&world), None, "{address}");
    }
}

#[test]
fn objects_for_different_vcenters_are_not_reported() {
    let mut world = with_twin("other.example.com");
    use_both(&mut world);
    world.settle();
    assert_eq!(reported(&world), None);
    let both = &world.record(Driver::Cpi).users;
    assert_eq!(both.len(), 2, "the cloud provider has both: {both:?}");
}

#[test]
fn objects_of_one_driver_that_contradict_each_other_change_nothing() {
    type Change = (&'static str, fn(&mut VcenterConnection));
    let changes: [Change; 5] = [
        ("spec.datacenters", |twin| twin.spec.datacenters = vec!["DC1".into()]),
        ("spec.insecure", |twin| twin.spec.insecure = true),
        ("spec.thumbprint", |twin| twin.spec.thumbprint = Some("AA:BB".to_owned().into())),
        ("spec.caBundle", |twin| twin.ca_bundle = Some("-----BEGIN CERTIFICATE-----".into())),
        ("the account", |twin| {
            let username = "another@vsphere.local".into();
            twin.credentials = Some(Credential { username, ..credential("first") });
        }),
    ];
    for (field, change) in changes {
        let mut world = with_twin("vc.example.com");
        change(twin(&mut world));
        use_both(&mut world);
        world.settle();
        assert_eq!(world.done, Vec::<String>::new(), "{field}");
        let finding = reported(&world).unwrap();
        assert_eq!(finding.severity, Severity::Blocker, "{field}");
        let seen = finding.seen.as_deref().unwrap();
        assert!(seen.contains("CPI can use only one of them") && seen.ends_with(field), "{seen}");
        let plan = world.driver(Driver::Cpi);
        assert_eq!(plan.next, Next::Blocked, "{field}");
        let waits = plan.at().and_then(|step| step.message.as_deref()).unwrap();
        assert!(waits.starts_with("twin and vc have the same host"), "{waits}");
        assert_eq!(world.driver(Driver::Csi).next, Next::Nothing, "{field}: it uses only one");
        *twin(&mut world) = vcenter("vc.example.com", "first");
        world.settle();
        assert!(world.record(Driver::Cpi).healthy);
        assert_eq!(world.driver(Driver::Cpi).next, Next::Nothing, "{field}");
    }
}

#[test]
fn a_running_driver_gets_new_passwords_and_is_repaired_while_its_objects_contradict_each_other() {
    let mut world = with_twin("vc.example.com");
    twin(&mut world).spec.datacenters = vec!["DC1".into()];
    use_both(&mut world);
    world.settle();
    assert_eq!(world.driver(Driver::Cpi).next, Next::Blocked);
    world.rotate("vc", "second password");
    world.rotate("twin", "second password");
    world.settle();
    assert!(world.has_password(Driver::Cpi, "second password"));
    assert_eq!(world.driver(Driver::Cpi).next, Next::Blocked);
}

#[test]
fn two_ports_of_one_host_are_one_entry_for_a_driver() {
    let mut world = with_twin("vc.example.com:8443");
    use_both(&mut world);
    world.settle();
    assert_eq!(world.done, Vec::<String>::new());
    let plan = world.driver(Driver::Cpi);
    assert_eq!(plan.next, Next::Blocked);
    let waits = plan.at().and_then(|step| step.message.as_deref()).unwrap();
    assert!(waits.ends_with("differ in the port"), "{waits}");
    // Each driver can have its own.
    for node in &mut world.facts.cluster.nodes {
        node.vm =
            NodeVm::Found(["vc", "twin"].map(|name| format!("vmware-system-vdo/{name}")).into());
    }
    world.edit_spec(|config| {
        config.spec.cloud_provider.as_mut().unwrap().vsphere_cloud_configs = names(&["twin"]);
    });
    world.settle();
    assert_eq!(world.driver(Driver::Cpi).next, Next::Nothing);
    assert_eq!(reported(&world), None, "these are two vCenters");
}

#[test]
fn an_account_of_its_own_for_each_driver_is_a_reason_for_two_objects() {
    let mut world = with_twin("vc.example.com");
    let username = "storage@vsphere.local".into();
    twin(&mut world).credentials = Some(Credential { username, ..credential("first") });
    world.edit_spec(|config| {
        config.spec.storage_provider.as_mut().unwrap().vsphere_cloud_config =
            Some(api::text::ObjectName("twin".into()));
    });
    assert_eq!(reported(&world), None);
    twin(&mut world).spec.datacenters = vec!["DC1".into()];
    assert_eq!(reported(&world), None);
    twin(&mut world).credentials = Some(credential("first"));
    let finding = reported(&world).unwrap();
    assert_eq!(finding.severity, Severity::Warning, "no driver has both");
    assert!(finding.seen.as_deref().unwrap().contains("differ in spec.datacenters"), "{finding:?}");
    twin(&mut world).credentials = None;
    assert!(!reported(&world).unwrap().seen.unwrap().contains("the account"));
    // The same account twice, as the Go VDO wrote it: two Secrets have its password.
    *twin(&mut world) = vcenter("vc.example.com", "first");
    let finding = reported(&world).unwrap();
    assert!(finding.seen.as_deref().unwrap().ends_with("one of them is enough"), "{finding:?}");
}
