//! Kubernetes and vCenter have the same volumes, and vCenter is below its limit.

use std::collections::BTreeMap;

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "storage/volume_counts",
    gives: &[codes::VOLUMES_BEYOND_THRESHOLD, codes::DISKS_ORPHANED, codes::CNS_NEARLY_FULL],
    run: CheckScope::Cluster(&[Part::Volumes], check),
};

/// vCenter's limit for volumes, and the warning threshold.
const MOST: u32 = 10_000;
const MANY: u32 = 9_000;

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    let storage = &view.facts.storage;
    if view.storage_driver().is_none() {
        return;
    }
    let question = "which volumes vCenter knows";
    let volumes = sink.need(&storage.volumes, cluster_subject, question);
    let cns = storage.cns.get();
    if let Some(reason) = storage.cns.reason() {
        // An unreachable vCenter explains the unknown answer.
        let unreachable =
            view.storage_vcenters().filter(|vcenter| vcenter.inventory.get().is_none());
        let unreachable = unreachable.map(|vcenter| (Anchor::Vcenter, vcenter.name.clone()));
        sink.cannot_tell(cluster_subject(), question, reason).anchors.extend(unreachable);
    }
    if let (Some(volumes), Some(_)) = (volumes, cns) {
        let missing = volumes.keys().filter(|handle| storage.is_missing(handle)).count();
        let threshold = storage.list_threshold;
        if missing > threshold as usize {
            sink.raise(
                Hit::new(codes::VOLUMES_BEYOND_THRESHOLD, cluster_subject())
                    .with("missing", missing)
                    .with("count", volumes.len())
                    .with("threshold", threshold),
            );
        }
    }
    let question = "whether there are disks that no volume refers to";
    if let Some(orphans) = sink.need(&storage.orphans, cluster_subject, question) {
        let mut by_datastore: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (disk, datastore) in &orphans.disks {
            by_datastore.entry(datastore).or_default().push(disk);
        }
        for (datastore, disks) in by_datastore {
            let known = view.datastores().find(|(_, _, known)| known.url == datastore);
            let path = known.map_or(datastore, |(_, _, known)| known.path.as_str());
            let hit = Hit::new(codes::DISKS_ORPHANED, Subject::vsphere("Datastore", path, path));
            let count = disks.len();
            sink.raise(
                hit.with("path", path).with("count", count).with("names", first_names(disks)),
            );
        }
    }
    let question = "how many volumes vCenter holds";
    let totals = sink.need(&storage.cns_total, cluster_subject, question).into_iter().flatten();
    for (vcenter, count) in totals.filter(|(_, count)| **count >= MANY) {
        let Some(vcenter) = view.facts.vcenters.get(vcenter) else { continue };
        sink.raise(
            Hit::new(codes::CNS_NEARLY_FULL, vcenter_subject(vcenter))
                .with("address", &vcenter.address)
                .with("count", (*count).min(MOST))
                .vcenter(&vcenter.name),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Orphans;

    #[test]
    fn more_missing_volumes_than_the_driver_tolerates_are_reported() {
        shows(
            &CHECK,
            &["VDO-1516"],
            |facts| {
                facts.storage.list_threshold = 10;
                facts.storage.cns.get_mut().unwrap().clear();
            },
            |facts| facts.storage.cns = Known::unknown("CNS does not answer"),
        );
    }

    #[test]
    fn new_volumes_are_not_reported_as_missing() {
        let mut facts = healthy();
        facts.storage.list_threshold = 10;
        facts.storage.cns.get_mut().unwrap().clear();
        let asked = facts.storage.cns_asked;
        let volumes = facts.storage.volumes.get_mut().unwrap();
        for volume in volumes.values_mut() {
            volume.created = asked;
        }
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }

    #[test]
    fn disks_nobody_refers_to_are_reported_by_datastore() {
        shows(
            &CHECK,
            &["VDO-1524"],
            |facts| {
                let disks = vec![("pvc-old".to_owned(), "shared".to_owned())];
                facts.storage.orphans = Orphans { disks }.into();
            },
            |facts| facts.storage.orphans = Known::unknown("the datastore was not searched"),
        );
    }

    #[test]
    fn a_vcenter_near_its_limit_is_reported() {
        let mut facts = healthy();
        facts.storage.cns_total.get_mut().unwrap().insert("vcenter-a".into(), 9500);
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1525"]);
    }
}
