//! Converts volumes, claims, attachments and classes into facts for the checks.

use std::collections::{BTreeMap, BTreeSet};

use health::facts::{Attachment, Claim, StorageClass, Volume};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        core::v1::{PersistentVolume, PersistentVolumeClaim},
        storage::v1::{StorageClass as KubeStorageClass, VolumeAttachment},
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::ResourceExt;
use plan::names;

/// The provisioners whose classes the checks read: ours, and the in-tree one that it replaced.
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
    let created = moment(volume.metadata.creation_timestamp.as_ref());
    Some(Volume { handle: csi.volume_handle.clone(), name, claim, node: None, created })
}

/// A claim that waits.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Claimed {
    /// It waits for a volume. Whether its class is ours is not known here.
    Waits(Claim),
    /// It waits for the named volume to be expanded.
    Grows(String),
}

/// The reason why a claim waits, if it does.
pub(crate) fn claimed(claim: &PersistentVolumeClaim) -> Option<Claimed> {
    waiting(claim).map(Claimed::Waits).or_else(|| grows(claim).map(Claimed::Grows))
}

/// The names of the volumes that claims ask to expand.
pub(crate) fn growing<'a>(claims: impl Iterator<Item = &'a Claimed>) -> BTreeSet<String> {
    let growing = claims.filter_map(|claimed| match claimed {
        Claimed::Grows(volume) => Some(volume.clone()),
        Claimed::Waits(_) => None,
    });
    growing.collect()
}

/// The handles of these volumes.
pub(crate) fn handles_of(
    names: &BTreeSet<String>,
    volumes: &BTreeMap<String, Volume>,
) -> BTreeSet<String> {
    names.iter().filter_map(|name| volumes.get(name)).map(|volume| volume.handle.clone()).collect()
}

/// The volume of a claim that requests more than its capacity.
fn grows(claim: &PersistentVolumeClaim) -> Option<String> {
    let (spec, status) = (claim.spec.as_ref()?, claim.status.as_ref()?);
    let asked = spec.resources.as_ref()?.requests.as_ref()?.get("storage")?;
    let has = status.capacity.as_ref()?.get("storage")?;
    // Drivers round up, so a different capacity can also be larger than requested.
    (bytes(&asked.0)? > bytes(&has.0)?).then(|| spec.volume_name.clone())?
}

/// A quantity as a number.
fn bytes(quantity: &str) -> Option<f64> {
    const UNITS: [(&str, f64); 12] = [
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("Pi", 1_125_899_906_842_624.0),
        ("Ei", 1_152_921_504_606_846_976.0),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
        ("m", 1e-3),
    ];
    let unit = UNITS.iter().find_map(|(unit, size)| Some((quantity.strip_suffix(unit)?, *size)));
    let (number, size) = unit.unwrap_or((quantity, 1.0));
    number.parse::<f64>().ok().map(|number| number * size)
}

fn waiting(claim: &PersistentVolumeClaim) -> Option<Claim> {
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

/// A StorageClass of a vSphere driver. The copies of `vdoctl test` exist for a minute: a finding about the original is
/// enough.
pub(crate) fn class(class: &KubeStorageClass) -> Option<StorageClass> {
    let is_copy = class.labels().contains_key(names::VOLUME_TEST);
    let is_ours = PROVISIONERS.contains(&class.provisioner.as_str()) && !is_copy;
    is_ours.then(|| StorageClass {
        name: class.name_any(),
        provisioner: class.provisioner.clone(),
        parameters: class.parameters.clone().unwrap_or_default(),
    })
}

/// A VolumeAttachment of the vSphere driver. There may be tens of thousands, so the cache keeps only the
/// fields that facts need.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct VolumeOnNode {
    /// The PersistentVolume; none for an inline volume.
    pub(crate) volume: Option<Box<str>>,
    pub(crate) node: Box<str>,
    attached: bool,
    created: Timestamp,
    /// When its deletion was requested.
    detaching: Option<Timestamp>,
    /// The error that prevents attaching or detaching.
    error: Box<str>,
}

/// The cached part of a VolumeAttachment.
pub(crate) fn attachment(attachment: &VolumeAttachment) -> Option<VolumeOnNode> {
    let spec = &attachment.spec;
    let status = attachment.status.as_ref();
    let detaching = attachment.metadata.deletion_timestamp.as_ref();
    let error = status.and_then(|status| {
        let error = if detaching.is_some() { &status.detach_error } else { &status.attach_error };
        error.as_ref()?.message.as_deref()
    });
    (spec.attacher == names::CSI_DRIVER).then(|| VolumeOnNode {
        volume: spec.source.persistent_volume_name.as_deref().map(Into::into),
        node: spec.node_name.as_str().into(),
        attached: status.is_some_and(|status| status.attached),
        created: moment(attachment.metadata.creation_timestamp.as_ref()),
        detaching: detaching.map(|time| time.0),
        error: bounded(error.unwrap_or_default()).into(),
    })
}

/// The maximum length of a message. VDO cuts longer ones, because it keeps one for every faulty volume.
const MESSAGE: usize = 500;

/// The beginning of a driver's message.
pub(crate) fn bounded(message: &str) -> String {
    if message.len() <= MESSAGE {
        return message.to_owned();
    }
    format!("{} ...", &message[..message.floor_char_boundary(MESSAGE)])
}

/// The attached volumes, and the attachments in progress.
#[derive(Debug, Default)]
pub(crate) struct Attachments {
    /// Node by name of the PersistentVolume.
    pub(crate) nodes: BTreeMap<String, String>,
    /// Attachments in progress. They still identify the volume by its name in Kubernetes.
    pub(crate) unfinished: Vec<Attachment>,
}

impl Attachments {
    pub(crate) fn new(all: &BTreeMap<String, VolumeOnNode>) -> Self {
        let mut found = Self::default();
        for (name, attachment) in all {
            let Some(volume) = attachment.volume.as_deref().map(str::to_owned) else { continue };
            let node = attachment.node.to_string();
            if attachment.attached {
                found.nodes.insert(volume.clone(), node.clone());
            }
            if attachment.attached && attachment.detaching.is_none() {
                continue;
            }
            found.unfinished.push(Attachment {
                name: name.clone(),
                volume,
                node,
                detaching: attachment.detaching.is_some(),
                message: attachment.error.to_string(),
                since: attachment.detaching.unwrap_or(attachment.created),
            });
        }
        found.unfinished.sort_by(|a, b| a.name.cmp(&b.name));
        found
    }
}

/// Volumes by handle, each with the node it is attached to, and attachments that identify volumes by handle.
pub(crate) fn joined(
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claim(asked: &str, has: &str) -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": {"name": "data", "namespace": "shop"},
            "spec": {"volumeName": "pv-1", "resources": {"requests": {"storage": asked}}},
            "status": {"phase": "Bound", "capacity": {"storage": has}},
        }))
        .unwrap()
    }

    #[test]
    fn a_copy_of_a_class_for_a_test_is_no_fact() {
        let read = |labels: serde_json::Value| {
            let metadata = json!({"name": "gold", "labels": labels});
            let object = json!({"metadata": metadata, "provisioner": names::CSI_DRIVER});
            class(&serde_json::from_value(object).unwrap())
        };
        assert!(read(json!({})).is_some());
        assert_eq!(read(json!({names::VOLUME_TEST: "1"})), None);
    }

    #[test]
    fn of_an_attachment_only_a_bounded_part_is_kept() {
        let seen = |attacher: &str, message: &str| -> VolumeAttachment {
            serde_json::from_value(json!({
                "metadata": {"name": "csi-1", "annotations": {"large": "x".repeat(10_000)}},
                "spec": {
                    "attacher": attacher, "nodeName": "node-1",
                    "source": {"persistentVolumeName": "pv-1"},
                },
                "status": {"attached": false, "attachError": {"message": message}},
            }))
            .unwrap()
        };
        assert_eq!(attachment(&seen("ebs.csi.aws.com", "")), None, "it is another driver's");
        let kept = attachment(&seen(names::CSI_DRIVER, &"ü".repeat(10_000))).unwrap();
        assert!(kept.error.len() <= MESSAGE + 4, "{}", kept.error.len());
        assert!(kept.error.ends_with("ü ..."), "{}", kept.error);
        let found = Attachments::new(&BTreeMap::from([("csi-1".into(), kept)]));
        assert_eq!((found.nodes.len(), found.unfinished.len()), (0, 1));
        let kept = attachment(&seen(names::CSI_DRIVER, "the disk is locked")).unwrap();
        let found = Attachments::new(&BTreeMap::from([("csi-1".into(), kept)]));
        assert_eq!(found.unfinished[0].message, "the disk is locked");
    }

    #[test]
    fn a_claim_grows_when_it_asks_for_more_than_it_has_and_not_when_the_driver_rounded_up() {
        assert_eq!(claimed(&claim("2Gi", "1Gi")), Some(Claimed::Grows("pv-1".into())));
        assert_eq!(claimed(&claim("1Gi", "1Gi")), None);
        assert_eq!(claimed(&claim("1500M", "1431Mi")), None);
        assert_eq!(claimed(&claim("1073741824", "1Gi")), None);
    }
}
