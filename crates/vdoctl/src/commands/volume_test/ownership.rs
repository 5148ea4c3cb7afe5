//! Whether the deletion of a claim deletes only a volume that was made for it.
//!
//! Kubernetes deletes the volume of a deleted claim. VDO never deletes a volume that it did not make, so vdoctl deletes a
//! claim only if nothing here objects.

use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use kube::ResourceExt as _;
use plan::names::{CSI_DRIVER, VOLUME_TEST};

/// The provisioner writes it on every volume that it makes.
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

/// Why the claim could belong to a volume that the test did not make. `volumes` are the volumes of the cluster.
pub(super) fn objection(
    claim: &PersistentVolumeClaim,
    volumes: &[PersistentVolume],
    classes: &[StorageClass],
) -> Option<String> {
    let spec = claim.spec.clone().unwrap_or_default();
    let class = spec.storage_class_name.unwrap_or_default();
    let id = claim.labels().get(VOLUME_TEST);
    let is_copy = |copy: &StorageClass| {
        copy.name_any() == class && id.is_some() && copy.labels().get(VOLUME_TEST) == id
    };
    if !classes.iter().any(is_copy) {
        return Some(format!(
            "its StorageClass is {class:?}, which is not the copy that the test made"
        ));
    }
    let concerns = |volume: &&PersistentVolume| {
        is_bound_to(volume, claim) || spec.volume_name.as_ref() == Some(&volume.name_any())
    };
    volumes.iter().filter(concerns).find_map(|volume| foreign(volume, claim, &class))
}

/// Whether the volume names this very claim.
pub(super) fn is_bound_to(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let bound = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()?.uid.as_ref());
    bound.is_some() && bound == claim.metadata.uid.as_ref()
}

/// Why a volume was not made for the claim.
pub(super) fn foreign(
    volume: &PersistentVolume,
    claim: &PersistentVolumeClaim,
    class: &str,
) -> Option<String> {
    let spec = volume.spec.clone().unwrap_or_default();
    let own_class = spec.storage_class_name.unwrap_or_default();
    let why = if own_class != class {
        format!("has the StorageClass {own_class:?}")
    } else if volume.annotations().get(PROVISIONED_BY).is_none_or(|by| by != CSI_DRIVER) {
        format!("was not provisioned by {CSI_DRIVER}")
    } else if !is_bound_to(volume, claim) {
        "belongs to another claim".to_owned()
    } else if volume.metadata.creation_timestamp < claim.metadata.creation_timestamp {
        "is older than the claim".to_owned()
    } else {
        return None;
    };
    Some(format!("PersistentVolume {} {why}", volume.name_any()))
}

/// Why the API server did not store the claim as it was sent, for example because a webhook changes claims.
pub(super) fn changed(
    sent: &PersistentVolumeClaim,
    stored: &PersistentVolumeClaim,
) -> Option<String> {
    let (sent, stored) =
        (sent.spec.clone().unwrap_or_default(), stored.spec.clone().unwrap_or_default());
    let what = if sent.storage_class_name != stored.storage_class_name {
        format!("its StorageClass to {:?}", stored.storage_class_name.unwrap_or_default())
    } else if let Some(volume) = stored.volume_name {
        format!("its volume to {volume}")
    } else if stored.selector.is_some() {
        "its selector".to_owned()
    } else if stored.data_source.is_some() || stored.data_source_ref.is_some() {
        "its data source".to_owned()
    } else {
        return None;
    };
    Some(format!("an admission webhook or policy of the cluster changed {what}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const COPY: &str = "vdo-test-1";

    fn claim(class: &str) -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": {
                "name": "vdo-test-1", "uid": "claim-1", "labels": {VOLUME_TEST: "1"},
                "creationTimestamp": "2026-01-01T10:00:00Z",
            },
            "spec": {"storageClassName": class, "volumeName": "pv-1"},
        }))
        .unwrap()
    }

    #[expect(clippy::needless_pass_by_value, reason = "json! makes values")]
    fn class(name: &str, labels: Value) -> StorageClass {
        serde_json::from_value(json!({
            "metadata": {"name": name, "labels": labels}, "provisioner": CSI_DRIVER,
        }))
        .unwrap()
    }

    fn volume(change: impl Fn(&mut Value)) -> PersistentVolume {
        let mut volume = json!({
            "metadata": {
                "name": "pv-1", "creationTimestamp": "2026-01-01T10:00:02Z",
                "annotations": {PROVISIONED_BY: CSI_DRIVER},
            },
            "spec": {"storageClassName": COPY, "claimRef": {"uid": "claim-1"}},
        });
        change(&mut volume);
        serde_json::from_value(volume).unwrap()
    }

    #[test]
    fn only_a_volume_that_was_provisioned_for_the_claim_is_ours() {
        let copies = [class(COPY, json!({VOLUME_TEST: "1"}))];
        let why = |volume: PersistentVolume| {
            objection(&claim(COPY), &[volume], &copies).unwrap_or_default()
        };
        assert_eq!(why(volume(|_| {})), "");
        let other = why(volume(|v| v["spec"]["storageClassName"] = json!("gold")));
        assert_eq!(other, "PersistentVolume pv-1 has the StorageClass \"gold\"");
        let by_hand = why(volume(|v| v["metadata"]["annotations"] = json!({})));
        assert!(by_hand.ends_with("was not provisioned by csi.vsphere.vmware.com"), "{by_hand}");
        let by_other = why(volume(|v| v["metadata"]["annotations"][PROVISIONED_BY] = json!("nfs")));
        assert!(by_other.contains("was not provisioned by"), "{by_other}");
        let of_other = why(volume(|v| v["spec"]["claimRef"]["uid"] = json!("claim-2")));
        assert!(of_other.ends_with("belongs to another claim"), "{of_other}");
        let old =
            why(volume(|v| v["metadata"]["creationTimestamp"] = json!("2025-12-31T10:00:00Z")));
        assert!(old.ends_with("is older than the claim"), "{old}");
    }

    #[test]
    fn a_volume_in_the_middle_of_its_binding_counts_too() {
        let copies = [class(COPY, json!({VOLUME_TEST: "1"}))];
        let mut unbound = claim(COPY);
        unbound.spec.as_mut().unwrap().volume_name = None;
        let foreign = volume(|v| v["metadata"]["annotations"] = json!({}));
        assert!(objection(&unbound, &[foreign], &copies).is_some());
        let unrelated = volume(|v| v["spec"] = json!({"storageClassName": "gold"}));
        assert_eq!(objection(&unbound, &[unrelated], &copies), None);
    }

    #[test]
    fn a_claim_of_any_other_class_stays() {
        for classes in [
            vec![],
            vec![class("gold", json!({VOLUME_TEST: "1"}))],
            vec![class(COPY, json!({}))],
            vec![class(COPY, json!({VOLUME_TEST: "2"}))],
        ] {
            let why = objection(&claim(COPY), &[volume(|_| {})], &classes).unwrap_or_default();
            assert!(why.contains("is not the copy that the test made"), "{why}");
        }
        let gold = [class("gold", json!({})), class(COPY, json!({VOLUME_TEST: "1"}))];
        assert!(objection(&claim("gold"), &[], &gold).is_some());
    }

    #[test]
    fn a_claim_that_admission_changed_is_noticed() {
        let sent: PersistentVolumeClaim =
            serde_json::from_value(json!({"spec": {"storageClassName": COPY}})).unwrap();
        let why = |spec: Value| {
            let stored = serde_json::from_value(json!({"spec": spec})).unwrap();
            changed(&sent, &stored).unwrap_or_default()
        };
        assert_eq!(why(json!({"storageClassName": COPY, "volumeMode": "Filesystem"})), "");
        assert!(why(json!({"storageClassName": "gold"})).ends_with("its StorageClass to \"gold\""));
        let bound = why(json!({"storageClassName": COPY, "volumeName": "pv-9"}));
        assert!(bound.ends_with("its volume to pv-9"), "{bound}");
        assert!(why(json!({"storageClassName": COPY, "selector": {}})).ends_with("its selector"));
        let copied = json!({"storageClassName": COPY, "dataSource": {"kind": "PersistentVolumeClaim", "name": "a"}});
        assert!(why(copied).ends_with("its data source"));
    }
}
