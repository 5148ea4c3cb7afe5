//! Several VsphereCloudConfigs for one vCenter.
//!
//! The configuration of a driver has one entry for each host of a vCenter. If two VsphereCloudConfigs of a driver have
//! the same host, one of them is ignored. VDO does not guess which one the admin prefers.

use std::collections::{BTreeMap, BTreeSet};

use api::{
    finding::{Severity, Subject, codes},
    text::ObjectName,
    vdo_config::Mode,
};
use catalog::Driver;
use serde_json::{Map, Value, json};

use super::{Notes, desired::DesiredDriver, steps::waiting};
use crate::{
    facts::{Facts, VcenterConnection},
    plan::PlannedStep,
};

const ACCOUNT: &str = "the account";

/// The host and the port of a vCenter.
type Address = (String, u16);

fn address(vcenter: &VcenterConnection) -> Address {
    let (host, port) = vcenter.spec.vc_ip.host_and_port();
    (normalized(host), port)
}

fn normalized(host: &str) -> String {
    host.trim_end_matches('.').to_ascii_lowercase()
}

/// Whether two hosts are one entry in the configuration of a driver.
pub(super) fn is_same_host(one: &str, other: &str) -> bool {
    normalized(one) == normalized(other)
}

/// VsphereCloudConfigs, by name.
type Group<'a> = Vec<(&'a str, &'a VcenterConnection)>;

pub(super) fn report(facts: &Facts, notes: &mut Notes) {
    let mut groups: BTreeMap<Address, Group<'_>> = BTreeMap::new();
    for (name, vcenter) in facts.referenced_vcenters() {
        groups.entry(address(vcenter)).or_default().push((name, vcenter));
    }
    for group in groups.values().filter(|group| group.len() > 1) {
        report_group(facts, group, notes);
    }
}

fn report_group(facts: &Facts, group: &Group<'_>, notes: &mut Notes) {
    let differences = differences(group);
    let shared = [Driver::Cpi, Driver::Csi].into_iter().find(|driver| {
        let desired = DesiredDriver::from_spec(facts, *driver);
        desired.is_some_and(|desired| {
            let of_driver = |(name, _): &&(&str, _)| desired.vcenters.contains(name);
            desired.mode == Mode::Managed && group.iter().filter(of_driver).count() > 1
        })
    });
    let problem = match (shared, differences.as_slice()) {
        // An account of its own for each driver is a reason for two objects.
        (None, differences) if differences.contains(&ACCOUNT) => return,
        (_, []) => "one of them is enough".to_owned(),
        (None, differences) => format!("they differ in {}", differences.join(", ")),
        (Some(driver), differences) => {
            format!(
                "{driver} can use only one of them, and they differ in {}",
                differences.join(", ")
            )
        }
    };
    let [(first, vcenter), others @ ..] = group.as_slice() else { return };
    let others: Vec<&str> = others.iter().map(|(name, _)| *name).collect();
    let (namespace, config) = super::own_name(facts);
    let names: Vec<&str> = group.iter().map(|(name, _)| *name).collect();
    let mut finding = codes::SAME_VCENTER
        .found()
        .with("names", names.join(", "))
        .with("address", vcenter.spec.vc_ip.0.as_str())
        .with("problem", problem)
        .with("namespace", namespace)
        .with("config", config)
        .with("first", *first)
        .with("others", others.join(" "))
        .with("patch", patch(facts, first, &others).to_string())
        .about_all(
            names
                .iter()
                .map(|name| Subject::kubernetes("VsphereCloudConfig", Some(namespace), name)),
        );
    if shared.is_some() && !differences.is_empty() {
        finding = finding.severity(Severity::Blocker);
    }
    notes.findings.push(finding.build());
}

/// The step that waits while VsphereCloudConfigs of a driver contradict each other.
pub(super) fn hold(facts: &Facts, desired: &DesiredDriver<'_>) -> Option<PlannedStep> {
    let mut groups: BTreeMap<String, Group<'_>> = BTreeMap::new();
    let names: BTreeSet<&str> = desired.vcenters.iter().copied().collect();
    for name in names {
        if let Some(vcenter) = facts.vcenters.get(name) {
            groups.entry(address(vcenter).0).or_default().push((name, vcenter));
        }
    }
    let (group, differences) = groups.values().find_map(|group| {
        let differences = differences(group);
        (!differences.is_empty()).then_some((group, differences))
    })?;
    let names: Vec<&str> = group.iter().map(|(name, _)| *name).collect();
    let message = format!(
        "{} have the same host, {} can use only one of them, and they differ in {}",
        names.join(" and "),
        desired.driver,
        differences.join(", "),
    );
    Some(waiting("Name each vCenter once", Some(message)))
}

/// The settings in which VsphereCloudConfigs of one vCenter differ. A new password is none of them: it reaches one
/// Secret after the other.
fn differences(group: &Group<'_>) -> Vec<&'static str> {
    let differs = |is_equal: &dyn Fn(&VcenterConnection, &VcenterConnection) -> bool| {
        group.windows(2).any(|pair| !is_equal(pair[0].1, pair[1].1))
    };
    let datacenters = |vcenter: &VcenterConnection| -> BTreeSet<String> {
        let names = vcenter.spec.datacenter_names().into_iter();
        names.map(|name| name.trim_matches('/').to_owned()).collect()
    };
    let thumbprint = |vcenter: &VcenterConnection| {
        vcenter.spec.thumbprint.as_ref().map(|thumbprint| thumbprint.0.to_ascii_lowercase())
    };
    let account = |vcenter: &VcenterConnection| {
        vcenter.credentials.as_ref().map(|credentials| credentials.username.to_lowercase())
    };
    let all = [
        ("the port", differs(&|a, b| address(a).1 == address(b).1)),
        ("spec.datacenters", differs(&|a, b| datacenters(a) == datacenters(b))),
        ("spec.insecure", differs(&|a, b| a.spec.insecure == b.spec.insecure)),
        ("spec.thumbprint", differs(&|a, b| thumbprint(a) == thumbprint(b))),
        ("spec.caBundle", differs(&|a, b| a.ca_bundle == b.ca_bundle)),
        // VDO does not know the account while it cannot read the Secret.
        (ACCOUNT, differs(&|a, b| account(a).zip(account(b)).is_none_or(|(a, b)| a == b))),
    ];
    all.into_iter().filter_map(|(name, differs)| differs.then_some(name)).collect()
}

/// The merge patch after which the VDOConfig names the first VsphereCloudConfig instead of the others.
fn patch(facts: &Facts, first: &str, others: &[&str]) -> Value {
    let replaced = |name: &ObjectName| {
        if others.contains(&name.0.as_str()) { first.to_owned() } else { name.0.clone() }
    };
    let list = |names: &[ObjectName]| {
        let mut list: Vec<String> = Vec::new();
        for name in names.iter().map(replaced) {
            if !list.contains(&name) {
                list.push(name);
            }
        }
        (!names.iter().map(|name| &name.0).eq(&list)).then_some(list)
    };
    let mut spec = Map::new();
    let mut set = |section: &str, field: &str, value: Value| {
        let section = spec.entry(section.to_owned()).or_insert_with(|| json!({}));
        section[field] = value;
    };
    let from = &facts.config.spec;
    if let Some(names) = from.cloud_provider.as_ref().and_then(|c| list(&c.vsphere_cloud_configs)) {
        set("cloudProvider", "vsphereCloudConfigs", json!(names));
    }
    if let Some(storage) = &from.storage_provider {
        if let Some(names) = list(&storage.vsphere_cloud_configs) {
            set("storageProvider", "vsphereCloudConfigs", json!(names));
        }
        let single = storage.vsphere_cloud_config.as_ref().map(replaced);
        if single.as_deref() != storage.vsphere_cloud_config.as_ref().map(|name| name.0.as_str()) {
            set("storageProvider", "vsphereCloudConfig", json!(single));
        }
    }
    json!({ "spec": spec })
}
