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
    pub credentials: Known<CredentialState>,
    /// Whether VDO and the drivers do not verify its certificate.
    pub insecure: bool,
    pub reach: Known<Reach>,
    /// When `reach` last changed.
    pub since: Timestamp,
    pub tls: Known<Tls>,
    pub login: Known<Login>,
    pub about: Known<About>,
    /// How many seconds its clock is ahead of ours.
    pub clock_ahead: Known<i64>,
    pub sessions: Known<Sessions>,
    /// The services that the drivers need.
    pub services: BTreeMap<Service, Known<ServiceState>>,
    /// `None` if the password never expires.
    pub password_expires: Known<Option<Timestamp>>,
    /// Datacenters in the drivers' configuration; empty means all.
    pub datacenters: BTreeSet<String>,
    /// Existing datacenters, if the rest of the inventory is unknown.
    pub only_datacenters: Option<BTreeSet<String>>,
    /// The account's privileges on each object that VDO checked.
    pub grants: Known<Grants>,
    /// Whether the account has the privilege to watch tasks.
    pub tasks: Known<bool>,
    pub inventory: Known<Inventory>,
}

impl Vcenter {
    /// The account for sentences, also if its name is unknown.
    pub fn account(&self) -> String {
        match (self.user.as_str(), self.secret.as_str()) {
            ("", "") => format!("the account for {}", self.address),
            ("", secret) => format!("the account in Secret {secret}"),
            (user, _) => user.to_owned(),
        }
    }
}

/// The credentials in the Secret of a vCenter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CredentialState {
    #[default]
    Usable,
    /// Usable without the line break at their end.
    Trimmed {
        /// The key of the password.
        key: String,
    },
    /// The Secret does not exist.
    Missing,
    Unusable {
        reason: String,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reach {
    Answers,
    /// DNS cannot resolve its name.
    NoSuchName {
        reason: String,
    },
    /// Nothing listens, or the network drops packets.
    NoAnswer {
        reason: String,
    },
    /// Something else answers at the address.
    NotAVcenter {
        reason: String,
    },
}

/// The certificate that the vCenter presents.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Tls {
    /// Why VDO does not trust it.
    pub distrusted: Option<String>,
    pub expires: Timestamp,
    /// Why new drivers reject it: a SHA-1 signature, or an RSA key longer than 8192 bits.
    pub outdated: Option<String>,
    pub thumbprint: String,
}

/// The result of a login.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Login {
    #[default]
    Accepted,
    /// User name or password is wrong.
    Refused {
        /// vCenter's message.
        reason: String,
    },
    Locked {
        /// vCenter's message.
        reason: String,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct About {
    /// API version.
    pub version: Version,
    pub instance_uuid: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Sessions {
    pub total: u32,
    /// By user agent of the client.
    pub by_agent: BTreeMap<String, u32>,
}

/// A vCenter service that the drivers need.
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

    pub fn purpose(self) -> &'static str {
        match self {
            Self::Volumes => "container volumes (CNS)",
            Self::Policies => "storage policies",
            Self::Tags => "tags",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ServiceState {
    #[default]
    Answers,
    Fails {
        reason: String,
    },
}

/// The account's privileges.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Grants {
    pub entities: Vec<Entity>,
    /// Privileges that only repairs need, and the inventory paths of the VMs on which the account lacks them.
    pub repairs_denied: BTreeMap<String, BTreeSet<String>>,
}

impl Grants {
    /// Which of these privileges the account lacks on a VM.
    pub fn lacks<'p>(&self, path: &str, privileges: &[&'p str]) -> Vec<&'p str> {
        let lacks = |name: &&&str| {
            self.repairs_denied.get(**name).is_some_and(|denied| denied.contains(path))
        };
        privileges.iter().filter(lacks).copied().collect()
    }
}

/// The account's privileges on one object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entity {
    pub kind: EntityKind,
    pub name: String,
    /// Its inventory path.
    pub path: String,
    /// Ids as in vCenter, for example `Datastore.FileManagement`.
    pub privileges: Known<BTreeSet<String>>,
}

/// A kind of object with privileges.
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
