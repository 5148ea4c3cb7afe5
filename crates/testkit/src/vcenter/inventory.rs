//! What stands in a vCenter at its start, in the words of the simulator's inventory file.

use std::collections::BTreeMap;

use serde::Serialize;

/// A whole inventory. `Inventory::small()` is a good start; every part can be changed after.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Inventory {
    /// What the vCenter says about itself: version, apiVersion, build, instanceUuid, apiType.
    pub about: BTreeMap<String, String>,
    /// Datacenters with all they hold.
    pub datacenters: Vec<Datacenter>,
    /// Tag categories and their tags.
    pub categories: Vec<Category>,
    /// Who may log in. With none, anybody may, and may do everything.
    pub users: Vec<VcenterUser>,
    /// Roles beyond the built-in ones.
    pub roles: Vec<Role>,
    /// Who has which role where.
    pub permissions: Vec<Permission>,
}

/// A datacenter.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Datacenter {
    /// Its name.
    pub name: String,
    /// The folder it stands in, if not the root.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub folder: String,
    /// Its clusters.
    pub clusters: Vec<Cluster>,
    /// Its datastores.
    pub datastores: Vec<Datastore>,
    /// Its networks.
    pub networks: Vec<String>,
    /// Virtual machine folders, as paths.
    pub folders: Vec<String>,
    /// Its virtual machines.
    pub vms: Vec<Vm>,
}

/// A cluster of hosts.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cluster {
    /// Its name.
    pub name: String,
    /// Its hosts.
    pub hosts: Vec<Host>,
    /// Resource pools below its root pool.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resource_pools: Vec<String>,
    /// Whether vSAN's file service is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_service: Option<bool>,
}

/// An ESXi host.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Its version, if not that of the vCenter.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Whether it is in maintenance mode.
    pub maintenance: bool,
}

/// A datastore.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Datastore {
    /// Its name.
    pub name: String,
    /// `VMFS`, `NFS`, `vsan`; the simulator's default where empty.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Its url, made up where empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub url: String,
    /// The hosts that mount it; none listed means all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
}

/// A virtual machine. What is left empty gets a working value.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Vm {
    /// Its inventory name.
    pub name: String,
    /// The folder it stands in.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub folder: String,
    /// The cluster it runs in; the first where empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cluster: String,
    /// The host it runs on; one of the cluster's where empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// Its BIOS uuid.
    pub uuid: String,
    /// Its instance uuid.
    pub instance_uuid: String,
    /// What its guest calls itself.
    pub host_name: String,
    /// Hardware version.
    pub version: String,
    /// `disk.EnableUUID`.
    pub disk_uuid: bool,
    /// `running`, `notRunning`, `notInstalled`.
    pub tools: String,
    /// `on`, `off`, `suspended`.
    pub power: String,
    /// Its network cards, as the guest reports them.
    pub nics: Vec<Nic>,
    /// Its SCSI controllers, by type; one `pvscsi` where empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scsi: Vec<String>,
    /// Names of its snapshots.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub snapshots: Vec<String>,
    /// Advanced options.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra_config: BTreeMap<String, String>,
}

/// A network card.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Nic {
    /// The network it is on.
    pub network: String,
    /// Whether it is connected.
    pub connected: bool,
    /// Addresses with prefix lengths.
    pub addresses: Vec<String>,
}

/// A tag category.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Category {
    /// Its name.
    pub name: String,
    /// `SINGLE` or `MULTIPLE`.
    pub cardinality: String,
    /// Its tags.
    pub tags: Vec<Tag>,
}

/// A tag and the inventory paths it is attached to.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Tag {
    /// Its name.
    pub name: String,
    /// Inventory paths.
    pub attached: Vec<String>,
}

/// Somebody who can log in.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VcenterUser {
    /// Name, as `administrator@vsphere.local`.
    pub name: String,
    /// Password.
    pub password: String,
    /// Groups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Wrong passwords in a row until the account is locked; 0 for never.
    #[serde(skip_serializing_if = "is_zero")]
    pub lock_after: u32,
}

/// A role.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Role {
    /// Its name.
    pub name: String,
    /// Its privileges.
    pub privileges: Vec<String>,
}

/// A role given to somebody somewhere.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Permission {
    /// User or group.
    pub principal: String,
    /// Whether it is a group.
    pub group: bool,
    /// The role's name.
    pub role: String,
    /// Inventory path; `/` is the root folder.
    pub entity: String,
    /// Whether it holds for everything below.
    pub propagate: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the shape serde asks for")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Inventory {
    /// A datacenter `DC0` with two clusters of three hosts, a shared datastore for each cluster and
    /// one for both, an administrator, and no virtual machine.
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

    /// As [`Inventory::small`], with `count` virtual machines `node-1`, `node-2`, ...
    pub fn with_vms(count: usize) -> Self {
        Self::small().vms((1..=count).map(|n| Vm::numbered("node", n)))
    }

    /// Says it is this release of vCenter: `6.7.3`, `7.0.3`, `8.0.3` or `9.0.0`.
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

    /// Adds virtual machines to the first datacenter.
    #[must_use]
    pub fn vms(mut self, vms: impl IntoIterator<Item = Vm>) -> Self {
        self.datacenters[0].vms.extend(vms);
        self
    }

    /// Adds a user, with the given role at the given places (propagating).
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
    /// A powered-on Linux machine with tools, one network card and a uuid derived from its name.
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

    /// `<prefix>-<number>` with an address made from the number.
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
    /// A role with these privileges.
    pub fn new(name: &str, privileges: &[&str]) -> Self {
        let privileges = privileges.iter().map(ToString::to_string).collect();
        Self { name: name.into(), privileges }
    }
}

impl VcenterUser {
    /// A user with a password.
    pub fn new(name: &str, password: &str) -> Self {
        Self { name: name.into(), password: password.into(), groups: Vec::new(), lock_after: 0 }
    }
}

impl Default for VcenterUser {
    fn default() -> Self {
        Self::new("administrator@vsphere.local", "vdo-tests-Passw0rd!")
    }
}
