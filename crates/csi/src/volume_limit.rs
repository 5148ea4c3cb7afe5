//! How many volumes a VM has room for.
//!
//! The controller knows the hardware of each VM from the inventory watch. It writes the number into an annotation of
//! the node's CSINodeTopology, and the node plugin reports it to the kubelet.

use vsphere::inventory::{Device, DeviceDetail};

/// The annotation of a CSINodeTopology with the number of volumes that the VM has room for.
pub const ANNOTATION: &str = "csi.vsphere.vmware.com/volume-limit";

/// CNS attaches volumes to paravirtual controllers only. It adds one when the existing ones are full, until the VM has
/// four SCSI controllers of any type.
const MAX_CONTROLLERS: usize = 4;
const PARAVIRTUAL: &str = "ParaVirtualSCSIController";
/// Disks on one paravirtual controller.
const SLOTS: usize = 15;
/// The same on ESXi 8.0 and newer.
const SLOTS_SINCE_8: usize = 64;

/// The number of volumes that fit on a VM: the slots of its paravirtual controllers and of those that CNS can add, without
/// the slots of disks that are not volumes. `host_version` is the release of its ESXi host.
pub fn of_vm(devices: &[Device], host_version: Option<&str>) -> usize {
    let slots = if is_8_or_newer(host_version) { SLOTS_SINCE_8 } else { SLOTS };
    let controllers: Vec<&Device> = devices.iter().filter(|device| is_scsi(device)).collect();
    let taken = |controller: &Device| {
        let is_foreign = |device: &&Device| {
            device.controller == Some(controller.key)
                && matches!(&device.detail, DeviceDetail::Disk(disk) if disk.volume_id.is_none())
        };
        devices.iter().filter(is_foreign).count()
    };
    let existing = controllers.iter().filter(|controller| controller.type_name == PARAVIRTUAL);
    let existing: usize = existing.map(|controller| slots.saturating_sub(taken(controller))).sum();
    existing + MAX_CONTROLLERS.saturating_sub(controllers.len()) * slots
}

/// An unknown release counts as an old one: too few volumes are better than pods that cannot start.
fn is_8_or_newer(host_version: Option<&str>) -> bool {
    let major = host_version.and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    major.is_some_and(|major| major >= 8)
}

fn is_scsi(device: &Device) -> bool {
    let name = &*device.type_name;
    matches!(device.detail, DeviceDetail::Controller { .. })
        && (name.contains("SCSI") || name.contains("LsiLogic") || name.contains("BusLogic"))
}

#[cfg(test)]
mod tests {
    use vsphere::inventory::Disk;

    use super::*;

    fn controller(bus: i32, type_name: &'static str) -> Device {
        let detail = DeviceDetail::Controller { bus };
        Device {
            key: 1000 + bus,
            type_name: type_name.into(),
            controller: None,
            unit: None,
            detail,
        }
    }

    fn disk(bus: i32, unit: i32, volume: Option<&str>) -> Device {
        let volume_id = volume.map(Into::into);
        let disk = Disk { capacity: 1, uuid: None, file: None, datastore: None, volume_id };
        Device {
            key: 2000 + 100 * bus + unit,
            type_name: "VirtualDisk".into(),
            controller: Some(1000 + bus),
            unit: Some(unit),
            detail: DeviceDetail::Disk(Box::new(disk)),
        }
    }

    #[test]
    fn a_usual_vm_has_room_for_59_volumes_and_for_255_since_vsphere_8() {
        let devices = [controller(0, PARAVIRTUAL), disk(0, 0, None)];
        assert_eq!(of_vm(&devices, Some("7.0.3")), 59);
        assert_eq!(of_vm(&devices, Some("8.0.3")), 255);
        assert_eq!(of_vm(&devices, Some("9.0.0")), 255);
        assert_eq!(of_vm(&devices, None), 59, "unknown release");
    }

    #[test]
    fn volumes_take_no_room_and_other_disks_do() {
        let mut devices = vec![controller(0, PARAVIRTUAL), disk(0, 0, None)];
        devices.extend((1..7).map(|unit| disk(0, unit, Some("a volume"))));
        assert_eq!(of_vm(&devices, Some("7.0.3")), 59);
        devices.extend((8..11).map(|unit| disk(0, unit, None)));
        assert_eq!(of_vm(&devices, Some("7.0.3")), 56);
    }

    #[test]
    fn a_controller_of_another_type_costs_all_its_slots_and_ide_none() {
        let mut devices = vec![
            controller(0, "VirtualLsiLogicController"),
            disk(0, 0, None),
            controller(1, PARAVIRTUAL),
            controller(9, "VirtualIDEController"),
        ];
        assert_eq!(of_vm(&devices, Some("7.0.3")), 45);
        devices.push(controller(2, "VirtualLsiLogicSASController"));
        devices.push(controller(3, "VirtualBusLogicController"));
        assert_eq!(of_vm(&devices, Some("7.0.3")), 15);
    }

    #[test]
    fn a_vm_without_a_paravirtual_controller_and_without_room_for_one_has_none() {
        let devices = [0, 1, 2, 3].map(|bus| controller(bus, "VirtualLsiLogicController"));
        assert_eq!(of_vm(&devices, Some("8.0.3")), 0);
    }
}
