//! How VDO manages the drivers: upgrades, images, remediation, adoption, deletion.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::text::{ObjectName, Registry, Span, TimeOfDay, TimeZone};

/// When and how VDO upgrades drivers.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Upgrades {
    /// Which release VDO selects.
    ///
    /// Default: `Stable`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<UpgradePolicy>,

    /// When upgrades can start. If omitted, they start at any time.
    ///
    /// Example: `{days: [Saturday, Sunday], start: "02:00", duration: 4h, timeZone: Europe/Berlin}`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<UpgradeWindow>,

    /// Which catalog of driver releases VDO uses.
    ///
    /// Default: `Online` if a CompatibilityConfig exists, else `Embedded`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<CatalogSource>,
}

/// Which release VDO selects.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum UpgradePolicy {
    /// The newest release that fits the cluster.
    Latest,
    /// The newest proven release that fits the cluster: it is in the stable channel, and the catalog has a
    /// digest for each of its images.
    #[default]
    Stable,
    /// Only the release in `version`.
    Pinned,
    /// The release that runs now. VDO reports newer releases; `vdoctl upgrade`
    /// starts an upgrade.
    Manual,
}

/// When upgrades can start.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpgradeWindow {
    /// The days on which the window opens. If omitted, it opens every day.
    ///
    /// Example: `[Saturday, Sunday]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 7))]
    pub days: Vec<Weekday>,

    /// The time at which the window opens.
    ///
    /// Example: `02:00`
    pub start: TimeOfDay,

    /// How long the window stays open. VDO finishes a step that it started in time.
    ///
    /// Example: `4h`
    #[x_kube(validation = Rule::new("!self.matches(r'^(0+[dhms])+$')")
        .message("must be longer than zero, for example 4h"))]
    pub duration: Span,

    /// The time zone of `start`.
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

/// Which catalog of driver releases VDO uses.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CatalogSource {
    /// Only the catalog that is part of the operator.
    Embedded,
    /// The newest catalog from the CompatibilityConfig.
    Online,
}

/// The registry that nodes pull driver images from.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("!(has(self.registry) && has(self.mirrors) && size(self.mirrors) > 0)")
    .message("set registry for one mirror of all images, or mirrors for several, not both"))]
#[serde(rename_all = "camelCase")]
pub struct Images {
    /// One registry that mirrors all images. Each image keeps its path and digest.
    ///
    /// Example: `registry.example.com/vsphere`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry: Option<Registry>,

    /// Several registries, each with a mirror of some images.
    ///
    /// Example: `[{from: registry.k8s.io, to: registry.example.com/k8s}]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub mirrors: Vec<Mirror>,

    /// Names of pull Secrets in the namespace of this object. VDO copies them to the namespaces of the
    /// drivers.
    ///
    /// Example: `[registry]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub pull_secrets: Vec<ObjectName>,
}

/// A mirror of some images.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mirror {
    /// The registry of the original images, with an optional path.
    ///
    /// Example: `registry.k8s.io/csi-vsphere`
    pub from: Registry,
    /// The mirror that replaces it.
    ///
    /// Example: `registry.example.com/csi`
    pub to: Registry,
}

/// Which problems VDO fixes without asking.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Remediation {
    /// For every repair that has no setting of its own.
    ///
    /// Default: `Propose`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<Remedy>,

    /// Set `disk.EnableUUID` on node VMs that lack it. Each VM then needs one power cycle, which VDO
    /// leaves to you.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_uuid: Option<Remedy>,

    /// Add the taint that a node needs until the cloud provider initializes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_taints: Option<Remedy>,

    /// Remove entries from CSINode objects that name a VM that no longer exists, so that the driver
    /// registers again. VDO never does this while a volume is attached to the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csi_nodes: Option<Remedy>,

    /// For drivers that VDO does not manage: replace a registry that was shut down with its successor.
    /// Drivers that VDO installs always use the successor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_registry: Option<Remedy>,

    /// Renew the certificates of admission webhooks of drivers that VDO does not manage, before they
    /// expire. VDO itself installs no webhook.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook_certificates: Option<Remedy>,

    /// Add feature switches that the release of the storage driver knows and its ConfigMap lacks.
    /// Existing switches stay as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feature_states: Option<Remedy>,

    /// Report the roles for privileges that the vCenter user lacks. VDO never grants privileges, so `Fix`
    /// does the same as `Propose`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub privileges: Option<Remedy>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Repair {
    DiskUuid,
    NodeTaints,
    CsiNodes,
    ImageRegistry,
    WebhookCertificates,
    FeatureStates,
    Privileges,
}

impl Remediation {
    /// The setting for one repair, or the default.
    pub fn remedy(&self, repair: Repair) -> Remedy {
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

/// How VDO handles a problem that it can fix.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Remedy {
    /// Report the problem.
    Off,
    /// Report the problem and the fix.
    #[default]
    Propose,
    /// Fix the problem and report it.
    Fix,
}

/// A finding that you accept.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AcknowledgedFinding {
    /// The code of the finding.
    ///
    /// Example: `VDO-1207`
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^VDO-[0-9]{4}$')")
        .message("must be the code of a finding, for example VDO-1207"))]
    pub code: String,

    /// The name of the only object for which you accept the finding, as the finding shows it. If
    /// omitted, you accept it for all objects.
    ///
    /// Example: `worker-3`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub object: Option<String>,

    /// Why you accept it, for later readers.
    ///
    /// Example: `backup window`
    #[schemars(length(min = 1, max = 512))]
    pub reason: String,

    /// When the acknowledgement ends and VDO raises the finding again. If omitted, it never ends.
    ///
    /// Example: `2027-01-31T00:00:00Z`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
}

/// Whether VDO adopts drivers that it did not install.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Adoption {
    /// VDO reports the driver and what its adoption would change, and waits.
    #[default]
    Propose,
    /// VDO adopts a driver that matches a known release.
    Automatic,
    /// VDO does not touch the driver.
    Never,
}

/// Whether VDO keeps or uninstalls the drivers when you delete the VDOConfig.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeletionPolicy {
    /// The drivers keep running; VDO no longer manages them.
    #[default]
    Retain,
    /// VDO uninstalls the drivers, unless volumes still depend on them.
    Remove,
}
