//! Each driver's controller has a node to run on.

use crate::{
    checks::prelude::*,
    facts::{InstalledDriver, Pod, Workload, control_plane},
};

pub(super) const CHECK: Check = Check {
    name: "drivers/controller_pending",
    gives: &[codes::CONTROLLER_PENDING],
    run: CheckScope::Cluster(&[Part::Nodes, Part::Pods], check),
};

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    super::report_unknown_drivers(view, "whether the controllers of the drivers run", sink);
    for driver in view.drivers() {
        for workload in &driver.workloads {
            for pod in &workload.pods {
                let Some(message) = &pod.unschedulable else { continue };
                let hit =
                    super::hit(codes::CONTROLLER_PENDING, driver, pod).with("message", message);
                sink.raise(hit.with("step", step(view, driver, workload, pod, message)));
            }
        }
    }
}

fn step(
    view: &FactsView<'_>,
    driver: &InstalledDriver,
    workload: &Workload,
    pod: &Pod,
    message: &str,
) -> String {
    let namespace = &driver.namespace;
    let control_plane = control_plane(view.nodes(), view.facts.cluster.platform).len();
    if message.contains("anti-affinity") && control_plane > 0 {
        return format!(
            "There are {control_plane} control plane nodes: kubectl scale deployment --namespace \
             {namespace} {} --replicas {control_plane}",
            workload.name
        );
    }
    if message.contains("affinity/selector") {
        return "kubectl label node NODE node-role.kubernetes.io/control-plane=   for the nodes \
                that should run it; VDO uses worker nodes if it sees no control plane nodes"
            .to_owned();
    }
    if message.contains("untolerated taint") {
        return "kubectl describe nodes | grep Taints   lists the taints; remove the taint, or let \
                the controller tolerate it"
            .to_owned();
    }
    format!("kubectl describe pod --namespace {namespace} {}", pod.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pending_controller_is_reported_with_the_schedulers_message() {
        shows(
            &CHECK,
            &["VDO-1601"],
            |facts| {
                let pod = &mut facts.storage_driver().workloads[0].pods[0];
                pod.ready = false;
                pod.unschedulable = Some(
                    "0/24 nodes are available: 24 node(s) didn't match Pod's node affinity/selector"
                        .into(),
                );
            },
            |facts| facts.cluster.drivers.storage = Known::unknown("VDO cannot list pods"),
        );
    }
}
