//! The kubelet's version fits the API server's version.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "nodes/kubelet_version",
    gives: &[codes::KUBELET_SKEW],
    run: CheckScope::Node(check),
};

/// How many minor releases a kubelet may be behind.
const BEHIND: u32 = 3;

fn check(view: &FactsView<'_>, node: &Node, sink: &mut Sink) {
    let question = "whether the kubelets' versions fit the API server's version";
    let Some(server) = sink.need(&view.facts.cluster.version, cluster_subject, question) else {
        return;
    };
    let minor = node.kubelet.minor;
    if minor > server.minor || minor + BEHIND < server.minor {
        let hit = Hit::for_node(codes::KUBELET_SKEW, node).with("version", node.kubelet);
        sink.raise(hit.shared("server", server));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubelet_four_releases_behind_is_reported() {
        shows(
            &CHECK,
            &["VDO-1220"],
            |facts| facts.node("worker-1").kubelet = Version::new(1, 31, 0),
            |facts| facts.cluster.version = Known::unknown("the API server did not say"),
        );
    }

    #[test]
    fn a_kubelet_ahead_is_reported_and_one_three_behind_is_not() {
        let mut facts = healthy();
        facts.node("worker-1").kubelet = Version::new(1, 32, 9);
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
        facts.node("worker-1").kubelet = Version::new(1, 36, 0);
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1220"]);
    }
}
