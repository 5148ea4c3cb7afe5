//! Volumes, claims, attachments and classes, as the checks see them.

use std::collections::BTreeMap;

use health::facts::{Attachment, Claim, StorageClass, Volume};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        core::v1::{PersistentVolume, PersistentVolumeClaim},
        storage::v1::{StorageClass as SeenClass, VolumeAttachment},
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::ResourceExt;

use crate::names;

/// The provisioners whose classes are looked at: ours, and the one it replaced in Kubernetes itself.
const PROVISIONERS: [&str; 2] = [names::CSI_DRIVER, "kubernetes.io/vsphere-volume"];

fn moment(time: Option<&Time>) -> Timestamp {
    time.map_or(Timestamp::UNIX_EPOCH, |time| time.0)
}

/// A PersistentVolume of the vSphere driver.
pub(crate) fn volume(volume: &PersistentVolume) -> Option<Volume> {
    let name = volume.name_any();
    let spec = volume.spec.as_ref()?;
    let csi = spec.csi.as_ref().filter(|csi| csi.driver == names::CSI_DRIVER)?;
    let claim = spec.claim_ref.as_ref();
    let claim = claim.and_then(|c| Some(format!("{}/{}", c.namespace.as_ref()?, c.name.as_ref()?)));
    Some(Volume { handle: csi.volume_handle.clone(), name, claim, ..Volume::default() })
}

/// A claim that waits for a volume, and its class; whether the class is ours is not known here.
pub(crate) fn claim(claim: &PersistentVolumeClaim) -> Option<Claim> {
    let pending =
        claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Pending");
    let spec = claim.spec.as_ref()?;
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    pending.then(|| Claim {
        name: format!("{}/{}", claim.namespace().unwrap_or_default(), claim.name_any()),
        class: spec.storage_class_name.clone().unwrap_or_default(),
        many_writers: modes.iter().any(|mode| mode == "ReadWriteMany" || mode == "ReadOnlyMany"),
        message: String::new(),
        since: moment(claim.metadata.creation_timestamp.as_ref()),
    })
}

/// A StorageClass of a vSphere driver.
pub(crate) fn class(class: &SeenClass) -> Option<StorageClass> {
    PROVISIONERS.contains(&class.provisioner.as_str()).then(|| StorageClass {
        name: class.name_any(),
        provisioner: class.provisioner.clone(),
        parameters: class.parameters.clone().unwrap_or_default(),
    })
}

/// What hangs where, and what is still under way.
#[derive(Debug, Default)]
pub(super) struct Attachments {
    /// Node by name of the PersistentVolume.
    pub(super) nodes: BTreeMap<String, String>,
    /// Those that are not finished; the volume is still named as Kubernetes does.
    pub(super) unfinished: Vec<Attachment>,
}

impl Attachments {
    pub(super) fn of<'a>(all: impl Iterator<Item = &'a VolumeAttachment>) -> Self {
        let mut found = Self::default();
        for attachment in all.filter(|a| a.spec.attacher == names::CSI_DRIVER) {
            let Some(volume) = attachment.spec.source.persistent_volume_name.clone() else {
                continue;
            };
            let node = attachment.spec.node_name.clone();
            let status = attachment.status.as_ref();
            let attached = status.is_some_and(|status| status.attached);
            let leaving = attachment.metadata.deletion_timestamp.as_ref();
            if attached && leaving.is_none() {
                found.nodes.insert(volume, node);
                continue;
            }
            if attached {
                found.nodes.insert(volume.clone(), node.clone());
            }
            let error = status.and_then(|status| {
                let error =
                    if leaving.is_some() { &status.detach_error } else { &status.attach_error };
                error.as_ref()?.message.clone()
            });
            found.unfinished.push(Attachment {
                name: attachment.name_any(),
                volume,
                node,
                detaching: leaving.is_some(),
                message: error.unwrap_or_default(),
                since: moment(leaving.or(attachment.metadata.creation_timestamp.as_ref())),
            });
        }
        found.unfinished.sort_by(|a, b| a.name.cmp(&b.name));
        found
    }
}

/// Volumes by handle with the node they hang on, and attachments that name them by handle.
pub(super) fn joined(
    volumes: &BTreeMap<String, Volume>,
    attachments: Attachments,
) -> (BTreeMap<String, Volume>, Vec<Attachment>) {
    let Attachments { nodes, mut unfinished } = attachments;
    for attachment in &mut unfinished {
        if let Some(volume) = volumes.get(&attachment.volume) {
            attachment.volume.clone_from(&volume.handle);
        }
    }
    let by_handle = volumes.values().map(|volume| {
        let node = nodes.get(&volume.name).cloned();
        (volume.handle.clone(), Volume { node, ..volume.clone() })
    });
    (by_handle.collect(), unfinished)
}
