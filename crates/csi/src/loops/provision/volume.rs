//! The PersistentVolume of a provisioned claim.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        core::v1::{
            CSIPersistentVolumeSource, ObjectReference, PersistentVolume, PersistentVolumeSpec,
        },
        storage::v1::StorageClass,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{parameters::Parameters, topology::node_affinity};
use crate::{
    loops::{
        model::Claim,
        names::{
            DELETION_SECRET_NAME, DELETION_SECRET_NAMESPACE, MODIFY_SECRET_NAME,
            MODIFY_SECRET_NAMESPACE, PROVISIONED_BY, PROVISIONER_FINALIZER, PROVISIONER_IDENTITY,
        },
        quantity::Bytes,
    },
    proto::csi::Volume as CsiVolume,
};

/// The name of the volume of a claim, in Kubernetes and in CSI.
pub fn name_for(claim_uid: &str) -> String {
    format!("pvc-{claim_uid}")
}

/// Adds the driver's answer to a planned PersistentVolume.
pub fn complete(planned: &mut PersistentVolume, volume: &CsiVolume) {
    let Some(spec) = &mut planned.spec else { return };
    if volume.capacity_bytes > 0 {
        let capacity = Bytes(volume.capacity_bytes).quantity();
        spec.capacity = Some([("storage".to_owned(), capacity)].into());
    }
    spec.node_affinity = node_affinity(&volume.accessible_topology);
    if let Some(source) = &mut spec.csi {
        source.volume_handle.clone_from(&volume.volume_id);
        let attributes = source.volume_attributes.get_or_insert_default();
        attributes.extend(volume.volume_context.clone());
    }
}

/// Plans the PersistentVolume of a claim: everything but the driver's answer.
pub fn plan(
    claim: &Claim,
    class: &StorageClass,
    parameters: &Parameters,
    requested: Bytes,
    provisioner_identity: &str,
) -> PersistentVolume {
    let secrets = &parameters.secrets;
    let mut annotations = BTreeMap::from([(PROVISIONED_BY.to_owned(), class.provisioner.clone())]);
    let deletion = secrets.provisioner.clone().unwrap_or_default();
    annotations.insert(DELETION_SECRET_NAME.into(), deletion.name.unwrap_or_default());
    annotations.insert(DELETION_SECRET_NAMESPACE.into(), deletion.namespace.unwrap_or_default());
    if let Some(modify) = secrets.controller_modify.clone() {
        annotations.insert(MODIFY_SECRET_NAME.into(), modify.name.unwrap_or_default());
        annotations.insert(MODIFY_SECRET_NAMESPACE.into(), modify.namespace.unwrap_or_default());
    }
    let attributes =
        BTreeMap::from([(PROVISIONER_IDENTITY.to_owned(), provisioner_identity.to_owned())]);
    let source = CSIPersistentVolumeSource {
        driver: class.provisioner.clone(),
        fs_type: (!claim.is_block()).then(|| parameters.fs_type.clone()),
        volume_attributes: Some(attributes),
        controller_publish_secret_ref: secrets.controller_publish.clone(),
        node_stage_secret_ref: secrets.node_stage.clone(),
        node_publish_secret_ref: secrets.node_publish.clone(),
        controller_expand_secret_ref: secrets.controller_expand.clone(),
        node_expand_secret_ref: secrets.node_expand.clone(),
        ..CSIPersistentVolumeSource::default()
    };
    PersistentVolume {
        metadata: ObjectMeta {
            name: Some(name_for(claim.metadata.uid.as_deref().unwrap_or_default())),
            annotations: Some(annotations),
            finalizers: Some(vec![PROVISIONER_FINALIZER.into()]),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            access_modes: Some(claim.spec.access_modes.clone()),
            capacity: Some([("storage".to_owned(), requested.quantity())].into()),
            claim_ref: Some(claim_reference(claim)),
            csi: Some(source),
            mount_options: class.mount_options.clone(),
            persistent_volume_reclaim_policy: class.reclaim_policy.clone(),
            storage_class_name: class.metadata.name.clone(),
            volume_attributes_class_name: claim.spec.volume_attributes_class_name.clone(),
            volume_mode: claim.spec.volume_mode.clone(),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    }
}

fn claim_reference(claim: &Claim) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("PersistentVolumeClaim".into()),
        namespace: claim.metadata.namespace.clone(),
        name: claim.metadata.name.clone(),
        uid: claim.metadata.uid.clone(),
        resource_version: claim.metadata.resource_version.clone(),
        field_path: None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::parameters::separate, *};
    use crate::proto::csi::Topology;

    fn claim(mode: &str) -> Claim {
        serde_json::from_value(json!({
            "metadata": {"namespace": "shop", "name": "data", "uid": "u-1", "resourceVersion": "7"},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "volumeMode": mode, "storageClassName": "fast",
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }))
        .unwrap()
    }

    fn built(mode: &str, capacity_bytes: i64) -> serde_json::Value {
        let class: StorageClass = serde_json::from_value(json!({
            "metadata": {"name": "fast"}, "provisioner": "csi.vsphere.vmware.com", "reclaimPolicy": "Delete",
            "mountOptions": ["noatime"], "parameters": {"csi.storage.k8s.io/fstype": "xfs"},
        }))
        .unwrap();
        let claim = claim(mode);
        let parameters =
            separate(class.parameters.as_ref().unwrap(), &claim, "pvc-u-1", "ext4").unwrap();
        let volume = CsiVolume {
            capacity_bytes,
            volume_id: "fcd-1".into(),
            volume_context: [("type".into(), "vSphere CNS Block Volume".into())].into(),
            accessible_topology: vec![Topology { segments: [("zone".into(), "a".into())].into() }],
            ..CsiVolume::default()
        };
        let mut built = plan(&claim, &class, &parameters, Bytes(1 << 30), "1-2-driver");
        complete(&mut built, &volume);
        serde_json::to_value(built).unwrap()
    }

    #[test]
    fn the_volume_is_that_of_external_provisioner() {
        let expected = json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {
                "name": "pvc-u-1",
                "annotations": {
                    "pv.kubernetes.io/provisioned-by": "csi.vsphere.vmware.com",
                    "volume.kubernetes.io/provisioner-deletion-secret-name": "",
                    "volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
                },
                "finalizers": ["external-provisioner.volume.kubernetes.io/finalizer"],
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "capacity": {"storage": "2Gi"},
                "claimRef": {
                    "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "shop", "name": "data",
                    "uid": "u-1", "resourceVersion": "7",
                },
                "csi": {
                    "driver": "csi.vsphere.vmware.com", "volumeHandle": "fcd-1", "fsType": "xfs",
                    "volumeAttributes": {
                        "storage.kubernetes.io/csiProvisionerIdentity": "1-2-driver",
                        "type": "vSphere CNS Block Volume",
                    },
                },
                "mountOptions": ["noatime"],
                "nodeAffinity": {"required": {"nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
                ]}},
                "persistentVolumeReclaimPolicy": "Delete",
                "storageClassName": "fast",
                "volumeMode": "Filesystem",
            },
        });
        assert_eq!(built("Filesystem", 2 << 30), expected);
    }

    #[test]
    fn a_raw_block_volume_has_no_file_system() {
        assert_eq!(built("Block", 1 << 30)["spec"]["csi"]["fsType"], json!(null));
    }

    #[test]
    fn a_driver_that_reports_no_size_made_the_requested_one() {
        assert_eq!(built("Block", 0)["spec"]["capacity"]["storage"], "1Gi");
    }
}
