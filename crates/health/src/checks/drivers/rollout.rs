//! All pods of the drivers are ready.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "drivers/rollout",
    gives: &[codes::ROLLOUT_INCOMPLETE],
    run: Run::Cluster(&[Part::Pods], check),
};

fn check(view: &View<'_>, sink: &mut Sink) {
    super::say_if_unknown(view, "whether the drivers' pods are ready", sink);
    for driver in view.drivers() {
        for workload in driver.workloads.iter().filter(|w| w.ready < w.desired && !w.changing) {
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
                    .with("namespace", &driver.namespace)
                    .driver(&driver.name),
            );
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
    fn pods_that_are_missing_are_counted() {
        shows(
            &CHECK,
            &["VDO-1621"],
            |facts| facts.storage_driver().workloads[1].ready -= 1,
            |facts| facts.cluster.drivers.storage = Known::unknown("VDO may not list DaemonSets"),
        );
    }
}
