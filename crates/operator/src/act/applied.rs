//! What our applies left behind, and who changed it since.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
};

use catalog::manifest::Object;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::takeover::BYSTANDERS;
use crate::{
    facts::{Fight, ObjectId, Seen},
    names,
};

/// Changes by others are counted for this long.
const MEMORY: SignedDuration = SignedDuration::from_hours(1);

/// How our last apply left each object. Only saves work and tells of others: after a restart
/// everything is applied once more.
#[derive(Debug, Default)]
pub struct Applied {
    left: Mutex<HashMap<ObjectId, Left>>,
    /// Objects the API server said are gone, as a watch had last seen them.
    gone: Mutex<HashMap<ObjectId, String>>,
}

/// How an object was left.
#[derive(Debug, Default)]
struct Left {
    /// By generation where it has one, else by resource version.
    mark: String,
    /// The digest it was applied with.
    digest: Option<String>,
    /// When somebody else's change was undone, and whose.
    undone: Vec<(Timestamp, String)>,
}

impl Applied {
    fn all(&self) -> MutexGuard<'_, HashMap<ObjectId, Left>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_settled(&self, id: &ObjectId, metadata: &ObjectMeta) -> bool {
        self.all().get(id).is_some_and(|left| left.mark == mark(metadata))
    }

    /// Whether this process applied it before.
    pub(super) fn knows(&self, id: &ObjectId) -> bool {
        self.all().contains_key(id)
    }

    /// Notes how an apply left an object. `before` is how it stood right before.
    pub(super) fn note(
        &self,
        id: ObjectId,
        object: &Object,
        before: Option<ObjectMeta>,
        after: &ObjectMeta,
    ) {
        let digest = object.0["metadata"]["annotations"][names::DIGEST].as_str().map(str::to_owned);
        let mut all = self.all();
        let left = all.entry(id).or_default();
        let same = left.digest == digest;
        let rival = before.filter(|before| {
            // The same wish as before, and yet the apply changed something.
            same && before.resource_version != after.resource_version
        });
        if let Some(manager) = rival.and_then(|before| rival_of(&before)) {
            left.undone.push((Timestamp::now(), manager));
        }
        left.mark = mark(after);
        left.digest = digest;
    }

    /// Notes that an object is gone which a watch still shows like this. The API server's word counts,
    /// however long the watch takes to hear of it.
    pub(super) fn note_gone(&self, id: &ObjectId, mark: &str) {
        let mut gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        gone.insert(id.clone(), mark.to_owned());
    }

    /// Whether what a watch shows is known to be gone. One that was made since is another one.
    pub(crate) fn is_gone(&self, id: &ObjectId, metadata: &ObjectMeta) -> bool {
        let gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        gone.get(id).is_some_and(|gone| *gone == mark(metadata))
    }

    /// Objects that are not watched, as this process left them.
    pub(crate) fn unwatched(&self) -> Vec<(ObjectId, Seen)> {
        let all = self.all();
        let unwatched = all.iter().filter(|(id, _)| super::is_unwatched(id));
        let seen = |left: &Left| Seen {
            digest: left.digest.clone(),
            settled: true,
            leaving: false,
            mark: left.mark.clone(),
        };
        unwatched.map(|(id, left)| (id.clone(), seen(left))).collect()
    }

    /// Objects that somebody else changed within the hour.
    pub(crate) fn fights(&self, now: Timestamp) -> BTreeMap<ObjectId, Fight> {
        let mut fights = BTreeMap::new();
        for (id, left) in self.all().iter_mut() {
            left.undone.retain(|(when, _)| now.duration_since(*when) < MEMORY);
            if let Some((last, manager)) = left.undone.last() {
                let times = u32::try_from(left.undone.len()).unwrap_or(u32::MAX);
                fights.insert(id.clone(), Fight { manager: manager.clone(), times, last: *last });
            }
        }
        fights
    }
}

/// Who wrote an object last, beside us and whoever writes its status.
fn rival_of(metadata: &ObjectMeta) -> Option<String> {
    let entries = metadata.managed_fields.iter().flatten();
    let others = entries.filter(|entry| {
        let manager = entry.manager.as_deref().unwrap_or_default();
        manager != names::FIELD_MANAGER
            && !BYSTANDERS.contains(&manager)
            && entry.subresource.as_deref().unwrap_or_default() != "status"
    });
    others.max_by_key(|entry| entry.time.as_ref().map(|time| time.0))?.manager.clone()
}

/// Stands for an object and for what is asked of it; another one after every change of that.
pub(crate) fn mark(metadata: &ObjectMeta) -> String {
    let uid = metadata.uid.as_deref().unwrap_or_default();
    match metadata.generation {
        Some(generation) if generation > 0 => format!("{uid} generation {generation}"),
        _ => format!("{uid} version {}", metadata.resource_version.as_deref().unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_api_server_called_gone_is_gone_until_another_one_is_made() {
        let metadata = |uid: &str| ObjectMeta {
            uid: Some(uid.into()),
            resource_version: Some("7".into()),
            ..ObjectMeta::default()
        };
        let id = ObjectId {
            api_version: "v1".into(),
            kind: "ServiceAccount".into(),
            namespace: "somewhere".into(),
            name: "driver".into(),
        };
        let applied = Applied::default();
        assert!(!applied.is_gone(&id, &metadata("first")));
        applied.note_gone(&id, &mark(&metadata("first")));
        assert!(applied.is_gone(&id, &metadata("first")), "a watch that lags shows it still");
        assert!(!applied.is_gone(&id, &metadata("second")), "it was made anew");
    }
}
