//! Alerts for Prometheus: `deploy/alerts.yaml`. Each finding of severity Warning or worse has one alert, with
//! the texts of the catalogue. The operator itself has a few more.

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

/// The PrometheusRule with every alert.
pub fn rule() -> Object {
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

#[cfg(test)]
pub(crate) fn expressions() -> impl Iterator<Item = String> {
    let all = own().into_iter().chain(findings());
    all.filter_map(|rule| rule["expr"].as_str().map(str::to_owned))
}

fn findings() -> Vec<Value> {
    CATALOGUE.iter().filter(|definition| is_alerted(definition)).map(|d| finding(d)).collect()
}

/// Whether a finding reaches the metrics with severity Warning or worse. Two findings never do: only the
/// status of an object in another namespace shows that VDO does not follow it, and an installation that does
/// not own the cluster serves no metrics.
fn is_alerted(definition: &Definition) -> bool {
    let elsewhere = [codes::ELSEWHERE.code, codes::OTHER_INSTALLATION.code];
    definition.severity > Severity::Info && !elsewhere.contains(&definition.code)
}

/// The alert fires for findings that are neither acknowledged nor a consequence of another finding.
fn finding(definition: &Definition) -> Value {
    let Definition { code, title, why, .. } = definition;
    let (severity, timeouts) = match definition.severity {
        Severity::Blocker | Severity::Error => ("critical", "5m"),
        Severity::Warning | Severity::Info => ("warning", "30m"),
    };
    let mut alert = json!({
        "alert": code.replace('-', ""),
        "expr": format!(
            r#"sum(vdo_findings{{code="{code}",state="open",severity!="Info"}}) > 0"#
        ),
        "for": timeouts,
        "labels": {"severity": severity, "code": code},
        "annotations": {
            "summary": title,
            "description": format!(
                "{why} Objects: {{{{ $value }}}}. `vdoctl doctor` names them; `vdoctl explain {code}` shows the fix."
            ),
        },
    });
    // Alertmanager needs an absolute URL.
    if let Some(url) = definition.url() {
        alert["annotations"]["runbook_url"] = url.into();
    }
    alert
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
            "VDO has not checked the cluster for half an hour",
            "The drivers keep running, but VDO does not watch them. \
             `kubectl logs --namespace vmware-system-vdo deployment/vdo` shows the reason.",
        ),
        alert(
            "VDODriverNotReady",
            "min by (driver) (vdo_driver_ready) == 0",
            "The driver {{ $labels.driver }} is not ready",
            "`vdoctl status` shows what VDO waits for.",
        ),
        alert(
            "VDOVcenterNotVerified",
            "min by (vcenter) (vdo_vcenter_verified) == 0",
            "The vCenter {{ $labels.vcenter }} cannot be used",
            "The vCenter is unreachable, or refuses the login. `vdoctl doctor` shows the reason.",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finding_of_severity_warning_or_worse_has_one_alert() {
        let rules = findings();
        for definition in CATALOGUE.iter().filter(|definition| is_alerted(definition)) {
            let named = rules.iter().filter(|rule| rule["labels"]["code"] == definition.code);
            let named: Vec<&Value> = named.collect();
            assert_eq!(named.len(), 1, "{}", definition.code);
            let runbook = named[0]["annotations"]["runbook_url"].as_str();
            assert_eq!(runbook.map(str::to_owned), definition.url());
            let expression = named[0]["expr"].as_str().unwrap();
            assert!(expression.contains(definition.code) && expression.ends_with("> 0"));
        }
        let quiet = CATALOGUE.iter().filter(|d| d.severity == Severity::Info).count();
        assert_eq!(rules.len(), CATALOGUE.len() - quiet - 2);
        for code in [codes::ELSEWHERE.code, codes::OTHER_INSTALLATION.code] {
            assert!(!rules.iter().any(|rule| rule["labels"]["code"] == code), "{code}");
        }
    }

    #[test]
    fn alert_texts_contain_only_placeholders_of_prometheus() {
        for rule in own().into_iter().chain(findings()) {
            for text in rule["annotations"].as_object().unwrap().values() {
                let mut rest = text.as_str().unwrap().to_owned();
                while let (Some(start), Some(end)) = (rest.find("{{ $"), rest.find(" }}")) {
                    rest.replace_range(start..end + 3, "");
                }
                assert!(!rest.contains(['{', '}']), "{text}");
            }
        }
    }
}
