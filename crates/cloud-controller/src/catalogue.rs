//! The VMs of one vCenter, from the inventory in memory.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use vsphere::{
    BiosUuid, InstanceUuid, Kind, MoRef,
    inventory::{Object, PowerState, Selection, Tree, Vm},
};

use crate::{
    identity::short_name,
    model::{Guest, Interface, Metadata, Placement, Power, VirtualMachine, VmRef},
    zones::TaggedObject,
};

/// Category and name of the tags of each object.
pub type TagTable = HashMap<MoRef, Vec<(String, String)>>;

/// Limits which VMs can be nodes, in addition to the datacenters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Inventory paths of folders; all if empty.
    pub folders: Vec<String>,
    /// Names of clusters; all if empty.
    pub clusters: Vec<String>,
}

/// VM options with cloud-init's metadata and its encoding.
const METADATA: &str = "guestinfo.metadata";
const ENCODING: &str = "guestinfo.metadata.encoding";

/// The properties to watch: only those that the controller uses.
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

/// A snapshot of the VMs of one vCenter.
pub struct Catalogue<'a> {
    /// The name of the vCenter in the configuration.
    pub vcenter: &'a Arc<str>,
    pub uuid: &'a Arc<str>,
    pub tree: &'a Tree,
    pub scope: &'a Scope,
}

impl Catalogue<'_> {
    /// The VM, if it is in the inventory and in scope.
    pub fn at(&self, reference: &MoRef) -> Option<VirtualMachine> {
        let vm = self.tree.get(reference)?.as_vm()?;
        self.in_scope(vm).then(|| self.vm(vm))
    }

    /// In either byte order.
    pub fn with_bios_uuid(&self, uuid: BiosUuid) -> Vec<VirtualMachine> {
        self.vms(&self.tree.vms_by_bios_uuid(uuid))
    }

    pub fn with_instance_uuid(&self, uuid: InstanceUuid) -> Vec<VirtualMachine> {
        self.lookup(self.tree.vm_by_instance_uuid(uuid))
    }

    pub fn with_dns_name(&self, name: &str) -> Vec<VirtualMachine> {
        self.lookup(self.tree.vm_by_dns_name(name))
    }

    /// Compares host names without their domains.
    pub fn with_short_name(&self, name: &str) -> Vec<VirtualMachine> {
        let vms = self.tree.objects().filter_map(Object::as_vm).filter(|vm| {
            vm.host_name.as_deref().is_some_and(|host| short_name(host).eq_ignore_ascii_case(name))
        });
        self.vms(&vms.cloned().collect::<Vec<_>>())
    }

    pub fn with_address(&self, address: IpAddr) -> Vec<VirtualMachine> {
        self.lookup(self.tree.vm_by_ip(address))
    }

    /// The three paths upwards from a VM, with tags: from its host, its resource pool, and itself.
    pub fn paths(&self, reference: &MoRef, tags: &TagTable) -> Vec<Vec<TaggedObject>> {
        let Some(vm) = self.tree.get(reference).and_then(Object::as_vm) else { return Vec::new() };
        let starts = [vm.host.as_ref(), vm.resource_pool.as_ref(), Some(reference)];
        starts.into_iter().flatten().map(|start| self.path(start, tags)).collect()
    }

    fn path(&self, start: &MoRef, tags: &TagTable) -> Vec<TaggedObject> {
        let above = self.tree.ancestors(start).into_iter().map(Object::reference);
        std::iter::once(start)
            .chain(above)
            .map(|reference| TaggedObject {
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
            vm_ref: VmRef { vcenter: self.vcenter.clone(), vm: vm.reference.clone() },
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
            placement: self.placement(vm),
        }
    }

    fn placement(&self, vm: &Vm) -> Option<Placement> {
        let host = self.tree.get(vm.host.as_ref()?)?.as_host()?;
        // The parent of a standalone host is a compute resource, not a cluster.
        let parent = host.parent.as_ref().and_then(|parent| self.tree.get(parent));
        let parent = parent.and_then(Object::as_cluster);
        let cluster = parent.filter(|c| c.reference.kind == Kind::ClusterComputeResource);
        let cluster = cluster.and_then(|cluster| cluster.name.as_deref());
        Some(Placement {
            host: host.name.as_deref()?.to_owned(),
            cluster: cluster.map(str::to_owned),
        })
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
