//! Snapshots of volumes in Kubernetes.

use std::collections::BTreeMap;

use health::facts::VolumeSnapshots;
use kube::api::DynamicObject;
use plan::names;

/// The cached part of a VolumeSnapshotContent of the vSphere driver.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Content {
    /// Handle of the source volume.
    volume: String,
    /// Whether the snapshot exists.
    made: bool,
}

/// A snapshot of a volume of the vSphere driver.
pub(crate) fn content(object: &DynamicObject) -> Option<Content> {
    let text = |path: &str| object.data.pointer(path).and_then(|value| value.as_str());
    if text("/spec/driver") != Some(names::CSI_DRIVER) {
        return None;
    }
    let made = text("/status/snapshotHandle").filter(|handle| !handle.is_empty());
    let known = made.or_else(|| text("/spec/source/snapshotHandle"));
    // The driver's snapshot handle starts with the volume handle.
    let of_handle = known.and_then(|handle| handle.split('+').next());
    let volume = text("/spec/source/volumeHandle").or(of_handle)?;
    let terminating = object.metadata.deletion_timestamp.is_some();
    (known.is_some() || !terminating)
        .then(|| Content { volume: volume.to_owned(), made: known.is_some() })
}

/// Counts snapshots by volume.
pub(crate) fn tally(contents: &BTreeMap<String, Content>) -> BTreeMap<String, VolumeSnapshots> {
    let mut all: BTreeMap<String, VolumeSnapshots> = BTreeMap::new();
    for content in contents.values() {
        let entry = all.entry(content.volume.clone()).or_default();
        entry.made += u32::from(content.made);
        entry.another_asked |= !content.made;
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn object(spec: &Value, status: &Value) -> DynamicObject {
        let object = json!({"metadata": {"name": "c"}, "spec": spec, "status": status});
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn snapshots_are_counted_by_volume_whether_made_here_or_brought() {
        let ours = json!({"driver": names::CSI_DRIVER, "source": {"volumeHandle": "v-1"}});
        let brought = json!({"driver": names::CSI_DRIVER, "source": {"snapshotHandle": "v-1+s-9"}});
        let other = json!({"driver": "other", "source": {"volumeHandle": "v-1"}});
        let all = [
            content(&object(&ours, &json!({"snapshotHandle": "v-1+s-1"}))),
            content(&object(&brought, &Value::Null)),
            content(&object(&ours, &Value::Null)),
            content(&object(&other, &Value::Null)),
        ];
        let kept = all.into_iter().enumerate();
        let kept = kept.filter_map(|(n, content)| Some((n.to_string(), content?))).collect();
        let tally = tally(&kept);
        assert_eq!(
            tally,
            BTreeMap::from([("v-1".into(), VolumeSnapshots { made: 2, another_asked: true })])
        );
    }
}
