//! Which machine a node is.
//!
//! Asked in this order, and the first question with an answer decides:
//!
//! ```text
//!   1. the record on the Node      written when it was initialised
//!   2. spec.providerID             a BIOS uuid, in either byte order
//!   3. status.nodeInfo.systemUUID  as BIOS uuid in either byte order, then as instance uuid
//!   4. the node's name             as the guest's own name; then the same without domains
//!   5. the node's addresses        one machine must have one of them
//! ```
//!
//! Names and addresses count only for a node that waits to be initialised and shows no uuid of a virtual
//! machine: a node that does show one and is not found by it is not the machine that happens to have its
//! name, and a node that nobody tainted never asked to be one. Several machines for one question are
//! told apart by name and address, or reported; never guessed.

use std::{fmt, net::IpAddr};

use vsphere::{BiosUuid, InstanceUuid};

use crate::{
    model::{AddressKind, Node, Place, SCHEME, VirtualMachine},
    provided_ip,
    record::Record,
};

/// Where machines are looked up. Answers come from memory.
pub trait Directory {
    /// The machine at this place, if it is in view.
    fn at(&self, place: &Place) -> Option<VirtualMachine>;
    /// Machines with this BIOS uuid, in either byte order.
    fn with_bios_uuid(&self, uuid: BiosUuid) -> Vec<VirtualMachine>;
    /// Machines with this instance uuid.
    fn with_instance_uuid(&self, uuid: InstanceUuid) -> Vec<VirtualMachine>;
    /// Machines whose guest calls itself so, ignoring case.
    fn with_dns_name(&self, name: &str) -> Vec<VirtualMachine>;
    /// Machines whose guest calls itself so once domains are cut off, ignoring case.
    fn with_short_name(&self, name: &str) -> Vec<VirtualMachine>;
    /// Machines whose guest has this address.
    fn with_address(&self, address: IpAddr) -> Vec<VirtualMachine>;
}

/// The question that found a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The record on the Node.
    Record,
    /// `spec.providerID`.
    ProviderId,
    /// `systemUUID` as BIOS uuid.
    SystemUuid,
    /// `systemUUID` as instance uuid.
    InstanceUuid,
    /// The guest's name.
    DnsName,
    /// The guest's name without its domain.
    ShortName,
    /// An address.
    Address,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Record => "the record on the Node",
            Self::ProviderId => "the provider id",
            Self::SystemUuid => "the system uuid, as BIOS uuid",
            Self::InstanceUuid => "the system uuid, as instance uuid",
            Self::DnsName => "the guest's name",
            Self::ShortName => "the guest's name without its domain",
            Self::Address => "an address",
        })
    }
}

/// What came out.
#[derive(Clone, Debug, PartialEq)]
pub enum Match {
    /// It is this machine.
    Found(Box<VirtualMachine>, Rule),
    /// Several machines answer to the same question.
    Several(Vec<VirtualMachine>, Rule),
    /// No machine in view.
    NotFound,
    /// The node belongs to another provider; it is none of our business.
    Foreign,
}

/// What came out, and every question on the way with the number of its answers.
#[derive(Clone, Debug, PartialEq)]
pub struct Identified {
    /// The result.
    pub outcome: Match,
    /// Question and number of machines found.
    pub asked: Vec<(Rule, usize)>,
}

/// Which machine a node is.
pub fn identify(node: &Node, directory: &dyn Directory) -> Identified {
    let mut search = Search { node, record: record_of(node), asked: Vec::new() };
    let outcome = search.run(directory);
    Identified { outcome, asked: search.asked }
}

/// The uuid in a provider id of ours: with the scheme or bare. `None` for an empty or foreign one.
pub fn provider_uuid(provider_id: &str) -> Option<BiosUuid> {
    let text = provider_id.trim();
    let bare = match text.get(..SCHEME.len()) {
        Some(scheme) if scheme.eq_ignore_ascii_case(SCHEME) => &text[SCHEME.len()..],
        _ => text,
    };
    bare.parse().ok().filter(|uuid: &BiosUuid| !uuid.is_nil())
}

/// Whether a provider id is another provider's.
pub fn is_foreign(provider_id: &str) -> bool {
    !provider_id.is_empty() && provider_uuid(provider_id).is_none()
}

/// The note on a node, if it can be read.
pub fn record_of(node: &Node) -> Option<Record> {
    node.record.as_deref().and_then(Record::read)
}

/// Every uuid a node may be known by: while any of them is known to a vCenter, it is not gone.
pub fn uuids(node: &Node) -> Vec<BiosUuid> {
    let system = node.system_uuid.parse().ok().filter(|uuid: &BiosUuid| !uuid.is_nil());
    provider_uuid(&node.provider_id).into_iter().chain(system).collect()
}

/// Whether a node shows the uuid of another computer than this machine. Such a node has the name or the
/// address of the machine at most: the end of the machine says nothing of it.
pub fn is_other_computer(node: &Node, vm: &VirtualMachine) -> bool {
    shows_another(node, vm.bios_uuid, vm.instance_uuid)
}

/// Whether a node's `systemUUID` is a uuid, and neither of these in either byte order. Where neither is
/// known nobody can say so, nor where the BIOS uuid is not known and the node shows what could be it.
pub fn shows_another(node: &Node, bios: Option<BiosUuid>, instance: Option<InstanceUuid>) -> bool {
    let Ok(shown) = node.system_uuid.trim().parse::<BiosUuid>() else { return false };
    let bios = bios.filter(|uuid| !uuid.is_nil());
    if bios.is_none() && shows_vm_uuid(node.system_uuid.trim()) {
        return false;
    }
    let instance = instance.and_then(|uuid| uuid.to_string().parse::<BiosUuid>().ok());
    let own: Vec<BiosUuid> = bios.into_iter().chain(instance).filter(|u| !u.is_nil()).collect();
    !shown.is_nil() && !own.is_empty() && !own.iter().any(|u| *u == shown || u.swapped() == shown)
}

struct Search<'a> {
    node: &'a Node,
    record: Option<Record>,
    asked: Vec<(Rule, usize)>,
}

impl Search<'_> {
    fn run(&mut self, directory: &dyn Directory) -> Match {
        if is_foreign(&self.node.provider_id) {
            return Match::Foreign;
        }
        if let Some(record) = &self.record {
            let there = directory.at(&record.place()).filter(|m| self.is_recorded(record, m));
            self.asked.push((Rule::Record, usize::from(there.is_some())));
            if let Some(vm) = there {
                return Match::Found(Box::new(vm), Rule::Record);
            }
        }
        if let Some(uuid) = provider_uuid(&self.node.provider_id)
            && let Some(found) = self.ask(Rule::ProviderId, directory.with_bios_uuid(uuid))
        {
            return found;
        }
        let system = self.node.system_uuid.trim();
        if let Ok(uuid) = system.parse::<BiosUuid>()
            && !uuid.is_nil()
            && let Some(found) = self.ask(Rule::SystemUuid, directory.with_bios_uuid(uuid))
        {
            return found;
        }
        if let Ok(uuid) = system.parse::<InstanceUuid>()
            && !uuid.is_nil()
            && let Some(found) = self.ask(Rule::InstanceUuid, directory.with_instance_uuid(uuid))
        {
            return found;
        }
        let waits = self.node.provider_id.is_empty() && self.node.is_uninitialized();
        if waits && !shows_vm_uuid(system) {
            return self.by_name_or_address(directory);
        }
        Match::NotFound
    }

    fn by_name_or_address(&mut self, directory: &dyn Directory) -> Match {
        let name = &self.node.name;
        if let Some(found) = self.ask(Rule::DnsName, directory.with_dns_name(name)) {
            return found;
        }
        if let Some(found) = self.ask(Rule::ShortName, directory.with_short_name(short(name))) {
            return found;
        }
        for address in addresses(self.node) {
            if let Some(found) = self.ask(Rule::Address, directory.with_address(address)) {
                return found;
            }
        }
        Match::NotFound
    }

    /// The answer, if there is any.
    fn ask(&mut self, rule: Rule, mut vms: Vec<VirtualMachine>) -> Option<Match> {
        vms.retain(|vm| !vm.template);
        self.asked.push((rule, vms.len()));
        if vms.len() > 1 {
            vms = self.tell_apart(vms);
        }
        match vms.len() {
            0 => None,
            1 => vms.pop().map(|vm| Match::Found(Box::new(vm), rule)),
            _ => Some(Match::Several(vms, rule)),
        }
    }

    /// Of copies, the one that alone has the node's record, name or address; else all.
    fn tell_apart(&self, vms: Vec<VirtualMachine>) -> Vec<VirtualMachine> {
        let instance = self.record.as_ref().and_then(Record::instance_uuid);
        let addresses = addresses(self.node);
        let name = short(&self.node.name);
        let marks: [&dyn Fn(&VirtualMachine) -> bool; 3] = [
            &|m| instance.is_some() && m.instance_uuid == instance,
            &|m| short(&m.guest.host_name).eq_ignore_ascii_case(name),
            &|m| m.guest.addresses().any(|a| addresses.contains(&a)),
        ];
        for mark in marks {
            let mut marked = vms.iter().filter(|m| mark(m));
            if let (Some(only), None) = (marked.next(), marked.next()) {
                return vec![only.clone()];
            }
        }
        vms
    }

    /// Whether the machine at the recorded place is the recorded machine. References are never used
    /// twice, but a vCenter restored from an old backup may do so.
    fn is_recorded(&self, record: &Record, vm: &VirtualMachine) -> bool {
        if !record.vcenter_uuid.is_empty() && record.vcenter_uuid != *vm.vcenter_uuid {
            return false;
        }
        if self.node.provider_id.is_empty() && is_other_computer(self.node, vm) {
            return false;
        }
        match (record.instance_uuid(), vm.instance_uuid) {
            (Some(recorded), Some(seen)) if !seen.is_nil() => recorded == seen,
            _ => match (provider_uuid(&self.node.provider_id), vm.bios_uuid) {
                (Some(id), Some(seen)) if !seen.is_nil() => id == seen || id.swapped() == seen,
                _ => true,
            },
        }
    }
}

/// The addresses a node says it has.
fn addresses(node: &Node) -> Vec<IpAddr> {
    let provided = node.provided_ip.as_deref().and_then(|text| provided_ip::read(text).ok());
    let own = node.addresses.iter().filter(|a| a.kind == AddressKind::InternalIP);
    let own = own.filter_map(|a| a.address.parse().ok());
    provided.into_iter().flatten().chain(own).collect()
}

/// Whether this is a uuid a virtual machine's firmware shows: vSphere's begin with `42` or `564d`, in
/// either byte order. A kubelet that cannot read the firmware shows something else.
fn shows_vm_uuid(text: &str) -> bool {
    let Ok(uuid) = text.parse::<BiosUuid>() else { return false };
    let is_vsphere = |uuid: BiosUuid| {
        let text = uuid.to_string();
        text.starts_with("42") || text.starts_with("564d")
    };
    is_vsphere(uuid) || is_vsphere(uuid.swapped())
}

/// A name without its domain.
pub fn short(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

#[cfg(test)]
mod tests;
