//! The outcome of each spec, from ginkgo's report.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;

/// By the name of the spec, without the name of the driver.
pub(super) type Outcomes = BTreeMap<String, Outcome>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Passed {
        took: Duration,
    },
    Failed {
        took: Duration,
        message: String,
    },
    /// The suite finds itself that a spec does not apply.
    DoesNotApply {
        reason: String,
    },
}

impl Outcome {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Passed { .. } => "passed",
            Self::Failed { .. } => "failed",
            Self::DoesNotApply { .. } => "does not apply",
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Suite {
    #[serde(default)]
    spec_reports: Vec<Spec>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Spec {
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_type: String,
    leaf_node_text: String,
    state: String,
    /// In nanoseconds.
    run_time: u64,
    #[serde(default)]
    failure: Option<Failure>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failure {
    #[serde(default)]
    message: String,
}

/// Keeps the report of a portion until the portion runs again. Reports of single specs are not kept.
pub(super) fn keep(report: &Path) {
    let folder = folder();
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::copy(report, folder.join(report.file_name().unwrap())).unwrap();
}

/// The outcomes of the last run of each of these portions.
pub(super) fn kept<'a>(portions: impl Iterator<Item = &'a str>) -> Outcomes {
    let paths = portions.map(|name| folder().join(format!("{name}.json")));
    paths.filter(|path| path.exists()).flat_map(|path| read(&path)).collect()
}

/// Next to the programs of the tests.
fn folder() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.ancestors().nth(2).unwrap().join("kubernetes-storage-tests")
}

/// Reads a report. Specs outside of the focus are not part of the result.
pub(super) fn read(path: &Path) -> Outcomes {
    let text = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let suites: Vec<Suite> = serde_json::from_slice(&text).unwrap();
    let specs = suites.into_iter().flat_map(|suite| suite.spec_reports);
    let all = specs.filter_map(|spec| Some((name(&spec), outcome(spec)?)));
    all.collect()
}

fn name(spec: &Spec) -> String {
    let texts = spec.container_hierarchy_texts.iter().flatten().map(String::as_str);
    let texts = texts.filter(|text| !text.starts_with("External Storage"));
    texts.chain([spec.leaf_node_text.as_str()]).collect::<Vec<_>>().join(" ")
}

fn outcome(spec: Spec) -> Option<Outcome> {
    let took = Duration::from_nanos(spec.run_time);
    let message = spec.failure.map(|failure| failure.message).unwrap_or_default();
    match (spec.leaf_node_type.as_str(), spec.state.as_str()) {
        ("It", "passed") => Some(Outcome::Passed { took }),
        ("It", "skipped") if message.is_empty() => None,
        ("It", "skipped") => Some(Outcome::DoesNotApply { reason: message }),
        // A suite that could not start has only its own nodes.
        (_, "passed" | "skipped" | "pending") => None,
        _ => Some(Outcome::Failed { took, message }),
    }
}
