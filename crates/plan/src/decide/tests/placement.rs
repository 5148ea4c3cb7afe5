//! The controllers of the drivers run where the admin put the control plane.

use super::*;

const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";
const MICROK8S: &str = "node.kubernetes.io/microk8s-controlplane";

fn label(world: &mut World, node: usize, label: &str) {
    world.facts.cluster.nodes[node].node.control_plane = Some(label.to_owned());
}

/// The labels that the controllers require of their nodes, in all that VDO applies until it has no further action.
fn required(world: &mut World) -> Vec<&'static str> {
    let mut text = world.rendered();
    while world.step() {
        text += &world.rendered();
    }
    let required = |label: &&str| text.contains(&format!(r#"[{{"key":"{label}","operator""#));
    [CONTROL_PLANE, MICROK8S].into_iter().filter(required).collect()
}

#[test]
fn a_worker_that_labels_itself_gets_no_controller() {
    for control_plane in [Some(0), None] {
        let mut world = World::new();
        if let Some(node) = control_plane {
            label(&mut world, node, CONTROL_PLANE);
        }
        world.settle();
        assert!(world.record(Driver::Cpi).healthy && world.record(Driver::Csi).healthy);
        world.done.clear();
        label(&mut world, 2, MICROK8S);
        let taint = ("dedicated".to_owned(), "NoSchedule".to_owned());
        world.facts.cluster.nodes[2].node.taints = vec![taint];
        world.settle();
        assert_eq!(world.done, Vec::<String>::new(), "both drivers stay as they are");
    }
}

#[test]
fn on_microk8s_its_label_counts_until_a_node_has_one_that_kubelets_cannot_set() {
    let mut world = World::new();
    world.facts.cluster.platform = Platform::MicroK8s;
    label(&mut world, 0, MICROK8S);
    assert_eq!(required(&mut world), [MICROK8S]);
    label(&mut world, 0, CONTROL_PLANE);
    label(&mut world, 2, MICROK8S);
    assert_eq!(required(&mut world), [CONTROL_PLANE]);
}
