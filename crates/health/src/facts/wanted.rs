use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::Known;

/// The desired state of the drivers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Wanted {
    /// Whether the configuration could be read; it may be empty.
    pub read: Known<()>,
    /// `None` if no cloud provider is requested.
    pub cloud: Option<WantedCloud>,
    /// `None` if no storage driver is requested.
    pub storage: Option<WantedStorage>,
    /// Whether VDO sets `disk.EnableUUID` automatically.
    pub sets_disk_uuid: bool,
}

impl Wanted {
    /// Tag categories of both drivers, without duplicates.
    pub fn categories(&self) -> BTreeSet<&str> {
        let cloud = self.cloud.iter().flat_map(|c| c.zone.iter().chain(&c.region));
        let storage = self.storage.iter().flat_map(|s| &s.categories);
        cloud.chain(storage).map(String::as_str).collect()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WantedCloud {
    /// Names of its VsphereCloudConfigs.
    pub vcenters: BTreeSet<String>,
    /// Tag category of zones.
    pub zone: Option<String>,
    /// Tag category of regions.
    pub region: Option<String>,
    /// Subnets the internal address may come from, as written in the configuration.
    pub internal_subnets: Vec<String>,
    /// Subnets that the internal address must not come from.
    pub excluded_subnets: Vec<String>,
    pub ipv4: bool,
    pub ipv6: bool,
    /// Name of the network the internal address may come from.
    pub internal_network: Option<String>,
    /// Whether the driver is configured never to delete nodes.
    pub keeps_nodes: bool,
    /// Whether these settings are unknown: a driver runs, but no configuration describes it.
    pub assumed: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WantedStorage {
    /// Names of its VsphereCloudConfigs.
    pub vcenters: BTreeSet<String>,
    /// Tag categories of the topology; empty without topology.
    pub categories: Vec<String>,
    /// Whether ReadWriteMany volumes are requested.
    pub file_volumes: bool,
    pub snapshots: bool,
    /// The limit per volume.
    pub snapshots_per_volume: u32,
    /// `None` for the driver's default.
    pub volumes_per_node: Option<u32>,
    pub kubelet_path: String,
    /// Whether these settings are unknown: a driver runs, but no configuration describes it.
    pub assumed: bool,
}
