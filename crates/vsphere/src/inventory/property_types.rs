//! The types of structured properties: guest interfaces, mounts, snapshots and devices.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use jiff::Timestamp;
use redaction::is_guest_variable;

use super::model::PowerState;
use crate::moref::MoRef;
use crate::soap::Value;
use crate::xml::XmlError;
use crate::xml::codec::{Decode, data, impl_data};
use crate::xml::reader::{Reader, Start};

#[derive(Debug, Clone, PartialEq, Default)]
pub struct ExtraConfig(Box<[OptionValue]>);

impl ExtraConfig {
    /// The value of an option. Ignores the case of the key, like ESXi.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0
            .iter()
            .find(|option| option.key.eq_ignore_ascii_case(key))
            .map(|option| &option.value)
    }

    /// Keeps only the options whose key satisfies `keep`.
    pub(crate) fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        let all = std::mem::take(&mut self.0);
        self.0 = all.into_iter().filter(|option| keep(&option.key)).collect();
    }

    /// All options, in vCenter's order.
    pub fn iter(&self) -> impl Iterator<Item = &OptionValue> {
        self.0.iter()
    }
}

impl Decode for ExtraConfig {
    fn decode(start: &Start<'_>, reader: &mut Reader<'_>) -> Result<Self, XmlError> {
        Ok(Self(Box::decode(start, reader)?))
    }
}

/// An advanced option. `Debug` hides the value of a guest variable (`guestinfo.*`), because
/// cloud-init puts passwords there.
#[derive(Clone, PartialEq)]
pub struct OptionValue {
    pub key: Box<str>,
    pub value: Value,
}

impl_data! { OptionValue { key: Box<str> = "key", value: Value = "value", } }

impl fmt::Debug for OptionValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, value } = self;
        let mut shown = f.debug_struct("OptionValue");
        shown.field("key", key);
        if is_guest_variable(key) {
            shown.field("value", &format_args!("***"));
        } else {
            shown.field("value", value);
        }
        shown.finish()
    }
}

/// A network interface of a guest, as VMware Tools report it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestNic {
    pub network: Option<Box<str>>,
    pub mac: Option<Box<str>>,
    pub connected: bool,
    /// The key of the virtual device. -1 for an interface without a device, such as one of a
    /// container network.
    pub device: i32,
    pub addresses: Box<[GuestAddress]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuestAddress {
    pub address: IpAddr,
    /// The prefix length, if reported.
    pub prefix: Option<u8>,
}

data! {
    struct GuestNicInfo {
        network: Option<Box<str>> = "network",
        ip_address: Vec<String> = "ipAddress",
        mac: Option<Box<str>> = "macAddress",
        connected: Option<bool> = "connected",
        device: Option<i32> = "deviceConfigId",
        ip_config: Option<IpConfig> = "ipConfig",
    }
}

data! {
    struct IpConfig {
        addresses: Vec<IpConfigAddress> = "ipAddress",
    }
}

data! {
    struct IpConfigAddress {
        address: String = "ipAddress",
        prefix: Option<i32> = "prefixLength",
    }
}

impl Decode for GuestNic {
    fn decode(start: &Start<'_>, reader: &mut Reader<'_>) -> Result<Self, XmlError> {
        let info = GuestNicInfo::decode(start, reader)?;
        let address = |text: &str, prefix: Option<i32>| {
            // A link-local address can have a zone.
            let address = text.split('%').next()?.parse().ok()?;
            Some(GuestAddress { address, prefix: prefix.and_then(|p| u8::try_from(p).ok()) })
        };
        let detailed: Vec<GuestAddress> = info
            .ip_config
            .iter()
            .flat_map(|config| &config.addresses)
            .filter_map(|a| address(&a.address, a.prefix))
            .collect();
        // The list has the addresses in order; the details have the prefix lengths.
        let listed = info.ip_address.iter().filter_map(|text| address(text, None));
        let mut addresses: Vec<GuestAddress> = listed
            .map(|bare| {
                detailed.iter().find(|a| a.address == bare.address).copied().unwrap_or(bare)
            })
            .collect();
        if addresses.is_empty() {
            addresses = detailed;
        }
        Ok(Self {
            network: info.network,
            mac: info.mac,
            connected: info.connected.unwrap_or_default(),
            device: info.device.unwrap_or(-1),
            addresses: addresses.into_boxed_slice(),
        })
    }
}

data! {
    pub struct DatastoreHostMount {
        host: MoRef = "key",
        mount: HostMount = "mountInfo",
    }
}

data! {
    pub struct HostMount {
        path: Option<Box<str>> = "path",
        /// `readWrite` or `readOnly`.
        access: Box<str> = "accessMode",
        mounted: Option<bool> = "mounted",
        accessible: Option<bool> = "accessible",
        inaccessible_reason: Option<Box<str>> = "inaccessibleReason",
    }
}

impl HostMount {
    /// Whether the host can write to the datastore now. Treats unreported properties as good.
    pub fn is_usable(&self) -> bool {
        &*self.access != "readOnly" && self.mounted != Some(false) && self.accessible != Some(false)
    }
}

data! {
    pub struct SnapshotInfo {
        /// The snapshot that the VM's current state is based on.
        current: Option<MoRef> = "currentSnapshot",
        /// The snapshots without a parent.
        roots: Vec<Snapshot> = "rootSnapshotList",
    }
}

data! {
    /// A snapshot and its descendants.
    pub struct Snapshot {
        reference: MoRef = "snapshot",
        name: Box<str> = "name",
        /// Free text of the author.
        description: Option<Box<str>> = "description",
        created: Timestamp = "createTime",
        /// The VM's power state at that time.
        power: PowerState = "state",
        /// The snapshots based on this one.
        children: Vec<Snapshot> = "childSnapshotList",
    }
}

impl SnapshotInfo {
    /// All snapshots, parents before children.
    pub fn all(&self) -> Vec<&Snapshot> {
        let mut found: Vec<&Snapshot> = self.roots.iter().collect();
        let mut next = 0;
        while let Some(snapshot) = found.get(next).copied() {
            found.extend(&snapshot.children);
            next += 1;
        }
        found
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    /// Unique within the VM.
    pub key: i32,
    /// The API type name.
    pub type_name: Cow<'static, str>,
    /// The key of its controller.
    pub controller: Option<i32>,
    /// The unit number on the controller.
    pub unit: Option<i32>,
    pub detail: DeviceDetail,
}

/// The controllers, disks and network interfaces of a VM. Omits all other devices.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Devices(Box<[Device]>);

impl std::ops::Deref for Devices {
    type Target = [Device];

    fn deref(&self) -> &[Device] {
        &self.0
    }
}

impl Decode for Devices {
    fn decode(_: &Start<'_>, reader: &mut Reader<'_>) -> Result<Self, XmlError> {
        let mut devices = Vec::new();
        while let Some(start) = reader.next_child()? {
            let type_name = type_name(start.xsi_type().as_deref());
            let raw = RawDevice::decode(&start, reader)?;
            devices.extend(raw.device(type_name));
        }
        Ok(Self(devices.into_boxed_slice()))
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum DeviceDetail {
    /// Boxed, so that all other devices stay small.
    Disk(Box<Disk>),
    Controller {
        bus: i32,
    },
    Nic {
        mac: Box<str>,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub struct Disk {
    pub capacity: i64,
    /// The disk's id in the guest, `6000C29…`, if the VM shows disk uuids.
    pub uuid: Option<Box<str>>,
    pub file: Option<Box<str>>,
    pub datastore: Option<MoRef>,
    /// The volume id, for a container volume or another first class disk.
    pub volume_id: Option<Box<str>>,
}

data! {
    struct RawDevice {
        key: i32 = "key",
        backing: Option<RawBacking> = "backing",
        controller: Option<i32> = "controllerKey",
        unit: Option<i32> = "unitNumber",
        bus: Option<i32> = "busNumber",
        capacity_kib: Option<i64> = "capacityInKB",
        capacity: Option<i64> = "capacityInBytes",
        volume: Option<RawId> = "vDiskId",
        mac: Option<Box<str>> = "macAddress",
    }
}

data! {
    struct RawBacking {
        file: Option<Box<str>> = "fileName",
        datastore: Option<MoRef> = "datastore",
        uuid: Option<Box<str>> = "uuid",
    }
}

data! {
    struct RawId {
        id: Box<str> = "id",
    }
}

/// Common device types, whose names need no allocation per device.
const COMMON_TYPES: [&str; 22] = [
    "VirtualDisk",
    "VirtualVmxnet3",
    "VirtualE1000",
    "VirtualE1000e",
    "ParaVirtualSCSIController",
    "VirtualLsiLogicController",
    "VirtualLsiLogicSASController",
    "VirtualBusLogicController",
    "VirtualNVMEController",
    "VirtualAHCIController",
    "VirtualIDEController",
    "VirtualPCIController",
    "VirtualPS2Controller",
    "VirtualSIOController",
    "VirtualUSBController",
    "VirtualUSBXHCIController",
    "VirtualKeyboard",
    "VirtualPointingDevice",
    "VirtualCdrom",
    "VirtualFloppy",
    "VirtualMachineVideoCard",
    "VirtualMachineVMCIDevice",
];

fn type_name(reported: Option<&str>) -> Cow<'static, str> {
    let reported = reported.unwrap_or("VirtualDevice");
    let common = COMMON_TYPES.iter().find(|common| **common == reported);
    common.map_or_else(|| Cow::Owned(reported.to_owned()), |common| Cow::Borrowed(*common))
}

impl RawDevice {
    /// Returns `None` for other devices than controllers, disks and network interfaces.
    fn device(self, type_name: Cow<'static, str>) -> Option<Device> {
        let detail = match (&*type_name, self.bus, self.mac) {
            ("VirtualDisk", ..) => {
                let backing =
                    self.backing.unwrap_or(RawBacking { file: None, datastore: None, uuid: None });
                DeviceDetail::Disk(Box::new(Disk {
                    capacity: self
                        .capacity
                        .or(self.capacity_kib.map(|kib| kib.saturating_mul(1024)))
                        .unwrap_or_default(),
                    uuid: backing.uuid,
                    file: backing.file,
                    datastore: backing.datastore,
                    volume_id: self.volume.map(|volume| volume.id),
                }))
            }
            (_, Some(bus), _) => DeviceDetail::Controller { bus },
            (_, None, Some(mac)) => DeviceDetail::Nic { mac },
            (_, None, None) => return None,
        };
        let (key, controller, unit) = (self.key, self.controller, self.unit);
        Some(Device { key, type_name, controller, unit, detail })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xml::codec::from_xml;

    /// Hand-made data: the simulator reports no zones and always reports details.
    #[test]
    fn addresses_come_from_the_list_and_prefixes_from_the_details() {
        let detail = "<ipConfig>\
             <ipAddress><ipAddress>10.0.0.1</ipAddress><prefixLength>24</prefixLength></ipAddress>\
             <ipAddress><ipAddress>fe80::1%eth0</ipAddress><prefixLength>64</prefixLength></ipAddress></ipConfig>";
        let shown = |list: &[&str]| -> Vec<(String, Option<u8>)> {
            let list: String =
                list.iter().map(|text| format!("<ipAddress>{text}</ipAddress>")).collect();
            let nic: GuestNic = from_xml(&format!("<n>{list}{detail}</n>")).unwrap();
            nic.addresses.iter().map(|a| (a.address.to_string(), a.prefix)).collect()
        };
        let detailed = [("10.0.0.1".to_owned(), Some(24)), ("fe80::1".to_owned(), Some(64))];
        assert_eq!(shown(&["10.0.0.1", "fe80::1%eth0"]), detailed);
        assert_eq!(
            shown(&["10.0.0.1"]),
            detailed[..1],
            "an address only in the details does not count"
        );
        let other = [("10.0.0.9".to_owned(), None), detailed[0].clone()];
        assert_eq!(shown(&["10.0.0.9", "10.0.0.1"]), other, "in the order of the list");
        assert_eq!(shown(&[]), detailed, "the details are used without a list");
        let bare: GuestNic =
            from_xml("<n><ipAddress>10.0.0.2</ipAddress><ipAddress>junk</ipAddress></n>").unwrap();
        assert_eq!(bare.addresses.len(), 1);
        assert_eq!(bare.device, -1);
    }

    #[test]
    fn devices_of_unknown_types_are_skipped() {
        let devices: Devices = from_xml(
            r#"<val><VirtualDevice xsi:type="ParaVirtualSCSIController"><key>1000</key><busNumber>0</busNumber></VirtualDevice>
               <VirtualDevice xsi:type="VirtualDisk"><key>2000</key><backing xsi:type="VirtualDiskFlatVer2BackingInfo">
               <fileName>[ds] a.vmdk</fileName><uuid>6000C29</uuid></backing><controllerKey>1000</controllerKey>
               <unitNumber>0</unitNumber><capacityInKB>2</capacityInKB><vDiskId><id>v1</id></vDiskId></VirtualDevice>
               <VirtualDevice xsi:type="VirtualQuantumDevice"><key>9</key><spin>up</spin></VirtualDevice></val>"#,
        )
        .unwrap();
        assert_eq!(devices[0].detail, DeviceDetail::Controller { bus: 0 });
        let DeviceDetail::Disk(disk) = &devices[1].detail else { panic!("{devices:?}") };
        assert_eq!((disk.capacity, disk.volume_id.as_deref()), (2048, Some("v1")));
        assert_eq!(devices.len(), 2);
    }
}
