//! Alerts for Prometheus: `deploy/alerts.yaml`. One for each kind of finding that is more than good to
//! know, with its words from the catalogue, and a few for the operator itself.

use api::finding::{CATALOGUE, Definition, Severity, codes};
use catalog::manifest::{Object, YamlError, to_yaml};
use serde_json::{Value, json};

/// `deploy/alerts.yaml`.
///
/// # Errors
/// None in practice: the rules are plain data.
pub fn manifest() -> Result<String, YamlError> {
    to_yaml(&[rule()])
}

pub(crate) fn rule() -> Object {
    Object(json!({
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {
            "name": "vdo",
            "namespace": api::NAMESPACE,
            "labels": {"app.kubernetes.io/name": "vdo"},
        },
        "spec": {"groups": [
            {"name": "vdo", "rules": own()},
            {"name": "vdo-findings", "rules": findings()},
        ]},
    }))
}

/// What the alerts ask for.
#[cfg(test)]
pub(crate) fn expressions() -> impl Iterator<Item = String> {
    let all = own().into_iter().chain(findings());
    all.filter_map(|rule| rule["expr"].as_str().map(str::to_owned))
}

fn findings() -> Vec<Value> {
    CATALOGUE.iter().filter(|definition| is_alerted(definition)).map(|d| finding(d)).collect()
}

/// Whether a finding can reach the metrics and is more than good to know. Only the status of an object in
/// another namespace shows that it is not followed, and an installation that does not own the cluster serves
/// no metrics.
fn is_alerted(definition: &Definition) -> bool {
    let elsewhere = [codes::ELSEWHERE.code, codes::OTHER_INSTALLATION.code];
    definition.severity > Severity::Info && !elsewhere.contains(&definition.code)
}

/// Raised for what nobody has accepted and what does not follow from something else that is raised.
fn finding(definition: &Definition) -> Value {
    let Definition { code, title, why, .. } = definition;
    let (severity, timeouts) = match definition.severity {
        Severity::Blocker | Severity::Error => ("critical", "5m"),
        Severity::Warning | Severity::Info => ("warning", "30m"),
    };
    json!({
        "alert": code.replace('-', ""),
        "expr": format!(
            r#"sum(vdo_findings{{code="{code}",state="open",severity!="Info"}}) > 0"#
        ),
        "for": timeouts,
        "labels": {"severity": severity, "code": code},
        "annotations": {
            "summary": title,
            "description": format!(
                "{why} Objects: {{{{ $value }}}}. `vdoctl doctor` names them and says what to do."
            ),
            "runbook_url": definition.link(),
        },
    })
}

fn own() -> Vec<Value> {
    let alert = |name: &str, expr: &str, summary: &str, description: &str| {
        json!({
            "alert": name, "expr": expr, "for": "15m", "labels": {"severity": "warning"},
            "annotations": {"summary": summary, "description": description},
        })
    };
    vec![
        alert(
            "VDOStandsStill",
            "sum(increase(vdo_rounds_total[30m])) == 0",
            "VDO has not looked at the cluster for half an hour",
            "The drivers run on, but nobody watches them. `kubectl logs --namespace vmware-system-vdo deployment/vdo` \
             says why.",
        ),
        alert(
            "VDODriverNotReady",
            "min by (driver) (vdo_driver_ready) == 0",
            "The driver {{ $labels.driver }} is not as it should be",
            "`vdoctl status` says what it waits for.",
        ),
        alert(
            "VDOVcenterNotVerified",
            "min by (vcenter) (vdo_vcenter_verified) == 0",
            "The vCenter {{ $labels.vcenter }} cannot be used",
            "It is away, or refuses the account. `vdoctl doctor` says which.",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_finding_that_is_more_than_good_to_know_has_one_alert_with_its_page() {
        let rules = findings();
        for definition in CATALOGUE.iter().filter(|definition| is_alerted(definition)) {
            let named = rules.iter().filter(|rule| rule["labels"]["code"] == definition.code);
            let named: Vec<&Value> = named.collect();
            assert_eq!(named.len(), 1, "{}", definition.code);
            assert_eq!(named[0]["annotations"]["runbook_url"], definition.link());
            let expression = named[0]["expr"].as_str().unwrap();
            assert!(expression.contains(definition.code) && expression.ends_with("> 0"));
        }
        let quiet = CATALOGUE.iter().filter(|d| d.severity == Severity::Info).count();
        assert_eq!(rules.len(), CATALOGUE.len() - quiet - 2);
        for code in [codes::ELSEWHERE.code, codes::OTHER_INSTALLATION.code] {
            assert!(!rules.iter().any(|rule| rule["labels"]["code"] == code), "{code}");
        }
    }
}
