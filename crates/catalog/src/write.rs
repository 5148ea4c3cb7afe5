//! A catalog as a document others can read: what `read` takes, with nothing left to fold out.

use serde_json::{Value, json};

use crate::{
    model::{Catalog, Driver},
    read::SCHEMA_MAJOR,
};

/// Writes a catalog as JSON (which is also YAML). Each release stands on a line of its own and says
/// everything about itself, so `read(write(catalog))` is the catalog again.
pub fn write(catalog: &Catalog) -> String {
    let lines = |driver: Driver| -> Value {
        let own = catalog.releases.iter().filter(|release| release.driver == driver);
        own.map(|release| json!({ "line": release.version, "releases": [release] })).collect()
    };
    let mut document = json!({
        "schema": format!("{SCHEMA_MAJOR}.0"),
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
    fn what_is_written_is_read_back() {
        let written = write(crate::embedded());
        assert_eq!(crate::read(written.as_bytes()).unwrap(), *crate::embedded());
    }
}
