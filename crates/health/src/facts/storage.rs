use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Known;

/// Volumes, as Kubernetes and as CNS see them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Storage {
    /// StorageClasses of the vSphere drivers.
    pub classes: Known<Vec<StorageClass>>,
    /// PersistentVolumes of the vSphere driver, by volume handle.
    pub volumes: Known<BTreeMap<String, Volume>>,
    /// Claims that wait for a volume.
    pub pending: Known<Vec<Claim>>,
    /// Handles of volumes for which a larger size is asked than they have.
    pub growing: Known<BTreeSet<String>>,
    /// Pods that wait for a volume because another node has it, by name of the PersistentVolume.
    pub contested: Known<BTreeMap<String, String>>,
    /// Snapshots Kubernetes knows, by handle of the volume; volumes without any are left out.
    pub snapshots: Known<BTreeMap<String, Snapshots>>,
    /// How many snapshots only CNS knew when it was asked, by volume id.
    pub only_in_cns: Known<BTreeMap<String, u32>>,
    /// VolumeAttachments of the vSphere driver that are not finished.
    pub attachments: Known<Vec<Attachment>>,
    /// What CNS has under this cluster's id, by volume id.
    pub cns: Known<BTreeMap<String, CnsVolume>>,
    /// When CNS was asked for that. Of a volume that is younger it says nothing.
    pub cns_asked: Timestamp,
    /// The cluster's id.
    pub cluster_id: ClusterId,
    /// First-class disks nobody refers to.
    pub orphans: Known<Orphans>,
    /// How many volumes CNS holds in all, by vCenter.
    pub cns_total: Known<BTreeMap<String, u32>>,
    /// How many missing volumes the driver tolerates when it lists them.
    pub list_threshold: u32,
}

impl Storage {
    /// Whether CNS was asked for a volume of Kubernetes late enough, and does not know it.
    pub fn is_missing(&self, handle: &str) -> bool {
        let volume = self.volumes.get().and_then(|volumes| volumes.get(handle));
        let unknown = self.cns.get().is_some_and(|cns| !cns.contains_key(handle));
        unknown && volume.is_some_and(|volume| self.was_asked_for(volume))
    }

    /// Whether a volume was there when CNS was asked: it may have been registered since.
    pub fn was_asked_for(&self, volume: &Volume) -> bool {
        volume.created < self.cns_asked
    }
}

/// A StorageClass.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageClass {
    /// Name.
    pub name: String,
    /// Its provisioner.
    pub provisioner: String,
    /// Its parameters.
    pub parameters: BTreeMap<String, String>,
}

impl StorageClass {
    /// A parameter; the driver does not care about upper and lower case.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        let found = self.parameters.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

/// A PersistentVolume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Volume {
    /// Its volume handle.
    pub handle: String,
    /// Its name.
    pub name: String,
    /// Its claim, as `namespace/name`.
    pub claim: Option<String>,
    /// Node it is attached to.
    pub node: Option<String>,
    /// When it came into being in Kubernetes.
    pub created: Timestamp,
}

/// Snapshots of a volume in Kubernetes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Snapshots {
    /// Those that were made.
    pub made: u32,
    /// Whether another one is asked for.
    pub another_asked: bool,
}

/// A claim that waits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Claim {
    /// `namespace/name`.
    pub name: String,
    /// Its StorageClass.
    pub class: String,
    /// Whether many pods shall write it.
    pub many_writers: bool,
    /// The provisioner's last words.
    pub message: String,
    /// Since when it waits.
    pub since: Timestamp,
}

/// A VolumeAttachment that is not finished.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Attachment {
    /// Its name.
    pub name: String,
    /// Handle of its volume.
    pub volume: String,
    /// Node it is for.
    pub node: String,
    /// Whether it shall go, not come.
    pub detaching: bool,
    /// The driver's last words.
    pub message: String,
    /// Since when.
    pub since: Timestamp,
}

/// A volume in CNS.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CnsVolume {
    /// vCenter that holds it.
    pub vcenter: String,
    /// URL of the datastore it lies on; empty where vCenter does not say.
    pub datastore: String,
    /// Whether vCenter says that this datastore cannot be reached.
    pub unreachable: bool,
    /// Whether its metadata names one object twice.
    pub duplicate_metadata: bool,
}

/// What vCenter knows the cluster by.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterId {
    /// From the driver's Secret.
    pub configured: Option<String>,
    /// From the ConfigMap the driver makes if none is configured.
    pub generated: Option<String>,
    /// The one the existing volumes were made under.
    pub of_volumes: Known<Option<String>>,
    /// Other clusters that use it: the names CNS has for them.
    pub also_used_by: Known<Vec<String>>,
}

impl ClusterId {
    /// The one the driver uses.
    pub fn current(&self) -> Option<&str> {
        self.configured.as_deref().or(self.generated.as_deref())
    }
}

/// First-class disks nobody refers to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Orphans {
    /// Name and datastore of each.
    pub disks: Vec<(String, String)>,
}
