//! The objects of one test.
//!
//! The claim cannot bind an existing volume: its StorageClass is a copy with a new, random name, so only a volume that is
//! provisioned for it can have the same class.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{
            LocalObjectReference, PersistentVolumeClaim, Pod, ResourceRequirements, Toleration,
            TopologySelectorLabelRequirement, TopologySelectorTerm,
        },
        storage::v1::StorageClass,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use plan::names::VOLUME_TEST;
use rand::RngExt as _;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::targets::Target;
use crate::failure::{Failure, Outcome};

/// The name of every object of a test begins with it.
const PREFIX: &str = "vdo-test-";
/// The StorageClass whose copy the object is.
const COPY_OF: &str = "vdo.vmware.com/copy-of";
const MOUNT: &str = "/volume";
const FILE: &str = "/volume/vdo-test";
/// The user and the group of the pods.
const USER: i64 = 65532;

/// The image and the settings that the pods of a test share with the operator's pods. The cluster can pull this image,
/// also without access to the Internet.
#[derive(Clone, Debug)]
pub(super) struct PodTemplate {
    pub(super) image: String,
    pull_policy: Option<String>,
    pull_secrets: Vec<LocalObjectReference>,
    host_network: bool,
    pub(super) tolerations: Vec<Toleration>,
    resources: Option<ResourceRequirements>,
}

impl PodTemplate {
    /// None if the Deployment has no image.
    pub(super) fn of_operator(deployment: Deployment) -> Option<Self> {
        let pod = deployment.spec?.template.spec?;
        let containers = pod.containers;
        let own = containers.iter().position(|container| container.name == "vdo").unwrap_or(0);
        let container = containers.into_iter().nth(own)?;
        Some(Self {
            image: container.image?,
            pull_policy: container.image_pull_policy,
            pull_secrets: pod.image_pull_secrets.unwrap_or_default(),
            host_network: pod.host_network.unwrap_or(false),
            tolerations: pod.tolerations.unwrap_or_default(),
            resources: container.resources,
        })
    }
}

#[derive(Clone, Debug)]
pub(super) struct TestObjects {
    /// The value of the label of all objects.
    pub(super) id: String,
    pub(super) class: StorageClass,
    pub(super) claim: PersistentVolumeClaim,
    pub(super) writer: Pod,
    pub(super) reader: Pod,
}

impl TestObjects {
    pub(super) fn new(
        target: &Target,
        template: &PodTemplate,
        namespace: &str,
        size: &str,
    ) -> Outcome<Self> {
        let id = format!("{:016x}", rand::rng().random::<u64>());
        let text = format!("{:032x}", rand::rng().random::<u128>());
        let name = format!("{PREFIX}{id}");
        let class = class_copy(target, &name, &id);
        let claim = json!({
            "metadata": {"name": name, "namespace": namespace, "labels": {VOLUME_TEST: id}},
            "spec": {
                "storageClassName": name, "accessModes": [access_mode(&target.class)],
                "resources": {"requests": {"storage": size}},
            },
        });
        let pod = |deed: &str, node: &str| {
            let mut pod = pod(template, &name, &[deed, &text], node);
            pod["metadata"] = json!({
                "name": format!("{name}-{deed}"), "namespace": namespace,
                "labels": {VOLUME_TEST: id},
            });
            typed::<Pod>(pod)
        };
        let writer = pod("write", &target.first)?;
        let reader = pod("read", &target.second)?;
        Ok(Self { class, claim: typed(claim)?, writer, reader, id })
    }
}

fn typed<T: DeserializeOwned>(object: Value) -> Outcome<T> {
    serde_json::from_value(object).map_err(|source| Failure::Other {
        text: "an object of the test is invalid".to_owned(),
        source: source.into(),
    })
}

/// A file share is for many nodes; a disk is for one.
fn access_mode(class: &StorageClass) -> &'static str {
    let parameters = class.parameters.iter().flatten();
    let mut file_systems =
        parameters.filter(|(key, _)| key.eq_ignore_ascii_case("csi.storage.k8s.io/fstype"));
    let is_share = file_systems.any(|(_, value)| value.to_ascii_lowercase().starts_with("nfs"));
    if is_share { "ReadWriteMany" } else { "ReadWriteOnce" }
}

/// Has everything of the class that decides where and how a volume is made. It has none of its annotations: two default
/// classes would disturb others.
fn class_copy(target: &Target, name: &str, id: &str) -> StorageClass {
    let class = &target.class;
    let original = class.metadata.name.clone().unwrap_or_default();
    StorageClass {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(BTreeMap::from([(VOLUME_TEST.to_owned(), id.to_owned())])),
            annotations: Some(BTreeMap::from([(COPY_OF.to_owned(), original)])),
            ..ObjectMeta::default()
        },
        provisioner: class.provisioner.clone(),
        parameters: class.parameters.clone(),
        mount_options: class.mount_options.clone(),
        allowed_topologies: allowed_topologies(target),
        reclaim_policy: Some("Delete".to_owned()),
        volume_binding_mode: Some("WaitForFirstConsumer".to_owned()),
        allow_volume_expansion: None,
    }
}

/// The topologies of the class, restricted to the zone. The labels stay those of the class, so that a class with a label
/// that the driver does not know fails as it does for other pods.
fn allowed_topologies(target: &Target) -> Option<Vec<TopologySelectorTerm>> {
    let zone = &target.zone.0;
    let restricted = |one: &TopologySelectorLabelRequirement| match zone.get(&one.key) {
        Some(value) => {
            TopologySelectorLabelRequirement { key: one.key.clone(), values: vec![value.clone()] }
        }
        None => one.clone(),
    };
    let fits = |term: &&TopologySelectorTerm| {
        let mut expressions = term.match_label_expressions.iter().flatten();
        expressions.all(|one| zone.get(&one.key).is_none_or(|value| one.values.contains(value)))
    };
    let own = target.class.allowed_topologies.as_deref().unwrap_or_default();
    let terms: Vec<TopologySelectorTerm> = if own.is_empty() && !zone.is_empty() {
        let requirement = |(key, value): (&String, &String)| TopologySelectorLabelRequirement {
            key: key.clone(),
            values: vec![value.clone()],
        };
        let all = zone.iter().map(requirement).collect();
        vec![TopologySelectorTerm { match_label_expressions: Some(all) }]
    } else {
        let term = |term: &TopologySelectorTerm| TopologySelectorTerm {
            match_label_expressions: term
                .match_label_expressions
                .as_ref()
                .map(|all| all.iter().map(restricted).collect()),
        };
        own.iter().filter(fits).map(term).collect()
    };
    (!terms.is_empty()).then_some(terms)
}

/// A pod without metadata that runs one command of the operator's program. It satisfies the pod security level
/// `restricted`, unless the operator itself uses the host network.
fn pod(template: &PodTemplate, claim: &str, [deed, text]: &[&str; 2], node: &str) -> Value {
    let PodTemplate { image, pull_policy, pull_secrets, host_network, tolerations, resources } =
        template;
    // The scheduler must choose the node: it makes the driver provision the volume there.
    let this_node = json!({"matchFields": [
        {"key": "metadata.name", "operator": "In", "values": [node]},
    ]});
    json!({
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "hostNetwork": host_network,
            "dnsPolicy": "Default",
            "imagePullSecrets": pull_secrets,
            "tolerations": tolerations,
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [this_node],
            }}},
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [{
                "name": deed, "image": image, "imagePullPolicy": pull_policy,
                "command": ["vdo", "volume", deed, "--file", FILE, "--text", text],
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "resources": resources,
                "securityContext": {
                    "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                    "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": [{"name": "volume", "mountPath": MOUNT}],
            }],
            "volumes": [{"name": "volume", "persistentVolumeClaim": {"claimName": claim}}],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::{
        super::targets::{Zone, tests::class},
        *,
    };

    const ZONE: &str = "topology.csi.vmware.com/k8s-zone";

    fn template() -> PodTemplate {
        let deployment = json!({"spec": {"selector": {}, "template": {"spec": {
            "imagePullSecrets": [{"name": "mirror"}],
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "containers": [
                {"name": "sidecar", "image": "r.example.com/other:1"},
                {"name": "vdo", "image": "r.example.com/vdo:1", "resources": {"limits": {"memory": "64Mi"}}},
            ],
        }}}});
        PodTemplate::of_operator(serde_json::from_value(deployment).unwrap()).unwrap()
    }

    fn target(class: StorageClass, zone: Option<&str>) -> Target {
        let zone = zone.map(|zone| (ZONE.to_owned(), zone.to_owned())).into_iter().collect();
        Target { class, zone: Zone(zone), first: "n-1".into(), second: "n-2".into() }
    }

    fn objects(class: StorageClass, zone: Option<&str>) -> TestObjects {
        TestObjects::new(&target(class, zone), &template(), "vmware-system-vdo", "1Gi").unwrap()
    }

    #[test]
    fn the_claim_has_a_class_that_no_existing_volume_can_have() {
        let one = objects(class(&json!({})), None);
        let other = objects(class(&json!({})), None);
        let name = one.class.metadata.name.clone().unwrap();
        assert_eq!(one.claim.spec.as_ref().unwrap().storage_class_name.as_ref(), Some(&name));
        assert!(name.starts_with("vdo-test-") && name.len() == 25, "{name}");
        assert_ne!(one.class.metadata.name, other.class.metadata.name, "it is new each time");
        assert_ne!(one.writer.spec, other.writer.spec, "so is the text");
        let spec = one.claim.spec.unwrap();
        assert_eq!((spec.volume_name, spec.selector, spec.data_source), (None, None, None));
    }

    #[test]
    fn the_copy_makes_the_same_volumes_and_deletes_them_and_is_no_default() {
        let original = class(&json!({
            "metadata": {
                "name": "gold", "labels": {"app.kubernetes.io/managed-by": "vdo"},
                "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
            },
            "parameters": {"storagepolicyname": "Gold"}, "mountOptions": ["noatime"],
            "reclaimPolicy": "Retain", "volumeBindingMode": "Immediate", "allowVolumeExpansion": true,
        }));
        let TestObjects { class: copy, id, .. } = objects(original.clone(), None);
        assert_eq!(copy.provisioner, original.provisioner);
        assert_eq!(copy.parameters, original.parameters);
        assert_eq!(copy.mount_options, original.mount_options);
        assert_eq!(copy.reclaim_policy.as_deref(), Some("Delete"));
        assert_eq!(copy.volume_binding_mode.as_deref(), Some("WaitForFirstConsumer"));
        let labels = copy.metadata.labels.unwrap();
        assert_eq!(labels.into_iter().collect::<Vec<_>>(), [(VOLUME_TEST.to_owned(), id)]);
        let annotations = copy.metadata.annotations.unwrap();
        assert_eq!(annotations.keys().collect::<Vec<_>>(), [COPY_OF], "no default class");
    }

    #[test]
    fn the_copy_is_restricted_to_the_zone_with_the_labels_of_the_class() {
        let shown = |class: StorageClass| {
            serde_json::to_value(objects(class, Some("zone-a")).class.allowed_topologies).unwrap()
        };
        let term = |key: &str, values: &[&str]| json!({"matchLabelExpressions": [{"key": key, "values": values}]});
        assert_eq!(shown(class(&json!({}))), json!([term(ZONE, &["zone-a"])]));
        let of_class = |terms: Value| class(&json!({"allowedTopologies": terms}));
        let both = of_class(json!([term(ZONE, &["zone-a", "zone-b"]), term(ZONE, &["zone-c"])]));
        assert_eq!(shown(both), json!([term(ZONE, &["zone-a"])]));
        let foreign = json!([term("topology.kubernetes.io/zone", &["zone-a", "zone-b"])]);
        assert_eq!(shown(of_class(foreign.clone())), foreign, "the test shows that it fails");
    }

    #[test]
    fn the_pods_satisfy_the_level_restricted_and_use_the_image_of_the_operator() {
        let TestObjects { writer, reader, claim, .. } = objects(class(&json!({})), None);
        for (pod, node, deed) in [(&writer, "n-1", "write"), (&reader, "n-2", "read")] {
            let pod = serde_json::to_value(pod).unwrap();
            let spec = &pod["spec"];
            let context = &spec["securityContext"];
            assert_eq!(
                (&context["runAsNonRoot"], &context["runAsUser"]),
                (&json!(true), &json!(65532))
            );
            assert_eq!(context["fsGroup"], 65532);
            assert_eq!(context["seccompProfile"]["type"], "RuntimeDefault");
            assert_eq!(spec["hostNetwork"], false);
            assert_eq!(spec["imagePullSecrets"], json!([{"name": "mirror"}]));
            assert_eq!(spec["tolerations"][0]["key"], "gpu");
            assert!(spec["nodeName"].is_null(), "the scheduler must see the pod: {spec}");
            assert!(spec["affinity"].to_string().contains(node), "{spec}");
            let container = &spec["containers"][0];
            assert_eq!(container["image"], "r.example.com/vdo:1");
            assert_eq!(container["resources"]["limits"]["memory"], "64Mi");
            assert_eq!(container["command"][2], deed);
            let context = &container["securityContext"];
            assert_eq!(context["allowPrivilegeEscalation"], false);
            assert_eq!(context["readOnlyRootFilesystem"], true);
            assert_eq!(context["capabilities"]["drop"], json!(["ALL"]));
            let mounted = &spec["volumes"][0]["persistentVolumeClaim"]["claimName"];
            assert_eq!(mounted.as_str(), claim.metadata.name.as_deref());
        }
        let text = |pod: &Pod| {
            pod.spec.as_ref().unwrap().containers[0].command.clone().unwrap()[6].clone()
        };
        assert_eq!(text(&writer), text(&reader), "it reads what was written");
    }

    #[test]
    fn a_file_share_is_for_many_nodes() {
        let mode = |fstype: &str| {
            access_mode(&class(&json!({"parameters": {"csi.storage.k8s.io/fstype": fstype}})))
        };
        assert_eq!((mode("nfs4"), mode("ext4")), ("ReadWriteMany", "ReadWriteOnce"));
    }
}
