//! Compares docs/cloud-controller.md with the configuration.

use std::collections::BTreeSet;

use super::*;

const PAGE: &str = include_str!("../../../../docs/cloud-controller.md");

/// The rows of the table under a heading, cell by cell.
fn table(heading: &str) -> Vec<Vec<String>> {
    let (_, below) = PAGE.split_once(&format!("\n### {heading}\n")).unwrap();
    let section = below.split("\n### ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let cell = |cell: &str| cell.trim().trim_matches('`').to_owned();
    rows.map(|row| row.trim_matches('|').split(" | ").map(cell).collect()).collect()
}

fn assert_same<T: Ord + std::fmt::Debug>(
    documented: impl Iterator<Item = T>,
    existing: impl Iterator<Item = T>,
) {
    let (documented, existing): (BTreeSet<T>, BTreeSet<T>) =
        (documented.collect(), existing.collect());
    let (missing, unknown): (Vec<_>, Vec<_>) =
        (existing.difference(&documented).collect(), documented.difference(&existing).collect());
    assert!(
        missing.is_empty() && unknown.is_empty(),
        "not documented: {missing:?}, documented but unknown: {unknown:?}"
    );
}

#[test]
fn the_yaml_and_ini_samples_are_equal() {
    let sample = |before: &str| {
        let (_, text) = PAGE.split_once(before).unwrap();
        Configuration::read(text.split("```").next(), &BTreeMap::new()).unwrap()
    };
    let yaml = sample("a test of the cloud controller reads it -->\n```yaml\n");
    let ini = sample("the same in INI:\n\n```text\n");
    assert_eq!(yaml, ini);
    assert_eq!(yaml.vcenters.len(), 2);
    assert_eq!(&*yaml.vcenters[1].name, "vc-2.example.com:8443");
}

#[test]
fn the_page_lists_every_key_in_both_formats() {
    let rows = table("Every key").into_iter();
    let documented = rows.map(|row| (row[0].clone(), row[1].clone()));
    assert_same(documented, CpiConfig::keys().into_iter().map(|key| (key.yaml, key.ini)));
}

#[test]
fn the_page_lists_every_variable() {
    let source = include_str!("environment.rs");
    let quoted = |start: &str, prefix: &str| -> Vec<String> {
        let found = source.split(start).skip(1).filter_map(|rest| rest.split('"').next());
        let names = found.filter(|name| name.bytes().all(|b| b.is_ascii_uppercase() || b == b'_'));
        names.filter(|name| !name.is_empty()).map(|name| format!("{prefix}{name}")).collect()
    };
    let mut known = quoted("\"VSPHERE_", "VSPHERE_");
    known.retain(|name| name != "VSPHERE_VCENTER_");
    let (_, per_vcenter) = source.split_once("fn apply_vcenter(").unwrap();
    for part in per_vcenter.split("get(\"").skip(1) {
        known.push(format!("VCENTER_<id>_{}", part.split('"').next().unwrap()));
    }
    known.extend(["VSPHERE_VCENTER_<id>".into(), "SKIP_NODE_DELETION".into()]);
    let rows = table("Environment");
    assert_same(rows.iter().map(|row| row[0].clone()), known.into_iter());
    // Each variable sets an existing key.
    let keys: BTreeSet<String> = CpiConfig::keys().into_iter().map(|key| key.yaml).collect();
    let named = rows.iter().filter(|row| row[1].starts_with(|c: char| c.is_lowercase()));
    for row in named.filter(|row| !row[1].contains(' ')) {
        assert!(keys.contains(&row[1]), "{row:?}");
    }
}

/// A file of the in-tree provider with several vCenters.
const IN_TREE: &str = "[Global]\nuser = \"u\"\npassword = \"p\"\nport = \"443\"\ninsecure-flag = \"1\"\n\
                       [VirtualCenter \"vc\"]\ndatacenters = \"DC0,DC1\"\n\
                       [Labels]\nregion = k8s-region\nzone = k8s-zone\n";

#[test]
fn a_file_of_the_in_tree_provider_is_read_except_for_unknown_sections() {
    let read = |text: &str| Configuration::read(Some(text), &BTreeMap::new());
    let config = read(IN_TREE).unwrap();
    assert_eq!(config.vcenters[0].datacenters, ["DC0", "DC1"]);
    assert_eq!(config.vcenters[0].trust, TrustSource::Insecure);
    assert_eq!(config.categories.zone, "k8s-zone");
    let whole = format!(
        "{}{IN_TREE}[Workspace]\nserver = vc\ndatacenter = DC0\nfolder = k8s\n[Disk]\nscsicontrollertype = pvscsi\n\
         [Network]\npublic-network = \"VM Network\"\n",
        "[Global]\ndatacenter = DC0\ndatastore = ds\nworking-dir = k8s\nvm-uuid = x\n"
    );
    let error = runtime::error_chain::error_chain(&read(&whole).unwrap_err());
    let named =
        ["Workspace", "Disk", "Network", "datacenter", "datastore", "working-dir", "vm-uuid"];
    for unknown in named {
        assert!(error.contains(unknown), "{unknown}: {error}");
    }
}

#[test]
fn a_certificate_instead_of_a_user_is_rejected() {
    let text = "global:\n  server: vc\n  password: key\n  user: |\n    -----BEGIN CERTIFICATE-----\n    MII\n";
    let error = Configuration::read(Some(text), &BTreeMap::new()).unwrap_err().to_string();
    assert!(error.contains("the user of vc is a certificate"), "{error}");
}
