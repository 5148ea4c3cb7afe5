//! The inventory in memory, with lookups.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use super::absence::{Absence, Departure};
use super::departures::Departures;
use super::model::{
    Cluster, Datacenter, Datastore, Folder, Host, Network, Object, ResourcePool, Vm,
};
use super::property_types::HostMount;
use crate::ids::{BiosUuid, InstanceUuid};
use crate::moref::{Kind, MoRef};

/// Inventory objects with indexes. Makes no calls to vCenter.
#[derive(Debug, Default)]
pub struct Tree {
    objects: HashMap<MoRef, Object>,
    names: BTreeSet<(Box<str>, MoRef)>,
    bios_uuids: BTreeSet<(BiosUuid, MoRef)>,
    instance_uuids: BTreeSet<(InstanceUuid, MoRef)>,
    dns_names: BTreeSet<(Box<str>, MoRef)>,
    addresses: BTreeSet<(IpAddr, MoRef)>,
    pub(super) departed: Departures,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Presence {
    Present(Object),
    /// The object is no longer in view.
    Departed(Departure),
    /// The object was never in view. It may exist nevertheless.
    Unseen,
}

/// The result of a search for a VM.
#[derive(Debug, Clone, PartialEq)]
pub enum Lookup {
    Found(Arc<Vm>),
    /// Several VMs match: copies that share a uuid, or VMs with the same name.
    Several(Vec<Arc<Vm>>),
    /// No VM in view matches, but a departed one does.
    Departed(Departure),
    /// No match was ever in view. The VM may exist nevertheless.
    Unseen,
}

impl Lookup {
    /// The VM, if exactly one matches.
    pub fn found(&self) -> Option<&Arc<Vm>> {
        match self {
            Self::Found(vm) => Some(vm),
            Self::Several(_) | Self::Departed(_) | Self::Unseen => None,
        }
    }
}

macro_rules! all {
    ($($(#[$meta:meta])* $all:ident: $type:ident = $with:ident;)*) => {
        impl Tree {
            $($(#[$meta])* pub fn $all(&self) -> Vec<Arc<$type>> {
                self.objects.values().filter_map(Object::$with).cloned().collect()
            })*
        }
    };
}
all! {
    vms: Vm = as_vm;
    hosts: Host = as_host;
    /// Clusters and compute resources.
    clusters: Cluster = as_cluster;
    resource_pools: ResourcePool = as_resource_pool;
    folders: Folder = as_folder;
    datacenters: Datacenter = as_datacenter;
    datastores: Datastore = as_datastore;
    networks: Network = as_network;
}

impl Tree {
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    pub fn objects(&self) -> impl Iterator<Item = &Object> {
        self.objects.values()
    }

    pub fn get(&self, reference: &MoRef) -> Option<&Object> {
        self.objects.get(reference)
    }

    pub fn presence(&self, reference: &MoRef) -> Presence {
        match (self.objects.get(reference), self.departed.get(reference)) {
            (Some(object), _) => Presence::Present(object.clone()),
            (None, Some(departure)) => Presence::Departed(departure.clone()),
            (None, None) => Presence::Unseen,
        }
    }

    /// Objects that are no longer in view.
    pub fn departures(&self) -> impl Iterator<Item = &Departure> {
        self.departed.iter()
    }

    /// VMs with this BIOS uuid in either byte order. Matches in the given order come first.
    pub fn vms_by_bios_uuid(&self, uuid: BiosUuid) -> Vec<Arc<Vm>> {
        let mut found = self.vms_in(&self.bios_uuids, &uuid);
        if uuid.swapped() != uuid {
            found.extend(self.vms_in(&self.bios_uuids, &uuid.swapped()));
        }
        found
    }

    /// Finds a VM by BIOS uuid, in either byte order.
    pub fn vm_by_bios_uuid(&self, uuid: BiosUuid) -> Lookup {
        self.lookup(self.vms_by_bios_uuid(uuid), |vm| {
            vm.bios_uuid.is_some_and(|known| known == uuid || known == uuid.swapped())
        })
    }

    /// VMs with this BIOS uuid in either byte order that are no longer in the view. A copy in the view does not hide them.
    pub fn departures_by_bios_uuid(&self, uuid: BiosUuid) -> impl Iterator<Item = &Departure> {
        let has_uuid = move |departure: &&Departure| {
            let known = departure.object.as_vm().and_then(|vm| vm.bios_uuid);
            known.is_some_and(|known| known == uuid || known == uuid.swapped())
        };
        self.departed.iter().filter(has_uuid)
    }

    pub fn vm_by_instance_uuid(&self, uuid: InstanceUuid) -> Lookup {
        self.lookup(self.vms_in(&self.instance_uuids, &uuid), |vm| vm.instance_uuid == Some(uuid))
    }

    pub fn vm_by_name(&self, name: &str) -> Lookup {
        self.lookup(self.vms_in(&self.names, &Box::from(name)), |vm| {
            vm.name.as_deref() == Some(name)
        })
    }

    /// Finds a VM by the host name of its guest, ignoring case.
    pub fn vm_by_dns_name(&self, name: &str) -> Lookup {
        let name = name.to_ascii_lowercase().into_boxed_str();
        self.lookup(self.vms_in(&self.dns_names, &name), |vm| {
            vm.host_name.as_deref().is_some_and(|known| known.eq_ignore_ascii_case(&name))
        })
    }

    pub fn vm_by_ip(&self, address: IpAddr) -> Lookup {
        self.lookup(self.vms_in(&self.addresses, &address), |vm| {
            vm.addresses().any(|known| known == address)
        })
    }

    /// Finds an object by inventory path, such as `/DC0/vm/k8s/node-1`. `/` is the root folder.
    pub fn by_path(&self, path: &str) -> Option<&Object> {
        let path = path.trim_end_matches('/');
        if path.is_empty() {
            return self
                .objects
                .values()
                .find(|object| object.parent().is_none() && object.as_folder().is_some());
        }
        let name = path.rsplit('/').next().unwrap_or_default();
        let name: Box<str> = name.into();
        let named = references(&self.names, &name);
        named
            .filter_map(|reference| self.objects.get(reference))
            .find(|object| self.path_of(object.reference()).as_deref() == Some(path))
    }

    /// The inventory path of an object in view, without the name of the root folder.
    pub fn path_of(&self, reference: &MoRef) -> Option<String> {
        let object = self.objects.get(reference)?;
        let mut names = vec![object.name()?];
        for ancestor in self.ancestors(reference) {
            names.push(ancestor.name()?);
        }
        // The outermost ancestor is the root folder, unless the user lacks the permission to see
        // it.
        if self.ancestors(reference).last().is_some_and(|root| root.parent().is_none()) {
            names.pop();
        } else if object.parent().is_none() {
            return Some("/".to_owned());
        }
        names.reverse();
        Some(format!("/{}", names.join("/")))
    }

    /// The ancestors of an object that are in view, nearest first.
    pub fn ancestors(&self, reference: &MoRef) -> Vec<&Object> {
        let mut found: Vec<&Object> = Vec::new();
        let mut next = self.objects.get(reference).and_then(Object::parent);
        while let Some(parent) = next.and_then(|parent| self.objects.get(parent)) {
            // Only a faulty server can produce a cycle. It must not hang the client.
            if found.len() > 64 {
                break;
            }
            found.push(parent);
            next = parent.parent();
        }
        found
    }

    pub fn datacenter_of(&self, reference: &MoRef) -> Option<&Arc<Datacenter>> {
        self.ancestors(reference).into_iter().find_map(Object::as_datacenter)
    }

    /// All mounts of datastores by hosts, as the datastores report them.
    pub fn mounts(&self) -> Vec<(Arc<Host>, Arc<Datastore>, HostMount)> {
        let datastores = self.objects.values().filter_map(Object::as_datastore);
        datastores
            .flat_map(|datastore| {
                datastore.hosts.iter().flatten().map(move |mount| (datastore, mount))
            })
            .filter_map(|(datastore, mount)| {
                let host = self.objects.get(&mount.host)?.as_host()?;
                Some((Arc::clone(host), Arc::clone(datastore), mount.mount.clone()))
            })
            .collect()
    }

    /// The datastores that all of these hosts can use now.
    pub fn shared_datastores(&self, hosts: &[MoRef]) -> Vec<Arc<Datastore>> {
        let usable = |datastore: &Datastore, host: &MoRef| {
            datastore
                .hosts
                .iter()
                .flatten()
                .any(|mount| mount.host == *host && mount.mount.is_usable())
        };
        let datastores = self.objects.values().filter_map(Object::as_datastore);
        datastores
            .filter(|datastore| datastore.accessible != Some(false))
            .filter(|datastore| {
                !hosts.is_empty() && hosts.iter().all(|host| usable(datastore, host))
            })
            .cloned()
            .collect()
    }

    fn vms_in<K: Ord + Clone>(&self, index: &BTreeSet<(K, MoRef)>, key: &K) -> Vec<Arc<Vm>> {
        references(index, key).filter_map(|r| self.objects.get(r)?.as_vm()).cloned().collect()
    }

    fn lookup(&self, mut found: Vec<Arc<Vm>>, was: impl Fn(&Vm) -> bool) -> Lookup {
        match found.len() {
            1 => found.pop().map_or(Lookup::Unseen, Lookup::Found),
            0 => {
                let mut departed =
                    self.departed.iter().filter(|d| d.object.as_vm().is_some_and(|vm| was(vm)));
                departed.next().cloned().map_or(Lookup::Unseen, Lookup::Departed)
            }
            _ => Lookup::Several(found),
        }
    }

    // ---- changes made by the watch ----

    /// Adds an object and returns the object it replaces.
    pub(crate) fn insert(&mut self, object: Object) -> Option<Object> {
        let reference = object.reference().clone();
        let before = self.remove(&reference);
        self.departed.remove(&reference);
        self.index(&object);
        self.objects.insert(reference, object);
        before
    }

    pub(crate) fn remove(&mut self, reference: &MoRef) -> Option<Object> {
        let object = self.objects.remove(reference)?;
        self.unindex(&object);
        Some(object)
    }

    /// Records a departure with an unknown reason.
    pub(crate) fn depart(&mut self, object: Object) {
        self.departed.add(Departure { object, absence: Absence::Unreachable });
    }

    /// Carries over the knowledge of an older view: its departures, and the objects that are
    /// missing here.
    pub(crate) fn carry_over(&mut self, older: Self) {
        let objects = &self.objects;
        self.departed.carry_over(older.departed, |reference| objects.contains_key(reference));
        for (reference, object) in older.objects {
            match self.remove(&reference) {
                Some(mut now) => {
                    now.keep_identity(&object);
                    self.insert(now);
                }
                None => self.depart(object),
            }
        }
    }

    fn index(&mut self, object: &Object) {
        let reference = || object.reference().clone();
        if let Some(name) = object.name() {
            self.names.insert((name.into(), reference()));
        }
        if let Some(vm) = object.as_vm() {
            self.bios_uuids
                .extend(vm.bios_uuid.filter(|uuid| !uuid.is_nil()).map(|uuid| (uuid, reference())));
            self.instance_uuids.extend(
                vm.instance_uuid.filter(|uuid| !uuid.is_nil()).map(|uuid| (uuid, reference())),
            );
            self.dns_names.extend(dns_name(vm).map(|name| (name, reference())));
            self.addresses.extend(vm.addresses().map(|address| (address, reference())));
        }
    }

    fn unindex(&mut self, object: &Object) {
        let reference = || object.reference().clone();
        if let Some(name) = object.name() {
            self.names.remove(&(name.into(), reference()));
        }
        if let Some(vm) = object.as_vm() {
            if let Some(uuid) = vm.bios_uuid {
                self.bios_uuids.remove(&(uuid, reference()));
            }
            if let Some(uuid) = vm.instance_uuid {
                self.instance_uuids.remove(&(uuid, reference()));
            }
            if let Some(name) = dns_name(vm) {
                self.dns_names.remove(&(name, reference()));
            }
            for address in vm.addresses() {
                self.addresses.remove(&(address, reference()));
            }
        }
    }
}

fn dns_name(vm: &Vm) -> Option<Box<str>> {
    vm.host_name
        .as_deref()
        .filter(|name| !name.is_empty())
        .map(|name| name.to_ascii_lowercase().into())
}

fn references<'a, K: Ord + Clone>(
    index: &'a BTreeSet<(K, MoRef)>,
    key: &K,
) -> impl Iterator<Item = &'a MoRef> {
    // The smallest possible reference.
    let least = MoRef { kind: Kind::VirtualMachine, id: "".into() };
    let key = key.clone();
    index
        .range((key.clone(), least)..)
        .take_while(move |(known, _)| *known == key)
        .map(|(_, reference)| reference)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(id: &str, name: &str, uuid: Option<&str>) -> Object {
        let mut vm = Vm::new(MoRef::new("VirtualMachine", id));
        vm.name = Some(name.into());
        vm.parent = Some(MoRef::new("Folder", "group-v1"));
        vm.bios_uuid = uuid.map(|uuid| uuid.parse().unwrap());
        vm.into()
    }

    const UUID: &str = "56492e42-22ad-3911-6d72-59cc8f26bc90";

    #[test]
    fn copies_that_share_a_uuid_are_several_matches() {
        let mut tree = Tree::default();
        tree.insert(vm("vm-1", "a", Some(UUID)));
        assert!(tree.vm_by_bios_uuid(UUID.parse().unwrap()).found().is_some());
        tree.insert(vm("vm-2", "b", Some(UUID)));
        assert!(
            matches!(tree.vm_by_bios_uuid(UUID.parse().unwrap()), Lookup::Several(vms) if vms.len() == 2)
        );
    }

    #[test]
    fn an_inaccessible_vm_keeps_its_uuid() {
        let mut older = Tree::default();
        older.insert(vm("vm-1", "a", Some(UUID)));
        let mut newer = Tree::default();
        newer.insert(vm("vm-1", "a", None));
        newer.insert(vm("vm-2", "b", Some("00000000-0000-0000-0000-000000000000")));
        newer.carry_over(older);
        let found = newer.vm_by_bios_uuid(UUID.parse().unwrap());
        assert_eq!(found.found().map(|vm| vm.reference.id.to_string()).as_deref(), Some("vm-1"));
        let nil = "00000000-0000-0000-0000-000000000000".parse().unwrap();
        assert_eq!(newer.vms_by_bios_uuid(nil).len(), 0, "a nil uuid matches nothing");
    }

    #[test]
    fn objects_missing_in_a_new_view_are_departed_and_not_gone() {
        let mut older = Tree::default();
        older.insert(vm("vm-1", "a", Some(UUID)));
        let mut newer = Tree::default();
        newer.carry_over(older);
        let Lookup::Departed(departure) = newer.vm_by_bios_uuid(UUID.parse().unwrap()) else {
            panic!("not departed")
        };
        assert_eq!(departure.absence, Absence::Unreachable);
        assert_eq!(newer.departed.unreported().len(), 1, "it will be checked");
        newer.insert(vm("vm-1", "a", Some(UUID)));
        assert!(newer.departures().next().is_none(), "it came back");
    }

    #[test]
    fn a_cycle_of_parents_does_not_hang() {
        let mut tree = Tree::default();
        for (id, parent) in [("a", "b"), ("b", "a")] {
            let mut folder = Folder::new(MoRef::new("Folder", id));
            folder.name = Some(id.into());
            folder.parent = Some(MoRef::new("Folder", parent));
            tree.insert(folder.into());
        }
        assert!(tree.ancestors(&MoRef::new("Folder", "a")).len() < 100);
        assert!(tree.path_of(&MoRef::new("Folder", "a")).is_some());
    }
}
