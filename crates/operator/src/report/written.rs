//! The statuses that VDO wrote. VDO writes a status only if it changed.
//!
//! The status in the cache can lack a part of the last write: the cache may not have it yet, and an older
//! CustomResourceDefinition, such as that of the Go VDO, drops fields. Without this memory VDO would take the missing
//! part for a change, and write the same status in every round.

use std::collections::BTreeMap;

use serde::Serialize;

/// The earlier statuses of one object that a late cache can still show.
const EARLIER: usize = 8;

/// The last status that VDO wrote for each object of one kind.
#[derive(Debug)]
pub(super) struct Written<S>(BTreeMap<String, Entry<S>>);

#[derive(Debug)]
struct Entry<S> {
    /// The statuses in the cache before the write, until the cache shows the write.
    earlier: Vec<S>,
    /// The status that the API server stored.
    stored: S,
    written: S,
}

impl<S> Default for Written<S> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<S: Clone + PartialEq> Written<S> {
    /// The status that VDO wrote, if nobody has changed it since; otherwise `observed`.
    pub(super) fn complete(&mut self, object: &str, observed: &S) -> S {
        let Some(entry) = self.0.get_mut(object) else { return observed.clone() };
        if *observed == entry.stored {
            entry.earlier.clear();
        } else if !entry.earlier.contains(observed) {
            self.0.remove(object);
            return observed.clone();
        }
        entry.written.clone()
    }

    /// Records a write: the status in the cache before it, and the status that the API server stored.
    pub(super) fn note(&mut self, object: &str, observed: &S, stored: S, written: S) {
        let previous = self.0.remove(object);
        let mut earlier = Vec::new();
        if let Some(previous) = previous
            && previous.stored != *observed
        {
            earlier = previous.earlier;
            earlier.push(previous.stored);
        }
        earlier.push(observed.clone());
        let surplus = earlier.len().saturating_sub(EARLIER);
        earlier.drain(..surplus);
        self.0.insert(object.to_owned(), Entry { earlier, stored, written });
    }

    /// Forgets the objects that do not exist any more.
    pub(super) fn retain(&mut self, exists: impl Fn(&str) -> bool) {
        self.0.retain(|object, _| exists(object));
    }
}

/// Whether two statuses are the same to the API server, which stores times in whole seconds.
pub(super) fn is_same<S: PartialEq + Serialize>(one: &S, other: &S) -> bool {
    let json = |status: &S| serde_json::to_value(status).ok();
    one == other || json(one).is_some_and(|one| Some(one) == json(other))
}

#[cfg(test)]
mod tests {
    use api::vdo_config::HealthSummary;
    use jiff::{SignedDuration, Timestamp};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    #[test]
    fn a_status_in_the_cache_counts_as_written_until_somebody_changes_it() {
        let mut written = Written::default();
        assert_eq!(written.complete("a", &1), 1, "VDO has written nothing yet");
        // The API server stores 20 of 21.
        written.note("a", &1, 20, 21);
        assert_eq!(written.complete("a", &1), 21, "the cache is late");
        assert_eq!(written.complete("b", &1), 1, "another object");
        written.note("a", &1, 30, 31);
        assert_eq!(written.complete("a", &20), 31, "the cache shows the write before");
        assert_eq!(written.complete("a", &30), 31, "the API server dropped a part");
        assert_eq!(written.complete("a", &1), 1, "somebody restored an earlier status");
        assert_eq!(written.complete("a", &30), 30, "and again");
    }

    #[test]
    fn objects_that_are_gone_are_forgotten() {
        let mut written = Written::default();
        written.note("a", &1, 2, 3);
        written.retain(|object| object != "a");
        assert_eq!(written.complete("a", &2), 2);
    }

    #[test]
    fn parts_of_a_second_are_no_change() {
        let at = |time| HealthSummary { audited: Some(Time(time)), ..HealthSummary::default() };
        let now = Timestamp::UNIX_EPOCH;
        assert!(is_same(&at(now), &at(now + SignedDuration::from_millis(700))));
        assert!(!is_same(&at(now), &at(now + SignedDuration::from_secs(1))));
    }
}
