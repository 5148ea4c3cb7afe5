//! The facts with look-up tables, as the checks see them.

use api::finding::Subject;

use crate::{
    facts::{Datastore, Facts, Host, InstalledDriver, Inventory, Node, Vcenter, Vm},
    index::{Index, VmRef},
};

/// Facts and their look-up tables.
#[derive(Clone, Copy, Debug)]
pub struct FactsView<'a> {
    pub facts: &'a Facts,
    pub index: &'a Index,
}

/// A VM with its host, inventory and vCenter.
#[derive(Clone, Copy, Debug)]
pub struct FoundVm<'a> {
    pub vcenter: &'a Vcenter,
    pub inventory: &'a Inventory,
    pub id: &'a str,
    pub vm: &'a Vm,
    /// `None` if the account cannot see the host.
    pub host: Option<&'a Host>,
}

/// The VM of a node.
#[derive(Clone, Debug)]
pub enum NodeVm<'a> {
    One(Box<FoundVm<'a>>),
    /// Several VMs have the node's uuid.
    Several(Vec<FoundVm<'a>>),
    /// No vCenter has the VM, and all inventories are known.
    Absent,
    /// Not found, but some inventories are unknown.
    Unclear {
        /// A vCenter with an unknown inventory; `None` if no vCenter is configured.
        vcenter: Option<&'a Vcenter>,
        reason: &'a str,
    },
}

impl<'a> FactsView<'a> {
    /// Empty if the nodes are unknown.
    pub fn nodes(self) -> impl Iterator<Item = &'a Node> {
        self.facts.cluster.nodes.get().into_iter().flat_map(|nodes| nodes.values())
    }

    pub fn node(self, name: &str) -> Option<&'a Node> {
        self.facts.cluster.nodes.get()?.get(name)
    }

    pub fn vm(self, at: &VmRef) -> Option<FoundVm<'a>> {
        let vcenter = self.facts.vcenters.get(&at.vcenter)?;
        let inventory = vcenter.inventory.get()?;
        let (id, vm) = inventory.vms.get_key_value(&at.vm)?;
        Some(FoundVm { vcenter, inventory, id, vm, host: inventory.hosts.get(&vm.host) })
    }

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
            return NodeVm::Unclear { vcenter: None, reason: "no vCenter is configured" };
        }
        let blind = self.facts.vcenters.values().find_map(|vcenter| {
            let reason = vcenter.inventory.reason()?;
            Some(NodeVm::Unclear { vcenter: Some(vcenter), reason })
        });
        blind.unwrap_or(NodeVm::Absent)
    }

    /// The vCenters of the storage driver; all vCenters if its configuration names none.
    pub fn storage_vcenters(self) -> impl Iterator<Item = &'a Vcenter> {
        let named = self.facts.wanted.storage.as_ref().map(|storage| &storage.vcenters);
        let named = named.filter(|named| !named.is_empty());
        self.facts
            .vcenters
            .values()
            .filter(move |vcenter| named.is_none_or(|named| named.contains(&vcenter.name)))
    }

    /// The hosts of a vCenter that run nodes, with their managed object ids.
    pub fn hosts_of_nodes(self, vcenter: &'a Vcenter) -> Vec<(&'a str, &'a Host)> {
        let Some(inventory) = vcenter.inventory.get() else { return Vec::new() };
        let hosts = self.index.census().hosts.keys().filter(|(name, _)| *name == vcenter.name);
        hosts.filter_map(|(_, id)| Some((id.as_str(), inventory.hosts.get(id)?))).collect()
    }

    /// The VM of a node, if it is known and unique.
    pub fn only_vm(self, node: &Node) -> Option<FoundVm<'a>> {
        match self.index.vms_of(&node.name) {
            [only] => self.vm(only),
            _ => None,
        }
    }

    pub fn drivers(self) -> impl Iterator<Item = &'a InstalledDriver> {
        let drivers = &self.facts.cluster.drivers;
        [&drivers.cloud, &drivers.storage].into_iter().filter_map(|known| known.get()?.as_ref())
    }

    pub fn storage_driver(self) -> Option<&'a InstalledDriver> {
        self.facts.cluster.drivers.storage.get()?.as_ref()
    }

    pub fn cloud_driver(self) -> Option<&'a InstalledDriver> {
        self.facts.cluster.drivers.cloud.get()?.as_ref()
    }

    /// Every visible datastore, with its vCenter and managed object id.
    pub fn datastores(self) -> impl Iterator<Item = (&'a Vcenter, &'a str, &'a Datastore)> {
        self.facts.vcenters.values().flat_map(|vcenter| {
            let datastores = vcenter.inventory.get().into_iter().flat_map(|i| &i.datastores);
            datastores.map(move |(id, datastore)| (vcenter, id.as_str(), datastore))
        })
    }

    pub fn seconds_since(self, moment: jiff::Timestamp) -> i64 {
        self.facts.now.as_second() - moment.as_second()
    }

    pub fn grace_period(self, usual: i64) -> i64 {
        self.facts.operator.grace_period(usual)
    }
}

pub(crate) fn vcenter_subject(vcenter: &Vcenter) -> Subject {
    Subject::vsphere("vCenter", &vcenter.name, &vcenter.address)
}

pub(crate) fn datastore_subject(datastore: &Datastore) -> Subject {
    Subject::vsphere("Datastore", &datastore.name, &datastore.path)
}

/// Formats a duration in its largest fitting unit.
pub(crate) fn span(seconds: i64) -> String {
    let (number, unit) = match seconds.abs() {
        s @ 0..120 => (s, "second"),
        s @ 120..7200 => (s / 60, "minute"),
        s @ 7200..172_800 => (s / 3600, "hour"),
        s => (s / 86_400, "day"),
    };
    format!("{number} {unit}{}", if number == 1 { "" } else { "s" })
}

/// Formats a moment. Texts of findings contain moments instead of ages: time alone must not change a status.
pub(crate) fn moment(moment: jiff::Timestamp) -> String {
    format!("{moment:.0}")
}

/// Lists the first five names and counts the rest.
pub(crate) fn first_names<'n>(names: impl IntoIterator<Item = &'n str>) -> String {
    let mut names: Vec<&str> = names.into_iter().collect();
    names.sort_unstable();
    names.dedup();
    let more = names.len().saturating_sub(5);
    names.truncate(5);
    let list = names.join(", ");
    if more > 0 { format!("{list} and {more} more") } else { list }
}
