//! The cluster admits the drivers' pods.

use crate::{
    checks::prelude::*,
    facts::{InstalledDriver, Platform, Workload},
};

pub(super) const CHECK: Check = Check {
    name: "drivers/pod_security",
    gives: &[codes::POD_REFUSED],
    run: CheckScope::Cluster(&[Part::Pods], check),
};

/// Texts in messages that reject a pod because it is privileged.
const SECURITY: [&str; 3] = ["PodSecurity", "security context constraint", "podsecuritypolicy"];

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    super::report_unknown_drivers(view, "whether the cluster admits the drivers' pods", sink);
    for driver in view.drivers() {
        let question = format!("whether the cluster admits the pods of the {}", driver.name);
        let level = sink.need(&driver.pod_security, cluster_subject, question);
        let strict = level.and_then(Option::as_ref).filter(|level| *level != "privileged");
        for workload in &driver.workloads {
            let message = match (&workload.refused, strict) {
                (Some(message), _) => message.clone(),
                (None, Some(level)) if driver.name == "CSI" && workload.kind == "DaemonSet" => {
                    format!("its namespace enforces {level}, but the pods are privileged")
                }
                _ => continue,
            };
            let subject =
                Subject::kubernetes(&workload.kind, Some(&driver.namespace), &workload.name);
            sink.raise(
                Hit::new(codes::POD_REFUSED, subject)
                    .with("workload", &workload.name)
                    .with("message", message)
                    .with("step", step(view.facts.cluster.platform, driver, workload))
                    .driver(&driver.name),
            );
        }
    }
}

/// The fix depends on why the cluster rejects the pod: security, quota, webhook or missing service account.
fn step(platform: Platform, driver: &InstalledDriver, workload: &Workload) -> String {
    let namespace = &driver.namespace;
    let words = workload.refused.as_deref().unwrap_or("violates PodSecurity");
    if words.contains("exceeded quota") {
        return format!("kubectl describe resourcequota --namespace {namespace}   and raise it");
    }
    if words.contains("serviceaccount") && words.contains("not found") {
        return format!(
            "kubectl get serviceaccounts --namespace {namespace}   and create the missing one"
        );
    }
    if !SECURITY.iter().any(|security| words.contains(security)) {
        let kind = workload.kind.to_ascii_lowercase();
        return format!(
            "kubectl describe {kind} --namespace {namespace} {}   names the component that rejects the pods",
            workload.name
        );
    }
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
    fn pods_the_cluster_refuses_are_reported() {
        shows(
            &CHECK,
            &["VDO-1613"],
            |facts| {
                let message = "pods \"vsphere-csi-node-x\" is forbidden: violates PodSecurity";
                facts.storage_driver().workloads[1].refused = Some(message.into());
            },
            |facts| facts.cluster.drivers.storage = Known::unknown("VDO cannot list DaemonSets"),
        );
    }

    #[test]
    fn only_pods_refused_for_their_privileges_are_given_more() {
        for (message, step) in [
            ("pods \"x\" is forbidden: violates PodSecurity \"baseline\"", "enforce=privileged"),
            ("pods \"x\" is forbidden: exceeded quota: small, requested: pods=1", "resourcequota"),
            ("serviceaccount \"vsphere-csi-node\" not found", "serviceaccounts"),
            (
                "admission webhook \"policy.example.com\" denied the request",
                "that rejects the pods",
            ),
        ] {
            let mut facts = healthy();
            facts.storage_driver().workloads[1].refused = Some(message.into());
            let findings = crate::Examination::run(facts).report().findings();
            let refused = findings.iter().find(|finding| finding.code == "VDO-1613").unwrap();
            assert!(refused.remedy[0].contains(step), "{message}: {:?}", refused.remedy);
        }
    }

    #[test]
    fn a_strict_namespace_is_reported_before_the_next_pod_is_refused() {
        let mut facts = healthy();
        facts.storage_driver().pod_security = Some("baseline".into()).into();
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1613"]);
        facts.storage_driver().pod_security = None.into();
        assert_eq!(codes_of(&CHECK, &facts), [""; 0], "no rule, no refusal");
    }
}
