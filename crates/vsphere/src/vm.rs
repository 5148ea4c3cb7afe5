//! Changes to VMs.

use crate::client::Client;
use crate::error::Error;
use crate::inventory::OptionValue;
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

impl VmChange {
    #[must_use]
    pub fn option(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.extra_config.push(OptionValue { key: key.into(), value: value.into() });
        self
    }

    /// Shows or hides disk uuids in the guest: `disk.EnableUUID`.
    #[must_use]
    pub fn show_disk_uuids(mut self, show: bool) -> Self {
        self.flags = Some(VmFlags { disk_uuid_enabled: Some(show) });
        self.option("disk.EnableUUID", if show { "TRUE" } else { "FALSE" })
    }
}

impl Client {
    /// Starts a change of a VM. Needs the privilege for each changed setting, such as
    /// `VirtualMachine.Config.AdvancedConfig` or `VirtualMachine.Config.Settings`.
    pub async fn reconfigure(&self, vm: &MoRef, change: &VmChange) -> Result<Task, Error> {
        let method = Method::change("ReconfigVM_Task");
        Ok(self.task(method.name, self.call(method, vm, &[("spec", change)]).await?))
    }

    /// Starts an upgrade of a VM's hardware version to `version` (`vmx-19`), or to the newest that
    /// its host supports. The VM must be off. The upgrade cannot be undone.
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
