//! The facts as the checks see them: with what belongs together brought together.

use api::finding::Subject;

use crate::{
    facts::{Datastore, Driver, Facts, Host, Inventory, Node, Vcenter, Vm},
    index::{Index, VmRef},
};

/// Facts and their look-up tables.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The facts.
    pub facts: &'a Facts,
    /// Their tables.
    pub index: &'a Index,
}

/// A VM with what is around it.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// Its vCenter.
    pub vcenter: &'a Vcenter,
    /// What is in that vCenter.
    pub inventory: &'a Inventory,
    /// Its reference.
    pub id: &'a str,
    /// The VM.
    pub vm: &'a Vm,
    /// Its host, if it can be seen.
    pub host: Option<&'a Host>,
}

/// What is known of the VM a node runs on.
#[derive(Clone, Debug)]
pub enum NodeVm<'a> {
    /// It is this one.
    One(Box<Found<'a>>),
    /// Several have its uuid.
    Several(Vec<Found<'a>>),
    /// No vCenter has it, and all were asked.
    Absent,
    /// Not found, but not every vCenter could be asked.
    Unclear {
        /// A vCenter that could not be asked; none if no vCenter is known at all.
        vcenter: Option<&'a Vcenter>,
        /// Why.
        reason: &'a str,
    },
}

impl<'a> View<'a> {
    /// All nodes; none if they could not be listed.
    pub fn nodes(self) -> impl Iterator<Item = &'a Node> {
        self.facts.cluster.nodes.get().into_iter().flat_map(|nodes| nodes.values())
    }

    /// A node.
    pub fn node(self, name: &str) -> Option<&'a Node> {
        self.facts.cluster.nodes.get()?.get(name)
    }

    /// A VM.
    pub fn vm(self, at: &VmRef) -> Option<Found<'a>> {
        let vcenter = self.facts.vcenters.get(&at.vcenter)?;
        let inventory = vcenter.inventory.get()?;
        let (id, vm) = inventory.vms.get_key_value(&at.vm)?;
        Some(Found { vcenter, inventory, id, vm, host: inventory.hosts.get(&vm.host) })
    }

    /// The VM a node runs on.
    pub fn node_vm(self, node: &Node) -> NodeVm<'a> {
        match self.index.vms_of(&node.name) {
            [] => {}
            [only] => {
                if let Some(found) = self.vm(only) {
                    return NodeVm::One(Box::new(found));
                }
            }
            several => {
                return NodeVm::Several(several.iter().filter_map(|at| self.vm(at)).collect());
            }
        }
        if self.facts.vcenters.is_empty() {
            return NodeVm::Unclear { vcenter: None, reason: "no vCenter was looked at" };
        }
        let blind = self.facts.vcenters.values().find_map(|vcenter| {
            let reason = vcenter.inventory.reason()?;
            Some(NodeVm::Unclear { vcenter: Some(vcenter), reason })
        });
        blind.unwrap_or(NodeVm::Absent)
    }

    /// The vCenters the storage driver is told of; all if it is told of none in particular.
    pub fn storage_vcenters(self) -> impl Iterator<Item = &'a Vcenter> {
        let told = self.facts.wanted.storage.as_ref().map(|storage| &storage.vcenters);
        let told = told.filter(|told| !told.is_empty());
        self.facts
            .vcenters
            .values()
            .filter(move |vcenter| told.is_none_or(|told| told.contains(&vcenter.name)))
    }

    /// The hosts of a vCenter that run nodes, with their references.
    pub fn hosts_of_nodes(self, vcenter: &'a Vcenter) -> Vec<(&'a str, &'a Host)> {
        let Some(inventory) = vcenter.inventory.get() else { return Vec::new() };
        let hosts = self.index.census().hosts.keys().filter(|(name, _)| *name == vcenter.name);
        hosts.filter_map(|(_, id)| Some((id.as_str(), inventory.hosts.get(id)?))).collect()
    }

    /// The one VM a node runs on, if it is known.
    pub fn only_vm(self, node: &Node) -> Option<Found<'a>> {
        match self.index.vms_of(&node.name) {
            [only] => self.vm(only),
            _ => None,
        }
    }

    /// The installed drivers.
    pub fn drivers(self) -> impl Iterator<Item = &'a Driver> {
        let drivers = &self.facts.cluster.drivers;
        [&drivers.cloud, &drivers.storage].into_iter().filter_map(|known| known.get()?.as_ref())
    }

    /// The installed storage driver.
    pub fn storage_driver(self) -> Option<&'a Driver> {
        self.facts.cluster.drivers.storage.get()?.as_ref()
    }

    /// The installed cloud provider.
    pub fn cloud_driver(self) -> Option<&'a Driver> {
        self.facts.cluster.drivers.cloud.get()?.as_ref()
    }

    /// Every datastore that can be seen, with its vCenter and reference.
    pub fn datastores(self) -> impl Iterator<Item = (&'a Vcenter, &'a str, &'a Datastore)> {
        self.facts.vcenters.values().flat_map(|vcenter| {
            let datastores = vcenter.inventory.get().into_iter().flat_map(|i| &i.datastores);
            datastores.map(move |(id, datastore)| (vcenter, id.as_str(), datastore))
        })
    }

    /// Seconds since a moment.
    pub fn seconds_since(self, moment: jiff::Timestamp) -> i64 {
        self.facts.now.as_second() - moment.as_second()
    }

    /// How many seconds something may take that usually has so many.
    pub fn grace_period(self, usual: i64) -> i64 {
        self.facts.operator.grace_period(usual)
    }
}

/// A vCenter as the subject of a finding.
pub(crate) fn vcenter_subject(vcenter: &Vcenter) -> Subject {
    Subject::vsphere("vCenter", &vcenter.name, &vcenter.address)
}

/// A datastore as the subject of a finding.
pub(crate) fn datastore_subject(datastore: &Datastore) -> Subject {
    Subject::vsphere("Datastore", &datastore.name, &datastore.path)
}

/// A span of time in the largest fitting unit, for texts.
pub(crate) fn span(seconds: i64) -> String {
    let (number, unit) = match seconds.abs() {
        s @ 0..120 => (s, "second"),
        s @ 120..7200 => (s / 60, "minute"),
        s @ 7200..172_800 => (s / 3600, "hour"),
        s => (s / 86_400, "day"),
    };
    format!("{number} {unit}{}", if number == 1 { "" } else { "s" })
}

/// The first names of many, for texts.
pub(crate) fn first_names<'n>(names: impl IntoIterator<Item = &'n str>) -> String {
    let mut names: Vec<&str> = names.into_iter().collect();
    names.sort_unstable();
    names.dedup();
    let more = names.len().saturating_sub(5);
    names.truncate(5);
    let list = names.join(", ");
    if more > 0 { format!("{list} and {more} more") } else { list }
}
