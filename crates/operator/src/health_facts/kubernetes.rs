//! The version of Kubernetes and the kubelet's path, as the checks see them.

use health::facts::{Known, Platform, Version, Wanted};

/// Where kubelet keeps its files. Some platforms have their own place; elsewhere it is where the admin
/// says, and nobody but kubelet could say otherwise. What the driver's pods have is another matter.
pub(super) fn kubelet_path(platform: Platform, wanted: &Wanted) -> String {
    let usual = platform.kubelet_path();
    let fixed = matches!(platform, Platform::K0s | Platform::MicroK8s);
    match &wanted.storage {
        Some(storage) if !fixed => storage.kubelet_path.clone(),
        _ => usual.to_owned(),
    }
}

/// A version of Kubernetes in the words of the checks.
pub(super) fn version(text: &str) -> Known<Version> {
    match text.parse() {
        Ok(version) => Known::Known(version),
        Err(reason) => Known::Unknown { reason },
    }
}
