//! Records the permissions that the operator used in a test. `scripts/test` collects them from all test programs
//! and compares them with the manifest.

use std::{
    collections::BTreeSet,
    io::Write as _,
    path::{Path, PathBuf},
};

use serde_json::Value;
use testkit::ControlPlane;

use super::NAMESPACE;

/// The folder for the records. If it is not set, tests write none.
const FOLDER: &str = "VDO_AUDIT_FOLDER";

/// Writes the record when it is dropped.
pub struct Usage {
    log: PathBuf,
}

impl Usage {
    pub fn new(plane: &ControlPlane) -> Self {
        Self { log: plane.audit_folder() }
    }
}

impl Drop for Usage {
    fn drop(&mut self) {
        let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
        let lines = lines(&ControlPlane::audit_in(&self.log));
        // A failing test must not panic twice; `audit_replay` notices a missing line.
        let _ = append(&folder, &lines);
    }
}

fn append(folder: &Path, lines: &BTreeSet<String>) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let file = folder.join(format!("{}.tsv", std::process::id()));
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(file)?;
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    file.write_all(text.as_bytes())
}

/// A line for each kind of request of the operator: test, `used` or `denied`, verb, group, resource, namespace
/// and name.
fn lines(events: &[Value]) -> BTreeSet<String> {
    let account = format!("system:serviceaccount:{NAMESPACE}:vdo");
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("unknown");
    let own = events.iter().filter(|e| e["impersonatedUser"]["username"] == account.as_str());
    let mut lines = BTreeSet::new();
    for event in own.filter(|event| event["objectRef"].is_object()) {
        let object = &event["objectRef"];
        let string = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let subresource = string(&object["subresource"]);
        let slash = if subresource.is_empty() { "" } else { "/" };
        let resource = format!("{}{slash}{subresource}", string(&object["resource"]));
        let code = event["responseStatus"]["code"].as_u64().unwrap_or_default();
        let message = string(&event["responseStatus"]["message"]);
        // Quotas and policies answer with this code too.
        let refused = ["is forbidden: User \"", "is attempting to grant"];
        let denied = code == 403 && refused.iter().any(|part| message.contains(part));
        let outcome = if denied { "denied" } else { "used" };
        let verb = string(&event["verb"]);
        // A server-side apply that creates an object needs both verbs.
        let created = verb == "patch" && code == 201;
        for verb in [Some(verb.as_str()), created.then_some("create")].into_iter().flatten() {
            let fields = [
                test,
                outcome,
                verb,
                &string(&object["apiGroup"]),
                &resource,
                &string(&object["namespace"]),
                &string(&object["name"]),
            ];
            lines.insert(fields.join("\t"));
        }
    }
    lines
}
