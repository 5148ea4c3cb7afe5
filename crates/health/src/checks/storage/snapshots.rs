//! A volume's snapshots are within the limit, known to Kubernetes and vCenter, and block no expansion.

use std::collections::BTreeSet;

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "storage/snapshots",
    gives: &[codes::SNAPSHOT_LIMIT, codes::SNAPSHOTS_HINDER_GROWTH, codes::SNAPSHOTS_ORPHANED],
    run: CheckScope::Cluster(&[Part::Volumes], check),
};

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    let facts = &view.facts.storage;
    let Some(storage) = &view.facts.wanted.storage else { return };
    let question = "whether the volumes' snapshots have problems";
    let known = sink.need(&facts.snapshots, cluster_subject, question);
    let only_in_cns = sink.need(&facts.only_in_cns, cluster_subject, question);
    let question = "whether volumes can be expanded";
    let growing = sink.need(&facts.growing, cluster_subject, question);
    // `volume_counts` reports unknown volumes.
    let Some(volumes) = facts.volumes.get() else { return };
    let handles = known.into_iter().flat_map(|all| all.keys());
    let handles: BTreeSet<&String> =
        handles.chain(only_in_cns.into_iter().flat_map(|all| all.keys())).collect();
    for volume in handles.into_iter().filter_map(|handle| volumes.get(handle)) {
        let snapshots = known.and_then(|all| all.get(&volume.handle)).copied().unwrap_or_default();
        let more = only_in_cns.and_then(|all| all.get(&volume.handle)).copied().unwrap_or_default();
        let count = snapshots.made + more;
        let limit = storage.snapshots_per_volume;
        if limit > 0 && count >= limit && snapshots.another_asked {
            let hit = super::hit(codes::SNAPSHOT_LIMIT, volume);
            sink.raise(hit.with("count", count).with("limit", limit));
        }
        if count > 0 && growing.is_some_and(|all| all.contains(&volume.handle)) {
            let plural = if count == 1 { "" } else { "s" };
            let count = format!("{count} snapshot{plural}");
            sink.raise(super::hit(codes::SNAPSHOTS_HINDER_GROWTH, volume).with("count", count));
        }
        if more > 0 {
            let hit = super::hit(codes::SNAPSHOTS_ORPHANED, volume).with("cns", count);
            sink.raise(hit.with("kubernetes", snapshots.made));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{facts::VolumeSnapshots, sample::handle};

    fn with(snapshots: VolumeSnapshots, only_in_cns: u32, grows: bool) -> Vec<&'static str> {
        let mut facts = healthy();
        facts.storage.snapshots.get_mut().unwrap().insert(handle(1), snapshots);
        if only_in_cns > 0 {
            facts.storage.only_in_cns.get_mut().unwrap().insert(handle(1), only_in_cns);
        }
        if grows {
            facts.storage.growing.get_mut().unwrap().insert(handle(1));
        }
        codes_of(&CHECK, &facts)
    }

    #[test]
    fn the_snapshot_limit_is_reported_when_another_is_requested() {
        let full = VolumeSnapshots { made: 3, another_asked: true };
        assert_eq!(with(full, 0, false), ["VDO-1521"]);
        assert_eq!(with(VolumeSnapshots { another_asked: false, ..full }, 0, false), [""; 0]);
    }

    #[test]
    fn snapshots_in_the_way_of_growth_are_reported() {
        assert_eq!(with(VolumeSnapshots { made: 1, another_asked: false }, 0, true), ["VDO-1522"]);
        assert_eq!(with(VolumeSnapshots::default(), 0, true), [""; 0]);
    }

    #[test]
    fn snapshots_only_vcenter_knows_are_reported() {
        assert_eq!(with(VolumeSnapshots::default(), 2, false), ["VDO-1523"]);
    }

    #[test]
    fn unreadable_snapshots_are_not_called_healthy() {
        let mut facts = healthy();
        facts.storage.snapshots = Known::unknown("VDO cannot list VolumeSnapshotContents");
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1801"]);
        let mut facts = healthy();
        facts.storage.volumes = Known::unknown("VDO cannot list PersistentVolumes");
        assert_eq!(codes_of(&CHECK, &facts), [""; 0], "volume_counts reports that it cannot tell");
    }
}
