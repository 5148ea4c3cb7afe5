//! The note on a Node that says which machine it is, so that a restart loses nothing.
//!
//! A provider id alone does not say in which vCenter a machine was and by which reference: without
//! them nobody can prove later that it is gone. The note is written when a node is initialised, and
//! on nodes that were initialised by somebody else when they stop being Ready.

use serde::{Deserialize, Serialize};
use vsphere::{InstanceUuid, MoRef};

use crate::model::{Place, VirtualMachine};

/// The annotation.
pub const ANNOTATION: &str = "vdo.vmware.com/virtual-machine";

/// What the note says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// The vCenter's server, as configured.
    pub vcenter: String,
    /// Which vCenter that was, by its own uuid; empty if it was not known. One that took the place of
    /// another knows nothing of the other's machines.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub vcenter_uuid: String,
    /// The machine's reference there, `vm-42`.
    #[serde(rename = "machine")]
    pub vm: String,
    /// What tells it apart from its copies; empty if it was not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub instance_uuid: String,
    /// The folder it stood in, `group-v3`; empty if it was not known. Who may not see the folder
    /// cannot say that the machine is gone from it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub folder: String,
}

impl Record {
    /// The note about a machine.
    pub fn of(vm: &VirtualMachine) -> Self {
        Self {
            vcenter: vm.place.vcenter.to_string(),
            vcenter_uuid: vm.vcenter_uuid.to_string(),
            vm: vm.place.vm.id.to_string(),
            instance_uuid: vm.instance_uuid.map(|uuid| uuid.to_string()).unwrap_or_default(),
            folder: vm.folder.as_ref().map(|folder| folder.id.to_string()).unwrap_or_default(),
        }
    }

    /// Reads the annotation. What cannot be read counts as not written: it is no proof of anything.
    pub fn read(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok().filter(|record: &Self| !record.vm.is_empty())
    }

    /// The annotation's text.
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Where the machine was.
    pub fn place(&self) -> Place {
        Place {
            vcenter: self.vcenter.as_str().into(),
            vm: MoRef::new("VirtualMachine", self.vm.as_str()),
        }
    }

    /// The folder it stood in.
    pub fn folder(&self) -> Option<MoRef> {
        (!self.folder.is_empty()).then(|| MoRef::new("Folder", self.folder.as_str()))
    }

    /// The instance uuid, if it was known.
    pub fn instance_uuid(&self) -> Option<InstanceUuid> {
        self.instance_uuid.parse().ok().filter(|uuid: &InstanceUuid| !uuid.is_nil())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::vm;

    #[test]
    fn what_is_written_reads_back() {
        let record = Record::of(&vm("node-1"));
        assert_eq!(
            record.to_text(),
            r#"{"vcenter":"vc.test","vcenterUuid":"uuid-of-vc","machine":"vm-node-1","instanceUuid":"502e4956-ad22-1139-6d72-59cc8f26bc90","folder":"group-v1"}"#
        );
        assert_eq!(Record::read(&record.to_text()), Some(record.clone()));
        assert_eq!(record.place(), vm("node-1").place);
    }

    #[test]
    fn what_somebody_scribbled_there_counts_as_nothing() {
        for text in ["", "vm-12", "{}", r#"{"vcenter":"a","machine":""}"#, "[1]"] {
            assert_eq!(Record::read(text), None, "{text}");
        }
    }
}
