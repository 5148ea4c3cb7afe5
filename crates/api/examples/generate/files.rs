//! The files that are generated from the Rust types.

use std::io;
use std::path::PathBuf;

use serde::Serialize;

use crate::reference;

/// Paths below the root of the repository, with their content.
pub(crate) fn files() -> io::Result<Vec<(PathBuf, String)>> {
    let mut files = Vec::new();
    for crd in api::crds() {
        let path = format!("deploy/crds/{}.yaml", crd.spec.names.plural);
        files.push((path.into(), yaml(&crd)?));
    }
    for sample in api::samples::samples() {
        let mut text = sample.header();
        for object in &sample.objects {
            text.push_str("---\n");
            text.push_str(&yaml(object)?);
        }
        files.push((format!("deploy/samples/{}.yaml", sample.name).into(), text));
    }
    let page = reference::page(&api::crds(), &api::samples::samples());
    files.push(("docs/reference/api.md".into(), page));
    Ok(files)
}

fn yaml(value: &impl Serialize) -> io::Result<String> {
    let text = serde_saphyr::to_string(value).map_err(io::Error::other)?;
    // The serializer indents empty lines inside block scalars; this drops the trailing spaces.
    let lines = text.lines().map(|line| if line.trim().is_empty() { "" } else { line });
    Ok(lines.flat_map(|line| [line, "\n"]).collect())
}
