//! ControllerUnpublishVolume: detaches a volume from the VM of a node, or from all.

use std::sync::Arc;

use snafu::{ResultExt as _, Snafu, ensure};
use tonic::Code;
use vsphere::{
    BiosUuid, Fault,
    cns::VolumeId,
    inventory::{Absence, Lookup, Vm},
};

use super::{
    Driver, TASK_TIMEOUT,
    failure::{self, CnsError, code_of, is_volume_missing},
    locate::{self, LocateError},
    locks::Busy,
    publish::VIEW_LAG,
    status_of,
};
use crate::{
    proto::csi::{ControllerUnpublishVolumeRequest, ControllerUnpublishVolumeResponse},
    vcenters::{Connection, Refused, Unavailable},
};

#[derive(Debug, Snafu)]
pub(super) enum UnpublishError {
    #[snafu(display("the request has no volume id"))]
    NoVolume,
    #[snafu(transparent)]
    Busy { source: Busy },
    #[snafu(transparent)]
    Locate { source: LocateError },
    #[snafu(display("cannot detach the volume {volume}"))]
    Vcenter { volume: String, source: Unavailable },
    #[snafu(display("cannot find out whether the VM of the node {node} still exists"))]
    Search { node: String, source: vsphere::Error },
    #[snafu(display(
        "the VM of the node {node} is not in the inventory, but vCenter does not confirm that it is gone: {why}. The volume {volume} counts as attached until this is clear. Check the permissions on the VM and the datacenters in csi-vsphere.conf"
    ))]
    Hidden { volume: String, node: String, why: &'static str },
    #[snafu(display(
        "CNS does not know that the volume {volume} is attached to the VM {vm}, but the VM still has the disk; remove it in vCenter"
    ))]
    StillThere { volume: String, vm: String },
    #[snafu(display(
        "CNS does not know that the volume {volume} is attached to the VM {vm}, but vCenter attaches a disk to this VM, which can be that of the volume; repeat the call"
    ))]
    Attaching { volume: String, vm: String },
    #[snafu(display("cannot detach the volume {volume} from the VM {vm}"))]
    Cns { volume: String, vm: String, source: CnsError },
}

impl UnpublishError {
    fn code(&self) -> Code {
        match self {
            Self::NoVolume => Code::InvalidArgument,
            Self::Busy { .. } => Code::Aborted,
            Self::Locate { source } => source.code(),
            Self::Vcenter { .. } | Self::Hidden { .. } | Self::Attaching { .. } => {
                Code::Unavailable
            }
            Self::Search { source, .. } => code_of(source),
            Self::StillThere { .. } => Code::FailedPrecondition,
            Self::Cns { source, .. } => source.code(),
        }
    }
}
status_of!(UnpublishError);

pub(super) async fn unpublish(
    driver: &Driver,
    request: &ControllerUnpublishVolumeRequest,
) -> Result<ControllerUnpublishVolumeResponse, UnpublishError> {
    let (volume, node) = (&request.volume_id, &request.node_id);
    ensure!(!volume.is_empty(), NoVolumeSnafu);
    let _lock = driver.locks.volume(volume)?;
    if node.is_empty() {
        for (connection, vm) in all_holders(driver, volume).await? {
            detach(driver, &connection, &vm, volume).await?;
        }
    } else {
        let candidates = candidates(driver, volume, node).await?;
        detach_from_node(driver, candidates, volume, node).await?;
    }
    Ok(ControllerUnpublishVolumeResponse {})
}

async fn all_holders(
    driver: &Driver,
    volume: &str,
) -> Result<Vec<(Connection, Arc<Vm>)>, UnpublishError> {
    let connections = driver.vcenters.all_live().context(VcenterSnafu { volume })?;
    let holders = connections.iter().flat_map(|connection| {
        let vms = locate::holders(connection, volume);
        vms.into_iter().map(|vm| (connection.clone(), vm))
    });
    let holders: Vec<_> = holders.collect();
    if holders.is_empty() {
        require_unattached(driver, volume, "").await?;
    }
    Ok(holders)
}

/// The VMs that can be a node.
#[derive(Debug, Default)]
struct Candidates {
    vms: Vec<(Connection, Arc<Vm>)>,
    /// Why a further VM with this uuid is not in the inventory, although it can exist.
    hidden: Option<&'static str>,
}

/// All VMs with the uuid of the node, in all vCenters: copies share it. None if vCenter says that there is no such VM: a
/// VM that is gone has no disks.
async fn candidates(
    driver: &Driver,
    volume: &str,
    node: &str,
) -> Result<Candidates, UnpublishError> {
    // No VM can have such an id.
    let Ok(uuid) = node.parse::<BiosUuid>() else { return Ok(Candidates::default()) };
    let connections = driver.vcenters.all().context(VcenterSnafu { volume })?;
    let (mut found, mut is_gone) = (Candidates::default(), false);
    for connection in &connections {
        // Next to a copy in the inventory, the VM of the node can be one that the inventory lost.
        for absence in connection.absences(uuid) {
            let why = why_hidden(&absence);
            is_gone |= why.is_none();
            found.hidden = found.hidden.or(why);
        }
        let vms = match connection.find_vm(uuid) {
            Lookup::Found(vm) => vec![vm],
            Lookup::Several(vms) => vms,
            Lookup::Departed(_) | Lookup::Unseen => Vec::new(),
        };
        found.vms.extend(vms.into_iter().map(|vm| (connection.clone(), vm)));
    }
    if !found.vms.is_empty() {
        return Ok(found);
    }
    for connection in &connections {
        connection.require_live().context(VcenterSnafu { volume })?;
    }
    if let Some(why) = found.hidden {
        return HiddenSnafu { volume, node, why }.fail();
    }
    if is_gone {
        return Ok(found);
    }
    // Never seen by this process. It may be outside the configured datacenters.
    for connection in connections {
        let vms = connection.client.find_vms().await.context(SearchSnafu { node })?;
        let vms = vms.vms_by_bios_uuid(uuid).into_iter();
        found.vms.extend(vms.map(|vm| (connection.clone(), vm)));
    }
    if found.vms.is_empty() {
        // Without the permission to see the VM, a search finds nothing either.
        require_unattached(driver, volume, node).await?;
    }
    Ok(found)
}

/// Why a VM that is not in the inventory can still exist. `None` if it does not.
fn why_hidden(absence: &Absence) -> Option<&'static str> {
    match absence {
        Absence::Gone(_) => None,
        Absence::Invisible { .. } => {
            Some("the driver's vSphere user lost the permission to see it")
        }
        Absence::Elsewhere => Some("it was moved out of the configured datacenters"),
        Absence::Unreachable => Some("vCenter has not answered yet"),
    }
}

/// Detaches the volume from the VM that has it. A volume is on one VM at a time: if CNS detaches it from one, the others
/// are not asked. Otherwise all of them must answer that they do not have it.
async fn detach_from_node(
    driver: &Driver,
    candidates: Candidates,
    volume: &str,
    node: &str,
) -> Result<(), UnpublishError> {
    let Candidates { vms, hidden } = candidates;
    let has_disk = |(_, vm): &(Connection, Arc<Vm>)| locate::disk_on(vm, volume).is_some();
    let (shown, others): (Vec<_>, Vec<_>) = vms.into_iter().partition(has_disk);
    let mut failed = None;
    for (connection, vm) in shown.into_iter().chain(others) {
        match detach(driver, &connection, &vm, volume).await {
            Ok(Answer::Detached) => return Ok(()),
            Ok(Answer::NotAttached | Answer::NoVm) => {}
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    match failed {
        Some(error) => Err(error),
        None if hidden.is_some() => require_unattached(driver, volume, node).await,
        None => Ok(()),
    }
}

/// Fails unless vCenter says that no VM has the disk, or that a visible VM has it, which is not the VM of `node`.
async fn require_unattached(
    driver: &Driver,
    volume: &str,
    node: &str,
) -> Result<(), UnpublishError> {
    let connection = match locate::vcenter_of(driver, volume).await {
        Ok(connection) => connection,
        Err(LocateError::NotFound { .. }) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let ids = [VolumeId::from(volume)];
    let info = match connection.client.volume_info(&ids, TASK_TIMEOUT).await {
        Ok(outcomes) => outcomes.into_iter().next().map(|outcome| outcome.result),
        Err(error) if error.fault().is_some_and(is_volume_missing) => return Ok(()),
        Err(source) => return Err(source).context(SearchSnafu { node }),
    };
    let info = match info {
        Some(Ok(info)) => info,
        Some(Err(fault)) if is_volume_missing(&fault) => return Ok(()),
        // Not every release names a volume that does not exist.
        None | Some(Err(_)) => {
            let found = locate::in_cns(&connection, volume).await.context(SearchSnafu { node })?;
            if found.is_none() {
                return Ok(());
            }
            let why = "CNS does not report which VM has the disk";
            return HiddenSnafu { volume, node, why }.fail();
        }
    };
    let is_visible = |consumer: &String| {
        let view = connection.inventory().view();
        let mut vms = view.objects().filter_map(vsphere::inventory::Object::as_vm);
        vms.any(|vm| {
            let uuid = vm.instance_uuid.map(|uuid| uuid.to_string());
            uuid.is_some_and(|uuid| uuid.eq_ignore_ascii_case(consumer))
                || *vm.reference.id == **consumer
        })
    };
    if info.consumers.is_empty() || !node.is_empty() && info.consumers.iter().all(is_visible) {
        return Ok(());
    }
    let why = "a VM has the disk of the volume, and the driver's vSphere user does not see that VM";
    HiddenSnafu { volume, node, why }.fail()
}

/// Detaches the volume from the VM, or makes sure that the VM does not have it.
async fn detach(
    driver: &Driver,
    connection: &Connection,
    vm: &Vm,
    volume: &str,
) -> Result<Answer, UnpublishError> {
    let first = detach_once(driver, connection, vm, volume).await?;
    if first != Answer::NotAttached {
        return Ok(first);
    }
    let title = || locate::title(&connection.inventory().view(), vm);
    // A controller that was killed leaves its tasks to vCenter, and nobody detaches the disk after this answer. Later, an
    // attach is one of this controller, and a stream of them must not hold up a detach for ever.
    if driver.has_predecessor() {
        let attaching = failure::is_attaching(connection, &vm.reference).await;
        let attaching = attaching.map_err(|source| {
            let source = CnsError::Call { what: "read the running tasks".to_owned(), source };
            UnpublishError::Cns { volume: volume.to_owned(), vm: title(), source }
        })?;
        ensure!(!attaching, AttachingSnafu { volume, vm: title() });
    }
    // Such a task may have ended just before.
    let second = detach_once(driver, connection, vm, volume).await?;
    if second != Answer::NotAttached || is_gone_from(connection, vm, volume).await {
        return Ok(second);
    }
    StillThereSnafu { volume, vm: title() }.fail()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Detached,
    /// CNS knows of no such attachment.
    NotAttached,
    /// The VM does not exist any more.
    NoVm,
}

async fn detach_once(
    driver: &Driver,
    connection: &Connection,
    vm: &Vm,
    volume: &str,
) -> Result<Answer, UnpublishError> {
    let queue = &connection.attachments;
    let detached = queue.detach(&vm.reference, volume, driver.mandate(), TASK_TIMEOUT).await;
    let Err(refused) = detached else { return Ok(Answer::Detached) };
    let is_gone = |fault: &Fault| fault.proves_absence_of(&vm.reference);
    match &refused {
        Refused::Call(error) if error.fault().is_some_and(is_gone) => return Ok(Answer::NoVm),
        Refused::Volume(fault) if fault.chain().any(is_gone) => return Ok(Answer::NoVm),
        Refused::Volume(fault) if is_volume_missing(fault) => return Ok(Answer::NotAttached),
        Refused::Call(_) | Refused::Volume(_) | Refused::NotLeading => {}
    }
    let vm = locate::title(&connection.inventory().view(), vm);
    let source = CnsError::from_refusal("detach the disk".to_owned(), refused);
    Err(UnpublishError::Cns { volume: volume.to_owned(), vm, source })
}

/// Whether the VM has no disk of the volume, as soon as the inventory is current.
async fn is_gone_from(connection: &Connection, vm: &Vm, volume: &str) -> bool {
    let mut events = connection.inventory().events();
    let waiting = async {
        loop {
            let has_disk = {
                let view = connection.inventory().view();
                let now = view.get(&vm.reference).and_then(|object| object.as_vm());
                now.is_some_and(|vm| locate::disk_on(vm, volume).is_some())
            };
            if !has_disk {
                return true;
            }
            if events.next().await.is_none() {
                return false;
            }
        }
    };
    tokio::time::timeout(VIEW_LAG, waiting).await.unwrap_or(false)
}
