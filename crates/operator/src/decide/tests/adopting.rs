//! Drivers by other hands, taken over.

use super::*;
use crate::facts::ClusterId;

/// A cluster in which the storage driver was installed from upstream's manifest, with a vCenter's
/// address as its identity, as the predecessor did.
fn upstream() -> World {
    let mut world = World::wishing(&json!({"storageProvider": {"vsphereCloudConfig": "vc"}}));
    let home = "vmware-system-csi";
    let parts = [
        ("Deployment", "vsphere-csi-controller", Task::Controller),
        ("DaemonSet", "vsphere-csi-node", Task::Node),
    ];
    for (kind, name, task) in parts {
        theirs(&mut world, kind, home, name, Driver::Csi, task);
    }
    for (id, workload) in &mut world.facts.workloads {
        workload.version = Some("3.6.3".into());
        workload.selector = BTreeMap::from([("app".to_owned(), id.name.clone())]);
    }
    let id = ClusterId { id: "10.10.10.10".into(), kept_by_driver: false };
    world.facts.cluster_id = Ok(Some(id));
    world
}

fn adopt(world: &mut World, adoption: &str) {
    let adoption = serde_json::from_value(json!(adoption)).unwrap();
    world.wish(|config| config.spec.adoption = Some(adoption));
}

#[test]
fn adoption_is_proposed_and_nothing_is_done_unasked() {
    let mut world = upstream();
    world.settle();
    assert_eq!(world.done, Vec::<String>::new());
    let plan = world.driver(Driver::Csi);
    let proposal = plan.steps[0].message.as_deref().unwrap();
    assert!(proposal.contains("adoption: Automatic"), "{proposal}");
    assert!(world.codes().contains(&"VDO-1902".into()));
}

#[test]
fn a_known_release_is_adopted_with_its_identity_and_then_upgraded() {
    let mut world = upstream();
    adopt(&mut world, "Automatic");
    world.settle();
    assert_eq!(world.done[0], "record CSI", "first it is written down");
    assert_eq!(world.done.iter().filter(|done| done.starts_with("delete")).count(), 0);
    let record = world.record(Driver::Csi);
    assert_eq!(record.version.as_deref(), Some(NEWEST_CSI));
    assert_eq!(record.cluster_id.as_deref(), Some("10.10.10.10"));
    assert!(record.healthy);
    assert_eq!(world.codes(), Vec::<String>::new());
}

#[test]
fn what_matches_no_known_release_is_never_overwritten() {
    let spoil: [fn(&mut World); 4] = [
        |world| adopt(world, "Never"),
        |world| world.facts.workloads.values_mut().for_each(|w| w.version = Some("0.1.0".into())),
        |world| world.facts.workloads.values_mut().for_each(|w| w.selector.clear()),
        |world| {
            let moved = std::mem::take(&mut world.facts.workloads).into_iter();
            let moved = moved.map(|(id, w)| (ObjectId { namespace: "elsewhere".into(), ..id }, w));
            world.facts.workloads = moved.collect();
        },
    ];
    for (number, spoil) in spoil.into_iter().enumerate() {
        let mut world = upstream();
        adopt(&mut world, "Automatic");
        spoil(&mut world);
        world.settle();
        assert_eq!(world.done, Vec::<String>::new(), "case {number}");
        assert_eq!(world.driver(Driver::Csi).next, Next::Blocked);
        assert!(world.codes().contains(&"VDO-1902".into()));
    }
}

#[test]
fn the_cloud_controller_is_not_adopted_into_a_configuration_that_hides_a_machine() {
    let mut world = World::wishing(&json!({
        "cloudProvider": {"vsphereCloudConfigs": ["vc"]}, "adoption": "Automatic",
    }));
    let name = "vsphere-cloud-controller-manager";
    theirs(&mut world, "DaemonSet", "kube-system", name, Driver::Cpi, Task::Controller);
    for workload in world.facts.workloads.values_mut() {
        workload.version = Some("1.34.0".into());
        workload.selector = BTreeMap::from([("name".to_owned(), name.to_owned())]);
    }
    world.facts.cluster.nodes[0].machine = Machine::Missing;
    world.settle();
    assert!(!world.done.iter().any(|done| done.starts_with("apply")), "{:?}", world.done);
    world.facts.cluster.nodes[0].machine = Machine::Found("vmware-system-vdo/vc".into());
    world.settle();
    assert!(world.record(Driver::Cpi).healthy);
    assert!(world.done.iter().any(|done| done.starts_with("apply DaemonSet")));
}
