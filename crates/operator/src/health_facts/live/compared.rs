//! Finds volumes and snapshots that only CNS or only Kubernetes knows.
//!
//! VDO queries CNS now and then, and watches Kubernetes. A volume that vanished from Kubernetes since the
//! last query has probably vanished from CNS too. So a volume counts only if Kubernetes did not know it at
//! the time of the query.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use health::facts::{Known, Storage};
use jiff::Timestamp;

use super::super::compared::{Both, Handles, put};
use crate::{
    audit::Audit,
    cluster::{Stores, site::tally},
};

/// The answer of each vCenter, compared once.
#[derive(Debug, Default)]
pub(super) struct Compared {
    of: BTreeMap<String, (Timestamp, Arc<Audit>, Both)>,
    /// The handles that Kubernetes knows now.
    handles: Known<Handles>,
    mark: u64,
}

impl Compared {
    /// Compares new answers.
    pub(super) fn take(&mut self, audits: &BTreeMap<String, Arc<Audit>>, stores: &Stores) {
        let mark = stores.volumes.revision();
        if self.mark != mark || self.handles.get().is_none() {
            self.mark = mark;
            self.handles = stores
                .volumes
                .read(|volumes| Handles::of(volumes.values().map(|volume| volume.handle.as_str())));
        }
        self.of.retain(|name, _| audits.contains_key(name));
        for (name, audit) in audits {
            if self.of.get(name).is_some_and(|(at, _, _)| *at == audit.at) {
                continue;
            }
            let snapshots = stores.site.contents.read(tally);
            let both = Both::of(audit, &self.handles, &snapshots);
            self.of.insert(name.clone(), (audit.at, audit.clone(), both));
        }
    }

    /// Records the results of the comparison.
    pub(super) fn put(&mut self, storage: &mut Storage, expected: &BTreeSet<String>) {
        for (_, _, both) in self.of.values_mut() {
            both.forget(&self.handles);
        }
        let all = self.of.iter().map(|(name, (_, audit, both))| (name.as_str(), &**audit, both));
        put(storage, expected, all);
    }
}
