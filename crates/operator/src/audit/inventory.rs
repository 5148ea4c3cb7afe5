//! Converts the inventory of a vCenter into facts for the checks.

use std::collections::{BTreeMap, BTreeSet};

use health::facts::{
    Datacenter, Datastore, Host, Inventory, Known, Nic, Power, ScsiController, Tools, Version, Vm,
};
use vsphere::{
    MoRef,
    inventory::{
        DeviceDetail, HostConnection, PowerState, Selection, ToolsRunning, Tree, VmConnection,
        {self as seen},
    },
};

/// The VM properties that the checks need.
pub const SELECTION_OF_VMS: &[&[&str]] = &[
    seen::Vm::IDENTITY,
    seen::Vm::CONFIG,
    seen::Vm::BLOCK_TRACKING,
    seen::Vm::GUEST,
    seen::Vm::RUNTIME,
    seen::Vm::HARDWARE,
    seen::Vm::SNAPSHOTS,
];

/// The watched part of a vCenter: VMs with the properties that the checks need, and the objects they run on.
pub fn selection() -> Selection {
    Selection::new()
        .vms(SELECTION_OF_VMS)
        .hosts(&[seen::Host::IDENTITY, seen::Host::STATE, seen::Host::STORAGE])
        .clusters(&[seen::Cluster::IDENTITY])
        .datastores(&[seen::Datastore::IDENTITY, seen::Datastore::STATE, seen::Datastore::HOSTS])
}

/// All inventory facts except tags, policies, host groups and file service, which the view does not contain.
/// `keep` selects the VMs: a vCenter may hold many VMs that have nothing to do with this cluster.
pub(crate) fn inventory(tree: &Tree, keep: impl Fn(&seen::Vm) -> bool) -> Inventory {
    let vms = tree.vms().into_iter().filter(|vm| keep(vm));
    Inventory {
        datacenters: tree
            .datacenters()
            .iter()
            .map(|dc| (id(&dc.reference), Datacenter { name: text(dc.name.as_deref()) }))
            .collect(),
        hosts: hosts(tree),
        datastores: tree
            .datastores()
            .iter()
            .map(|ds| (id(&ds.reference), datastore(tree, ds)))
            .collect(),
        vms: vms.map(|vm| (id(&vm.reference), vm_facts(tree, &vm))).collect(),
        // The caller adds these after it queries vCenter.
        tags: Known::default(),
        policies: Known::default(),
        host_groups: Known::default(),
        file_service: Known::default(),
    }
}

/// The names of the datacenters that a VsphereCloudConfig lists by name, by path or by reference.
pub(crate) fn datacenter_names(tree: &Tree, listed: &[&str]) -> BTreeSet<String> {
    let all = tree.datacenters();
    let resolved = listed.iter().map(|wanted| {
        let found = all.iter().find(|dc| {
            &*dc.reference.id == *wanted || tree.path_of(&dc.reference).as_deref() == Some(*wanted)
        });
        found.and_then(|dc| dc.name.as_deref()).unwrap_or(wanted).to_owned()
    });
    resolved.collect()
}

/// Whether every listed datacenter exists.
pub(crate) fn has_datacenters(tree: &Tree, listed: &[&str]) -> bool {
    let all = tree.datacenters();
    let exists = |name: &String| all.iter().any(|dc| dc.name.as_deref() == Some(name.as_str()));
    datacenter_names(tree, listed).iter().all(exists)
}

/// The reference of an object in the form that facts use.
pub(crate) fn id(reference: &MoRef) -> String {
    reference.id.to_string()
}

fn text(text: Option<&str>) -> String {
    text.unwrap_or_default().to_owned()
}

fn path(tree: &Tree, reference: &MoRef, name: Option<&str>) -> String {
    tree.path_of(reference).unwrap_or_else(|| text(name))
}

pub(crate) fn hosts(tree: &Tree) -> BTreeMap<String, Host> {
    let mut mounted: BTreeMap<MoRef, BTreeSet<String>> = BTreeMap::new();
    let mut unusable: BTreeMap<MoRef, BTreeSet<String>> = BTreeMap::new();
    for (host, datastore, mount) in tree.mounts() {
        let usable = mount.is_usable() && datastore.accessible != Some(false);
        let list = if usable { &mut mounted } else { &mut unusable };
        list.entry(host.reference.clone()).or_default().insert(id(&datastore.reference));
    }
    let host = |host: &seen::Host| Host {
        name: text(host.name.as_deref()),
        path: path(tree, &host.reference, host.name.as_deref()),
        version: version(host.version.as_deref(), host.api_version.as_deref()),
        connected: host.connection.as_ref().is_none_or(|c| *c == HostConnection::Connected),
        maintenance: host.in_maintenance.unwrap_or_default(),
        datastores: mounted.get(&host.reference).cloned().unwrap_or_default(),
        unusable: unusable.get(&host.reference).cloned().unwrap_or_default(),
        ancestors: tree.ancestors(&host.reference).iter().map(|o| id(o.reference())).collect(),
    };
    tree.hosts().iter().map(|seen| (id(&seen.reference), host(seen))).collect()
}

/// The version, with the update number from the API version: 6.7 Update 3 reports 6.7.0 as its version, and
/// 6.7.3 as its API version.
pub(crate) fn version(text: Option<&str>, api: Option<&str>) -> Version {
    let parse = |text: Option<&str>| text.and_then(|text| text.parse::<Version>().ok());
    let mut version = parse(text).unwrap_or_default();
    if let Some(api) = parse(api)
        && (api.major, api.minor) == (version.major, version.minor)
    {
        version.patch = version.patch.max(api.patch);
    }
    version
}

fn datastore(tree: &Tree, seen: &seen::Datastore) -> Datastore {
    let bytes = |bytes: Option<i64>| bytes.and_then(|b| u64::try_from(b).ok()).unwrap_or_default();
    let pod = tree
        .ancestors(&seen.reference)
        .into_iter()
        .next()
        .filter(|parent| parent.reference().kind == vsphere::Kind::StoragePod);
    Datastore {
        name: text(seen.name.as_deref()),
        path: path(tree, &seen.reference, seen.name.as_deref()),
        url: text(seen.url.as_deref()),
        accessible: seen.accessible.unwrap_or(true),
        maintenance: seen.maintenance.as_deref().is_some_and(|mode| mode != "normal"),
        capacity: bytes(seen.capacity),
        free: bytes(seen.free_space),
        storage_pod: pod.and_then(|pod| pod.name()).map(str::to_owned),
    }
}

/// The facts of one VM.
pub fn vm_facts(tree: &Tree, vm: &seen::Vm) -> Vm {
    let datacenter = tree.datacenter_of(&vm.reference);
    let devices = vm.devices.as_deref().unwrap_or_default();
    let disks = devices.iter().filter_map(|device| match &device.detail {
        DeviceDetail::Disk(disk) => Some((device, disk)),
        _ => None,
    });
    let connection = vm.connection.as_ref();
    let lost = [VmConnection::Inaccessible, VmConnection::Invalid, VmConnection::Orphaned];
    Vm {
        name: text(vm.name.as_deref()),
        path: path(tree, &vm.reference, vm.name.as_deref()),
        datacenter: text(datacenter.and_then(|dc| dc.name.as_deref())),
        bios_uuid: vm.bios_uuid.map(|uuid| uuid.to_string()).unwrap_or_default(),
        guest_name: text(vm.host_name.as_deref()),
        tools: tools(vm),
        power: match vm.power.as_ref() {
            Some(PowerState::Off) => Power::Off,
            Some(PowerState::Suspended) => Power::Suspended,
            _ => Power::On,
        },
        accessible: connection.is_none_or(|connection| !lost.contains(connection)),
        disk_uuid: match (vm.disk_uuid_enabled, &vm.hardware_version) {
            (Some(on), _) => on.into(),
            // A setting that was never set is off. A setting that VDO cannot read is unknown.
            (None, Some(_)) => false.into(),
            (None, None) => Known::unknown("vCenter does not show how its VM is configured"),
        },
        disk_uuid_set: vm.disk_uuid_enabled.unwrap_or_default(),
        hardware: hardware(vm.hardware_version.as_deref()),
        scsi: controllers(devices),
        snapshots: snapshots(vm),
        host: vm.host.as_ref().map(id).unwrap_or_default(),
        nics: nics(vm),
        volumes: disks
            .filter_map(|(_, disk)| disk.volume_id.as_deref().map(str::to_owned))
            .collect(),
        cbt: vm.tracks_blocks,
        disk_latency_ms: None,
    }
}

fn tools(vm: &seen::Vm) -> Tools {
    let installed = vm.tools_version.as_deref() != Some("guestToolsNotInstalled");
    match vm.tools_running.as_ref() {
        Some(ToolsRunning::NotRunning) if installed => Tools::NotRunning,
        Some(ToolsRunning::NotRunning) => Tools::NotInstalled,
        _ => Tools::Running,
    }
}

/// The number of a hardware version: `vmx-19` is 19. An unknown version counts as new, so that no check
/// reports it.
fn hardware(version: Option<&str>) -> u32 {
    let number = version.and_then(|version| version.strip_prefix("vmx-"));
    number.and_then(|number| number.parse().ok()).unwrap_or(u32::MAX)
}

fn snapshots(vm: &seen::Vm) -> Vec<String> {
    let all = vm.snapshots.as_ref().map(|info| info.all()).unwrap_or_default();
    all.into_iter().map(|snapshot| snapshot.name.to_string()).collect()
}

fn controllers(devices: &[seen::Device]) -> Vec<ScsiController> {
    let scsi = |device: &&seen::Device| {
        let name = &*device.type_name;
        matches!(device.detail, DeviceDetail::Controller { .. })
            && (name.contains("SCSI") || name.contains("LsiLogic") || name.contains("BusLogic"))
    };
    let disks_on = |key: i32| {
        let on = |device: &&seen::Device| {
            device.controller == Some(key) && matches!(device.detail, DeviceDetail::Disk(_))
        };
        u32::try_from(devices.iter().filter(on).count()).unwrap_or(u32::MAX)
    };
    let controller = |device: &seen::Device| ScsiController {
        paravirtual: &*device.type_name == "ParaVirtualSCSIController",
        disks: disks_on(device.key),
    };
    devices.iter().filter(scsi).map(controller).collect()
}

/// The VM's own network adapters only. Those of a container network change with every pod, and no check reads
/// them.
fn nics(vm: &seen::Vm) -> Vec<Nic> {
    let own = vm.nics.iter().flatten().filter(|nic| nic.device >= 0);
    let nic = |nic: &seen::GuestNic| Nic {
        network: text(nic.network.as_deref()),
        addresses: nic.addresses.iter().map(|a| a.address.to_string()).collect(),
        real: true,
    };
    own.map(nic).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_update_is_recognised_by_the_api_version() {
        assert_eq!(version(Some("6.7.0"), Some("6.7.3")), Version::new(6, 7, 3));
        assert_eq!(version(Some("8.0.3"), Some("8.0.3.0")), Version::new(8, 0, 3));
        assert_eq!(version(Some("6.5.0"), Some("8.0.3")), Version::new(6, 5, 0), "they contradict");
        assert_eq!(version(None, None), Version::default());
    }
}
