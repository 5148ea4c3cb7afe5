//! `csi-vsphere.conf`, the configuration of the CSI driver, in gcfg.
//!
//! An empty text or list and a `None` number mean that a key is not set. The driver does not distinguish the two,
//! and the writer omits such keys.

mod keys;
mod problems;

use std::collections::BTreeMap;

use crate::gcfg;
use crate::keys::{Read, ReadError, UnknownKey, WriteError, nearest, read_section, write_section};
use crate::problem::Problem;
use crate::secret::SecretText;

/// The driver's limit.
pub const MAX_VCENTERS: usize = 5;

/// The driver's limit.
pub const MAX_TOPOLOGY_CATEGORIES: usize = 5;

/// The driver's limit, in bytes.
pub const MAX_CLUSTER_ID: usize = 64;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CsiConfig {
    /// The cluster, and defaults for all vCenters.
    pub global: Global,
    /// The vCenters by address; up to [`MAX_VCENTERS`].
    pub vcenters: BTreeMap<String, VirtualCenter>,
    pub snapshot: Snapshot,
    /// Access rules for file shares, by name.
    pub net_permissions: BTreeMap<String, NetPermission>,
    pub labels: Labels,
    /// Node labels for zone and region categories; only together with [`Labels::zone`].
    pub topology_categories: BTreeMap<String, TopologyCategory>,
    /// How a guest cluster reaches its Supervisor; only set in guest clusters.
    pub guest_cluster: GuestCluster,
}

/// The cluster, and defaults for all vCenters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Global {
    /// The id of the cluster in CNS. Unique per vCenter; never changes while volumes exist.
    pub cluster_id: String,
    /// The Supervisor's id; Supervisor only.
    pub supervisor_id: String,
    /// The distribution that vCenter shows; if empty, the driver guesses it.
    pub cluster_distribution: String,
    /// The address of a vCenter without a section of its own.
    pub vcenter_ip: String,
    /// For vCenters without a user of their own.
    pub user: String,
    /// For vCenters without a password of their own.
    pub password: SecretText,
    /// Port; the driver's default is 443.
    pub port: Option<u16>,
    /// Do not verify certificates. A vCenter section cannot turn this off again.
    pub insecure_flag: bool,
    /// Path of a CA bundle inside the container. Not inherited by vCenter sections.
    pub ca_file: String,
    /// Thumbprint of the certificate. Not inherited by vCenter sections.
    pub thumbprint: String,
    /// The datacenters to search; all if empty.
    pub datacenters: Vec<String>,
    /// Minutes between clean-ups of finished CnsRegisterVolume objects (720).
    pub cns_register_volumes_cleanup: Option<u32>,
    /// Minutes between clean-ups of orphaned claims (10).
    pub cns_pvc_protection_cleanup: Option<u32>,
    /// Minutes between clean-ups of stale migration objects (120).
    pub volume_migration_cleanup: Option<u32>,
    /// Minutes between checks of the datastores that the user has permission for (5).
    pub csi_auth_check: Option<u32>,
    /// Minutes between clean-ups of stale operation requests (15).
    pub cns_volume_operation_request_cleanup: Option<u32>,
    /// Minutes between checks of preferred datastores (5).
    pub csi_fetch_preferred_datastores: Option<u32>,
    /// The maximum number of volumes in a CNS query result (10000).
    pub query_limit: Option<u32>,
    /// The number of volumes that may differ between CNS and Kubernetes before listing fails (50).
    pub list_volume_threshold: Option<u32>,
}

/// One vCenter. Keys that are not set come from [`Global`], except CA and thumbprint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VirtualCenter {
    /// User, fully qualified: `name@domain` or `domain\name`.
    pub user: String,
    pub password: SecretText,
    pub port: Option<u16>,
    /// Do not verify the certificate.
    pub insecure_flag: bool,
    /// Path of a CA bundle inside the container.
    pub ca_file: String,
    /// Thumbprint of the certificate; used if there is no CA.
    pub thumbprint: String,
    /// The datacenters to search; all if empty.
    pub datacenters: Vec<String>,
    /// vSAN clusters for file volumes, by id; releases 3.x.
    pub target_vsan_file_share_clusters: Vec<String>,
    /// vSAN datastores for file volumes, by URL; releases 2.x, ignored by 3.x.
    pub target_vsan_file_share_datastore_urls: Vec<String>,
    /// Datastore of StorageClasses migrated from the in-tree driver.
    pub migration_datastore_url: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Snapshots per block volume (3).
    pub global_max_per_block_volume: Option<u32>,
    /// The same on vSAN; 0 means no separate limit.
    pub granular_max_per_block_volume_vsan: Option<u32>,
    /// The same on vVols; 0 means no separate limit.
    pub granular_max_per_block_volume_vvol: Option<u32>,
}

/// An access rule for file shares.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetPermission {
    /// Address, range or subnet; the driver's default is `*`.
    pub ips: String,
    /// `READ_WRITE` (default), `READ_ONLY` or `NO_ACCESS`.
    pub permissions: String,
    /// Removes root's permissions.
    pub root_squash: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Labels {
    /// Tag categories, up to [`MAX_TOPOLOGY_CATEGORIES`]; required with more than one vCenter.
    pub topology_categories: Vec<String>,
    /// The category of zone tags; deprecated, excludes `topology_categories`.
    pub zone: String,
    /// The category of region tags; deprecated, excludes `topology_categories`.
    pub region: String,
}

/// The node label of a zone or region category.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TopologyCategory {
    /// For example `topology.kubernetes.io/zone`.
    pub label: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GuestCluster {
    pub endpoint: String,
    /// Its port; the driver's default is 6443.
    pub port: Option<u16>,
    pub cluster_uid: String,
    pub cluster_name: String,
    pub cluster_distribution: String,
    /// The API version of the object that the cluster was created from.
    pub cluster_api_version: String,
    /// The kind of the object that the cluster was created from.
    pub cluster_kind: String,
}

const SECTIONS: [&str; 7] =
    ["Global", "VirtualCenter", "Snapshot", "NetPermissions", "Labels", "TopologyCategory", "GC"];

impl CsiConfig {
    pub fn read(text: &str) -> Result<Read<Self>, ReadError> {
        let sections = gcfg::parse(text).map_err(|source| ReadError::Gcfg { source })?;
        if sections.is_empty() {
            return Err(ReadError::Empty);
        }
        let mut config = Self::default();
        let mut unknown = Vec::new();
        for section in &sections {
            config.take(section, &mut unknown)?;
        }
        Ok(Read { config, unknown })
    }

    /// Equal configurations give equal texts.
    pub fn render(&self) -> Result<SecretText, WriteError> {
        let Self {
            global,
            vcenters,
            snapshot,
            net_permissions,
            labels,
            topology_categories,
            guest_cluster,
        } = self;
        let mut writer = gcfg::Writer::default();
        let w = &mut writer;
        write_section(w, "Global", None, keys::GLOBAL, global)?;
        for (name, vcenter) in vcenters {
            write_section(w, "VirtualCenter", Some(name), keys::VCENTER, vcenter)?;
        }
        write_section(w, "Snapshot", None, keys::SNAPSHOT, snapshot)?;
        for (name, rule) in net_permissions {
            write_section(w, "NetPermissions", Some(name), keys::NET_PERMISSION, rule)?;
        }
        write_section(w, "Labels", None, keys::LABELS, labels)?;
        for (name, category) in topology_categories {
            write_section(w, "TopologyCategory", Some(name), keys::TOPOLOGY_CATEGORY, category)?;
        }
        write_section(w, "GC", None, keys::GUEST_CLUSTER, guest_cluster)?;
        Ok(writer.finish())
    }

    /// Everything that the driver would refuse or fail on.
    pub fn problems(&self) -> Vec<Problem> {
        problems::find(self)
    }

    /// The user and password that the driver uses for a vCenter: its own or those of [`Global`].
    pub fn login<'a>(&'a self, vcenter: &'a VirtualCenter) -> (&'a str, &'a SecretText) {
        let user = if vcenter.user.is_empty() { &self.global.user } else { &vcenter.user };
        let own = &vcenter.password;
        (user, if own.is_empty() { &self.global.password } else { own })
    }

    fn take(
        &mut self,
        section: &gcfg::Section,
        unknown: &mut Vec<UnknownKey>,
    ) -> Result<(), ReadError> {
        match (section.name.to_ascii_lowercase().as_str(), &section.subsection) {
            ("global", None) => read_section(section, keys::GLOBAL, &mut self.global, unknown),
            ("snapshot", None) => {
                read_section(section, keys::SNAPSHOT, &mut self.snapshot, unknown)
            }
            ("labels", None) => read_section(section, keys::LABELS, &mut self.labels, unknown),
            ("gc", None) => {
                read_section(section, keys::GUEST_CLUSTER, &mut self.guest_cluster, unknown)
            }
            ("virtualcenter", Some(name)) => {
                let into = self.vcenters.entry(name.clone()).or_default();
                read_section(section, keys::VCENTER, into, unknown)
            }
            ("netpermissions", Some(name)) => {
                let into = self.net_permissions.entry(name.clone()).or_default();
                read_section(section, keys::NET_PERMISSION, into, unknown)
            }
            ("topologycategory", Some(name)) => {
                let into = self.topology_categories.entry(name.clone()).or_default();
                read_section(section, keys::TOPOLOGY_CATEGORY, into, unknown)
            }
            ("virtualcenter" | "netpermissions" | "topologycategory", None) => {
                let expected =
                    "followed by a name in quotes, such as [VirtualCenter \"vc.example.com\"]";
                Err(ReadError::Value { path: format!("[{}]", section.name), expected })
            }
            _ => {
                let nearest = nearest(&section.name, SECTIONS.into_iter());
                unknown.push(UnknownKey { path: format!("[{}]", section.name), nearest });
                Ok(())
            }
        }
    }
}
