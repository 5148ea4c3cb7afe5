//! Cluster id, credentials and VMs: VDO must know them before it changes anything.

use api::finding::codes;

use super::*;
use crate::{facts::ClusterId, plan::DriverPlan};

#[test]
fn the_cluster_id_is_unique_where_none_is_in_use() {
    let world = World::installed();
    assert_eq!(world.record(Driver::Csi).cluster_id.as_deref(), Some("vdo-0c9c1f5e"));
}

#[test]
fn a_vsphere_cloud_config_that_does_not_exist_blocks_the_driver_that_names_it() {
    let world = World::with_spec(&json!({"storageProvider": {"vsphereCloudConfig": "gone"}}));
    let plan = world.plan();
    let finding = plan.findings.iter().find(|finding| finding.code == "VDO-1002").unwrap();
    let seen = finding.seen.as_deref().unwrap();
    let field = "spec.storageProvider.vsphereCloudConfig of ";
    assert!(seen.starts_with(field), "{seen}");
    assert!(seen.contains(" names gone, which does not exist in namespace "), "{seen}");
    let list = "kubectl get vspherecloudconfigs --namespace ";
    assert!(finding.remedy[0].starts_with(list), "{:?}", finding.remedy);
    assert!(finding.remedy[1].ends_with("create the object gone"), "{:?}", finding.remedy);
    assert_eq!(storage_plan(&world).next, Next::Blocked);
}

#[test]
fn a_cluster_id_in_use_is_adopted() {
    let mut world = World::new();
    let id = ClusterId { id: "10.0.0.1".into(), kept_by_driver: false };
    world.facts.cluster_id = Ok(Some(id));
    world.settle();
    assert_eq!(world.record(Driver::Csi).cluster_id.as_deref(), Some("10.0.0.1"));
}

#[test]
fn a_cluster_id_the_driver_keeps_itself_is_not_written_into_its_configuration() {
    let mut world = World::new();
    let id = ClusterId { id: "made-by-driver".into(), kept_by_driver: true };
    world.facts.cluster_id = Ok(Some(id));
    let mut rendered = String::new();
    while world.step() {
        rendered += &world.rendered();
    }
    assert_eq!(world.record(Driver::Csi).cluster_id.as_deref(), Some("made-by-driver"));
    assert!(rendered.contains("csi-vsphere.conf"), "it was rendered");
    assert!(!rendered.contains("made-by-driver"));
    assert!(!rendered.contains("vdo-0c9c1f5e"));
}

#[test]
fn a_cluster_id_that_another_cluster_uses_too_is_not_taken() {
    let mut world = World::with_spec(&json!({"storageProvider": {"vsphereCloudConfig": "vc"}}));
    let id = ClusterId { id: "10.10.10.10".into(), kept_by_driver: false };
    world.facts.cluster_id = Ok(Some(id));
    world.facts.foreign_volumes = Ok(vec!["shop/orders".into()]);
    world.settle();
    assert_eq!(world.done, Vec::<String>::new());
    let plan = world.plan();
    let finding = plan.findings.iter().find(|finding| finding.code == "VDO-1512").unwrap();
    assert!(finding.seen.as_deref().unwrap().contains("shop/orders"), "{finding:?}");
    world.facts.foreign_volumes = Ok(Vec::new());
    world.settle();
    assert_eq!(world.record(Driver::Csi).cluster_id.as_deref(), Some("10.10.10.10"));
}

#[test]
fn a_record_restored_from_another_cluster_brings_no_identity_that_is_in_use_there() {
    let mut world = World::installed();
    world.facts.records.csi.cluster = Some("another".into());
    let id = world.record(Driver::Csi).cluster_id.clone().unwrap();
    world.facts.cluster_id = Ok(Some(ClusterId { id, kept_by_driver: false }));
    world.facts.foreign_volumes = Ok(vec!["shop/orders".into()]);
    assert_eq!(storage_plan(&world).next, Next::Blocked);
    // VDO cannot query CNS yet.
    let verified = std::mem::replace(&mut world.vcenter().state, unreachable_vcenter(true));
    world.facts.foreign_volumes = Err("vc is not connected".into());
    assert_eq!(storage_plan(&world).next, Next::Wait);
    world.vcenter().state = verified;
    world.facts.foreign_volumes = Ok(Vec::new());
    let expected = Next::Record(Box::new(world.record(Driver::Csi).clone()));
    assert_eq!(storage_plan(&world).next, expected, "it is written down as this cluster's");
}

#[test]
fn an_identity_is_taken_from_volumes_only_if_they_agree() {
    let mut world = World::with_spec(&json!({"storageProvider": {"vsphereCloudConfig": "vc"}}));
    world.facts.ambiguous = vec!["10.10.10.10".into(), "prod-7".into()];
    world.settle();
    assert_eq!(world.done, Vec::<String>::new());
    let plan = world.plan();
    let finding = plan.findings.iter().find(|finding| finding.code == "VDO-1913").unwrap();
    let seen = finding.seen.as_deref().unwrap();
    assert!(seen.contains("10.10.10.10 and prod-7"), "{seen}");
    assert!(plan.wake.is_some(), "it is asked again");
}

#[test]
fn the_secret_with_an_admins_credentials_is_not_overwritten_by_a_drivers_own() {
    let mut world = World::new();
    let name = serde_json::from_value(json!(names::CPI_SECRET)).unwrap();
    world.vcenter().spec.credentials = name;
    world.vcenter().secret = format!("{}/{}", names::KUBE_SYSTEM, names::CPI_SECRET);
    world.settle();
    assert!(!world.done.iter().any(|done| done.contains(names::CPI_SECRET)), "{:?}", world.done);
    let plan = world.plan();
    let refused = plan.findings.iter().filter_map(|finding| finding.seen.as_deref());
    assert!(refused.clone().any(|text| text.contains("another name")), "{:?}", plan.findings);
}

#[test]
fn a_cluster_id_is_not_taken_while_it_is_not_known_whether_another_cluster_uses_it() {
    let mut world = World::with_spec(&json!({"storageProvider": {"vsphereCloudConfig": "vc"}}));
    let id = ClusterId { id: "10.10.10.10".into(), kept_by_driver: false };
    world.facts.cluster_id = Ok(Some(id));
    world.facts.foreign_volumes = Err("CNS of vc: no permission".into());
    world.settle();
    assert_eq!(world.done, Vec::<String>::new());
    let plan = world.driver(Driver::Csi);
    assert_eq!(plan.next, Next::Wait);
    assert!(plan.steps[0].message.as_deref().unwrap().contains("no permission"), "{plan:?}");
    assert!(world.plan().wake.is_some(), "it is asked again");
}

#[test]
fn a_cluster_id_once_used_never_changes() {
    let mut world = World::installed();
    world.facts.cluster_id = Ok(Some(ClusterId { id: "another".into(), kept_by_driver: false }));
    world.facts.cluster.uid = "restored-elsewhere".into();
    Arc::make_mut(&mut world.facts.config).status =
        Some(api::VDOConfigStatus { cluster_id: Some("edited".into()), ..Default::default() });
    world.settle();
    assert_eq!(world.done, Vec::<String>::new());
    // The cluster id survives even a removal, because the remaining volumes are registered under it.
    remove_storage(&mut world);
    world.settle();
    assert_eq!(world.record(Driver::Csi).cluster_id.as_deref(), Some("vdo-0c9c1f5e"));
}

#[test]
fn a_configuration_in_use_that_cannot_be_read_is_not_overwritten() {
    let mut world = World::new();
    world.facts.cluster_id = Err("it is gibberish".into());
    world.settle();
    assert_eq!(world.record(Driver::Csi), &Record::default());
    assert!(world.codes().contains(&"VDO-1911".into()), "{:?}", world.codes());
}

#[test]
fn unproven_credentials_never_reach_a_rendered_object() {
    let states = [VcenterState::Untried, unreachable_vcenter(true), unreachable_vcenter(false)];
    for state in states {
        let mut world = World::installed();
        // A Secret with another password that is not verified yet.
        let vcenter = world.vcenter();
        vcenter.state = state.clone();
        vcenter.credentials = Some(credential("not-proven"));
        vcenter.credentials_version = "another".into();
        vcenter.accepted = false;
        world.pass(SignedDuration::from_hours(1));
        world.settle();
        assert_eq!(world.done, Vec::<String>::new(), "{state:?}");

        let mut fresh = World::new();
        fresh.vcenter().state = state;
        fresh.vcenter().credentials = Some(credential("not-proven"));
        fresh.settle();
        assert_eq!(fresh.done, Vec::<String>::new());
    }
}

#[test]
fn proven_credentials_reach_the_drivers_and_only_the_cloud_controller_restarts() {
    let mut world = World::installed();
    world.rotate("vc", "rotated");
    let mut rendered = world.rendered();
    while world.step() {
        rendered += &world.rendered();
    }
    assert!(rendered.contains("rotated"));
    let expected = [
        "apply Secret cpi-global-secret",
        "apply Secret vsphere-config-secret",
        "restart DaemonSet vsphere-cloud-controller-manager",
        "renew files of vsphere-csi-controller",
    ];
    assert_eq!(world.done, expected);
}

#[test]
fn a_password_never_shows_outside_a_secret() {
    let mut world = World::new();
    world.vcenter().credentials = Some(credential("tr0ub4dor"));
    let mut seen = 0;
    for _ in 0..100 {
        for driver in world.plan().drivers {
            let Next::Apply(objects) = driver.next else { continue };
            for object in objects {
                let text = text_of(&object);
                assert!(object.kind() == "Secret" || !text.contains("tr0ub4dor"), "{text}");
                seen += usize::from(text.contains("tr0ub4dor"));
            }
        }
        if !world.step() {
            break;
        }
    }
    assert_eq!(seen, 2, "one Secret for each driver");
    assert!(!format!("{:?}", world.plan()).contains("tr0ub4dor"), "debug output shows no secret");
    let records = serde_json::to_string(&world.record(Driver::Cpi)).unwrap();
    assert!(!records.contains("tr0ub4dor"));
}

#[test]
fn trust_in_a_vcenter_reaches_the_drivers() {
    let mut world = World::new();
    world.vcenter().ca_bundle = Some("-----BEGIN CERTIFICATE----- MIIB".into());
    let thumbprint = "5E:1A:00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:9F";
    world.vcenter().spec.thumbprint = Some(api::text::Thumbprint(thumbprint.into()));
    let mut rendered = world.rendered();
    while world.step() {
        rendered += &world.rendered();
    }
    assert_eq!(rendered.matches("-----BEGIN CERTIFICATE----- MIIB").count(), 2, "for each driver");
    assert!(rendered.matches("/etc/cloud/ca-vc.example.com.pem").count() >= 2);
    assert!(rendered.matches(thumbprint).count() >= 2);
    assert!(
        !rendered.contains("insecureFlag: true") && !rendered.contains("insecure-flag = \"true\"")
    );
}

fn roll(world: &mut World) {
    world.edit_spec(|config| {
        let topology = json!({"zone": "k8s-zone", "region": "k8s-region"});
        let cloud = config.spec.cloud_provider.as_mut().unwrap();
        cloud.topology = Some(serde_json::from_value(topology).unwrap());
    });
    world.settle();
}

fn rolled(world: &World) -> bool {
    world.done.iter().any(|done| done == "apply DaemonSet vsphere-cloud-controller-manager")
}

#[test]
fn the_cloud_controller_is_not_rolled_while_the_vm_of_a_node_is_missing_or_unknown() {
    let vms = [
        NodeVm::Missing,
        NodeVm::Unknown("vc is down".into()),
        // A VM that VDO finds, but only with a user that the cloud controller does not use.
        found_by("vmware-system-vdo/other"),
        found_by("elsewhere/vc"),
    ];
    for vm in vms {
        let mut world = World::installed();
        world.facts.vcenters.insert("other".into(), vcenter("vc.example.com", "theirs"));
        world.facts.cluster.nodes[1].vm = vm.clone();
        roll(&mut world);
        assert!(!rolled(&world), "{vm:?}");
        let plan = world.driver(Driver::Cpi);
        assert_eq!(plan.next, Next::Blocked);
        assert!(plan.steps[0].message.as_deref().unwrap().contains("node-2"));
        world.facts.cluster.nodes[1].vm = found_by("vmware-system-vdo/vc");
        world.settle();
        assert!(rolled(&world), "once it is found");
    }
}

#[test]
fn a_node_of_another_cloud_holds_nothing_up() {
    let mut world = World::installed();
    world.facts.cluster.nodes[1].vm = NodeVm::Missing;
    world.facts.cluster.nodes[1].node.provider_id = Some("aws:///i-0".into());
    roll(&mut world);
    assert!(rolled(&world));
}

#[test]
fn the_cloud_controller_is_repaired_even_while_a_vm_is_missing() {
    let mut world = World::installed();
    world.facts.cluster.nodes[1].vm = NodeVm::Missing;
    world.facts.objects.retain(|id, _| id.name != "vsphere-cloud-controller-manager");
    world.settle();
    assert!(rolled(&world), "what was rolled out before is put back: {:?}", world.done);
    assert!(world.codes().contains(&"VDO-1201".into()));
}

#[test]
fn drift_is_repaired() {
    let mut world = World::installed();
    for seen in world.facts.objects.values_mut() {
        seen.settled = false;
    }
    let count = world.facts.objects.len();
    world.settle();
    assert_eq!(world.done.len(), count, "each is applied once: {:?}", world.done);
}

#[test]
fn another_user_does_not_reach_storage_before_it_sees_every_vm() {
    let hidden = [
        NodeVm::Missing,
        NodeVm::Unknown("vc is not connected".into()),
        // A VM that only another user of the same vCenter sees.
        found_by("vmware-system-vdo/other"),
    ];
    for hidden in hidden {
        let mut world = World::installed();
        world.facts.vcenters.insert("other".into(), vcenter("vc.example.com", "theirs"));
        world.facts.cluster.nodes[1].vm = hidden;
        assert_eq!(world.driver(Driver::Csi).next, Next::Nothing, "what runs is not touched");
        let vcenter = world.vcenter();
        let username = "another@vsphere.local".into();
        vcenter.credentials = Some(Credential { username, ..credential("second password") });
        vcenter.credentials_version = "stands for the second".into();
        world.settle();
        let plan = world.driver(Driver::Csi);
        assert_eq!(plan.next, Next::Blocked);
        let waits = plan.at().and_then(|step| step.message.as_deref()).unwrap();
        assert!(waits.starts_with("another vCenter or user: "), "{waits}");
        assert!(!world.done.iter().any(|done| done.contains("Secret")), "{:?}", world.done);

        world.facts.cluster.nodes[1].vm = found_by("vmware-system-vdo/vc");
        world.settle();
        assert!(world.done.contains(&"apply Secret vsphere-config-secret".into()));
    }
}

#[test]
fn a_vm_in_a_vcenter_without_storage_holds_back_no_credentials() {
    let mut world = World::installed();
    world.facts.vcenters.insert("far".into(), vcenter("far.example.com", "theirs"));
    world.facts.cluster.nodes[1].vm = found_by("vmware-system-vdo/far");
    let vcenter = world.vcenter();
    vcenter.credentials = Some(credential("second password"));
    vcenter.credentials_version = "stands for the second".into();
    world.settle();
    assert!(world.done.contains(&"apply Secret vsphere-config-secret".into()));
}

#[test]
fn a_vcenter_is_not_taken_from_storage_while_a_volume_is_attached_there() {
    let mut world = World::installed();
    world.facts.vcenters.insert("far".into(), vcenter("far.example.com", "theirs"));
    world.facts.cluster.nodes[1].vm = found_by("vmware-system-vdo/far");
    let named = |world: &mut World, names: &[&str]| {
        world.edit_spec(|config| {
            let storage = config.spec.storage_provider.as_mut().unwrap();
            storage.vsphere_cloud_config = None;
            storage.vsphere_cloud_configs = serde_json::from_value(json!(names)).unwrap();
        });
    };
    named(&mut world, &["vc", "far"]);
    world.settle();
    let node = world.facts.cluster.nodes[1].node.name.clone();
    world.facts.attached = vec![("pv-9".into(), node)];
    world.done.clear();
    named(&mut world, &["vc"]);
    world.settle();
    assert_eq!(world.done, Vec::<String>::new(), "the driver can still detach it");
    assert_eq!(storage_plan(&world).next, Next::Blocked);
    let finding = world.plan().findings.into_iter().find(|f| f.code == "VDO-1904").unwrap();
    assert!(finding.seen.unwrap().contains("pv-9"));
    world.facts.attached.clear();
    world.settle();
    assert!(world.done.contains(&"apply Secret vsphere-config-secret".into()), "{:?}", world.done);
}

fn storage_plan(world: &World) -> DriverPlan {
    let plan = decide(&world.facts);
    plan.drivers.into_iter().find(|plan| plan.driver == Driver::Csi).unwrap()
}

#[test]
fn a_blocker_of_the_checks_holds_an_install_and_no_repair() {
    let blocker = || vec![codes::CLUSTER_ID_SHARED.found().build()];
    let mut world = World::new();
    world.facts.health.blockers = blocker();
    let plan = storage_plan(&world);
    assert_eq!(plan.next, Next::Blocked);
    let message = plan.steps.iter().find_map(|step| step.message.as_deref());
    assert!(message.is_some_and(|message| message.contains("VDO-1512")), "{:?}", plan.steps);
    let mut world = World::installed();
    world.facts.health.blockers = blocker();
    assert_eq!(storage_plan(&world).next, Next::Nothing, "what runs is left alone");
}

#[test]
fn nothing_is_installed_before_the_vcenters_answer_the_checks() {
    let mut world = World::new();
    world.facts.health.pending = true;
    assert_eq!(storage_plan(&world).next, Next::Wait);
}

#[test]
fn a_cluster_id_that_only_seems_to_be_shared_is_used_once_it_is_confirmed() {
    let mut world = World::with_spec(&json!({"storageProvider": {"vsphereCloudConfig": "vc"}}));
    let id = ClusterId { id: "10.10.10.10".into(), kept_by_driver: false };
    world.facts.cluster_id = Ok(Some(id));
    world.facts.foreign_volumes = Ok(vec!["shop/orders".into()]);
    let accept = |until: &str| {
        let accepted = json!([{"code": "VDO-1512", "reason": "left over", "until": until}]);
        move |config: &mut VDOConfig| {
            config.spec.acknowledgements = serde_json::from_value(accepted).unwrap();
        }
    };
    world.edit_spec(accept("2026-11-14T11:00:00Z"));
    world.settle();
    assert_eq!(world.done, Vec::<String>::new(), "the time for it is over");
    world.edit_spec(accept("2026-11-15T11:00:00Z"));
    world.settle();
    assert_eq!(world.record(Driver::Csi).cluster_id.as_deref(), Some("10.10.10.10"));
}

#[test]
fn a_finding_of_the_rules_can_be_acknowledged_for_a_time() {
    let mut world = World::installed();
    world.annotate(names::PAUSED, "true");
    let accepted =
        json!([{"code": "VDO-1906", "reason": "we know", "until": "2026-11-15T11:00:00Z"}]);
    world.edit_spec(|config| {
        config.spec.acknowledgements = serde_json::from_value(accepted).unwrap();
    });
    let plan = world.plan();
    let paused = plan.findings.iter().find(|finding| finding.code == "VDO-1906").unwrap();
    assert_eq!(paused.acknowledged.as_ref().unwrap().reason, "we know");
    let until = plan.wake.expect("it looks again when the time is over");
    world.facts.now = until;
    let plan = world.plan();
    let paused = plan.findings.iter().find(|finding| finding.code == "VDO-1906").unwrap();
    assert!(paused.acknowledged.is_none());
}

#[test]
fn no_cloud_controller_is_installed_that_would_delete_the_nodes() {
    let mut world = World::new();
    world.facts.cluster.nodes[1].vm = NodeVm::Missing;
    world.settle();
    assert!(!world.done.iter().any(|done| done.contains("cloud-controller")), "{:?}", world.done);
    assert_eq!(world.driver(Driver::Cpi).next, Next::Blocked);
    world.facts.cluster.nodes[1].vm = NodeVm::Unknown("vc is not read yet".into());
    assert_eq!(world.driver(Driver::Cpi).next, Next::Wait);
    // A node that no cloud controller has initialised only waits for its VM.
    world.facts.cluster.nodes[1].vm = NodeVm::Missing;
    world.facts.cluster.nodes[1].node.provider_id = None;
    world.settle();
    assert!(world.record(Driver::Cpi).healthy);
}
