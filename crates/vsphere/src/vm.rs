//! Changing virtual machines.

use crate::client::Client;
use crate::error::Error;
use crate::inventory::OptionValue;
use crate::moref::MoRef;
use crate::soap::Value;
use crate::tasks::Task;
use crate::wire::Method;
use crate::xml::codec::data;

data! {
    /// What to change of a machine. What is `None` or empty stays as it is.
    #[derive(Default)]
    pub struct VmChange {
        /// Refuses the change if the machine was changed since it had this version.
        change_version: Option<String> = "changeVersion",
        /// The name in the inventory.
        name: Option<String> = "name",
        /// The notes.
        annotation: Option<String> = "annotation",
        /// Switches.
        flags: Option<VmFlags> = "flags",
        /// Virtual processors.
        cpus: Option<i32> = "numCPUs",
        /// Memory.
        memory_mib: Option<i64> = "memoryMB",
        /// Advanced options to set; an empty text removes one.
        extra_config: Vec<OptionValue> = "extraConfig",
    }
}

data! {
    /// Switches of a machine.
    pub struct VmFlags {
        /// Whether the guest can see the ids of its disks. Takes effect with the next power cycle.
        disk_uuid_enabled: Option<bool> = "diskUuidEnabled",
    }
}

impl VmChange {
    /// Sets an advanced option.
    #[must_use]
    pub fn option(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.extra_config.push(OptionValue { key: key.into(), value: value.into() });
        self
    }

    /// Lets the guest see the ids of its disks, or not: `disk.EnableUUID`.
    #[must_use]
    pub fn show_disk_uuids(mut self, show: bool) -> Self {
        self.flags = Some(VmFlags { disk_uuid_enabled: Some(show) });
        self.option("disk.EnableUUID", if show { "TRUE" } else { "FALSE" })
    }
}

impl Client {
    /// Starts to change a machine. Needs the privilege of each thing that is changed
    /// (`VirtualMachine.Config.AdvancedConfig`, `VirtualMachine.Config.Settings`, …).
    pub async fn reconfigure(&self, vm: &MoRef, change: &VmChange) -> Result<Task, Error> {
        let method = Method::change("ReconfigVM_Task");
        Ok(self.task(method.name, self.call(method, vm, &[("spec", change)]).await?))
    }

    /// Starts to raise a machine's hardware version, to `version` (`vmx-19`) or the newest its host
    /// knows. The machine must be off; there is no way back.
    pub async fn upgrade_hardware(&self, vm: &MoRef, version: Option<&str>) -> Result<Task, Error> {
        let method = Method::change("UpgradeVM_Task");
        Ok(self.task(method.name, self.call(method, vm, &[("version", &version)]).await?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xml::codec::to_xml;

    #[test]
    fn a_change_is_written_in_the_order_vcenter_demands() {
        let change = VmChange { cpus: Some(2), name: Some("n".to_owned()), ..VmChange::default() }
            .show_disk_uuids(true);
        assert_eq!(
            to_xml("spec", &change),
            "<spec><name>n</name><flags><diskUuidEnabled>true</diskUuidEnabled></flags><numCPUs>2</numCPUs>\
             <extraConfig><key>disk.EnableUUID</key><value xsi:type=\"xsd:string\">TRUE</value></extraConfig></spec>"
        );
    }
}
