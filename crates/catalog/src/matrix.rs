//! Reads the compatibility matrix of the Go VDO, so that its users can keep theirs.
//!
//! The matrix is a JSON object with `CSI` and `CPI`, each a map from version to ranges and manifest URLs. It
//! has no serial, no signature and no images. Its releases carry the URLs; the renderer fetches the
//! manifests and then calls [`crate::choose::can_be_pulled`] again, because only then are the images known.
//! The embedded catalog supplies what a matrix lacks: unavailable images, the newest vSphere and Kubernetes.
//! Two rules differ from the Go VDO: versions sort as versions, and a maximum of `8.0` includes its updates.

use std::collections::BTreeMap;

use jiff::Timestamp;
use semver::Version;
use serde::Deserialize;
use serde_json::Value;
use snafu::{OptionExt, ResultExt, Snafu, ensure};

use crate::{
    model::{Catalog, Driver, KubernetesRange, Manifest, Release, VsphereRange},
    version::{KubernetesMinor, VersionError},
};

#[derive(Debug, Snafu)]
pub(crate) enum MatrixError {
    /// It has `CSI` or `CPI`, but another structure.
    #[snafu(display("the matrix does not have the structure of the Go VDO's"))]
    Form { source: serde_json::Error },
    #[snafu(display("{driver} {text:?} in the matrix is not a driver version"))]
    DriverVersion { driver: Driver, text: String, source: semver::Error },
    #[snafu(display("{driver} {version} in the matrix has a bound that is not a version"))]
    Bound { driver: Driver, version: Version, source: VersionError },
    #[snafu(display("{driver} {version} in the matrix has no Kubernetes version"))]
    NoKubernetes { driver: Driver, version: Version },
    #[snafu(display("{driver} {version} in the matrix has no deploymentPath"))]
    NoPath { driver: Driver, version: Version },
    #[snafu(display("the matrix is empty"))]
    Empty,
}

#[derive(Deserialize)]
struct Matrix {
    #[serde(default, rename = "CSI")]
    csi: BTreeMap<String, Entry>,
    #[serde(default, rename = "CPI")]
    cpi: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "vSphere")]
    vsphere: Range,
    k8s: Range,
    #[serde(default, rename = "deploymentPath")]
    paths: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Range {
    min: String,
    max: String,
    #[serde(rename = "skewVersion")]
    skew: String,
}

/// True if the document is a matrix, not a catalog.
pub(crate) fn is_matrix(document: &Value) -> bool {
    document.get("schema").is_none()
        && (document.get("CSI").is_some() || document.get("CPI").is_some())
}

/// Reads a matrix. Its serial is 0, because a matrix has no place in the order of catalogs.
pub(crate) fn read(document: Value) -> Result<Catalog, MatrixError> {
    let matrix: Matrix = serde_json::from_value(document).context(FormSnafu)?;
    let mut releases = Vec::new();
    for (driver, entries) in [(Driver::Cpi, matrix.cpi), (Driver::Csi, matrix.csi)] {
        for (text, entry) in entries {
            releases.push(release(driver, &text, entry)?);
        }
    }
    ensure!(!releases.is_empty(), EmptySnafu);
    let known = crate::embedded();
    let newest_vsphere = releases
        .iter()
        .filter_map(|release| release.vsphere.max)
        .chain([known.newest_vsphere])
        .max_by_key(|max| max.version());
    let newest_kubernetes = known.releases.iter().map(|release| release.kubernetes.max).max();
    let mut catalog = Catalog {
        serial: 0,
        issued: Timestamp::UNIX_EPOCH,
        expires: None,
        newest_vsphere: newest_vsphere.unwrap_or(known.newest_vsphere),
        newest_kubernetes: newest_kubernetes.max(known.newest_kubernetes),
        unavailable: known.unavailable.clone(),
        releases,
        signed: false,
    };
    catalog.sort();
    Ok(catalog)
}

fn release(driver: Driver, text: &str, entry: Entry) -> Result<Release, MatrixError> {
    let version = Version::parse(text.trim_start_matches('v'))
        .with_context(|_| DriverVersionSnafu { driver, text })?;
    let bound = || BoundSnafu { driver, version: version.clone() };
    let Range { min, max, skew } = entry.k8s;
    let (min, max) = if skew.is_empty() { (min, max) } else { (skew.clone(), skew) };
    ensure!(!min.is_empty() && !max.is_empty(), NoKubernetesSnafu { driver, version });
    let kubernetes = KubernetesRange {
        min: min.parse::<KubernetesMinor>().with_context(|_| bound())?,
        max: max.parse::<KubernetesMinor>().with_context(|_| bound())?,
        tolerates: None,
    };
    let vsphere = VsphereRange {
        min: entry.vsphere.min.parse().with_context(|_| bound())?,
        max: Some(entry.vsphere.max.parse().with_context(|_| bound())?),
        tested: None,
        hosts: None,
        because: String::new(),
    };
    entry.paths.first().with_context(|| NoPathSnafu { driver, version: version.clone() })?;
    let manifest = Manifest { urls: entry.paths, ..Manifest::default() };
    Ok(Release { kubernetes, vsphere, ..Release::published(driver, version, manifest) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Implementation;
    use serde_json::json;

    fn sample() -> Value {
        json!({
            "CSI": {
                "3.10.0": { "vSphere": {"min": "6.7.1", "max": "8.0"}, "k8s": {"min": "1.25", "max": "1.27"},
                            "isCPIRequired": false, "deploymentPath": ["https://example.com/driver.yaml"] },
                "3.2.0": { "vSphere": {"min": "6.7.1", "max": "8.0.1"}, "k8s": {"min": "1.23", "max": "1.25"},
                           "isCPIRequired": false, "deploymentPath": ["https://example.com/a.yaml", "file:///b.yaml"] }
            },
            "CPI": {
                "1.26.0": { "vSphere": {"min": "6.7.1", "max": "8.0.1"}, "k8s": {"skewVersion": "1.26"},
                            "deploymentPath": ["https://example.com/cpi.yaml"] }
            }
        })
    }

    #[test]
    fn a_matrix_becomes_releases_in_the_order_of_versions() {
        let catalog = crate::read(sample().to_string().as_bytes()).unwrap();
        let csi: Vec<_> = catalog.releases_of(Driver::Csi, Implementation::Upstream).collect();
        assert_eq!(csi[0].version, Version::new(3, 2, 0));
        assert_eq!(csi[1].version, Version::new(3, 10, 0), "3.10 is newer than 3.2");
        assert_eq!(csi[0].manifest.urls, ["https://example.com/a.yaml", "file:///b.yaml"]);
        let cpi = catalog.releases_of(Driver::Cpi, Implementation::Upstream).next().unwrap();
        assert_eq!(cpi.kubernetes.to_string(), "1.26");
    }

    #[test]
    fn each_mistake_in_a_matrix_has_its_own_message() {
        let refused = |path: &str, value: Value| {
            let mut matrix = sample();
            *matrix.pointer_mut(path).unwrap() = value;
            snafu::Report::from_error(crate::read(matrix.to_string().as_bytes()).unwrap_err())
                .to_string()
        };
        for (path, value, sentence) in [
            ("/CPI/1.26.0/k8s", json!({}), "CPI 1.26.0 in the matrix has no Kubernetes version"),
            (
                "/CSI/3.2.0/deploymentPath",
                json!([]),
                "CSI 3.2.0 in the matrix has no deploymentPath",
            ),
            ("/CSI/3.2.0/vSphere/min", json!("old"), "\"old\" is not a vSphere version"),
            (
                "/CSI",
                json!({"three": sample()["CSI"]["3.2.0"]}),
                "CSI \"three\" in the matrix is not a driver version",
            ),
            ("/CSI", json!(7), "does not have the structure of the Go VDO's"),
        ] {
            let text = refused(path, value);
            assert!(text.contains(sentence), "{text}");
        }
        let empty = crate::read(br#"{"CSI": {}, "CPI": {}}"#).unwrap_err();
        assert!(snafu::Report::from_error(empty).to_string().contains("the matrix is empty"));
    }
}
