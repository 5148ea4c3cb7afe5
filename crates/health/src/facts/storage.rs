use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Known;

/// Volumes in Kubernetes and in CNS.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Storage {
    /// StorageClasses of the vSphere drivers.
    pub classes: Known<Vec<StorageClass>>,
    /// PersistentVolumes of the vSphere driver, by volume handle.
    pub volumes: Known<BTreeMap<String, Volume>>,
    pub pending: Known<Vec<Claim>>,
    /// Handles of volumes with a pending expansion.
    pub growing: Known<BTreeSet<String>>,
    /// Pods that wait for a volume attached to another node, by name of the PersistentVolume.
    pub contested: Known<BTreeMap<String, String>>,
    /// Snapshots in Kubernetes, by volume handle; volumes without snapshots are omitted.
    pub snapshots: Known<BTreeMap<String, VolumeSnapshots>>,
    /// How many snapshots exist only in CNS, by volume id.
    pub only_in_cns: Known<BTreeMap<String, u32>>,
    /// Unfinished VolumeAttachments of the vSphere driver.
    pub attachments: Known<Vec<Attachment>>,
    /// CNS volumes with this cluster's id, by volume id.
    pub cns: Known<BTreeMap<String, CnsVolume>>,
    /// When VDO queried `cns`. The answer does not cover younger volumes.
    pub cns_asked: Timestamp,
    pub cluster_id: ClusterIds,
    /// First-class disks that no volume refers to.
    pub orphans: Known<Orphans>,
    /// Total number of CNS volumes, by vCenter.
    pub cns_total: Known<BTreeMap<String, u32>>,
    /// How many missing volumes the driver tolerates in ListVolumes.
    pub list_threshold: u32,
}

impl Storage {
    /// Whether CNS does not know a volume that existed before the query.
    pub fn is_missing(&self, handle: &str) -> bool {
        let volume = self.volumes.get().and_then(|volumes| volumes.get(handle));
        let unknown = self.cns.get().is_some_and(|cns| !cns.contains_key(handle));
        unknown && volume.is_some_and(|volume| self.was_asked_for(volume))
    }

    /// Whether a volume existed when VDO queried CNS; a younger one may be registered since.
    pub fn was_asked_for(&self, volume: &Volume) -> bool {
        volume.created < self.cns_asked
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageClass {
    pub name: String,
    pub provisioner: String,
    pub parameters: BTreeMap<String, String>,
}

impl StorageClass {
    /// Ignores case, as the driver does.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        let found = self.parameters.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Volume {
    pub handle: String,
    pub name: String,
    /// Its claim, as `namespace/name`.
    pub claim: Option<String>,
    pub node: Option<String>,
    pub created: Timestamp,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshots {
    /// How many exist.
    pub made: u32,
    /// Whether another snapshot is pending.
    pub another_asked: bool,
}

/// A pending claim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Claim {
    /// `namespace/name`.
    pub name: String,
    pub class: String,
    /// Whether it requests ReadWriteMany.
    pub many_writers: bool,
    /// The provisioner's last error.
    pub message: String,
    pub since: Timestamp,
}

/// An unfinished VolumeAttachment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Attachment {
    pub name: String,
    /// The volume handle.
    pub volume: String,
    pub node: String,
    /// Whether the volume is being detached instead of attached.
    pub detaching: bool,
    /// The driver's last error.
    pub message: String,
    pub since: Timestamp,
}

/// A volume in CNS.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CnsVolume {
    pub vcenter: String,
    /// URL of its datastore; empty if vCenter does not report it.
    pub datastore: String,
    /// Whether vCenter reports the datastore as unreachable.
    pub unreachable: bool,
    /// Whether its metadata contains one object twice.
    pub duplicate_metadata: bool,
}

/// The ids under which vCenter can know the cluster, by source.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterIds {
    /// From the driver's Secret.
    pub configured: Option<String>,
    /// From the ConfigMap that the driver creates if no id is configured.
    pub generated: Option<String>,
    /// The id of the existing volumes.
    pub of_volumes: Known<Option<String>>,
    /// Names in CNS of other clusters with the same id.
    pub also_used_by: Known<Vec<String>>,
}

impl ClusterIds {
    /// The id that the driver uses.
    pub fn current(&self) -> Option<&str> {
        self.configured.as_deref().or(self.generated.as_deref())
    }
}

/// First-class disks that no volume refers to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Orphans {
    /// The name with the id, and the datastore's URL, of each.
    pub disks: Vec<(String, String)>,
}
