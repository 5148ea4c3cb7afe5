//! From a release and a profile to the objects that install it.
//!
//! ```text
//!   Release (differences) ─┐
//!                          ├─► cpi, cloud_controller ───────────┐
//!   Profile (cluster) ─────┤                                    ├─► Rendered: objects in the order
//!                          ├─► csi ─► controller, node, windows ┤   to apply them, images,
//!                          │          webhook, snapshot, crds   │   what else must be there
//!                          └─► from_manifest ───────────────────┘
//! ```
//!
//! One template per driver and maker, ours, with what differs between releases as data. Objects keep the names and
//! selectors of upstream's manifests, so that an install by other hands can be taken over in place. They
//! are stricter than upstream's: least privilege in RBAC and in pods, probes and requests everywhere,
//! replicas and placement that fit the cluster. A container that ends with an error leaves its last words
//! in the pod's status.

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
mod unserved;
pub mod webhook;

use std::collections::BTreeSet;

use semver::Version;
use serde::Serialize;
use serde_json::Value;
use snafu::{OptionExt, Snafu};

use crate::{
    image::Image,
    model::{Driver, Release},
};

pub use profile::Profile;

/// Why a release cannot be rendered.
#[derive(Debug, Snafu)]
pub enum RenderError {
    /// An image the template needs is not in the release.
    #[snafu(display(
        "{driver} {version} has no image for its part `{part}`; the catalog is incomplete"
    ))]
    NoImage {
        /// Which driver.
        driver: Driver,
        /// Which release.
        version: Version,
        /// The part.
        part: &'static str,
    },
    /// Its manifest has to be fetched first.
    #[snafu(display("the manifest of {driver} {version} has to be fetched first, from {}", urls.join(", ")))]
    NotFetched {
        /// Which driver.
        driver: Driver,
        /// Which release.
        version: Version,
        /// Where it is.
        urls: Vec<String>,
    },
    /// The catalog was made for a newer operator.
    #[snafu(display(
        "the catalog describes {driver} {version} in a way only a newer operator knows"
    ))]
    Unknown {
        /// Which driver.
        driver: Driver,
        /// Which release.
        version: Version,
    },
    /// A published manifest cannot be adapted.
    #[snafu(display("the published manifest of {driver} {version} cannot be used"))]
    Published {
        /// Which driver.
        driver: Driver,
        /// Which release.
        version: Version,
        /// Why.
        source: from_manifest::AdaptError,
    },
}

/// When an object is applied. Everything of one stage is applied before anything of the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Stage {
    /// Namespaces.
    Namespaces,
    /// Definitions that later objects, or the driver's first breath, need.
    Definitions,
    /// Accounts and what they may do.
    Access,
    /// What pods read when they start.
    Settings,
    /// Deployments and the cloud controller.
    Controllers,
    /// What runs on every node; it needs a controller that answers.
    Nodes,
    /// Webhooks: last, when there is something to answer them.
    Admission,
}

/// One Kubernetes object.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Object(pub Value);

impl Object {
    fn text(&self, pointer: &str) -> &str {
        self.0.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    /// `apps/v1`.
    pub fn api_version(&self) -> &str {
        self.text("/apiVersion")
    }

    /// `Deployment`.
    pub fn kind(&self) -> &str {
        self.text("/kind")
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.text("/metadata/name")
    }

    /// Its namespace; empty for objects of the whole cluster.
    pub fn namespace(&self) -> &str {
        self.text("/metadata/namespace")
    }

    /// The pod template, for objects that make pods.
    pub fn pod_template(&self) -> Option<&Value> {
        self.0
            .pointer("/spec/template")
            .filter(|template| template.pointer("/spec/containers").is_some())
    }

    /// The same, with containers that leave no last words in the status of their pods: as it was
    /// rendered before they did.
    #[must_use]
    pub fn without_last_words(&self) -> Self {
        let mut object = self.clone();
        common::forget_last_words(&mut object.0);
        object
    }

    /// When it is applied.
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

/// An object the pods read and the renderer does not make, because it holds configuration or secrets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Expected {
    /// `Secret` or `ConfigMap`.
    pub kind: String,
    /// Where.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The keys that are read.
    pub keys: Vec<String>,
}

/// A release, ready to be applied.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rendered {
    /// The objects in the order of their stages.
    pub objects: Vec<Object>,
    /// What has to be there beside them.
    pub expects: Vec<Expected>,
    /// Every image, where it will really be pulled from.
    pub images: BTreeSet<String>,
}

impl Rendered {
    pub(crate) fn new(objects: Vec<Value>, expects: Vec<Expected>) -> Self {
        let mut objects: Vec<_> = objects.into_iter().map(Object).collect();
        for object in &mut objects {
            common::last_words(&mut object.0);
        }
        // Stable: within a stage the template's order stays, account before binding.
        objects.sort_by_key(Object::stage);
        let images = objects.iter().filter_map(Object::pod_template).flat_map(images_of).collect();
        Self { objects, expects, images }
    }

    /// An object by kind and name.
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

/// Renders a release for a profile.
pub fn render(release: &Release, profile: &Profile) -> Result<Rendered, RenderError> {
    let (driver, version) = (release.driver, release.version.clone());
    let manifest = &release.manifest;
    if let Some(template) = &manifest.csi {
        csi::render(release, template, profile)
    } else if let Some(template) = &manifest.cpi {
        cpi::render(release, template, profile)
    } else if manifest.cloud_controller.is_some() {
        cloud_controller::render(release, profile)
    } else if !manifest.objects.is_empty() {
        from_manifest::adapt(driver, manifest.objects.clone(), profile)
            .map_err(|source| RenderError::Published { driver, version, source })
    } else if manifest.urls.is_empty() {
        UnknownSnafu { driver, version }.fail()
    } else {
        NotFetchedSnafu { driver, version, urls: manifest.urls.clone() }.fail()
    }
}

/// The name under which a part's image will be pulled.
fn image(release: &Release, profile: &Profile, part: &'static str) -> Result<String, RenderError> {
    let (driver, version) = (release.driver, release.version.clone());
    let image = release.images.get(part).context(NoImageSnafu { driver, version, part })?;
    Ok(located(image, profile))
}

/// An image where it really is, with its digest if digests are wanted.
pub(crate) fn located(image: &Image, profile: &Profile) -> String {
    let moved = profile.images.rewrite.apply(image);
    // Without a tag there is only the digest to go by.
    if profile.images.pinned || moved.tag.is_none() { moved.to_string() } else { moved.tagged() }
}

/// The images a release may need, wherever it is installed: what to mirror before going offline.
pub fn images_to_mirror(release: &Release) -> BTreeSet<Image> {
    let published = release.manifest.objects.iter().cloned().map(Object);
    let named = published
        .filter_map(|object| object.pod_template().map(images_of))
        .flatten()
        .filter_map(|name| name.parse().ok());
    release.images.values().cloned().chain(named).collect()
}
