//! What our applies left behind, and who changed it since.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use catalog::manifest::Object;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use plan::{
    ObjectId,
    facts::{Conflict, Seen},
    names,
};
use runtime::backoff::Backoff;
use tokio::time::Instant;

use crate::kinds;

/// Those who write into objects of others in the course of their duty.
pub(crate) const BYSTANDERS: [&str; 4] =
    ["kube-controller-manager", "kube-scheduler", "kube-apiserver", "service-ca-operator"];

/// So often in a row an object is applied at once although it is not seen as it was applied: a watch may
/// lag behind.
const AT_ONCE: u32 = 2;
/// So often in a row it was applied in vain when it is told.
const TOLD: u32 = 6;
/// The pauses between two applies in vain: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_mins(5));

/// Changes by others are counted for this long.
const MEMORY: SignedDuration = SignedDuration::from_hours(1);

/// How our last apply left each object. Only saves work and tells of others: after a restart
/// everything is applied once more.
#[derive(Debug)]
pub struct Applied {
    left: Mutex<HashMap<ObjectId, Left>>,
    pauses: Backoff<ObjectId>,
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
    /// How often in a row it was applied again without having been seen as it was applied.
    in_vain: u32,
    /// When it may be applied again, after that.
    not_before: Option<Instant>,
}

/// Objects of a step that are applied again and again and never seen as they were applied.
#[derive(Debug, Default)]
pub(crate) struct InVain {
    /// When the first of those that wait may be applied again.
    pub(crate) due: Option<Instant>,
    /// One of which this has to be told, and how often it was applied.
    pub(crate) told: Option<(ObjectId, u32)>,
}

impl Default for Applied {
    fn default() -> Self {
        let (first, longest) = PAUSES;
        Self {
            left: Mutex::default(),
            pauses: Backoff::new(first, longest),
            gone: Mutex::default(),
        }
    }
}

impl Applied {
    fn all(&self) -> MutexGuard<'_, HashMap<ObjectId, Left>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an object that a watch shows is as our last apply left it.
    pub(crate) fn is_settled(&self, id: &ObjectId, metadata: &ObjectMeta) -> bool {
        let mut all = self.all();
        let Some(left) = all.get_mut(id).filter(|left| left.mark == mark(metadata)) else {
            return false;
        };
        let digest = metadata.annotations.as_ref().and_then(|all| all.get(names::DIGEST));
        if left.in_vain > 0 && left.digest.as_ref() == digest {
            (left.in_vain, left.not_before) = (0, None);
            self.pauses.succeeded(id);
        }
        true
    }

    /// Whether an object may be applied now. One that is never seen as it was applied, because a policy
    /// changes it on the way or because a watch has ended unnoticed, is applied with growing pauses.
    pub(crate) fn may_apply(&self, id: &ObjectId, object: &Object) -> bool {
        let all = self.all();
        let same = all.get(id).filter(|left| left.digest == digest(object));
        same.and_then(|left| left.not_before).is_none_or(|then| then <= Instant::now())
    }

    /// What was applied in vain of these.
    pub(crate) fn in_vain(&self, objects: &[Object]) -> InVain {
        let all = self.all();
        let left = objects.iter().map(ObjectId::of).filter_map(|id| Some((all.get(&id)?, id)));
        let mut found = InVain::default();
        for (left, id) in left.filter(|(left, _)| left.in_vain > 0) {
            found.due = found.due.into_iter().chain(left.not_before).min();
            if left.in_vain >= TOLD {
                found.told = Some((id, left.in_vain + 1));
            }
        }
        found
    }

    /// Whether this process applied it before.
    pub(crate) fn knows(&self, id: &ObjectId) -> bool {
        self.all().contains_key(id)
    }

    /// Notes how an apply left an object. `before` is how it stood right before.
    pub(crate) fn note(
        &self,
        id: ObjectId,
        object: &Object,
        before: Option<ObjectMeta>,
        after: &ObjectMeta,
    ) {
        let digest = digest(object);
        let mut all = self.all();
        let again = all.contains_key(&id);
        let left = all.entry(id.clone()).or_default();
        let same = left.digest == digest;
        left.in_vain = if again && same { left.in_vain.saturating_add(1) } else { 0 };
        left.not_before = None;
        if left.in_vain == 0 {
            self.pauses.succeeded(&id);
        } else if left.in_vain >= AT_ONCE {
            left.not_before = Some(Instant::now() + self.pauses.failed(id));
        }
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
    pub(crate) fn note_gone(&self, id: &ObjectId, mark: &str) {
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
        let unwatched = all.iter().filter(|(id, _)| kinds::is_unwatched(id));
        let seen = |left: &Left| Seen {
            digest: left.digest.clone(),
            settled: true,
            leaving: false,
            mark: left.mark.clone(),
        };
        unwatched.map(|(id, left)| (id.clone(), seen(left))).collect()
    }

    /// Objects that somebody else changed within the hour.
    pub(crate) fn conflicts(&self, now: Timestamp) -> BTreeMap<ObjectId, Conflict> {
        let mut conflicts = BTreeMap::new();
        for (id, left) in self.all().iter_mut() {
            left.undone.retain(|(when, _)| now.duration_since(*when) < MEMORY);
            if let Some((last, manager)) = left.undone.last() {
                let times = u32::try_from(left.undone.len()).unwrap_or(u32::MAX);
                conflicts
                    .insert(id.clone(), Conflict { manager: manager.clone(), times, last: *last });
            }
        }
        conflicts
    }
}

/// The digest an object is applied with.
fn digest(object: &Object) -> Option<String> {
    object.0["metadata"]["annotations"][names::DIGEST].as_str().map(str::to_owned)
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

    #[tokio::test(start_paused = true)]
    async fn what_is_never_seen_as_it_was_applied_is_applied_with_growing_pauses_and_told() {
        let applied = Applied::default();
        let object = |digest: &str| {
            let annotations = serde_json::json!({names::DIGEST: digest});
            Object(serde_json::json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": {"name": "driver", "namespace": "n", "annotations": annotations},
            }))
        };
        let (wanted, id) = (object("a"), ObjectId::of(&object("a")));
        let left = ObjectMeta { uid: Some("u".into()), generation: Some(1), ..Default::default() };
        // Stripped of its digest it is seen, but not as it was applied.
        let (mut times, mut told) = (0, 0);
        for _ in 0..600 {
            if applied.may_apply(&id, &wanted) {
                times += 1;
                applied.note(id.clone(), &wanted, None, &left);
            }
            assert!(applied.is_settled(&id, &left));
            told += usize::from(applied.in_vain(std::slice::from_ref(&wanted)).told.is_some());
            tokio::time::advance(Duration::from_millis(100)).await;
        }
        assert!((8..16).contains(&times), "{times} times within a minute");
        assert!(told > 300, "told {told} times");
        assert!(applied.may_apply(&id, &object("b")), "another wish does not wait");
        // Seen as it was applied, it is forgotten.
        let annotations = BTreeMap::from([(names::DIGEST.to_owned(), "a".to_owned())]);
        assert!(applied.is_settled(&id, &ObjectMeta { annotations: Some(annotations), ..left }));
        assert!(applied.may_apply(&id, &wanted));
        assert!(applied.in_vain(&[wanted]).told.is_none());
    }

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
