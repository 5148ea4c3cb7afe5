//! What only one side knows: CNS, or Kubernetes.
//!
//! CNS is asked now and then, Kubernetes is watched. What vanished from Kubernetes since CNS was asked
//! has probably vanished there too: only what was already unknown to Kubernetes at that time counts.

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

/// Each vCenter's answer, compared once.
#[derive(Debug, Default)]
pub(super) struct Compared {
    of: BTreeMap<String, (Timestamp, Arc<Audit>, Both)>,
    /// Handles that are known now.
    handles: Known<Handles>,
    mark: u64,
}

impl Compared {
    /// Takes in answers that are new.
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

    /// Writes down what came of it.
    pub(super) fn put(&mut self, storage: &mut Storage, expected: &BTreeSet<String>) {
        for (_, _, both) in self.of.values_mut() {
            both.forget(&self.handles);
        }
        let all = self.of.iter().map(|(name, (_, audit, both))| (name.as_str(), &**audit, both));
        put(storage, expected, all);
    }
}
