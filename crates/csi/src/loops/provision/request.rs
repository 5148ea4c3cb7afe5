//! Which claims need a volume, and the CreateVolume request for one.

use std::collections::HashMap;

use k8s_openapi::api::storage::v1::StorageClass;

use super::{
    parameters::{Parameters, separate},
    volume::name_for,
};
use crate::{
    loops::{
        context::Settings,
        model::{Claim, Metadata as _},
        names::{BETA_STORAGE_PROVISIONER, SELECTED_NODE, STORAGE_PROVISIONER},
        quantity::Bytes,
        rpc::{access_mode, volume_capability},
    },
    proto::csi::{CapacityRange, CreateVolumeRequest, TopologyRequirement, VolumeContentSource},
};

/// Whether the controller-manager asks this driver for a volume for the claim.
pub fn is_requested(claim: &Claim, driver: &str) -> bool {
    let unbound = claim.spec.volume_name.as_deref().unwrap_or_default().is_empty();
    let provisioner = claim
        .annotation(STORAGE_PROVISIONER)
        .or_else(|| claim.annotation(BETA_STORAGE_PROVISIONER));
    unbound && provisioner == Some(driver)
}

/// Whether the claim waits until the scheduler has selected a node for its first pod.
pub fn waits_for_consumer(claim: &Claim, class: &StorageClass) -> bool {
    is_delayed(class) && selected_node(claim).is_none()
}

pub fn is_delayed(class: &StorageClass) -> bool {
    class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
}

pub fn selected_node(claim: &Claim) -> Option<&str> {
    claim.annotation(SELECTED_NODE).filter(|node| !node.is_empty())
}

/// A request together with what the PersistentVolume needs.
#[derive(Clone, Debug)]
pub struct Draft {
    pub parameters: Parameters,
    pub requested: Bytes,
    pub request: CreateVolumeRequest,
}

/// The needs of a volume beyond its claim and class.
#[derive(Clone, Debug, Default)]
pub struct Requirements {
    pub topology: Option<TopologyRequirement>,
    pub content_source: Option<VolumeContentSource>,
    /// The parameters of the VolumeAttributesClass.
    pub mutable_parameters: HashMap<String, String>,
}

/// Builds the request for a claim.
pub fn draft(
    claim: &Claim,
    class: &StorageClass,
    settings: &Settings,
    single_node_modes: bool,
    requirements: Requirements,
) -> Result<Draft, String> {
    let Requirements { topology, content_source, mutable_parameters } = requirements;
    if claim.spec.selector.is_some() {
        return Err("a claim with a selector cannot be provisioned: remove spec.selector".into());
    }
    let name = name_for(claim.uid());
    let no_parameters = std::collections::BTreeMap::new();
    let parameters = separate(
        class.parameters.as_ref().unwrap_or(&no_parameters),
        claim,
        &name,
        &settings.default_fs_type,
    )?;
    let requested = claim.spec.resources.requests.storage.unwrap_or_default();
    let mount_options = class.mount_options.as_deref().unwrap_or_default();
    let capabilities = claim.spec.access_modes.iter().map(|mode| {
        let mode = access_mode(std::slice::from_ref(mode), single_node_modes)?;
        Ok(volume_capability(mode, claim.is_block(), &parameters.fs_type, mount_options))
    });
    let capabilities = capabilities.collect::<Result<Vec<_>, String>>()?;
    let mut for_driver = parameters.for_driver.clone();
    if settings.extra_metadata {
        let namespace = claim.metadata.namespace.clone().unwrap_or_default();
        for_driver.insert("csi.storage.k8s.io/pvc/name".into(), claim.name().into());
        for_driver.insert("csi.storage.k8s.io/pvc/namespace".into(), namespace);
        for_driver.insert("csi.storage.k8s.io/pv/name".into(), name.clone());
    }
    let request = CreateVolumeRequest {
        name,
        capacity_range: Some(CapacityRange { required_bytes: requested.0, limit_bytes: 0 }),
        volume_capabilities: capabilities,
        parameters: for_driver,
        secrets: HashMap::new(),
        volume_content_source: content_source,
        accessibility_requirements: topology,
        mutable_parameters,
    };
    Ok(Draft { parameters, requested, request })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::proto::csi::volume_capability::{AccessType, access_mode::Mode};

    const DRIVER: &str = "csi.vsphere.vmware.com";

    fn claim(annotations: &serde_json::Value, spec: &serde_json::Value) -> Claim {
        serde_json::from_value(json!({
            "metadata": {"namespace": "shop", "name": "data", "uid": "u-1", "annotations": annotations},
            "spec": spec,
        }))
        .unwrap()
    }

    fn class(mode: &str) -> StorageClass {
        serde_json::from_value(json!({
            "metadata": {"name": "fast"}, "provisioner": DRIVER, "volumeBindingMode": mode,
            "parameters": {"storagepolicyname": "gold"}, "mountOptions": ["noatime"],
        }))
        .unwrap()
    }

    #[test]
    fn only_unbound_claims_for_this_driver_get_a_volume() {
        let cases = [
            (json!({STORAGE_PROVISIONER: DRIVER}), json!({}), true),
            (json!({BETA_STORAGE_PROVISIONER: DRIVER}), json!({}), true),
            (
                json!({STORAGE_PROVISIONER: "other", BETA_STORAGE_PROVISIONER: DRIVER}),
                json!({}),
                false,
            ),
            (json!({STORAGE_PROVISIONER: DRIVER}), json!({"volumeName": "pv-1"}), false),
            (json!({}), json!({}), false),
        ];
        for (annotations, spec, requested) in cases {
            let claim = claim(&annotations, &spec);
            assert_eq!(is_requested(&claim, DRIVER), requested, "{annotations} {spec}");
        }
    }

    #[test]
    fn a_delayed_claim_waits_for_its_node() {
        let (waiting, selected) =
            (claim(&json!({}), &json!({})), claim(&json!({SELECTED_NODE: "n1"}), &json!({})));
        assert!(waits_for_consumer(&waiting, &class("WaitForFirstConsumer")));
        assert!(!waits_for_consumer(&selected, &class("WaitForFirstConsumer")));
        assert!(!waits_for_consumer(&waiting, &class("Immediate")));
    }

    fn drafted(spec: &serde_json::Value, extra_metadata: bool) -> Result<Draft, String> {
        let settings = Settings { extra_metadata, ..Settings::new(DRIVER, "test") };
        let claim = claim(&json!({}), spec);
        draft(&claim, &class("Immediate"), &settings, false, Requirements::default())
    }

    #[test]
    fn the_request_is_that_of_external_provisioner() {
        let spec = json!({
            "accessModes": ["ReadWriteOnce", "ReadWriteMany"], "resources": {"requests": {"storage": "5Gi"}},
        });
        let request = drafted(&spec, true).unwrap().request;
        assert_eq!(request.name, "pvc-u-1");
        assert_eq!(request.capacity_range.unwrap().required_bytes, 5 << 30);
        assert_eq!(request.capacity_range.unwrap().limit_bytes, 0);
        let modes: Vec<Mode> =
            request.volume_capabilities.iter().map(|c| c.access_mode.unwrap().mode()).collect();
        assert_eq!(
            modes,
            [Mode::SingleNodeWriter, Mode::MultiNodeMultiWriter],
            "one for each mode"
        );
        let Some(AccessType::Mount(mount)) = &request.volume_capabilities[0].access_type else {
            panic!("{request:?}")
        };
        assert_eq!((mount.fs_type.as_str(), mount.mount_flags.len()), ("ext4", 1));
        let expected = HashMap::from([
            ("storagepolicyname", "gold"),
            ("csi.storage.k8s.io/pvc/name", "data"),
            ("csi.storage.k8s.io/pvc/namespace", "shop"),
            ("csi.storage.k8s.io/pv/name", "pvc-u-1"),
        ]);
        let actual = request.parameters.iter().map(|(k, v)| (k.as_str(), v.as_str()));
        assert_eq!(actual.collect::<HashMap<_, _>>(), expected);
        assert_eq!(drafted(&json!({}), false).unwrap().request.parameters.len(), 1);
    }

    #[test]
    fn a_claim_that_selects_volumes_is_refused() {
        let refused = drafted(&json!({"selector": {"matchLabels": {"a": "b"}}}), true);
        assert!(refused.unwrap_err().contains("spec.selector"));
    }
}
