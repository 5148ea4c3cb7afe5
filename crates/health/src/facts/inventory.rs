use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Known, Version};

/// What is in a vCenter, as far as the account may see. Objects are keyed by their reference.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Inventory {
    /// Datacenters.
    pub datacenters: BTreeMap<String, Datacenter>,
    /// Hosts.
    pub hosts: BTreeMap<String, Host>,
    /// Datastores.
    pub datastores: BTreeMap<String, Datastore>,
    /// VMs.
    pub vms: BTreeMap<String, Vm>,
    /// Tag categories and tags.
    pub tags: Known<Tags>,
    /// Storage policies.
    pub policies: Known<Vec<Policy>>,
    /// Groups of hosts that stand for zones.
    pub host_groups: Known<Vec<HostGroup>>,
    /// Clusters with vSAN file service, by name.
    pub file_service: Known<BTreeSet<String>>,
}

/// A datacenter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Datacenter {
    /// Its name.
    pub name: String,
}

/// An ESXi host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Its inventory path.
    pub path: String,
    /// Its version.
    pub version: Version,
    /// Whether vCenter is connected to it.
    pub connected: bool,
    /// Whether it is in maintenance.
    pub maintenance: bool,
    /// References of the datastores it mounts and can use.
    pub datastores: BTreeSet<String>,
    /// References of those it mounts and cannot use at present.
    pub unusable: BTreeSet<String>,
    /// References of what stands above it, nearest first: cluster, folders, datacenter, root.
    pub ancestors: Vec<String>,
}

/// A datastore.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Datastore {
    /// Its name.
    pub name: String,
    /// Its inventory path.
    pub path: String,
    /// Its URL, `ds:///vmfs/volumes/.../`.
    pub url: String,
    /// Whether it can be used now.
    pub accessible: bool,
    /// Whether it is in maintenance.
    pub maintenance: bool,
    /// Its size in bytes.
    pub capacity: u64,
    /// What is free of it.
    pub free: u64,
    /// The datastore cluster it is in.
    pub storage_pod: Option<String>,
}

/// A virtual machine.
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
    /// Host name, as VMware Tools report it.
    pub guest_name: String,
    /// VMware Tools.
    pub tools: Tools,
    /// Power.
    pub power: Power,
    /// Whether vCenter can reach its files.
    pub accessible: bool,
    /// Whether the guest sees the ids of its disks (`disk.EnableUUID`), as it runs now.
    pub disk_uuid: Known<bool>,
    /// Whether that is already set and waits for a power cycle.
    pub disk_uuid_set: bool,
    /// Hardware version, for example 19.
    pub hardware: u32,
    /// SCSI controllers.
    pub scsi: Vec<ScsiController>,
    /// Names of its snapshots.
    pub snapshots: Vec<String>,
    /// Reference of its host.
    pub host: String,
    /// Its network cards, in the order Tools report them.
    pub nics: Vec<Nic>,
    /// Whether changed blocks are tracked.
    pub cbt: Option<bool>,
    /// Ids of the container volumes attached to it.
    pub volumes: Vec<String>,
    /// Average latency of its disks in milliseconds, where measured.
    pub disk_latency_ms: Option<u32>,
}

/// VMware Tools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Tools {
    /// Running.
    #[default]
    Running,
    /// Installed, not running.
    NotRunning,
    /// Not installed.
    NotInstalled,
}

/// Power of a VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Power {
    /// On.
    #[default]
    On,
    /// Off.
    Off,
    /// Suspended.
    Suspended,
}

/// A SCSI controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ScsiController {
    /// Whether it is of the paravirtual kind.
    pub paravirtual: bool,
    /// How many disks it carries.
    pub disks: u32,
}

/// A network card, as VMware Tools report it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Nic {
    /// Name of its network.
    pub network: String,
    /// Its addresses.
    pub addresses: Vec<String>,
    /// Whether it is a card of the VM, not an interface the guest made itself.
    pub real: bool,
}

/// Tag categories and tags.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Tags {
    /// Names of the categories.
    pub categories: BTreeSet<String>,
    /// Tags by the reference of the object they are attached to.
    pub attached: BTreeMap<String, Vec<Tag>>,
}

/// A tag.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Tag {
    /// Its category.
    pub category: String,
    /// Its name.
    pub name: String,
}

/// A storage policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Policy {
    /// Its name.
    pub name: String,
    /// References of the datastores that satisfy it.
    pub datastores: Known<BTreeSet<String>>,
}

/// A group of hosts that stands for a zone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HostGroup {
    /// Failure domain that names it.
    pub failure_domain: String,
    /// Its name.
    pub name: String,
    /// What is wrong with it, if anything.
    pub problem: Option<String>,
}
