//! In what the manifests of releases differ: the data our templates are filled with.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Timings of one leader election.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Election {
    /// Seconds a lease lasts.
    pub lease: u32,
    /// Seconds the leader tries to renew it.
    pub renew: u32,
    /// Seconds between two tries.
    pub retry: u32,
}

/// Timings of a liveness probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeTiming {
    /// Seconds before the first look.
    pub delay: u32,
    /// Seconds an answer may take.
    pub timeout: u32,
    /// Seconds between two looks.
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

/// `GODEBUG` of the three programs, where a release sets it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Godebug {
    /// For the controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<String>,
    /// For the syncer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub syncer: Option<String>,
    /// For the node driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// In what one CSI release's manifest differs from another's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CsiTemplate {
    /// Lease timings of the sidecars; the sidecars' own defaults when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sidecar_election: Option<Election>,
    /// Lease timings of the syncer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub syncer_election: Option<Election>,
    /// The controller's liveness probe.
    pub controller_probe: ProbeTiming,
    /// `--worker-threads` of the attacher; its default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attacher_workers: Option<u32>,
    /// `--feature-gates` of the resizer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resizer_gates: Vec<String>,
    /// The provisioner has the Topology gate on unless told otherwise (5.0 and newer), so it is told.
    #[serde(default)]
    pub topology_gate_on_by_default: bool,
    /// The snapshotter passes `--extra-create-metadata`.
    #[serde(default)]
    pub snapshotter_metadata: bool,
    /// The programs know `--enable-profile-server`, which is then switched off.
    #[serde(default)]
    pub profile_server_flag: bool,
    /// The user the controller's containers run as; root when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_as_user: Option<i64>,
    /// `GODEBUG` where set.
    #[serde(default)]
    pub godebug: Godebug,
    /// The volumes-per-node limit is read from the environment (else it is a feature switch).
    #[serde(default)]
    pub max_volumes_env: bool,
    /// How Windows nodes are served; not at all when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub windows: Option<WindowsMode>,
    /// The controller keeps a generated cluster id in a ConfigMap and so must be allowed to make one.
    #[serde(default)]
    pub generates_cluster_id: bool,
    /// The controller keeps CNSVolumeInfo objects.
    #[serde(default)]
    pub volume_infos: bool,
    /// The webhook also looks at new PersistentVolumes.
    #[serde(default)]
    pub webhook_checks_volumes: bool,
}

/// In what one CPI release's manifest differs from another's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CpiTemplate {
    /// The release knows `--node-labels`.
    pub node_labels: bool,
    /// The service controller watches EndpointSlices.
    pub endpoint_slices: bool,
    /// Secrets are watched in the configured namespaces only; older releases watch those of the cluster.
    pub namespaced_secrets: bool,
}

/// In what one release of this project's cloud controller differs from another in its manifest: so far
/// in nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CloudControllerTemplate {}

/// Where a release's objects come from. Exactly one is set; none set means that the catalog was
/// made for a newer operator, and the release is not chosen.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Manifest {
    /// Our CSI template with these differences.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub csi: Option<CsiTemplate>,
    /// Our CPI template with these differences.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpi: Option<CpiTemplate>,
    /// Our template for the cloud controller of this project.
    #[serde(rename = "cloudController", skip_serializing_if = "Option::is_none")]
    pub cloud_controller: Option<CloudControllerTemplate>,
    /// A published manifest, carried in the catalog.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<Value>,
    /// A published manifest, to be fetched by whoever renders it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub urls: Vec<String>,
}

impl Manifest {
    /// Whether it says nothing this operator understands.
    pub fn is_unknown(&self) -> bool {
        let Self { csi, cpi, cloud_controller, objects, urls } = self;
        csi.is_none()
            && cpi.is_none()
            && cloud_controller.is_none()
            && objects.is_empty()
            && urls.is_empty()
    }
}
