//! The rules: from the desired state and the facts to a plan. All rules are pure and live here.
//!
//! ```text
//!   Facts ─► vCenters verified? ─► release ─► configuration ─► VMs found? ─► steps ─► the one
//!                  │               (catalog)  (profile, settings)   │           │     next thing
//!                  └───────────────────┴────────────┴───────────────┴ findings ─┘
//! ```
//!
//! VDO never breaks these rules. Each of them has a test of its name:
//!
//! - VDO does not touch a running driver when no release matches, when a vCenter is unreachable, or when VDO
//!   cannot render the driver's configuration: [`Next::Blocked`] changes nothing.
//! - VDO records every object before it applies it. VDO deletes only objects that the record lists, and no
//!   kinds that can hold data of other owners.
//! - VDO reports a driver that it does not manage, or adopts it piece by piece if the spec asks for it.
//! - VDO does not remove storage while volumes are attached.
//! - VDO does not change the cloud controller while the VM of a node is not found.
//! - A new password of the same user waits for nothing but vCenter's acceptance: see `credentials`.

mod acknowledgement;
mod adoption;
mod cluster_id;
mod configuration;
mod conflicts;
mod credentials;
mod deletion;
mod desired;
mod differences;
mod driver;
mod embedded;
mod first_rollout;
mod foreign_driver;
mod gate;
mod kept_releases;
mod known_faults;
mod naming;
mod non_vsphere_nodes;
mod nsx;
mod overrides;
mod privileges;
mod profile;
mod proxy;
mod record_recovery;
mod recording;
mod release;
mod removal;
mod rendering;
pub(crate) mod rollback;
mod rollout;
mod settings;
mod shared_vcenters;
mod steps;
mod storage_classes;
#[cfg(test)]
mod tests;
mod vcenters;
mod vm_gate;
mod vms;
mod window;
mod zones;

use std::collections::BTreeSet;

use api::{
    finding::{Finding, Subject, codes},
    vdo_config::Mode,
};
use catalog::Driver;
use jiff::Timestamp;

pub use self::{
    profile::rewrite as image_rewrite,
    removal::{is_deleted, is_kept},
};
use crate::{
    facts::{Facts, RefusalCause},
    names,
    plan::{DriverPlan, Next, Plan},
};

/// Decides on the plan for these facts.
pub fn decide(facts: &Facts) -> Plan {
    let mut notes = Notes::default();
    vcenters::report(facts, &mut notes);
    shared_vcenters::report(facts, &mut notes);
    several_configs(facts, &mut notes);
    unreadable_window(facts, &mut notes);
    catalog_trouble(facts, &mut notes);
    predecessor(facts, &mut notes);
    lookalikes(facts, &mut notes);
    doubtful_cluster_id(facts, &mut notes);
    refusals(facts, &mut notes);
    conflicts::report(facts, &mut notes);
    let mut drivers = Vec::new();
    for driver in [Driver::Cpi, Driver::Csi] {
        let decided = driver::decide(facts, driver, drivers.first(), &mut notes);
        drivers.extend(decided);
    }
    // If a pod of a healthy driver is unavailable, VDO reports it only after the grace period.
    let lacks_pods = |d: &&DriverPlan| d.next == Next::Wait && facts.record(d.driver).healthy;
    for driver in drivers.iter().filter(lacks_pods) {
        let since = driver.since(facts.config.status.as_ref()).unwrap_or(facts.now);
        if facts.now < since + facts.grace() {
            notes.wake_at(since + facts.grace());
        }
    }
    let paused = is_paused(facts);
    for driver in &mut drivers {
        new_passwords(facts, driver, &mut notes);
    }
    if facts.predecessor.runs.is_some() {
        for driver in &mut drivers {
            driver.next = Next::Blocked;
        }
    }
    // The other driver can need the same objects. While a record is unreadable, VDO deletes nothing.
    let unknown = !facts.unreadable.is_empty();
    for driver in drivers.iter_mut().filter(|d| unknown && matches!(d.next, Next::Delete(_))) {
        driver.next = Next::Blocked;
    }
    let mut finalizer = deletion::finalizer(facts, &drivers);
    if paused {
        for driver in &mut drivers {
            driver.next = Next::Nothing;
        }
        finalizer = crate::plan::Finalizer::Stay;
        let finding = codes::PAUSED.found().with("step", unpausing(facts));
        notes.findings.push(finding.about(myself(facts)).build());
    }
    // The rules report their findings here, with the step that they stop. The checks can find the same
    // problem. For VMs that are not found, VDO keeps the findings of the checks because they know more.
    let known = facts.health.findings.iter().any(|f| f.code == codes::VM_NOT_FOUND.code);
    notes.findings.retain(|finding| !known || finding.code != codes::VM_NOT_FOUND.code);
    acknowledgement::mark(facts, &mut notes);
    let reported: BTreeSet<String> =
        notes.findings.iter().map(|finding| finding.code.clone()).collect();
    let news = facts.health.findings.iter().filter(|finding| !reported.contains(&finding.code));
    notes.findings.extend(news.cloned());
    gate::tie(&mut notes.findings);
    let order = |f: &Finding| (f.consequence_of.is_some(), std::cmp::Reverse(f.severity));
    notes.findings.sort_by(|a, b| order(a).cmp(&order(b)).then_with(|| a.code.cmp(&b.code)));
    let labels = non_vsphere_nodes::labels(facts, &drivers);
    Plan { drivers, findings: notes.findings, paused, finalizer, nodes: labels, wake: notes.wake }
}

/// The output of the rules in addition to the plan.
#[derive(Debug, Default)]
struct Notes {
    findings: Vec<Finding>,
    wake: Option<Timestamp>,
}

impl Notes {
    /// Decides again at this time at the latest.
    fn wake_at(&mut self, when: Timestamp) {
        self.wake = Some(self.wake.map_or(when, |other| other.min(when)));
    }
}

fn is_paused(facts: &Facts) -> bool {
    let annotated = facts.config.metadata.annotations.as_ref();
    let annotated = annotated.and_then(|all| all.get(names::PAUSED)).is_some_and(|v| v != "false");
    annotated || facts.config.spec.is_paused()
}

/// The command that ends the pause.
fn unpausing(facts: &Facts) -> String {
    let (namespace, name) = own_name(facts);
    if facts.config.spec.is_paused() {
        let patch = r#"'{"spec":{"paused":null}}'"#;
        return format!(
            "kubectl patch vdoconfig --namespace {namespace} {name} --type merge --patch {patch}"
        );
    }
    format!("kubectl annotate vdoconfig --namespace {namespace} {name} {}-", names::PAUSED)
}

/// Namespace and name of the VDOConfig.
fn own_name(facts: &Facts) -> (&str, &str) {
    let metadata = &facts.config.metadata;
    let name = metadata.name.as_deref().unwrap_or_default();
    (metadata.namespace.as_deref().unwrap_or_default(), name)
}

/// Puts a new password before all other changes of a driver. If VDO must change nothing at all, a finding
/// names the driver that waits.
fn new_passwords(facts: &Facts, driver: &mut DriverPlan, notes: &mut Notes) {
    let held = match () {
        () if is_paused(facts) => Some("VDO is paused and changes nothing"),
        () if facts.predecessor.runs.is_some() => {
            Some("the Go VDO runs and writes the same Secrets")
        }
        () => None,
    };
    if let Some(from) = credentials::reported_from(facts, driver.driver)
        && facts.now < from
    {
        notes.wake_at(from);
    }
    if let Some(again) = credentials::renewed_again_at(facts, driver.driver) {
        notes.wake_at(again);
    }
    match credentials::outdated(facts, driver) {
        Some((from, finding)) if from <= facts.now => notes.findings.push(finding),
        Some((from, _)) => notes.wake_at(from),
        None => {}
    }
    match (credentials::due(facts, driver), held) {
        (Ok(None), _) => {}
        (Ok(Some(due)), None) => due.first(facts, driver),
        (Ok(Some(due)), Some(why)) => notes.findings.extend(due.held(driver.driver, why)),
        (Err(finding), _) => notes.findings.push(*finding),
    }
}

/// The VDOConfig as the subject of a finding.
fn myself(facts: &Facts) -> Subject {
    let metadata = &facts.config.metadata;
    let name = metadata.name.as_deref().unwrap_or_default();
    Subject::kubernetes("VDOConfig", metadata.namespace.as_deref(), name)
}

/// VDO follows one VDOConfig. The finding names the others, which have no effect.
fn several_configs(facts: &Facts, notes: &mut Notes) {
    if facts.rivals.is_empty() {
        return;
    }
    let followed = facts.config.metadata.name.as_deref().unwrap_or_default();
    // A command that deletes names only objects that VDO does not follow.
    let (namespace, _) = own_name(facts);
    let here = facts.rivals.iter().filter(|rival| rival.namespace == namespace);
    let others: Vec<&str> =
        here.map(|rival| rival.name.as_str()).filter(|name| *name != followed).collect();
    let rivals = facts
        .rivals
        .iter()
        .map(|rival| Subject::kubernetes("VDOConfig", Some(&rival.namespace), &rival.name));
    notes.findings.push(
        codes::SEVERAL_CONFIGS
            .found()
            .with("count", (facts.rivals.len() + 1).to_string())
            .with("names", format!("{followed}, {}", others.join(", ")))
            .with("followed", followed)
            .with("namespace", &facts.operator_namespace)
            .with("others", others.join(" "))
            .about_all(rivals)
            .build(),
    );
}

/// A maintenance window that never opens.
fn unreadable_window(facts: &Facts, notes: &mut Notes) {
    let window = facts.config.spec.upgrades.as_ref().and_then(|upgrades| upgrades.window.as_ref());
    if let Some(problem) = window.and_then(window::problem) {
        let (namespace, config) = own_name(facts);
        let finding = codes::WINDOW_UNREADABLE.found().with("problem", problem);
        let finding = finding.with("namespace", namespace).with("config", config);
        notes.findings.push(finding.about(myself(facts)).build());
    }
}

/// VDO refused a catalog. The previous one stays in use.
fn catalog_trouble(facts: &Facts, notes: &mut Notes) {
    if let Some(trouble) = &facts.catalog_trouble {
        let (definition, values) = trouble.finding();
        let finding = definition.found().with("current", facts.catalog.serial.to_string());
        let finding = values.into_iter().fold(finding, |all, (name, value)| all.with(name, value));
        notes.findings.push(finding.build());
    }
    if let Some(expiry) = facts.catalog.expires.filter(|expiry| *expiry <= facts.now) {
        let finding = codes::CATALOG_EXPIRED.found().with("source", "its publisher");
        notes.findings.push(finding.with("expiry", expiry.to_string()).build());
    }
}

/// While the Go VDO runs, two operators would write the same objects.
fn predecessor(facts: &Facts, notes: &mut Notes) {
    let Some(id) = &facts.predecessor.runs else { return };
    notes.findings.push(
        codes::PREDECESSOR_RUNS
            .found()
            .with("name", &id.name)
            .with("namespace", &id.namespace)
            .about(Subject::kubernetes(&id.kind, Some(&id.namespace), &id.name))
            .build(),
    );
}

/// Workloads that look like a driver and have no effect.
fn lookalikes(facts: &Facts, notes: &mut Notes) {
    let Some(first) = facts.lookalikes.first() else { return };
    let subjects = facts
        .lookalikes
        .iter()
        .map(|id| Subject::kubernetes(&id.kind, Some(&id.namespace), &id.name));
    notes.findings.push(
        codes::LOOKALIKES
            .found()
            .with("first", first.to_string())
            .with("count", facts.lookalikes.len().to_string())
            .with("namespace", &first.namespace)
            .about_all(subjects)
            .build(),
    );
}

/// A cluster id in CNS that other clusters on the same vCenter can have too.
fn doubtful_cluster_id(facts: &Facts, notes: &mut Notes) {
    let in_use = facts.cluster_id.as_ref().ok().and_then(Option::as_ref).map(|id| &id.id);
    let id = facts.records.csi.cluster_id.as_ref().or(in_use);
    if let Some(id) = id.filter(|id| adoption::is_address(facts, id)) {
        let finding = codes::CLUSTER_ID_IS_ADDRESS.found().with("id", id);
        notes.findings.push(finding.about(myself(facts)).build());
    }
}

/// Objects that the API server rejects, no matter how often VDO retries.
fn refusals(facts: &Facts, notes: &mut Notes) {
    for (driver, refusal) in facts.refused.iter().filter(|(_, refusal)| refusal.firm) {
        notes.findings.push(
            codes::OBJECT_REFUSED
                .found()
                .with("driver", driver.to_string())
                .with("reason", &refusal.text)
                .with("step", refusal_step(refusal.cause))
                .about(myself(facts))
                .build(),
        );
    }
}

fn refusal_step(cause: RefusalCause) -> &'static str {
    match cause {
        RefusalCause::Quota => {
            "kubectl get resourcequota --all-namespaces   raise the quota that the response names"
        }
        RefusalCause::Admission => {
            "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations   let the webhook or policy \
             that the response names admit VDO's objects unchanged"
        }
        RefusalCause::PodSecurity => {
            "Let the namespace admit the driver's pods: its label pod-security.kubernetes.io/enforce must be privileged"
        }
        RefusalCause::TerminatingNamespace => {
            "Wait until the namespace is deleted; kubectl describe namespace shows the objects that it waits for"
        }
        RefusalCause::Permission => {
            "vdoctl deploy   grants the permissions of this release to VDO's service account"
        }
        RefusalCause::NotManaged => {
            "Follow the advice in the response; VDO does not overwrite the object"
        }
        RefusalCause::Undefined => {
            "Set spec.storageProvider.snapshots.installController: true, or install a snapshot controller with its \
             custom resource definitions; VDO retries automatically"
        }
        RefusalCause::Invalid => {
            "vdoctl plan --all   shows the releases that fit this cluster; the response names the invalid field"
        }
        RefusalCause::Other => "Fix the cause that the response names; VDO retries automatically",
    }
}

/// The mode of a driver if the spec does not set one: VDO only observes the drivers on a platform that owns
/// them.
fn mode(facts: &Facts, mode: Option<Mode>) -> Mode {
    mode.unwrap_or(if facts.cluster.owns_drivers { Mode::Observe } else { Mode::Managed })
}
