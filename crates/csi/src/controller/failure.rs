//! Failures of vCenter as gRPC codes and messages.

use snafu::Snafu;
use tokio::time::Instant;
use tonic::Code;
use vsphere::{
    Error, Fault, FaultKind, MoRef, TaskInfo, TaskState,
    cns::{Outcome, VolumeId, VolumeTask},
};

use super::TASK_TIMEOUT;
use crate::vcenters::{Connection, Refused};

/// Why CNS did not do what the driver asked.
#[derive(Debug, Snafu)]
#[snafu(visibility(pub(super)))]
pub(super) enum CnsError {
    #[snafu(display("cannot {what}"))]
    Call { what: String, source: Error },
    #[snafu(display("CNS refused to {what}{}", hint(source)))]
    Refused {
        what: String,
        #[snafu(source(from(Fault, Box::new)))]
        source: Box<Fault>,
    },
    #[snafu(display("CNS returned no result to {what}; repeat the call"))]
    NoResult { what: String },
    #[snafu(display(
        "an earlier call to {what} got no answer, and vCenter may still work on it; repeat the call"
    ))]
    Undecided { what: String },
    #[snafu(display("CNS created the volume {id}, but it cannot be read; repeat the call"))]
    Unread { id: String, source: Error },
    #[snafu(display(
        "CNS answered with the volume {id}, which has another name, \"{name}\": it is not used"
    ))]
    OtherVolume { id: String, name: String },
    #[snafu(display(
        "this controller lost its Lease, so another one does the work. Repeat the call there"
    ))]
    NotLeading,
}

impl CnsError {
    pub(super) fn from_refusal(what: String, refused: Refused) -> Self {
        match refused {
            Refused::Call(source) => Self::Call { what, source },
            Refused::Volume(fault) => Self::Refused { what, source: Box::new(fault) },
            Refused::NotLeading => Self::NotLeading,
        }
    }

    pub(super) fn code(&self) -> Code {
        match self {
            Self::Call { source, .. } => code_of(source),
            Self::Refused { source, .. } => code_of_fault(source),
            Self::NoResult { .. } | Self::OtherVolume { .. } => Code::Internal,
            Self::Undecided { .. } | Self::Unread { .. } => Code::Unavailable,
            Self::NotLeading => Code::Aborted,
        }
    }

    /// Whether vCenter may have the call, or still do what it asks for.
    pub(super) fn is_unanswered(&self) -> bool {
        match self {
            Self::Call { source, .. } => source.fault().is_none() && !source.never_reached(),
            Self::NoResult { .. } | Self::Unread { .. } => true,
            // An earlier call got no answer, not this one.
            Self::Undecided { .. }
            | Self::Refused { .. }
            | Self::OtherVolume { .. }
            | Self::NotLeading => false,
        }
    }

    pub(super) fn fault(&self) -> Option<&Fault> {
        match self {
            Self::Call { source, .. } => source.fault(),
            Self::Refused { source, .. } => Some(source),
            Self::NoResult { .. }
            | Self::Undecided { .. }
            | Self::Unread { .. }
            | Self::OtherVolume { .. }
            | Self::NotLeading => None,
        }
    }
}

/// The fix for common faults.
fn hint(fault: &Fault) -> &'static str {
    let has = |test: fn(&FaultKind) -> bool| fault.chain().any(|fault| test(&fault.kind));
    if has(|kind| matches!(kind, FaultKind::NoPermission { .. })) {
        "; grant the privilege to the driver's vSphere user"
    } else if is_out_of_space(fault) {
        "; free space on the datastore or choose another one"
    } else if has(|kind| matches!(kind, FaultKind::HostNotConnected)) {
        "; reconnect the host in vCenter"
    } else {
        ""
    }
}

pub(super) fn is_out_of_space(fault: &Fault) -> bool {
    fault.chain().any(|fault| {
        matches!(fault.kind, FaultKind::NoDiskSpace)
            || matches!(&*fault.type_name, "InsufficientStorageSpace" | "InsufficientDisks")
    })
}

/// The code of a failed call. Codes that mean "the outcome is unknown" (`Unavailable`, `DeadlineExceeded`) make the
/// caller repeat the call.
pub(super) fn code_of(error: &Error) -> Code {
    match error {
        Error::TaskUnfinished { .. } => Code::DeadlineExceeded,
        Error::Unsupported { .. } => Code::FailedPrecondition,
        Error::Fault { source, .. } | Error::TaskFailed { source, .. } => code_of_fault(source),
        Error::TooLarge { .. } | Error::Unreadable { .. } | Error::BadTrust { .. } => {
            Code::Internal
        }
        _ => Code::Unavailable,
    }
}

/// The first fault of the chain that says more than "it failed" decides.
fn code_of_fault(fault: &Fault) -> Code {
    if is_out_of_space(fault) {
        return Code::ResourceExhausted;
    }
    fault.chain().find_map(specific_code).unwrap_or(Code::Internal)
}

fn specific_code(fault: &Fault) -> Option<Code> {
    Some(match &fault.kind {
        FaultKind::NoPermission { .. } => Code::PermissionDenied,
        FaultKind::NotAuthenticated
        | FaultKind::HostNotConnected
        | FaultKind::RequestCanceled
        | FaultKind::InvalidLogin
        | FaultKind::PasswordExpired => Code::Unavailable,
        FaultKind::TaskInProgress | FaultKind::ConcurrentAccess => Code::Aborted,
        FaultKind::CnsVolumeNotFound { .. }
        | FaultKind::CnsSnapshotNotFound { .. }
        | FaultKind::CnsNotRegistered { .. } => Code::NotFound,
        FaultKind::ResourceInUse { .. } => Code::FailedPrecondition,
        FaultKind::TooManyDevices => Code::ResourceExhausted,
        _ => return None,
    })
}

/// Whether CNS says that the volume does not exist.
pub(super) fn is_volume_missing(fault: &Fault) -> bool {
    fault.chain().any(|fault| {
        matches!(
            fault.kind,
            FaultKind::CnsVolumeNotFound { .. }
                | FaultKind::CnsNotRegistered { .. }
                | FaultKind::NotFound
        )
    })
}

/// Whether CNS says that the snapshot does not exist. Upstream too takes an `InvalidArgument` without a property for "no such snapshot".
pub(super) fn is_snapshot_missing(error: &CnsError) -> bool {
    error.fault().is_some_and(|fault| {
        is_volume_missing(fault)
            || fault.chain().any(|fault| {
                matches!(
                    fault.kind,
                    FaultKind::CnsSnapshotNotFound { .. }
                        | FaultKind::InvalidArgument { property: None }
                )
            })
    })
}

/// Starts a task on one volume and waits for it.
pub(super) async fn run<T: Outcome>(
    connection: &Connection,
    optype: &'static str,
    what: impl Fn() -> String,
    start: impl Future<Output = Result<VolumeTask<T>, Error>>,
) -> Result<(Option<VolumeId>, T), CnsError> {
    let since = Instant::now();
    let result = finish(what, start.await).await;
    connection.metrics().task_ended(optype, since, result.is_err());
    result
}

async fn finish<T: Outcome>(
    what: impl Fn() -> String,
    started: Result<VolumeTask<T>, Error>,
) -> Result<(Option<VolumeId>, T), CnsError> {
    let call = |source| CnsError::Call { what: what(), source };
    let outcomes = started.map_err(call)?.wait(TASK_TIMEOUT).await.map_err(call)?;
    let Some(outcome) = outcomes.into_iter().next() else {
        return NoResultSnafu { what: what() }.fail();
    };
    match outcome.result {
        Ok(result) => Ok((outcome.volume, result)),
        Err(fault) => Err(CnsError::Refused { what: what(), source: Box::new(fault) }),
    }
}

/// Whether vCenter works on a task of this kind now. After a call without an answer, such a task may be its own.
pub(super) async fn is_running(connection: &Connection, kind: &str) -> Result<bool, Error> {
    let tasks = connection.client.recent_tasks().await?;
    Ok(tasks.iter().any(|task| is_unfinished(task, kind)))
}

/// Whether vCenter attaches a disk to this VM now. The task does not tell which disk.
pub(super) async fn is_attaching(connection: &Connection, vm: &MoRef) -> Result<bool, Error> {
    let tasks = connection.client.recent_tasks().await?;
    Ok(tasks.iter().any(|task| may_attach_to(task, vm)))
}

fn may_attach_to(task: &TaskInfo, vm: &MoRef) -> bool {
    // Without the VM as its object, the task can be for any VM.
    let is_for_other = |entity: &MoRef| entity.kind == vm.kind && entity != vm;
    is_unfinished(task, "attachvolume") && !task.entity.as_ref().is_some_and(is_for_other)
}

fn is_unfinished(task: &TaskInfo, kind: &str) -> bool {
    let is_kind = |text: &Option<String>| {
        text.as_ref().is_some_and(|text| text.to_ascii_lowercase().contains(kind))
    };
    (is_kind(&task.name) || is_kind(&task.description_id))
        && matches!(task.state, TaskState::Queued | TaskState::Running)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_attach_that_may_be_for_the_vm_counts() {
        let vm = |id: &str| MoRef::new("VirtualMachine", id);
        let task = |kind: &str, entity: Option<MoRef>, state| TaskInfo {
            name: None,
            description_id: Some(format!("com.vmware.cns.tasks.{kind}")),
            entity,
            entity_name: None,
            state,
            error: None,
            result: None,
            progress: None,
        };
        let cns = MoRef::new("CnsVolumeManager", "cns-volume-manager");
        for (kind, entity, state, counts) in [
            ("attachvolume", Some(vm("vm-1")), TaskState::Running, true),
            ("attachvolume", Some(vm("vm-1")), TaskState::Queued, true),
            ("attachvolume", Some(cns), TaskState::Running, true),
            ("attachvolume", None, TaskState::Running, true),
            ("attachvolume", Some(vm("vm-2")), TaskState::Running, false),
            ("attachvolume", Some(vm("vm-1")), TaskState::Success, false),
            ("detachvolume", Some(vm("vm-1")), TaskState::Running, false),
        ] {
            let task = task(kind, entity, state);
            assert_eq!(may_attach_to(&task, &vm("vm-1")), counts, "{task:?}");
        }
    }
}
