//! No container of a driver keeps crashing; if one does, the check explains its crash logs.

use crate::{
    checks::{
        meaning::{self, About, Meanings},
        prelude::*,
    },
    facts::Container,
};

pub(super) const CHECK: Check = Check {
    name: "drivers/crashes",
    gives: &[codes::POD_CRASHES],
    run: CheckScope::Cluster(meaning::PARTS, check),
};

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    super::report_unknown_drivers(view, "whether the drivers crash", sink);
    let meanings = Meanings::new(view);
    for driver in view.drivers() {
        let pods =
            driver.workloads.iter().flat_map(|all| all.pods.iter().map(move |pod| (all, pod)));
        for (workload, pod) in pods {
            for container in pod.containers.iter().filter(|c| crashes(c, pod.ready)) {
                let about = About {
                    node: pod.node.as_deref(),
                    writer: Some((driver, workload)),
                    ..About::default()
                };
                let known = meanings.explain_last(&container.last_lines, &about);
                let none =
                    if container.unread.is_some() { "unreadable logs" } else { "no log lines" };
                let last = container.last_lines.last().map_or(none, String::as_str);
                let line = known.as_ref().map_or(last, |known| known.line);
                let [meaning, question] = meaning::texts(known.as_ref());
                let hit = super::hit(codes::POD_CRASHES, driver, pod);
                let hit = pod.node.iter().fold(hit, |hit, node| hit.node(node));
                // Some messages have no other finding behind them than this one.
                let causes = known.iter().flat_map(meaning::Meaning::codes);
                let causes = causes.filter(|code| *code != codes::POD_CRASHES.code);
                let hit = meanings.vcenter(line).into_iter().fold(hit, Hit::vcenter);
                sink.raise(
                    hit.with("container", &container.name)
                        .with("restarts", container.restarts)
                        .with("line", line)
                        .with("meaning", meaning)
                        .with("question", question)
                        .because(causes),
                );
            }
        }
    }
}

fn crashes(container: &Container, ready: bool) -> bool {
    let waiting = container.waiting.as_ref().is_some_and(|w| w.reason == "CrashLoopBackOff");
    waiting || (!ready && container.restarts >= 3 && container.waiting.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Waiting;

    #[test]
    fn the_crash_logs_of_a_container_are_explained() {
        let crash = |facts: &mut Facts| {
            let pod = &mut facts.storage_driver().workloads[1].pods[0];
            pod.ready = false;
            let container = &mut pod.containers[0];
            container.restarts = 7;
            container.waiting =
                Some(Waiting { reason: "CrashLoopBackOff".into(), message: String::new() });
            container.last_lines = vec![
                "no matches for kind \"CSINodeTopology\" in version \"cns.vmware.com/v1alpha1\""
                    .into(),
                "exiting".into(),
            ];
        };
        shows(&CHECK, &["VDO-1604"], crash, |facts| {
            facts.cluster.drivers.storage = Known::unknown("VDO cannot list pods");
        });
        let mut facts = healthy();
        crash(&mut facts);
        let examination = crate::Examination::run(facts);
        let seen = &examination.report().page("VDO-1604", 0, 1).entries[0].seen;
        assert!(seen.contains("is not running yet"), "{seen}");
    }
}
