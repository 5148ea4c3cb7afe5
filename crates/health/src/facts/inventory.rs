use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Known, Version};

/// The objects of a vCenter that the account can see, by managed object id.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Inventory {
    pub datacenters: BTreeMap<String, Datacenter>,
    pub hosts: BTreeMap<String, Host>,
    pub datastores: BTreeMap<String, Datastore>,
    pub vms: BTreeMap<String, Vm>,
    pub tags: Known<Tags>,
    pub policies: Known<Vec<StoragePolicy>>,
    /// Host groups that represent zones.
    pub host_groups: Known<Vec<HostGroup>>,
    /// Clusters with vSAN file service, by name.
    pub file_service: Known<BTreeSet<String>>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Datacenter {
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Host {
    pub name: String,
    /// Its inventory path.
    pub path: String,
    pub version: Version,
    pub connected: bool,
    pub maintenance: bool,
    /// Ids of the mounted, accessible datastores.
    pub datastores: BTreeSet<String>,
    /// Ids of the mounted but inaccessible datastores.
    pub unusable: BTreeSet<String>,
    /// Ids of its ancestors, nearest first: cluster, folders, datacenter, root.
    pub ancestors: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Datastore {
    pub name: String,
    /// Its inventory path.
    pub path: String,
    /// Its URL, `ds:///vmfs/volumes/.../`.
    pub url: String,
    pub accessible: bool,
    pub maintenance: bool,
    /// Its size in bytes.
    pub capacity: u64,
    /// Free bytes.
    pub free: u64,
    /// The datastore cluster it is in.
    pub storage_pod: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Vm {
    /// Its name in the inventory.
    pub name: String,
    /// Its inventory path.
    pub path: String,
    /// Name of its datacenter.
    pub datacenter: String,
    /// BIOS uuid, as vCenter writes it.
    pub bios_uuid: String,
    /// Host name reported by VMware Tools.
    pub guest_name: String,
    pub tools: Tools,
    pub power: Power,
    /// Whether vCenter can reach its files.
    pub accessible: bool,
    /// Whether the guest currently sees the ids of its disks (`disk.EnableUUID`).
    pub disk_uuid: Known<bool>,
    /// Whether `disk.EnableUUID` is set; it takes effect after a power cycle.
    pub disk_uuid_set: bool,
    /// Hardware version, for example 19.
    pub hardware: u32,
    pub scsi: Vec<ScsiController>,
    /// Names of its snapshots.
    pub snapshots: Vec<String>,
    /// Managed object id of its host.
    pub host: String,
    /// In the order of VMware Tools.
    pub nics: Vec<Nic>,
    /// Whether changed block tracking is on.
    pub cbt: Option<bool>,
    /// Ids of the container volumes attached to it.
    pub volumes: Vec<String>,
    /// Average latency of its disks in milliseconds, if measured.
    pub disk_latency_ms: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Tools {
    #[default]
    Running,
    NotRunning,
    NotInstalled,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Power {
    #[default]
    On,
    Off,
    Suspended,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ScsiController {
    pub paravirtual: bool,
    pub disks: u32,
}

/// A network adapter reported by VMware Tools.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Nic {
    /// Name of its network.
    pub network: String,
    pub addresses: Vec<String>,
    /// Whether it is an adapter of the VM, not an interface that the guest created.
    pub real: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Tags {
    /// Names of the categories.
    pub categories: BTreeSet<String>,
    /// Tags by the managed object id of the tagged object.
    pub attached: BTreeMap<String, Vec<Tag>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Tag {
    pub category: String,
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StoragePolicy {
    pub name: String,
    /// Ids of the datastores that satisfy it.
    pub datastores: Known<BTreeSet<String>>,
}

/// A host group that represents a zone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HostGroup {
    /// Failure domain that names it.
    pub failure_domain: String,
    pub name: String,
    pub problem: Option<String>,
}
