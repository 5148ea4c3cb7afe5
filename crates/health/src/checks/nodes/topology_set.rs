//! The storage driver knows the topology of the node.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "nodes/topology_set",
    gives: &[codes::TOPOLOGY_NOT_SET],
    run: CheckScope::Node(check),
};

fn check(view: &FactsView<'_>, node: &Node, sink: &mut Sink) {
    let drivers = &view.facts.cluster.drivers;
    let question = format_args!("whether the storage driver knows the topology of {}", node.name);
    let Some(driver) = sink.need(&drivers.storage, || node_subject(node), question) else {
        return;
    };
    let Some(driver) = driver else { return };
    let error = sink.need(&node.topology_error, || node_subject(node), question);
    if let Some(Some(message)) = error {
        let hit = Hit::for_node(codes::TOPOLOGY_NOT_SET, node).driver("CSI");
        sink.raise(hit.with("message", message).shared("namespace", &driver.namespace));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_syncers_error_is_shown() {
        shows(
            &CHECK,
            &["VDO-1606"],
            |facts| {
                facts.node("worker-1").topology_error =
                    Some("no connection to vCenter".into()).into();
            },
            |facts| facts.cluster.drivers.storage = Known::unknown("VDO cannot read Deployments"),
        );
    }
}
