//! The status screen.

use anstyle::Style;
use api::{
    VDOConfigStatus, condition,
    vdo_config::{DriverStatus, Health, Mode, NodeState, Phase, PlanState, StepState},
    vsphere_cloud_config::Verdict,
};
use kube::ResourceExt as _;

use super::Overview;
use crate::{
    findings,
    text::{BAD, BUSY, CARE, DIM, GOOD, STRONG, Table, ago, columns, paint, wrap},
};

pub(super) fn render(overview: &Overview, wide: bool, width: usize) -> String {
    let status = overview.config.status.clone().unwrap_or_default();
    let mut text = headline(overview, &status, width);
    text.push_str(&remarks(overview, &status, width));
    text.push('\n');
    text.push_str(&drivers(overview, &status, width));
    text.push_str(&vcenters(overview, wide, width));
    if overview.health != Health::Healthy {
        text.push_str(&steps(&status, width));
    }
    if !status.findings.is_empty() {
        text.push('\n');
        text.push_str(&findings::render(&status.findings, width, overview.now));
    }
    text.push_str(&outlook(&status, width));
    if wide {
        text.push_str(&details(overview, &status, width));
    }
    text
}

/// `● Healthy    prod-1 · Kubernetes 1.36.4 · vCenter 8.0.3`
fn headline(overview: &Overview, status: &VDOConfigStatus, width: usize) -> String {
    let (mark, style) = match overview.health {
        Health::Healthy => ("●", GOOD),
        Health::Degraded => ("▲", BAD),
        Health::Progressing => ("◐", BUSY),
        Health::Unknown => ("○", CARE),
    };
    let word = paint(style, &format!("{mark} {:?}", overview.health));
    let gap = " ".repeat(13_usize.saturating_sub(columns(&word)).max(2));
    let versions = status.versions.clone().unwrap_or_default();
    let mut parts: Vec<String> = overview.cluster.iter().map(|name| paint(STRONG, name)).collect();
    let kubernetes = versions.kubernetes.as_deref().map(|v| v.trim_start_matches('v').to_owned());
    parts.extend(kubernetes.map(|version| format!("Kubernetes {version}")));
    let mut seen: Vec<String> =
        versions.vcenters.iter().filter_map(|v| v.version.clone()).collect();
    seen.sort();
    seen.dedup();
    if !seen.is_empty() {
        parts.push(format!("vCenter {}", seen.join(", ")));
    }
    let problems = findings::summary(&status.findings);
    parts.extend((!problems.is_empty()).then_some(problems));
    wrap(&format!("{word}{gap}"), &parts.join(" · "), width)
}

/// Reasons why the screen may be outdated or incomplete.
fn remarks(overview: &Overview, status: &VDOConfigStatus, width: usize) -> String {
    let mut remarks = Vec::new();
    if !overview.operator.is_installed() {
        remarks.push(
            "The operator is not installed. This is its last report. To install it: vdoctl deploy"
                .to_owned(),
        );
    } else if overview.operator.available == 0 {
        remarks.push("The operator does not run. This is its last report.".to_owned());
    }
    if overview.config.spec.is_paused() {
        remarks.push("Paused: VDO reports findings but changes nothing.".to_owned());
    }
    let is_stale = overview.operator.available == 0 && status.observed_generation.is_some();
    if matches!(overview.health, Health::Progressing | Health::Unknown) && !is_stale {
        remarks.push(sentence(overview));
    } else if overview.health == Health::Degraded && status.findings.is_empty() {
        remarks.extend(
            condition::get(&status.conditions, condition::DEGRADED).map(|c| c.message.clone()),
        );
    } else if overview.health == Health::Healthy {
        // The drivers are ready while a vCenter is unreachable for a moment. The message names what is impaired.
        let ready = condition::get(&status.conditions, condition::READY);
        remarks.extend(ready.filter(|c| c.reason != "Healthy").map(|c| c.message.clone()));
    }
    remarks.iter().map(|remark| wrap("  ", remark, width)).collect()
}

/// One sentence about what the operator waits for.
pub(super) fn sentence(overview: &Overview) -> String {
    let status = overview.config.status.clone().unwrap_or_default();
    if overview.operator.available == 0 {
        return "The operator does not run.".into();
    }
    if overview.health == Health::Unknown {
        return "The operator has not read the VDOConfig yet.".into();
    }
    let ready = condition::get(&status.conditions, condition::READY);
    let message = ready.map(|c| c.message.clone()).unwrap_or_default();
    if message.is_empty() { "VDO is installing the drivers.".into() } else { message }
}

fn drivers(overview: &Overview, status: &VDOConfigStatus, width: usize) -> String {
    let mut table = Table::new(if width < 72 {
        &["DRIVER", "STATE", "VERSION", "NODES"]
    } else {
        &["DRIVER", "STATE", "VERSION", "NODES", "SINCE"]
    });
    let parts = [
        ("Cloud provider", &status.cpi, condition::CLOUD_PROVIDER_READY),
        ("Storage", &status.csi, condition::STORAGE_READY),
    ];
    for (name, driver, kind) in parts {
        let Some(driver) = driver else { continue };
        let ready = condition::get(&status.conditions, kind);
        let (word, style) = state(driver, ready.map(|c| c.status == "True"));
        let mut row = vec![name.to_owned(), paint(style, word), version(driver), nodes(driver)];
        if width >= 72 {
            let since = ready.map(|c| ago(c.last_transition_time.0, overview.now));
            row.push(since.unwrap_or_default());
        }
        table.row(row);
    }
    if table.is_empty() { String::new() } else { table.render(width) }
}

/// `ready` is `None` for a driver without a condition.
fn state(driver: &DriverStatus, ready: Option<bool>) -> (&'static str, Style) {
    let is_removed = ready.is_none() && driver.version.is_none();
    let ready = ready.unwrap_or_default();
    match (driver.mode, driver.phase) {
        (Some(Mode::Removed), _) if is_removed => ("Removed", DIM),
        (Some(Mode::Observe), _) if ready => ("Observed", GOOD),
        (Some(Mode::Observe), _) => ("Observed", CARE),
        (Some(Mode::Removed), _) => ("Removing", CARE),
        (_, _) if ready => ("Ready", GOOD),
        (_, Some(Phase::Failed)) => ("Failed", BAD),
        (_, Some(Phase::Deploying)) => ("Deploying", BUSY),
        (_, Some(_)) => ("Starting", BUSY),
        (_, None) => ("Waiting", CARE),
    }
}

fn version(driver: &DriverStatus) -> String {
    let running = driver.version.as_deref().unwrap_or("-");
    match &driver.target {
        Some(target) if Some(target) != driver.version.as_ref() => format!("{running} → {target}"),
        _ => running.to_owned(),
    }
}

fn nodes(driver: &DriverStatus) -> String {
    match (driver.nodes_ready, driver.nodes) {
        (Some(ready), Some(all)) if all > 0 => format!("{ready}/{all}"),
        _ => "-".to_owned(),
    }
}

/// The vCenters, unless the headline is enough.
fn vcenters(overview: &Overview, wide: bool, width: usize) -> String {
    let verified = |vcenter: &api::VsphereCloudConfig| {
        vcenter.status.as_ref().and_then(|status| status.config) == Some(Verdict::Verified)
    };
    if !wide && overview.vcenters.len() == 1 && overview.vcenters.iter().all(verified) {
        return String::new();
    }
    let mut table = Table::new(&["VCENTER", "STATE", "VERSION", "ADDRESS"]);
    for vcenter in &overview.vcenters {
        let status = vcenter.status.clone().unwrap_or_default();
        let (word, style) = match status.config {
            Some(Verdict::Verified) => ("Verified", GOOD),
            Some(Verdict::Failed) => ("Failed", BAD),
            None => ("Unverified", CARE),
        };
        let version = status.about.and_then(|about| about.version);
        table.row([
            vcenter.name_any(),
            paint(style, word),
            version.unwrap_or_else(|| "-".into()),
            vcenter.spec.vc_ip.0.clone(),
        ]);
    }
    if table.is_empty() { String::new() } else { format!("\n{}", table.render(width)) }
}

/// The steps of an unfinished plan.
fn steps(status: &VDOConfigStatus, width: usize) -> String {
    let Some(plan) = &status.plan else { return String::new() };
    if plan.steps.iter().all(|step| step.state == StepState::Done) {
        return String::new();
    }
    let mut text = String::from("\n");
    for step in &plan.steps {
        let mark = match step.state {
            StepState::Done => paint(GOOD, "✔"),
            StepState::Running => paint(BUSY, "◐"),
            StepState::Failed => paint(BAD, "✖"),
            StepState::Pending => paint(DIM, "·"),
        };
        let message = step.message.as_ref().filter(|_| step.state != StepState::Done);
        let line = match message {
            Some(message) => format!("{}: {message}", step.title),
            None => step.title.clone(),
        };
        text.push_str(&wrap(&format!("  {mark} "), &line, width));
    }
    text
}

/// The next action of the user, if the plan waits for one.
fn outlook(status: &VDOConfigStatus, width: usize) -> String {
    let Some(plan) = &status.plan else { return String::new() };
    let waits = plan.state == Some(PlanState::Waiting);
    match (&plan.summary, waits) {
        (Some(summary), true) => {
            format!("\n{}", wrap("  ", &format!("Next: {summary}. vdoctl plan"), width))
        }
        _ => String::new(),
    }
}

fn details(overview: &Overview, status: &VDOConfigStatus, width: usize) -> String {
    let mut text = String::from("\n");
    let mut table = Table::new(&["CONDITION", "STATUS", "REASON", "MESSAGE"]);
    for condition in &status.conditions {
        table.row([&condition.type_, &condition.status, &condition.reason, &condition.message]);
    }
    text.push_str(&table.render(width));
    let unready =
        [&status.cpi, &status.csi].into_iter().flatten().flat_map(DriverStatus::node_states);
    let unready: Vec<&str> = unready
        .filter(|(_, state)| **state != NodeState::Ready)
        .map(|(name, _)| name.as_str())
        .collect();
    if !unready.is_empty() {
        text.push('\n');
        text.push_str(&wrap("  Not ready: ", &unready.join(", "), width));
    }
    text.push('\n');
    let mut table = Table::plain();
    let operator = &overview.operator;
    let image = operator.image.as_deref().unwrap_or("not installed");
    table.row([
        "Operator".to_owned(),
        format!("{image}, {} of {} pods", operator.available, operator.wanted),
    ]);
    table.row([
        "VDOConfig".to_owned(),
        format!(
            "{}/{}",
            overview.config.namespace().unwrap_or_default(),
            overview.config.name_any()
        ),
    ]);
    let serial = status.versions.as_ref().and_then(|versions| versions.catalog);
    table.row([
        "Catalog".to_owned(),
        serial.map_or_else(|| "-".into(), |serial| format!("serial {serial}")),
    ]);
    table.row(["Cluster id".to_owned(), status.cluster_id.clone().unwrap_or_else(|| "-".into())]);
    text.push_str(&table.render(width));
    text
}

#[cfg(test)]
mod tests {
    use api::{VDOConfig, vdo_config::VDOConfigSpec};
    use serde_json::json;

    use super::*;
    use crate::commands::status::Operator;

    fn screen(ready: &serde_json::Value) -> String {
        let mut config = VDOConfig::new("vdo", VDOConfigSpec::default());
        let condition = |kind: &str, status: &str| {
            let mut condition = ready.clone();
            condition["type"] = json!(kind);
            condition["status"] = json!(status);
            condition["lastTransitionTime"] = json!("2026-11-19T04:00:00Z");
            condition
        };
        let conditions =
            json!({"conditions": [condition("Ready", "True"), condition("Degraded", "False")]});
        config.status = serde_json::from_value(conditions).unwrap();
        let overview = Overview {
            health: Health::Healthy,
            cluster: None,
            operator: Operator { image: Some("vdo".into()), available: 1, wanted: 1 },
            config,
            vcenters: Vec::new(),
            now: jiff::Timestamp::now(),
        };
        render(&overview, false, 200)
    }

    #[test]
    fn a_healthy_screen_names_what_is_impaired_while_a_vcenter_is_unreachable() {
        let message =
            "VDO cannot verify the vCenter vc. While it is unreachable, volumes are not created";
        let text = screen(&json!({"reason": "VcenterNotVerified", "message": message}));
        assert!(text.contains("Healthy") && text.contains(message), "{text}");
        let text =
            screen(&json!({"reason": "Healthy", "message": "all drivers run as they should"}));
        assert!(!text.contains("as they should"), "a healthy screen is short: {text}");
    }
}
