//! Changes to VMs.

use serde::{Deserialize, Serialize};

use crate::client::Client;
use crate::collector::spec::{FilterSpec, ObjectSpec, PropertySpec};
use crate::collector::{managed, retrieve};
use crate::error::Error;
use crate::inventory::{ExtraConfig, OptionValue};
use crate::moref::MoRef;
use crate::soap::Value;
use crate::tasks::Task;
use crate::wire::Method;
use crate::xml::codec::data;

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
        /// Advanced options to set. An empty value removes the option.
        extra_config: Vec<OptionValue> = "extraConfig",
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
}
