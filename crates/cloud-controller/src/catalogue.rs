//! The machines of one vCenter as the controller sees them, from the inventory in memory.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use vsphere::{
    BiosUuid, InstanceUuid, MoRef,
    inventory::{Object, PowerState, Selection, Tree, Vm},
};

use crate::{
    identity::short,
    model::{Guest, Interface, Metadata, Place, Power, VirtualMachine},
    zones::Step,
};

/// The tags of objects: category and name.
pub type TagTable = HashMap<MoRef, Vec<(String, String)>>;

/// Which machines may be nodes, beyond the datacenters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Inventory paths of folders; all if empty.
    pub folders: Vec<String>,
    /// Names of clusters; all if empty.
    pub clusters: Vec<String>,
}

/// The options in which cloud-init's metadata is, and how it is encoded.
const METADATA: &str = "guestinfo.metadata";
const ENCODING: &str = "guestinfo.metadata.encoding";

/// What is asked of a vCenter, and kept: no more than is used.
pub fn selection(datacenters: &[String], with_tree: bool) -> Selection {
    let vm: &[&'static str] = &[
        "config.uuid",
        "config.instanceUuid",
        "config.template",
        "config.guestId",
        "config.hardware.numCPU",
        "config.hardware.memoryMB",
        "config.extraConfig",
        "guest.hostName",
        "guest.ipAddress",
        "guest.net",
        "runtime.host",
        "runtime.powerState",
        "resourcePool",
    ];
    let mut selection = Selection::new().vms(&[vm]).keeping_options(&[METADATA, ENCODING]);
    if with_tree {
        selection = selection.hosts(&[]).clusters(&[]).resource_pools(&[]);
    }
    selection.in_datacenters(datacenters.iter().map(String::as_str))
}

/// The machines of one vCenter at an instant.
pub struct Catalogue<'a> {
    /// What the vCenter is called.
    pub vcenter: &'a Arc<str>,
    /// Its own uuid.
    pub uuid: &'a Arc<str>,
    /// Its inventory.
    pub tree: &'a Tree,
    /// Which of it counts.
    pub scope: &'a Scope,
}

impl Catalogue<'_> {
    /// The machine, if it is in view and in scope.
    pub fn at(&self, reference: &MoRef) -> Option<VirtualMachine> {
        let vm = self.tree.get(reference)?.as_vm()?;
        self.in_scope(vm).then(|| self.vm(vm))
    }

    /// Machines with this BIOS uuid, in either byte order.
    pub fn with_bios_uuid(&self, uuid: BiosUuid) -> Vec<VirtualMachine> {
        self.vms(&self.tree.vms_by_bios_uuid(uuid))
    }

    /// Machines with this instance uuid.
    pub fn with_instance_uuid(&self, uuid: InstanceUuid) -> Vec<VirtualMachine> {
        self.lookup(self.tree.vm_by_instance_uuid(uuid))
    }

    /// Machines whose guest calls itself so.
    pub fn with_dns_name(&self, name: &str) -> Vec<VirtualMachine> {
        self.lookup(self.tree.vm_by_dns_name(name))
    }

    /// Machines whose guest calls itself so once its domain is cut off.
    pub fn with_short_name(&self, name: &str) -> Vec<VirtualMachine> {
        let vms = self.tree.objects().filter_map(Object::as_vm).filter(|vm| {
            vm.host_name.as_deref().is_some_and(|host| short(host).eq_ignore_ascii_case(name))
        });
        self.vms(&vms.cloned().collect::<Vec<_>>())
    }

    /// Machines whose guest has this address.
    pub fn with_address(&self, address: IpAddr) -> Vec<VirtualMachine> {
        self.lookup(self.tree.vm_by_ip(address))
    }

    /// The three ways up from a machine: host, resource pool, folders. Tags come from `tags`.
    pub fn ways(&self, machine: &MoRef, tags: &TagTable) -> Vec<Vec<Step>> {
        let Some(vm) = self.tree.get(machine).and_then(Object::as_vm) else { return Vec::new() };
        let starts = [vm.host.as_ref(), vm.resource_pool.as_ref(), Some(machine)];
        starts.into_iter().flatten().map(|start| self.way(start, tags)).collect()
    }

    fn way(&self, start: &MoRef, tags: &TagTable) -> Vec<Step> {
        let above = self.tree.ancestors(start).into_iter().map(Object::reference);
        std::iter::once(start)
            .chain(above)
            .map(|reference| Step {
                title: self.tree.path_of(reference).unwrap_or_else(|| reference.to_string()),
                tags: tags.get(reference).cloned().unwrap_or_default(),
            })
            .collect()
    }

    fn lookup(&self, found: vsphere::inventory::Lookup) -> Vec<VirtualMachine> {
        use vsphere::inventory::Lookup;
        match found {
            Lookup::Found(vm) => self.vms(&[vm]),
            Lookup::Several(vms) => self.vms(&vms),
            Lookup::Departed(_) | Lookup::Unseen => Vec::new(),
        }
    }

    fn vms(&self, vms: &[Arc<Vm>]) -> Vec<VirtualMachine> {
        vms.iter().filter(|vm| self.in_scope(vm)).map(|vm| self.vm(vm)).collect()
    }

    fn in_scope(&self, vm: &Vm) -> bool {
        let Scope { folders, clusters } = self.scope;
        let in_folder = || {
            let path = self.tree.path_of(&vm.reference).unwrap_or_default();
            let below = |folder: &String| {
                let folder = folder.trim_end_matches('/');
                path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
            };
            folders.iter().any(below)
        };
        let in_cluster = || {
            let above = vm.host.iter().flat_map(|host| self.tree.ancestors(host));
            let mut above = above.filter_map(Object::as_cluster);
            above.any(|c| c.name.as_deref().is_some_and(|n| clusters.iter().any(|w| w == n)))
        };
        (folders.is_empty() || in_folder()) && (clusters.is_empty() || in_cluster())
    }

    fn vm(&self, vm: &Vm) -> VirtualMachine {
        let name = || vm.name.as_deref().unwrap_or_default().to_owned();
        let option = |key: &str| {
            let value = vm.extra_config.as_ref().and_then(|config| config.get(key))?;
            value.to_text()
        };
        let interfaces = vm.nics.iter().flatten().map(|nic| Interface {
            network: nic.network.as_deref().unwrap_or_default().to_owned(),
            device: nic.device,
            addresses: nic.addresses.iter().map(|a| a.address).collect(),
        });
        VirtualMachine {
            place: Place { vcenter: self.vcenter.clone(), vm: vm.reference.clone() },
            path: self.tree.path_of(&vm.reference).unwrap_or_else(name),
            vcenter_uuid: self.uuid.clone(),
            folder: vm.parent.clone(),
            bios_uuid: vm.bios_uuid.filter(|uuid| !uuid.is_nil()),
            instance_uuid: vm.instance_uuid.filter(|uuid| !uuid.is_nil()),
            template: vm.template == Some(true),
            power: vm.power.as_ref().and_then(power),
            cpus: vm.cpus.unwrap_or_default(),
            memory_mib: vm.memory_mib.unwrap_or_default(),
            guest_id: vm.guest_id.as_deref().unwrap_or_default().to_owned(),
            guest: Guest {
                host_name: vm.host_name.as_deref().unwrap_or_default().to_owned(),
                interfaces: interfaces.collect(),
                metadata: option(METADATA).map(|content| Metadata {
                    content,
                    encoding: option(ENCODING).unwrap_or_default(),
                }),
            },
        }
    }
}

fn power(state: &PowerState) -> Option<Power> {
    match state {
        PowerState::On => Some(Power::On),
        PowerState::Off => Some(Power::Off),
        PowerState::Suspended => Some(Power::Suspended),
        PowerState::Other(_) => None,
    }
}
