//! The snapshot loop: what csi-snapshotter does. The snapshot-controller of Kubernetes, a separate program, creates
//! and binds the VolumeSnapshotContents.

pub mod objects;

use std::collections::HashMap;

use kube::Api;
use serde_json::{Value, json};
use tonic::{Request, Status};

use self::objects::{Content, SnapshotClass};
use super::{
    context::Shared,
    events::{ObjectReference, Source},
    model::Metadata as _,
    names::{
        CONTENT_PROTECTION, GROUP_SNAPSHOT_HANDLE, RESERVED_PREFIX, SNAPSHOT_BEING_CREATED,
        SNAPSHOT_BEING_DELETED,
    },
    queue::{Next, Reconcile},
    rpc::is_final,
    writer::{after_failure, is_not_found},
};
use crate::proto::csi::{
    CreateSnapshotRequest, DeleteSnapshotRequest, ListSnapshotsRequest, Snapshot as CsiSnapshot,
    controller_service_capability::rpc::Type as Rpc,
};

/// The next step for a VolumeSnapshotContent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Nothing,
    /// Take a snapshot of this volume, or ask whether it is ready.
    Create(String),
    /// Ask for this snapshot, which the user made in another way.
    Check(String),
    /// Delete this snapshot, then release the object.
    Delete(String),
    /// Release the object and keep the snapshot.
    Release,
}

pub fn step(content: &Content, driver: &str) -> Step {
    // The members of a group are made and deleted with the group.
    if content.spec.driver != driver || content.annotation(GROUP_SNAPSHOT_HANDLE).is_some() {
        return Step::Nothing;
    }
    let source = &content.spec.source;
    if content.is_deleting() {
        return match &source.volume_handle {
            // The snapshot may exist without being known: it is asked for until the answer is final.
            Some(volume) if content.annotation(SNAPSHOT_BEING_CREATED).is_some() => {
                Step::Create(volume.clone())
            }
            _ => deletion(content),
        };
    }
    let status = content.status.as_ref();
    if status.is_some_and(|status| status.ready_to_use == Some(true)) {
        return Step::Nothing;
    }
    match (&source.volume_handle, &source.snapshot_handle) {
        (Some(volume), _) => Step::Create(volume.clone()),
        (None, Some(snapshot)) => Step::Check(snapshot.clone()),
        (None, None) => Step::Nothing,
    }
}

fn deletion(content: &Content) -> Step {
    let source = &content.spec.source;
    let unbound =
        source.snapshot_handle.is_some() && content.spec.volume_snapshot_ref.uid.is_none();
    // While a snapshot may still be taken, deletion would leak it.
    let requested = content.annotation(SNAPSHOT_BEING_DELETED).is_some()
        && content.annotation(SNAPSHOT_BEING_CREATED).is_none();
    if !(unbound || requested) || !content.has_finalizer(CONTENT_PROTECTION) {
        return Step::Nothing;
    }
    let taken = content.status.as_ref().and_then(|status| status.snapshot_handle.clone());
    match taken.or_else(|| source.snapshot_handle.clone()) {
        Some(handle) if content.spec.deletion_policy == "Delete" => Step::Delete(handle),
        _ => Step::Release,
    }
}

/// The request to take a snapshot.
pub fn create_request(
    content: &Content,
    volume_handle: &str,
    class: &SnapshotClass,
    extra_metadata: bool,
) -> Result<CreateSnapshotRequest, String> {
    let reference = &content.spec.volume_snapshot_ref;
    let uid = reference.uid.as_deref().unwrap_or_default();
    if uid.is_empty() {
        return Err("the content names no VolumeSnapshot with a uid".into());
    }
    let own = class.parameters.iter().filter(|(key, _)| !key.starts_with(RESERVED_PREFIX));
    let mut parameters: HashMap<String, String> =
        own.map(|(key, value)| (key.clone(), value.clone())).collect();
    if extra_metadata {
        let names = [
            ("volumesnapshot/name", reference.name.clone()),
            ("volumesnapshot/namespace", reference.namespace.clone()),
            ("volumesnapshotcontent/name", content.name().to_owned()),
        ];
        parameters.extend(names.map(|(key, value)| (format!("{RESERVED_PREFIX}{key}"), value)));
    }
    Ok(CreateSnapshotRequest {
        source_volume_id: volume_handle.into(),
        name: format!("snapshot-{uid}"),
        parameters,
        ..CreateSnapshotRequest::default()
    })
}

/// The status for the driver's answer. Handle, time and size are written once.
pub fn status(content: &Content, snapshot: &CsiSnapshot, now: jiff::Timestamp) -> Value {
    let known = content.status.clone().unwrap_or_default();
    let nanoseconds = |time: prost_types::Timestamp| {
        time.seconds.saturating_mul(1_000_000_000).saturating_add(i64::from(time.nanos))
    };
    let now = i64::try_from(now.as_nanosecond()).unwrap_or_default();
    let created = snapshot.creation_time.map_or(now, nanoseconds);
    let size = (snapshot.size_bytes > 0).then_some(snapshot.size_bytes);
    json!({"status": {
        "snapshotHandle": known.snapshot_handle.unwrap_or_else(|| snapshot.snapshot_id.clone()),
        "creationTime": known.creation_time.unwrap_or(created),
        "restoreSize": known.restore_size.or(size),
        "readyToUse": snapshot.ready_to_use,
        "error": null,
    }})
}

pub struct Snapshotter {
    context: Shared,
}

/// A failed operation, or a write that must be repeated.
enum Stopped {
    Failed(Status),
    Write(kube::Error),
}

impl From<Status> for Stopped {
    fn from(status: Status) -> Self {
        Self::Failed(status)
    }
}

impl From<kube::Error> for Stopped {
    fn from(error: kube::Error) -> Self {
        Self::Write(error)
    }
}

impl Snapshotter {
    pub fn new(context: Shared) -> Self {
        Self { context }
    }

    async fn create(&self, content: &Content, volume: &str) -> Result<Next, Stopped> {
        let shared = &self.context;
        let class = self.class(content).await?;
        let extra_metadata = shared.settings.extra_metadata;
        let request = create_request(content, volume, &class, extra_metadata)
            .map_err(Status::invalid_argument)?;
        let mut content = content.clone();
        if content.annotation(SNAPSHOT_BEING_CREATED).is_none() {
            let annotations = json!({SNAPSHOT_BEING_CREATED: "yes"});
            content = shared.writer.annotate(&content, annotations).await?;
        }
        let call = shared.calls.service().create_snapshot(Request::new(request));
        let answer = shared.calls.send(call).await;
        let snapshot = match answer {
            Ok(answer) => answer.snapshot.unwrap_or_default(),
            Err(status) => {
                if is_final(status.code())
                    && let Err(error) = self.end_creation(&content).await
                {
                    // The next attempt removes the annotation. The failure is reported in any case.
                    tracing::warn!(%error, name = content.name(), "an annotation cannot be removed");
                }
                return Err(status.into());
            }
        };
        let patch = status(&content, &snapshot, jiff::Timestamp::now());
        let content = shared.writer.patch_status(&content, patch).await?;
        self.end_creation(&content).await?;
        Ok(if snapshot.ready_to_use { Next::OnChange } else { Next::Retry })
    }

    /// From here on, the snapshot is in the status, or there is none.
    async fn end_creation(&self, content: &Content) -> Result<(), kube::Error> {
        if content.annotation(SNAPSHOT_BEING_CREATED).is_none() {
            return Ok(());
        }
        let annotations = json!({SNAPSHOT_BEING_CREATED: null});
        self.context.writer.annotate(content, annotations).await.map(drop)
    }

    async fn class(&self, content: &Content) -> Result<SnapshotClass, Stopped> {
        let Some(name) = &content.spec.volume_snapshot_class_name else {
            return Err(Status::invalid_argument("the content names no VolumeSnapshotClass").into());
        };
        let classes = Api::<SnapshotClass>::all(self.context.writer.client());
        match classes.get(name).await {
            Err(error) if is_not_found(&error) => {
                let text = format!("the VolumeSnapshotClass {name} does not exist");
                Err(Status::not_found(text).into())
            }
            other => Ok(other?),
        }
    }

    async fn check(&self, content: &Content, handle: &str) -> Result<Next, Stopped> {
        let shared = &self.context;
        let snapshot = if shared.capabilities.has(Rpc::ListSnapshots) {
            let request = ListSnapshotsRequest { snapshot_id: handle.into(), ..Default::default() };
            let call = shared.calls.service().list_snapshots(Request::new(request));
            let answer = shared.calls.send(call).await?;
            let found = answer.entries.into_iter().find_map(|entry| entry.snapshot);
            found.ok_or_else(|| Status::not_found(format!("there is no snapshot {handle}")))?
        } else {
            CsiSnapshot { snapshot_id: handle.into(), ready_to_use: true, ..Default::default() }
        };
        let patch = status(content, &snapshot, jiff::Timestamp::now());
        shared.writer.patch_status(content, patch).await?;
        Ok(if snapshot.ready_to_use { Next::OnChange } else { Next::Retry })
    }

    async fn delete(&self, content: &Content, handle: String) -> Result<Next, Stopped> {
        let shared = &self.context;
        let request = DeleteSnapshotRequest { snapshot_id: handle, ..Default::default() };
        let call = shared.calls.service().delete_snapshot(Request::new(request));
        shared.calls.send(call).await?;
        self.release(content).await
    }

    async fn release(&self, content: &Content) -> Result<Next, Stopped> {
        let kept = content.metadata.finalizers.iter().flatten();
        let kept: Vec<&String> = kept.filter(|f| *f != CONTENT_PROTECTION).collect();
        let patch = json!({"metadata": {"finalizers": kept}});
        self.context.writer.replace_fields_of(content, patch).await?;
        Ok(Next::OnChange)
    }

    /// Reports a failure as event, and in the status unless the object is deleted.
    async fn failed(&self, content: &Content, step: &Step, failure: &Status) -> Next {
        let message = failure.message();
        let (reason, text) = match step {
            Step::Delete(_) | Step::Release => {
                ("SnapshotDeleteError", format!("Failed to delete snapshot: {message}"))
            }
            Step::Check(_) => (
                "SnapshotContentCheckandUpdateFailed",
                format!("Failed to check and update snapshot content: {message}"),
            ),
            _ => ("SnapshotCreationFailed", format!("Failed to create snapshot: {message}")),
        };
        let object = ObjectReference::to(content);
        self.context.events.warning(object, Source::Snapshotter, reason, text.clone());
        let known = content.status.as_ref().and_then(|status| status.error.as_ref());
        let shown = known.is_some_and(|known| known.message.as_deref() == Some(&text));
        if content.is_deleting() || shown {
            return Next::Retry;
        }
        let now = format!("{:.0}", jiff::Timestamp::now());
        let patch =
            json!({"status": {"readyToUse": false, "error": {"message": text, "time": now}}});
        match self.context.writer.patch_status(content, patch).await {
            Ok(_) => Next::Retry,
            Err(error) => after_failure(&error),
        }
    }
}

impl Reconcile for Snapshotter {
    async fn reconcile(&self, name: &str) -> Next {
        let Some(content) = self.context.cluster.content(name) else { return Next::OnChange };
        if !self.context.writer.is_current(&*content) {
            return Next::Conflict;
        }
        let step = step(&content, &self.context.settings.driver);
        let done = match &step {
            Step::Nothing => return Next::OnChange,
            Step::Create(volume) => self.create(&content, volume).await,
            Step::Check(handle) => self.check(&content, handle).await,
            Step::Delete(handle) => self.delete(&content, handle.clone()).await,
            Step::Release => self.release(&content).await,
        };
        match done {
            Ok(next) => next,
            Err(Stopped::Write(error)) => after_failure(&error),
            Err(Stopped::Failed(status)) => self.failed(&content, &step, &status).await,
        }
    }

    fn known_version(&self, name: &str) -> u64 {
        let content = self.context.cluster.content(name);
        content.map_or(0, |content| self.context.writer.known_version(&*content))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRIVER: &str = "csi.vsphere.vmware.com";

    fn content(metadata: &Value, spec: &Value, status: &Value) -> Content {
        let mut content = json!({
            "metadata": {"name": "c", "finalizers": [CONTENT_PROTECTION]},
            "spec": {
                "driver": DRIVER, "deletionPolicy": "Delete", "source": {"volumeHandle": "fcd"},
                "volumeSnapshotRef": {"namespace": "shop", "name": "s", "uid": "u-1"},
            },
            "status": status,
        });
        for (part, fields) in [("metadata", metadata), ("spec", spec)] {
            for (key, value) in fields.as_object().unwrap() {
                content[part][key] = value.clone();
            }
        }
        serde_json::from_value(content).unwrap()
    }

    #[test]
    fn a_snapshot_is_taken_and_asked_for_until_it_is_ready() {
        let none = json!({});
        let made = json!({"source": {"snapshotHandle": "fcd+1"}});
        let decide = |spec: &Value, status: Value| step(&content(&none, spec, &status), DRIVER);
        assert_eq!(decide(&none, json!(null)), Step::Create("fcd".into()));
        assert_eq!(decide(&none, json!({"readyToUse": false})), Step::Create("fcd".into()));
        assert_eq!(decide(&none, json!({"readyToUse": true})), Step::Nothing);
        assert_eq!(decide(&made, json!(null)), Step::Check("fcd+1".into()));
        assert_eq!(decide(&json!({"driver": "other"}), json!(null)), Step::Nothing);
        let member = json!({"annotations": {GROUP_SNAPSHOT_HANDLE: "g"}});
        assert_eq!(step(&content(&member, &none, &json!(null)), DRIVER), Step::Nothing);
    }

    #[test]
    fn a_snapshot_is_deleted_only_when_it_is_certainly_not_being_taken() {
        let status = json!({"snapshotHandle": "fcd+1", "readyToUse": true});
        let decide = |annotations: Value, spec: Value| {
            let deleting = json!({
                "deletionTimestamp": "2026-01-01T00:00:00Z", "annotations": annotations,
            });
            step(&content(&deleting, &spec, &status), DRIVER)
        };
        let deleted = json!({SNAPSHOT_BEING_DELETED: "yes"});
        let both = json!({SNAPSHOT_BEING_DELETED: "yes", SNAPSHOT_BEING_CREATED: "yes"});
        assert_eq!(decide(deleted.clone(), json!({})), Step::Delete("fcd+1".into()));
        assert_eq!(decide(both, json!({})), Step::Create("fcd".into()));
        assert_eq!(decide(json!({}), json!({})), Step::Nothing);
        assert_eq!(decide(deleted, json!({"deletionPolicy": "Retain"})), Step::Release);
        let unbound = json!({
            "source": {"snapshotHandle": "fcd+1"}, "volumeSnapshotRef": {"namespace": "shop", "name": "s"},
        });
        assert_eq!(decide(json!({}), unbound), Step::Delete("fcd+1".into()));
    }

    #[test]
    fn the_request_is_that_of_csi_snapshotter() {
        let class: SnapshotClass = serde_json::from_value(json!({
            "metadata": {"name": "fast"},
            "parameters": {"a": "b", "csi.storage.k8s.io/snapshotter-secret-name": "x"},
        }))
        .unwrap();
        let content = content(&json!({}), &json!({}), &json!(null));
        let request = create_request(&content, "fcd", &class, true).unwrap();
        assert_eq!(
            (request.name.as_str(), request.source_volume_id.as_str()),
            ("snapshot-u-1", "fcd")
        );
        let mut parameters: Vec<_> = request.parameters.into_iter().collect();
        parameters.sort();
        let expected = [
            ("a", "b"),
            ("csi.storage.k8s.io/volumesnapshot/name", "s"),
            ("csi.storage.k8s.io/volumesnapshot/namespace", "shop"),
            ("csi.storage.k8s.io/volumesnapshotcontent/name", "c"),
        ];
        assert_eq!(parameters, expected.map(|(k, v)| (k.to_owned(), v.to_owned())));
        assert_eq!(create_request(&content, "fcd", &class, false).unwrap().parameters.len(), 1);
    }

    #[test]
    fn the_handle_of_a_snapshot_never_changes() {
        let known = json!({"snapshotHandle": "fcd+1", "creationTime": 5, "restoreSize": 7});
        let content = content(&json!({}), &json!({}), &known);
        let answer = CsiSnapshot {
            snapshot_id: "fcd+2".into(),
            size_bytes: 9,
            ready_to_use: true,
            ..CsiSnapshot::default()
        };
        let expected = json!({"status": {
            "snapshotHandle": "fcd+1", "creationTime": 5, "restoreSize": 7, "readyToUse": true, "error": null,
        }});
        assert_eq!(status(&content, &answer, jiff::Timestamp::UNIX_EPOCH), expected);
    }
}
