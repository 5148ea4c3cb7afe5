//! A cluster that works against the operator: a quota refuses its objects, and somebody keeps changing them.
//! The operator reports it, and recovers by itself.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::time::Duration;

use api::{VDOConfig, VsphereCloudConfig};
use common::{NAMESPACE, Testbed};
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
async fn refused_and_contested_objects_are_reported_and_repaired_if_possible() {
    let (testbed, operator) = Testbed::with_storage(&[]).await;
    a_foreign_secret_has_our_name(&testbed).await;
    testbed.ready(&operator, 90).await;
    a_quota_denies(&testbed).await;
    testbed.ready(&operator, 90).await;
    a_rival_keeps_changing_the_controller(&testbed).await;
    testbed.ready(&operator, 90).await;
    a_foreign_config_names_our_secret(&testbed).await;
    testbed.ready(&operator, 90).await;
    a_policy_removes_the_digest(&testbed).await;
    testbed.ready(&operator, 120).await;
    a_foreign_storage_class_has_our_name(&testbed).await;
    testbed.ready(&operator, 90).await;
    snapshots_without_their_definitions_are_reported(&testbed).await;
    the_snapshot_deletion_policy_stays(&testbed, operator).await;
    assert_eq!(testbed.deletions(), Vec::<String>::new());
    assert_eq!(testbed.denied_requests(), Vec::<String>::new());
}

/// The cluster's default StorageClass belongs to the admin and has the name of one that VDO should create.
async fn a_foreign_storage_class_has_our_name(testbed: &Testbed) {
    let classes = Api::<StorageClass>::all(testbed.client());
    let default = "storageclass.kubernetes.io/is-default-class";
    let theirs = json!({
        "metadata": {"name": "gold", "annotations": {default: "true"}},
        "provisioner": "csi.vsphere.vmware.com", "reclaimPolicy": "Delete",
        "volumeBindingMode": "Immediate", "allowVolumeExpansion": false,
    });
    let theirs: StorageClass = serde_json::from_value(theirs).unwrap();
    let before = classes.create(&PostParams::default(), &theirs).await.unwrap();
    let spec_with = |classes: serde_json::Value| json!({"spec": {"storageProvider": {"storageClasses": classes}}});
    testbed.change(spec_with(json!([{"name": "gold"}]))).await;
    testbed.finding_about("VDO-1909", 60, &["gold", "another name"]).await;
    let after = classes.get("gold").await.unwrap();
    assert_eq!(after, before, "the class is unchanged");
    testbed.change(spec_with(json!([]))).await;
}

/// The snapshot CRDs come after the VDOConfig that needs them. The operator does not restart in between.
async fn snapshots_without_their_definitions_are_reported(testbed: &Testbed) {
    testbed.change(json!({"spec": {"storageProvider": {"snapshots": {}}}})).await;
    let missing = "volumesnapshotclasses.snapshot.storage.k8s.io, which does not exist";
    let finding = testbed.finding_about("VDO-1909", 60, &[missing]).await;
    assert!(finding.remedy[0].contains("snapshots.installController: true"), "{finding:#?}");
}

/// The admin decides whether deleted snapshots keep their data: VDO does not overwrite the policy.
async fn the_snapshot_deletion_policy_stays(testbed: &Testbed, operator: Process) {
    let snapshots = json!({"installController": true});
    testbed.change(json!({"spec": {"storageProvider": {"snapshots": snapshots}}})).await;
    let gvk = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshotClass");
    let classes = ApiResource::from_gvk_with_plural(&gvk, "volumesnapshotclasses");
    let classes = Api::<DynamicObject>::all_with(testbed.client(), &classes);
    eventually("the VolumeSnapshotClass exists", 90, async || {
        classes.get("vsphere-csi").await.map_err(|error| error.to_string())
    })
    .await;
    testbed.ready(&operator, 90).await;
    let keep = json!({"deletionPolicy": "Retain"});
    classes.patch("vsphere-csi", &PatchParams::default(), &Patch::Merge(keep)).await.unwrap();
    // A new operator checks every object.
    testbed.stop(operator).await;
    let since = Timestamp::now();
    let operator = testbed.operator();
    eventually("the new operator has applied all objects", 90, async || {
        let applied = testbed.writes_since(since).iter().any(|write| write.contains("daemonsets"));
        if applied { Ok(()) } else { Err(operator.tail()) }
    })
    .await;
    testbed.ready(&operator, 90).await;
    assert_eq!(classes.get("vsphere-csi").await.unwrap().data["deletionPolicy"], "Retain");
}

/// The admin has a pull Secret in the driver's namespace with the name of the one that VDO should copy there.
async fn a_foreign_secret_has_our_name(testbed: &Testbed) {
    let secret = |password: &str| -> Secret {
        let auths = json!({"auths": {"registry.example.com": {"password": password}}}).to_string();
        let secret = json!({
            "metadata": {"name": "registry"}, "type": "kubernetes.io/dockerconfigjson",
            "stringData": {".dockerconfigjson": auths},
        });
        serde_json::from_value(secret).unwrap()
    };
    let theirs = Api::<Secret>::namespaced(testbed.client(), CSI);
    let ours = Api::<Secret>::namespaced(testbed.client(), NAMESPACE);
    let before = theirs.create(&PostParams::default(), &secret("theirs")).await.unwrap();
    ours.create(&PostParams::default(), &secret("ours")).await.unwrap();
    testbed.change(json!({"spec": {"images": {"pullSecrets": ["registry"]}}})).await;
    testbed.finding_about("VDO-1909", 60, &["registry", "not managed by VDO"]).await;
    assert_eq!(theirs.get("registry").await.unwrap().data, before.data, "the Secret is unchanged");

    theirs.delete("registry", &DeleteParams::default()).await.unwrap();
    let wanted = ours.get("registry").await.unwrap().data;
    eventually("VDO creates its copy", 90, async || match theirs.get("registry").await {
        Ok(made) if made.data == wanted => Ok(()),
        other => Err(format!("{:?}", other.map(|secret| secret.metadata))),
    })
    .await;
}

/// A quota prevents the re-creation of a deleted Service.
async fn a_quota_denies(testbed: &Testbed) {
    let quotas = Api::<ResourceQuota>::namespaced(testbed.client(), CSI);
    let quota = json!({"metadata": {"name": "none"}, "spec": {"hard": {"services": "0"}}});
    let quota: ResourceQuota = serde_json::from_value(quota).unwrap();
    quotas.create(&PostParams::default(), &quota).await.unwrap();
    eventually("the quota is in effect", 30, async || {
        let status = quotas.get("none").await.unwrap().status.unwrap_or_default();
        status.hard.map(drop).ok_or("not yet")
    })
    .await;
    let services = Api::<Service>::namespaced(testbed.client(), CSI);
    services.delete(CONTROLLER, &DeleteParams::default()).await.unwrap();
    testbed.finding_about("VDO-1909", 60, &["exceeded quota", "Service"]).await;
    let ready = testbed.controller().await.status.unwrap().ready_replicas;
    assert!(ready.unwrap_or_default() > 0, "the driver keeps running");
    quotas.delete("none", &DeleteParams::default()).await.unwrap();
    eventually("the Service exists again", 90, async || services.get(CONTROLLER).await.map(drop))
        .await;
}

/// A rival scales the controller to zero whenever VDO reverts it.
async fn a_rival_keeps_changing_the_controller(testbed: &Testbed) {
    let wanted = testbed.controller().await.spec.unwrap().replicas;
    let deployments = Api::<Deployment>::namespaced(testbed.client(), CSI);
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
    testbed.finding_about("VDO-1805", 90, &["rival", CONTROLLER]).await;
    rival.shutdown().await;
    eventually("VDO reverts the change once the rival stops", 120, async || {
        let now = deployments.get(CONTROLLER).await.unwrap().spec.unwrap().replicas;
        if now == wanted { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await;
}

/// A user creates a VsphereCloudConfig in their own namespace that names the Secret of the real one. VDO does not
/// send the password to their address, and keeps working.
async fn a_foreign_config_names_our_secret(testbed: &Testbed) {
    let namespaces = Api::<Namespace>::all(testbed.client());
    let theirs = json!({"metadata": {"name": "other"}});
    let create = PostParams::default();
    namespaces.create(&create, &serde_json::from_value(theirs).unwrap()).await.unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let configs = Api::<VsphereCloudConfig>::namespaced(testbed.client(), "other");
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
        eventually("its status names the right namespace", 60, async || {
            let status = configs.get(name).await.unwrap().status.unwrap_or_default();
            let ready = api::condition::get(&status.conditions, "Ready").cloned();
            let explained = ready
                .filter(|ready| ready.reason == "NotFollowed" && ready.message.contains(NAMESPACE));
            explained.map(drop).ok_or_else(|| format!("{status:?}"))
        })
        .await;
    }
    // VDO still applies a change while both exist.
    let change = json!({"spec": {"storageProvider": {"clusterDistribution": "next-to-others"}}});
    testbed.change(change).await;
    eventually("the driver has the change", 60, async || {
        let conf = testbed.secret(CSI, "vsphere-config-secret", "csi-vsphere.conf").await;
        if conf.contains("next-to-others") { Ok(()) } else { Err("not yet") }
    })
    .await;
    let connection = futures::FutureExt::now_or_never(listener.accept());
    assert!(connection.is_none(), "the operator connected: {connection:?}");
    assert_eq!(testbed.denied_requests(), Vec::<String>::new());
}

/// A tenant with all permissions on VDO's kinds in their own namespace. They create a vCenter that is their listener,
/// and VDOConfigs with their images.
struct Tenant {
    client: kube::Client,
    listener: tokio::net::TcpListener,
}

const TENANT: &str = "team-a";

impl Tenant {
    async fn new(testbed: &Testbed) -> Self {
        let create = PostParams::default();
        let admin = testbed.client();
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
        let client = testbed.plane.client_as(&User::named("tenant"));
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
        eventually("the tenant has permission to create objects", 30, async || {
            let vcenters = Api::<VsphereCloudConfig>::namespaced(tenant.client.clone(), TENANT);
            vcenters.create(&create, &vcenter).await.map(drop)
        })
        .await;
        // One VDOConfig has the name of the admin's.
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

    /// Waits until the status of the tenant's VDOConfig shows that VDO does not follow it; returns the finding.
    async fn is_not_followed(&self, name: &str) -> api::Finding {
        eventually("the status of the tenant's VDOConfig is NotFollowed", 60, async || {
            let status = self.configs().get(name).await.unwrap().status.unwrap_or_default();
            let ready = api::condition::get(&status.conditions, "Ready");
            let not_followed = ready.is_some_and(|ready| ready.reason == "NotFollowed");
            let finding = status.findings.iter().find(|finding| finding.code == "VDO-1009");
            finding.filter(|_| not_followed).cloned().ok_or_else(|| format!("{status:?}"))
        })
        .await
    }
}

#[tokio::test]
async fn a_tenant_gets_neither_the_password_nor_the_nodes_when_the_admin_recreates_his_config() {
    let (testbed, operator) = Testbed::with_storage(&[]).await;
    let tenant = Tenant::new(&testbed).await;
    for name in ["vdo-config", "another"] {
        let finding = tenant.is_not_followed(name).await;
        assert_eq!(finding.severity, api::Severity::Warning);
    }
    let identity = async || {
        let (controller, nodes) = (testbed.controller().await, testbed.node_driver().await);
        [controller.metadata, nodes.metadata].map(|metadata| (metadata.uid, metadata.generation))
    };
    let before = identity().await;
    // The tenant overwrites the status, and VDO does not fight about it.
    for round in 0..5 {
        let status = json!({"status": {"clusterId": format!("status-{round}")}});
        let patch = Patch::Merge(status);
        tenant.configs().patch_status("another", &PatchParams::default(), &patch).await.unwrap();
    }

    let configs = Api::<VDOConfig>::namespaced(testbed.client(), NAMESPACE);
    let spec = testbed.config().await.spec;
    configs.delete("vdo-config", &DeleteParams::default()).await.unwrap();
    // The operator has observed that the admin's VDOConfig is gone while the tenant's exist.
    testbed.event("DriversRetained", "keep running").await;
    assert_eq!(identity().await, before);
    let recreated = json!({"metadata": {"name": "vdo-config"}, "spec": spec});
    let recreated: VDOConfig = serde_json::from_value(recreated).unwrap();
    configs.create(&PostParams::default(), &recreated).await.unwrap();
    let config = testbed.ready(&operator, 90).await;
    let status = config.status.unwrap();
    assert!(api::condition::is_true(&status.conditions, api::condition::FOLLOWED), "{status:?}");

    let connection = futures::FutureExt::now_or_never(tenant.listener.accept());
    assert!(connection.is_none(), "the operator connected to the tenant's host: {connection:?}");
    let conf = testbed.secret(CSI, "vsphere-config-secret", "csi-vsphere.conf").await;
    assert!(!conf.contains(&tenant.address()), "the driver's configuration has the tenant's host");
    assert_eq!(identity().await, before, "the driver's workloads have changed");
    let pod = testbed.controller().await.spec.unwrap().template.spec.unwrap();
    let images: Vec<_> = pod.containers.into_iter().filter_map(|one| one.image).collect();
    assert!(!images.iter().any(|image| image.contains("evil")), "{images:?}");
    let theirs = |text: &str| text.contains(TENANT) || text.contains(&tenant.address());
    assert!(!status.findings.iter().any(|finding| theirs(&format!("{finding:?}"))), "{status:?}");
    assert!(!theirs(&testbed.metrics(&operator).await));
    let writes: Vec<String> = testbed.changes_of(NAMESPACE, "vdo");
    let writes: Vec<&String> = writes.iter().filter(|change| change.contains(TENANT)).collect();
    assert!(
        writes.len() <= 3 && writes.iter().all(|change| change.contains("/status?")),
        "{writes:#?}"
    );
    assert_eq!(testbed.denied_requests(), Vec::<String>::new());
}

#[tokio::test]
async fn a_forgotten_second_vdoconfig_takes_effect_only_when_an_admin_confirms_it() {
    let (testbed, operator) = Testbed::with_storage(&[]).await;
    let configs = Api::<VDOConfig>::namespaced(testbed.client(), NAMESPACE);
    let forgotten: VDOConfig = serde_json::from_value(json!({
        "metadata": {"name": "forgotten"},
        "spec": {"storageProvider": {"vsphereCloudConfig": "vc", "clusterDistribution": "forgotten"}},
    }))
    .unwrap();
    configs.create(&PostParams::default(), &forgotten).await.unwrap();
    let finding = testbed.finding_about("VDO-1001", 60, &["VDO follows vdo-config"]).await;
    let deletes = format!("kubectl delete vdoconfig --namespace {NAMESPACE} forgotten   ");
    assert!(finding.remedy[1].starts_with(&deletes), "{finding:#?}");

    let before = testbed.controller().await.metadata;
    configs.delete("vdo-config", &DeleteParams::default()).await.unwrap();
    let finding = eventually("VDO waits for a confirmation", 60, async || {
        assert!(operator.ended().is_none(), "{}", operator.tail());
        let status = configs.get("forgotten").await.unwrap().status.unwrap_or_default();
        let finding = status.findings.iter().find(|finding| finding.code == "VDO-1010").cloned();
        finding.ok_or_else(|| format!("{status:?}"))
    })
    .await;
    eventually("the metrics show the finding", 30, async || {
        let shown = testbed.metrics(&operator).await;
        if shown.contains("vdo_findings{code=\"VDO-1010\"") { Ok(()) } else { Err(shown) }
    })
    .await;
    let conf = async || testbed.secret(CSI, "vsphere-config-secret", "csi-vsphere.conf").await;
    assert!(!conf().await.contains("forgotten"));
    let after = testbed.controller().await.metadata;
    assert_eq!((after.uid, after.generation), (before.uid, before.generation));

    testbed.run(&finding.remedy[0]).await;
    eventually("the VDOConfig takes effect", 90, async || {
        if conf().await.contains("forgotten") { Ok(()) } else { Err(operator.tail()) }
    })
    .await;
    let uid = configs.get("forgotten").await.unwrap().metadata.uid.unwrap();
    let maps = Api::<ConfigMap>::namespaced(testbed.client(), NAMESPACE);
    let record = maps.get("vdo-followed").await.unwrap().data.unwrap();
    assert_eq!((record["name"].as_str(), record["uid"].as_str()), ("forgotten", uid.as_str()));
    assert_eq!(testbed.denied_requests(), Vec::<String>::new());
}

/// A mutating policy removes the digest by which VDO recognises its applied objects. VDO backs off instead of
/// applying them in a loop.
async fn a_policy_removes_the_digest(testbed: &Testbed) {
    let of_kind = |kind: &str, plural: &str| {
        let gvk = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
        let resource = ApiResource::from_gvk_with_plural(&gvk, plural);
        Api::<DynamicObject>::all_with(testbed.client(), &resource)
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
    let services = Api::<Service>::namespaced(testbed.client(), CSI);
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let tried = json!({
        "metadata": {"name": "tried", "annotations": {digest: "x"}}, "spec": {"ports": [{"port": 80}]},
    });
    let tried: Service = serde_json::from_value(tried).unwrap();
    eventually("the policy is in effect", 60, async || {
        let made = services.create(&dry_run, &tried).await.unwrap();
        let kept = made.metadata.annotations.is_some_and(|all| all.contains_key(digest));
        if kept { Err("not yet") } else { Ok(()) }
    })
    .await;
    let since = Timestamp::now();
    services.delete(CONTROLLER, &DeleteParams::default()).await.unwrap();
    testbed.finding_about("VDO-1909", 60, &["Service", "in a row", "admission policy"]).await;
    let mut writes = testbed.writes_since(since);
    writes.retain(|write| write.contains("/services/"));
    assert!((2..30).contains(&writes.len()), "{} times: {writes:#?}", writes.len());
    bindings.delete("plain", &DeleteParams::default()).await.unwrap();
    policies.delete("plain", &DeleteParams::default()).await.unwrap();
    eventually("the Service has the digest", 120, async || {
        let made = services.get(CONTROLLER).await.unwrap();
        let kept = made.metadata.annotations.is_some_and(|all| all.contains_key(digest));
        if kept { Ok(()) } else { Err("not yet") }
    })
    .await;
}
