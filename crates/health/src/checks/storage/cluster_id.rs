//! The cluster has exactly one, unique id and keeps it.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "storage/cluster_id",
    gives: &[codes::CLUSTER_ID_SHARED, codes::CLUSTER_ID_TWICE, codes::CLUSTER_ID_CHANGED],
    run: CheckScope::Cluster(&[], check),
};

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    let (Some(_), Some(driver)) = (&view.facts.wanted.storage, view.storage_driver()) else {
        return;
    };
    let id = &view.facts.storage.cluster_id;
    let hit = |definition| {
        let subject =
            Subject::kubernetes("Secret", Some(&driver.namespace), "vsphere-config-secret");
        Hit::new(definition, subject).with("namespace", &driver.namespace).driver("CSI")
    };
    let current = id.configured.as_ref().or(id.generated.as_ref());
    let question = "whether another cluster uses this cluster's id";
    if let Some(others) = sink.need(&id.also_used_by, cluster_subject, question)
        && !others.is_empty()
        && let Some(current) = current
    {
        let others = first_names(others.iter().map(String::as_str));
        sink.raise(hit(codes::CLUSTER_ID_SHARED).with("id", current).with("others", others));
    }
    let question = "under which cluster id the volumes were created";
    let used = sink.need(&id.of_volumes, cluster_subject, question).and_then(Option::as_ref);
    if let (Some(configured), Some(generated)) = (&id.configured, &id.generated) {
        let keep = used.unwrap_or(generated);
        let step = if keep == configured {
            format!(
                "kubectl delete configmap --namespace {} vsphere-csi-cluster-id",
                driver.namespace
            )
        } else {
            "Remove cluster-id from the driver's configuration".to_owned()
        };
        sink.raise(
            hit(codes::CLUSTER_ID_TWICE)
                .with("configured", configured)
                .with("generated", generated)
                .with("used", keep)
                .with("step", step),
        );
    }
    let known = [&id.configured, &id.generated];
    if let (Some(current), Some(used)) = (current, used)
        && !known.contains(&&Some(used.clone()))
    {
        sink.raise(hit(codes::CLUSTER_ID_CHANGED).with("current", current).with("used", used));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_two_clusters_is_reported() {
        shows(
            &CHECK,
            &["VDO-1512"],
            |facts| facts.storage.cluster_id.also_used_by = vec!["staging".to_owned()].into(),
            |facts| facts.storage.cluster_id.also_used_by = Known::unknown("CNS does not answer"),
        );
    }

    #[test]
    fn an_id_in_two_places_is_reported_with_the_one_to_keep() {
        let mut facts = healthy();
        facts.storage.cluster_id.generated = Some("8e2f".into());
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1513"]);
        let examination = crate::Examination::run(facts);
        let finding =
            examination.report().all().into_iter().find(|f| f.code == "VDO-1513").unwrap();
        assert!(finding.remedy[1].contains("delete configmap"), "{finding:#?}");
    }

    #[test]
    fn a_recreated_cluster_with_another_id_is_reported() {
        shows(
            &CHECK,
            &["VDO-1514"],
            |facts| facts.storage.cluster_id.configured = Some("prod-2".into()),
            |facts| facts.storage.cluster_id.of_volumes = Known::unknown("CNS does not answer"),
        );
    }

    #[test]
    fn a_cluster_without_volumes_may_have_any_id() {
        let mut facts = healthy();
        facts.storage.cluster_id.of_volumes = Known::Known(None);
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }
}
