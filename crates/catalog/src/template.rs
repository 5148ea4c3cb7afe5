//! The manifest differences between releases: the parameters of VDO's own templates.

use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Election {
    /// Seconds that a lease lasts.
    pub lease: u32,
    /// Seconds during which the leader tries to renew the lease.
    pub renew: u32,
    /// Seconds between two attempts.
    pub retry: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeTiming {
    /// Seconds before the first probe.
    pub delay: u32,
    /// Seconds until the probe times out.
    pub timeout: u32,
    /// Seconds between two probes.
    pub period: u32,
}

/// How the driver reaches disks on a Windows node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WindowsMode {
    /// Through csi-proxy, which the admin installs on each node.
    CsiProxy,
    /// Through a HostProcess container.
    HostProcess,
}

/// `GODEBUG` per program, if the release sets it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Godebug {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub syncer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// The differences between the manifests of CSI releases.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CsiTemplate {
    /// Lease timings of the sidecars; if absent, their own defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sidecar_election: Option<Election>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub syncer_election: Option<Election>,
    pub controller_probe: ProbeTiming,
    /// `--worker-threads` of the attacher; if absent, its default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attacher_workers: Option<u32>,
    /// `--feature-gates` of the resizer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resizer_gates: Vec<String>,
    /// The provisioner (5.0 and newer) enables the Topology gate by default, so VDO sets it explicitly.
    #[serde(default)]
    pub topology_gate_on_by_default: bool,
    /// The snapshotter passes `--extra-create-metadata`.
    #[serde(default)]
    pub snapshotter_metadata: bool,
    /// The programs have the flag `--enable-profile-server`, which VDO then switches off.
    #[serde(default)]
    pub profile_server_flag: bool,
    /// The user of the controller's containers; if absent, root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_as_user: Option<i64>,
    #[serde(default)]
    pub godebug: Godebug,
    /// The driver reads the limit of volumes per node from the environment; otherwise it is a feature switch.
    #[serde(default)]
    pub max_volumes_env: bool,
    /// Absent if the release does not support Windows nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub windows: Option<WindowsMode>,
    /// The controller writes CNSVolumeInfo objects.
    #[serde(default)]
    pub volume_infos: bool,
    /// The webhook also validates new PersistentVolumes.
    #[serde(default)]
    pub webhook_checks_volumes: bool,
}

/// The differences between the manifests of CPI releases.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CpiTemplate {
    /// The release has the flag `--node-labels`.
    pub node_labels: bool,
    /// The service controller watches EndpointSlices.
    pub endpoint_slices: bool,
    /// The release watches Secrets in the configured namespaces only; older releases watch all Secrets.
    pub namespaced_secrets: bool,
}

/// The differences between the manifests of this project's cloud controller: none so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CloudControllerTemplate {}

/// The differences between the manifests of this project's storage driver: none so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StorageDriverTemplate {}

/// The source of a release's objects. At most one field is set. If none is, the catalog needs a newer
/// operator, and the release is not chosen.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Manifest {
    /// The CSI template with these parameters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub csi: Option<CsiTemplate>,
    /// The CPI template with these parameters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpi: Option<CpiTemplate>,
    /// The template of this project's cloud controller.
    #[serde(rename = "cloudController", skip_serializing_if = "Option::is_none")]
    pub cloud_controller: Option<CloudControllerTemplate>,
    /// The template of this project's storage driver.
    #[serde(rename = "storageDriver", skip_serializing_if = "Option::is_none")]
    pub storage_driver: Option<StorageDriverTemplate>,
    /// A published manifest, stored in the catalog.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<Value>,
    /// URLs of a published manifest; the caller fetches it before rendering.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub urls: Vec<String>,
}

impl Manifest {
    /// True if this operator knows none of the sources.
    pub fn is_unknown(&self) -> bool {
        let Self { csi, cpi, cloud_controller, storage_driver, objects, urls } = self;
        csi.is_none()
            && cpi.is_none()
            && cloud_controller.is_none()
            && storage_driver.is_none()
            && objects.is_empty()
            && urls.is_empty()
    }
}
