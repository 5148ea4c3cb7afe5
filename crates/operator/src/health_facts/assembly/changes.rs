//! Updates the facts one node, VM or volume at a time.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
};

use health::{
    Examination, Touched, VmRef,
    facts::{Facts, Node},
};
use jiff::Timestamp;
use vsphere::{BiosUuid, inventory as seen};

use super::{super::sources::Sources, FEW, VolumesNow};
use crate::{
    audit::inventory::{self, id},
    remediation,
};

/// Selects the VMs of a vCenter that matter: those of nodes, those with the name of a node, and those with
/// volumes of this cluster.
pub(super) struct RelevantVms {
    uuids: HashSet<BiosUuid>,
    names: HashSet<String>,
    handles: HashSet<String>,
}

impl RelevantVms {
    pub(super) fn new(facts: &Facts) -> Self {
        let nodes = facts.cluster.nodes.get().into_iter().flat_map(BTreeMap::values);
        let mut concern =
            Self { uuids: HashSet::new(), names: HashSet::new(), handles: HashSet::new() };
        for node in nodes {
            concern.names.insert(node.name.to_ascii_lowercase());
            concern.uuids.extend(uuids(node));
        }
        let volumes = facts.storage.volumes.get().into_iter().flat_map(BTreeMap::keys);
        concern.handles.extend(volumes.cloned());
        concern
    }

    fn is_node(&self, vm: &seen::Vm) -> bool {
        vm.bios_uuid.is_some_and(|uuid| self.uuids.contains(&uuid))
    }

    pub(super) fn is_of_interest(&self, vm: &seen::Vm) -> bool {
        let named = || {
            let name = vm.host_name.as_deref().unwrap_or_default().to_ascii_lowercase();
            self.names.contains(&name)
        };
        let holds = || {
            let devices = vm.devices.as_deref().unwrap_or_default();
            let disks = devices.iter().filter_map(|device| match &device.detail {
                seen::DeviceDetail::Disk(disk) => disk.volume_id.as_deref(),
                _ => None,
            });
            disks.into_iter().any(|volume| self.handles.contains(volume))
        };
        self.is_node(vm) || named() || holds()
    }
}

/// The possible BIOS uuids of a node's VM, in both byte orders.
fn uuids(node: &Node) -> impl Iterator<Item = BiosUuid> {
    let provided = node.provider_id.as_deref().and_then(|id| id.strip_prefix("vsphere://"));
    let own = [provided, Some(node.system_uuid.as_str())].into_iter().flatten();
    let own: Vec<BiosUuid> = own.filter_map(|text| text.parse().ok()).collect();
    own.into_iter().flat_map(|uuid: BiosUuid| [uuid, uuid.swapped()])
}

/// Describes a VM, including a setting of VDO that takes effect at the next power cycle.
pub(super) fn repaired_vm(
    repaired: &BTreeMap<String, Timestamp>,
    vcenter: &str,
    tree: &seen::Tree,
    vm: &seen::Vm,
) -> health::facts::Vm {
    let mut facts = inventory::vm_facts(tree, vm);
    let set = repaired.get(&remediation::key(vcenter, &vm.reference.id));
    if let (Some(set), Some(booted)) = (set, vm.boot_time)
        && facts.disk_uuid_set
        && booted < *set
    {
        facts.disk_uuid = false.into();
    }
    facts
}

/// Updates changed nodes, and adds the VMs that can matter now to `vms`.
pub(super) fn change_nodes(
    examination: &mut Examination,
    mut nodes: BTreeMap<String, Node>,
    sources: &Sources<'_>,
    vms: &mut BTreeSet<VmRef>,
) -> bool {
    let empty = BTreeMap::new();
    let before = examination.facts().cluster.nodes.get().unwrap_or(&empty);
    let gone = before.keys().filter(|name| !nodes.contains_key(*name));
    let other = nodes.iter().filter(|(name, node)| before.get(*name) != Some(*node));
    let touched: Vec<String> = gone.chain(other.map(|(name, _)| name)).cloned().collect();
    for name in &touched {
        let node = nodes.remove(name);
        let old = examination.facts().cluster.nodes.get().and_then(|nodes| nodes.get(name));
        for node in node.iter().chain(old) {
            vms.extend(vms_of(node, sources));
        }
        examination.change(&Touched::Node(name.clone()), |facts| {
            facts.now = sources.settings.now;
            let Some(nodes) = facts.cluster.nodes.get_mut() else { return };
            match node {
                Some(node) => nodes.insert(name.clone(), node),
                None => nodes.remove(name),
            };
        });
    }
    !touched.is_empty()
}

fn vms_of(node: &Node, sources: &Sources<'_>) -> Vec<VmRef> {
    let mut found = Vec::new();
    for name in sources.settings.vcenters.keys() {
        let Some(inventory) = sources.inventory(name) else { continue };
        let tree = inventory.view();
        let mut vms: Vec<_> = uuids(node).flat_map(|uuid| tree.vms_by_bios_uuid(uuid)).collect();
        match tree.vm_by_dns_name(&node.name) {
            seen::Lookup::Found(vm) => vms.push(vm),
            seen::Lookup::Several(several) => vms.extend(several),
            seen::Lookup::Departed(_) | seen::Lookup::Unseen => {}
        }
        let reference = |vm: &Arc<seen::Vm>| VmRef { vcenter: name.clone(), vm: id(&vm.reference) };
        found.extend(vms.iter().map(reference));
    }
    found
}

pub(super) fn change_vms(
    examination: &mut Examination,
    vms: &BTreeSet<VmRef>,
    sources: &Sources<'_>,
    repaired: &BTreeMap<String, Timestamp>,
) {
    let concern = RelevantVms::new(examination.facts());
    for at in vms {
        let Some(inventory) = sources.inventory(&at.vcenter) else { continue };
        let reference = vsphere::MoRef::new("VirtualMachine", at.vm.as_str());
        let found = {
            let tree = inventory.view();
            let vm = tree.get(&reference).and_then(|object| object.as_vm());
            vm.filter(|vm| concern.is_of_interest(vm))
                .map(|vm| repaired_vm(repaired, &at.vcenter, &tree, vm))
        };
        let stored = examination.facts().vcenters.get(&at.vcenter);
        let stored = stored.and_then(|vcenter| vcenter.inventory.get()?.vms.get(&at.vm));
        if stored == found.as_ref() {
            continue;
        }
        examination.change(&Touched::Vm(at.clone()), |facts| {
            facts.now = sources.settings.now;
            let vcenter = facts.vcenters.get_mut(&at.vcenter);
            let Some(inventory) = vcenter.and_then(|v| v.inventory.get_mut()) else { return };
            match found {
                Some(vm) => inventory.vms.insert(at.vm.clone(), vm),
                None => inventory.vms.remove(&at.vm),
            };
        });
    }
}

pub(super) fn change_volumes(
    examination: &mut Examination,
    now: Timestamp,
    seen: VolumesNow,
) -> bool {
    let VolumesNow { volumes, attachments, growing, snapshots } = seen;
    let storage = &examination.facts().storage;
    if storage.volumes == volumes
        && storage.attachments == attachments
        && storage.growing == growing
        && storage.snapshots == snapshots
    {
        return false;
    }
    let around = |facts: &mut Facts| {
        facts.now = now;
        facts.storage.attachments = attachments;
        facts.storage.growing = growing;
        facts.storage.snapshots = snapshots;
    };
    let (Some(before), Some(after)) = (storage.volumes.get(), volumes.get()) else {
        examination.change(&Touched::Everything, |facts| {
            facts.storage.volumes = volumes;
            around(facts);
        });
        return true;
    };
    let gone = before.keys().filter(|handle| !after.contains_key(*handle));
    let other = after.iter().filter(|(handle, volume)| before.get(*handle) != Some(*volume));
    let touched: Vec<String> = gone.chain(other.map(|(handle, _)| handle)).cloned().collect();
    if touched.len() > FEW {
        examination.change(&Touched::Everything, |facts| {
            facts.storage.volumes = volumes;
            around(facts);
        });
        return true;
    }
    for handle in touched {
        let volume = after.get(&handle).cloned();
        examination.change(&Touched::Volume(handle.clone()), |facts| {
            facts.now = now;
            let Some(volumes) = facts.storage.volumes.get_mut() else { return };
            match volume {
                Some(volume) => volumes.insert(handle, volume),
                None => volumes.remove(&handle),
            };
        });
    }
    examination.change(&Touched::Waiting, around);
    true
}
