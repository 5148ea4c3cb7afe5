//! Look-up tables over the facts.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::facts::{Facts, Node, Vm, Volume};

/// Identifies a VM.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VmRef {
    /// Name of the VsphereCloudConfig.
    pub vcenter: String,
    /// Managed object id of the VM.
    pub vm: String,
}

/// Look-up tables over [`Facts`], updated one object at a time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Index {
    vms_by_uuid: HashMap<String, Vec<VmRef>>,
    vms_by_guest_name: HashMap<String, Vec<VmRef>>,
    vms_by_volume: HashMap<String, Vec<VmRef>>,
    vms_by_host: HashMap<String, Vec<VmRef>>,
    nodes_by_uuid: HashMap<String, Vec<String>>,
    nodes_by_name: HashMap<String, Vec<String>>,
    volumes_by_node: HashMap<String, Vec<String>>,
    vms: HashMap<String, Vec<VmRef>>,
    bound: HashMap<String, Bound>,
    census: Census,
}

/// A node's contribution to the [`Census`].
#[derive(Clone, Debug, PartialEq)]
struct Bound {
    host: (String, String),
    tracked: Option<bool>,
}

/// Counts over the VMs of all nodes, updated with every change.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Census {
    /// How many nodes run on each host, by vCenter and managed object id of the host.
    pub hosts: BTreeMap<(String, String), u32>,
    /// Nodes whose VM has changed block tracking on.
    pub tracked: BTreeSet<String>,
    /// Nodes whose VM has it off.
    pub untracked: BTreeSet<String>,
}

impl Index {
    pub fn new(facts: &Facts) -> Self {
        let mut index = Self::default();
        for (vcenter, known) in &facts.vcenters {
            for (id, vm) in known.inventory.get().into_iter().flat_map(|i| &i.vms) {
                index.add_vm(&VmRef { vcenter: vcenter.clone(), vm: id.clone() }, vm);
            }
        }
        for node in facts.cluster.nodes.get().into_iter().flat_map(|nodes| nodes.values()) {
            index.add_node(node);
        }
        for volume in facts.storage.volumes.get().into_iter().flat_map(|volumes| volumes.values()) {
            index.add_volume(volume);
        }
        for node in facts.cluster.nodes.get().into_iter().flat_map(|nodes| nodes.values()) {
            index.bind(facts, &node.name);
        }
        index
    }

    /// The VMs with the node's uuid; usually one.
    pub fn vms_of(&self, node: &str) -> &[VmRef] {
        list(&self.vms, node)
    }

    pub fn census(&self) -> &Census {
        &self.census
    }

    /// Looks up the VM of a node again.
    pub(crate) fn bind(&mut self, facts: &Facts, name: &str) {
        self.vms.remove(name);
        if let Some(bound) = self.bound.remove(name) {
            if let Some(count) = self.census.hosts.get_mut(&bound.host) {
                *count -= 1;
                if *count == 0 {
                    self.census.hosts.remove(&bound.host);
                }
            }
            self.census.tracked.remove(name);
            self.census.untracked.remove(name);
        }
        let Some(node) = facts.cluster.nodes.get().and_then(|nodes| nodes.get(name)) else {
            return;
        };
        let found = uuids(node).into_iter().map(|uuid| self.vms_with_uuid(&uuid));
        let Some(found) = found.into_iter().find(|found| !found.is_empty()) else { return };
        let mut found = found.to_vec();
        // Two VsphereCloudConfigs may name one vCenter with different users: count its VM once.
        let mut seen = BTreeSet::new();
        found.retain(|at| {
            let address = facts.vcenters.get(&at.vcenter).map(|vcenter| vcenter.address.clone());
            seen.insert((address, at.vm.clone()))
        });
        if let [only] = found.as_slice()
            && let Some(vm) = stored_vm(facts, only)
        {
            let host = (only.vcenter.clone(), vm.host.clone());
            *self.census.hosts.entry(host.clone()).or_default() += 1;
            match vm.cbt {
                Some(true) => self.census.tracked.insert(name.to_owned()),
                Some(false) => self.census.untracked.insert(name.to_owned()),
                None => false,
            };
            self.bound.insert(name.to_owned(), Bound { host, tracked: vm.cbt });
        }
        self.vms.insert(name.to_owned(), found);
    }

    pub fn vms_with_uuid(&self, uuid: &str) -> &[VmRef] {
        list(&self.vms_by_uuid, &uuid.to_ascii_lowercase())
    }

    /// VMs whose guest has this host name.
    pub fn vms_with_guest_name(&self, name: &str) -> &[VmRef] {
        list(&self.vms_by_guest_name, &name.to_ascii_lowercase())
    }

    pub fn vms_with_volume(&self, handle: &str) -> &[VmRef] {
        list(&self.vms_by_volume, handle)
    }

    pub fn vms_on_host(&self, vcenter: &str, host: &str) -> &[VmRef] {
        list(&self.vms_by_host, &host_key(vcenter, host))
    }

    /// Nodes that may run on a VM with this BIOS uuid, or are registered with it.
    pub fn nodes_with_uuid(&self, uuid: &str) -> &[String] {
        list(&self.nodes_by_uuid, &uuid.to_ascii_lowercase())
    }

    /// Nodes with the host name of a guest.
    pub fn nodes_with_guest_name(&self, name: &str) -> &[String] {
        list(&self.nodes_by_name, &name.to_ascii_lowercase())
    }

    /// Handles of the volumes that Kubernetes has attached to a node.
    pub fn volumes_on_node(&self, node: &str) -> &[String] {
        list(&self.volumes_by_node, node)
    }

    pub(crate) fn add_volume(&mut self, volume: &Volume) {
        let Some(node) = &volume.node else { return };
        let list = self.volumes_by_node.entry(node.clone()).or_default();
        if !list.contains(&volume.handle) {
            list.push(volume.handle.clone());
        }
    }

    pub(crate) fn remove_volume(&mut self, volume: &Volume) {
        let list = volume.node.as_ref().and_then(|node| self.volumes_by_node.get_mut(node));
        if let Some(list) = list {
            list.retain(|handle| handle != &volume.handle);
        }
    }

    pub(crate) fn add_vm(&mut self, at: &VmRef, vm: &Vm) {
        self.each_key_of_vm(at, vm, |list, at| {
            if !list.contains(at) {
                push(list, at.clone());
                list.sort();
            }
        });
    }

    pub(crate) fn remove_vm(&mut self, at: &VmRef, vm: &Vm) {
        self.each_key_of_vm(at, vm, |list, at| list.retain(|other| other != at));
    }

    fn each_key_of_vm(
        &mut self,
        at: &VmRef,
        vm: &Vm,
        mut act: impl FnMut(&mut Vec<VmRef>, &VmRef),
    ) {
        let mut at_key = |table: &mut HashMap<String, Vec<VmRef>>, key: String| {
            let list = table.entry(key).or_default();
            act(list, at);
        };
        at_key(&mut self.vms_by_uuid, vm.bios_uuid.to_ascii_lowercase());
        at_key(&mut self.vms_by_guest_name, vm.guest_name.to_ascii_lowercase());
        at_key(&mut self.vms_by_host, host_key(&at.vcenter, &vm.host));
        for volume in &vm.volumes {
            at_key(&mut self.vms_by_volume, volume.clone());
        }
    }

    pub(crate) fn add_node(&mut self, node: &Node) {
        for uuid in uuids(node).into_iter().chain(registered(node)) {
            let list = self.nodes_by_uuid.entry(uuid).or_default();
            if !list.contains(&node.name) {
                push(list, node.name.clone());
                list.sort();
            }
        }
        let list = self.nodes_by_name.entry(node.name.to_ascii_lowercase()).or_default();
        if !list.contains(&node.name) {
            push(list, node.name.clone());
        }
    }

    pub(crate) fn remove_node(&mut self, node: &Node) {
        for uuid in uuids(node).into_iter().chain(registered(node)) {
            if let Some(list) = self.nodes_by_uuid.get_mut(&uuid) {
                list.retain(|other| other != &node.name);
            }
        }
        self.nodes_by_name.remove(&node.name.to_ascii_lowercase());
    }
}

pub(crate) fn stored_vm<'a>(facts: &'a Facts, at: &VmRef) -> Option<&'a Vm> {
    facts.vcenters.get(&at.vcenter)?.inventory.get()?.vms.get(&at.vm)
}

fn list<'a, T>(table: &'a HashMap<String, Vec<T>>, key: &str) -> &'a [T] {
    table.get(key).map_or(&[], Vec::as_slice)
}

/// Allocates room for one item first: nearly all lists have only one.
fn push<T>(list: &mut Vec<T>, item: T) {
    if list.is_empty() {
        list.reserve_exact(1);
    }
    list.push(item);
}

fn host_key(vcenter: &str, host: &str) -> String {
    format!("{vcenter}/{host}")
}

/// The uuid in the storage driver's registration of a node.
fn registered(node: &Node) -> Option<String> {
    let entry = node.csi.get()?.as_ref()?;
    Some(entry.node_id.to_ascii_lowercase())
}

/// The possible BIOS uuids of a node's VM, likeliest first: old and new firmware write the first three
/// groups in different byte orders.
pub(crate) fn uuids(node: &Node) -> Vec<String> {
    let mut uuids = Vec::with_capacity(4);
    let provided = node.provider_id.as_deref().and_then(|id| id.strip_prefix("vsphere://"));
    for uuid in provided.into_iter().chain([node.system_uuid.as_str()]) {
        let uuid = uuid.trim().to_ascii_lowercase();
        if uuid.is_empty() || uuids.contains(&uuid) {
            continue;
        }
        let swapped = swapped(&uuid);
        for candidate in std::iter::once(uuid).chain(swapped) {
            if !uuids.contains(&candidate) {
                uuids.push(candidate);
            }
        }
    }
    uuids
}

/// Swaps the byte order of the first three groups; `None` if the text is not a uuid.
pub(crate) fn swapped(uuid: &str) -> Option<String> {
    let groups: Vec<&str> = uuid.split('-').collect();
    let lengths: Vec<usize> = groups.iter().map(|group| group.len()).collect();
    if lengths != [8, 4, 4, 4, 12] || !uuid.is_ascii() {
        return None;
    }
    let turn = |group: &str| -> String {
        (0..group.len()).step_by(2).rev().map(|at| &group[at..at + 2]).collect()
    };
    let turned: Vec<String> = groups.iter().take(3).map(|group| turn(group)).collect();
    Some(format!("{}-{}-{}", turned.join("-"), groups[3], groups[4]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_in_the_other_byte_order_is_the_same_vm() {
        let uuid = "56492e42-22ad-3911-6d72-59cc8f26bc90";
        let other = "422e4956-ad22-1139-6d72-59cc8f26bc90";
        assert_eq!(swapped(uuid).as_deref(), Some(other));
        assert_eq!(swapped(other).as_deref(), Some(uuid));
        assert_eq!(swapped("ec2-1234"), None);
    }

    #[test]
    fn taking_a_vm_out_and_putting_it_back_changes_nothing() {
        let facts = crate::sample::cluster(crate::facts::Platform::Kubernetes);
        let before = Index::new(&facts);
        let mut index = before.clone();
        let inventory = facts.vcenters["vcenter-a"].inventory.get().unwrap();
        for (id, vm) in &inventory.vms {
            let at = VmRef { vcenter: "vcenter-a".into(), vm: id.clone() };
            index.remove_vm(&at, vm);
            assert!(!index.vms_with_uuid(&vm.bios_uuid).contains(&at));
            index.add_vm(&at, vm);
        }
        assert_eq!(index, before);
    }
}
