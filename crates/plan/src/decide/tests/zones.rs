//! Every node must have a zone before a running driver is configured with zones.

use api::finding::codes;

use super::*;

const SECRET: &str = "apply Secret vsphere-config-secret";

fn switch_on(world: &mut World) {
    world.edit_spec(|config| {
        let cloud = config.spec.cloud_provider.as_mut().unwrap();
        cloud.topology = Some(
            serde_json::from_value(json!({"region": "k8s-region", "zone": "k8s-zone"})).unwrap(),
        );
    });
}

#[test]
fn zones_are_switched_on_when_every_node_has_one_and_until_then_nothing_changes() {
    let mut world = World::installed();
    assert_eq!(world.record(Driver::Csi).zones, Some(Vec::new()));
    switch_on(&mut world);
    world.facts.health.tags_are_known = false;
    world.settle();
    assert_eq!(world.done, Vec::<String>::new(), "the tags have not been read");
    assert_eq!(world.driver(Driver::Csi).next, Next::Wait);

    world.facts.health.tags_are_known = true;
    for code in [codes::CATEGORY_MISSING, codes::TAG_MISSING] {
        world.facts.health.findings = vec![code.found().build()];
        world.settle();
        assert_eq!(world.done, Vec::<String>::new());
        for driver in [Driver::Cpi, Driver::Csi] {
            let plan = world.driver(driver);
            assert_eq!(plan.next, Next::Blocked);
            let why = plan.steps.last().unwrap().message.as_deref().unwrap();
            assert!(why.contains(code.code), "{why}");
        }
    }

    world.facts.health.findings.clear();
    world.facts.health.unplaced = ["node-1".to_owned(), "node-2".to_owned()].into();
    world.settle();
    assert_eq!(world.done, Vec::<String>::new(), "the zones of two nodes are unknown");
    let why = world.driver(Driver::Csi).steps.last().unwrap().message.clone().unwrap();
    assert!(why.contains("VDO-1404") && why.contains("node-1 and 1 more"), "{why}");

    world.facts.health.unplaced.clear();
    world.settle();
    assert!(world.done.contains(&SECRET.into()), "{:?}", world.done);
    let place = |what: &str| world.done.iter().position(|done| done == what).unwrap();
    // A node registers again only when a controller runs that knows the zones.
    let controller = place("apply Deployment vsphere-csi-controller");
    assert!(controller < place("apply DaemonSet vsphere-csi-node"), "{:?}", world.done);
    for driver in [Driver::Cpi, Driver::Csi] {
        assert!(world.record(driver).healthy);
        assert_eq!(world.record(driver).zones.as_ref().unwrap().len(), 2);
    }
}

#[test]
fn a_node_that_loses_its_zone_later_holds_up_no_new_password() {
    let mut world = World::installed();
    switch_on(&mut world);
    world.settle();
    world.done.clear();
    world.facts.health.findings = vec![codes::TAG_MISSING.found().build()];
    world.vcenter().credentials = Some(credential("second password"));
    world.vcenter().credentials_version = "stands for the second".into();
    world.settle();
    assert!(world.done.contains(&SECRET.into()), "{:?}", world.done);
}

#[test]
fn a_first_install_waits_for_no_zones() {
    let mut world = World::new();
    switch_on(&mut world);
    world.facts.health.findings = vec![codes::TAG_MISSING.found().build()];
    world.settle();
    assert!(world.record(Driver::Csi).healthy, "{:?}", world.plan());
}

#[test]
fn while_zones_wait_everything_else_goes_on() {
    let shut = || {
        let mut world = World::installed();
        switch_on(&mut world);
        world.facts.health.findings = vec![codes::TAG_MISSING.found().build()];
        world
    };
    let mut world = shut();
    world.vcenter().credentials = Some(credential("second password"));
    world.vcenter().credentials_version = "stands for the second".into();
    world.settle();
    assert!(world.done.contains(&SECRET.into()), "a new password: {:?}", world.done);
    assert_eq!(world.record(Driver::Csi).zones, Some(Vec::new()), "without zones");
    assert_eq!(world.driver(Driver::Csi).next, Next::Blocked, "which it still waits for");

    let mut world = shut();
    world.edit_spec(|config| {
        let storage = config.spec.storage_provider.as_mut().unwrap();
        storage.storage_classes = serde_json::from_value(json!([{"name": "zonal"}])).unwrap();
    });
    world.settle();
    let class = "apply StorageClass zonal".to_owned();
    assert!(
        !world.done.contains(&class),
        "what it says of zones cannot be changed: {:?}",
        world.done
    );
    world.facts.health.findings.clear();
    world.settle();
    assert!(world.done.contains(&class), "{:?}", world.done);

    let mut world = shut();
    let node_driver = |id: &ObjectId| id.kind == "DaemonSet" && id.name == "vsphere-csi-node";
    world.facts.objects.retain(|id, _| !node_driver(id));
    world.facts.workloads.retain(|id, _| !node_driver(id));
    world.settle();
    let put_back = "apply DaemonSet vsphere-csi-node";
    assert_eq!(world.done, [put_back], "what somebody deleted is put back, and nothing else");

    let mut world = shut();
    world.facts.health.findings[0].acknowledged =
        serde_json::from_value(json!({"reason": "the tag comes tomorrow"})).unwrap();
    world.settle();
    assert_eq!(world.record(Driver::Csi).zones.as_ref().unwrap().len(), 2, "somebody accepts it");
}
