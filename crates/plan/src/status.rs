//! The status of the VDOConfig.

mod impairment;

use std::collections::BTreeMap;

use api::{
    VDOConfigStatus,
    condition::{self, Answer},
    finding::Severity,
    vdo_config::{
        DriverStatus, HealthSummary, Mode, NodeState, Phase, Plan as PlanStatus, PlanState,
        PlanStep, RepairSummary, StepState, VcenterVersion, Versions,
    },
};
use catalog::{Driver, Implementation};
use health::{
    facts::{Known, NetworkPlugin},
    repair::Proposal,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::{
    decide::rollback,
    facts::{DriverWorkload, Facts, VcenterState, WorkloadRole, open},
    names,
    object_id::ObjectId,
    plan::{self, DriverPlan, Next, Plan, PlannedStep},
};

/// The maximum number of findings in the status; the most severe come first.
const SHOWN: usize = 120;
/// The status lists the nodes only up to this cluster size; larger clusters get only numbers.
const NODES_LISTED: usize = 500;
/// The maximum number of nodes that a condition names.
const NODES_NAMED: usize = 10;
/// The maximum number of kinds of repairs in the status.
const REPAIRS_SHOWN: usize = 16;

/// The status for these facts and this plan.
pub fn status(facts: &Facts, plan: &Plan) -> VDOConfigStatus {
    let before = facts.config.status.clone().unwrap_or_default();
    let mut status = VDOConfigStatus {
        conditions: before.conditions.clone(),
        observed_generation: facts.config.metadata.generation,
        cpi: driver_of(plan, Driver::Cpi).map(|driver| driver_status(facts, driver)),
        csi: driver_of(plan, Driver::Csi).map(|driver| driver_status(facts, driver)),
        versions: Some(versions(facts)),
        findings: plan.findings.iter().take(SHOWN).cloned().collect(),
        health: Some(summary(&before, facts, plan)),
        plan: Some(plan_status(&before, facts, plan)),
        cluster_id: facts.records.csi.cluster_id.clone().or_else(|| before.cluster_id.clone()),
    };
    // A driver without a section in the spec has no condition, and neither has a removed one.
    status.conditions.retain(|condition| match condition.type_.as_str() {
        condition::CLOUD_PROVIDER_READY => {
            driver_of(plan, Driver::Cpi).is_some_and(|driver| !is_removed(driver))
        }
        condition::STORAGE_READY => {
            driver_of(plan, Driver::Csi).is_some_and(|driver| !is_removed(driver))
        }
        _ => true,
    });
    health::date(&mut status.findings, &before.findings, facts.now);
    conditions(&mut status, facts, plan);
    status
}

fn driver_of(plan: &Plan, driver: Driver) -> Option<&DriverPlan> {
    plan.drivers.iter().find(|d| d.driver == driver)
}

fn is_done(driver: &DriverPlan) -> bool {
    driver.next == Next::Nothing
}

/// The current step. The first rollout of an adopted driver is not one: it waits for an admin, and the driver runs.
fn at(driver: &DriverPlan) -> Option<&PlannedStep> {
    driver.at().filter(|_| !(driver.is_untouched() && is_done(driver)))
}

/// Whether the removal of a driver is complete.
fn is_removed(driver: &DriverPlan) -> bool {
    driver.mode == Mode::Removed && is_done(driver) && driver.installed.is_none()
}

/// Whether VDO leaves a driver as it is because of a problem, and the driver runs.
fn runs_untouched(facts: &Facts, driver: &DriverPlan) -> bool {
    driver.next == Next::Blocked
        && facts.record(driver.driver).healthy
        && driver_is_healthy(facts, driver)
}

/// Whether the driver runs. A driver that VDO only proposes to adopt or to replace counts too, unless VDO has
/// installed one next to it.
fn runs(facts: &Facts, driver: &DriverPlan) -> bool {
    let of = |role: &WorkloadRole| facts.workloads_of(driver.driver, *role);
    let roles = roles(driver.driver);
    if roles.iter().flat_map(of).any(|(id, _)| facts.is_ours(id)) {
        return driver_is_healthy(facts, driver);
    }
    let is_healthy = |role| {
        let workloads = of(role);
        !workloads.is_empty() && workloads.iter().all(|(_, workload)| workload.is_healthy())
    };
    let nodes = node_states(facts, driver.driver);
    roles.iter().all(is_healthy) && nodes.values().all(|state| *state == NodeState::Ready)
}

fn driver_status(facts: &Facts, driver: &DriverPlan) -> DriverStatus {
    let runs = runs(facts, driver);
    let phase = match &driver.next {
        Next::Blocked if !runs => Phase::Failed,
        Next::Nothing | Next::Blocked if driver.driver == Driver::Cpi => Phase::Configured,
        Next::Nothing | Next::Blocked | Next::RenewFiles { .. } => Phase::Deployed,
        Next::Record(_) | Next::Apply(_) | Next::Restart { .. } | Next::Delete(_) => {
            Phase::Deploying
        }
        Next::Wait => Phase::Configuring,
    };
    let message = at(driver).map(|step| match &step.message {
        Some(message) => format!("{}: {message}", step.title),
        None => step.title.clone(),
    });
    let message = message.or_else(|| driver.held.clone());
    let nodes = node_states(facts, driver.driver);
    let (served, ready) = counts(facts, driver, &nodes);
    DriverStatus {
        phase: (driver.mode == Mode::Managed).then_some(phase),
        status_msg: message,
        nodes: served,
        nodes_ready: ready,
        node_status: if nodes.len() <= NODES_LISTED { nodes } else { BTreeMap::new() },
        version: driver.installed.clone(),
        target: driver.target.clone().filter(|_| !is_there(driver)),
        implementation: driver.implementation.and_then(shown),
        mode: Some(driver.mode),
        ..DriverStatus::default()
    }
}

/// The state of each node for the cloud provider. The storage driver is counted by its DaemonSet instead.
fn node_states(facts: &Facts, driver: Driver) -> BTreeMap<String, NodeState> {
    if driver == Driver::Csi {
        return BTreeMap::new();
    }
    let nodes = facts.cluster.nodes().filter(|node| !node.is_foreign());
    nodes
        .map(|node| {
            let ready = node.is_initialized() && node.provider_id().starts_with("vsphere://");
            (node.name.clone(), if ready { NodeState::Ready } else { NodeState::Pending })
        })
        .collect()
}

/// The number of nodes that a driver should serve, and the number that it serves.
fn counts(
    facts: &Facts,
    driver: &DriverPlan,
    nodes: &BTreeMap<String, NodeState>,
) -> (Option<i32>, Option<i32>) {
    if driver.driver == Driver::Csi {
        let sets = judged(facts, driver, WorkloadRole::Node);
        let (wanted, available) = sets.fold((0_i32, 0_i32), |(wanted, available), (_, set)| {
            (wanted.saturating_add(set.wanted), available.saturating_add(set.available))
        });
        return (Some(wanted), Some(available));
    }
    let ready = nodes.values().filter(|state| **state == NodeState::Ready).count();
    (i32::try_from(nodes.len()).ok(), i32::try_from(ready).ok())
}

/// The length limit of the list of vCenters in the schema.
const MAX_VCENTERS: usize = 32;

fn versions(facts: &Facts) -> Versions {
    let vcenters = facts.vcenters.iter().map(|(name, vcenter)| match &vcenter.state {
        VcenterState::Verified { version, build, .. } => VcenterVersion {
            name: name.clone(),
            version: Some(version.clone()),
            build: Some(build.clone()),
        },
        _ => VcenterVersion { name: name.clone(), version: None, build: None },
    });
    Versions {
        operator: Some(env!("CARGO_PKG_VERSION").into()),
        kubernetes: Some(facts.cluster.version_text.clone()),
        distribution: Some(facts.cluster.platform.name().into()),
        vcenters: vcenters.take(MAX_VCENTERS).collect(),
        catalog: i64::try_from(facts.catalog.serial).ok(),
    }
}

fn plan_status(before: &VDOConfigStatus, facts: &Facts, plan: &Plan) -> PlanStatus {
    let old = before.plan.iter().flat_map(|plan| &plan.steps);
    let old: BTreeMap<&str, &PlanStep> = old.map(|step| (step.title.as_str(), step)).collect();
    let steps = plan.drivers.iter().flat_map(|driver| {
        driver.steps.iter().map(|step| {
            let title = driver.title_of(step);
            let state = match step.state {
                plan::StepState::Pending => StepState::Pending,
                plan::StepState::Running => StepState::Running,
                plan::StepState::Done => StepState::Done,
                plan::StepState::Failed => StepState::Failed,
            };
            let since = old.get(title.as_str()).filter(|old| old.state == state);
            let since = since.and_then(|old| old.since.clone()).unwrap_or(Time(facts.now));
            PlanStep { title, state, message: step.message.clone(), since: Some(since) }
        })
    });
    let steps = steps.collect();
    let blocked = plan.drivers.iter().any(|d| d.next == Next::Blocked);
    let state = match () {
        () if plan.paused => PlanState::Waiting,
        () if blocked => PlanState::Blocked,
        () if [&facts.records.cpi, &facts.records.csi].into_iter().any(rollback::is_under_way) => {
            PlanState::RollingBack
        }
        () if plan.drivers.iter().any(|d| d.held.is_some()) => PlanState::Waiting,
        () if plan.drivers.iter().all(is_done) => PlanState::Done,
        () => PlanState::Running,
    };
    let summary =
        plan.drivers.iter().filter_map(|driver| match (&driver.installed, &driver.target) {
            (None, Some(target)) => Some(format!("install {} {target}", driver.driver)),
            (Some(from), Some(to)) if !is_there(driver) => {
                let wait = driver.held.iter().map(|why| format!(" ({why})")).collect::<String>();
                let (by, of) = implementations(driver);
                Some(format!("{} {from}{by} to {to}{of}{wait}", driver.driver))
            }
            (Some(_), Some(_)) if driver.is_untouched() => {
                driver.held.as_ref().map(|why| format!("{}: {why}", driver.driver))
            }
            _ => None,
        });
    let summary: Vec<String> = summary.collect();
    PlanStatus {
        summary: (!summary.is_empty()).then(|| summary.join(", ")),
        state: Some(state),
        steps,
    }
}

/// Whether the target release already runs.
fn is_there(driver: &DriverPlan) -> bool {
    let same_implementation = implementations(driver) == ("", "");
    driver.installed == driver.target && same_implementation
}

/// The implementations of the running and the target release, if they differ.
fn implementations(driver: &DriverPlan) -> (&'static str, &'static str) {
    let name = |implementation| match implementation {
        Implementation::Upstream => " (Upstream)",
        Implementation::Rust => " (Rust)",
        Implementation::Unknown => " (unknown)",
    };
    match (driver.implementation, driver.target_implementation) {
        (Some(running), Some(target)) if running != target => (name(running), name(target)),
        _ => ("", ""),
    }
}

/// The implementation as the API names it.
fn shown(implementation: Implementation) -> Option<api::vdo_config::Implementation> {
    match implementation {
        Implementation::Upstream => Some(api::vdo_config::Implementation::Upstream),
        Implementation::Rust => Some(api::vdo_config::Implementation::Rust),
        Implementation::Unknown => None,
    }
}

fn summary(before: &VDOConfigStatus, facts: &Facts, plan: &Plan) -> HealthSummary {
    let number = |severity| i32::try_from(open(&plan.findings, severity)).unwrap_or(i32::MAX);
    let accepted = plan.findings.iter().filter(|finding| finding.acknowledged.is_some()).count();
    let health = &facts.health;
    let before = before.health.as_ref();
    HealthSummary {
        blockers: number(Severity::Blocker),
        errors: number(Severity::Error),
        warnings: number(Severity::Warning),
        acknowledged: i32::try_from(accepted).unwrap_or(i32::MAX),
        audited: health.audited.map(Time).or_else(|| before.and_then(|b| b.audited.clone())),
        checked: health.checked.clone().or_else(|| before.and_then(|b| b.checked.clone())),
        list: health.paged.as_ref().map(|_| names::FINDINGS.to_owned()),
        repairs: repairs(&health.repairs),
    }
}

/// The number of repairs by code. The proposals are sorted by code.
fn repairs(proposals: &[Proposal]) -> Vec<RepairSummary> {
    let kinds = proposals.chunk_by(|a, b| a.code == b.code).take(REPAIRS_SHOWN);
    let summary = |kind: &[Proposal]| {
        let first = kind.first()?;
        Some(RepairSummary {
            code: first.code.clone(),
            does: first.says.clone(),
            count: i32::try_from(kind.len()).unwrap_or(i32::MAX),
            automatic: first.automatic,
            then: first.then.clone(),
            refused: first.refused.clone(),
        })
    };
    kinds.filter_map(summary).collect()
}

fn conditions(status: &mut VDOConfigStatus, facts: &Facts, plan: &Plan) {
    let generation = facts.config.metadata.generation;
    let now = Time(facts.now);
    let mut set = |kind: &str, answer: Answer, reason: &str, message: String| {
        condition::set(&mut status.conditions, kind, answer, reason, message, generation, &now);
    };
    let worst = plan
        .findings
        .iter()
        .find(|finding| finding.severity >= Severity::Error && finding.acknowledged.is_none());
    let waits = plan.drivers.iter().filter(|d| !may_pass(facts, d)).find_map(at);
    let done = plan.drivers.iter().all(|driver| is_ready(facts, driver));
    let (reason, message) = match (worst, waits) {
        (Some(finding), _) => ("Finding", format!("{}: {}", finding.code, finding.title)),
        (None, Some(step)) => {
            ("Progressing", step.message.clone().unwrap_or_else(|| step.title.clone()))
        }
        (None, None) if done => match impairment::while_unreachable(facts) {
            Some(message) => (impairment::REASON, message),
            None => ("Healthy", "all drivers run as they should".to_owned()),
        },
        (None, None) => ("Progressing", "the drivers are starting".to_owned()),
    };
    set(condition::READY, (done && worst.is_none()).into(), reason, message.clone());
    let uid = facts.config.metadata.uid.as_deref().unwrap_or_default();
    let followed =
        format!("ConfigMap {}/{} records uid {uid}", facts.operator_namespace, names::FOLLOWED);
    set(condition::FOLLOWED, Answer::True, "Recorded", followed);
    set(condition::DEGRADED, worst.is_some().into(), reason, message.clone());
    let rests = |d: &DriverPlan| is_done(d) || d.next == Next::Blocked || may_pass(facts, d);
    let progressing = !plan.drivers.iter().all(rests);
    set(condition::PROGRESSING, progressing.into(), reason, message.clone());
    // A pause does not complete an upgrade.
    let under_way = |d: &DriverPlan| {
        let record = facts.record(d.driver);
        d.mode == Mode::Managed && record.version.is_some() && !record.healthy
    };
    let upgradeable = !progressing && !plan.drivers.iter().any(under_way);
    set(condition::UPGRADEABLE, upgradeable.into(), reason, message);
    for driver in plan.drivers.iter().filter(|driver| !is_removed(driver)) {
        let ready = is_done(driver) && driver_is_healthy(facts, driver)
            || runs_untouched(facts, driver)
            || may_pass(facts, driver);
        let message = at(driver).and_then(|step| step.message.clone()).unwrap_or_default();
        let kind = condition_of(driver.driver);
        set(kind, ready.into(), if ready { "Healthy" } else { "Progressing" }, message);
    }
    let unverified = facts
        .referenced_vcenters()
        .filter(|(_, v)| !matches!(v.state, VcenterState::Verified { .. }));
    let unverified: Vec<&str> = unverified.map(|(name, _)| name.as_str()).collect();
    let (reason, message) = match unverified.as_slice() {
        [] => ("Verified", String::new()),
        names => ("NotVerified", format!("VDO has not verified {}", names.join(", "))),
    };
    set(condition::VCENTER_READY, unverified.is_empty().into(), reason, message);
    let exists = |name: &str| facts.cluster.nodes().any(|node| node.name == name);
    let (answer, reason, message) = network(&facts.health.network, exists);
    set(condition::NETWORK_READY, answer, reason, message);
}

/// Whether every node has the network plugin.
fn network(
    network: &Known<NetworkPlugin>,
    exists: impl Fn(&str) -> bool,
) -> (Answer, &'static str, String) {
    let NetworkPlugin { plugin, missing_on } = match network {
        Known::Known(network) => network,
        Known::Unknown { reason } => return (Answer::Unknown, "NotChecked", reason.clone()),
    };
    let missing = missing_on.iter().map(String::as_str).filter(|name| exists(name));
    let missing: Vec<&str> = missing.collect();
    if !missing.is_empty() {
        let named = missing.iter().take(NODES_NAMED).copied().collect::<Vec<_>>().join(", ");
        let more = match missing.len().saturating_sub(NODES_NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let message = format!("{plugin} does not run on {named}{more}");
        return (Answer::False, "MissingOnNodes", message);
    }
    if plugin == NetworkPlugin::UNRECOGNIZED {
        let message = "VDO found no network plugin that it recognizes";
        return (Answer::Unknown, "NotFound", message.to_owned());
    }
    (Answer::True, "RunsOnAllNodes", format!("{plugin} runs on every node"))
}

fn condition_of(driver: Driver) -> &'static str {
    match driver {
        Driver::Cpi => condition::CLOUD_PROVIDER_READY,
        Driver::Csi => condition::STORAGE_READY,
    }
}

/// Whether no step is left, and the driver runs unless its mode is Removed.
fn is_ready(facts: &Facts, driver: &DriverPlan) -> bool {
    let runs = driver.mode == Mode::Removed || driver_is_healthy(facts, driver);
    is_done(driver) && runs || may_pass(facts, driver)
}

/// One of this many node pods can be unavailable for a while without a change of the conditions.
const FEW: i32 = 10;

/// Whether a driver that was ready lacks only something that can pass by itself.
fn may_pass(facts: &Facts, driver: &DriverPlan) -> bool {
    driver.mode == Mode::Managed
        && facts.record(driver.driver).healthy
        && was_ready(facts, driver)
        && (lacks_few_pods(facts, driver) || waits_for_nodes(facts, driver))
}

fn was_ready(facts: &Facts, driver: &DriverPlan) -> bool {
    let before = facts.config.status.as_ref();
    let conditions = before.map(|status| status.conditions.as_slice()).unwrap_or_default();
    let kind = condition_of(driver.driver);
    let same = |c: &&Condition| c.observed_generation == facts.config.metadata.generation;
    conditions.iter().filter(same).any(|c| c.type_ == kind && c.status == "True")
}

/// Whether only a few node pods are unavailable, and not for long: they start again.
fn lacks_few_pods(facts: &Facts, driver: &DriverPlan) -> bool {
    let since = driver.since(facts.config.status.as_ref()).unwrap_or(facts.now);
    let few = |(_, set): (_, &DriverWorkload)| {
        set.current && set.available > 0 && set.lacks() <= (set.wanted / FEW).max(1)
    };
    driver.driver == Driver::Csi
        && driver.next == Next::Wait
        && facts.now.duration_since(since) < facts.grace()
        && judged(facts, driver, WorkloadRole::Controller)
            .all(|(_, workload)| workload.is_healthy())
        && judged(facts, driver, WorkloadRole::Node).all(few)
}

/// Whether the driver waits only for new nodes to be initialised. A node that waits too long is a finding.
fn waits_for_nodes(facts: &Facts, driver: &DriverPlan) -> bool {
    driver.driver == Driver::Cpi && is_done(driver) && workloads_are_healthy(facts, driver)
}

/// Whether a driver is healthy. In mode Managed only VDO's own driver counts; in mode Observe any driver
/// counts.
pub fn driver_is_healthy(facts: &Facts, driver: &DriverPlan) -> bool {
    let nodes = node_states(facts, driver.driver);
    workloads_are_healthy(facts, driver) && nodes.values().all(|state| *state == NodeState::Ready)
}

/// The roles without which a driver does not work.
fn roles(driver: Driver) -> &'static [WorkloadRole] {
    match driver {
        Driver::Cpi => &[WorkloadRole::Controller],
        Driver::Csi => &[WorkloadRole::Controller, WorkloadRole::Node],
    }
}

fn workloads_are_healthy(facts: &Facts, driver: &DriverPlan) -> bool {
    roles(driver.driver).iter().all(|role| {
        let mut judged = judged(facts, driver, *role).peekable();
        judged.peek().is_some() && judged.all(|(_, workload)| workload.is_healthy())
    })
}

/// The workloads that count: those of VDO, or all of them in mode Observe.
fn judged<'a>(
    facts: &'a Facts,
    driver: &DriverPlan,
    role: WorkloadRole,
) -> impl Iterator<Item = (&'a ObjectId, &'a DriverWorkload)> {
    let observed = driver.mode == Mode::Observe;
    let all = facts.workloads_of(driver.driver, role).into_iter();
    all.filter(move |(id, _)| observed || facts.is_ours(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged_network(plugin: &str, missing_on: &[&str]) -> (Answer, &'static str, String) {
        let missing_on = missing_on.iter().map(|name| (*name).to_owned()).collect();
        network(&Known::Known(NetworkPlugin { plugin: plugin.into(), missing_on }), |name| {
            name != "gone"
        })
    }

    #[test]
    fn network_ready_names_the_nodes_without_the_plugin() {
        let (answer, reason, message) = judged_network("Antrea", &["gone", "worker-1", "worker-2"]);
        assert_eq!((answer, reason), (Answer::False, "MissingOnNodes"));
        assert_eq!(message, "Antrea does not run on worker-1, worker-2");
        let many: Vec<String> = (0..12).map(|number| format!("n{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(judged_network("Antrea", &many).2.ends_with("n9 and 2 more"));
    }

    #[test]
    fn network_ready_is_true_only_for_a_plugin_that_vdo_recognizes() {
        assert_eq!(judged_network("Antrea", &["gone"]).0, Answer::True);
        let unrecognized = judged_network(NetworkPlugin::UNRECOGNIZED, &[]);
        assert_eq!((unrecognized.0, unrecognized.1), (Answer::Unknown, "NotFound"));
        let unknown = network(&Known::unknown("VDO cannot list DaemonSets"), |_| true);
        assert_eq!(unknown.2, "VDO cannot list DaemonSets");
        assert_eq!(unknown.0, Answer::Unknown);
    }
}
