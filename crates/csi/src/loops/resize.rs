//! The resize loop: a claim that requests more gets a larger volume. The kubelet then grows the file system.
//!
//! The state of a resize is in the claim's status: `allocatedResources` is the size that is being made, and
//! `allocatedResourceStatuses` says how far it is. So a restart continues with the same size.

use serde_json::{Value, json};
use tonic::{Code, Request, Status};

use super::{
    attempts::{self, Attempts},
    conditions::{
        CONTROLLER_RESIZE_ERROR, FILE_SYSTEM_RESIZE_PENDING, OF_RESIZE, RESIZING, condition,
        replaced,
    },
    context::Shared,
    events::{ObjectReference, Source},
    model::{Claim, Metadata as _, Volume},
    names::NODE_EXPANSION_NOT_REQUIRED,
    quantity::Bytes,
    queue::Next,
    rpc::{access_mode, is_final, volume_capability},
    writer::after_failure,
};
use crate::proto::csi::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerExpandVolumeResponse,
    controller_service_capability::rpc::Type as Rpc,
};

pub const IN_PROGRESS: &str = "ControllerResizeInProgress";
pub const INFEASIBLE: &str = "ControllerResizeInfeasible";
pub const NODE_PENDING: &str = "NodeResizePending";
const NODE_IN_PROGRESS: &str = "NodeResizeInProgress";
const NODE_INFEASIBLE: &str = "NodeResizeInfeasible";

/// The size to make, if the volume of the claim must grow now. `had_final_error` says that the last attempt
/// certainly ended, so that another size can be tried.
pub fn target(claim: &Claim, volume: &Volume, had_final_error: bool) -> Option<Bytes> {
    let request = claim.spec.resources.requests.storage?;
    let status = &claim.status;
    if status.phase != "Bound"
        || request <= status.capacity.storage?
        || !volume.is_bound_to(claim)
        || claim.is_deleting()
    {
        return None;
    }
    let size = volume.spec.capacity.storage?;
    let allocated = status.allocated_resources.storage;
    let known = allocated.unwrap_or(request);
    let grows = size < request;
    match status.allocated_resource_statuses.storage.as_deref() {
        None | Some(INFEASIBLE) if grows => Some(request),
        None if allocated.is_none() && claim.condition(FILE_SYSTEM_RESIZE_PENDING) => None,
        Some(IN_PROGRESS) if grows && had_final_error => Some(request),
        None | Some(IN_PROGRESS | INFEASIBLE | NODE_INFEASIBLE) => Some(known),
        Some(NODE_PENDING | NODE_IN_PROGRESS) => (grows && size < known).then_some(known),
        // A state of a later Kubernetes.
        Some(_) => None,
    }
}

/// The status before the call. `None` if the claim shows it already.
pub fn started(claim: &Claim, target: Bytes, now: jiff::Timestamp) -> Option<Value> {
    let status = &claim.status;
    let same_size = status.allocated_resources.storage == Some(target);
    let state = status.allocated_resource_statuses.storage.as_deref();
    if same_size && state == Some(IN_PROGRESS) && claim.condition(RESIZING) {
        return None;
    }
    let resizing = condition(RESIZING, "", "", now);
    let mut patch = json!({"status": {
        "conditions": replaced(&status.conditions, &OF_RESIZE, Some(resizing)),
        "allocatedResources": {"storage": target.to_string()},
        "allocatedResourceStatuses": {"storage": IN_PROGRESS},
    }});
    if claim.annotation(NODE_EXPANSION_NOT_REQUIRED).is_some() {
        patch["metadata"] = json!({"annotations": {NODE_EXPANSION_NOT_REQUIRED: null}});
    }
    Some(patch)
}

/// The status after the volume has grown.
pub fn grown(
    claim: &Claim,
    answer: &ControllerExpandVolumeResponse,
    now: jiff::Timestamp,
) -> Value {
    let known = &claim.status.conditions;
    if answer.node_expansion_required {
        let text =
            "Waiting for user to (re-)start a pod to finish file system resize of volume on node.";
        let pending = condition(FILE_SYSTEM_RESIZE_PENDING, "", text, now);
        return json!({"status": {
            "conditions": replaced(known, &[], Some(pending)),
            "allocatedResourceStatuses": {"storage": NODE_PENDING},
        }});
    }
    json!({
        "metadata": {"annotations": {NODE_EXPANSION_NOT_REQUIRED: "true"}},
        "status": {
            "conditions": replaced(known, &OF_RESIZE, None),
            "capacity": {"storage": Bytes(answer.capacity_bytes).to_string()},
            "allocatedResourceStatuses": {"storage": null},
        },
    })
}

/// Whether this size can never be made.
pub fn is_infeasible(code: Code) -> bool {
    matches!(code, Code::InvalidArgument | Code::OutOfRange | Code::NotFound)
}

/// The status after a final error. `None` if the claim shows it already.
pub fn failed(claim: &Claim, status: &Status, now: jiff::Timestamp) -> Option<Value> {
    let text = status.message();
    let error = condition(CONTROLLER_RESIZE_ERROR, "", text, now);
    let known = &claim.status.conditions;
    let state = if is_infeasible(status.code()) { INFEASIBLE } else { IN_PROGRESS };
    let shown = known
        .iter()
        .any(|c| c.type_ == CONTROLLER_RESIZE_ERROR && c.message.as_deref() == Some(text));
    if shown && claim.status.allocated_resource_statuses.storage.as_deref() == Some(state) {
        return None;
    }
    Some(json!({"status": {
        "conditions": replaced(known, &[], Some(error)),
        "allocatedResourceStatuses": {"storage": state},
    }}))
}

pub struct Resizer {
    context: Shared,
    attempts: Attempts<Bytes>,
}

impl Resizer {
    pub fn new(context: Shared) -> Self {
        Self { context, attempts: Attempts::default() }
    }

    /// Forgets a claim that is gone.
    pub fn forget(&self, uid: &str) {
        self.attempts.forget(uid);
    }

    pub async fn resize(&self, claim: &Claim, volume: &Volume) -> Next {
        if !self.context.capabilities.has(Rpc::ExpandVolume) {
            return Next::OnChange;
        }
        let had_final_error = self.attempts.had_final_error(claim.uid());
        let Some(target) = target(claim, volume, had_final_error) else { return Next::OnChange };
        if let Some(pause) = self.attempts.pause(claim.uid(), &target) {
            return Next::After(pause);
        }
        let writer = &self.context.writer;
        let mut claim = claim.clone();
        if let Some(patch) = started(&claim, target, jiff::Timestamp::now()) {
            claim = match writer.replace_status(&claim, patch).await {
                Ok(claim) => claim,
                Err(error) => return after_failure(&error),
            };
        }
        let text = format!("External resizer is resizing volume {}", volume.name());
        self.context.events.normal(ObjectReference::to(&claim), Source::Resizer, "Resizing", text);
        match self.expand(volume, target).await {
            Ok(answer) => self.finish(&claim, volume, &answer).await,
            Err(status) => self.report(&claim, volume, target, &status).await,
        }
    }

    async fn expand(
        &self,
        volume: &Volume,
        target: Bytes,
    ) -> Result<ControllerExpandVolumeResponse, Status> {
        let settings = &self.context.settings;
        let Some(source) = volume.source_of(&settings.driver) else {
            return Err(Status::not_found("the volume belongs to another driver"));
        };
        let single_node_modes = self.context.capabilities.has(Rpc::SingleNodeMultiWriter);
        let mode = access_mode(&volume.spec.access_modes, single_node_modes)
            .map_err(Status::failed_precondition)?;
        let fs_type = source.fs_type.as_deref().unwrap_or(&settings.default_fs_type);
        let options = &volume.spec.mount_options;
        let request = ControllerExpandVolumeRequest {
            volume_id: source.volume_handle.clone(),
            capacity_range: Some(CapacityRange { required_bytes: target.0, limit_bytes: 0 }),
            volume_capability: Some(volume_capability(mode, volume.is_block(), fs_type, options)),
            ..ControllerExpandVolumeRequest::default()
        };
        let calls = &self.context.calls;
        let call = calls.service().controller_expand_volume(Request::new(request));
        let mut answer = calls.send(call).await?;
        answer.capacity_bytes = answer.capacity_bytes.max(target.0);
        Ok(answer)
    }

    async fn finish(
        &self,
        claim: &Claim,
        volume: &Volume,
        answer: &ControllerExpandVolumeResponse,
    ) -> Next {
        self.forget(claim.uid());
        let writer = &self.context.writer;
        let size = Bytes(answer.capacity_bytes);
        if volume.spec.capacity.storage < Some(size) {
            let patch = json!({"spec": {"capacity": {"storage": size.to_string()}}});
            if let Err(error) = writer.patch(volume, patch).await {
                return after_failure(&error);
            }
        }
        let patch = grown(claim, answer, jiff::Timestamp::now());
        if let Err(error) = writer.replace_status(claim, patch).await {
            return after_failure(&error);
        }
        let (reason, text) = if answer.node_expansion_required {
            ("FileSystemResizeRequired", "Require file system resize of volume on node")
        } else {
            ("VolumeResizeSuccessful", "Resize volume succeeded")
        };
        let object = ObjectReference::to(claim);
        self.context.events.normal(object, Source::Resizer, reason, text.into());
        // The user can have requested more while this size was being made.
        let is_enough = claim.spec.resources.requests.storage <= Some(size);
        if is_enough { Next::OnChange } else { Next::Conflict }
    }

    async fn report(&self, claim: &Claim, volume: &Volume, target: Bytes, status: &Status) -> Next {
        let text = format!("resize volume \"{}\" failed: {}", volume.name(), status.message());
        let object = ObjectReference::to(claim);
        self.context.events.warning(object, Source::Resizer, "VolumeResizeFailed", text);
        if !is_final(status.code()) {
            return Next::Retry;
        }
        let infeasible = is_infeasible(status.code());
        self.attempts.failed(claim.uid(), infeasible.then_some(target));
        if let Some(patch) = failed(claim, status, jiff::Timestamp::now())
            && let Err(error) = self.context.writer.replace_status(claim, patch).await
        {
            return after_failure(&error);
        }
        attempts::next(infeasible)
    }
}

#[cfg(test)]
mod tests;
