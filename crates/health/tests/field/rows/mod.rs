//! The 54 symptoms: 45 of the storage driver, 9 of the cloud provider.

mod cloud;
mod install;
mod volumes;

use std::sync::LazyLock;

use health::{
    facts::{
        Attachment, Claim, Container, CsiEntry, EntityKind, Facts, Host, InstalledDriver, Known,
        Login, Nic, Node, Orphans, Pod, Service, ServiceState, Version, Vm, Waiting,
    },
    sample::handle,
};

use crate::shortcuts::Shortcuts;

/// A symptom from the field.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub(crate) id: &'static str,
    /// The error or behavior that the user sees.
    pub(crate) symptom: &'static str,
    /// The injected fault.
    pub(crate) fault: &'static str,
    /// The findings that name the cause.
    pub(crate) roots: &'static [&'static str],
    /// Additional findings, which the checks mark as consequences.
    pub(crate) derived: &'static [&'static str],
    /// Injects the fault.
    pub(crate) inject: fn(&mut Facts),
    /// Rows that cannot be combined with this one, because the cluster has one configuration or the other.
    pub(crate) clashes: &'static [&'static str],
}

/// Shorthand for rows that can be combined with any other.
const fn row(
    id: &'static str,
    symptom: &'static str,
    fault: &'static str,
    roots: &'static [&'static str],
    derived: &'static [&'static str],
    inject: fn(&mut Facts),
) -> Row {
    Row { id, symptom, fault, roots, derived, inject, clashes: &[] }
}

const fn clashing(row: Row, clashes: &'static [&'static str]) -> Row {
    Row { clashes, ..row }
}

static ROWS: LazyLock<Vec<Row>> =
    LazyLock::new(|| [install::ROWS, volumes::ROWS, cloud::ROWS].concat());

/// All rows, in order.
pub(crate) fn rows() -> &'static [Row] {
    &ROWS
}

fn pending(driver: &mut InstalledDriver, message: &str) {
    let pod = Pod {
        name: "vsphere-csi-controller-waiting".into(),
        unschedulable: Some(message.to_owned()),
        ..Pod::default()
    };
    driver.workloads[0].pods.push(pod);
}

fn crashing(driver: &mut InstalledDriver, workload: usize, name: &str, line: &str) {
    let container = Container {
        name: "main".into(),
        waiting: Some(Waiting { reason: "CrashLoopBackOff".into(), message: String::new() }),
        restarts: 9,
        last_lines: vec![line.to_owned()],
        ..Container::default()
    };
    let pod = Pod { name: name.to_owned(), containers: vec![container], ..Pod::default() };
    driver.workloads[workload].pods.push(pod);
}

fn claim(facts: &mut Facts, name: &str, many_writers: bool, message: &str) {
    facts.storage.pending.get_mut().unwrap().push(Claim {
        name: format!("shop/{name}"),
        class: "gold".into(),
        many_writers,
        message: format!("failed to provision volume: {message}"),
        since: jiff::Timestamp::UNIX_EPOCH,
    });
}

fn withhold(facts: &mut Facts, kind: EntityKind, name: Option<&str>, privilege: &str) {
    for entity in &mut facts.vcenter().grants.get_mut().unwrap().entities {
        if entity.kind == kind && name.is_none_or(|name| name == entity.name) {
            entity.privileges.get_mut().unwrap().remove(privilege);
        }
    }
}

fn push(facts: &mut Facts, volume: &str, node: &str, detaching: bool, message: &str) {
    facts.storage.attachments.get_mut().unwrap().push(Attachment {
        name: format!("csi-{volume}-{node}"),
        volume: volume.to_owned(),
        node: node.to_owned(),
        detaching,
        message: message.to_owned(),
        since: jiff::Timestamp::UNIX_EPOCH,
    });
}

/// Adds a failing attachment of a new volume.
fn attachment(facts: &mut Facts, n: u32, node: &str, message: &str) {
    let name = format!("new-{n}");
    let known = facts.storage.cns.get().unwrap()[&handle(1)].clone();
    facts.storage.cns.get_mut().unwrap().insert(name.clone(), known);
    push(facts, &name, node, false, message);
}

/// Detaches a volume from its node and its VM.
fn let_go(facts: &mut Facts, handle: &str) {
    facts.storage.volumes.get_mut().unwrap().get_mut(handle).unwrap().node = None;
    for vm in facts.inventory().vms.values_mut() {
        vm.volumes.retain(|volume| volume != handle);
    }
}

fn uninitialised(facts: &mut Facts, name: &str) {
    let node = facts.node(name);
    node.provider_id = None;
    node.taints = vec![(Node::UNINITIALIZED.into(), "NoSchedule".into())];
}
