//! Finds volumes and snapshots that only CNS or only Kubernetes knows.
//!
//! VDO queries CNS now and then, and watches Kubernetes. A volume that vanished from Kubernetes since the
//! last query has probably vanished from CNS too. So a volume counts only if Kubernetes did not know it at
//! the time of the query.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
};

use health::facts::{CnsVolume, Known, Orphans, Storage, Volume, VolumeSnapshots};
use jiff::Timestamp;

use crate::{
    audit::{Audit, Disk},
    cluster::{Stores, site::tally},
};

/// The answer of each vCenter, compared once.
#[derive(Debug, Default)]
pub(super) struct Compared {
    of: BTreeMap<String, (Timestamp, Arc<Audit>, OnlyInCns)>,
    /// The handles that Kubernetes knows now.
    handles: Known<Handles>,
    mark: u64,
}

impl Compared {
    /// Compares new answers.
    pub(super) fn take(&mut self, audits: &BTreeMap<String, Arc<Audit>>, stores: Option<&Stores>) {
        let mark = stores.map_or(0, |stores| stores.volumes.revision());
        if self.mark != mark || self.handles.get().is_none() {
            self.mark = mark;
            self.handles = stores.map_or_else(
                || Handles::default().into(),
                |stores| {
                    let handles = |all: &BTreeMap<String, Volume>| {
                        Handles::new(all.values().map(|volume| volume.handle.as_str()))
                    };
                    stores.volumes.read(handles)
                },
            );
        }
        self.of.retain(|name, _| audits.contains_key(name));
        for (name, audit) in audits {
            if self.of.get(name).is_some_and(|(at, _, _)| *at == audit.at) {
                continue;
            }
            let no_snapshots = || Known::Known(BTreeMap::new());
            let snapshots =
                stores.map_or_else(no_snapshots, |stores| stores.site.contents.read(tally));
            let only_in_cns = OnlyInCns::compare(audit, &self.handles, &snapshots);
            self.of.insert(name.clone(), (audit.at, audit.clone(), only_in_cns));
        }
    }

    /// Records the results of the comparison.
    pub(super) fn put(&mut self, storage: &mut Storage, expected: &BTreeSet<String>) {
        for (_, _, only_in_cns) in self.of.values_mut() {
            only_in_cns.forget(&self.handles);
        }
        let all = self
            .of
            .iter()
            .map(|(name, (_, audit, only_in_cns))| (name.as_str(), &**audit, only_in_cns));
        put(storage, expected, all);
    }
}

/// Hashes of volume handles. Hashes save memory, and suffice because handles are only compared.
#[derive(Clone, Debug, Default)]
struct Handles(HashSet<u64>);

impl Handles {
    fn new<'a>(handles: impl Iterator<Item = &'a str>) -> Self {
        Self(handles.map(digest).collect())
    }

    fn contains(&self, handle: &str) -> bool {
        self.0.contains(&digest(handle))
    }
}

fn digest(text: &str) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// Volumes and snapshots that only CNS knew at the time of the query.
#[derive(Clone, Debug, Default)]
struct OnlyInCns {
    /// Volume ids.
    orphans: BTreeSet<String>,
    /// The number of snapshots, by volume id.
    snapshots: Known<BTreeMap<String, u32>>,
}

impl OnlyInCns {
    /// Compares an answer of CNS with the objects in Kubernetes at that time.
    fn compare(
        audit: &Audit,
        handles: &Known<Handles>,
        snapshots: &Known<BTreeMap<String, VolumeSnapshots>>,
    ) -> Self {
        let Known::Known(handles) = handles else { return Self::default() };
        let orphans = audit.disks.keys().filter(|id| !handles.contains(id)).cloned().collect();
        let only = |counts: &BTreeMap<String, u32>, made: &BTreeMap<String, VolumeSnapshots>| {
            let more = counts.iter().filter(|(id, _)| handles.contains(id)).map(|(id, count)| {
                let made = made.get(id).map_or(0, |snapshots| snapshots.made);
                (id.clone(), count.saturating_sub(made))
            });
            more.filter(|(_, more)| *more > 0).collect::<BTreeMap<_, _>>()
        };
        let snapshots = match (&audit.snapshots, snapshots) {
            (Known::Known(counts), Known::Known(made)) => only(counts, made).into(),
            (Known::Unknown { reason }, _) | (_, Known::Unknown { reason }) => {
                Known::unknown(reason)
            }
        };
        Self { orphans, snapshots }
    }

    /// Drops the volumes that Kubernetes has learned of since the comparison.
    fn forget(&mut self, handles: &Known<Handles>) {
        if let Known::Known(handles) = handles {
            self.orphans.retain(|id| !handles.contains(id));
        }
    }
}

/// Records the answer of each vCenter and the result of its comparison. As long as a vCenter of `expected`
/// has not answered, the result is unknown: its volumes are not missing.
fn put<'a>(
    storage: &mut Storage,
    expected: &BTreeSet<String>,
    all: impl Iterator<Item = (&'a str, &'a Audit, &'a OnlyInCns)>,
) {
    let nobody = "no vCenter was asked for its volumes";
    let mut asked = None;
    let mut cns = Known::Known(BTreeMap::new());
    let mut orphans = Orphans::default();
    let mut foreign_volumes: Vec<&str> = Vec::new();
    let mut snapshots = Known::Known(BTreeMap::new());
    let mut totals = Known::Known(BTreeMap::new());
    let mut made_under = Known::Known(None);
    let mut silent = expected.clone();
    for (name, audit, only_in_cns) in all {
        silent.remove(name);
        asked = Some(asked.map_or(audit.at, |at: Timestamp| at.min(audit.at)));
        add(&mut cns, &audit.cns, |all, volumes| {
            all.extend(volumes.iter().map(|(id, volume)| {
                (id.clone(), CnsVolume { vcenter: name.to_owned(), ..volume.clone() })
            }));
        });
        let unknown = only_in_cns.orphans.iter().filter_map(|id| audit.disks.get_key_value(id));
        let unknown: Vec<(&String, &Disk)> = unknown.collect();
        let named = |(id, disk): &(&String, &Disk)| {
            (format!("{} ({id})", disk.name), disk.datastore.clone())
        };
        orphans.disks.extend(unknown.iter().map(named));
        foreign_volumes.extend(unknown.iter().filter_map(|(_, disk)| disk.used_by.as_deref()));
        add(&mut snapshots, &only_in_cns.snapshots, |all, more| all.extend(more.clone()));
        add(&mut totals, &audit.total, |all, total| {
            all.insert(name.to_owned(), *total);
        });
        add(&mut made_under, &audit.made_under, |found: &mut Option<String>, under| {
            if found.is_none() {
                found.clone_from(under);
            }
        });
    }
    let nobody = silent.first().map_or(nobody.to_owned(), |name| {
        format!("the vCenter of {name} has not been asked for its volumes")
    });
    let Some(asked) = asked.filter(|_| silent.is_empty()) else {
        let nobody = nobody.as_str();
        storage.cns = Known::unknown(nobody);
        storage.orphans = Known::unknown(nobody);
        storage.only_in_cns = Known::unknown(nobody);
        storage.cns_total = Known::unknown(nobody);
        storage.cluster_id.of_volumes = Known::unknown(nobody);
        storage.cluster_id.also_used_by = Known::unknown(nobody);
        return;
    };
    storage.cns_asked = asked;
    let seen = cns.reason().map(str::to_owned);
    storage.orphans = seen.as_deref().map_or(Known::Known(orphans), Known::unknown);
    let others = describe(&foreign_volumes);
    storage.cluster_id.also_used_by = seen.as_deref().map_or(Known::Known(others), Known::unknown);
    storage.cns = cns;
    storage.only_in_cns = snapshots;
    storage.cns_total = totals;
    storage.cluster_id.of_volumes = made_under;
}

/// Describes a foreign cluster, of which only the claims in use are known.
fn describe(claims: &[&str]) -> Vec<String> {
    let first: Vec<&str> = claims.iter().copied().take(3).collect();
    let text = || {
        let count = claims.len();
        format!("a cluster with {count} claims in use that are not here: {}", first.join(", "))
    };
    (!claims.is_empty()).then(text).into_iter().collect()
}

fn add<A, T>(all: &mut Known<A>, more: &Known<T>, put: impl FnOnce(&mut A, &T)) {
    match (all.get_mut(), more) {
        (Some(all), Known::Known(more)) => put(all, more),
        (Some(_), Known::Unknown { reason }) => *all = Known::unknown(reason),
        (None, _) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn audit(at: i64, volumes: &[&str], snapshots: &[(&str, u32)]) -> Audit {
        let disk = |used_by| Disk { name: "disk".into(), datastore: "ds".into(), used_by };
        let used = |id: &str| (id.starts_with("used")).then(|| format!("shop/{id}"));
        let nothing = Known::unknown("not asked");
        Audit {
            at: Timestamp::from_second(at).unwrap(),
            asked: String::new(),
            tls_probe: crate::audit::TlsProbe { tls: Known::default(), clock_ahead: nothing },
            sessions: Known::default(),
            services: BTreeMap::new(),
            grants: Known::default(),
            missing_privileges: None,
            tasks: Known::default(),
            tags: Known::default(),
            policies: Known::default(),
            file_service: Known::default(),
            host_groups: Known::default(),
            cns: volumes
                .iter()
                .map(|id| ((*id).to_owned(), CnsVolume::default()))
                .collect::<BTreeMap<_, _>>()
                .into(),
            disks: volumes.iter().map(|id| ((*id).to_owned(), disk(used(id)))).collect(),
            made_under: Known::Known(None),
            total: 7.into(),
            snapshots: snapshots
                .iter()
                .map(|(id, count)| ((*id).to_owned(), *count))
                .collect::<BTreeMap<_, _>>()
                .into(),
        }
    }

    fn handles(all: &[&str]) -> Known<Handles> {
        Handles::new(all.iter().copied()).into()
    }

    fn compared(audit: &Audit, then: &[&str], now: &[&str]) -> Storage {
        let mut only_in_cns = OnlyInCns::compare(audit, &handles(then), &BTreeMap::new().into());
        only_in_cns.forget(&handles(now));
        let mut storage = Storage::default();
        let expected = BTreeSet::from(["vc".to_owned()]);
        put(&mut storage, &expected, [("vc", audit, &only_in_cns)].into_iter());
        storage
    }

    #[test]
    fn only_volumes_unknown_to_kubernetes_at_the_time_of_the_query_are_orphans() {
        let audit = audit(100, &["a", "b"], &[]);
        let storage = compared(&audit, &["a"], &["a"]);
        assert_eq!(storage.orphans.get().unwrap().disks.len(), 1, "b");
        let gone = compared(&audit, &["a", "b"], &["a"]);
        assert!(gone.orphans.get().unwrap().disks.is_empty(), "b went in Kubernetes since");
        let come = compared(&audit, &["a"], &["a", "b"]);
        assert!(come.orphans.get().unwrap().disks.is_empty(), "b came in Kubernetes since");
    }

    #[test]
    fn a_volume_in_use_that_is_not_here_is_of_another_cluster() {
        let audit = audit(100, &["a", "used-1"], &[]);
        let others = compared(&audit, &["a"], &["a"]).cluster_id.also_used_by;
        assert!(others.get().unwrap()[0].contains("shop/used-1"));
        let own = compared(&audit, &["a", "used-1"], &["a", "used-1"]).cluster_id.also_used_by;
        assert_eq!(own.get().unwrap().len(), 0);
    }

    #[test]
    fn snapshots_of_volumes_that_are_here_are_compared() {
        let audit = audit(100, &["a"], &[("a", 2), ("elsewhere", 9)]);
        let only = compared(&audit, &["a"], &["a"]).only_in_cns;
        assert_eq!(only, BTreeMap::from([("a".to_owned(), 2)]).into());
    }

    #[test]
    fn a_vcenter_that_has_not_answered_leaves_everything_unknown() {
        let audit = audit(100, &["a"], &[]);
        let only_in_cns = OnlyInCns::compare(&audit, &handles(&["a"]), &BTreeMap::new().into());
        let mut storage = Storage::default();
        let expected = BTreeSet::from(["other".to_owned(), "vc".to_owned()]);
        put(&mut storage, &expected, [("vc", &audit, &only_in_cns)].into_iter());
        assert!(storage.cns.reason().unwrap().contains("other"));
        assert!(storage.orphans.reason().is_some());
        assert!(storage.cluster_id.also_used_by.reason().is_some());
    }
}
