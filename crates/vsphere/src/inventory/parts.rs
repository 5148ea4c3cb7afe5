//! What the objects of an inventory are made of.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use jiff::Timestamp;

use super::model::PowerState;
use crate::moref::MoRef;
use crate::soap::codec::{Decode, coded, data};
use crate::soap::reader::{Reader, Start};
use crate::soap::{Value, XmlError};
use redaction::is_guest_variable;

/// The advanced options of a machine.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ExtraConfig(Box<[OptionValue]>);

impl ExtraConfig {
    /// The value of an option. Like ESXi, it does not care for the key's case.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0
            .iter()
            .find(|option| option.key.eq_ignore_ascii_case(key))
            .map(|option| &option.value)
    }

    /// Keeps only the options whose key is so.
    pub(crate) fn retain(&mut self, is: impl Fn(&str) -> bool) {
        let all = std::mem::take(&mut self.0);
        self.0 = all.into_iter().filter(|option| is(&option.key)).collect();
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

/// An advanced option. The value of a guest variable (`guestinfo.*`) is not shown by `Debug`:
/// cloud-init puts passwords there.
#[derive(Clone, PartialEq)]
pub struct OptionValue {
    /// Its name.
    pub key: Box<str>,
    /// Its value.
    pub value: Value,
}

coded! { OptionValue { key: Box<str> = "key", value: Value = "value", } }

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

/// An interface of a guest, as VMware Tools report it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestNic {
    /// The network it is on.
    pub network: Option<Box<str>>,
    /// Its MAC address.
    pub mac: Option<Box<str>>,
    /// Whether it is connected.
    pub connected: bool,
    /// The virtual device, or -1 for an interface that is none, such as one of a container
    /// network.
    pub device: i32,
    /// Its addresses.
    pub addresses: Box<[GuestAddress]>,
}

/// An address of a guest's interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuestAddress {
    /// The address.
    pub address: IpAddr,
    /// The length of its prefix, where it is reported.
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
            // A link-local address may carry its zone.
            let address = text.split('%').next()?.parse().ok()?;
            Some(GuestAddress { address, prefix: prefix.and_then(|p| u8::try_from(p).ok()) })
        };
        let detailed: Vec<GuestAddress> = info
            .ip_config
            .iter()
            .flat_map(|config| &config.addresses)
            .filter_map(|a| address(&a.address, a.prefix))
            .collect();
        // The list says which there are, and in which order; the detail how long their prefixes are.
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
    /// A host that mounts a datastore.
    pub struct DatastoreHostMount {
        /// The host.
        host: MoRef = "key",
        /// How.
        mount: HostMount = "mountInfo",
    }
}

data! {
    /// How a host mounts a datastore.
    pub struct HostMount {
        /// Where.
        path: Option<Box<str>> = "path",
        /// `readWrite` or `readOnly`.
        access: Box<str> = "accessMode",
        /// Whether it is mounted.
        mounted: Option<bool> = "mounted",
        /// Whether it can be reached.
        accessible: Option<bool> = "accessible",
        /// Why not.
        inaccessible_reason: Option<Box<str>> = "inaccessibleReason",
    }
}

impl HostMount {
    /// Whether the host can write there at present. What vCenter does not say is taken as good.
    pub fn is_usable(&self) -> bool {
        &*self.access != "readOnly" && self.mounted != Some(false) && self.accessible != Some(false)
    }
}

data! {
    /// The snapshots of a machine.
    pub struct SnapshotInfo {
        /// The one the machine goes on from.
        current: Option<MoRef> = "currentSnapshot",
        /// The oldest ones.
        roots: Vec<Snapshot> = "rootSnapshotList",
    }
}

data! {
    /// A snapshot and those made after it.
    pub struct Snapshot {
        /// The snapshot.
        reference: MoRef = "snapshot",
        /// Its name.
        name: Box<str> = "name",
        /// What its maker wrote.
        description: Option<Box<str>> = "description",
        /// When it was made.
        created: Timestamp = "createTime",
        /// The machine's state then.
        power: PowerState = "state",
        /// Made later.
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

/// A virtual device.
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    /// Names it within its machine.
    pub key: i32,
    /// Its type, as vCenter calls it.
    pub type_name: Cow<'static, str>,
    /// The controller it hangs on.
    pub controller: Option<i32>,
    /// Its place there.
    pub unit: Option<i32>,
    /// What belongs to its type.
    pub detail: DeviceDetail,
}

/// The controllers, disks and interfaces of a machine. Keyboards and the like are left out.
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

/// What belongs to a device's type.
#[derive(Debug, Clone, PartialEq)]
pub enum DeviceDetail {
    /// A disk. Apart, so that the many devices that are none take no more than they need.
    Disk(Box<Disk>),
    /// A controller for disks.
    Controller {
        /// Its number among those of its kind.
        bus: i32,
    },
    /// A network interface.
    Nic {
        /// Its MAC address.
        mac: Box<str>,
    },
}

/// A virtual disk.
#[derive(Debug, Clone, PartialEq)]
pub struct Disk {
    /// Bytes.
    pub capacity: i64,
    /// What the guest sees as its id, `6000C29…`, if ids are shown.
    pub uuid: Option<Box<str>>,
    /// Its file.
    pub file: Option<Box<str>>,
    /// The datastore its file is on.
    pub datastore: Option<MoRef>,
    /// The volume it is, if it is one of the container storage service or another first class
    /// disk.
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

/// The types of the devices most machines have: their names are not stored once more for each device.
const COMMON: [&str; 22] = [
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

fn type_name(told: Option<&str>) -> Cow<'static, str> {
    let told = told.unwrap_or("VirtualDevice");
    let common = COMMON.iter().find(|common| **common == told);
    common.map_or_else(|| Cow::Owned(told.to_owned()), |common| Cow::Borrowed(*common))
}

impl RawDevice {
    /// `None` for what is neither a controller nor a disk nor an interface.
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
    use crate::soap::codec::from_xml;

    /// Hand-made: the simulator gives no zones, no interfaces without detail, and the same in both.
    #[test]
    fn the_list_says_which_addresses_there_are_and_the_detail_their_prefixes() {
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
        assert_eq!(shown(&["10.0.0.1"]), detailed[..1], "what only the detail has is none");
        let other = [("10.0.0.9".to_owned(), None), detailed[0].clone()];
        assert_eq!(shown(&["10.0.0.9", "10.0.0.1"]), other, "in the order of the list");
        assert_eq!(shown(&[]), detailed, "without a list there is the detail");
        let bare: GuestNic =
            from_xml("<n><ipAddress>10.0.0.2</ipAddress><ipAddress>junk</ipAddress></n>").unwrap();
        assert_eq!(bare.addresses.len(), 1);
        assert_eq!(bare.device, -1);
    }

    #[test]
    fn devices_of_unknown_types_are_left_out_and_do_not_fail_the_others() {
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
