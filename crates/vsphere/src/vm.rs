//! Changes to VMs.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::client::Client;
use crate::collector::spec::{FilterSpec, ObjectSpec, PropertySpec};
use crate::collector::{managed, retrieve};
use crate::error::Error;
use crate::inventory::{
    Device, DeviceDetail, Devices, ExtraConfig, OptionValue, PowerState, ToolsRunning,
};
use crate::moref::MoRef;
use crate::soap::Value;
use crate::tasks::Task;
use crate::wire::Method;
use crate::xml::codec::{Decode, Encode, data};
use crate::xml::reader::{Reader, Start, XmlError};
use crate::xml::writer::Writer;

data! {
    /// A change to a VM. Fields that are `None` or empty stay unchanged.
    #[derive(Default)]
    pub struct VmChange {
        /// vCenter rejects the change if the VM no longer has this version.
        change_version: Option<String> = "changeVersion",
        name: Option<String> = "name",
        annotation: Option<String> = "annotation",
        flags: Option<VmFlags> = "flags",
        cpus: Option<i32> = "numCPUs",
        memory_mib: Option<i64> = "memoryMB",
        controllers: Vec<ControllerChange> = "deviceChange",
        /// Advanced options to set. An empty value removes the option.
        extra_config: Vec<OptionValue> = "extraConfig",
        /// Changed block tracking.
        track_blocks: Option<bool> = "changeTrackingEnabled",
    }
}

data! {
    /// Adds or removes a SCSI controller.
    pub struct ControllerChange {
        /// `add` or `remove`.
        operation: String = "operation",
        controller: ScsiController = "device",
    }
}

/// The API type of controllers that container volumes can use.
const PARAVIRTUAL: &str = "ParaVirtualSCSIController";

/// A SCSI controller of a VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScsiController {
    /// Unique within the VM. Negative for a controller that does not exist yet.
    pub key: i32,
    pub bus: i32,
    /// The API type name.
    pub type_name: String,
    /// The number of its disks.
    pub disks: usize,
}

impl ScsiController {
    pub fn is_paravirtual(&self) -> bool {
        self.type_name == PARAVIRTUAL
    }

    /// The SCSI controllers among the devices of a VM.
    fn among(devices: &[Device]) -> Vec<Self> {
        let disks = |key| {
            let on = |device: &&Device| {
                device.controller == Some(key) && matches!(device.detail, DeviceDetail::Disk(_))
            };
            devices.iter().filter(on).count()
        };
        let controller = |device: &Device| {
            let name = &*device.type_name;
            let scsi = ["SCSI", "LsiLogic", "BusLogic"].iter().any(|kind| name.contains(kind));
            match device.detail {
                DeviceDetail::Controller { bus } if scsi => Some(Self {
                    key: device.key,
                    bus,
                    type_name: name.to_owned(),
                    disks: disks(device.key),
                }),
                _ => None,
            }
        };
        devices.iter().filter_map(controller).collect()
    }
}

data! {
    struct RawController {
        key: i32 = "key",
        bus: i32 = "busNumber",
    }
}

impl Decode for ScsiController {
    fn decode(start: &Start<'_>, reader: &mut Reader<'_>) -> Result<Self, XmlError> {
        let type_name = start.xsi_type().as_deref().unwrap_or_default().to_owned();
        let RawController { key, bus } = RawController::decode(start, reader)?;
        Ok(Self { key, bus, type_name, disks: 0 })
    }
}

impl Encode for ScsiController {
    fn encode(&self, name: &str, writer: &mut Writer) {
        writer.open_with(name, &[("xsi:type", &self.type_name)]);
        self.key.encode("key", writer);
        self.bus.encode("busNumber", writer);
        "noSharing".encode("sharedBus", writer);
        writer.close(name);
    }
}

data! {
    pub struct VmFlags {
        /// Whether the guest sees disk uuids. Takes effect at the next power cycle.
        disk_uuid_enabled: Option<bool> = "diskUuidEnabled",
    }
}

managed! {
    struct DiskUuidProperties of VirtualMachine {
        ALL {
            flag: bool = "config.flags.diskUuidEnabled",
            options: ExtraConfig = "config.extraConfig",
        }
    }
}

managed! {
    struct StateProperties of VirtualMachine {
        ALL {
            power: PowerState = "runtime.powerState",
            boot_time: Timestamp = "runtime.bootTime",
            hardware_version: Box<str> = "config.version",
            tracks_blocks: bool = "config.changeTrackingEnabled",
            tools: ToolsRunning = "guest.toolsRunningStatus",
            devices: Devices = "config.hardware.device",
        }
    }
}

/// The properties of a VM that change only while it is off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmState {
    pub power: PowerState,
    /// When the VM was last powered on; `None` while it is off.
    pub boot_time: Option<Timestamp>,
    /// For example 19 for `vmx-19`; `None` if vCenter does not show it.
    pub hardware_version: Option<u32>,
    pub tracks_blocks: Option<bool>,
    pub tools_run: bool,
    pub controllers: Vec<ScsiController>,
}

const DISK_UUID_OPTION: &str = "disk.EnableUUID";

/// Whether a VM shows disk uuids to its guest. The setting exists in two places.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskUuidSetting {
    /// The VM's flag; `None` if it was never set.
    pub flag: Option<bool>,
    /// The advanced option `disk.EnableUUID`; `None` if the VM does not have it.
    pub option: Option<String>,
}

impl DiskUuidSetting {
    /// The setting that [`VmChange::show_disk_uuids`] writes.
    pub fn shown(show: bool) -> Self {
        let option = if show { "TRUE" } else { "FALSE" };
        Self { flag: Some(show), option: Some(option.to_owned()) }
    }
}

impl VmChange {
    /// Replaces controllers without disks by paravirtual ones on the same bus. The VM must be off.
    #[must_use]
    pub fn replace_controllers(mut self, old: &[ScsiController]) -> Self {
        let change = |operation: &str, controller| ControllerChange {
            operation: operation.to_owned(),
            controller,
        };
        for (number, controller) in old.iter().enumerate() {
            let key = -1 - i32::try_from(number).unwrap_or_default();
            let type_name = PARAVIRTUAL.to_owned();
            let new = ScsiController { key, bus: controller.bus, type_name, disks: 0 };
            self.controllers.push(change("remove", controller.clone()));
            self.controllers.push(change("add", new));
        }
        self
    }

    #[must_use]
    pub fn option(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.extra_config.push(OptionValue { key: key.into(), value: value.into() });
        self
    }

    /// Shows or hides disk uuids in the guest: `disk.EnableUUID`.
    #[must_use]
    pub fn show_disk_uuids(self, show: bool) -> Self {
        self.disk_uuid_setting(&DiskUuidSetting::shown(show))
    }

    /// Restores an earlier setting. Removes the advanced option if the VM did not have it.
    #[must_use]
    pub fn disk_uuid_setting(mut self, setting: &DiskUuidSetting) -> Self {
        self.flags = Some(VmFlags { disk_uuid_enabled: Some(setting.flag.unwrap_or_default()) });
        self.option(DISK_UUID_OPTION, setting.option.as_deref().unwrap_or_default())
    }
}

impl Client {
    /// Reads whether a VM shows disk uuids to its guest.
    pub async fn disk_uuid_setting(&self, vm: &MoRef) -> Result<DiskUuidSetting, Error> {
        let properties = DiskUuidProperties::ALL.iter().copied();
        let spec = FilterSpec {
            properties: vec![PropertySpec::new("VirtualMachine", properties)],
            objects: vec![ObjectSpec::just(vm.clone())],
            skip_missing: false,
        };
        let mut setting = DiskUuidSetting::default();
        for found in retrieve::<DiskUuidProperties>(self, &spec, None).await? {
            if let Some(missing) = found.missing.into_iter().next() {
                return Err(self.wire().fault("config", missing.fault));
            }
            let Some(read) = found.value else { continue };
            let option = read.options.as_ref().and_then(|all| all.get(DISK_UUID_OPTION));
            setting.flag = read.flag;
            setting.option = option.and_then(Value::to_text);
        }
        Ok(setting)
    }

    /// Reads the properties that change only while a VM is off.
    pub async fn vm_state(&self, vm: &MoRef) -> Result<VmState, Error> {
        let properties = StateProperties::ALL.iter().copied();
        let spec = FilterSpec {
            properties: vec![PropertySpec::new("VirtualMachine", properties)],
            objects: vec![ObjectSpec::just(vm.clone())],
            skip_missing: false,
        };
        let mut found = retrieve::<StateProperties>(self, &spec, None).await?;
        let read = found.pop().and_then(|found| found.value);
        let read = read.unwrap_or_else(|| StateProperties::new(vm.clone()));
        let number = |version: &str| version.strip_prefix("vmx-")?.parse().ok();
        Ok(VmState {
            power: read.power.unwrap_or_else(|| PowerState::Other("unknown".into())),
            boot_time: read.boot_time,
            hardware_version: read.hardware_version.as_deref().and_then(number),
            tracks_blocks: read.tracks_blocks,
            tools_run: read.tools == Some(ToolsRunning::Running),
            controllers: ScsiController::among(read.devices.as_deref().unwrap_or_default()),
        })
    }

    /// Asks VMware Tools to shut the guest down. Returns before it is down. Needs `VirtualMachine.Interact.PowerOff`.
    pub async fn shut_down_guest(&self, vm: &MoRef) -> Result<(), Error> {
        self.call(Method::change("ShutdownGuest"), vm, &[]).await
    }

    /// Powers a VM off, like pulling its plug. Needs `VirtualMachine.Interact.PowerOff`.
    pub async fn power_off(&self, vm: &MoRef) -> Result<Task, Error> {
        let method = Method::change("PowerOffVM_Task");
        Ok(self.task(method.name, self.call(method, vm, &[]).await?))
    }

    /// Needs `VirtualMachine.Interact.PowerOn`.
    pub async fn power_on(&self, vm: &MoRef) -> Result<Task, Error> {
        let method = Method::change("PowerOnVM_Task");
        Ok(self.task(method.name, self.call(method, vm, &[]).await?))
    }

    /// Upgrades the hardware of a VM that is off; vCenter does not downgrade. Needs
    /// `VirtualMachine.Config.UpgradeVirtualHardware`.
    pub async fn upgrade_hardware(&self, vm: &MoRef, version: u32) -> Result<Task, Error> {
        let method = Method::change("UpgradeVM_Task");
        let version = format!("vmx-{version:02}");
        Ok(self.task(method.name, self.call(method, vm, &[("version", &version)]).await?))
    }

    /// Starts a change of a VM. Needs the privilege for each changed setting, such as
    /// `VirtualMachine.Config.AdvancedConfig` or `VirtualMachine.Config.Settings`.
    pub async fn reconfigure(&self, vm: &MoRef, change: &VmChange) -> Result<Task, Error> {
        let method = Method::change("ReconfigVM_Task");
        Ok(self.task(method.name, self.call(method, vm, &[("spec", change)]).await?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xml::codec::to_xml;

    #[test]
    fn a_change_is_encoded_in_the_order_vcenter_requires() {
        let change = VmChange { cpus: Some(2), name: Some("n".to_owned()), ..VmChange::default() }
            .show_disk_uuids(true);
        assert_eq!(
            to_xml("spec", &change),
            "<spec><name>n</name><flags><diskUuidEnabled>true</diskUuidEnabled></flags><numCPUs>2</numCPUs>\
             <extraConfig><key>disk.EnableUUID</key><value xsi:type=\"xsd:string\">TRUE</value></extraConfig></spec>"
        );
    }

    #[test]
    fn an_empty_controller_is_replaced_on_its_bus() {
        let old = ScsiController {
            key: 1001,
            bus: 1,
            type_name: "VirtualLsiLogicController".to_owned(),
            disks: 0,
        };
        let change = VmChange { track_blocks: Some(true), ..VmChange::default() };
        assert_eq!(
            to_xml("spec", &change.replace_controllers(&[old])),
            "<spec><deviceChange><operation>remove</operation><device xsi:type=\"VirtualLsiLogicController\">\
             <key>1001</key><busNumber>1</busNumber><sharedBus>noSharing</sharedBus></device></deviceChange>\
             <deviceChange><operation>add</operation><device xsi:type=\"ParaVirtualSCSIController\">\
             <key>-1</key><busNumber>1</busNumber><sharedBus>noSharing</sharedBus></device></deviceChange>\
             <changeTrackingEnabled>true</changeTrackingEnabled></spec>"
        );
    }
}
