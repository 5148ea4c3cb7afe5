//! ControllerPublishVolume: attaches a volume to the VM of a node.

use std::{collections::HashMap, sync::Arc, time::Duration};

use snafu::{OptionExt as _, ResultExt as _, Snafu, ensure};
use tonic::Code;
use vsphere::{
    BiosUuid, Fault, FaultKind,
    inventory::{Lookup, Vm},
};

use super::{
    Driver, TASK_TIMEOUT,
    capabilities::{self, BLOCK_VOLUME, CapabilityError, VOLUME_TYPE},
    failure::{CnsError, is_volume_missing},
    locate,
    locks::Busy,
    status_of,
};
use crate::{
    proto::csi::{ControllerPublishVolumeRequest, ControllerPublishVolumeResponse},
    vcenters::{Connection, Refused, Unavailable},
};

const DISK_UUID: &str = "diskUUID";
/// How long the inventory can lag behind a task that ended.
pub(super) const VIEW_LAG: Duration = Duration::from_secs(10);

#[derive(Debug, Snafu)]
pub(super) enum PublishError {
    #[snafu(display("the request has no volume id"))]
    NoVolume,
    #[snafu(display("the request has no node id"))]
    NoNode,
    #[snafu(transparent)]
    Capability { source: CapabilityError },
    #[snafu(display("a volume cannot be attached read-only; mount it read-only instead"))]
    ReadOnly,
    #[snafu(display(
        "the volume {volume} is a file volume; this driver release handles block volumes only"
    ))]
    File { volume: String },
    #[snafu(transparent)]
    Busy { source: Busy },
    #[snafu(display("cannot attach the volume {volume} to the node {node}"))]
    Vcenter { volume: String, node: String, source: Unavailable },
    #[snafu(display(
        "there is no node {node}: no configured vCenter has a VM with this uuid, or the driver's vSphere user cannot see it. Check the datacenters in csi-vsphere.conf and the permissions on the VM (VDO-1201)"
    ))]
    UnknownNode { node: String },
    #[snafu(display(
        "the VMs {vms} have the same uuid {node}, so the driver cannot tell which one is the node; give each VM its own uuid.bios (VDO-1202)"
    ))]
    Ambiguous { node: String, vms: String },
    #[snafu(display("there is no volume {volume}: CNS in the vCenter {vcenter} does not know it"))]
    UnknownVolume { volume: String, vcenter: String },
    #[snafu(display(
        "the volume {volume} is in the vCenter {own}, but the node {node} is in {other}; a pod must run on a node of the volume's vCenter"
    ))]
    OtherVcenter { volume: String, node: String, own: String, other: String },
    #[snafu(display(
        "the volume {volume} is attached to {holder}; it can be attached to one node at a time. Detach it there first"
    ))]
    Elsewhere { volume: String, holder: String },
    #[snafu(display(
        "CNS answers that the disk of the volume {volume} is in use, but the inventory does not show which VM has it; repeat the call"
    ))]
    UnknownHolder { volume: String },
    #[snafu(display(
        "the VM {vm} has no free slot for the volume {volume}: all its SCSI controllers are full. Detach disks or move pods to another node (VDO-1205)"
    ))]
    NodeFull { volume: String, vm: String },
    #[snafu(display(
        "the volume {volume} is attached to the VM {vm}, but vCenter does not report the uuid of its disk, so the node cannot find it. Set disk.EnableUUID=TRUE on the VM and power it off and on (VDO-1203)"
    ))]
    NoDiskUuid { volume: String, vm: String },
    #[snafu(display("cannot attach the volume {volume} to the VM {vm}"))]
    Cns { volume: String, vm: String, source: CnsError },
}

impl PublishError {
    fn code(&self) -> Code {
        match self {
            Self::NoVolume
            | Self::NoNode
            | Self::Capability { .. }
            | Self::ReadOnly
            | Self::File { .. } => Code::InvalidArgument,
            Self::Busy { .. } => Code::Aborted,
            Self::Vcenter { .. } | Self::NoDiskUuid { .. } | Self::UnknownHolder { .. } => {
                Code::Unavailable
            }
            Self::UnknownNode { .. } | Self::UnknownVolume { .. } => Code::NotFound,
            Self::Ambiguous { .. } | Self::OtherVcenter { .. } | Self::Elsewhere { .. } => {
                Code::FailedPrecondition
            }
            Self::NodeFull { .. } => Code::ResourceExhausted,
            Self::Cns { source, .. } => source.code(),
        }
    }
}
status_of!(PublishError);

pub(super) async fn publish(
    driver: &Driver,
    request: &ControllerPublishVolumeRequest,
) -> Result<ControllerPublishVolumeResponse, PublishError> {
    let (volume, node) = (&request.volume_id, &request.node_id);
    ensure!(!volume.is_empty(), NoVolumeSnafu);
    ensure!(!node.is_empty(), NoNodeSnafu);
    let capability = request.volume_capability.as_ref();
    capabilities::check_one(capability.ok_or(CapabilityError::Missing)?)?;
    ensure!(!request.readonly, ReadOnlySnafu);
    ensure!(!volume.starts_with("file:"), FileSnafu { volume });
    let _lock = driver.locks.volume(volume)?;
    let (connection, vm) = find_vm(driver, volume, node)?;
    let queue = &connection.attachments;
    let attached = queue.attach(&vm.reference, volume, driver.mandate(), TASK_TIMEOUT).await;
    let uuid = match attached {
        Ok(uuid) => uuid,
        Err(refused) if is_vm_gone(&refused, &vm) => return UnknownNodeSnafu { node }.fail(),
        Err(refused) => attached_before(&connection, &vm, volume, refused).await?,
    };
    let uuid = if uuid.is_empty() { seen_uuid(&connection, &vm, volume).await? } else { uuid };
    let uuid = uuid.replace('-', "").to_ascii_lowercase();
    Ok(ControllerPublishVolumeResponse {
        publish_context: HashMap::from([
            (VOLUME_TYPE.to_owned(), BLOCK_VOLUME.to_owned()),
            (DISK_UUID.to_owned(), uuid),
        ]),
    })
}

fn find_vm(
    driver: &Driver,
    volume: &str,
    node: &str,
) -> Result<(Connection, Arc<Vm>), PublishError> {
    let uuid: BiosUuid = node.parse().ok().context(UnknownNodeSnafu { node })?;
    let connections = driver.vcenters.all().context(VcenterSnafu { volume, node })?;
    let mut found = Vec::new();
    for connection in &connections {
        match connection.find_vm(uuid) {
            Lookup::Found(vm) => found.push((connection.clone(), vm)),
            Lookup::Several(vms) => {
                found.extend(vms.into_iter().map(|vm| (connection.clone(), vm)));
            }
            Lookup::Departed(_) | Lookup::Unseen => {}
        }
    }
    if found.len() > 1 {
        let vms = found.iter().map(|(c, vm)| locate::title(&c.inventory().view(), vm));
        let vms = vms.collect::<Vec<_>>().join(", ");
        return AmbiguousSnafu { node, vms }.fail();
    }
    let Some((connection, vm)) = found.pop() else {
        for connection in &connections {
            connection.require_live().context(VcenterSnafu { volume, node })?;
        }
        return UnknownNodeSnafu { node }.fail();
    };
    if let Some(own) = connections.iter().find(|c| c.volumes.get(volume).is_some())
        && own.name != connection.name
    {
        let (own, other) = (&*own.name, &*connection.name);
        return OtherVcenterSnafu { volume, node, own, other }.fail();
    }
    Ok((connection, vm))
}

/// The disk's uuid in the inventory: CNS attached the disk without naming it.
async fn seen_uuid(connection: &Connection, vm: &Vm, volume: &str) -> Result<String, PublishError> {
    match wait_for_holder(connection, volume).await {
        Some((holder, Some(uuid))) if holder.reference == vm.reference && !uuid.is_empty() => {
            Ok(uuid)
        }
        _ => {
            let vm = locate::title(&connection.inventory().view(), vm);
            NoDiskUuidSnafu { volume, vm }.fail()
        }
    }
}

/// The VM was destroyed, and the inventory does not show it yet.
fn is_vm_gone(refused: &Refused, vm: &Vm) -> bool {
    let fault = match refused {
        Refused::Call(error) => error.fault(),
        Refused::Volume(fault) => Some(fault),
        Refused::NotLeading => None,
    };
    fault.is_some_and(|fault| fault.chain().any(|fault| fault.proves_absence_of(&vm.reference)))
}

/// CNS says that a disk is in use both when it is attached to this VM and when it is attached to another one. The
/// inventory tells them apart.
async fn attached_before(
    connection: &Connection,
    vm: &Vm,
    volume: &str,
    refused: Refused,
) -> Result<String, PublishError> {
    let title = locate::title(&connection.inventory().view(), vm);
    let what = || "attach the disk".to_owned();
    let is_about_volume =
        |fault: &&Fault| is_volume_missing(fault) || is_in_use(fault) || is_full(fault);
    let fault = match refused {
        Refused::Volume(fault) => fault,
        // A task for one volume can fail as a whole.
        Refused::Call(source) => {
            if let Some(fault) = source.fault().filter(is_about_volume) {
                fault.clone()
            } else {
                let source = CnsError::Call { what: what(), source };
                return Err(PublishError::Cns { volume: volume.to_owned(), vm: title, source });
            }
        }
        Refused::NotLeading => {
            let source = CnsError::NotLeading;
            return Err(PublishError::Cns { volume: volume.to_owned(), vm: title, source });
        }
    };
    if is_volume_missing(&fault) {
        let vcenter = &*connection.name;
        return UnknownVolumeSnafu { volume, vcenter }.fail();
    }
    if is_in_use(&fault) {
        let seen = wait_for_holder(connection, volume).await;
        match seen {
            Some((holder, Some(uuid))) if holder.reference == vm.reference => return Ok(uuid),
            Some((holder, _)) if holder.reference != vm.reference => {
                let view = connection.inventory().view();
                let holder = format!("the VM {}", locate::title(&view, &holder));
                return ElsewhereSnafu { volume, holder }.fail();
            }
            // The watch of the inventory reconnects, or vCenter is slow: later it shows the disk.
            _ => return UnknownHolderSnafu { volume }.fail(),
        }
    }
    if is_full(&fault) {
        return NodeFullSnafu { volume, vm: title }.fail();
    }
    let source = CnsError::Refused { what: what(), source: Box::new(fault) };
    Err(PublishError::Cns { volume: volume.to_owned(), vm: title, source })
}

fn is_in_use(fault: &Fault) -> bool {
    fault.chain().any(|fault| matches!(fault.kind, FaultKind::ResourceInUse { .. }))
}

fn is_full(fault: &Fault) -> bool {
    fault.chain().any(|fault| {
        matches!(fault.kind, FaultKind::TooManyDevices)
            || &*fault.type_name == "MissingController"
            || fault.to_string().contains("missing SCSI controller")
    })
}

/// The VM with the volume and the disk's uuid, once the inventory shows it.
async fn wait_for_holder(
    connection: &Connection,
    volume: &str,
) -> Option<(Arc<Vm>, Option<String>)> {
    let mut events = connection.inventory().events();
    let look = || {
        let vm = locate::holders(connection, volume).into_iter().next()?;
        let uuid = locate::disk_on(&vm, volume).and_then(|disk| disk.uuid.clone());
        Some((vm, uuid.map(String::from)))
    };
    let waiting = async {
        loop {
            // This process may know the VM before the inventory has the disk's uuid.
            if let Some(found) = look().filter(|(_, uuid)| uuid.is_some()) {
                return Some(found);
            }
            events.next().await?;
        }
    };
    tokio::time::timeout(VIEW_LAG, waiting).await.ok().flatten()
}
