//! The checks report every fact that they could not read, with the reason. The tests make each such fact
//! unknown, one by one.

use std::collections::BTreeMap;

use api::{Severity, finding::codes};
use serde_json::{Value, json};

use health::facts::{Claim, Known};

use crate::{
    facts::{Facts, Platform},
    shortcuts::Shortcuts,
};

/// Facts whose absence the checks do not report, with the reason.
const SILENT: &[(&str, &str)] = &[
    ("/cluster/drivers/cloud/crds", "the cloud provider needs none"),
    ("/cluster/drivers/cloud/features", "the cloud provider has none"),
    ("/cluster/drivers/cloud/registered", "the cloud provider has no CSIDriver"),
];

/// Finds the facts that can be unknown: one example for each path without names and numbers.
pub(crate) fn places(value: &Value, at: &str, path: &str, found: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(fields) => {
            let known = fields.len() == 1 && fields.contains_key("known");
            if known {
                found.entry(path.to_owned()).or_insert_with(|| at.to_owned());
            }
            let many = ["nodes", "vcenters", "services", "hosts", "vms", "datastores", "policies"];
            let named = many.iter().any(|many| path.ends_with(many)) && !known;
            for (name, value) in fields {
                let inner = match name.as_str() {
                    "known" => path.to_owned(),
                    _ if named => format!("{path}/*"),
                    name => format!("{path}/{name}"),
                };
                let place = name.replace('~', "~0").replace('/', "~1");
                places(value, &format!("{at}/{place}"), &inner, found);
            }
        }
        Value::Array(items) => {
            for (number, value) in items.iter().enumerate() {
                places(value, &format!("{at}/{number}"), &format!("{path}/*"), found);
            }
        }
        _ => {}
    }
}

/// A healthy cluster on which all checks apply: OpenShift, with a claim for a file volume that has only just
/// started to wait.
pub(crate) fn asking() -> Facts {
    let mut facts = health::sample::cluster(Platform::OpenShift);
    let now = facts.now;
    facts.storage.pending.get_mut().unwrap().push(Claim {
        name: "shop/uploads".into(),
        class: "gold".into(),
        many_writers: true,
        message: String::new(),
        since: now,
    });
    let clusters = ["domain-c1", "domain-c2"].map(str::to_owned).into();
    facts.inventory().file_service = Known::Known(clusters);
    facts
}

#[test]
fn every_fact_that_cannot_be_read_is_reported_with_the_reason() {
    let healthy = serde_json::to_value(asking()).unwrap();
    let mut found = BTreeMap::new();
    places(&healthy, "", "", &mut found);
    assert!(found.len() > 40, "{found:#?}");
    let mut silent = Vec::new();
    for (path, at) in &found {
        let reason = format!("nobody may look at {path}");
        let mut blind = healthy.clone();
        *blind.pointer_mut(at).unwrap() = json!({"unknown": {"reason": reason}});
        let blind: Facts = serde_json::from_value(blind).unwrap();
        let findings = crate::found(blind);
        let incomplete = findings.get(codes::CHECK_INCOMPLETE.code).into_iter().flatten();
        if !incomplete
            .into_iter()
            .any(|finding| finding.seen.as_ref().is_some_and(|seen| seen.contains(&reason)))
        {
            silent.push(path.as_str());
        }
        for finding in findings.values().flatten() {
            let accuses = finding.code != codes::CHECK_INCOMPLETE.code;
            assert!(!accuses || finding.severity == Severity::Info, "{path}: {finding:#?}");
        }
    }
    let expected: Vec<&str> = SILENT.iter().map(|(path, _)| *path).collect();
    assert_eq!(silent, expected, "taken to be fine although nobody looked");
}
