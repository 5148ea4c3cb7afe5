//! A newer VDO, or a newer catalog, that renders the same release differently.

use super::*;

const SHUT: &str = r#"{"window": {"start": "22:00", "duration": "2h"}}"#;

/// Both drivers run, and then a newer VDO starts with other images for the same releases.
fn rendered_by_newer_vdo(upgrades: Option<&str>) -> World {
    let mut world = World::new();
    world.edit_spec(|config| {
        config.spec.upgrades = upgrades.map(|text| serde_json::from_str(text).unwrap());
    });
    world.settle();
    world.done.clear();
    world.facts.build = "0.8.0 (second)".into();
    let catalog = Arc::make_mut(&mut world.facts.catalog);
    let text = serde_json::to_string(&catalog).unwrap();
    let text = text.replace("csi-attacher", "csi-attacher-rebuilt");
    *catalog = serde_json::from_str(&text).unwrap();
    // The new VDO has applied nothing itself yet.
    for seen in world.facts.objects.values_mut() {
        seen.settled = false;
    }
    world
}

fn touched(world: &World) -> bool {
    world.done.iter().any(|done| done == "apply Deployment vsphere-csi-controller")
}

#[test]
fn a_new_rendering_by_a_newer_vdo_waits_for_the_window() {
    let mut world = rendered_by_newer_vdo(Some(SHUT));
    let before = world.record(Driver::Csi).clone();
    world.settle();
    assert!(!touched(&world), "{:?}", world.done);
    assert!(world.done.contains(&"apply DaemonSet vsphere-csi-node".into()), "others are repaired");
    assert_eq!(world.record(Driver::Csi), &before);
    let plan = world.driver(Driver::Csi);
    assert!(plan.held.as_deref().unwrap().contains("window"), "{plan:?}");
    assert_eq!(plan.next, Next::Nothing);
    world.facts.now = world.plan().wake.expect("it looks again when the window opens");
    world.settle();
    assert!(touched(&world));
    assert_eq!(world.driver(Driver::Csi).held, None);
}

#[test]
fn without_a_window_an_upgrade_of_vdo_leaves_the_driver_untouched_until_something_is_asked_for() {
    let mut world = rendered_by_newer_vdo(None);
    world.settle();
    assert!(!touched(&world), "{:?}", world.done);
    let plan = world.driver(Driver::Csi);
    assert!(plan.held.as_deref().unwrap().contains("next release or change"), "{plan:?}");
    world.edit_spec(|config| {
        let storage = config.spec.storage_provider.as_mut().unwrap();
        storage.max_volumes_per_node = Some(30);
    });
    world.settle();
    assert!(touched(&world));
    assert_eq!(world.driver(Driver::Csi).held, None);
}

#[test]
fn neither_a_spec_change_nor_new_credentials_wait_for_the_window() {
    let mut world = rendered_by_newer_vdo(Some(SHUT));
    world.rotate("vc", "rotated");
    world.settle();
    assert!(world.done.contains(&"apply Secret vsphere-config-secret".into()), "{:?}", world.done);
    let cloud = "restart DaemonSet vsphere-cloud-controller-manager";
    assert!(world.done.iter().any(|done| done == cloud), "it has to restart: {:?}", world.done);
    assert!(!touched(&world), "{:?}", world.done);
    world.edit_spec(|config| {
        let storage = config.spec.storage_provider.as_mut().unwrap();
        storage.max_volumes_per_node = Some(30);
    });
    world.settle();
    assert!(touched(&world));
}

#[test]
fn a_newer_vdo_that_renders_the_same_is_written_down_and_holds_nothing_later() {
    let mut world = rendered_by_newer_vdo(Some(SHUT));
    world.facts.catalog = Arc::new(catalog::embedded().clone());
    world.settle();
    assert!(world.done.contains(&"record CSI".into()));
    let origin = world.record(Driver::Csi).origin.clone().unwrap();
    assert!(origin.build.contains("second"), "{origin:?}");
    world.done.clear();
    world.settle();
    assert_eq!(world.done, Vec::<String>::new());
}

#[test]
fn a_node_of_another_kind_gets_its_driver_whatever_waits() {
    let mut world = rendered_by_newer_vdo(None);
    world.settle();
    assert!(!touched(&world), "{:?}", world.done);
    // One more node of the same kind changes nothing.
    let mut another = world.facts.cluster.nodes[2].clone();
    another.node.name = "another".into();
    world.facts.cluster.nodes.push(another);
    world.settle();
    assert!(!touched(&world), "{:?}", world.done);
    world.facts.cluster.nodes[2].node.os = "windows".into();
    world.settle();
    let windows = "apply DaemonSet vsphere-csi-node-windows";
    assert!(world.done.iter().any(|done| done == windows), "{:?}", world.done);
}
