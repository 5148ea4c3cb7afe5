//! A volume's snapshots are within the limit, known to both sides, and in nobody's way.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "storage/snapshots",
    gives: &[codes::SNAPSHOT_LIMIT, codes::SNAPSHOTS_HINDER_GROWTH, codes::SNAPSHOTS_ORPHANED],
    run: Run::Volume(check),
};

fn check(view: &View<'_>, volume: &Volume, sink: &mut Sink) {
    let Some(storage) = &view.facts.wanted.storage else { return };
    let snapshots = volume.snapshots;
    let count = snapshots.cns.max(snapshots.kubernetes);
    let limit = storage.snapshots_per_volume;
    if limit > 0 && count >= limit && snapshots.another_asked {
        let hit = super::hit(codes::SNAPSHOT_LIMIT, volume);
        sink.raise(hit.with("count", count).with("limit", limit));
    }
    if volume.expanding && count > 0 {
        let plural = if count == 1 { "" } else { "s" };
        let count = format!("{count} snapshot{plural}");
        sink.raise(super::hit(codes::SNAPSHOTS_HINDER_GROWTH, volume).with("count", count));
    }
    if snapshots.cns > snapshots.kubernetes {
        let hit = super::hit(codes::SNAPSHOTS_ORPHANED, volume).with("cns", snapshots.cns);
        sink.raise(hit.with("kubernetes", snapshots.kubernetes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{facts::Snapshots, sample::handle};

    fn with(snapshots: Snapshots, expanding: bool) -> Vec<&'static str> {
        let mut facts = healthy();
        let volumes = facts.storage.volumes.get_mut().unwrap();
        let volume = volumes.get_mut(&handle(1)).unwrap();
        volume.snapshots = snapshots;
        volume.expanding = expanding;
        codes_of(&CHECK, &facts)
    }

    #[test]
    fn the_limit_is_told_when_one_more_is_asked_for() {
        let full = Snapshots { kubernetes: 3, cns: 3, another_asked: true };
        assert_eq!(with(full, false), ["VDO-1521"]);
        assert_eq!(with(Snapshots { another_asked: false, ..full }, false), [""; 0]);
    }

    #[test]
    fn snapshots_in_the_way_of_growth_are_named() {
        let some = Snapshots { kubernetes: 1, cns: 1, another_asked: false };
        assert_eq!(with(some, true), ["VDO-1522"]);
    }

    #[test]
    fn snapshots_only_vcenter_knows_are_named() {
        let some = Snapshots { kubernetes: 0, cns: 2, another_asked: false };
        assert_eq!(with(some, false), ["VDO-1523"]);
    }

    #[test]
    fn without_volumes_to_look_at_nothing_is_said() {
        let mut facts = healthy();
        facts.storage.volumes = Known::unknown("VDO may not list PersistentVolumes");
        assert_eq!(codes_of(&CHECK, &facts), [""; 0], "numbers says that it cannot tell");
    }
}
