//! The annotation that records a Node's VM across restarts of the controller.
//!
//! A provider id names neither the vCenter nor the reference of a VM, and without them there is no
//! proof later that the VM is gone. The controller writes the record when it initialises a node. A
//! node that another controller initialised gets it when it stops being Ready.

use serde::{Deserialize, Serialize};
use vsphere::{InstanceUuid, MoRef};

use crate::model::{VirtualMachine, VmRef};

pub const ANNOTATION: &str = "vdo.vmware.com/virtual-machine";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// The name of the vCenter in the configuration.
    pub vcenter: String,
    /// The vCenter's own uuid; empty if unknown. A vCenter that replaced another one does not know the
    /// VMs of the other.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub vcenter_uuid: String,
    /// The reference of the VM in that vCenter: `vm-42`.
    #[serde(rename = "machine")]
    pub vm: String,
    /// Distinguishes the VM from its copies; empty if unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub instance_uuid: String,
    /// The folder of the VM: `group-v3`; empty if unknown. If the user cannot see the folder, there is no
    /// proof that the VM is gone from it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub folder: String,
}

impl Record {
    pub fn for_vm(vm: &VirtualMachine) -> Self {
        Self {
            vcenter: vm.vm_ref.vcenter.to_string(),
            vcenter_uuid: vm.vcenter_uuid.to_string(),
            vm: vm.vm_ref.vm.id.to_string(),
            instance_uuid: vm.instance_uuid.map(|uuid| uuid.to_string()).unwrap_or_default(),
            folder: vm.folder.as_ref().map(|folder| folder.id.to_string()).unwrap_or_default(),
        }
    }

    /// Text that cannot be parsed counts as no record.
    pub fn read(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok().filter(|record: &Self| !record.vm.is_empty())
    }

    pub fn to_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    pub fn vm_ref(&self) -> VmRef {
        VmRef {
            vcenter: self.vcenter.as_str().into(),
            vm: MoRef::new("VirtualMachine", self.vm.as_str()),
        }
    }

    pub fn folder(&self) -> Option<MoRef> {
        (!self.folder.is_empty()).then(|| MoRef::new("Folder", self.folder.as_str()))
    }

    pub fn instance_uuid(&self) -> Option<InstanceUuid> {
        self.instance_uuid.parse().ok().filter(|uuid: &InstanceUuid| !uuid.is_nil())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::vm;

    #[test]
    fn a_record_survives_a_round_trip() {
        let record = Record::for_vm(&vm("node-1"));
        assert_eq!(
            record.to_text(),
            r#"{"vcenter":"vc.test","vcenterUuid":"uuid-of-vc","machine":"vm-node-1","instanceUuid":"502e4956-ad22-1139-6d72-59cc8f26bc90","folder":"group-v1"}"#
        );
        assert_eq!(Record::read(&record.to_text()), Some(record.clone()));
        assert_eq!(record.vm_ref(), vm("node-1").vm_ref);
    }

    #[test]
    fn an_unreadable_annotation_counts_as_no_record() {
        for text in ["", "vm-12", "{}", r#"{"vcenter":"a","machine":""}"#, "[1]"] {
            assert_eq!(Record::read(text), None, "{text}");
        }
    }
}
