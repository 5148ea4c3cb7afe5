//! All pods of the drivers are ready.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "drivers/rollout",
    gives: &[codes::ROLLOUT_INCOMPLETE],
    run: CheckScope::Cluster(&[Part::Pods, Part::Nodes], check),
};

/// A rollout that stops making progress changes no object, so the check looks again after this time.
const ROLLOUT_INTERVAL: i64 = 30;

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    super::report_unknown_drivers(view, "whether the drivers' pods are ready", sink);
    for driver in view.drivers() {
        for workload in driver.workloads.iter().filter(|w| w.ready < w.desired) {
            let short = node_pressure(view, &workload.kind);
            if workload.changing {
                sink.recheck(view, view.facts.now, ROLLOUT_INTERVAL);
                if short.is_empty() {
                    continue;
                }
            }
            let subject =
                Subject::kubernetes(&workload.kind, Some(&driver.namespace), &workload.name);
            let missing = workload.pods.iter().filter(|pod| !pod.ready);
            let nodes = missing.filter_map(|pod| pod.node.as_deref());
            let hit = Hit::new(codes::ROLLOUT_INCOMPLETE, subject);
            sink.raise(
                nodes
                    .fold(hit, Hit::node)
                    .with("workload", &workload.name)
                    .with("ready", workload.ready)
                    .with("desired", workload.desired)
                    .with("short", &short)
                    .with("namespace", &driver.namespace)
                    .driver(&driver.name),
            );
        }
    }
}

/// How many nodes the text names.
const NAMED: usize = 3;

/// Names the nodes that evict pods because of memory, disk or pid pressure; DaemonSets have no pods there.
fn node_pressure(view: &FactsView<'_>, kind: &str) -> String {
    if kind != "DaemonSet" {
        return String::new();
    }
    let nodes = view.facts.cluster.nodes.get().into_iter().flat_map(|nodes| nodes.values());
    let short = nodes.filter_map(|node| Some((node.name.as_str(), node.pressure.as_deref()?)));
    let short: Vec<(&str, &str)> = short.collect();
    let named = short.iter().take(NAMED).map(|(name, what)| format!("{name} has {what}"));
    let named: Vec<String> = named.collect();
    match (named.as_slice(), short.len().saturating_sub(NAMED)) {
        ([], _) => String::new(),
        (named, 0) => format!("; the kubelet evicts pods: {}", named.join(", ")),
        (named, more) => {
            format!("; the kubelet evicts pods: {} and {more} more nodes", named.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_is_under_way_is_no_fault() {
        let mut facts = healthy();
        facts.storage_driver().workloads[1].ready -= 1;
        facts.storage_driver().workloads[1].changing = true;
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }

    #[test]
    fn a_node_under_pressure_is_reported_with_the_resource() {
        let mut facts = healthy();
        facts.storage_driver().workloads[1].ready -= 1;
        // Between two pods of one node, the DaemonSet looks like a rollout in progress.
        facts.storage_driver().workloads[1].changing = true;
        facts.node("worker-1").pressure = Some("DiskPressure".into());
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1621"]);
        let examination = crate::Examination::run(facts);
        let seen = &examination.report().page("VDO-1621", 0, 1).entries[0].seen;
        assert!(seen.contains("worker-1 has DiskPressure"), "{seen}");
    }

    #[test]
    fn pods_that_are_missing_are_counted() {
        shows(
            &CHECK,
            &["VDO-1621"],
            |facts| facts.storage_driver().workloads[1].ready -= 1,
            |facts| facts.cluster.drivers.storage = Known::unknown("VDO cannot list DaemonSets"),
        );
    }
}
