//! The privileges that the drivers need on every kind of object. The checks, the documentation and the
//! roles use this table.
//!
//! Networks are not listed: neither driver attaches, changes or reads one. The guest reports the addresses
//! and network names of a VM, and the drivers read them with the VM.

use std::collections::BTreeSet;

use api::finding::{Definition, codes};

use crate::facts::{EntityKind, Wanted};

/// The component that needs a privilege.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Either driver.
    AnyDriver,
    /// The cloud provider with zones, or the storage driver with topology.
    Zones,
    Storage,
    /// The storage driver, for ReadWriteMany volumes.
    FileVolumes,
    /// VDO, to set `disk.EnableUUID`.
    DiskUuidRepair,
    /// `vdoctl fix`, for changes of VMs that must be off.
    VmMaintenance,
}

impl Needs {
    /// Its name in the documentation.
    pub fn name(self) -> &'static str {
        match self {
            Self::AnyDriver => "both drivers",
            Self::Zones => "both drivers, with zones",
            Self::Storage => "storage driver",
            Self::FileVolumes => "storage driver, with file volumes",
            Self::DiskUuidRepair => {
                "VDO, with remediation.diskUuid: Fix or for vdoctl fix VDO-1203"
            }
            Self::VmMaintenance => "vdoctl fix VDO-1204, VDO-1206, VDO-1229 and VDO-1231",
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
            // Only on request of an admin, who can use another account.
            Self::VmMaintenance => false,
        }
    }
}

/// Privileges needed together.
#[derive(Debug)]
pub struct Requirement {
    pub needs: Needs,
    pub on: EntityKind,
    pub privileges: &'static [&'static str],
    /// The role with these privileges; `ReadOnly` is built in.
    pub role: &'static str,
    /// The operation that fails without them.
    pub purpose: &'static str,
    /// The finding if one is missing.
    pub finding: &'static Definition,
}

const fn read(needs: Needs, on: EntityKind, purpose: &'static str) -> Requirement {
    let finding = codes::PRIVILEGE_READ;
    Requirement { needs, on, privileges: &["System.Read"], role: "ReadOnly", purpose, finding }
}

/// The privileges that VDO needs on a VM to set `disk.EnableUUID`. The setting exists in two places, each with its own
/// privilege.
pub const DISK_UUID: &[&str] =
    &["VirtualMachine.Config.AdvancedConfig", "VirtualMachine.Config.Settings"];

/// To power a VM off and on.
pub const POWER_CYCLE: &[&str] =
    &["VirtualMachine.Interact.PowerOff", "VirtualMachine.Interact.PowerOn"];

/// To power a VM off and on, and to change it meanwhile.
const VM_MAINTENANCE: &[&str] = &[
    "VirtualMachine.Config.AddRemoveDevice",
    "VirtualMachine.Config.ChangeTracking",
    "VirtualMachine.Config.UpgradeVirtualHardware",
    "VirtualMachine.Interact.PowerOff",
    "VirtualMachine.Interact.PowerOn",
];

/// The privileges on a VM that the repair of a finding needs; none if no repair of it changes a VM.
pub fn of_repair(code: &str) -> Vec<&'static str> {
    let powered = |more: &[&'static str]| [more, POWER_CYCLE].concat();
    match code {
        c if c == codes::DISK_UUID_OFF.code => DISK_UUID.to_vec(),
        c if c == codes::DISK_UUID_WAITS.code => powered(&[]),
        c if c == codes::HARDWARE_TOO_OLD.code => {
            powered(&["VirtualMachine.Config.UpgradeVirtualHardware"])
        }
        c if c == codes::SCSI_KIND.code => powered(&["VirtualMachine.Config.AddRemoveDevice"]),
        c if c == codes::CBT_MIXED.code => powered(&["VirtualMachine.Config.ChangeTracking"]),
        _ => Vec::new(),
    }
}

/// Every privilege on a VM that a repair needs.
pub fn of_repairs() -> impl Iterator<Item = &'static str> {
    DISK_UUID.iter().chain(VM_MAINTENANCE).copied()
}

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
        purpose: "creating volumes on the datastore",
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
        privileges: DISK_UUID,
        role: "CNS-VM",
        purpose: "setting disk.EnableUUID",
        finding: codes::PRIVILEGE_VM,
    },
    Requirement {
        needs: Needs::VmMaintenance,
        on: EntityKind::Vm,
        privileges: VM_MAINTENANCE,
        role: "VDO-VM-MAINTENANCE",
        purpose: "changing a VM that is off",
        finding: codes::PRIVILEGE_VM,
    },
    Requirement {
        needs: Needs::FileVolumes,
        on: EntityKind::Cluster,
        privileges: &["Host.Config.Storage"],
        role: "CNS-HOST-CONFIG-STORAGE",
        purpose: "creating file shares on the cluster",
        finding: codes::PRIVILEGE_FILE,
    },
    read(Needs::AnyDriver, EntityKind::Vm, "finding the node's VM"),
    read(Needs::AnyDriver, EntityKind::Datacenter, "looking for VMs in the datacenter"),
    read(Needs::Storage, EntityKind::Host, "finding the datastores of the host"),
    read(Needs::Zones, EntityKind::Host, "reading the zone of the host"),
    read(Needs::Zones, EntityKind::Cluster, "reading the zone of the cluster"),
    read(Needs::Zones, EntityKind::Folder, "reading the zone of the folder"),
];

pub fn needed(on: EntityKind, wanted: &Wanted) -> impl Iterator<Item = &'static Requirement> {
    REQUIREMENTS.iter().filter(move |r| r.on == on && r.needs.holds(wanted))
}

/// All privileges needed on a kind of object, including those of every role.
pub fn needed_names(on: EntityKind, wanted: &Wanted) -> BTreeSet<&'static str> {
    let own = needed(on, wanted).flat_map(|requirement| requirement.privileges).copied();
    own.chain(["System.Anonymous", "System.Read", "System.View"]).collect()
}

/// The table as a page of the documentation.
pub fn document() -> String {
    let mut page = String::from(
        "# Privileges of the vCenter account\n\n\
         Generated from the table the checks use; do not edit.\n\n\
         Every role also includes System.Anonymous, System.Read and System.View. None needs to be\n\
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
