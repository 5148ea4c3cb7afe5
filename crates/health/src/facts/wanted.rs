use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::Known;

/// What the drivers are asked to do, by whoever configured them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Wanted {
    /// That what was written down could be read; nothing may have been.
    pub read: Known<()>,
    /// The cloud provider; absent if there is none.
    pub cloud: Option<WantedCloud>,
    /// The storage driver; absent if there is none.
    pub storage: Option<WantedStorage>,
    /// Whether VDO shall turn `disk.EnableUUID` on by itself.
    pub sets_disk_uuid: bool,
}

impl Wanted {
    /// Tag categories of both drivers, without doubles.
    pub fn categories(&self) -> BTreeSet<&str> {
        let cloud = self.cloud.iter().flat_map(|c| c.zone.iter().chain(&c.region));
        let storage = self.storage.iter().flat_map(|s| &s.categories);
        cloud.chain(storage).map(String::as_str).collect()
    }
}

/// What the cloud provider is asked to do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WantedCloud {
    /// Names of the vCenters it is told of.
    pub vcenters: BTreeSet<String>,
    /// Tag category of zones.
    pub zone: Option<String>,
    /// Tag category of regions.
    pub region: Option<String>,
    /// Subnets the internal address may come from, as written in the configuration.
    pub internal_subnets: Vec<String>,
    /// Subnets it may not come from.
    pub excluded_subnets: Vec<String>,
    /// Whether IPv4 addresses are looked for.
    pub ipv4: bool,
    /// Whether IPv6 addresses are looked for.
    pub ipv6: bool,
    /// Name of the network the internal address may come from.
    pub internal_network: Option<String>,
    /// Whether it is forbidden to delete nodes.
    pub keeps_nodes: bool,
    /// Whether nobody said any of this: the driver is taken to be wanted, its settings are not known.
    pub assumed: bool,
}

/// What the storage driver is asked to do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WantedStorage {
    /// Names of the vCenters it is told of.
    pub vcenters: BTreeSet<String>,
    /// Tag categories volumes follow; empty without topology.
    pub categories: Vec<String>,
    /// Whether volumes many pods can write are asked for.
    pub file_volumes: bool,
    /// Whether snapshots are asked for.
    pub snapshots: bool,
    /// How many snapshots one volume may have.
    pub snapshots_per_volume: u32,
    /// How many volumes one node should hold; the driver's default if absent.
    pub volumes_per_node: Option<u32>,
    /// Kubelet's directory the driver is told of.
    pub kubelet_path: String,
    /// Whether nobody said any of this: the driver is taken to be wanted, its settings are not known.
    pub assumed: bool,
}
