//! The initial content of a vCenter, with the names of the simulator's inventory file.

use std::collections::BTreeMap;

use serde::Serialize;

/// An inventory. `Inventory::small()` is a good start; every field can be changed.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Inventory {
    /// The AboutInfo of vCenter: version, apiVersion, build, instanceUuid, apiType.
    pub about: BTreeMap<String, String>,
    pub datacenters: Vec<Datacenter>,
    pub categories: Vec<Category>,
    /// The accounts. Without any, every login works and has all privileges.
    pub users: Vec<VcenterUser>,
    /// Roles in addition to the built-in ones.
    pub roles: Vec<Role>,
    pub permissions: Vec<Permission>,
}

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Datacenter {
    pub name: String,
    /// Its folder, if not the root.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub folder: String,
    pub clusters: Vec<Cluster>,
    pub datastores: Vec<Datastore>,
    pub networks: Vec<String>,
    /// VM folders, as paths.
    pub folders: Vec<String>,
    pub vms: Vec<Vm>,
}

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cluster {
    pub name: String,
    pub hosts: Vec<Host>,
    /// Resource pools below its root pool.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resource_pools: Vec<String>,
    /// Whether the vSAN file service is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_service: Option<bool>,
}

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Host {
    pub name: String,
    /// Its version, if it differs from that of vCenter.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    pub maintenance: bool,
}

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Datastore {
    pub name: String,
    /// `VMFS`, `NFS`, `vsan`; the default of the simulator if empty.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// The url; generated if empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub url: String,
    /// The hosts that mount it; all hosts if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
}

/// A virtual machine. Empty fields get a working value.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Vm {
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub folder: String,
    /// The cluster; the first one if empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cluster: String,
    /// The host; one of the cluster if empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// The BIOS uuid.
    pub uuid: String,
    pub instance_uuid: String,
    /// The host name in the guest.
    pub host_name: String,
    pub version: String,
    /// `disk.EnableUUID`.
    pub disk_uuid: bool,
    /// `running`, `notRunning`, `notInstalled`.
    pub tools: String,
    /// `on`, `off`, `suspended`.
    pub power: String,
    pub nics: Vec<Nic>,
    /// The types of its SCSI controllers; one `pvscsi` if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scsi: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub snapshots: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra_config: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Nic {
    pub network: String,
    pub connected: bool,
    /// IP addresses with prefix lengths.
    pub addresses: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Category {
    pub name: String,
    /// `SINGLE` or `MULTIPLE`.
    pub cardinality: String,
    pub tags: Vec<Tag>,
}

/// A tag and the inventory paths it is attached to.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Tag {
    pub name: String,
    pub attached: Vec<String>,
}

/// An account.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VcenterUser {
    /// Name, as `administrator@vsphere.local`.
    pub name: String,
    pub password: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Failed logins in a row until the account is locked; 0 for never.
    #[serde(skip_serializing_if = "is_zero")]
    pub lock_after: u32,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Role {
    pub name: String,
    pub privileges: Vec<String>,
}

/// A permission: a role of a user or group on an object.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Permission {
    /// User or group.
    pub principal: String,
    pub group: bool,
    /// The name of the role.
    pub role: String,
    /// Inventory path; `/` is the root folder.
    pub entity: String,
    /// Whether it applies to everything below.
    pub propagate: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the shape serde asks for")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Inventory {
    /// A datacenter `DC0` with two clusters of three hosts, a shared datastore for each cluster and one for both, an
    /// administrator, and no VM.
    pub fn small() -> Self {
        let cluster = |letter: char| Cluster {
            name: format!("cluster-{letter}"),
            hosts: (1..=3)
                .map(|n| Host { name: format!("esx-{letter}{n}"), ..Host::default() })
                .collect(),
            ..Cluster::default()
        };
        let hosts = |letter: char| (1..=3).map(|n| format!("esx-{letter}{n}")).collect();
        let datastore = |name: &str, hosts| Datastore {
            name: name.into(),
            kind: "VMFS".into(),
            url: format!("ds:///vmfs/volumes/{name}/"),
            hosts,
        };
        let administrator = VcenterUser::default();
        let permission = Permission::new(&administrator.name, "Admin", "/");
        Self {
            datacenters: vec![Datacenter {
                name: "DC0".into(),
                clusters: vec![cluster('a'), cluster('b')],
                datastores: vec![
                    datastore("shared", Vec::new()),
                    datastore("shared-a", hosts('a')),
                    datastore("shared-b", hosts('b')),
                ],
                networks: vec!["VM Network".into()],
                ..Datacenter::default()
            }],
            users: vec![administrator],
            permissions: vec![permission],
            ..Self::default()
        }
        .version("8.0.3")
    }

    /// Like [`Inventory::small`], with `count` VMs `node-1`, `node-2`, ...
    pub fn with_vms(count: usize) -> Self {
        Self::small().vms((1..=count).map(|n| Vm::numbered("node", n)))
    }

    /// Reports this release of vCenter: `6.7.3`, `7.0.3`, `8.0.3` or `9.0.0`.
    #[must_use]
    pub fn version(mut self, version: &str) -> Self {
        let build = match version {
            "6.7.3" => "14367737",
            "7.0.3" => "20395099",
            "8.0.3" => "24022515",
            _ => "24755230",
        };
        let api = if version == "6.7.3" { "6.7.3".to_owned() } else { format!("{version}.0") };
        let about = [("version", version), ("apiVersion", &api), ("build", build)];
        self.about.extend(about.map(|(key, value)| (key.to_owned(), value.to_owned())));
        self
    }

    /// Adds VMs to the first datacenter.
    #[must_use]
    pub fn vms(mut self, vms: impl IntoIterator<Item = Vm>) -> Self {
        self.datacenters[0].vms.extend(vms);
        self
    }

    /// Adds a user with this role on these paths (propagating).
    #[must_use]
    pub fn user(mut self, user: VcenterUser, role: &Role, at: &[&str]) -> Self {
        let grants = at.iter().map(|entity| Permission::new(&user.name, &role.name, entity));
        self.permissions.extend(grants);
        self.users.push(user);
        self.roles.push(role.clone());
        self
    }

    /// Adds a category whose tags are attached to these paths.
    #[must_use]
    pub fn category(mut self, name: &str, tags: &[(&str, &[&str])]) -> Self {
        let tags = tags.iter().map(|(name, paths)| Tag {
            name: (*name).into(),
            attached: paths.iter().map(ToString::to_string).collect(),
        });
        let (name, cardinality) = (name.into(), "SINGLE".into());
        self.categories.push(Category { name, cardinality, tags: tags.collect() });
        self
    }
}

impl Vm {
    /// A powered-on Linux VM with VMware Tools, one network card and a uuid derived from its name.
    pub fn named(name: &str) -> Self {
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, name.as_bytes());
        let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let uuid = |from: usize| {
            let part = |a: usize, b: usize| &hex[from + a..from + b];
            format!(
                "42{}-{}-{}-{}-{}",
                part(2, 8),
                part(8, 12),
                part(12, 16),
                part(16, 20),
                part(20, 32)
            )
        };
        let octet = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap_or(1);
        Self {
            name: name.into(),
            folder: String::new(),
            cluster: String::new(),
            host: String::new(),
            uuid: uuid(0),
            instance_uuid: uuid(32),
            host_name: name.into(),
            version: "vmx-19".into(),
            disk_uuid: true,
            tools: "running".into(),
            power: "on".into(),
            nics: vec![Nic::with_address(&format!("10.{}.{}.{}/8", octet(0), octet(2), octet(4)))],
            scsi: Vec::new(),
            snapshots: Vec::new(),
            extra_config: BTreeMap::new(),
        }
    }

    /// `<prefix>-<number>`, with an address derived from the number.
    pub fn numbered(prefix: &str, number: usize) -> Self {
        let address = format!("10.{}.{}.{}/8", number >> 16 & 255, number >> 8 & 255, number & 255);
        Self {
            nics: vec![Nic::with_address(&address)],
            ..Self::named(&format!("{prefix}-{number}"))
        }
    }
}

impl Nic {
    /// A connected card on the default network with one address.
    pub fn with_address(address: &str) -> Self {
        Self { network: "VM Network".into(), connected: true, addresses: vec![address.into()] }
    }
}

impl Permission {
    /// A propagating permission of a user.
    pub fn new(principal: &str, role: &str, entity: &str) -> Self {
        let (principal, role, entity) = (principal.into(), role.into(), entity.into());
        Self { principal, group: false, role, entity, propagate: true }
    }
}

impl Role {
    pub fn new(name: &str, privileges: &[&str]) -> Self {
        let privileges = privileges.iter().map(ToString::to_string).collect();
        Self { name: name.into(), privileges }
    }
}

impl VcenterUser {
    pub fn new(name: &str, password: &str) -> Self {
        Self { name: name.into(), password: password.into(), groups: Vec::new(), lock_after: 0 }
    }
}

impl Default for VcenterUser {
    fn default() -> Self {
        Self::new("administrator@vsphere.local", "vdo-tests-Passw0rd!")
    }
}
