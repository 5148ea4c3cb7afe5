//! Node and VM as plain data, without a client.

use std::{collections::BTreeMap, fmt, net::IpAddr, sync::Arc};

use vsphere::{BiosUuid, InstanceUuid, MoRef};

/// The taint of a node that waits for its cloud controller. Matched by key only.
pub const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
/// The taint of a node whose VM is off.
pub const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";
/// The taint that detaches volumes and evicts pods at once.
pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// The addresses a kubelet was started with (`--node-ip`).
pub const PROVIDED_NODE_IP: &str = "alpha.kubernetes.io/provided-node-ip";
pub const PROVIDER_ID_SCHEME: &str = "vsphere://";

/// Beta and stable names of the labels for zone, region and instance type.
pub const LABEL_PAIRS: [(&str, &str); 3] = [
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type"),
];

/// The labels for the ESXi host and the cluster of a node's VM.
pub const HOST_LABEL: &str = "vdo.vmware.com/esxi-host";
pub const CLUSTER_LABEL: &str = "vdo.vmware.com/cluster";

pub type Labels = BTreeMap<Box<str>, Box<str>>;

/// The fields of a Node that the controller needs. Thousands of nodes fit into a few megabytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    pub name: Arc<str>,
    pub uid: Box<str>,
    pub resource_version: Box<str>,
    /// In seconds since 1970.
    pub created: i64,
    pub deleting: bool,
    /// `spec.providerID`; empty if not set.
    pub provider_id: Box<str>,
    /// `spec.taints`.
    pub taints: Box<[Taint]>,
    /// Only the labels that the controller manages. Nodes with equal labels share them.
    pub labels: Arc<Labels>,
    /// The annotation [`PROVIDED_NODE_IP`].
    pub provided_ip: Option<Box<str>>,
    /// The annotation [`crate::record::ANNOTATION`].
    pub record: Option<Box<str>>,
    /// `status.addresses`.
    pub addresses: Box<[Address]>,
    /// Whether the condition Ready is True; not if it is False, Unknown or missing.
    pub ready: bool,
    /// `status.nodeInfo.systemUUID`.
    pub system_uuid: Box<str>,
}

impl Node {
    pub fn is_uninitialized(&self) -> bool {
        self.has_taint(UNINITIALIZED)
    }

    pub fn has_taint(&self, key: &str) -> bool {
        self.taints.iter().any(|taint| &*taint.key == key)
    }
}

/// All fields, so that the controller writes back other taints unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Taint {
    pub key: Box<str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Box<str>>,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: Box<str>,
    /// When it was added, as the API server wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_added: Option<Box<str>>,
}

impl Taint {
    pub fn new(key: &str, value: Option<&str>, effect: &str) -> Self {
        Self {
            key: key.into(),
            value: value.map(Into::into),
            effect: effect.into(),
            time_added: None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub enum AddressKind {
    Hostname,
    InternalIP,
    ExternalIP,
    InternalDNS,
    ExternalDNS,
    /// A newer kind, kept unchanged.
    #[serde(untagged)]
    Other(Box<str>),
}

#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Address {
    #[serde(rename = "type")]
    pub kind: AddressKind,
    pub address: Box<str>,
}

impl Address {
    pub fn new(kind: AddressKind, address: impl Into<Box<str>>) -> Self {
        Self { kind, address: address.into() }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            AddressKind::Other(kind) => write!(f, "{kind} {}", self.address),
            kind => write!(f, "{kind:?} {}", self.address),
        }
    }
}

/// The reference of a VM within a vCenter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VmRef {
    /// The name of the vCenter in the configuration.
    pub vcenter: Arc<str>,
    pub vm: MoRef,
}

impl fmt::Display for VmRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.vm.id, self.vcenter)
    }
}

/// The properties of a VM that the controller needs.
#[derive(Clone, Debug, PartialEq)]
pub struct VirtualMachine {
    pub vm_ref: VmRef,
    /// The inventory path, or the name if the path is not visible.
    pub path: String,
    /// The vCenter's own uuid: another vCenter can answer at the same address later.
    pub vcenter_uuid: Arc<str>,
    pub folder: Option<MoRef>,
    /// `None` while vCenter does not know it.
    pub bios_uuid: Option<BiosUuid>,
    pub instance_uuid: Option<InstanceUuid>,
    pub template: bool,
    /// `None` if vCenter does not report it.
    pub power: Option<Power>,
    pub cpus: i32,
    pub memory_mib: i32,
    pub guest_id: String,
    pub guest: Guest,
    /// `None` if the host is not in view.
    pub placement: Option<Placement>,
}

impl VirtualMachine {
    /// For messages: `/DC0/vm/node-1 (vm-12 in vc.example.com)`.
    pub fn title(&self) -> String {
        format!("{} ({})", self.path, self.vm_ref)
    }
}

/// Where a VM runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The name of the ESXi host.
    pub host: String,
    /// The name of its cluster; `None` for a standalone host.
    pub cluster: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Power {
    On,
    Off,
    Suspended,
}

impl fmt::Display for Power {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::On => "powered on",
            Self::Off => "powered off",
            Self::Suspended => "suspended",
        })
    }
}

/// Data from VMware Tools, and the cloud-init metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Guest {
    /// Empty if the guest does not report it.
    pub host_name: String,
    pub interfaces: Vec<Interface>,
    pub metadata: Option<Metadata>,
}

impl Guest {
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.interfaces.iter().flat_map(|interface| interface.addresses.iter().copied())
    }
}

/// `guestinfo.metadata` and `guestinfo.metadata.encoding`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    pub content: String,
    pub encoding: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Empty if the guest does not report it.
    pub network: String,
    /// The key of the virtual device; -1 if there is none, as for a container network.
    pub device: i32,
    pub addresses: Vec<IpAddr>,
}
