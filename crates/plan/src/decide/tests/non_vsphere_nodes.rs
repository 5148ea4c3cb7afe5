//! Nodes that do not run on vSphere, or whose provider id is not one of vSphere.

use health::facts::VSPHERE_LABEL;

use super::*;
use crate::plan::NodeLabel;

const K3S: &str = "k3s://node-2";

/// The nodes that VDO excludes from now on (true) or includes again (false).
fn words(world: &World) -> Vec<(String, bool)> {
    let words = world.plan().nodes.into_iter();
    words.map(|NodeLabel { node, out, .. }| (node, out)).collect()
}

fn elsewhere(world: &mut World) -> &mut NodePlacement {
    let node = &mut world.facts.cluster.nodes[1];
    (node.node.provider_id, node.vm) = (Some("aws:///eu-1/i-1".into()), NodeVm::Missing);
    node
}

type Doubt = fn(&mut World);

#[test]
fn a_node_of_another_cloud_is_left_out_where_there_is_no_doubt() {
    let mut world = World::installed();
    assert_eq!(words(&world), []);
    elsewhere(&mut world);
    assert_eq!(words(&world), [("node-2".to_owned(), true)]);

    let doubts: [(&str, Doubt); 8] = [
        ("its VM is in a vCenter", |world| {
            world.facts.cluster.nodes[1].vm = found_by("vmware-system-vdo/vc");
        }),
        ("not every vCenter answered", |world| {
            world.facts.cluster.nodes[1].vm = NodeVm::Unknown("down".into());
        }),
        ("a vCenter is not verified", |world| world.vcenter().state = unreachable_vcenter(true)),
        ("no node has a VM: VDO looks in the wrong place", |world| {
            for node in &mut world.facts.cluster.nodes {
                node.vm = NodeVm::Missing;
            }
        }),
        ("a volume is attached to it", |world| {
            world.facts.attached.push(("pv-1".into(), "node-2".into()));
        }),
        ("somebody says that it is one of ours", |world| {
            world.facts.cluster.nodes[1].node.labels.insert(VSPHERE_LABEL.into(), "true".into());
        }),
        ("its provider id says nothing", |world| {
            world.facts.cluster.nodes[1].node.provider_id = Some(K3S.into());
        }),
        ("the driver is only observed", |world| {
            world.edit_spec(|config| {
                let storage = config.spec.storage_provider.as_mut().unwrap();
                storage.mode = serde_json::from_value(json!("Observe")).unwrap();
            });
        }),
    ];
    for (what, doubt) in doubts {
        let mut world = World::installed();
        elsewhere(&mut world);
        doubt(&mut world);
        assert_eq!(words(&world), [], "{what}");
    }
}

#[test]
fn a_label_of_a_node_is_removed_only_by_its_writer() {
    let mut world = World::installed();
    let labels = &mut world.facts.cluster.nodes[1].node.labels;
    labels.insert(VSPHERE_LABEL.into(), "false".into());
    assert_eq!(words(&world), [], "an admin decided so");
    world.facts.cluster.nodes[1].node.excluded_by_vdo = true;
    assert_eq!(words(&world), [("node-2".to_owned(), false)]);
    world.facts.cluster.nodes[1].vm = NodeVm::Missing;
    assert_eq!(words(&world), []);
}

#[test]
fn the_vm_of_a_node_with_an_embedded_provider_id_must_be_visible_to_another_user() {
    for (id, waits) in [(K3S, true), ("rke2://node-2", true), ("aws:///eu-1/i-1", false)] {
        let mut world = World::installed();
        let node = &mut world.facts.cluster.nodes[1];
        (node.node.provider_id, node.vm) = (Some(id.into()), NodeVm::Missing);
        let vcenter = world.vcenter();
        let username = "another@vsphere.local".into();
        vcenter.credentials = Some(Credential { username, ..credential("another") });
        vcenter.credentials_version = "stands for another".into();
        for driver in [Driver::Cpi, Driver::Csi] {
            assert_eq!(world.driver(driver).next == Next::Blocked, waits, "{driver}: {id}");
        }
    }
}

#[test]
fn the_upstream_cloud_controller_is_not_installed_next_to_one_that_initialised_the_nodes() {
    let blocked = |world: &World| world.driver(Driver::Cpi).next == Next::Blocked;
    let mut world = World::new();
    world.facts.cluster.nodes[1].node.provider_id = Some(K3S.into());
    assert!(blocked(&world));
    let step = world.driver(Driver::Cpi).steps.remove(0);
    assert!(step.message.unwrap().contains(K3S));
    world.edit_spec(|config| {
        let cloud = config.spec.cloud_provider.as_mut().unwrap();
        cloud.node_deletion = Some(api::vdo_config::NodeDeletion::Never);
    });
    assert!(!blocked(&world), "it deletes no node");
    let mut world = World::installed();
    world.facts.cluster.nodes[1].node.provider_id = Some(K3S.into());
    world.settle();
    assert_eq!(world.done, Vec::<String>::new(), "one that runs is left to run");
}
