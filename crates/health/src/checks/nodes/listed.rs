//! VDO can list the nodes.

use crate::checks::prelude::*;

pub(super) const CHECK: Check =
    Check { name: "nodes/listed", gives: &[], run: CheckScope::Cluster(&[Part::Nodes], check) };

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    sink.need(&view.facts.cluster.nodes, cluster_subject, "anything about the nodes");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_cannot_be_listed_are_not_called_fine() {
        let mut facts = healthy();
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
        facts.cluster.nodes = Known::unknown("VDO cannot list nodes");
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1801"]);
    }
}
