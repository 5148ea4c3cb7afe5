//! A cluster that works against the operator: a quota that refuses its objects, somebody who keeps
//! changing them. It says so, and recovers by itself.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::time::Duration;

use api::{VDOConfig, VsphereCloudConfig};
use common::{NAMESPACE, Stage};
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Namespace, ResourceQuota, Secret, Service},
    rbac::v1::{Role, RoleBinding},
    storage::v1::StorageClass,
};
use kube::{
    Api,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams,
    },
};
use serde_json::json;
use testkit::{Process, User, eventually};
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
    let desired = |classes: serde_json::Value| json!({"spec": {"storageProvider": {"storageClasses": classes}}});
    stage.change(desired(json!([{"name": "gold"}]))).await;
    stage.finding_about("VDO-1909", 60, &["gold", "another name"]).await;
    let after = classes.get("gold").await.unwrap();
    assert_eq!(after, before, "it is as it was, and the cluster's default");
    stage.change(desired(json!([]))).await;
}

/// Whether the data of a deleted snapshot is kept is the admin's to say, once and for all.
async fn snapshots_are_to_be_kept(stage: &Stage, operator: Process) {
    let desired = json!({"installController": true});
    stage.change(json!({"spec": {"storageProvider": {"snapshots": desired}}})).await;
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
    let desired = json!({"spec": {"storageProvider": {"clusterDistribution": "beside-others"}}});
    stage.change(desired).await;
    eventually("the wish is fulfilled", 60, async || {
        let conf = stage.secret(CSI, "vsphere-config-secret", "csi-vsphere.conf").await;
        if conf.contains("beside-others") { Ok(()) } else { Err("not yet") }
    })
    .await;
    let came = futures::FutureExt::now_or_never(listener.accept());
    assert!(came.is_none(), "somebody connected: {came:?}");
    assert_eq!(stage.refusals(), Vec::<String>::new());
}

/// A tenant with all rights on VDO's kinds in a namespace of his own, and what he creates there: a vCenter
/// that is his listener, and a VDOConfig with his images.
struct Tenant {
    client: kube::Client,
    listener: tokio::net::TcpListener,
}

const TENANT: &str = "team-a";

impl Tenant {
    async fn moves_in(stage: &Stage) -> Self {
        let create = PostParams::default();
        let admin = stage.client();
        let namespace: Namespace =
            serde_json::from_value(json!({"metadata": {"name": TENANT}})).unwrap();
        Api::all(admin.clone()).create(&create, &namespace).await.unwrap();
        let role: Role = serde_json::from_value(json!({
            "metadata": {"name": "tenant"},
            "rules": [{"apiGroups": ["vdo.vmware.com"], "resources": ["*"], "verbs": ["*"]}],
        }))
        .unwrap();
        Api::namespaced(admin.clone(), TENANT).create(&create, &role).await.unwrap();
        let binding: RoleBinding = serde_json::from_value(json!({
            "metadata": {"name": "tenant"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "tenant"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "tenant"}],
        }))
        .unwrap();
        Api::namespaced(admin, TENANT).create(&create, &binding).await.unwrap();
        let client = stage.plane.client_as(&User::named("tenant"));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tenant = Self { client, listener };
        let vcenter: VsphereCloudConfig = serde_json::from_value(json!({
            "metadata": {"name": "vc"},
            "spec": {
                "vcIp": tenant.address(), "insecure": true,
                "credentials": "vc-credentials", "datacenters": ["DC0"],
            },
        }))
        .unwrap();
        eventually("the tenant may create his objects", 30, async || {
            let vcenters = Api::<VsphereCloudConfig>::namespaced(tenant.client.clone(), TENANT);
            vcenters.create(&create, &vcenter).await.map(drop)
        })
        .await;
        // The name of the admin's, too.
        for name in ["vdo-config", "another"] {
            let config: VDOConfig = serde_json::from_value(json!({
                "metadata": {"name": name, "annotations": {"vdo.vmware.com/follow": "true"}},
                "spec": {
                    "storageProvider": {"vsphereCloudConfig": "vc"},
                    "images": {"registry": "evil.example.com"},
                },
            }))
            .unwrap();
            tenant.configs().create(&create, &config).await.unwrap();
        }
        tenant
    }

    fn address(&self) -> String {
        self.listener.local_addr().unwrap().to_string()
    }

    fn configs(&self) -> Api<VDOConfig> {
        Api::namespaced(self.client.clone(), TENANT)
    }

    /// Waits until the status of his VDOConfig says that it is not followed; returns the finding.
    async fn is_not_followed(&self, name: &str) -> api::Finding {
        eventually("the tenant reads that his VDOConfig is not followed", 60, async || {
            let status = self.configs().get(name).await.unwrap().status.unwrap_or_default();
            let ready = api::condition::get(&status.conditions, "Ready");
            let so = ready.is_some_and(|ready| ready.reason == "NotFollowed");
            let finding = status.findings.iter().find(|finding| finding.code == "VDO-1009");
            finding.filter(|_| so).cloned().ok_or_else(|| format!("{status:?}"))
        })
        .await
    }
}

#[tokio::test]
async fn a_tenant_gets_neither_the_password_nor_the_nodes_when_the_admin_recreates_his_config() {
    let (stage, operator) = Stage::with_storage(&[]).await;
    let tenant = Tenant::moves_in(&stage).await;
    for name in ["vdo-config", "another"] {
        let finding = tenant.is_not_followed(name).await;
        assert_eq!(finding.severity, api::Severity::Warning);
    }
    let identity = async || {
        let (controller, nodes) = (stage.controller().await, stage.node_driver().await);
        [controller.metadata, nodes.metadata].map(|metadata| (metadata.uid, metadata.generation))
    };
    let before = identity().await;
    // The tenant disagrees, and is not contradicted.
    for round in 0..5 {
        let theirs = json!({"status": {"clusterId": format!("theirs-{round}")}});
        let patch = Patch::Merge(theirs);
        tenant.configs().patch_status("another", &PatchParams::default(), &patch).await.unwrap();
    }

    let configs = Api::<VDOConfig>::namespaced(stage.client(), NAMESPACE);
    let spec = stage.config().await.spec;
    configs.delete("vdo-config", &DeleteParams::default()).await.unwrap();
    // A round has seen that the admin's is gone and the tenant's are there.
    stage.event("DriversRetained", "keep running").await;
    assert_eq!(identity().await, before);
    let again = json!({"metadata": {"name": "vdo-config"}, "spec": spec});
    let again: VDOConfig = serde_json::from_value(again).unwrap();
    configs.create(&PostParams::default(), &again).await.unwrap();
    let config = stage.ready(&operator, 90).await;
    let status = config.status.unwrap();
    assert!(api::condition::is_true(&status.conditions, api::condition::FOLLOWED), "{status:?}");

    let came = futures::FutureExt::now_or_never(tenant.listener.accept());
    assert!(came.is_none(), "the operator connected to the tenant's host: {came:?}");
    let conf = stage.secret(CSI, "vsphere-config-secret", "csi-vsphere.conf").await;
    assert!(!conf.contains(&tenant.address()), "the driver is told of the tenant's host");
    assert_eq!(identity().await, before, "the driver's workloads have changed");
    let pod = stage.controller().await.spec.unwrap().template.spec.unwrap();
    let images: Vec<_> = pod.containers.into_iter().filter_map(|one| one.image).collect();
    assert!(!images.iter().any(|image| image.contains("evil")), "{images:?}");
    let theirs = |text: &str| text.contains(TENANT) || text.contains(&tenant.address());
    assert!(!status.findings.iter().any(|finding| theirs(&format!("{finding:?}"))), "{status:?}");
    assert!(!theirs(&stage.metrics(&operator).await));
    let told: Vec<String> = stage.changes_of(NAMESPACE, "vdo");
    let told: Vec<&String> = told.iter().filter(|change| change.contains(TENANT)).collect();
    assert!(told.len() <= 3 && told.iter().all(|change| change.contains("/status?")), "{told:#?}");
    assert_eq!(stage.refusals(), Vec::<String>::new());
}

#[tokio::test]
async fn a_forgotten_second_vdoconfig_takes_effect_only_when_an_admin_confirms_it() {
    let (stage, operator) = Stage::with_storage(&[]).await;
    let configs = Api::<VDOConfig>::namespaced(stage.client(), NAMESPACE);
    let forgotten: VDOConfig = serde_json::from_value(json!({
        "metadata": {"name": "forgotten"},
        "spec": {"storageProvider": {"vsphereCloudConfig": "vc", "clusterDistribution": "forgotten"}},
    }))
    .unwrap();
    configs.create(&PostParams::default(), &forgotten).await.unwrap();
    let finding = stage.finding_about("VDO-1001", 60, &["VDO follows vdo-config"]).await;
    let deletes = format!("kubectl delete vdoconfig --namespace {NAMESPACE} forgotten   ");
    assert!(finding.remedy[1].starts_with(&deletes), "{finding:#?}");

    let before = stage.controller().await.metadata;
    configs.delete("vdo-config", &DeleteParams::default()).await.unwrap();
    let finding = eventually("it waits for a confirmation", 60, async || {
        assert!(operator.ended().is_none(), "{}", operator.tail());
        let status = configs.get("forgotten").await.unwrap().status.unwrap_or_default();
        let finding = status.findings.iter().find(|finding| finding.code == "VDO-1010").cloned();
        finding.ok_or_else(|| format!("{status:?}"))
    })
    .await;
    eventually("an alert tells the admin", 30, async || {
        let shown = stage.metrics(&operator).await;
        if shown.contains("vdo_findings{code=\"VDO-1010\"") { Ok(()) } else { Err(shown) }
    })
    .await;
    let conf = async || stage.secret(CSI, "vsphere-config-secret", "csi-vsphere.conf").await;
    assert!(!conf().await.contains("forgotten"));
    let after = stage.controller().await.metadata;
    assert_eq!((after.uid, after.generation), (before.uid, before.generation));

    stage.run(&finding.remedy[0]).await;
    eventually("it takes effect", 90, async || {
        if conf().await.contains("forgotten") { Ok(()) } else { Err(operator.tail()) }
    })
    .await;
    let uid = configs.get("forgotten").await.unwrap().metadata.uid.unwrap();
    let maps = Api::<ConfigMap>::namespaced(stage.client(), NAMESPACE);
    let record = maps.get("vdo-followed").await.unwrap().data.unwrap();
    assert_eq!((record["name"].as_str(), record["uid"].as_str()), ("forgotten", uid.as_str()));
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
    let digest = plan::names::DIGEST;
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
