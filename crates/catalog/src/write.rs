//! Writes a catalog as a document in which every release is spelled out.

use serde_json::{Value, json};

use crate::{
    model::{Catalog, Driver},
    parse::{SCHEMA_MAJOR, SCHEMA_MINOR},
};

/// Writes a catalog as JSON (which is also YAML). Every release is a line of its own with all its fields,
/// so `read(write(catalog))` returns the same catalog.
pub fn write(catalog: &Catalog) -> String {
    let lines = |driver: Driver| -> Value {
        let own = catalog.releases.iter().filter(|release| release.driver == driver);
        own.map(|release| json!({ "line": release.version, "releases": [release] })).collect()
    };
    let mut document = json!({
        "schema": format!("{SCHEMA_MAJOR}.{SCHEMA_MINOR}"),
        "serial": catalog.serial,
        "issued": catalog.issued,
        "newestVsphere": catalog.newest_vsphere,
        "releaseCount": catalog.releases.len(),
        "unavailable": catalog.unavailable,
        "cpi": lines(Driver::Cpi),
        "csi": lines(Driver::Csi),
    });
    if let Some(expires) = catalog.expires {
        document["expires"] = json!(expires);
    }
    if let Some(newest) = catalog.newest_kubernetes {
        document["newestKubernetes"] = json!(newest);
    }
    format!("{document:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_catalog_reads_back_as_the_same() {
        let written = write(crate::embedded());
        assert_eq!(crate::read(written.as_bytes()).unwrap(), *crate::embedded());
    }
}
