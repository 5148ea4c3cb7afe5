//! The network plugin runs on every node.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "operator/network",
    gives: &[codes::NETWORK_MISSING],
    run: CheckScope::Cluster(&[Part::Nodes], check),
};

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    let question = "whether the network plugin runs";
    let Some(network) = sink.need(&view.facts.cluster.network, cluster_subject, question) else {
        return;
    };
    for name in &network.missing_on {
        if let Some(node) = view.node(name) {
            let hit = Hit::for_node(codes::NETWORK_MISSING, node);
            sink.raise(hit.shared("plugin", &network.plugin));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_the_network_plugin_is_reported() {
        shows(
            &CHECK,
            &["VDO-1806"],
            |facts| facts.cluster.network.get_mut().unwrap().missing_on = vec!["worker-1".into()],
            |facts| facts.cluster.network = Known::unknown("VDO cannot list DaemonSets"),
        );
    }

    #[test]
    fn a_node_that_has_left_meanwhile_is_not_missed() {
        let mut facts = healthy();
        facts.cluster.network.get_mut().unwrap().missing_on = vec!["long-gone".into()];
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }
}
