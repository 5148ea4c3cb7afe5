//! The cluster's security rules let the drivers' pods in.

use crate::{
    checks::prelude::*,
    facts::{Driver, Platform},
};

pub(super) const CHECK: Check = Check {
    name: "drivers/pod_security",
    gives: &[codes::POD_REFUSED],
    run: Run::Cluster(&[Part::Pods], check),
};

fn check(view: &View<'_>, sink: &mut Sink) {
    super::say_if_unknown(view, "whether the drivers' pods are let in", sink);
    for driver in view.drivers() {
        let question = format!("whether the pods of the {} are let in", driver.name);
        let level = sink.need(&driver.pod_security, cluster_subject, question);
        let strict = level.and_then(Option::as_ref).filter(|level| *level != "privileged");
        for workload in &driver.workloads {
            let message = match (&workload.refused, strict) {
                (Some(message), _) => message.clone(),
                (None, Some(level)) if driver.name == "CSI" && workload.kind == "DaemonSet" => {
                    format!("its namespace enforces {level}, and the pods are privileged")
                }
                _ => continue,
            };
            let subject =
                Subject::kubernetes(&workload.kind, Some(&driver.namespace), &workload.name);
            sink.raise(
                Hit::new(codes::POD_REFUSED, subject)
                    .with("workload", &workload.name)
                    .with("message", message)
                    .with("step", step(view.facts.cluster.platform, driver))
                    .driver(&driver.name),
            );
        }
    }
}

fn step(platform: Platform, driver: &Driver) -> String {
    let namespace = &driver.namespace;
    match platform {
        Platform::OpenShift => format!(
            "oc adm policy add-scc-to-user privileged --namespace {namespace} -z vsphere-csi-node -z \
             vsphere-csi-controller"
        ),
        _ => format!(
            "kubectl label namespace {namespace} pod-security.kubernetes.io/enforce=privileged --overwrite"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_the_cluster_refuses_are_named() {
        shows(
            &CHECK,
            &["VDO-1613"],
            |facts| {
                let message = "pods \"vsphere-csi-node-x\" is forbidden: violates PodSecurity";
                facts.storage_driver().workloads[1].refused = Some(message.into());
            },
            |facts| facts.cluster.drivers.storage = Known::unknown("VDO may not list DaemonSets"),
        );
    }

    #[test]
    fn a_strict_namespace_is_named_before_the_next_pod_is_refused() {
        let mut facts = healthy();
        facts.storage_driver().pod_security = Some("baseline".into()).into();
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1613"]);
        facts.storage_driver().pod_security = None.into();
        assert_eq!(codes_of(&CHECK, &facts), [""; 0], "no rule, no refusal");
    }
}
