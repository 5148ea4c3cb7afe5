//! multipathd does not claim VMware disks.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "nodes/multipath",
    gives: &[codes::MULTIPATH],
    run: CheckScope::Cluster(&[Part::Nodes, Part::Volumes], check),
};

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    for node in view.nodes() {
        check_node(view, node, sink);
    }
}

fn check_node(view: &FactsView<'_>, node: &Node, sink: &mut Sink) {
    // VDO runs nothing on the node; the kubelet reports a claimed disk in its warnings.
    let question = format_args!("whether multipathd claims disks on {}", node.name);
    let failures = sink.need(&node.mount_failures, || node_subject(node), question);
    let mut failures = failures.into_iter().flatten();
    let failure = failures.find(|failure| {
        failure.message.contains("/dev/dm-") && has_volume_on(view, node, &failure.namespace)
    });
    if let Some(failure) = failure {
        let hit = Hit::for_node(codes::MULTIPATH, node);
        sink.raise(hit.with("namespace", &failure.namespace));
    }
}

/// Whether a volume of this namespace is attached to the node. Tenants can write Events in their namespaces: one of them
/// is no evidence about a node that has none of his volumes.
fn has_volume_on(view: &FactsView<'_>, node: &Node, namespace: &str) -> bool {
    let Some(volumes) = view.facts.storage.volumes.get() else { return true };
    let attached = view.index.volumes_on_node(&node.name).iter();
    let mut claims = attached.filter_map(|handle| volumes.get(handle)?.claim.as_deref());
    claims.any(|claim| claim.split_once('/').is_some_and(|(own, _)| own == namespace))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Facts, MountFailure};

    fn failing(facts: &mut Facts, namespace: &str) {
        let message = "MountDevice failed: /dev/dm-3: no such file or directory".into();
        let failure = MountFailure { namespace: namespace.into(), message };
        facts.node("worker-1").mount_failures = vec![failure].into();
    }

    /// The namespace of a volume that is attached to the node.
    fn namespace_on_node(facts: &Facts) -> String {
        let volumes = facts.storage.volumes.get().unwrap().values();
        let mut here = volumes.filter(|volume| volume.node.as_deref() == Some("worker-1"));
        let claim = here.find_map(|volume| volume.claim.clone()).unwrap();
        claim.split_once('/').unwrap().0.to_owned()
    }

    #[test]
    fn a_node_whose_disks_are_claimed_is_reported() {
        shows(
            &CHECK,
            &["VDO-1224"],
            |facts| {
                let namespace = namespace_on_node(facts);
                failing(facts, &namespace);
            },
            |facts| {
                facts.node("worker-1").mount_failures = Known::unknown("VDO cannot list events");
            },
        );
    }

    #[test]
    fn an_event_of_a_tenant_without_volumes_on_the_node_is_no_evidence() {
        let mut facts = healthy();
        failing(&mut facts, "tenant");
        assert_eq!(codes_of(&CHECK, &facts), Vec::<&str>::new());
    }
}
