//! The differences between two catalogs, for the admin who approves the newer one.

use std::{collections::BTreeMap, fmt};

use semver::Version;
use serde_json::Value;

use crate::model::{Catalog, Driver, Implementation, Release};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    Added(Driver, Version),
    Removed(Driver, Version),
    Changed {
        driver: Driver,
        version: Version,
        /// The path of the field.
        field: String,
        /// Absent if the older release lacks the field.
        from: Option<Value>,
        /// Absent if the newer release lacks the field.
        to: Option<Value>,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Added(driver, version) => write!(f, "+ {driver} {version}"),
            Self::Removed(driver, version) => write!(f, "- {driver} {version}"),
            Self::Changed { driver, version, field, from, to } => {
                write!(f, "~ {driver} {version} {field}")?;
                match (from, to) {
                    (None, Some(to)) => write!(f, ": {to}"),
                    (Some(from), None) => write!(f, ": {from} is gone"),
                    (Some(from), Some(to)) => write!(f, ": {from} -> {to}"),
                    (None, None) => Ok(()),
                }
            }
        }
    }
}

/// Every difference, ordered by release.
pub fn diff(old: &Catalog, new: &Catalog) -> Vec<Difference> {
    let index = |catalog: &Catalog| -> BTreeMap<(Driver, Implementation, Version), Release> {
        let key =
            |release: &Release| (release.driver, release.implementation, release.version.clone());
        catalog.releases.iter().map(|release| (key(release), release.clone())).collect()
    };
    let (old, new) = (index(old), index(new));
    let mut all = Vec::new();
    for ((driver, implementation, version), release) in &old {
        match new.get(&(*driver, *implementation, version.clone())) {
            None => all.push(Difference::Removed(*driver, version.clone())),
            Some(other) => {
                for (field, from, to) in changes(release, other) {
                    all.push(Difference::Changed {
                        driver: *driver,
                        version: version.clone(),
                        field,
                        from,
                        to,
                    });
                }
            }
        }
    }
    let added = new.keys().filter(|key| !old.contains_key(*key));
    all.extend(added.map(|(driver, _, version)| Difference::Added(*driver, version.clone())));
    all
}

type Change = (String, Option<Value>, Option<Value>);

fn changes(old: &Release, new: &Release) -> Vec<Change> {
    let value = |release: &Release| serde_json::to_value(release).unwrap_or_default();
    let mut all = Vec::new();
    compare("", Some(&value(old)), Some(&value(new)), &mut all);
    all
}

/// Collects the leaves in which two documents differ.
pub fn compare(path: &str, old: Option<&Value>, new: Option<&Value>, into: &mut Vec<Change>) {
    match (old, new) {
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            let keys: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                compare(&path, a.get(key), b.get(key), into);
            }
        }
        (a, b) if a == b => {}
        (a, b) => into.push((path.to_owned(), a.cloned(), b.cloned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_catalog_does_not_differ_from_itself() {
        assert!(diff(crate::embedded(), crate::embedded()).is_empty());
    }

    #[test]
    fn added_removed_and_changed_releases_are_reported() {
        let text = crate::EMBEDDED
            .replace("releaseCount: 62", "releaseCount: 61")
            .replace(
                "      - { version: 3.8.0, channel: latest }\n",
                "      - { version: 3.8.1 }\n",
            )
            .replace("      - { version: 1.34.0, released: 2025-08-29 }\n", "      []\n");
        let text = text.replace("    releases:\n      []", "    releases: []").replacen(
            "\"1.36\", max: \"1.36\"",
            "\"1.35\", max: \"1.36\"",
            1,
        );
        let new = crate::read(text.as_bytes()).unwrap();
        let differences: Vec<_> =
            diff(crate::embedded(), &new).iter().map(ToString::to_string).collect();
        assert_eq!(
            differences,
            [
                "- CPI 1.34.0",
                "~ CPI 1.36.0 kubernetes.min: \"1.36\" -> \"1.35\"",
                "- CSI 3.8.0",
                "+ CSI 3.8.1",
            ]
        );
    }
}
