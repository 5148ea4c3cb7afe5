//! VDO has the permissions that it needs in the cluster.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "operator/permissions",
    gives: &[codes::PERMISSIONS_MISSING, codes::REMEDIATION_PERMISSION_MISSING],
    run: CheckScope::Cluster(&[], check),
};

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    let question = "which permissions VDO has in this cluster";
    let Some(reviews) = sink.need(&view.facts.cluster.access, cluster_subject, question) else {
        return;
    };
    for review in reviews.iter().filter(|review| !review.allowed) {
        let resource = match review.group.as_str() {
            "" => review.resource.clone(),
            group => format!("{}.{group}", review.resource),
        };
        let place =
            review.namespace.as_ref().map_or(String::new(), |ns| format!(" in namespace {ns}"));
        let scope = review.namespace.as_ref();
        let scope = scope.map_or("--all-namespaces".to_owned(), |ns| format!("--namespace {ns}"));
        let subject = Subject::kubernetes("Right", None, &format!("{} {resource}", review.verb));
        if review.verb == "patch" && review.resource == "csinodes" {
            sink.raise(
                Hit::new(codes::REMEDIATION_PERMISSION_MISSING, subject)
                    .with("field", &review.needed_for)
                    .with("verb", &review.verb)
                    .with("resource", resource)
                    .shared("role", api::CSI_NODES_ROLE)
                    .shared("namespace", api::NAMESPACE),
            );
            continue;
        }
        sink.raise(
            Hit::new(codes::PERMISSIONS_MISSING, subject)
                .with("verb", &review.verb)
                .with("resource", resource)
                .with("where", place)
                .with("scope", scope)
                .with("purpose", &review.needed_for)
                .shared("namespace", api::NAMESPACE),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::AccessReview;

    #[test]
    fn a_remediation_without_its_permission_is_reported_with_the_command_that_grants_it() {
        shows(
            &CHECK,
            &["VDO-1917"],
            |facts| {
                facts.cluster.access = vec![AccessReview {
                    group: "storage.k8s.io".into(),
                    resource: "csinodes".into(),
                    verb: "patch".into(),
                    needed_for: "spec.remediation.csiNodes".into(),
                    ..AccessReview::default()
                }]
                .into();
            },
            |facts| facts.cluster.access = Known::unknown("the API server did not answer"),
        );
    }

    #[test]
    fn the_command_asks_about_the_namespace_that_the_permission_is_for() {
        let step = |namespace: Option<&str>| {
            let mut facts = healthy();
            facts.cluster.access = vec![AccessReview {
                resource: "secrets".into(),
                namespace: namespace.map(Into::into),
                verb: "get".into(),
                ..AccessReview::default()
            }]
            .into();
            let findings = crate::Examination::run(facts).report().all();
            let finding = findings.into_iter().find(|finding| finding.code == "VDO-1803");
            finding.unwrap().remedy[0].clone()
        };
        let named = step(Some("vmware-system-csi"));
        let command = "kubectl auth can-i get secrets --namespace vmware-system-csi --as system:";
        assert!(named.starts_with(command), "{named}");
        let all = step(None);
        assert!(all.starts_with("kubectl auth can-i get secrets --all-namespaces --as "), "{all}");
    }

    #[test]
    fn a_missing_permission_is_reported() {
        shows(
            &CHECK,
            &["VDO-1803"],
            |facts| {
                facts.cluster.access = vec![AccessReview {
                    group: "storage.k8s.io".into(),
                    resource: "csinodes".into(),
                    verb: "list".into(),
                    needed_for: "seeing where the storage driver is registered".into(),
                    ..AccessReview::default()
                }]
                .into();
            },
            |facts| facts.cluster.access = Known::unknown("the API server did not answer"),
        );
    }
}
