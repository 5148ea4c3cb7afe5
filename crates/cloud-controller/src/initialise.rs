//! What is written to a node: pure decisions from a node and its machine.

use std::{collections::BTreeMap, net::IpAddr};

use serde_json::{Value, json};
use snafu::Snafu;

use crate::{
    addresses::{self, Family, NoAddress, Preference, Rules, Selected},
    identity, instance_type,
    model::{Address, AddressKind, Node, PAIRS, SCHEME, Taint, UNINITIALIZED, VirtualMachine},
    provided_ip::{self, ProvidedIpError},
    record::{ANNOTATION, Record},
    zones::Zones,
};

/// Why a node cannot be initialised yet.
#[derive(Debug, Clone, PartialEq, Eq, Snafu)]
#[allow(missing_docs, reason = "a field is named as in the text it stands in")]
pub enum NotYet {
    #[snafu(display("{vm} has no usable address"))]
    NoAddress { vm: String, source: NoAddress },
    #[snafu(display("the addresses of {vm} do not fit the kubelet"))]
    ProvidedIp { vm: String, source: ProvidedIpError },
    #[snafu(display("vCenter does not know the BIOS uuid of {vm} at present"))]
    NoUuid { vm: String },
    #[snafu(display("{why}; --require-zones keeps the node waiting"))]
    NoZones { why: String },
}

/// What is to be written to initialise a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Initialisation {
    /// `status.addresses`, if they differ.
    pub addresses: Option<Vec<Address>>,
    /// Provider id, labels, record and taints, as one merge patch.
    pub patch: Value,
}

/// The addresses a node should have, and how they were chosen. At the first initialisation they are those
/// the Go controller chooses; after it the node keeps each address that still fits.
pub fn addresses(
    node: &Node,
    vm: &VirtualMachine,
    rules: &Rules,
    families: &[Family],
) -> (Result<Vec<Address>, NotYet>, Selected) {
    let provided_ip = node.provided_ip.as_deref();
    let hint: Vec<IpAddr> =
        provided_ip.and_then(|text| provided_ip::read(text).ok()).unwrap_or_default();
    let choose = |preference: Preference<'_>| {
        let (selected, failed) = addresses::select(&vm.guest, rules, families, preference);
        let vm = || vm.title();
        let applied = match (failed, provided_ip) {
            (Some(source), _) => Err(NotYet::NoAddress { vm: vm(), source }),
            (None, None) => Ok(selected.addresses.clone()),
            (None, Some(provided_ip)) => {
                provided_ip::apply(provided_ip, selected.addresses.clone())
                    .map_err(|source| NotYet::ProvidedIp { vm: vm(), source })
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
        // Where the Go controller lets a node wait, or, once it is initialised, leaves it what it has.
        (Err(NotYet::ProvidedIp { .. }), _) if !hint.is_empty() => {
            choose(Preference::NodeIp(&hint))
        }
        chosen => chosen,
    }
}

/// Addresses of one kind side by side, kinds in the order they first appear: so does the API server
/// order what the Go controller writes.
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

/// The addresses to write, if they differ from those the node has: in what there is of a kind, or in its
/// order, of which the first counts. How the kinds stand to each other means nothing, and the Go controller
/// does not look at it. A host name the machine does not tell is kept.
pub fn changed_addresses(node: &Node, mut wanted: Vec<Address>) -> Option<Vec<Address>> {
    let is_host_name = |a: &&Address| a.kind == AddressKind::Hostname;
    if !wanted.iter().any(|a| is_host_name(&a)) {
        wanted.extend(node.addresses.iter().filter(is_host_name).cloned());
    }
    let of = |all: &[Address], kind: &AddressKind| -> Vec<String> {
        all.iter().filter(|a| a.kind == *kind).map(|a| a.address.to_string()).collect()
    };
    let mut kinds = wanted.iter().chain(node.addresses.iter()).map(|address| &address.kind);
    let differ = kinds.any(|kind| of(&wanted, kind) != of(&node.addresses, kind));
    differ.then_some(wanted)
}

/// Everything to write to initialise a node.
///
/// In one update: the provider id where there is none, the labels in both names, the extra labels
/// where the node has none of that key, the record (unless the node shows another computer's uuid), and
/// the taints without ours. The addresses go first, so that nothing is scheduled to a node that has none.
pub fn plan(
    node: &Node,
    vm: &VirtualMachine,
    addresses: Vec<Address>,
    zones: &Zones,
    extra_labels: &BTreeMap<String, String>,
) -> Result<Initialisation, NotYet> {
    let mut spec = serde_json::Map::new();
    if node.provider_id.is_empty() {
        let uuid = vm.bios_uuid.filter(|uuid| !uuid.is_nil());
        let uuid = uuid.ok_or_else(|| NotYet::NoUuid { vm: vm.title() })?;
        spec.insert("providerID".into(), format!("{SCHEME}{uuid}").into());
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
    if !identity::is_other_computer(node, vm) {
        patch["metadata"]["annotations"] = json!({ ANNOTATION: Record::of(vm).to_text() });
    }
    Ok(Initialisation { addresses: changed_addresses(node, addresses), patch })
}

/// Instance type, zone and region under both names.
fn cloud_labels(vm: &VirtualMachine, zones: &Zones) -> BTreeMap<String, String> {
    let [zone, region, kind] = PAIRS;
    let found = |found: &Option<crate::zones::Found>| found.as_ref().map(|f| f.value.clone());
    let values = [
        (zone, found(&zones.zone)),
        (region, found(&zones.region)),
        (kind, Some(instance_type::of(vm))),
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

/// Labels to write on a node that is initialised: the newer name follows the older one, as ever; and
/// both follow the machine if `refresh` gives what they should be.
pub fn label_changes(
    node: &Node,
    refresh: Option<(&VirtualMachine, &Zones)>,
) -> Option<BTreeMap<String, String>> {
    let mut changes = BTreeMap::new();
    for (beta, stable) in PAIRS {
        if let Some(older) = node.labels.get(beta)
            && node.labels.get(stable) != Some(older)
        {
            changes.insert(stable.to_owned(), older.to_string());
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

/// The labels of `--node-labels` that may be set: those of Kubernetes' own domains are left out.
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
mod shapes;
#[cfg(test)]
mod tests;
