//! Renders the objects that install a release, from the release and a profile of the cluster.
//!
//! ```text
//!   Release (differences) ─┐
//!                          ├─► cpi, cloud_controller ───────────┐
//!   Profile (cluster) ─────┤                                    ├─► Rendered: objects in the order
//!                          ├─► csi ─► controller, node, windows ┤   to apply them, images,
//!                          │          webhook, snapshot, crds   │   required configuration
//!                          └─► from_manifest ───────────────────┘
//! ```
//!
//! There is one template per driver and implementation; the differences between releases are data. Objects keep
//! the names and selectors of upstream's manifests, so that VDO can adopt an existing installation in place. They
//! are stricter than upstream's: least privilege in RBAC and pods, probes and requests everywhere, replicas and
//! placement that fit the cluster. The pod's status keeps the end of the log of a container that fails.

mod cloud_controller;
pub(crate) mod common;
mod cpi;
pub mod crds;
mod csi;
mod csi_controller;
mod csi_node;
mod csi_windows;
pub mod from_manifest;
pub mod profile;
mod rbac;
mod snapshot;
mod storage_driver;
mod unserved;
pub mod webhook;
mod yaml;

use std::collections::BTreeSet;

use semver::Version;
use serde::Serialize;
use serde_json::Value;
use snafu::{OptionExt, Snafu};

use crate::{
    image::Image,
    model::{Driver, Release},
};

pub use common::CPI_ACCOUNT;
pub use cpi::CPI_CREDENTIALS_ROLE;
pub use csi::CSI_LEASES;
pub use profile::Profile;
pub use yaml::{YamlError, to_yaml};

#[derive(Debug, Snafu)]
pub enum RenderError {
    #[snafu(display("{driver} {version} has no image `{part}`; the catalog is incomplete"))]
    NoImage { driver: Driver, version: Version, part: &'static str },
    #[snafu(display("the manifest of {driver} {version} must be fetched first, from {}", urls.join(", ")))]
    NotFetched { driver: Driver, version: Version, urls: Vec<String> },
    #[snafu(display(
        "the catalog describes {driver} {version} in a format that needs a newer operator"
    ))]
    Unknown { driver: Driver, version: Version },
    #[snafu(display("the published manifest of {driver} {version} cannot be used"))]
    Published { driver: Driver, version: Version, source: from_manifest::AdaptError },
}

/// When an object is applied. All objects of a stage are applied before those of the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Stage {
    Namespaces,
    /// CRDs and other objects that later objects, or the driver at startup, need.
    Definitions,
    /// ServiceAccounts, roles and bindings.
    Access,
    /// Configuration that pods read at startup.
    Settings,
    /// Deployments and the cloud controller.
    Controllers,
    /// DaemonSets of node drivers; they need a running controller.
    Nodes,
    /// Webhooks, last: their servers must be running.
    Admission,
}

/// A Kubernetes object.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Object(pub Value);

impl Object {
    fn text(&self, pointer: &str) -> &str {
        self.0.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    pub fn api_version(&self) -> &str {
        self.text("/apiVersion")
    }

    pub fn kind(&self) -> &str {
        self.text("/kind")
    }

    pub fn name(&self) -> &str {
        self.text("/metadata/name")
    }

    /// Empty for cluster-scoped objects.
    pub fn namespace(&self) -> &str {
        self.text("/metadata/namespace")
    }

    /// The pod template of a workload.
    pub fn pod_template(&self) -> Option<&Value> {
        self.0
            .pointer("/spec/template")
            .filter(|template| template.pointer("/spec/containers").is_some())
    }

    pub fn stage(&self) -> Stage {
        match self.kind() {
            "Namespace" => Stage::Namespaces,
            "CustomResourceDefinition" | "CSIDriver" | "PriorityClass" => Stage::Definitions,
            "ServiceAccount" | "ClusterRole" | "ClusterRoleBinding" | "Role" | "RoleBinding" => {
                Stage::Access
            }
            "Deployment" | "PodDisruptionBudget" | "StatefulSet" => Stage::Controllers,
            "DaemonSet" if self.name() == common::CPI_NAME => Stage::Controllers,
            "DaemonSet" => Stage::Nodes,
            "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration" => Stage::Admission,
            _ => Stage::Settings,
        }
    }
}

/// An object that the pods read and the caller provides, because it holds configuration or secrets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Expected {
    /// `Secret` or `ConfigMap`.
    pub kind: String,
    pub namespace: String,
    pub name: String,
    pub keys: Vec<String>,
}

/// The objects of a release for one profile.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rendered {
    /// In the order of their stages.
    pub objects: Vec<Object>,
    /// Objects that must exist as well.
    pub expects: Vec<Expected>,
    /// Every image, with the name it is pulled by.
    pub images: BTreeSet<String>,
}

impl Rendered {
    pub(crate) fn new(objects: Vec<Value>, expects: Vec<Expected>) -> Self {
        let mut objects: Vec<_> = objects.into_iter().map(Object).collect();
        for object in &mut objects {
            common::keep_crash_logs(&mut object.0);
        }
        // Stable: within a stage the template's order stays, ServiceAccount before binding.
        objects.sort_by_key(Object::stage);
        let images = objects.iter().filter_map(Object::pod_template).flat_map(images_of).collect();
        Self { objects, expects, images }
    }

    pub fn find(&self, kind: &str, name: &str) -> Option<&Object> {
        self.objects.iter().find(|object| object.kind() == kind && object.name() == name)
    }
}

fn images_of(template: &Value) -> Vec<String> {
    ["/spec/containers", "/spec/initContainers"]
        .iter()
        .filter_map(|pointer| template.pointer(pointer)?.as_array())
        .flatten()
        .filter_map(|container| container["image"].as_str().map(str::to_owned))
        .collect()
}

pub fn render(release: &Release, profile: &Profile) -> Result<Rendered, RenderError> {
    let (driver, version) = (release.driver, release.version.clone());
    let manifest = &release.manifest;
    if let Some(template) = &manifest.csi {
        csi::render(release, template, profile)
    } else if let Some(template) = &manifest.cpi {
        cpi::render(release, template, profile)
    } else if manifest.cloud_controller.is_some() {
        cloud_controller::render(release, profile)
    } else if manifest.storage_driver.is_some() {
        storage_driver::render(release, profile)
    } else if !manifest.objects.is_empty() {
        from_manifest::adapt(driver, manifest.objects.clone(), profile)
            .map_err(|source| RenderError::Published { driver, version, source })
    } else if manifest.urls.is_empty() {
        UnknownSnafu { driver, version }.fail()
    } else {
        NotFetchedSnafu { driver, version, urls: manifest.urls.clone() }.fail()
    }
}

/// The pull name of an image, by its role.
fn image(release: &Release, profile: &Profile, part: &'static str) -> Result<String, RenderError> {
    let (driver, version) = (release.driver, release.version.clone());
    let image = release.images.get(part).context(NoImageSnafu { driver, version, part })?;
    Ok(located(image, profile))
}

/// The image after rewriting, with its digest if the profile pins images.
pub(crate) fn located(image: &Image, profile: &Profile) -> String {
    let moved = profile.images.rewrite.apply(image);
    // Without a tag only the digest identifies the image.
    if profile.images.pinned || moved.tag.is_none() { moved.to_string() } else { moved.tagged() }
}

/// All images that a release may need in any cluster: the list to mirror for an air gap.
pub fn images_to_mirror(release: &Release) -> BTreeSet<Image> {
    let published = release.manifest.objects.iter().cloned().map(Object);
    let named = published
        .filter_map(|object| object.pod_template().map(images_of))
        .flatten()
        .filter_map(|name| name.parse().ok());
    release.images.values().cloned().chain(named).collect()
}
