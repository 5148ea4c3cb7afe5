//! Finds the vCenter of a volume, and the VMs that have it.

use std::{collections::HashMap, sync::Arc};

use snafu::{ResultExt as _, Snafu};
use tonic::Code;
use vsphere::{
    cns::{QueryFilter, Volume as CnsVolume, VolumeId},
    inventory::{DeviceDetail, Disk, Tree, Vm},
};

use super::{Driver, failure::code_of};
use crate::vcenters::{Connection, KnownVolume, Unavailable};

#[derive(Debug, Snafu)]
pub(super) enum LocateError {
    #[snafu(display("cannot look for the volume {volume}"))]
    Vcenter { volume: String, source: Unavailable },
    #[snafu(display("cannot look for the volume {volume}"))]
    Query { volume: String, source: vsphere::Error },
    #[snafu(display(
        "there is no volume {volume}: no configured vCenter knows it as a CNS volume"
    ))]
    NotFound { volume: String },
    #[snafu(display(
        "the volume {volume} is a file volume; this driver release handles block volumes only"
    ))]
    File { volume: String },
}

impl LocateError {
    pub(super) fn code(&self) -> Code {
        match self {
            Self::Vcenter { .. } => Code::Unavailable,
            Self::Query { source, .. } => code_of(source),
            Self::NotFound { .. } => Code::NotFound,
            Self::File { .. } => Code::InvalidArgument,
        }
    }
}

/// The volume with its vCenter. Asks CNS only if the volume is not one of this cluster.
pub(super) async fn volume(
    driver: &Driver,
    volume: &str,
) -> Result<(Connection, Arc<KnownVolume>), LocateError> {
    let connections = driver.vcenters.all().context(VcenterSnafu { volume })?;
    let known = connections.iter().find_map(|c| Some((c.clone(), c.volumes.get(volume)?)));
    let found = match known {
        Some(known) => Some(known),
        None => query(&connections, volume).await?,
    };
    let Some((connection, known)) = found else { return NotFoundSnafu { volume }.fail() };
    if !known.is_block {
        return FileSnafu { volume }.fail();
    }
    Ok((connection, known))
}

/// Like [`volume`], but as CNS knows the volume now: nothing tells the driver that vCenter moved its disk.
pub(super) async fn current(
    driver: &Driver,
    volume: &str,
) -> Result<(Connection, Arc<KnownVolume>), LocateError> {
    let mut connections = driver.vcenters.all().context(VcenterSnafu { volume })?;
    connections.sort_by_key(|connection| connection.volumes.get(volume).is_none());
    let Some((connection, found)) = query(&connections, volume).await? else {
        return NotFoundSnafu { volume }.fail();
    };
    if !found.is_block {
        return FileSnafu { volume }.fail();
    }
    Ok((connection, found))
}

/// Like [`volume`], but without a call if there is only one vCenter: CNS itself then says whether the volume exists.
pub(super) async fn vcenter_of(driver: &Driver, volume: &str) -> Result<Connection, LocateError> {
    let connections = driver.vcenters.all().context(VcenterSnafu { volume })?;
    if let Some(connection) = connections.iter().find(|c| c.volumes.get(volume).is_some()) {
        return Ok(connection.clone());
    }
    if let [only] = &connections[..] {
        return Ok(only.clone());
    }
    let found = query(&connections, volume).await?;
    found
        .map(|(connection, _)| connection)
        .ok_or_else(|| LocateError::NotFound { volume: volume.to_owned() })
}

async fn query(
    connections: &[Connection],
    volume: &str,
) -> Result<Option<(Connection, Arc<KnownVolume>)>, LocateError> {
    for connection in connections {
        let found = in_cns(connection, volume).await.context(QuerySnafu { volume })?;
        if let Some(found) = found {
            return Ok(Some((connection.clone(), Arc::new(found.into()))));
        }
    }
    Ok(None)
}

/// The volume as CNS knows it now.
pub(super) async fn in_cns(
    connection: &Connection,
    volume: &str,
) -> Result<Option<CnsVolume>, vsphere::Error> {
    let filter = QueryFilter { ids: vec![VolumeId::from(volume)], ..QueryFilter::default() };
    let found = connection.client.query_volumes(&filter).await?;
    // A server that ignores the filter must not hand over another volume.
    Ok(found.into_iter().find(|found| found.id.id == volume))
}

fn disks(vm: &Vm) -> impl Iterator<Item = &Disk> {
    let devices = vm.devices.iter().flat_map(|devices| devices.iter());
    devices.filter_map(|device| match &device.detail {
        DeviceDetail::Disk(disk) => Some(&**disk),
        DeviceDetail::Controller { .. } | DeviceDetail::Nic { .. } => None,
    })
}

/// The disk of a volume on a VM.
pub(super) fn disk_on<'a>(vm: &'a Vm, volume: &str) -> Option<&'a Disk> {
    disks(vm).find(|disk| disk.volume_id.as_deref() == Some(volume))
}

/// The VMs that have the volume: those in view, corrected by what this process changed since.
pub(super) fn holders(connection: &Connection, volume: &str) -> Vec<Arc<Vm>> {
    let view = connection.inventory().view();
    if let Some(vm) = connection.attachments.recent().remove(volume) {
        let vm = vm.and_then(|vm| view.get(&vm)?.as_vm().cloned());
        return vm.into_iter().collect();
    }
    let vms = view.objects().filter_map(vsphere::inventory::Object::as_vm);
    vms.filter(|vm| disk_on(vm, volume).is_some()).cloned().collect()
}

/// The node ids that have each volume.
pub(super) fn published_nodes(connection: &Connection) -> HashMap<Box<str>, Vec<String>> {
    let view = connection.inventory().view();
    let mut published: HashMap<Box<str>, Vec<String>> = HashMap::new();
    for vm in view.objects().filter_map(vsphere::inventory::Object::as_vm) {
        let Some(uuid) = vm.bios_uuid else { continue };
        for volume in disks(vm).filter_map(|disk| disk.volume_id.clone()) {
            published.entry(volume).or_default().push(uuid.to_string());
        }
    }
    for (volume, vm) in connection.attachments.recent() {
        let uuid = vm.and_then(|vm| view.get(&vm)?.as_vm()?.bios_uuid);
        let nodes = uuid.map(|uuid| uuid.to_string()).into_iter().collect();
        published.insert(volume.into(), nodes);
    }
    published
}

/// The VM's path in the inventory, for messages.
pub(super) fn title(view: &Tree, vm: &Vm) -> String {
    view.path_of(&vm.reference).unwrap_or_else(|| vm.reference.to_string())
}
