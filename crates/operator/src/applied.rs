//! Remembers the state in which each apply left its object, and who changed the object since.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use catalog::{Driver, manifest::Object};
use health::facts::Conflict;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use plan::{
    ObjectId,
    facts::{AppliedObject, FileRenewal},
    names,
};
use runtime::backoff::Backoff;
use tokio::time::Instant;

use crate::kinds;

/// Field managers that write into objects of other managers by design.
pub(crate) const BYSTANDERS: [&str; 4] =
    ["kube-controller-manager", "kube-scheduler", "kube-apiserver", "service-ca-operator"];

/// The number of consecutive applies without a pause, although the watch does not show the object as applied.
/// The watch may only lag behind.
const AT_ONCE: u32 = 2;
/// The number of consecutive applies without effect after which VDO reports the object.
const REPORTED_AFTER: u32 = 6;
/// The first and the longest pause between two applies without effect.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_mins(5));

/// VDO counts changes by others for this long.
const MEMORY: SignedDuration = SignedDuration::from_hours(1);

/// The state in which the last apply left each object. It only saves work and detects changes by others:
/// after a restart, VDO applies everything once more.
#[derive(Debug)]
pub struct Applied {
    left: Mutex<HashMap<ObjectId, Left>>,
    pauses: Backoff<ObjectId>,
    /// Objects that are gone according to the API server, with the mark that a watch showed last.
    gone: Mutex<HashMap<ObjectId, String>>,
    /// The drivers whose pods have renewed the files of their Secret.
    renewed: Mutex<BTreeMap<Driver, FileRenewal>>,
}

#[derive(Debug, Default)]
struct Left {
    /// The uid with the generation if the object has one, else with the resource version. See [`mark`].
    mark: String,
    /// The digest of the applied object.
    digest: Option<String>,
    /// When VDO undid a change, and which manager had made it.
    undone: Vec<(Timestamp, String)>,
    /// The number of consecutive applies after which the watch did not show the object as applied.
    ineffective: u32,
    /// The earliest time for the next apply, after applies without effect.
    not_before: Option<Instant>,
}

/// Objects of a step that VDO applies repeatedly, but never sees as applied.
#[derive(Debug, Default)]
pub(crate) struct Ineffective {
    /// The earliest time at which one of the delayed objects can be applied again.
    pub(crate) due: Option<Instant>,
    /// An object to report, and the number of applies.
    pub(crate) reported: Option<(ObjectId, u32)>,
}

impl Default for Applied {
    fn default() -> Self {
        let (first, longest) = PAUSES;
        Self {
            left: Mutex::default(),
            pauses: Backoff::new(first, longest),
            gone: Mutex::default(),
            renewed: Mutex::default(),
        }
    }
}

impl Applied {
    fn all(&self) -> MutexGuard<'_, HashMap<ObjectId, Left>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an object in a watch is as the last apply left it.
    pub(crate) fn is_settled(&self, id: &ObjectId, metadata: &ObjectMeta) -> bool {
        let mut all = self.all();
        let Some(left) = all.get_mut(id).filter(|left| left.mark == mark(metadata)) else {
            return false;
        };
        let digest = metadata.annotations.as_ref().and_then(|all| all.get(names::DIGEST));
        if left.ineffective > 0 && left.digest.as_ref() == digest {
            (left.ineffective, left.not_before) = (0, None);
            self.pauses.succeeded(id);
        }
        true
    }

    /// Whether an object can be applied now. If the watch never shows the object as applied, VDO applies it
    /// with growing pauses. Causes are a policy that changes the object during admission, or a watch that
    /// ended unnoticed.
    pub(crate) fn may_apply(&self, id: &ObjectId, object: &Object) -> bool {
        let all = self.all();
        let same = all.get(id).filter(|left| left.digest == digest(object));
        same.and_then(|left| left.not_before).is_none_or(|then| then <= Instant::now())
    }

    /// The objects among these that VDO applied without effect.
    pub(crate) fn ineffective(&self, objects: &[Object]) -> Ineffective {
        let all = self.all();
        let left =
            objects.iter().map(ObjectId::from_object).filter_map(|id| Some((all.get(&id)?, id)));
        let mut found = Ineffective::default();
        for (left, id) in left.filter(|(left, _)| left.ineffective > 0) {
            found.due = found.due.into_iter().chain(left.not_before).min();
            if left.ineffective >= REPORTED_AFTER {
                found.reported = Some((id, left.ineffective + 1));
            }
        }
        found
    }

    /// Whether the last apply of this process left the object in this state.
    pub(crate) fn left_as(&self, id: &ObjectId, object: &Object) -> bool {
        self.all().get(id).is_some_and(|left| left.digest == digest(object))
    }

    /// Forgets an object that VDO deletes: if VDO applies it again later, nobody else has deleted it.
    pub(crate) fn forget(&self, id: &ObjectId) {
        self.all().remove(id);
    }

    /// Notes the state in which an apply left an object. `before` is its state right before the apply. Returns the
    /// manager whose change the apply reverted.
    pub(crate) fn note(
        &self,
        id: ObjectId,
        object: &Object,
        before: Option<ObjectMeta>,
        after: &ObjectMeta,
    ) -> Option<String> {
        let digest = digest(object);
        let mut all = self.all();
        let again = all.contains_key(&id);
        let left = all.entry(id.clone()).or_default();
        let same = left.digest == digest;
        left.ineffective = if again && same { left.ineffective.saturating_add(1) } else { 0 };
        left.not_before = None;
        if left.ineffective == 0 {
            self.pauses.succeeded(&id);
        } else if left.ineffective >= AT_ONCE {
            left.not_before = Some(Instant::now() + self.pauses.failed(id));
        }
        let rival = before.filter(|before| {
            // The desired state is the same as before, and still the apply changed something.
            same && before.resource_version != after.resource_version
        });
        let manager = rival.and_then(|before| rival_of(&before));
        if let Some(manager) = &manager {
            left.undone.push((Timestamp::now(), manager.clone()));
        }
        left.mark = mark(after);
        left.digest = digest;
        manager
    }

    /// Notes that an object is gone although a watch still shows it with this mark. The answer of the API
    /// server counts, however long the watch lags behind.
    pub(crate) fn note_gone(&self, id: &ObjectId, mark: &str) {
        let mut gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        gone.insert(id.clone(), mark.to_owned());
    }

    /// Whether the object in a watch is known to be gone. An object that was re-created since has another
    /// mark.
    pub(crate) fn is_gone(&self, id: &ObjectId, metadata: &ObjectMeta) -> bool {
        let gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        gone.get(id).is_some_and(|gone| *gone == mark(metadata))
    }

    /// Notes that the pods of a driver have renewed the files of their Secret, which changed at this time.
    pub(crate) fn note_renewed(&self, driver: Driver, changed: &str) {
        let mut renewed = self.renewed.lock().unwrap_or_else(PoisonError::into_inner);
        let before = renewed.get(&driver).filter(|before| before.changed == changed);
        let times = before.map_or(0, |before| before.times) + 1;
        let renewal = FileRenewal { changed: changed.to_owned(), times, last: Timestamp::now() };
        renewed.insert(driver, renewal);
    }

    pub(crate) fn renewed(&self) -> BTreeMap<Driver, FileRenewal> {
        self.renewed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Objects of unwatched kinds, as this process left them.
    pub(crate) fn unwatched(&self) -> Vec<(ObjectId, AppliedObject)> {
        let all = self.all();
        let unwatched = all.iter().filter(|(id, _)| kinds::is_unwatched(id));
        let seen = |left: &Left| AppliedObject {
            digest: left.digest.clone(),
            settled: true,
            terminating: false,
            mark: left.mark.clone(),
        };
        unwatched.map(|(id, left)| (id.clone(), seen(left))).collect()
    }

    /// Objects that another manager changed within the last hour.
    pub(crate) fn conflicts(&self, now: Timestamp) -> BTreeMap<ObjectId, Conflict> {
        let mut conflicts = BTreeMap::new();
        for (id, left) in self.all().iter_mut() {
            left.undone.retain(|(when, _)| now.duration_since(*when) < MEMORY);
            if let Some((last, manager)) = left.undone.last() {
                let times = u32::try_from(left.undone.len()).unwrap_or(u32::MAX);
                let conflict = Conflict {
                    kind: id.kind.clone(),
                    object: id.qualified_name(),
                    manager: manager.clone(),
                    times,
                    last: *last,
                };
                conflicts.insert(id.clone(), conflict);
            }
        }
        conflicts
    }
}

fn digest(object: &Object) -> Option<String> {
    object.0["metadata"]["annotations"][names::DIGEST].as_str().map(str::to_owned)
}

/// The last manager that wrote the object, except VDO, the [`BYSTANDERS`] and writers of the status.
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

/// Identifies an object and its desired state. It changes whenever the desired state changes.
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
    async fn an_object_that_never_stays_as_applied_is_reported_and_applied_with_growing_pauses() {
        let applied = Applied::default();
        let object = |digest: &str| {
            let annotations = serde_json::json!({names::DIGEST: digest});
            Object(serde_json::json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": {"name": "driver", "namespace": "n", "annotations": annotations},
            }))
        };
        let (wanted, id) = (object("a"), ObjectId::from_object(&object("a")));
        let left = ObjectMeta { uid: Some("u".into()), generation: Some(1), ..Default::default() };
        // The watch shows the object without its digest, so not as applied.
        let (mut times, mut reports) = (0, 0);
        for _ in 0..600 {
            if applied.may_apply(&id, &wanted) {
                times += 1;
                applied.note(id.clone(), &wanted, None, &left);
            }
            assert!(applied.is_settled(&id, &left));
            reports +=
                usize::from(applied.ineffective(std::slice::from_ref(&wanted)).reported.is_some());
            tokio::time::advance(Duration::from_millis(100)).await;
        }
        assert!((8..16).contains(&times), "{times} times within a minute");
        assert!(reports > 300, "{reports} reports");
        assert!(applied.may_apply(&id, &object("b")), "another desired state does not wait");
        // Once the watch shows the object as applied, VDO forgets the failed attempts.
        let annotations = BTreeMap::from([(names::DIGEST.to_owned(), "a".to_owned())]);
        assert!(applied.is_settled(&id, &ObjectMeta { annotations: Some(annotations), ..left }));
        assert!(applied.may_apply(&id, &wanted));
        assert!(applied.ineffective(&[wanted]).reported.is_none());
    }

    #[test]
    fn an_object_that_the_api_server_reports_as_gone_is_gone_until_it_is_re_created() {
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
        assert!(!applied.is_gone(&id, &metadata("second")), "it was created again");
    }
}
