//! The plan for one driver.

use api::{
    finding::{Finding, Subject, codes},
    vdo_config::{Mode, UpgradePolicy},
};
use catalog::{
    Action, Decision, Driver, Environment, Policy, Request, choose, version::VsphereVersion,
};
use semver::Version;

use super::{configuration::Configuration, mode, removal, steps};
use crate::{
    facts::{Facts, Machine, VcenterState, Workload},
    names,
    plan::{DriverPlan, Next, Step, StepState},
    record::{Record, Rejected},
};

/// How long a new release may take to become healthy before the one before it is put back.
const PATIENCE_SECONDS: i64 = 15 * 60;

/// Decides about one driver; none if nobody asked for it and nothing of it is ours.
pub(super) fn decide(
    facts: &Facts,
    driver: Driver,
    waits_for_nodes: bool,
    findings: &mut Vec<Finding>,
) -> Option<DriverPlan> {
    let wish = Wish::of(facts, driver);
    let record = record(facts, driver);
    if wish.is_none() && record.objects.is_empty() {
        return None;
    }
    let workload = workload(facts, driver);
    let installed = workload.and_then(|w| w.version.clone());
    let mut plan = DriverPlan {
        driver,
        mode: wish.as_ref().map_or(Mode::Removed, |wish| wish.mode),
        installed,
        target: None,
        decision: None,
        steps: Vec::new(),
        next: Next::Nothing,
    };
    match plan.mode {
        Mode::Observe => {}
        Mode::Removed => removal::decide(facts, record, &mut plan, findings),
        Mode::Managed if workload.is_some_and(|w| !w.ours) => {
            foreign(workload, &mut plan, findings);
        }
        Mode::Managed => {
            if let Some(wish) = &wish {
                manage(facts, wish, record, waits_for_nodes, &mut plan, findings);
            }
        }
    }
    Some(plan)
}

/// What the spec says about one driver, in one shape for both.
pub(super) struct Wish<'a> {
    pub(super) driver: Driver,
    pub(super) mode: Mode,
    pub(super) vcenters: Vec<&'a str>,
    implementation: api::vdo_config::Implementation,
    version: Option<&'a str>,
}

impl<'a> Wish<'a> {
    fn of(facts: &'a Facts, driver: Driver) -> Option<Self> {
        let spec = &facts.config.spec;
        match driver {
            Driver::Cpi => {
                let cpi = spec.cloud_provider.as_ref()?;
                let vcenters: Vec<&str> =
                    cpi.vsphere_cloud_configs.iter().map(|n| n.0.as_str()).collect();
                // The predecessor's way of saying "storage only".
                if vcenters.is_empty() {
                    return None;
                }
                Some(Self {
                    driver,
                    mode: mode(facts, cpi.mode),
                    vcenters,
                    implementation: cpi.implementation.unwrap_or_default(),
                    version: cpi.version.as_ref().map(|v| v.0.as_str()),
                })
            }
            Driver::Csi => {
                let csi = spec.storage_provider.as_ref()?;
                let one = csi.vsphere_cloud_config.iter();
                Some(Self {
                    driver,
                    mode: mode(facts, csi.mode),
                    vcenters: one.chain(&csi.vsphere_cloud_configs).map(|n| n.0.as_str()).collect(),
                    implementation: csi.implementation.unwrap_or_default(),
                    version: csi.version.as_ref().map(|v| v.0.as_str()),
                })
            }
        }
    }
}

pub(super) fn record(facts: &Facts, driver: Driver) -> &Record {
    match driver {
        Driver::Cpi => &facts.records.cpi,
        Driver::Csi => &facts.records.csi,
    }
}

/// The workload that says what version of a driver runs.
pub(super) fn workload(facts: &Facts, driver: Driver) -> Option<&Workload> {
    facts.workloads.get(match driver {
        Driver::Cpi => names::CPI_WORKLOAD,
        Driver::Csi => names::CSI_CONTROLLER,
    })
}

fn foreign(workload: Option<&Workload>, plan: &mut DriverPlan, findings: &mut Vec<Finding>) {
    let Some(workload) = workload else { return };
    let name = match plan.driver {
        Driver::Cpi => names::CPI_WORKLOAD,
        Driver::Csi => names::CSI_CONTROLLER,
    };
    findings.push(
        codes::FOREIGN_DRIVER
            .found()
            .with("driver", plan.driver.to_string())
            .with("namespace", &workload.namespace)
            .with("name", name)
            .about(Subject::kubernetes(&workload.kind, Some(&workload.namespace), name))
            .build(),
    );
    plan.next = Next::Blocked;
}

/// Brings a driver to where it should be, one thing at a time.
fn manage(
    facts: &Facts,
    wish: &Wish<'_>,
    record: &Record,
    waits_for_nodes: bool,
    plan: &mut DriverPlan,
    findings: &mut Vec<Finding>,
) {
    if !vcenters_are_verified(facts, wish, plan, findings) {
        return;
    }
    let decision = decision(facts, wish, record);
    let target = next_release(facts, &decision, record, findings);
    plan.target = decision.action.version().map(ToString::to_string);
    plan.decision = Some(decision);
    let Some(target) = target else {
        findings.push(nothing_fits(facts, plan));
        plan.next = Next::Blocked;
        return;
    };
    let configuration = match Configuration::make(facts, wish, record, &target) {
        Ok(configuration) => configuration,
        Err(finding) => {
            findings.push(*finding);
            plan.next = Next::Blocked;
            return;
        }
    };
    if wish.driver == Driver::Cpi && record.version.is_some() {
        if let Some(finding) = machines_missing(facts) {
            let changes = configuration.differs_from(facts);
            findings.push(finding);
            if changes {
                plan.steps.push(waiting("Find the virtual machine of every node"));
                plan.next = Next::Blocked;
                return;
            }
        }
    } else if wish.driver == Driver::Cpi {
        findings.extend(machines_missing(facts));
    }
    if waits_for_nodes && record.version.is_none() {
        plan.steps.push(waiting("Wait for the cloud controller to initialise a node"));
        plan.next = Next::Wait;
        return;
    }
    if let Some(next) = recorded(facts, record, &target, &configuration) {
        plan.steps = steps::of(facts, &configuration, workload(facts, wish.driver)).0;
        plan.next = Next::Record(Box::new(next));
        return;
    }
    let (all, next) = steps::of(facts, &configuration, workload(facts, wish.driver));
    plan.steps = all;
    plan.next = next;
    if plan.next == Next::Nothing {
        plan.next = finish(facts, record, &configuration);
    }
}

fn waiting(title: &str) -> Step {
    Step { title: title.into(), state: StepState::Running, message: None }
}

/// Every vCenter a driver will talk to must be verified first: credentials are proven before a
/// driver sees them.
fn vcenters_are_verified(
    facts: &Facts,
    wish: &Wish<'_>,
    plan: &mut DriverPlan,
    findings: &mut Vec<Finding>,
) -> bool {
    let namespace = facts.config.metadata.namespace.as_deref().unwrap_or_default();
    let mut waits = Vec::new();
    for name in &wish.vcenters {
        match facts.vcenters.get(*name).map(|v| &v.state) {
            Some(VcenterState::Verified { .. }) => {}
            Some(_) => waits.push((*name).to_owned()),
            None => {
                let field = match wish.driver {
                    Driver::Cpi => "spec.cloudProvider.vsphereCloudConfigs",
                    Driver::Csi => "spec.storageProvider.vsphereCloudConfig",
                };
                findings.push(
                    codes::CONFIG_MISSING
                        .found()
                        .with("field", field)
                        .with("config", facts.config.metadata.name.as_deref().unwrap_or_default())
                        .with("missing", (*name).to_owned())
                        .with("namespace", namespace)
                        .about(super::myself(facts))
                        .build(),
                );
                waits.push((*name).to_owned());
            }
        }
    }
    if waits.is_empty() {
        return true;
    }
    plan.steps.push(Step {
        title: "Verify the vCenters".into(),
        state: StepState::Running,
        message: Some(format!("waiting for {}", waits.join(", "))),
    });
    plan.next = Next::Blocked;
    false
}

fn decision(facts: &Facts, wish: &Wish<'_>, record: &Record) -> Decision {
    let vcenters = wish.vcenters.iter().filter_map(|name| {
        let vcenter = facts.vcenters.get(*name)?;
        let VcenterState::Verified { version, api_version, build, .. } = &vcenter.state else {
            return None;
        };
        let version = VsphereVersion::from_about(version, api_version, build).ok()?;
        Some(catalog::Vcenter {
            name: vcenter.spec.vc_ip.0.as_str().into(),
            version,
            oldest_host: None,
        })
    });
    let seen = Environment {
        kubernetes: facts.cluster.version,
        vcenters: vcenters.collect(),
        distribution: facts.cluster.platform.name().into(),
        windows_nodes: facts.cluster.nodes.iter().any(|node| node.windows),
        topology: super::configuration::has_topology(facts),
        rewrite: super::configuration::rewrite(facts),
        today: Some(facts.now.to_zoned(jiff::tz::TimeZone::UTC).date()),
    };
    let upgrades = facts.config.spec.upgrades.as_ref().and_then(|u| u.policy);
    let pinned = wish.version.and_then(|text| Version::parse(text.trim_start_matches('v')).ok());
    let policy = match (pinned, upgrades) {
        (Some(version), _) => Policy::Pinned { version, downgrade: false },
        (None, Some(UpgradePolicy::Latest)) => Policy::Latest,
        (None, Some(UpgradePolicy::Manual | UpgradePolicy::Pinned)) => Policy::Manual,
        (None, Some(UpgradePolicy::Stable) | None) => Policy::Stable,
    };
    let request = Request {
        implementation: match wish.implementation {
            api::vdo_config::Implementation::Upstream => catalog::Implementation::Upstream,
            api::vdo_config::Implementation::Rust => catalog::Implementation::Rust,
        },
        policy,
        installed: record.version.as_deref().and_then(|v| Version::parse(v).ok()),
    };
    choose(&facts.catalog, &seen, wish.driver, &request)
}

/// The release to work on now: the next hop of an upgrade, or the one before if the last hop did
/// not become healthy.
fn next_release(
    facts: &Facts,
    decision: &Decision,
    record: &Record,
    findings: &mut Vec<Finding>,
) -> Option<Version> {
    let generation = facts.config.metadata.generation.unwrap_or(0);
    let running = record.version.as_deref().and_then(|v| Version::parse(v).ok());
    let overdue = record.previous.is_some()
        && !record.healthy
        && record
            .since
            .is_some_and(|since| facts.now.as_second() - since.as_second() > PATIENCE_SECONDS);
    if overdue {
        return record.previous.as_deref().and_then(|v| Version::parse(v).ok());
    }
    // A hop is finished before the next one begins.
    if let Some(running) = &running
        && !record.healthy
    {
        return Some(running.clone());
    }
    let wanted = match &decision.action {
        Action::Install(version) | Action::Keep(version) => Some(version.clone()),
        Action::Change(path) => path.hops.first().map(|hop| hop.to.clone()),
        Action::Nothing => running.clone(),
    };
    match (&record.rejected, &wanted) {
        (Some(Rejected { version, why, generation: then }), Some(wanted))
            if *version == wanted.to_string() && *then == generation =>
        {
            findings.push(
                codes::UPGRADE_ROLLED_BACK
                    .found()
                    .with("driver", decision.driver.to_string())
                    .with("version", version)
                    .with("running", record.version.as_deref().unwrap_or("nothing"))
                    .with("reason", why)
                    .about(super::myself(facts))
                    .build(),
            );
            running
        }
        _ => wanted,
    }
}

fn nothing_fits(facts: &Facts, plan: &DriverPlan) -> Finding {
    let reasons = plan.decision.iter().flat_map(|d| &d.others).take(3);
    let reasons: Vec<String> =
        reasons.map(|(version, reason)| format!("{version}: {reason}")).collect();
    codes::NOTHING_FITS
        .found()
        .with("driver", plan.driver.to_string())
        .with("kubernetes", &facts.cluster.version_text)
        .with("reasons", reasons.join("; "))
        .about(super::myself(facts))
        .build()
}

/// Nodes whose virtual machine is in none of the configured vCenters.
fn machines_missing(facts: &Facts) -> Option<Finding> {
    let missing: Vec<&str> = facts
        .cluster
        .nodes
        .iter()
        .filter(|node| !node.is_foreign() && node.machine == Machine::Missing)
        .map(|node| node.name.as_str())
        .collect();
    let subjects = missing.iter().map(|name| Subject::kubernetes("Node", None, name));
    (!missing.is_empty()).then(|| {
        codes::MACHINE_MISSING
            .found()
            .with("count", missing.len().to_string())
            .with("first", missing[0])
            .about_all(subjects)
            .build()
    })
}

/// The record that must be written before anything of this target is applied; none if it stands.
fn recorded(
    facts: &Facts,
    record: &Record,
    target: &Version,
    configuration: &Configuration,
) -> Option<Record> {
    let target = target.to_string();
    let mut next = record.clone();
    next.objects.extend(configuration.identities());
    next.cluster_id = record.cluster_id.clone().or_else(|| configuration.cluster_id.clone());
    if record.version.as_deref() != Some(&target) {
        let going_back = record.previous.as_deref() == Some(&target);
        if going_back {
            let why = workload(facts, configuration.driver)
                .and_then(|w| w.trouble.clone())
                .unwrap_or_else(|| "it did not become healthy in time".into());
            next.rejected = record.version.clone().map(|version| Rejected {
                version,
                why,
                generation: facts.config.metadata.generation.unwrap_or(0),
            });
        }
        next.previous = if going_back { None } else { record.version.clone() };
        next.version = Some(target);
        next.since = Some(facts.now);
        next.healthy = false;
    }
    (next != *record).then_some(next)
}

/// What is left once everything is applied and healthy: say so in the record, then prune what the
/// new release does not have.
fn finish(facts: &Facts, record: &Record, configuration: &Configuration) -> Next {
    if !record.healthy {
        let rejected = record.rejected.clone();
        let healthy = Record { healthy: true, previous: None, rejected, ..record.clone() };
        return Next::Record(Box::new(healthy));
    }
    let wanted: std::collections::BTreeSet<_> = configuration.identities().collect();
    let left: Vec<_> = record.objects.difference(&wanted).cloned().collect();
    let (there, gone): (Vec<_>, Vec<_>) =
        left.into_iter().partition(|id| facts.objects.contains_key(id));
    if !there.is_empty() {
        return Next::Delete(there);
    }
    if gone.is_empty() {
        return Next::Nothing;
    }
    let objects = record.objects.intersection(&wanted).cloned().collect();
    Next::Record(Box::new(Record { objects, ..record.clone() }))
}
