//! The operator's permissions on a real control plane: their limits, the findings if one is missing, and how an admin
//! extends them.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::collections::{BTreeMap, BTreeSet};

use catalog::manifest::CPI_ACCOUNT;
use common::{NAMESPACE, Testbed};
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{ConfigMap, Secret},
    rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use operator::install::Allowed;
use plan::ObjectId;
use serde_json::{Value, json};
use testkit::{User, VcenterUser, eventually};

/// The Role that earlier releases of VDO wrote for upstream's cloud controller, and its binding.
const CREDENTIALS_ROLE: &str = catalog::manifest::CPI_CREDENTIALS_ROLE;

/// Applies the operator's roles as `vdoctl deploy` does.
async fn allow(testbed: &Testbed, allowed: &Allowed) {
    let apply = PatchParams::apply("vdoctl").force();
    let objects = operator::install::objects_for(allowed).into_iter();
    for object in objects.filter(|object| object.kind().contains("Role")) {
        let id = ObjectId::from_object(&object);
        let api = operator::act::api_of(&testbed.client(), &id).unwrap();
        api.patch(&id.name, &apply, &Patch::Apply(&object.0)).await.unwrap();
    }
}

fn assert_forbidden<T: std::fmt::Debug>(what: &str, answer: Result<T, kube::Error>) {
    let Err(kube::Error::Api(status)) = answer else {
        unreachable!("{what}: {answer:?}");
    };
    assert_eq!(status.code, 403, "{what}: {status:?}");
}

/// The first attempts of an attacker with the operator's token.
async fn a_stolen_token_is_limited(client: &Client) {
    let (create, apply) = (PostParams::default(), PatchParams::apply("thief").force());
    let labels = json!({"app": "thief"});
    let workload = |name: &str| {
        json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": {"name": name, "namespace": "kube-system"},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {
                    "containers": [{"name": "thief", "image": "thief"}],
                }},
            },
        })
    };
    let sets = Api::<DaemonSet>::namespaced(client.clone(), "kube-system");
    let set = |name: &str| serde_json::from_value::<DaemonSet>(workload(name)).unwrap();
    // A plain POST is forbidden even for a name that VDO can apply.
    assert_forbidden("POST of a known name", sets.create(&create, &set("vsphere-csi-node")).await);
    assert_forbidden("POST", sets.create(&create, &set("thief")).await);
    assert_forbidden("apply", sets.patch("thief", &apply, &Patch::Apply(workload("thief"))).await);
    let in_default = Api::<DaemonSet>::namespaced(client.clone(), "default");
    assert_forbidden(
        "in another namespace",
        in_default.create(&create, &set("vsphere-csi-node")).await,
    );

    let secrets = Api::<Secret>::namespaced(client.clone(), "default");
    assert_forbidden("a Secret in another namespace", secrets.get("any").await);
    let secrets = Api::<Secret>::namespaced(client.clone(), "kube-system");
    assert_forbidden("a bootstrap token", secrets.get("bootstrap-token-abcdef").await);
    assert_forbidden("all Secrets of kube-system", secrets.list(&ListParams::default()).await);
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": CREDENTIALS_ROLE, "namespace": "kube-system"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "Role",
            "name": plan::names::CPI_CREDENTIALS_ROLE,
        },
        "subjects": [{"kind": "ServiceAccount", "name": "vdo", "namespace": NAMESPACE}],
    });
    let bindings = Api::<RoleBinding>::namespaced(client.clone(), "kube-system");
    assert_forbidden(
        "the cloud controller's permission to read Secrets",
        bindings.patch(CREDENTIALS_ROLE, &apply, &Patch::Apply(role)).await,
    );

    let role = |rules: Value| {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": "vsphere-csi-node-cluster-role"}, "rules": rules,
        })
    };
    let roles = Api::<ClusterRole>::all(client.clone());
    let everything = role(json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]));
    let name = "vsphere-csi-node-cluster-role";
    assert_forbidden(
        "a role with every permission",
        roles.patch(name, &apply, &Patch::Apply(everything)).await,
    );
    let name = "vsphere-csi-node-cluster-role-binding";
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "vdo", "namespace": NAMESPACE}],
    });
    let bindings = Api::<ClusterRoleBinding>::all(client.clone());
    assert_forbidden("cluster-admin", bindings.patch(name, &apply, &Patch::Apply(binding)).await);
}

/// The embedded catalog; a cloud controller that reads Secrets in every namespace also supports this cluster.
fn catalog_with_old_cloud_controllers() -> String {
    let line = r#"kubernetes: { min: "1.31", max: "1.31", tolerates: "1.32" }"#;
    let text = catalog::EMBEDDED.replace(line, r#"kubernetes: { min: "1.31", max: "1.36" }"#);
    assert_ne!(text, catalog::EMBEDDED);
    text
}

/// VDO applies a release whose role has more permissions than the operator only after an admin extends the
/// operator's.
async fn a_release_that_grants_too_much_waits_for_an_admin(testbed: &Testbed) {
    let cloud = json!({"vsphereCloudConfigs": ["vc"], "version": "1.31.1"});
    testbed.change(json!({"spec": {"cloudProvider": cloud}})).await;
    let texts = ["secrets", "not currently held", "vdoctl deploy"];
    testbed.finding_about("VDO-1909", 120, &texts).await;
    let roles = Api::<ClusterRole>::all(testbed.client());
    let name = "system:cloud-controller-manager";
    assert!(roles.get_opt(name).await.unwrap().is_none_or(|role| role.rules.is_none()));
    allow(testbed, &Allowed { old_cloud_controllers: true, ..Allowed::default() }).await;
    let sets = Api::<DaemonSet>::namespaced(testbed.client(), "kube-system");
    eventually("the cloud controller is applied", 120, async || {
        sets.get("vsphere-cloud-controller-manager").await.map(drop)
    })
    .await;
}

/// A pull Secret with a name that only this cluster has.
async fn a_name_of_this_cluster_is_added(testbed: &Testbed) {
    let own = Api::<Secret>::namespaced(testbed.client(), NAMESPACE);
    let auths = json!({"auths": {"harbor.example.com": {"auth": "eDp5"}}}).to_string();
    let secret = json!({
        "metadata": {"name": "harbor"}, "type": "kubernetes.io/dockerconfigjson",
        "stringData": {".dockerconfigjson": auths},
    });
    let secret: Secret = serde_json::from_value(secret).unwrap();
    own.create(&PostParams::default(), &secret).await.unwrap();
    testbed.change(json!({"spec": {"images": {"pullSecrets": ["harbor"]}}})).await;
    testbed.finding_about("VDO-1909", 120, &["harbor", "vdoctl deploy"]).await;
    let names = operator::observe::names_in_use(&testbed.client(), NAMESPACE).await.unwrap();
    assert!(names["Secret"].contains("harbor"), "vdoctl deploy finds it: {names:?}");
    let names = BTreeMap::from([("Secret".to_owned(), names["Secret"].clone())]);
    let allowed = Allowed { names, old_cloud_controllers: true, ..Allowed::default() };
    allow(testbed, &allowed).await;
    for namespace in ["kube-system", "vmware-system-csi"] {
        let copies = Api::<Secret>::namespaced(testbed.client(), namespace);
        let what = format!("the copy is in {namespace}");
        eventually(&what, 120, async || copies.get("harbor").await.map(drop)).await;
    }
}

#[tokio::test]
async fn the_operator_uses_only_granted_permissions_and_reports_missing_ones() {
    let (testbed, operator) = Testbed::with_storage(&[]).await;
    assert_eq!(testbed.denied_requests(), Vec::<String>::new(), "the shipped RBAC is enough");
    let identity = User::service_account(NAMESPACE, "vdo");
    let stolen = testbed.plane.client_as(&identity);
    a_stolen_token_is_limited(&stolen).await;
    testbed.write_catalog(&catalog_with_old_cloud_controllers()).await;
    testbed.follow_catalog().await;
    a_release_that_grants_too_much_waits_for_an_admin(&testbed).await;
    a_name_of_this_cluster_is_added(&testbed).await;
    let deletions: BTreeSet<String> = testbed.forbidden_deletions().into_iter().collect();
    assert_eq!(deletions, BTreeSet::new(), "the operator must not use driver rules");
    testbed.stop(operator).await;
}

/// The objects that an earlier release wrote so that the cloud controller can list Secrets, also on record.
async fn written_by_an_earlier_release(testbed: &Testbed) {
    let labels = json!({
        plan::names::MANAGED_BY_LABEL: plan::names::MANAGED_BY, plan::names::PART_OF_LABEL: plan::names::PART_OF,
    });
    let metadata = json!({"name": CREDENTIALS_ROLE, "namespace": "kube-system", "labels": labels});
    let version = "rbac.authorization.k8s.io/v1";
    let role = json!({
        "apiVersion": version, "kind": "Role", "metadata": metadata,
        "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "watch"]}],
    });
    let binding = json!({
        "apiVersion": version, "kind": "RoleBinding", "metadata": metadata,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": CREDENTIALS_ROLE},
        "subjects": [{"kind": "ServiceAccount", "name": CPI_ACCOUNT, "namespace": "kube-system"}],
    });
    testbed.create(plan::names::FIELD_MANAGER, [role, binding]).await;
    let maps = Api::<ConfigMap>::namespaced(testbed.client(), NAMESPACE);
    let record = maps.get("vdo-record-cpi").await.unwrap().data.unwrap();
    let mut record: Value = serde_json::from_str(&record["record.json"]).unwrap();
    for kind in ["Role", "RoleBinding"] {
        let id = ObjectId {
            api_version: version.into(),
            kind: kind.into(),
            namespace: "kube-system".into(),
            name: CREDENTIALS_ROLE.into(),
        };
        record["objects"].as_array_mut().unwrap().push(serde_json::to_value(id).unwrap());
    }
    let patch = Patch::Merge(json!({"data": {"record.json": record.to_string()}}));
    maps.patch("vdo-record-cpi", &PatchParams::default(), &patch).await.unwrap();
}

/// An installation of an earlier release has its credentials in `kube-system`, and VDO granted the cloud controller
/// its permission to list Secrets. Both keep working when an admin upgrades with `vdoctl deploy`.
#[tokio::test]
async fn an_installation_with_credentials_in_kube_system_keeps_working_after_an_upgrade() {
    let testbed = Testbed::with_nodes(1).await;
    let operator = testbed.operator();
    let spec = json!({
        "cloudProvider": {"vsphereCloudConfigs": ["vc"], "implementation": "Upstream"},
        "storageProvider": {"vsphereCloudConfig": "vc"},
    });
    testbed.configure(spec).await;
    testbed.ready(&operator, 120).await;
    testbed.stop(operator).await;
    written_by_an_earlier_release(&testbed).await;
    let own = Api::<Secret>::namespaced(testbed.client(), NAMESPACE);
    let mut secret = own.get("vc-credentials").await.unwrap();
    own.delete("vc-credentials", &DeleteParams::default()).await.unwrap();
    secret.metadata =
        kube::api::ObjectMeta { name: Some("vc-credentials".into()), ..Default::default() };
    let theirs = Api::<Secret>::namespaced(testbed.client(), "kube-system");
    theirs.create(&PostParams::default(), &secret).await.unwrap();

    // The plain manifest does not name this Secret: the drivers keep running, and a finding shows the command.
    let operator = testbed.operator();
    let finding = testbed.finding("VDO-1003", 120).await;
    assert!(finding.remedy.iter().any(|step| step.contains("vdoctl deploy")), "{finding:?}");
    assert_eq!(testbed.deletions(), Vec::<String>::new());
    let credentials =
        operator::observe::credentials_in_kube_system(&testbed.client(), NAMESPACE).await.unwrap();
    assert_eq!(
        credentials,
        BTreeSet::from(["vc-credentials".to_owned()]),
        "vdoctl deploy finds it"
    );
    allow(&testbed, &Allowed { credentials, ..Allowed::default() }).await;
    testbed.ready(&operator, 120).await;

    let roles = Api::<Role>::namespaced(testbed.client(), "kube-system");
    eventually("VDO prunes the Role of the earlier release", 120, async || {
        let there = roles.get_opt(CREDENTIALS_ROLE).await.unwrap().is_some();
        if there { Err("it is still there".to_owned()) } else { Ok(()) }
    })
    .await;
    let cloud_controller = User::service_account("kube-system", CPI_ACCOUNT);
    let seen = Api::<Secret>::namespaced(testbed.plane.client_as(&cloud_controller), "kube-system");
    seen.list(&ListParams::default()).await.expect("the cloud controller lists Secrets");

    // A new password in `kube-system` reaches the drivers.
    testbed.vcenter.set_user(&VcenterUser::new(testbed.vcenter.user(), "rotated-1")).await;
    let patch = Patch::Merge(json!({"stringData": {"password": "rotated-1"}}));
    theirs.patch("vc-credentials", &PatchParams::default(), &patch).await.unwrap();
    eventually("the storage driver has the new password", 60, async || {
        let conf = testbed.secret("vmware-system-csi", "vsphere-config-secret", "csi-vsphere.conf");
        if conf.await.contains("rotated-1") { Ok(()) } else { Err(operator.tail()) }
    })
    .await;

    // A Secret in the operator's namespace comes first.
    testbed.vcenter.set_user(&VcenterUser::new(testbed.vcenter.user(), "rotated-2")).await;
    testbed.write_secret("rotated-2").await;
    eventually("VDO reads the Secret in its own namespace", 60, async || {
        let conf = testbed.secret("vmware-system-csi", "vsphere-config-secret", "csi-vsphere.conf");
        if conf.await.contains("rotated-2") { Ok(()) } else { Err(operator.tail()) }
    })
    .await;
    assert_eq!(testbed.denied_requests(), Vec::<String>::new());
    testbed.stop(operator).await;
}
