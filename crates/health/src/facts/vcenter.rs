use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Inventory, Known, Version};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Vcenter {
    /// Name of its VsphereCloudConfig.
    pub name: String,
    /// Host name or address, as configured.
    pub address: String,
    /// The Secret with its credentials, as `namespace/name`.
    pub secret: String,
    /// User name. Never the password.
    pub user: String,
    /// Whether it could be reached.
    pub reach: Known<Reach>,
    /// Since when that is so.
    pub since: Timestamp,
    /// Its certificate, as presented.
    pub tls: Known<Tls>,
    /// Whether it lets us in.
    pub login: Known<Login>,
    /// What it says of itself.
    pub about: Known<About>,
    /// How many seconds its clock is ahead of ours.
    pub clock_ahead: Known<i64>,
    /// Sessions it holds.
    pub sessions: Known<Sessions>,
    /// Its services the drivers need.
    pub services: BTreeMap<Service, Known<ServiceState>>,
    /// When the account's password expires; absent if never.
    pub password_expires: Known<Option<Timestamp>>,
    /// Datacenters the drivers are told of; all if empty.
    pub datacenters: BTreeSet<String>,
    /// Datacenters it has, where that is all that could be seen of it.
    pub only_datacenters: Option<BTreeSet<String>>,
    /// What the account may do, on each object it was asked for.
    pub grants: Known<Grants>,
    /// Whether the account may watch tasks.
    pub tasks: Known<bool>,
    /// What is in it.
    pub inventory: Known<Inventory>,
}

/// Whether a vCenter could be reached.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reach {
    /// It answers.
    Answers,
    /// Its name is not known.
    NoSuchName {
        /// The resolver's words.
        reason: String,
    },
    /// Nothing listens, or nothing gets through.
    NoAnswer {
        /// The network's words.
        reason: String,
    },
    /// It answers, but not as a vCenter does.
    NotAVcenter {
        /// What it said.
        reason: String,
    },
}

/// A certificate, as presented.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Tls {
    /// Why it is not trusted, if so.
    pub distrusted: Option<String>,
    /// Last moment it is good for.
    pub expires: Timestamp,
    /// Signed with SHA-1, or by an RSA key longer than 8192 bits.
    pub outdated: Option<String>,
    /// Thumbprint, to show.
    pub thumbprint: String,
}

/// Whether a vCenter lets us in.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Login {
    /// Yes.
    #[default]
    Accepted,
    /// User name or password are wrong.
    Refused {
        /// vCenter's words.
        reason: String,
    },
    /// The account is locked.
    Locked {
        /// vCenter's words.
        reason: String,
    },
}

/// What a vCenter says of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct About {
    /// API version.
    pub version: Version,
    /// Its own uuid.
    pub instance_uuid: String,
}

/// Sessions of a vCenter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Sessions {
    /// How many there are.
    pub total: u32,
    /// How many each kind of client holds, by user agent.
    pub by_agent: BTreeMap<String, u32>,
}

/// A service of vCenter the drivers need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Service {
    /// Container volumes (CNS), served by `vsan-health` even without vSAN.
    Volumes,
    /// Storage policies (PBM), served by `sps`.
    Policies,
    /// Tags, served by `vapi-endpoint`.
    Tags,
}

impl Service {
    /// Its name in `service-control`.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Volumes => "vsan-health",
            Self::Policies => "sps",
            Self::Tags => "vapi-endpoint",
        }
    }

    /// What it does.
    pub fn purpose(self) -> &'static str {
        match self {
            Self::Volumes => "container volumes (CNS)",
            Self::Policies => "storage policies",
            Self::Tags => "tags",
        }
    }
}

/// How a service answered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ServiceState {
    /// As it should.
    #[default]
    Answers,
    /// With an error.
    Fails {
        /// What it said.
        reason: String,
    },
}

/// What the account may do: by kind of object, each object that was asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Grants {
    /// The answers.
    pub entities: Vec<Entity>,
}

/// The privileges held on one object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entity {
    /// What it is.
    pub kind: EntityKind,
    pub name: String,
    /// Its inventory path.
    pub path: String,
    /// Privileges held, as vCenter names them.
    pub privileges: Known<BTreeSet<String>>,
}

/// A kind of object privileges are needed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EntityKind {
    Root,
    Datacenter,
    /// A folder between root and VM.
    Folder,
    Cluster,
    Host,
    Datastore,
    Vm,
    Network,
}

impl EntityKind {
    /// Its name in texts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Root => "vCenter",
            Self::Datacenter => "Datacenter",
            Self::Folder => "Folder",
            Self::Cluster => "Cluster",
            Self::Host => "Host",
            Self::Datastore => "Datastore",
            Self::Vm => "VirtualMachine",
            Self::Network => "Network",
        }
    }
}
