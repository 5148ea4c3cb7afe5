//! How VDO may act: upgrades, images, repairs, adoption, deletion.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::text::{ObjectName, Registry, Span, TimeOfDay, TimeZone};

/// When and how drivers are upgraded.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Upgrades {
    /// Which release VDO aims for.
    ///
    /// Default: `Stable`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<UpgradePolicy>,

    /// When upgrades may start; at any time if left out.
    ///
    /// Example: `{days: [Saturday, Sunday], start: "02:00", duration: 4h, timeZone: Europe/Berlin}`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<UpgradeWindow>,

    /// Where knowledge about releases comes from.
    ///
    /// Default: `Online` if there is a CompatibilityConfig, else `Embedded`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<CatalogSource>,
}

/// Which release VDO aims for.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum UpgradePolicy {
    /// The newest release that fits.
    Latest,
    /// The newest release that fits and has proven itself.
    #[default]
    Stable,
    /// The release named in `version`, and no other.
    Pinned,
    /// Whatever runs; VDO says what would fit and waits to be told.
    Manual,
}

/// When upgrades may start.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpgradeWindow {
    /// Days on which the window opens; every day if left out.
    ///
    /// Example: `[Saturday, Sunday]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 7))]
    pub days: Vec<Weekday>,

    /// When it opens.
    ///
    /// Example: `02:00`
    pub start: TimeOfDay,

    /// How long it stays open. A step that has begun is finished.
    ///
    /// Example: `4h`
    #[x_kube(validation = Rule::new("!self.matches(r'^(0+[dhms])+$')")
        .message("must be longer than nothing, for example 4h"))]
    pub duration: Span,

    /// Time zone of `start`.
    ///
    /// Default: `UTC`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<TimeZone>,
}

/// A day of the week.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Weekday {
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

/// Where knowledge about releases comes from.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CatalogSource {
    /// From the catalog VDO carries, and nothing else.
    Embedded,
    /// From the newest catalog a CompatibilityConfig leads to.
    Online,
}

/// Where images are pulled from.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("!(has(self.registry) && has(self.mirrors) && size(self.mirrors) > 0)")
    .message("set registry for one mirror of everything, or mirrors for several, not both"))]
#[serde(rename_all = "camelCase")]
pub struct Images {
    /// One registry that mirrors all images; each keeps its path and digest below it.
    ///
    /// Example: `registry.example.com/vsphere`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry: Option<Registry>,

    /// Registries that mirror parts, if they differ.
    ///
    /// Example: `[{from: registry.k8s.io, to: registry.example.com/k8s}]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub mirrors: Vec<Mirror>,

    /// Secrets to pull with, by name; VDO copies them to the drivers' namespaces.
    ///
    /// Example: `[registry]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub pull_secrets: Vec<ObjectName>,
}

/// A mirror of a part of the images.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mirror {
    /// Registry, or registry and path, the image comes from.
    ///
    /// Example: `registry.k8s.io/csi-vsphere`
    pub from: Registry,
    /// What stands in its place.
    ///
    /// Example: `registry.example.com/csi`
    pub to: Registry,
}

/// Which repairs VDO makes by itself.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Remediation {
    /// For every kind of repair not named below.
    ///
    /// Default: `Propose`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<Remedy>,

    /// Turn `disk.EnableUUID` on for node VMs that have it off. Each VM then needs one power cycle,
    /// which VDO leaves to you.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_uuid: Option<Remedy>,

    /// Give nodes the taint they miss while the cloud provider has not seen them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_taints: Option<Remedy>,

    /// Remove entries from CSINode objects that name a machine which is gone, and let the driver register
    /// anew. Never while a volume is attached to the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csi_nodes: Option<Remedy>,

    /// Let drivers that others installed pull from the successor of a registry that has been shut down.
    /// What VDO installs pulls from there anyway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_registry: Option<Remedy>,

    /// Renew certificates of webhooks that others installed before they expire. VDO's own it renews
    /// anyway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook_certificates: Option<Remedy>,

    /// Add feature switches the storage driver's release has and its ConfigMap lacks. Switches that are
    /// there stay as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feature_states: Option<Remedy>,

    /// Privileges the vCenter user lacks. VDO proposes the roles and never grants them by itself: `Fix`
    /// does what `Propose` does, and says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub privileges: Option<Remedy>,
}

/// A kind of repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Repair {
    /// Turn `disk.EnableUUID` on.
    DiskUuid,
    /// Give nodes the taint they miss.
    NodeTaints,
    /// Remove stale entries from CSINode objects.
    CsiNodes,
    /// Replace registries that have been shut down.
    ImageRegistry,
    /// Renew webhook certificates.
    WebhookCertificates,
    /// Bring feature switches in line with the release.
    FeatureStates,
    /// Grant missing privileges.
    Privileges,
}

impl Remediation {
    /// What VDO does about faults of one kind.
    pub fn of(&self, repair: Repair) -> Remedy {
        let own = match repair {
            Repair::DiskUuid => self.disk_uuid,
            Repair::NodeTaints => self.node_taints,
            Repair::CsiNodes => self.csi_nodes,
            Repair::ImageRegistry => self.image_registry,
            Repair::WebhookCertificates => self.webhook_certificates,
            Repair::FeatureStates => self.feature_states,
            Repair::Privileges => self.privileges,
        };
        own.or(self.default).unwrap_or_default()
    }
}

/// What VDO does about a fault it could repair.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Remedy {
    /// Report it.
    Off,
    /// Report it, and what the repair would be.
    #[default]
    Propose,
    /// Repair it, and report that.
    Fix,
}

/// A finding somebody decided to live with.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AcknowledgedFinding {
    /// Its code.
    ///
    /// Example: `VDO-1207`
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^VDO-[0-9]{4}$')")
        .message("must be the code of a finding, for example VDO-1207"))]
    pub code: String,

    /// Name of the one object it is accepted for, as the finding shows it; all if left out.
    ///
    /// Example: `worker-3`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub object: Option<String>,

    /// Why, for whoever reads it later.
    ///
    /// Example: `backup window`
    #[schemars(length(min = 1, max = 512))]
    pub reason: String,

    /// Until when; afterwards it is raised again. Forever if left out.
    ///
    /// Example: `2027-01-31T00:00:00Z`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
}

/// What happens to drivers somebody else installed.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Adoption {
    /// VDO says what it found and what adopting it would change, and waits.
    #[default]
    Propose,
    /// VDO takes over a driver that matches a known release.
    Automatic,
    /// VDO leaves it alone.
    Never,
}

/// What happens to the drivers when the VDOConfig is deleted.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeletionPolicy {
    /// They keep running, no longer looked after.
    #[default]
    Retain,
    /// They are taken away, unless volumes still depend on them.
    Remove,
}
