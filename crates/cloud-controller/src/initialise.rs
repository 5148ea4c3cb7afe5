//! The writes to a node: pure decisions from a node and its VM.

use std::{collections::BTreeMap, net::IpAddr};

use serde_json::{Value, json};
use snafu::Snafu;

use crate::{
    addresses::{self, AddressRules, Family, NoAddress, Preference, Selected},
    identity, instance_type,
    model::{
        Address, AddressKind, CLUSTER_LABEL, HOST_LABEL, LABEL_PAIRS, Node, PROVIDER_ID_SCHEME,
        Taint, UNINITIALIZED, VirtualMachine,
    },
    provided_ip::{self, ProvidedIpError},
    record::{ANNOTATION, Record},
    zones::Zones,
};

#[derive(Debug, Clone, PartialEq, Eq, Snafu)]
pub enum NotInitialised {
    #[snafu(display("{vm} has no usable address"))]
    NoAddress { vm: String, source: NoAddress },
    #[snafu(display("the addresses of {vm} do not match the kubelet's"))]
    ProvidedIp { vm: String, source: ProvidedIpError },
    #[snafu(display("vCenter does not know the BIOS uuid of {vm} at present"))]
    NoUuid { vm: String },
    #[snafu(display("{why}; the node waits because of --require-zones"))]
    NoZones { why: String },
}

#[derive(Clone, Debug, PartialEq)]
pub struct Initialisation {
    /// `status.addresses`, if they differ.
    pub addresses: Option<Vec<Address>>,
    /// Provider id, labels, record and taints, as one merge patch.
    pub patch: Value,
}

/// The addresses for a node, with the explanation. At initialisation they are those of the Go
/// controller; later the node keeps each address that still matches the rules.
pub fn addresses(
    node: &Node,
    vm: &VirtualMachine,
    rules: &AddressRules,
    families: &[Family],
) -> (Result<Vec<Address>, NotInitialised>, Selected) {
    let provided_ip = node.provided_ip.as_deref();
    let hint: Vec<IpAddr> =
        provided_ip.and_then(|text| provided_ip::read(text).ok()).unwrap_or_default();
    let choose = |preference: Preference<'_>| {
        let (selected, failed) = addresses::select(&vm.guest, rules, families, preference);
        let vm = || vm.title();
        let applied = match (failed, provided_ip) {
            (Some(source), _) => Err(NotInitialised::NoAddress { vm: vm(), source }),
            (None, None) => Ok(selected.addresses.clone()),
            (None, Some(provided_ip)) => {
                provided_ip::apply(provided_ip, selected.addresses.clone())
                    .map_err(|source| NotInitialised::ProvidedIp { vm: vm(), source })
            }
        };
        (applied.map(grouped), selected)
    };
    let preference = if node.is_uninitialized() {
        Preference::First
    } else {
        Preference::Present(&node.addresses)
    };
    match choose(preference) {
        // Here the Go controller lets the node wait, or keeps the addresses of an initialised one.
        (Err(NotInitialised::ProvidedIp { .. }), _) if !hint.is_empty() => {
            choose(Preference::NodeIp(&hint))
        }
        chosen => chosen,
    }
}

/// Groups addresses by kind, in the order in which the kinds first appear. The API server orders the Go
/// controller's addresses the same way.
fn grouped(addresses: Vec<Address>) -> Vec<Address> {
    let mut kinds: Vec<AddressKind> = Vec::new();
    for address in &addresses {
        if !kinds.contains(&address.kind) {
            kinds.push(address.kind.clone());
        }
    }
    let mut addresses = addresses;
    addresses.sort_by_key(|address| kinds.iter().position(|kind| *kind == address.kind));
    addresses
}

/// The addresses to write, if those of any kind differ in content or order. The order of the kinds does
/// not matter. The node keeps its host name if the guest does not report one.
pub fn changed_addresses(node: &Node, mut wanted: Vec<Address>) -> Option<Vec<Address>> {
    let is_host_name = |a: &&Address| a.kind == AddressKind::Hostname;
    if !wanted.iter().any(|a| is_host_name(&a)) {
        wanted.extend(node.addresses.iter().filter(is_host_name).cloned());
    }
    let of_kind = |all: &[Address], kind: &AddressKind| -> Vec<String> {
        all.iter().filter(|a| a.kind == *kind).map(|a| a.address.to_string()).collect()
    };
    let mut kinds = wanted.iter().chain(node.addresses.iter()).map(|address| &address.kind);
    let differ = kinds.any(|kind| of_kind(&wanted, kind) != of_kind(&node.addresses, kind));
    differ.then_some(wanted)
}

/// The writes that initialise a node.
///
/// One update sets a missing provider id, the labels under both names, missing extra labels and the
/// record, and removes the taint. A node that reports another computer's uuid gets no record. The
/// addresses are written first, so that no pod is scheduled to a node without addresses.
pub fn plan(
    node: &Node,
    vm: &VirtualMachine,
    addresses: Vec<Address>,
    zones: &Zones,
    extra_labels: &BTreeMap<String, String>,
) -> Result<Initialisation, NotInitialised> {
    let mut spec = serde_json::Map::new();
    if node.provider_id.is_empty() {
        let uuid = vm.bios_uuid.filter(|uuid| !uuid.is_nil());
        let uuid = uuid.ok_or_else(|| NotInitialised::NoUuid { vm: vm.title() })?;
        spec.insert("providerID".into(), format!("{PROVIDER_ID_SCHEME}{uuid}").into());
    }
    let remaining: Vec<&Taint> = node.taints.iter().filter(|t| &*t.key != UNINITIALIZED).collect();
    spec.insert("taints".into(), json!(remaining));
    let mut labels = cloud_labels(vm, zones);
    for (key, value) in extra_labels {
        if !node.labels.contains_key(key.as_str()) {
            labels.entry(key.clone()).or_insert_with(|| value.clone());
        }
    }
    let mut patch = json!({ "metadata": { "labels": labels }, "spec": spec });
    if !identity::reports_other_computer(node, vm) {
        patch["metadata"]["annotations"] = json!({ ANNOTATION: Record::for_vm(vm).to_text() });
    }
    Ok(Initialisation { addresses: changed_addresses(node, addresses), patch })
}

fn cloud_labels(vm: &VirtualMachine, zones: &Zones) -> BTreeMap<String, String> {
    let [zone, region, kind] = LABEL_PAIRS;
    let found = |found: &Option<crate::zones::ZoneTag>| found.as_ref().map(|f| f.value.clone());
    let values = [
        (zone, found(&zones.zone)),
        (region, found(&zones.region)),
        (kind, Some(instance_type::for_vm(vm))),
    ];
    let mut labels = BTreeMap::new();
    for ((beta, stable), value) in values {
        if let Some(value) = value {
            labels.insert(beta.to_owned(), value.clone());
            labels.insert(stable.to_owned(), value);
        }
    }
    labels
}

/// Labels to write on an initialised node: the stable label follows the beta label, as in the Go
/// controller. Both follow the VM if `refresh` is set.
pub fn label_changes(
    node: &Node,
    refresh: Option<(&VirtualMachine, &Zones)>,
) -> Option<BTreeMap<String, String>> {
    let mut changes = BTreeMap::new();
    for (beta, stable) in LABEL_PAIRS {
        if let Some(value) = node.labels.get(beta)
            && node.labels.get(stable) != Some(value)
        {
            changes.insert(stable.to_owned(), value.to_string());
        }
    }
    if let Some((vm, zones)) = refresh {
        for (key, value) in cloud_labels(vm, zones) {
            if node.labels.get(key.as_str()).map(|v| &**v) == Some(value.as_str()) {
                changes.remove(&key);
            } else {
                changes.insert(key, value);
            }
        }
    }
    (!changes.is_empty()).then_some(changes)
}

/// The labels for host and cluster to write (`None` removes one). They are the controller's own: without
/// `wanted` it removes them, because nobody would update them. They stay while the host is not in view.
pub fn placement_changes(
    node: &Node,
    vm: &VirtualMachine,
    wanted: bool,
) -> BTreeMap<String, Option<String>> {
    let (host, cluster) = match (&vm.placement, wanted) {
        (_, false) => (None, None),
        (None, true) => return BTreeMap::new(),
        (Some(placement), true) => (Some(&placement.host), placement.cluster.as_ref()),
    };
    let wanted = [(HOST_LABEL, host), (CLUSTER_LABEL, cluster)].into_iter();
    let wanted = wanted.map(|(key, name)| (key, name.and_then(|name| label_value(name))));
    let differs = |(key, value): &(&str, Option<String>)| {
        node.labels.get(*key).map(|value| &**value) != value.as_deref()
    };
    wanted.filter(differs).map(|(key, value)| (key.to_owned(), value)).collect()
}

/// A name as a label value: other characters become `-`. A name that is too long ends in a checksum, so that
/// two hosts with the same beginning stay apart.
fn label_value(name: &str) -> Option<String> {
    const MAX: usize = 63;
    const CHECKSUM: usize = 8;
    let usable = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let ends = |c: char| !c.is_ascii_alphanumeric();
    let text: String = name.chars().map(|c| if usable(c) { c } else { '-' }).collect();
    let text = text.trim_matches(ends);
    if text.len() <= MAX {
        return (!text.is_empty()).then(|| text.to_owned());
    }
    // FNV-1a: the same in every version of this program.
    let checksum = name
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let start = text[..MAX - CHECKSUM - 1].trim_end_matches(ends);
    Some(format!("{start}-{checksum:08x}"))
}

/// Removes labels of the domains kubernetes.io and k8s.io.
pub fn allowed_extra_labels(labels: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let reserved = |key: &str| {
        key.split_once('/').is_some_and(|(domain, _)| {
            ["kubernetes.io", "k8s.io"].iter().any(|own| {
                domain.strip_suffix(own).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            })
        })
    };
    labels.into_iter().filter(|(key, _)| !reserved(key)).collect()
}

#[cfg(test)]
mod cases;
#[cfg(test)]
mod tests;
