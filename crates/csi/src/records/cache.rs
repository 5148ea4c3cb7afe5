//! The records as this process knows them: those that the watch delivered, and its own writes that the watch has not
//! delivered yet.
//!
//! The watch can stall for minutes without an error. Its view is old then, so a write of this process counts until
//! the watch has delivered it or a newer version.

use std::collections::{HashMap, HashSet};

use super::{Operation, OperationState};

/// A resource version. `None` if the object does not exist.
type Version = Option<String>;

#[derive(Debug, Default)]
pub(super) struct Cache {
    /// By the name of the object.
    watched: HashMap<String, (String, Operation)>,
    written: HashMap<String, Written>,
    /// Grows with each listing.
    listings: u64,
}

/// Knowledge of this process that the watch does not have yet.
#[derive(Debug)]
struct Written {
    /// The number of listings that had begun when the write ended.
    listings: u64,
    /// The version that this process wrote, or removed. `None` if somebody else removed the object.
    version: Version,
    /// `None` if this process removed it.
    operation: Option<Operation>,
}

/// Whether the version `seen` contains the version `written`. The API server counts versions.
fn contains(seen: &str, written: &Version) -> bool {
    let Some(written) = written else { return true };
    match (seen.parse::<u64>(), written.parse::<u64>()) {
        (Ok(seen), Ok(written)) => seen >= written,
        _ => seen == written,
    }
}

impl Cache {
    pub(super) fn current(&self, object: &str) -> Option<&Operation> {
        match self.written.get(object) {
            Some(written) => written.operation.as_ref(),
            None => self.watched.get(object).map(|(_, operation)| operation),
        }
    }

    pub(super) fn all(&self) -> Vec<Operation> {
        let names: HashSet<&String> = self.watched.keys().chain(self.written.keys()).collect();
        names.into_iter().filter_map(|object| self.current(object).cloned()).collect()
    }

    /// The version to replace or remove.
    pub(super) fn version(&self, object: &str) -> Version {
        match self.written.get(object) {
            Some(written) => written.version.clone().filter(|_| written.operation.is_some()),
            None => self.watched.get(object).map(|(version, _)| version.clone()),
        }
    }

    /// The objects, with their versions, whose operation fits.
    pub(super) fn matching(&self, fits: impl Fn(&Operation) -> bool) -> Vec<(String, String)> {
        let names = self.watched.keys().filter(|name| self.current(name).is_some_and(&fits));
        names.filter_map(|name| Some((name.clone(), self.version(name)?))).collect()
    }

    /// This process wrote the object.
    pub(super) fn wrote(&mut self, object: &str, version: String, operation: Operation) {
        let (listings, version, operation) = (self.listings, Some(version), Some(operation));
        if self.watched.get(object).is_some_and(|(seen, _)| contains(seen, &version)) {
            self.written.remove(object);
            return;
        }
        self.written.insert(object.to_owned(), Written { listings, version, operation });
    }

    /// This process is about to remove the object. Returns the earlier state, for [`Cache::keeps`].
    pub(super) fn removes(&mut self, object: &str) -> Option<(Version, Operation)> {
        let before =
            self.current(object).cloned().map(|operation| (self.version(object), operation));
        match self.version(object) {
            Some(version) => {
                let (listings, version) = (self.listings, Some(version));
                let removed = Written { listings, version, operation: None };
                self.written.insert(object.to_owned(), removed);
            }
            // It does not exist any more.
            None => {
                self.written.remove(object);
            }
        }
        before
    }

    /// The removal failed.
    pub(super) fn keeps(&mut self, object: &str, before: Option<(Version, Operation)>) {
        let is_removed = self.written.get(object).is_some_and(|own| own.operation.is_none());
        if let Some((version, operation)) = before.filter(|_| is_removed) {
            let (listings, operation) = (self.listings, Some(operation));
            self.written.insert(object.to_owned(), Written { listings, version, operation });
        }
    }

    /// Another process wrote the object, and this one read it again.
    pub(super) fn reread(&mut self, object: &str, version: String, operation: Operation) {
        self.written.remove(object);
        self.wrote(object, version, operation);
    }

    /// The watch delivered the object.
    pub(super) fn applied(&mut self, object: String, version: String, operation: Operation) {
        let is_newer = |own: &Written| {
            // A removed object is not removed again.
            let is_removal = own.operation.is_none();
            contains(&version, &own.version)
                && !(is_removal && own.version.as_ref() == Some(&version))
        };
        if self.written.get(&object).is_some_and(is_newer) {
            self.written.remove(&object);
        }
        self.watched.insert(object, (version, operation));
    }

    /// The watch says that the object was deleted at `version`; `None` if a listing does not have it.
    pub(super) fn deleted(&mut self, object: &str, version: Option<&str>) {
        let watched = self.watched.remove(object);
        let Some(own) = self.written.get_mut(object) else {
            // Somebody else removed the record of an operation that may still run. It counts until this process
            // knows the outcome.
            if let Some((_, operation)) = watched
                && operation.state == OperationState::InProgress
            {
                let (listings, operation) = (self.listings, Some(operation));
                let kept = Written { listings, version: None, operation };
                self.written.insert(object.to_owned(), kept);
            }
            return;
        };
        if version.is_some_and(|version| !contains(version, &own.version)) {
            // An earlier object of the same name.
            return;
        }
        match &own.operation {
            Some(operation) if operation.state == OperationState::InProgress => own.version = None,
            Some(_) | None => {
                self.written.remove(object);
            }
        }
    }

    /// A listing begins: it has all writes that ended before.
    pub(super) fn listing_begins(&mut self) {
        self.listings += 1;
    }

    pub(super) fn listed(&mut self, records: Vec<(String, String, Operation)>) {
        let listed: HashSet<&String> = records.iter().map(|(name, ..)| name).collect();
        let known = self.watched.keys().chain(self.written.keys());
        let missing: HashSet<String> =
            known.filter(|name| !listed.contains(name)).cloned().collect();
        for name in missing {
            let is_newer = self.written.get(&name).is_some_and(|own| {
                own.listings >= self.listings && own.operation.is_some() && own.version.is_some()
            });
            if is_newer {
                self.watched.remove(&name);
            } else {
                self.deleted(&name, None);
            }
        }
        for (name, version, operation) in records {
            self.applied(name, version, operation);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "pvc-1";

    fn operation(state: OperationState) -> Operation {
        Operation { state, ..Operation::begin(NAME, "vc") }
    }

    fn state(cache: &Cache) -> Option<OperationState> {
        cache.current(NAME).map(|operation| operation.state)
    }

    const OPEN: OperationState = OperationState::InProgress;
    const DONE: OperationState = OperationState::Success;

    #[test]
    fn a_write_counts_until_the_watch_delivers_it_however_long_that_takes() {
        let mut cache = Cache::default();
        cache.wrote(NAME, "7".into(), operation(OPEN));
        assert_eq!(state(&cache), Some(OPEN), "the watch is stalled");
        cache.applied(NAME.into(), "5".into(), operation(DONE));
        assert_eq!(state(&cache), Some(OPEN), "an older version");
        assert_eq!(cache.version(NAME).as_deref(), Some("7"));
        cache.applied(NAME.into(), "10".into(), operation(DONE));
        assert_eq!(state(&cache), Some(DONE));
        assert_eq!(cache.version(NAME).as_deref(), Some("10"));
    }

    #[test]
    fn a_write_that_the_watch_delivered_first_does_not_hide_a_newer_one() {
        let mut cache = Cache::default();
        cache.applied(NAME.into(), "7".into(), operation(OPEN));
        cache.applied(NAME.into(), "9".into(), operation(DONE));
        cache.wrote(NAME, "7".into(), operation(OPEN));
        assert_eq!(state(&cache), Some(DONE));
    }

    #[test]
    fn the_record_of_a_running_operation_counts_although_somebody_deleted_it() {
        for own in [true, false] {
            let mut cache = Cache::default();
            if own {
                cache.wrote(NAME, "7".into(), operation(OPEN));
            }
            cache.applied(NAME.into(), "7".into(), operation(OPEN));
            cache.deleted(NAME, Some("8"));
            assert_eq!(state(&cache), Some(OPEN), "own: {own}");
            assert_eq!(cache.version(NAME), None, "it is created again");
            cache.listing_begins();
            cache.listed(Vec::new());
            assert_eq!(state(&cache), Some(OPEN), "own: {own}");
            cache.wrote(NAME, "9".into(), operation(DONE));
            cache.applied(NAME.into(), "9".into(), operation(DONE));
            cache.deleted(NAME, Some("10"));
            assert_eq!(state(&cache), None, "a record of an ended operation is not missed");
        }
    }

    #[test]
    fn a_removed_record_is_gone_at_once_and_its_memory_ends_with_the_watch() {
        let mut cache = Cache::default();
        cache.applied(NAME.into(), "7".into(), operation(OPEN));
        cache.removes(NAME);
        assert_eq!(state(&cache), None);
        cache.applied(NAME.into(), "7".into(), operation(OPEN));
        assert_eq!(state(&cache), None, "the watch is late");
        cache.deleted(NAME, Some("8"));
        assert_eq!(state(&cache), None);
        assert!(cache.written.is_empty() && cache.watched.is_empty());

        cache.applied(NAME.into(), "9".into(), operation(OPEN));
        let before = cache.removes(NAME);
        cache.keeps(NAME, before);
        assert_eq!(state(&cache), Some(OPEN), "the removal failed");
        assert_eq!(cache.version(NAME).as_deref(), Some("9"));
    }

    #[test]
    fn a_listing_drops_earlier_records_and_keeps_writes_that_it_cannot_have() {
        let mut cache = Cache::default();
        cache.wrote("old", "7".into(), operation(DONE));
        cache.listing_begins();
        cache.wrote("new", "8".into(), operation(DONE));
        cache.listed(Vec::new());
        assert!(cache.current("old").is_none());
        assert!(cache.current("new").is_some());
        cache.applied("new".into(), "8".into(), operation(DONE));
        assert!(cache.written.is_empty());
    }
}
