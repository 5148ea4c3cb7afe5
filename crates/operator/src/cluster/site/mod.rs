//! The objects around the drivers in the cluster: CRDs, feature switches, Secrets, webhooks, snapshots, and
//! the platform's own vSphere configuration.
//!
//! ```text
//!   sources ─► watched ─► RelatedObjects ─► facts
//! ```
//!
//! The caches store each object as small as a fact. VDO watches the kinds that not every cluster has only
//! while they are defined.

mod network;
mod openshift;
mod snapshots;
mod sources;
mod watched;
mod webhooks;

use std::collections::BTreeMap;

use health::facts::{AccessReview, Known, MountFailure, OpenShift, Webhook};
use plan::facts::ClusterProxy;

use crate::audit::Domain;

pub(crate) use self::{
    network::is_plugin,
    watched::{Place, Watched},
};
pub(crate) use self::{
    network::{Plugin, network},
    snapshots::{Content, tally},
    webhooks::{Answering, Hook, Served},
};

/// The ConfigMaps that VDO reads in every namespace.
pub(crate) const CONFIG_MAPS: [&str; 3] =
    [super::workloads::FEATURES, plan::names::CSI_CLUSTER_ID, openshift::CLOUD_CONFIG];

/// The Proxies of OpenShift that VDO reads.
pub(crate) const PROXIES: [&str; 1] = [openshift::PROXY];

/// Items by `namespace/name`, or by name alone.
type Items<T> = Known<BTreeMap<String, T>>;

/// The state of the site.
#[derive(Clone, Debug, Default)]
pub(crate) struct RelatedObjects {
    /// The CRDs of [`sources::DEFINITIONS`] that exist.
    pub(crate) definitions: Items<()>,
    /// The CSIDriver of the storage driver.
    pub(crate) csi_driver: Items<()>,
    /// The storage driver's feature switches.
    pub(crate) features: Items<BTreeMap<String, String>>,
    /// The cluster ids that the storage driver generated.
    pub(crate) cluster_ids: Items<String>,
    /// Secrets in the allowed namespaces, except `kube-system`.
    pub(crate) secrets: Items<()>,
    /// The Secrets in `kube-system` that VDO watches by name, and whether each exists.
    pub(crate) kube_system_secrets: BTreeMap<String, Known<bool>>,
    /// Namespaces that enforce a pod security level.
    pub(crate) pod_security: Items<String>,
    /// The drivers' webhooks.
    pub(crate) hooks: Items<Hook>,
    /// The certificates that the webhooks serve.
    pub(crate) certificates: Items<Served>,
    /// The pods that answer for the webhooks' Services.
    pub(crate) answering: Items<Answering>,
    /// Errors of the storage driver about the topology of nodes.
    pub(crate) topologies: Items<String>,
    /// Disks that could not be mounted: the name of the node, and the reason.
    pub(crate) mounts: Items<(String, MountFailure)>,
    /// Volumes that pods wait for because another node holds them: the volume, and the pod.
    pub(crate) contests: Items<(String, String)>,
    /// OpenShift's own view of vSphere.
    pub(crate) infrastructure: Items<openshift::Infrastructure>,
    /// OpenShift's proxy of the whole cluster.
    pub(crate) proxy: Items<ClusterProxy>,
    /// The cloud provider's configuration that OpenShift writes, or the reason why VDO cannot read it.
    pub(crate) cloud_config: Items<Result<openshift::CloudConfig, String>>,
}

impl RelatedObjects {
    /// The webhooks with their certificates and the pods that answer for them.
    pub(crate) fn webhooks(&self) -> Known<Vec<Webhook>> {
        webhooks::webhooks(self)
    }

    /// OpenShift's configuration for vSphere; none if this is not OpenShift on vSphere.
    pub(crate) fn openshift(&self) -> Known<Option<OpenShift>> {
        openshift::openshift(self)
    }

    /// The pods that wait for volumes of another node, by name of the PersistentVolume.
    pub(crate) fn contested(&self) -> Known<BTreeMap<String, String>> {
        map(&self.contests, |all| all.values().cloned().collect())
    }

    /// The failure domains that OpenShift maps to host groups.
    pub(crate) fn domains(&self) -> Vec<Domain> {
        let all = self.infrastructure.get().into_iter().flat_map(BTreeMap::values);
        all.flat_map(|one| one.domains.iter().cloned()).collect()
    }

    /// The permissions that VDO lacks, according to failed reads.
    pub(crate) fn missing_permissions(&self) -> Vec<AccessReview> {
        let mut reviews = Vec::new();
        let mut review = |group: &str, resource: &str, purpose: &str, reason: Option<&str>| {
            if reason.is_some_and(|reason| reason.contains("forbidden")) {
                reviews.push(AccessReview::to_list(group, resource, purpose));
            }
        };
        let defined = "checking the storage driver's CRDs and registration";
        let group = "apiextensions.k8s.io";
        review(group, "customresourcedefinitions", defined, self.definitions.reason());
        review("storage.k8s.io", "csidrivers", defined, self.csi_driver.reason());
        let switches = "comparing the storage driver's feature switches";
        review("", "configmaps", switches, self.features.reason());
        let secrets = "checking the drivers' configuration";
        review("", "secrets", secrets, self.secrets.reason());
        let pods = "checking the pod security level of the drivers' namespaces";
        review("", "namespaces", pods, self.pod_security.reason());
        let hooks = "checking the drivers' webhooks";
        let group = "admissionregistration.k8s.io";
        review(group, "validatingwebhookconfigurations", hooks, self.hooks.reason());
        review("discovery.k8s.io", "endpointslices", hooks, self.answering.reason());
        let zones = "reporting why the storage driver does not know the zone of a node";
        review("cns.vmware.com", "csinodetopologies", zones, self.topologies.reason());
        let platform = "comparing OpenShift's view of vSphere with the drivers'";
        review("config.openshift.io", "infrastructures", platform, self.infrastructure.reason());
        let proxy = "passing the cluster's proxy to the drivers";
        review("config.openshift.io", "proxies", proxy, self.proxy.reason());
        reviews
    }
}

/// Applies `change` to a known value.
pub(crate) fn map<T, R>(known: &Known<T>, change: impl FnOnce(&T) -> R) -> Known<R> {
    match known {
        Known::Known(value) => Known::Known(change(value)),
        Known::Unknown { reason } => Known::unknown(reason),
    }
}

/// Adds to a known result. If one part is unknown, the whole is unknown.
fn merge<T>(all: &mut Items<T>, more: Items<T>) {
    match (all.get_mut(), more) {
        (Some(all), Known::Known(more)) => all.extend(more),
        (Some(_), Known::Unknown { reason }) => *all = Known::Unknown { reason },
        (None, _) => {}
    }
}
