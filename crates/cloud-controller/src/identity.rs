//! Identifies the VM of a node.
//!
//! The controller applies these rules in order. The first rule that matches a VM decides:
//!
//! ```text
//!   1. the record on the Node      written at initialisation
//!   2. spec.providerID             a BIOS uuid, in either byte order
//!   3. status.nodeInfo.systemUUID  as BIOS uuid in either byte order, then as instance uuid
//!   4. the node's name             as the guest's host name; then both without domains
//!   5. the node's addresses        one VM must have one of them
//! ```
//!
//! Names and addresses count only for a node that has the taint `uninitialized` and reports no uuid of
//! a VM. A node that reports a VM uuid but does not match by it is not the VM that has the same name.
//! If several VMs match, the record, the name and the address decide; otherwise they are reported.

use std::{fmt, net::IpAddr};

use vsphere::{BiosUuid, InstanceUuid};

use crate::{
    model::{AddressKind, Node, PROVIDER_ID_SCHEME, VirtualMachine, VmRef},
    provided_ip,
    record::Record,
};

/// Finds VMs in memory.
pub trait VmLookup {
    fn at(&self, vm_ref: &VmRef) -> Option<VirtualMachine>;
    /// In either byte order.
    fn with_bios_uuid(&self, uuid: BiosUuid) -> Vec<VirtualMachine>;
    fn with_instance_uuid(&self, uuid: InstanceUuid) -> Vec<VirtualMachine>;
    /// By the guest's host name, ignoring case.
    fn with_dns_name(&self, name: &str) -> Vec<VirtualMachine>;
    /// By the guest's host name without its domain, ignoring case.
    fn with_short_name(&self, name: &str) -> Vec<VirtualMachine>;
    fn with_address(&self, address: IpAddr) -> Vec<VirtualMachine>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    Record,
    ProviderId,
    SystemUuid,
    InstanceUuid,
    DnsName,
    ShortName,
    Address,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Record => "the record on the Node",
            Self::ProviderId => "the provider id",
            Self::SystemUuid => "the system uuid, as BIOS uuid",
            Self::InstanceUuid => "the system uuid, as instance uuid",
            Self::DnsName => "the guest's host name",
            Self::ShortName => "the guest's host name without its domain",
            Self::Address => "an address",
        })
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Match {
    Found(Box<VirtualMachine>, Rule),
    Several(Vec<VirtualMachine>, Rule),
    NotFound,
    /// The node belongs to another provider: the controller ignores it.
    Foreign,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Identification {
    pub outcome: Match,
    /// Each applied rule with the number of VMs it matched.
    pub attempts: Vec<(Rule, usize)>,
}

pub fn identify(node: &Node, lookup: &dyn VmLookup) -> Identification {
    let mut search = Search { node, record: record_of(node), attempts: Vec::new() };
    let outcome = search.run(lookup);
    Identification { outcome, attempts: search.attempts }
}

/// The uuid in a vSphere provider id, with or without the scheme.
pub fn provider_uuid(provider_id: &str) -> Option<BiosUuid> {
    let text = provider_id.trim();
    let bare = match text.get(..PROVIDER_ID_SCHEME.len()) {
        Some(scheme) if scheme.eq_ignore_ascii_case(PROVIDER_ID_SCHEME) => {
            &text[PROVIDER_ID_SCHEME.len()..]
        }
        _ => text,
    };
    bare.parse().ok().filter(|uuid: &BiosUuid| !uuid.is_nil())
}

pub fn is_foreign(provider_id: &str) -> bool {
    !provider_id.is_empty() && provider_uuid(provider_id).is_none()
}

pub fn record_of(node: &Node) -> Option<Record> {
    node.record.as_deref().and_then(Record::read)
}

/// Every uuid of the node's VM: while a vCenter knows one of them, the VM is not gone.
pub fn node_uuids(node: &Node) -> Vec<BiosUuid> {
    let system = node.system_uuid.parse().ok().filter(|uuid: &BiosUuid| !uuid.is_nil());
    provider_uuid(&node.provider_id).into_iter().chain(system).collect()
}

/// Whether a node reports the uuid of another computer than this VM. Such a node has at most the name
/// or an address of the VM, so it can exist without the VM.
pub fn reports_other_computer(node: &Node, vm: &VirtualMachine) -> bool {
    reports_other_uuid(node, vm.bios_uuid, vm.instance_uuid)
}

/// Whether a node's `systemUUID` is a uuid and neither of these, in either byte order. `false` if both
/// are unknown, or if only the BIOS uuid is unknown and the node reports a possible one.
pub fn reports_other_uuid(
    node: &Node,
    bios: Option<BiosUuid>,
    instance: Option<InstanceUuid>,
) -> bool {
    let Ok(reported) = node.system_uuid.trim().parse::<BiosUuid>() else { return false };
    let bios = bios.filter(|uuid| !uuid.is_nil());
    if bios.is_none() && is_vm_uuid(node.system_uuid.trim()) {
        return false;
    }
    let instance = instance.and_then(|uuid| uuid.to_string().parse::<BiosUuid>().ok());
    let own: Vec<BiosUuid> = bios.into_iter().chain(instance).filter(|u| !u.is_nil()).collect();
    !reported.is_nil()
        && !own.is_empty()
        && !own.iter().any(|u| *u == reported || u.swapped() == reported)
}

struct Search<'a> {
    node: &'a Node,
    record: Option<Record>,
    attempts: Vec<(Rule, usize)>,
}

impl Search<'_> {
    fn run(&mut self, lookup: &dyn VmLookup) -> Match {
        if is_foreign(&self.node.provider_id) {
            return Match::Foreign;
        }
        if let Some(record) = &self.record {
            let recorded = lookup.at(&record.vm_ref()).filter(|m| self.is_recorded(record, m));
            self.attempts.push((Rule::Record, usize::from(recorded.is_some())));
            if let Some(vm) = recorded {
                return Match::Found(Box::new(vm), Rule::Record);
            }
        }
        if let Some(uuid) = provider_uuid(&self.node.provider_id)
            && let Some(found) = self.evaluate(Rule::ProviderId, lookup.with_bios_uuid(uuid))
        {
            return found;
        }
        let system = self.node.system_uuid.trim();
        if let Ok(uuid) = system.parse::<BiosUuid>()
            && !uuid.is_nil()
            && let Some(found) = self.evaluate(Rule::SystemUuid, lookup.with_bios_uuid(uuid))
        {
            return found;
        }
        if let Ok(uuid) = system.parse::<InstanceUuid>()
            && !uuid.is_nil()
            && let Some(found) = self.evaluate(Rule::InstanceUuid, lookup.with_instance_uuid(uuid))
        {
            return found;
        }
        let waiting = self.node.provider_id.is_empty() && self.node.is_uninitialized();
        if waiting && !is_vm_uuid(system) {
            return self.by_name_or_address(lookup);
        }
        Match::NotFound
    }

    fn by_name_or_address(&mut self, lookup: &dyn VmLookup) -> Match {
        let name = &self.node.name;
        if let Some(found) = self.evaluate(Rule::DnsName, lookup.with_dns_name(name)) {
            return found;
        }
        if let Some(found) =
            self.evaluate(Rule::ShortName, lookup.with_short_name(short_name(name)))
        {
            return found;
        }
        for address in addresses(self.node) {
            if let Some(found) = self.evaluate(Rule::Address, lookup.with_address(address)) {
                return found;
            }
        }
        Match::NotFound
    }

    fn evaluate(&mut self, rule: Rule, mut vms: Vec<VirtualMachine>) -> Option<Match> {
        vms.retain(|vm| !vm.template);
        self.attempts.push((rule, vms.len()));
        if vms.len() > 1 {
            vms = self.disambiguate(vms);
        }
        match vms.len() {
            0 => None,
            1 => vms.pop().map(|vm| Match::Found(Box::new(vm), rule)),
            _ => Some(Match::Several(vms, rule)),
        }
    }

    /// The only VM with the recorded instance uuid, the name or an address of the node; otherwise all.
    fn disambiguate(&self, vms: Vec<VirtualMachine>) -> Vec<VirtualMachine> {
        let instance = self.record.as_ref().and_then(Record::instance_uuid);
        let addresses = addresses(self.node);
        let name = short_name(&self.node.name);
        let criteria: [&dyn Fn(&VirtualMachine) -> bool; 3] = [
            &|m| instance.is_some() && m.instance_uuid == instance,
            &|m| short_name(&m.guest.host_name).eq_ignore_ascii_case(name),
            &|m| m.guest.addresses().any(|a| addresses.contains(&a)),
        ];
        for matches in criteria {
            let mut matching = vms.iter().filter(|m| matches(m));
            if let (Some(only), None) = (matching.next(), matching.next()) {
                return vec![only.clone()];
            }
        }
        vms
    }

    /// Whether the VM with the recorded reference is the recorded VM. vCenter never reuses references,
    /// unless it was restored from an old backup.
    fn is_recorded(&self, record: &Record, vm: &VirtualMachine) -> bool {
        if !record.vcenter_uuid.is_empty() && record.vcenter_uuid != *vm.vcenter_uuid {
            return false;
        }
        if self.node.provider_id.is_empty() && reports_other_computer(self.node, vm) {
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

fn addresses(node: &Node) -> Vec<IpAddr> {
    let provided = node.provided_ip.as_deref().and_then(|text| provided_ip::read(text).ok());
    let own = node.addresses.iter().filter(|a| a.kind == AddressKind::InternalIP);
    let own = own.filter_map(|a| a.address.parse().ok());
    provided.into_iter().flatten().chain(own).collect()
}

/// Whether this is the BIOS uuid of a vSphere VM: it begins with `42` or `564d`, in either byte order.
/// A kubelet that cannot read the firmware reports another text.
fn is_vm_uuid(text: &str) -> bool {
    let Ok(uuid) = text.parse::<BiosUuid>() else { return false };
    let is_vsphere = |uuid: BiosUuid| {
        let text = uuid.to_string();
        text.starts_with("42") || text.starts_with("564d")
    };
    is_vsphere(uuid) || is_vsphere(uuid.swapped())
}

pub fn short_name(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

#[cfg(test)]
mod tests;
