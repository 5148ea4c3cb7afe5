//! Published catalogs and manifests.

use std::{path::PathBuf, process::Command};

use serde_json::Value;

/// The embedded catalog; two older minors of the storage driver also support this cluster.
pub fn catalog() -> String {
    let text = catalog::EMBEDDED
        .replace(
            r#"kubernetes: { min: "1.32", max: "1.34" }"#,
            r#"kubernetes: { min: "1.32", max: "1.36" }"#,
        )
        .replace(
            r#"kubernetes: { min: "1.33", max: "1.35" }"#,
            r#"kubernetes: { min: "1.33", max: "1.36" }"#,
        );
    assert_ne!(text, catalog::EMBEDDED);
    text
}

/// The documents of a manifest in a Go module of upstream.
pub fn published(peer: &str, module: &str, file: &str) -> Vec<Value> {
    let sources = Command::new("go")
        .args(["mod", "download", "-json", module])
        .current_dir(testkit::repository().join(peer))
        .output()
        .unwrap();
    assert!(sources.status.success(), "{}", String::from_utf8_lossy(&sources.stderr));
    let sources: Value = serde_json::from_slice(&sources.stdout).unwrap();
    let folder = PathBuf::from(sources["Dir"].as_str().unwrap());
    let text = std::fs::read_to_string(folder.join(file)).unwrap();
    let documents = text.split("\n---").map(|text| text.trim_start_matches("---"));
    let documents = documents.filter(|text| !text.trim().is_empty());
    documents.map(|text| serde_saphyr::from_str(text).unwrap()).collect()
}

pub fn upstream_csi() -> Vec<Value> {
    let file = "manifests/vanilla/vsphere-csi-driver.yaml";
    published("peers/csi-driver", "sigs.k8s.io/vsphere-csi-driver/v3", file)
}

pub fn upstream_cpi() -> Vec<Value> {
    let file = "releases/v1.36/vsphere-cloud-controller-manager.yaml";
    published("peers", "k8s.io/cloud-provider-vsphere", file)
}
