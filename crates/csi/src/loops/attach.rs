//! The attach loop: VolumeAttachments become attached disks.
//!
//! The controller-manager creates a VolumeAttachment to attach a volume to a node, and deletes it to detach the
//! volume. A finalizer keeps the object until the volume is detached.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use kube::Api;
use serde_json::{Value, json};
use tonic::{Code, Request, Status};

use super::{
    context::{Context, Shared},
    model::{Attachment, Metadata as _, Volume},
    names::{ATTACHER_FINALIZER, NODE_ID},
    queue::{Next, Reconcile},
    rpc::{access_mode, volume_capability},
    writer::{add_finalizer, after_failure, is_not_found, remove_finalizers},
};
use crate::proto::csi::{
    ControllerPublishVolumeRequest, ControllerPublishVolumeResponse,
    ControllerUnpublishVolumeRequest, ListVolumesRequest,
    controller_service_capability::rpc::Type as Rpc,
};

/// The request of a VolumeAttachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Nothing,
    Attach,
    Detach,
}

pub fn step(attachment: &Attachment, driver: &str) -> Step {
    let ours = attachment.spec.attacher == driver;
    match (attachment.is_deleting(), attachment.has_finalizer(ATTACHER_FINALIZER)) {
        _ if !ours => Step::Nothing,
        (true, true) => Step::Detach,
        (false, _) if !attachment.status.attached => Step::Attach,
        _ => Step::Nothing,
    }
}

/// The request to attach a volume to a node.
pub fn publish_request(
    volume: &Volume,
    driver: &str,
    node_id: &str,
    default_fs_type: &str,
    single_node_modes: bool,
    publish_readonly: bool,
) -> Result<ControllerPublishVolumeRequest, String> {
    let name = volume.name();
    if volume.is_deleting() {
        return Err(format!("the PersistentVolume {name} is being deleted"));
    }
    let source = volume
        .source_of(driver)
        .ok_or_else(|| format!("the PersistentVolume {name} belongs to another driver"))?;
    let mode = access_mode(&volume.spec.access_modes, single_node_modes)
        .map_err(|reason| format!("the PersistentVolume {name} cannot be attached: {reason}"))?;
    let fs_type = source.fs_type.as_deref().filter(|fs| !fs.is_empty()).unwrap_or(default_fs_type);
    let capability =
        volume_capability(mode, volume.is_block(), fs_type, &volume.spec.mount_options);
    Ok(ControllerPublishVolumeRequest {
        volume_id: source.volume_handle.clone(),
        node_id: node_id.into(),
        volume_capability: Some(capability),
        readonly: publish_readonly && source.read_only.unwrap_or_default(),
        volume_context: source.volume_attributes.clone().into_iter().collect(),
        ..ControllerPublishVolumeRequest::default()
    })
}

/// The patch before the volume is attached: the finalizer, and the id of the node for the case that its CSINode is
/// gone or has another id when the volume is detached. `None` if both are there.
pub fn preparation(attachment: &Attachment, node_id: &str) -> Option<Value> {
    let prepared = attachment.has_finalizer(ATTACHER_FINALIZER)
        && attachment.annotation(NODE_ID) == Some(node_id);
    (!prepared).then(|| {
        let mut patch = add_finalizer(ATTACHER_FINALIZER);
        patch["metadata"]["annotations"] = json!({NODE_ID: node_id});
        patch
    })
}

/// The id of the node from before the attach. The Go driver before release 2.5 used the names of nodes as ids; a name does
/// not tell which VM it was.
fn recorded(attachment: &Attachment) -> Option<&str> {
    let recorded = attachment.annotation(NODE_ID).filter(|id| !id.is_empty());
    recorded.filter(|id| *id != attachment.spec.node_name)
}

/// The ids under which the node can have the volume. `registered` is the id that the CSINode has now.
///
/// A node that was rebuilt under the same name has another id, but the disk is on its old VM: external-attacher asks only
/// the new one. And a VM can get another uuid while it has the disk. To detach a volume that is not attached is harmless.
pub fn attached_to(attachment: &Attachment, registered: Option<&str>) -> Vec<String> {
    let mut ids: Vec<&str> = recorded(attachment).into_iter().chain(registered).collect();
    if ids.is_empty() {
        ids.extend(attachment.annotation(NODE_ID).filter(|id| !id.is_empty()));
    }
    ids.dedup();
    ids.into_iter().map(str::to_owned).collect()
}

/// The status of an attached volume.
pub fn attached(answer: &ControllerPublishVolumeResponse) -> Value {
    json!({"status": {
        "attached": true, "attachmentMetadata": answer.publish_context, "attachError": null, "detachError": null,
    }})
}

/// The status after a failure.
pub fn failure(field: &str, message: &str, code: Option<Code>, now: jiff::Timestamp) -> Value {
    let error = json!({
        "message": message, "time": format!("{now:.0}"), "errorCode": code.map(i32::from),
    });
    let mut status = json!({"status": {field: error}});
    // The API server requires it in a status.
    if field == "attachError" {
        status["status"]["attached"] = false.into();
    }
    status
}

pub struct Attacher {
    context: Shared,
    /// Attachments that wait until the driver registers on their node, by node.
    unregistered: Mutex<HashMap<String, HashSet<String>>>,
    /// Attachments to attach again: vCenter does not show their disk on the VM any more.
    lost: Mutex<HashSet<String>>,
}

/// Why an operation failed: the message, and the code if the driver answered.
struct Failure(String, Option<Code>);

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self(status.message().to_owned(), Some(status.code()))
    }
}

impl From<String> for Failure {
    fn from(message: String) -> Self {
        Self(message, None)
    }
}

/// A failed operation, or a write that must be repeated.
enum Stopped {
    Failed(Failure),
    Write(kube::Error),
}

impl<T: Into<Failure>> From<T> for Stopped {
    fn from(failure: T) -> Self {
        Self::Failed(failure.into())
    }
}

impl Attacher {
    pub fn new(context: Shared) -> Self {
        Self { context, unregistered: Mutex::default(), lost: Mutex::default() }
    }

    /// The attachments that waited for the driver on this node.
    pub fn registered(&self, node: &str) -> HashSet<String> {
        self.waiting().remove(node).unwrap_or_default()
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<String, HashSet<String>>> {
        self.unregistered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The attached volumes that the driver does not report on their node. They are attached again when their key is
    /// due. Any failure of the driver's list means that nothing is known.
    pub async fn find_lost(&self) -> HashSet<String> {
        let published = match self.published().await {
            Ok(published) => published,
            Err(status) => {
                tracing::warn!("the attached volumes cannot be listed: {}", status.message());
                return HashSet::new();
            }
        };
        let attachments = self.context.cluster.attachments.state();
        let lost = attachments.iter().filter(|attachment| self.is_lost(attachment, &published));
        let lost: HashSet<String> = lost.map(|attachment| attachment.name().to_owned()).collect();
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).extend(lost.clone());
        lost
    }

    fn is_lost(
        &self,
        attachment: &Attachment,
        published: &HashMap<String, HashSet<String>>,
    ) -> bool {
        let driver = &self.context.settings.driver;
        let is_attached = attachment.status.attached && !attachment.is_deleting();
        if attachment.spec.attacher != *driver || !is_attached {
            return false;
        }
        let name = attachment.spec.source.persistent_volume_name.as_deref().unwrap_or_default();
        let Some(volume) = self.context.cluster.volume(name) else { return false };
        let Some(source) = volume.source_of(driver) else { return false };
        let Some(node_id) = attachment.annotation(NODE_ID) else { return false };
        !published.get(&source.volume_handle).is_some_and(|nodes| nodes.contains(node_id))
    }

    /// The nodes of each volume, from all pages of the list.
    async fn published(&self) -> Result<HashMap<String, HashSet<String>>, Status> {
        let calls = &self.context.calls;
        let mut all = HashMap::new();
        let mut starting_token = String::new();
        loop {
            let request = ListVolumesRequest { max_entries: 0, starting_token };
            let call = calls.service().list_volumes(Request::new(request));
            let page = calls.send(call).await?;
            for entry in page.entries {
                let nodes = entry.status.unwrap_or_default().published_node_ids;
                let id = entry.volume.unwrap_or_default().volume_id;
                all.entry(id).or_insert_with(HashSet::new).extend(nodes);
            }
            if page.next_token.is_empty() {
                return Ok(all);
            }
            starting_token = page.next_token;
        }
    }

    async fn attach(&self, attachment: &Attachment) -> Next {
        let stopped = match self.publish(attachment).await {
            Ok(answer) => {
                let written = self.context.writer.patch_status(attachment, attached(&answer)).await;
                return written.map_or_else(|error| after_failure(&error), |_| Next::OnChange);
            }
            Err(stopped) => stopped,
        };
        self.stopped(attachment, "attachError", stopped).await
    }

    /// Checks come before the finalizer: an attachment that can never work stays deletable.
    async fn publish(
        &self,
        attachment: &Attachment,
    ) -> Result<ControllerPublishVolumeResponse, Stopped> {
        let context = &*self.context;
        let volume = context.volume_of(attachment).await?;
        let node = &attachment.spec.node_name;
        let node_id = context.node_id(node).ok_or_else(|| {
            self.waiting().entry(node.clone()).or_default().insert(attachment.name().into());
            format!(
                "the driver has not registered on the node {node}: check that its node pod runs there and that the \
                 CSINode {node} lists {}",
                context.settings.driver
            )
        })?;
        let request = publish_request(
            &volume,
            &context.settings.driver,
            &node_id,
            &context.settings.default_fs_type,
            context.capabilities.has(Rpc::SingleNodeMultiWriter),
            context.capabilities.has(Rpc::PublishReadonly),
        )?;
        if !volume.has_finalizer(ATTACHER_FINALIZER) {
            let protected = context.writer.patch(&*volume, add_finalizer(ATTACHER_FINALIZER)).await;
            protected.map_err(Stopped::Write)?;
        }
        // An attach without an answer can have put the disk on the VM that the node had before. The next patch forgets it.
        if let Some(before) = recorded(attachment).filter(|before| *before != node_id) {
            self.unpublish_from(&request.volume_id, before).await?;
        }
        if let Some(patch) = preparation(attachment, &node_id) {
            context.writer.patch(attachment, patch).await.map_err(Stopped::Write)?;
        }
        let calls = &context.calls;
        let call = calls.service().controller_publish_volume(Request::new(request));
        Ok(calls.send(call).await?)
    }

    async fn detach(&self, attachment: &Attachment) -> Next {
        if let Err(stopped) = self.unpublish(attachment).await {
            return self.stopped(attachment, "detachError", stopped).await;
        }
        let writer = &self.context.writer;
        let released = writer.patch(attachment, remove_finalizers(&[ATTACHER_FINALIZER])).await;
        let kept = match released {
            Ok(released) => released,
            Err(error) => return after_failure(&error),
        };
        // Without another finalizer the object is gone now, and so is its status.
        let is_gone = kept.metadata.finalizers.unwrap_or_default().is_empty();
        if !is_gone && attachment.status.attached {
            let patch = json!({"status": {"attached": false, "attachmentMetadata": null, "detachError": null}});
            if let Err(error) = writer.patch_status(attachment, patch).await
                && !is_not_found(&error)
            {
                return after_failure(&error);
            }
        }
        Next::OnChange
    }

    async fn unpublish(&self, attachment: &Attachment) -> Result<(), Stopped> {
        let context = &*self.context;
        let volume = context.volume_of(attachment).await?;
        let source = volume.source_of(&context.settings.driver).ok_or_else(|| {
            format!("the PersistentVolume {} belongs to another driver", volume.name())
        })?;
        let node = &attachment.spec.node_name;
        let ids = attached_to(attachment, context.node_id(node).as_deref());
        if ids.is_empty() {
            return Err(format!("the id of the node {node} is unknown: it has no CSINode").into());
        }
        for node_id in ids {
            self.unpublish_from(&source.volume_handle, &node_id).await?;
        }
        Ok(())
    }

    async fn unpublish_from(&self, volume: &str, node_id: &str) -> Result<(), Status> {
        let request = ControllerUnpublishVolumeRequest {
            volume_id: volume.to_owned(),
            node_id: node_id.to_owned(),
            ..ControllerUnpublishVolumeRequest::default()
        };
        let calls = &self.context.calls;
        let call = calls.service().controller_unpublish_volume(Request::new(request));
        calls.send(call).await.map(drop)
    }

    /// Reports a failure in the status of the attachment, unless it is there already.
    async fn stopped(&self, attachment: &Attachment, field: &str, stopped: Stopped) -> Next {
        let Failure(message, code) = match stopped {
            Stopped::Write(error) => return after_failure(&error),
            Stopped::Failed(failure) => failure,
        };
        let (name, node) = (attachment.name(), &attachment.spec.node_name);
        let volume = attachment.spec.source.persistent_volume_name.as_deref();
        tracing::warn!(name, volume, node, ?code, "{field}: {message}");
        let status = &attachment.status;
        let known =
            if field == "attachError" { &status.attach_error } else { &status.detach_error };
        if known.as_ref().is_some_and(|known| known.message == message) {
            return Next::Retry;
        }
        let patch = failure(field, &message, code, jiff::Timestamp::now());
        match self.context.writer.patch_status(attachment, patch).await {
            Ok(_) => Next::Retry,
            Err(error) => after_failure(&error),
        }
    }
}

impl Context {
    /// The volume of an attachment. The watches of both can differ by a moment, so a missing one is read again.
    async fn volume_of(&self, attachment: &Attachment) -> Result<Arc<Volume>, Stopped> {
        let name = attachment.spec.source.persistent_volume_name.as_deref();
        let inline =
            "the VolumeAttachment names no PersistentVolume: inline volumes are not supported";
        let name = name.ok_or_else(|| inline.to_owned())?;
        if let Some(volume) = self.cluster.volume(name) {
            return Ok(volume);
        }
        let volumes = Api::<Volume>::all(self.writer.client());
        match volumes.get_opt(name).await.map_err(Stopped::Write)? {
            Some(volume) => Ok(Arc::new(volume)),
            None => Err(format!("the PersistentVolume {name} does not exist").into()),
        }
    }
}

impl Reconcile for Attacher {
    async fn reconcile(&self, name: &str) -> Next {
        let Some(attachment) = self.context.cluster.attachment(name) else {
            return Next::OnChange;
        };
        if !self.context.writer.is_current(&*attachment) {
            return Next::Conflict;
        }
        match step(&attachment, &self.context.settings.driver) {
            Step::Nothing => {
                let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
                if lost && attachment.status.attached && !attachment.is_deleting() {
                    tracing::warn!(
                        name,
                        "the disk is not on its VM any more: it is attached again"
                    );
                    return self.attach(&attachment).await;
                }
                Next::OnChange
            }
            Step::Attach => self.attach(&attachment).await,
            Step::Detach => self.detach(&attachment).await,
        }
    }

    fn known_version(&self, name: &str) -> u64 {
        let attachment = self.context.cluster.attachment(name);
        attachment.map_or(0, |attachment| self.context.writer.known_version(&*attachment))
    }
}

#[cfg(test)]
mod tests;
