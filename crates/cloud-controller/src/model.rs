//! What the controller knows of a node and of a virtual machine: plain data, no client.

use std::{collections::BTreeMap, fmt, net::IpAddr, sync::Arc};

use vsphere::{BiosUuid, InstanceUuid, MoRef};

/// The taint of a node that waits for its cloud controller. Matched by key: value and effect are the
/// kubelet's business.
pub const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
/// The taint of a node whose machine is off.
pub const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";
/// The taint that lets volumes and pods leave a node at once.
pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// The addresses a kubelet was started with (`--node-ip`).
pub const PROVIDED_NODE_IP: &str = "alpha.kubernetes.io/provided-node-ip";
/// What a provider id of ours starts with.
pub const SCHEME: &str = "vsphere://";

/// The labels of zone, region and instance type: the older name first.
pub const PAIRS: [(&str, &str); 3] = [
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type"),
];

/// Labels: key and value.
pub type Labels = BTreeMap<Box<str>, Box<str>>;

/// As much of a Node as the controller needs: a cluster of thousands fits into a few megabytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: Arc<str>,
    /// Its uid.
    pub uid: Box<str>,
    /// The version of the object this was read from.
    pub resource_version: Box<str>,
    /// When it was created, in seconds since 1970.
    pub created: i64,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// `spec.providerID`; empty if not set.
    pub provider_id: Box<str>,
    /// `spec.taints`.
    pub taints: Box<[Taint]>,
    /// Those labels that are the controller's business. Nodes with the same labels share them.
    pub labels: Arc<Labels>,
    /// The annotation [`PROVIDED_NODE_IP`].
    pub provided_ip: Option<Box<str>>,
    /// The annotation [`crate::record::ANNOTATION`].
    pub record: Option<Box<str>>,
    /// `status.addresses`.
    pub addresses: Box<[Address]>,
    /// Whether the condition Ready is True. False, Unknown and missing are the same to us.
    pub ready: bool,
    /// `status.nodeInfo.systemUUID`.
    pub system_uuid: Box<str>,
}

impl Node {
    /// Whether it waits to be initialised.
    pub fn is_uninitialized(&self) -> bool {
        self.has_taint(UNINITIALIZED)
    }

    /// Whether it has a taint with this key.
    pub fn has_taint(&self, key: &str) -> bool {
        self.taints.iter().any(|taint| &*taint.key == key)
    }
}

/// A taint, whole: what is written back is what was read.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Taint {
    /// Key.
    pub key: Box<str>,
    /// Value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Box<str>>,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: Box<str>,
    /// When it was added, as the API server wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_added: Option<Box<str>>,
}

impl Taint {
    /// A taint without time.
    pub fn new(key: &str, value: Option<&str>, effect: &str) -> Self {
        Self {
            key: key.into(),
            value: value.map(Into::into),
            effect: effect.into(),
            time_added: None,
        }
    }
}

/// What an address of a node is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub enum AddressKind {
    /// The machine's own name.
    Hostname,
    /// Reached from within the cluster.
    InternalIP,
    /// Reached from outside.
    ExternalIP,
    /// A name within the cluster's network.
    InternalDNS,
    /// A name known outside.
    ExternalDNS,
    /// Something newer than this program: kept as it is.
    #[serde(untagged)]
    Other(Box<str>),
}

/// An address of a node.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Address {
    /// What it is for.
    #[serde(rename = "type")]
    pub kind: AddressKind,
    /// Name or IP address.
    pub address: Box<str>,
}

impl Address {
    /// An address.
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

/// Where a machine stands: the vCenter, by the name it has in the configuration, and the reference
/// it has there.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The vCenter's server, as configured.
    pub vcenter: Arc<str>,
    /// The machine there.
    pub vm: MoRef,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.vm.id, self.vcenter)
    }
}

/// A virtual machine, as much of it as the controller needs.
#[derive(Clone, Debug, PartialEq)]
pub struct VirtualMachine {
    /// Where it is.
    pub place: Place,
    /// Its inventory path, or its name where the path cannot be seen.
    pub path: String,
    /// The vCenter's own uuid: another one may answer at the same address one day.
    pub vcenter_uuid: Arc<str>,
    /// The folder it stands in.
    pub folder: Option<MoRef>,
    /// BIOS uuid; `None` while vCenter does not know it.
    pub bios_uuid: Option<BiosUuid>,
    /// Instance uuid.
    pub instance_uuid: Option<InstanceUuid>,
    /// Whether it is only a pattern for others.
    pub template: bool,
    /// Whether it is on; `None` if vCenter does not say.
    pub power: Option<Power>,
    /// Processors.
    pub cpus: i32,
    /// Memory in MiB.
    pub memory_mib: i32,
    /// The configured guest operating system.
    pub guest_id: String,
    /// What its guest reports.
    pub guest: Guest,
}

impl VirtualMachine {
    /// What a person calls it: `/DC0/vm/node-1 (vm-12 in vc.example.com)`.
    pub fn title(&self) -> String {
        format!("{} ({})", self.path, self.place)
    }
}

/// Whether a machine is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Power {
    /// On.
    On,
    /// Off.
    Off,
    /// Asleep.
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

/// What a guest reports through VMware Tools, and what it was given at its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Guest {
    /// Its own name; empty if it does not tell.
    pub host_name: String,
    /// Its interfaces.
    pub interfaces: Vec<Interface>,
    /// The cloud-init metadata: content and encoding, as set on the machine.
    pub metadata: Option<Metadata>,
}

impl Guest {
    /// All its addresses.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.interfaces.iter().flat_map(|interface| interface.addresses.iter().copied())
    }
}

/// `guestinfo.metadata` and `guestinfo.metadata.encoding`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// The content, encoded.
    pub content: String,
    /// How.
    pub encoding: String,
}

/// An interface of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// The network it is on; empty if it is not told.
    pub network: String,
    /// The virtual device behind it; -1 for one that is none, such as a container network's.
    pub device: i32,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
}
