//! A cluster that works against the operator: a quota that refuses its objects, somebody who keeps
//! changing them. It says so, and recovers by itself.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::time::Duration;

use api::VsphereCloudConfig;
use common::{NAMESPACE, Stage};
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Namespace, ResourceQuota, Secret, Service},
    storage::v1::StorageClass,
};
use kube::{
    Api,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams,
    },
};
use serde_json::json;
use testkit::{Process, eventually};
use tokio::task::JoinSet;

const CSI: &str = "vmware-system-csi";
const CONTROLLER: &str = "vsphere-csi-controller";

#[tokio::test]
async fn what_is_refused_and_what_is_fought_over_is_said_and_put_right_when_it_can_be() {
    let (stage, operator) = Stage::with_storage(&[]).await;
    a_secret_of_theirs_has_the_name_of_ours(&stage).await;
    stage.ready(&operator, 90).await;
    a_quota_refuses(&stage).await;
    stage.ready(&operator, 90).await;
    somebody_keeps_changing_it(&stage).await;
    stage.ready(&operator, 90).await;
    somebody_wants_the_password(&stage).await;
    stage.ready(&operator, 90).await;
    a_policy_takes_the_digest_off(&stage).await;
    stage.ready(&operator, 120).await;
    a_class_of_theirs_has_the_name_of_ours(&stage).await;
    stage.ready(&operator, 90).await;
    snapshots_are_to_be_kept(&stage, operator).await;
    assert_eq!(stage.deletions(), Vec::<String>::new());
    assert_eq!(stage.refusals(), Vec::<String>::new());
}

/// The cluster's default class is the admin's, and has the name of one that VDO is asked for.
async fn a_class_of_theirs_has_the_name_of_ours(stage: &Stage) {
    let classes = Api::<StorageClass>::all(stage.client());
    let default = "storageclass.kubernetes.io/is-default-class";
    let theirs = json!({
        "metadata": {"name": "gold", "annotations": {default: "true"}},
        "provisioner": "csi.vsphere.vmware.com", "reclaimPolicy": "Delete",
        "volumeBindingMode": "Immediate", "allowVolumeExpansion": false,
    });
    let theirs: StorageClass = serde_json::from_value(theirs).unwrap();
    let before = classes.create(&PostParams::default(), &theirs).await.unwrap();
    let wish = |classes: serde_json::Value| json!({"spec": {"storageProvider": {"storageClasses": classes}}});
    stage.change(wish(json!([{"name": "gold"}]))).await;
    stage.finding_about("VDO-1909", 60, &["gold", "another name"]).await;
    let after = classes.get("gold").await.unwrap();
    assert_eq!(after, before, "it is as it was, and the cluster's default");
    stage.change(wish(json!([]))).await;
}

/// Whether the data of a deleted snapshot is kept is the admin's to say, once and for all.
async fn snapshots_are_to_be_kept(stage: &Stage, operator: Process) {
    let wish = json!({"installController": true});
    stage.change(json!({"spec": {"storageProvider": {"snapshots": wish}}})).await;
    let gvk = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshotClass");
    let classes = ApiResource::from_gvk_with_plural(&gvk, "volumesnapshotclasses");
    let classes = Api::<DynamicObject>::all_with(stage.client(), &classes);
    eventually("there is a class of snapshots", 90, async || {
        classes.get("vsphere-csi").await.map_err(|error| error.to_string())
    })
    .await;
    stage.ready(&operator, 90).await;
    let keep = json!({"deletionPolicy": "Retain"});
    classes.patch("vsphere-csi", &PatchParams::default(), &Patch::Merge(keep)).await.unwrap();
    // One that is new looks at everything.
    stage.dismiss(operator).await;
    let then = Timestamp::now();
    let operator = stage.operator();
    eventually("it has put everything in order", 90, async || {
        let looked = stage.writes_since(then).iter().any(|write| write.contains("daemonsets"));
        if looked { Ok(()) } else { Err(operator.tail()) }
    })
    .await;
    stage.ready(&operator, 90).await;
    assert_eq!(classes.get("vsphere-csi").await.unwrap().data["deletionPolicy"], "Retain");
}

/// The admin keeps a Secret to pull images with beside the driver, under the name of the one that VDO
/// is told to bring.
async fn a_secret_of_theirs_has_the_name_of_ours(stage: &Stage) {
    let secret = |password: &str| -> Secret {
        let auths = json!({"auths": {"registry.example.com": {"password": password}}}).to_string();
        let secret = json!({
            "metadata": {"name": "registry"}, "type": "kubernetes.io/dockerconfigjson",
            "stringData": {".dockerconfigjson": auths},
        });
        serde_json::from_value(secret).unwrap()
    };
    let theirs = Api::<Secret>::namespaced(stage.client(), CSI);
    let ours = Api::<Secret>::namespaced(stage.client(), NAMESPACE);
    let before = theirs.create(&PostParams::default(), &secret("theirs")).await.unwrap();
    ours.create(&PostParams::default(), &secret("ours")).await.unwrap();
    stage.change(json!({"spec": {"images": {"pullSecrets": ["registry"]}}})).await;
    stage.finding_about("VDO-1909", 60, &["registry", "not made by VDO"]).await;
    assert_eq!(theirs.get("registry").await.unwrap().data, before.data, "it is as it was");

    theirs.delete("registry", &DeleteParams::default()).await.unwrap();
    let wanted = ours.get("registry").await.unwrap().data;
    eventually("VDO brings its own", 90, async || match theirs.get("registry").await {
        Ok(made) if made.data == wanted => Ok(()),
        other => Err(format!("{:?}", other.map(|secret| secret.metadata))),
    })
    .await;
}

/// A Service that somebody deleted cannot be made again while a quota allows none.
async fn a_quota_refuses(stage: &Stage) {
    let quotas = Api::<ResourceQuota>::namespaced(stage.client(), CSI);
    let quota = json!({"metadata": {"name": "none"}, "spec": {"hard": {"services": "0"}}});
    let quota: ResourceQuota = serde_json::from_value(quota).unwrap();
    quotas.create(&PostParams::default(), &quota).await.unwrap();
    eventually("the quota holds", 30, async || {
        let status = quotas.get("none").await.unwrap().status.unwrap_or_default();
        status.hard.map(drop).ok_or("not yet")
    })
    .await;
    let services = Api::<Service>::namespaced(stage.client(), CSI);
    services.delete(CONTROLLER, &DeleteParams::default()).await.unwrap();
    stage.finding_about("VDO-1909", 60, &["exceeded quota", "Service"]).await;
    let ready = stage.controller().await.status.unwrap().ready_replicas;
    assert!(ready.unwrap_or_default() > 0, "the driver goes on");
    quotas.delete("none", &DeleteParams::default()).await.unwrap();
    eventually("the Service is there again", 90, async || services.get(CONTROLLER).await.map(drop))
        .await;
}

/// Somebody scales the controller to nothing whenever it is put right.
async fn somebody_keeps_changing_it(stage: &Stage) {
    let wanted = stage.controller().await.spec.unwrap().replicas;
    let deployments = Api::<Deployment>::namespaced(stage.client(), CSI);
    let mut rival = JoinSet::new();
    let theirs = deployments.clone();
    rival.spawn(async move {
        let by = PatchParams { field_manager: Some("rival".into()), ..Default::default() };
        let nothing = json!({"spec": {"replicas": 0}});
        loop {
            let now = theirs.get(CONTROLLER).await.unwrap().spec.unwrap().replicas;
            if now != Some(0) {
                theirs.patch(CONTROLLER, &by, &Patch::Merge(&nothing)).await.unwrap();
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    stage.finding_about("VDO-1805", 90, &["rival", CONTROLLER]).await;
    rival.shutdown().await;
    eventually("it is put right after a pause", 120, async || {
        let now = deployments.get(CONTROLLER).await.unwrap().spec.unwrap().replicas;
        if now == wanted { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await;
}

/// Somebody who may create objects in a namespace of their own has a VsphereCloudConfig there that names
/// the Secret of the real one: its password is not sent to them, and nothing stops for it.
async fn somebody_wants_the_password(stage: &Stage) {
    let namespaces = Api::<Namespace>::all(stage.client());
    let theirs = json!({"metadata": {"name": "other"}});
    let create = PostParams::default();
    namespaces.create(&create, &serde_json::from_value(theirs).unwrap()).await.unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let configs = Api::<VsphereCloudConfig>::namespaced(stage.client(), "other");
    let common = json!({
        "vcIp": address.to_string(), "credentials": "vc-credentials", "datacenters": ["DC0"],
    });
    let more = [
        ("trusting", json!({"insecure": true})),
        ("bundle", json!({"insecure": false, "caBundle": {"configMap": {"name": "theirs"}}})),
    ];
    for (name, more) in more {
        let mut spec = common.clone();
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let config = json!({"metadata": {"name": name}, "spec": spec});
        configs.create(&create, &serde_json::from_value(config).unwrap()).await.unwrap();
    }
    for name in ["trusting", "bundle"] {
        eventually("it is told where it belongs", 60, async || {
            let status = configs.get(name).await.unwrap().status.unwrap_or_default();
            let ready = api::condition::get(&status.conditions, "Ready").cloned();
            let told = ready
                .filter(|ready| ready.reason == "NotFollowed" && ready.message.contains(NAMESPACE));
            told.map(drop).ok_or_else(|| format!("{status:?}"))
        })
        .await;
    }
    // A wish is fulfilled all the same, in rounds that have seen both.
    let wish = json!({"spec": {"storageProvider": {"clusterDistribution": "beside-others"}}});
    stage.change(wish).await;
    eventually("the wish is fulfilled", 60, async || {
        let conf = stage.secret(CSI, "vsphere-config-secret", "csi-vsphere.conf").await;
        if conf.contains("beside-others") { Ok(()) } else { Err("not yet") }
    })
    .await;
    let came = futures::FutureExt::now_or_never(listener.accept());
    assert!(came.is_none(), "somebody connected: {came:?}");
    assert_eq!(stage.refusals(), Vec::<String>::new());
}

/// A policy of the cluster takes off what VDO knows its objects by: to look at what was applied never
/// shows what was applied. It is not applied as fast as can be.
async fn a_policy_takes_the_digest_off(stage: &Stage) {
    let of_kind = |kind: &str, plural: &str| {
        let gvk = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
        let resource = ApiResource::from_gvk_with_plural(&gvk, plural);
        Api::<DynamicObject>::all_with(stage.client(), &resource)
    };
    let policies = of_kind("MutatingAdmissionPolicy", "mutatingadmissionpolicies");
    let bindings = of_kind("MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings");
    let digest = operator::names::DIGEST;
    let path = format!("/metadata/annotations/{}", digest.replace('/', "~1"));
    let group = "admissionregistration.k8s.io/v1";
    let policy = json!({
        "apiVersion": group, "kind": "MutatingAdmissionPolicy", "metadata": {"name": "plain"},
        "spec": {
            "failurePolicy": "Fail", "reinvocationPolicy": "Never",
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"],
                "operations": ["CREATE", "UPDATE"], "resources": ["services"],
            }]},
            "matchConditions": [{
                "name": "digest",
                "expression": format!(
                    "has(object.metadata.annotations) && '{digest}' in object.metadata.annotations"
                ),
            }],
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {
                "expression": format!("[JSONPatch{{op: 'remove', path: '{path}'}}]"),
            }}],
        },
    });
    let binding = json!({
        "apiVersion": group, "kind": "MutatingAdmissionPolicyBinding", "metadata": {"name": "plain"},
        "spec": {"policyName": "plain"},
    });
    let create = PostParams::default();
    policies.create(&create, &serde_json::from_value(policy).unwrap()).await.unwrap();
    bindings.create(&create, &serde_json::from_value(binding).unwrap()).await.unwrap();
    let services = Api::<Service>::namespaced(stage.client(), CSI);
    let try_out = PostParams { dry_run: true, ..PostParams::default() };
    let tried = json!({
        "metadata": {"name": "tried", "annotations": {digest: "x"}}, "spec": {"ports": [{"port": 80}]},
    });
    let tried: Service = serde_json::from_value(tried).unwrap();
    eventually("the policy holds", 60, async || {
        let made = services.create(&try_out, &tried).await.unwrap();
        let kept = made.metadata.annotations.is_some_and(|all| all.contains_key(digest));
        if kept { Err("not yet") } else { Ok(()) }
    })
    .await;
    let then = Timestamp::now();
    services.delete(CONTROLLER, &DeleteParams::default()).await.unwrap();
    stage.finding_about("VDO-1909", 60, &["Service", "in a row", "admission policy"]).await;
    let mut writes = stage.writes_since(then);
    writes.retain(|write| write.contains("/services/"));
    assert!((2..30).contains(&writes.len()), "{} times: {writes:#?}", writes.len());
    bindings.delete("plain", &DeleteParams::default()).await.unwrap();
    policies.delete("plain", &DeleteParams::default()).await.unwrap();
    eventually("it is as it was applied", 120, async || {
        let made = services.get(CONTROLLER).await.unwrap();
        let kept = made.metadata.annotations.is_some_and(|all| all.contains_key(digest));
        if kept { Ok(()) } else { Err("not yet") }
    })
    .await;
}
