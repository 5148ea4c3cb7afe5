//! Translates the version of Kubernetes and the kubelet's path into facts for the checks.

use health::facts::{Known, Platform, Version, Wanted};

/// The directory where the kubelet keeps its files. Some platforms use a fixed directory. Elsewhere the spec
/// names it, because only the kubelet itself knows better. The path in the driver's pods is a separate fact.
pub(super) fn kubelet_path(platform: Platform, wanted: &Wanted) -> String {
    let usual = platform.kubelet_path();
    let fixed = matches!(platform, Platform::K0s | Platform::MicroK8s);
    match &wanted.storage {
        Some(storage) if !fixed => storage.kubelet_path.clone(),
        _ => usual.to_owned(),
    }
}

/// Parses a version of Kubernetes for the checks.
pub(super) fn version(text: &str) -> Known<Version> {
    match text.parse() {
        Ok(version) => Known::Known(version),
        Err(reason) => Known::Unknown { reason },
    }
}
