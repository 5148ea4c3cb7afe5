//! The cloud provider initialises every node.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "nodes/initialised",
    gives: &[codes::NODE_UNINITIALIZED, codes::KUBELET_NOT_EXTERNAL],
    run: CheckScope::Node(check),
};

/// Seconds that the initialisation may take.
const GRACE_PERIOD: i64 = 120;

fn check(view: &FactsView<'_>, node: &Node, sink: &mut Sink) {
    let (Some(_), age) = (&view.facts.wanted.cloud, view.seconds_since(node.created)) else {
        return;
    };
    sink.recheck(view, node.created, view.grace_period(GRACE_PERIOD));
    if age < view.grace_period(GRACE_PERIOD) {
        return;
    }
    let driver = match &view.facts.cluster.drivers.cloud {
        Known::Known(driver) => driver.as_ref(),
        Known::Unknown { reason } => {
            let question = format!("whether the cloud provider manages {}", node.name);
            sink.cannot_tell(node_subject(node), &question, reason);
            return;
        }
    };
    if !node.is_initialized() {
        let ready = driver.is_some_and(|d| d.workloads.iter().any(|w| w.ready > 0));
        let state = match (driver, ready) {
            (None, _) => "no cloud provider is installed",
            (_, false) => "the cloud provider is not running",
            _ => "the cloud provider is running",
        };
        let hit =
            Hit::for_node(codes::NODE_UNINITIALIZED, node).with("joined", moment(node.created));
        let namespace = driver.map_or("kube-system", |driver| driver.namespace.as_str());
        let workload = super::cloud_workload(driver);
        let vm = view.only_vm(node);
        let hit = vm.iter().fold(hit, |hit, found| hit.vcenter(&found.vcenter.name));
        sink.raise(
            hit.driver("CPI")
                .shared("state", state)
                .shared("namespace", namespace)
                .shared("workload", workload),
        );
    } else if node.provider_id.is_none() && driver.is_some() {
        sink.raise(Hit::for_node(codes::KUBELET_NOT_EXTERNAL, node));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_stays_tainted_is_reported() {
        shows(
            &CHECK,
            &["VDO-1216"],
            |facts| {
                facts.node("worker-1").taints =
                    vec![(Node::UNINITIALIZED.into(), "NoSchedule".into())];
            },
            |facts| facts.cluster.drivers.cloud = Known::unknown("VDO cannot read DaemonSets"),
        );
    }

    #[test]
    fn the_commands_name_the_workload_that_runs() {
        let mut facts = healthy();
        facts.node("worker-1").taints = vec![(Node::UNINITIALIZED.into(), "NoSchedule".into())];
        let driver = facts.cloud_driver();
        driver.namespace = "cpi".into();
        driver.workloads[0].kind = "Deployment".into();
        driver.workloads[0].name = "my-cloud-controller".into();
        let all = crate::Examination::run(facts).report().all();
        let finding = all.iter().find(|finding| finding.code == "VDO-1216").unwrap();
        let command = "kubectl logs --namespace cpi deployment/my-cloud-controller --tail 200 | grep worker-1";
        assert!(finding.remedy.iter().any(|step| step.starts_with(command)), "{finding:#?}");
    }

    #[test]
    fn a_node_that_never_asked_for_a_cloud_provider_is_reported() {
        let mut facts = healthy();
        facts.node("worker-1").provider_id = None;
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1217"]);
    }

    #[test]
    fn a_new_node_has_a_grace_period() {
        let mut facts = healthy();
        let now = facts.now;
        facts.node("worker-1").created = now;
        facts.node("worker-1").taints = vec![(Node::UNINITIALIZED.into(), "NoSchedule".into())];
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }
}
