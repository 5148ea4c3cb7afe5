//! Every privilege the drivers need, on every kind of object, in one table: the checks, the
//! documentation and the roles all come from it.
//!
//! Networks are not in it: neither driver attaches, changes or reads one. The addresses of a VM, and the
//! names of the networks they are in, are the guest's own words, and are read with the VM.

use std::collections::BTreeSet;

use api::finding::{Definition, codes};

use crate::facts::{EntityKind, Wanted};

/// Whom a privilege is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Either driver.
    AnyDriver,
    /// The cloud provider with zones, or the storage driver with topology.
    Zones,
    /// The storage driver.
    Storage,
    /// The storage driver, for volumes many pods can write.
    FileVolumes,
    /// VDO itself, to turn `disk.EnableUUID` on.
    DiskUuidRepair,
}

impl Needs {
    /// Its name in the documentation.
    pub fn name(self) -> &'static str {
        match self {
            Self::AnyDriver => "both drivers",
            Self::Zones => "both drivers, with zones",
            Self::Storage => "storage driver",
            Self::FileVolumes => "storage driver, with file volumes",
            Self::DiskUuidRepair => "VDO, with remediation.diskUuid: Fix",
        }
    }

    fn holds(self, wanted: &Wanted) -> bool {
        let storage = wanted.storage.as_ref();
        match self {
            Self::AnyDriver => wanted.cloud.is_some() || storage.is_some(),
            Self::Zones => !wanted.categories().is_empty(),
            Self::Storage => storage.is_some(),
            Self::FileVolumes => storage.is_some_and(|s| s.file_volumes),
            Self::DiskUuidRepair => wanted.sets_disk_uuid,
        }
    }
}

/// Privileges needed together.
#[derive(Debug)]
pub struct Requirement {
    /// For whom.
    pub needs: Needs,
    /// On which kind of object.
    pub on: EntityKind,
    /// Which.
    pub privileges: &'static [&'static str],
    /// The role that carries them; `ReadOnly` is built in.
    pub role: &'static str,
    /// What cannot be done without.
    pub purpose: &'static str,
    /// The finding if one is missing.
    pub finding: &'static Definition,
}

const fn read(needs: Needs, on: EntityKind, purpose: &'static str) -> Requirement {
    let finding = codes::PRIVILEGE_READ;
    Requirement { needs, on, privileges: &["System.Read"], role: "ReadOnly", purpose, finding }
}

/// The table.
pub const REQUIREMENTS: &[Requirement] = &[
    Requirement {
        needs: Needs::Storage,
        on: EntityKind::Root,
        privileges: &["Cns.Searchable", "StorageProfile.View"],
        role: "CNS-SEARCH-AND-SPBM",
        purpose: "finding volumes and storage policies",
        finding: codes::PRIVILEGE_ROOT,
    },
    Requirement {
        needs: Needs::Storage,
        on: EntityKind::Datastore,
        privileges: &["Datastore.FileManagement", "System.Read"],
        role: "CNS-DATASTORE",
        purpose: "making volumes on the datastore",
        finding: codes::PRIVILEGE_DATASTORE,
    },
    Requirement {
        needs: Needs::Storage,
        on: EntityKind::Vm,
        privileges: &[
            "VirtualMachine.Config.AddExistingDisk",
            "VirtualMachine.Config.AddRemoveDevice",
        ],
        role: "CNS-VM",
        purpose: "attaching volumes to the node",
        finding: codes::PRIVILEGE_VM,
    },
    Requirement {
        needs: Needs::DiskUuidRepair,
        on: EntityKind::Vm,
        // The setting stands in two places, and each has a privilege of its own.
        privileges: &["VirtualMachine.Config.AdvancedConfig", "VirtualMachine.Config.Settings"],
        role: "CNS-VM",
        purpose: "turning disk.EnableUUID on",
        finding: codes::PRIVILEGE_VM,
    },
    Requirement {
        needs: Needs::FileVolumes,
        on: EntityKind::Cluster,
        privileges: &["Host.Config.Storage"],
        role: "CNS-HOST-CONFIG-STORAGE",
        purpose: "making file shares on the cluster",
        finding: codes::PRIVILEGE_FILE,
    },
    read(Needs::AnyDriver, EntityKind::Vm, "finding the node's VM"),
    read(Needs::AnyDriver, EntityKind::Datacenter, "looking for VMs in the datacenter"),
    read(Needs::Storage, EntityKind::Host, "finding the datastores of the host"),
    read(Needs::Zones, EntityKind::Host, "reading the zone of the host"),
    read(Needs::Zones, EntityKind::Cluster, "reading the zone of the cluster"),
    read(Needs::Zones, EntityKind::Folder, "reading the zone of the folder"),
];

/// What is needed on a kind of object.
pub fn needed(on: EntityKind, wanted: &Wanted) -> impl Iterator<Item = &'static Requirement> {
    REQUIREMENTS.iter().filter(move |r| r.on == on && r.needs.holds(wanted))
}

/// All privileges needed on a kind of object, and those that come with every role.
pub fn needed_names(on: EntityKind, wanted: &Wanted) -> BTreeSet<&'static str> {
    let own = needed(on, wanted).flat_map(|requirement| requirement.privileges).copied();
    own.chain(["System.Anonymous", "System.Read", "System.View"]).collect()
}

/// The table as a page of the documentation.
pub fn document() -> String {
    let mut page = String::from(
        "# Privileges of the vCenter account\n\n\
         Generated from the table the checks use; do not edit.\n\n\
         Every role also carries System.Anonymous, System.Read and System.View. None needs to be\n\
         propagated if it is set on each object; set it on a folder with propagation to cover nodes\n\
         and datastores that appear later.\n\n\
         | on | privileges | role | for | without it |\n|---|---|---|---|---|\n",
    );
    let row = |requirement: &Requirement| {
        format!(
            "| {} | {} | {} | {}: {} | [{code}]({code}.md) |\n",
            requirement.on.name(),
            requirement.privileges.join(", "),
            requirement.role,
            requirement.needs.name(),
            requirement.purpose,
            code = requirement.finding.code,
        )
    };
    page.extend(REQUIREMENTS.iter().map(row));
    page.push_str(
        "\nNothing is needed on networks: neither driver attaches, changes or reads one. The addresses of a\n\
         VM and the names of its networks are read with the VM.\n",
    );
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{WantedCloud, WantedStorage};

    #[test]
    fn the_cloud_provider_alone_only_needs_to_read() {
        let wanted = Wanted { cloud: Some(WantedCloud::default()), ..Wanted::default() };
        for kind in [EntityKind::Root, EntityKind::Datastore, EntityKind::Vm, EntityKind::Host] {
            let names = needed_names(kind, &wanted);
            assert!(names.iter().all(|name| name.starts_with("System.")), "{kind:?}: {names:?}");
        }
    }

    #[test]
    fn nothing_is_needed_on_networks() {
        assert!(!REQUIREMENTS.iter().any(|requirement| requirement.on == EntityKind::Network));
        assert!(document().contains("Nothing is needed on networks"));
    }

    #[test]
    fn file_volumes_need_more_on_clusters() {
        let mut storage = WantedStorage::default();
        let wanted = |storage: &WantedStorage| Wanted {
            storage: Some(storage.clone()),
            ..Wanted::default()
        };
        assert!(
            !needed_names(EntityKind::Cluster, &wanted(&storage)).contains("Host.Config.Storage")
        );
        storage.file_volumes = true;
        assert!(
            needed_names(EntityKind::Cluster, &wanted(&storage)).contains("Host.Config.Storage")
        );
    }
}
