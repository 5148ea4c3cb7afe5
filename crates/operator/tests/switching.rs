//! Clusters in which somebody else installed the drivers, with volumes attached: the Go VDO,
//! upstream's manifests, charts. Nothing is deleted or made anew, names and identity stay.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::time::Duration;

use api::vdo_config::PlanState;
use common::{NAMESPACE, Stage, upstream_cpi, upstream_csi};
use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, Deployment},
        core::v1::{Event, PersistentVolume},
        rbac::v1::Role,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceValidation,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
};
use serde_json::{Value, json};
use testkit::{Process, User, eventually};
use vsphere::{
    Client, Credentials, Trust,
    cns::{BackingDetails, ContainerCluster, CreateSpec, EntityMetadata, VolumeId, VolumeMetadata},
};

const CSI: &str = "vmware-system-csi";
/// The account of the Go VDO.
const GO_VDO: &str = "vdo-controller-manager";

fn storage_secret(home: &str, conf: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "vsphere-config-secret", "namespace": home},
        "stringData": {"csi-vsphere.conf": conf},
    })
}

/// A manifest with the storage driver of another release.
fn of_release(documents: Vec<Value>, from: &str, to: &str) -> Vec<Value> {
    let texts = documents.into_iter().map(|document| document.to_string().replace(from, to));
    texts.map(|text| serde_json::from_str(&text).unwrap()).collect()
}

/// What the Go VDO leaves in `kube-system` and in the storage driver's namespace. All of it is
/// created, not applied, under the name of its program.
async fn go_vdo_objects(stage: &Stage, host: &str) {
    let manager = "manager";
    // The manifest's own settings are placeholders, which the Go VDO does not fill in.
    stage.create(manager, of_release(upstream_cpi(), "v1.36.0", "v1.26.0")).await;
    let (user, password) = (stage.vcenter.user(), stage.vcenter.password());
    let conf = format!(
        "vcenter:\n    {host}:\n        server: {host}\n        datacenters:\n            - DC0\n        \
         secretName: cpi-global-secret\n        secretNamespace: kube-system\n        port: 443\n        \
         insecureFlag: true\n"
    );
    let storage = format!(
        "[Global]\ncluster-id = \"{host}\"\n\n[VirtualCenter \"{host}\"]\ninsecure-flag = \"true\"\n\
         user = \"{user}\"\npassword = \"{password}\"\ndatacenters = \"DC0\"\n"
    );
    let settings = [
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "cpi-global-secret", "namespace": "kube-system"},
            "stringData": {format!("{host}.username"): user, format!("{host}.password"): password},
        }),
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "cloud-config", "namespace": "kube-system"},
            "data": {"vsphere.conf": conf},
        }),
        storage_secret(CSI, &storage),
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "compat-matrix-config", "namespace": NAMESPACE},
            "data": {"versionConfigURL": "https://example.com/compatibility.yaml", "auto-upgrade": "disabled"},
        }),
    ];
    stage.create(manager, settings).await;
    // What its newest matrix calls 3.0.0 is a candidate of a release that never came.
    stage.create(manager, of_release(upstream_csi(), "v3.7.0", "v3.0.4-rc.1")).await;
}

/// The objects its users write, and the status it wrote into them.
async fn go_vdo_wishes(stage: &Stage) {
    let kind = |kind: &str| {
        let gvk = GroupVersionKind::gvk("vdo.vmware.com", "v1alpha1", kind);
        let resource = kube::api::ApiResource::from_gvk(&gvk);
        Api::<DynamicObject>::namespaced_with(stage.client(), NAMESPACE, &resource)
    };
    let apply = PatchParams::apply("vdoctl").force();
    for purpose in ["cpi", "csi"] {
        let name = format!("10.10.10.10-creds-{purpose}");
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/basic-auth",
            "metadata": {"name": name, "namespace": "kube-system"},
            "stringData": {"username": stage.vcenter.user(), "password": stage.vcenter.password()},
        });
        stage.create("vdoctl", [secret]).await;
        let vcenter = json!({
            "apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VsphereCloudConfig",
            "metadata": {"name": format!("10.10.10.10-{purpose}"), "namespace": NAMESPACE},
            "spec": {
                "vcIp": stage.vcenter.address().to_string(), "insecure": true,
                "credentials": name, "datacenters": ["DC0"],
            },
        });
        let vcenters = kind("VsphereCloudConfig");
        let name = format!("10.10.10.10-{purpose}");
        vcenters.patch(&name, &apply, &Patch::Apply(&vcenter)).await.unwrap();
        let status = json!({"status": {"config": "verified"}});
        let by = PatchParams { field_manager: Some("manager".into()), ..Default::default() };
        vcenters.patch_status(&name, &by, &Patch::Merge(&status)).await.unwrap();
    }
    let config = json!({
        "apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VDOConfig",
        "metadata": {"name": "vdo-config", "namespace": NAMESPACE},
        "spec": {
            "cloudProvider": {"vsphereCloudConfigs": ["10.10.10.10-cpi"]},
            "storageProvider": {
                "vsphereCloudConfig": "10.10.10.10-csi", "clusterDistribution": "OpenShift",
            },
        },
    });
    let configs = kind("VDOConfig");
    configs.patch("vdo-config", &apply, &Patch::Apply(&config)).await.unwrap();
    let status = json!({"status": {
        "cpi": {"phase": "Configured", "nodeStatus ": {"node-1": "ready", "node-2": "ready"}},
        "csi": {"phase": "Deployed"},
    }});
    let by = PatchParams { field_manager: Some("manager".into()), ..Default::default() };
    configs.patch_status("vdo-config", &by, &Patch::Merge(&status)).await.unwrap();
}

/// A volume under an identity, for the claim `shop/orders`.
async fn volume_under(stage: &Stage, id: &str) -> (Client, VolumeId) {
    let client = Client::builder(stage.vcenter.address().to_string())
        .trust(Trust::CaBundle(stage.vcenter.ca_pem()))
        .credentials(Credentials::new(stage.vcenter.user(), stage.vcenter.password()))
        .connect()
        .await
        .unwrap();
    let cluster = ContainerCluster {
        kind: "KUBERNETES".into(),
        id: id.into(),
        user: stage.vcenter.user().into(),
        flavor: Some("VANILLA".into()),
        distribution: None,
        delete: None,
    };
    let claim = EntityMetadata {
        name: "orders".into(),
        labels: Vec::new(),
        delete: None,
        cluster: Some(id.into()),
        kind: Some("PERSISTENT_VOLUME_CLAIM".into()),
        namespace: Some("shop".into()),
        refers: Vec::new(),
    };
    let spec = CreateSpec {
        name: "pvc-orders".into(),
        id: None,
        datastores: Vec::new(),
        metadata: VolumeMetadata {
            cluster: Some(cluster),
            entities: vec![claim],
            clusters: Vec::new(),
        },
        backing: BackingDetails::block(1024),
        policy: None,
        permissions: Vec::new(),
        source: None,
    };
    let made = client.create_volumes(vec![spec]).await.unwrap();
    let made = made.wait(Duration::from_mins(1)).await.unwrap();
    let volume = made[0].volume.clone().unwrap();
    (client, volume)
}

/// The Deployment of the Go VDO itself. Its image cannot be had, and nobody here runs it.
fn go_vdo_itself() -> Value {
    let labels = json!({"control-plane": "controller-manager"});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "vdo-controller-manager", "namespace": NAMESPACE},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "manager", "image": "vmware.com/vdo:0.2.0"}]},
            },
        },
    })
}

/// The definition of its VDOConfig, and the account and rights it runs under.
async fn go_vdo_surroundings(stage: &Stage) {
    let driver = json!({"type": "object", "properties": {
        "phase": {"type": "string"},
        "statusMsg": {"type": "string"},
        "nodeStatus ": {"type": "object", "additionalProperties": {"type": "string"}},
    }});
    let anything = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {
        "spec": anything,
        "status": {"type": "object", "properties": {"cpi": driver, "csi": driver}},
    }}});
    let schema: CustomResourceValidation = serde_json::from_value(schema).unwrap();
    stage
        .redefine("vdoconfigs.vdo.vmware.com", |definition| {
            definition.spec.versions[0].schema = Some(schema.clone());
            definition.spec.versions[0].additional_printer_columns = None;
        })
        .await;
    let rule = |groups: &[&str], resources: &[&str], verbs: &[&str]| json!({"apiGroups": groups, "resources": resources, "verbs": verbs});
    let all = ["create", "delete", "get", "list", "patch", "update", "watch"];
    let rbac = "rbac.authorization.k8s.io";
    let account = json!([{"kind": "ServiceAccount", "name": GO_VDO, "namespace": NAMESPACE}]);
    let named = |name: &str| json!({"name": name});
    let beside = |name: &str| json!({"name": name, "namespace": NAMESPACE});
    let of_role = |kind: &str, name: &str| json!({"apiGroup": rbac, "kind": kind, "name": name});
    let rules = json!([
        rule(
            &[""],
            &["configmaps", "secrets", "serviceaccounts", "services", "nodes", "pods"],
            &all
        ),
        rule(&["apps"], &["deployments", "daemonsets"], &all),
        rule(&["*"], &["namespaces"], &all),
        rule(&["storage.k8s.io"], &["csidrivers", "csinodes"], &all),
        rule(&["admissionregistration.k8s.io"], &["validatingwebhookconfigurations"], &all),
        rule(&[rbac], &["roles", "rolebindings", "clusterroles", "clusterrolebindings"], &["*"]),
        rule(
            &["vdo.vmware.com"],
            &["vdoconfigs", "vspherecloudconfigs", "compatibilityconfigs"],
            &all
        ),
        rule(
            &["vdo.vmware.com"],
            &["vdoconfigs/status", "vspherecloudconfigs/status"],
            &["get", "patch", "update"]
        ),
    ]);
    let election = json!([
        rule(&["", "coordination.k8s.io"], &["configmaps", "leases"], &all),
        rule(&[""], &["events"], &["create", "patch"]),
    ]);
    let version = "rbac.authorization.k8s.io/v1";
    let made = [
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": beside(GO_VDO)}),
        json!({"apiVersion": version, "kind": "ClusterRole", "metadata": named("vdo-manager-role"), "rules": rules}),
        json!({
            "apiVersion": version, "kind": "ClusterRoleBinding", "metadata": named("vdo-manager-rolebinding"),
            "roleRef": of_role("ClusterRole", "vdo-manager-role"), "subjects": account,
        }),
        json!({"apiVersion": version, "kind": "Role", "metadata": beside("vdo-leader-election-role"), "rules": election}),
        json!({
            "apiVersion": version, "kind": "RoleBinding", "metadata": beside("vdo-leader-election-rolebinding"),
            "roleRef": of_role("Role", "vdo-leader-election-role"), "subjects": account,
        }),
    ];
    stage.create("kubectl", made).await;
}

/// Our program in the Go VDO's place: its account, its rights, its definitions, its arguments. It says
/// what is missing, and changes nothing.
async fn only_the_image_is_changed(stage: &Stage) -> Process {
    let identity = User::service_account(NAMESPACE, GO_VDO);
    let arguments = [
        format!("--kubeconfig={}", stage.plane.kubeconfig_as(&identity).display()),
        "--health-probe-bind-address=127.0.0.1:0".into(),
        "--metrics-bind-address=127.0.0.1:0".into(),
        "--leader-elect".into(),
        "-v=4".into(),
    ];
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_vdo"));
    let variables = [("VDO_NAMESPACE", NAMESPACE), ("AUTO_UPGRADE", "disabled")];
    let swapped =
        Process::spawn(program, "swapped", arguments, &variables, &stage.workdir).unwrap();
    let words = ["VDO-1912", "install.yaml", "may not list"];
    let status = stage
        .status("it is said which rights are missing", 60, |status| {
            assert!(swapped.ended().is_none(), "{}", swapped.tail());
            let csi = status.csi.clone().unwrap_or_default();
            csi.status_msg.is_some_and(|text| words.iter().all(|word| text.contains(word)))
        })
        .await;
    let csi = status.csi.unwrap();
    assert_eq!(csi.phase, Some(api::vdo_config::Phase::Deployed), "what runs is not called broken");
    let events = Api::<Event>::namespaced(stage.client(), NAMESPACE);
    eventually("there is an event", 30, async || {
        let all = events.list(&ListParams::default()).await.unwrap();
        let told = all.iter().any(|event| event.reason.as_deref() == Some("RightsMissing"));
        if told { Ok(()) } else { Err(format!("{} others", all.items.len())) }
    })
    .await;
    swapped
}

#[tokio::test]
async fn a_cluster_of_the_go_vdo_is_taken_over_as_it_is_and_upgraded() {
    let stage = Stage::of(1, false).await;
    let host = stage.vcenter.address().ip().to_string();
    go_vdo_surroundings(&stage).await;
    go_vdo_objects(&stage, &host).await;
    go_vdo_wishes(&stage).await;
    stage.create("kubectl", [go_vdo_itself()]).await;
    let swapped = only_the_image_is_changed(&stage).await;
    // What it asks for: the manifest of this release.
    stage.install().await;
    let (vsphere, theirs) = volume_under(&stage, &host).await;
    for number in 0..20 {
        stage.attach(&format!("pv-{number}"), "node-1").await;
    }
    let parts = [
        ("DaemonSet", "kube-system", "vsphere-cloud-controller-manager"),
        ("Deployment", CSI, "vsphere-csi-controller"),
        ("DaemonSet", CSI, "vsphere-csi-node"),
    ];
    let mut before = Vec::new();
    for (kind, home, name) in parts {
        before.push(stage.uid(kind, home, name).await);
    }

    // Something VDO may repair.
    let machine = "/DC0/vm/node-2";
    stage.vcenter.patch_vm(machine, json!({"diskUuid": false})).await;
    stage.change(json!({"spec": {"remediation": {"diskUuid": "Fix"}}})).await;
    let operator = stage.operator();
    let finding = stage.finding("VDO-1908", 30).await;
    assert!(finding.remedy[0].contains("delete deployment"), "{finding:?}");
    // Another cluster has the same id.
    stage.finding_about("VDO-1512", 60, &["shop/orders"]).await;
    stage
        .status("a repair is due", 60, |status| {
            let repairs = status.health.iter().flat_map(|health| &health.repairs);
            repairs.into_iter().any(|repair| repair.code == "VDO-1203" && repair.automatic)
        })
        .await;
    stage.check_now("beside-the-go-vdo").await;
    assert_eq!(stage.writes(), Vec::<String>::new(), "two operators never write in turn");
    let gone = vsphere.delete_volumes(&[theirs], true).await.unwrap();
    gone.wait(Duration::from_mins(1)).await.unwrap();
    let deployments = Api::<Deployment>::namespaced(stage.client(), NAMESPACE);
    deployments.delete("vdo-controller-manager", &DeleteParams::background()).await.unwrap();

    stage.event("Repaired", "VDO-1203").await;
    for power in ["off", "on"] {
        stage.vcenter.patch_vm(machine, json!({"power": power})).await;
    }
    let status = stage
        .status("both drivers are ours, up to date and ready", 240, |status| {
            let ready = |kind| api::condition::is_true(&status.conditions, kind);
            let csi = status.csi.clone().unwrap_or_default();
            let new = csi.version.as_deref().is_some_and(|version| !version.starts_with("3.0"));
            assert!(operator.ended().is_none(), "{}", operator.tail());
            let drivers = ready("CloudProviderReady") && ready("StorageReady");
            ready("Ready") && drivers && new && csi.target.is_none()
        })
        .await;
    assert_eq!(status.cluster_id.as_deref(), Some(host.as_str()), "volumes are known by it");
    let codes: Vec<&str> = status.findings.iter().map(|finding| finding.code.as_str()).collect();
    assert!(codes.contains(&"VDO-1907"), "its danger is said: {codes:?}");
    let doubled = ["VDO-1202", "VDO-1211", "VDO-1314"];
    let doubled = doubled.iter().any(|code| codes.contains(code));
    assert!(!doubled, "one vCenter by two names is one vCenter: {codes:?}");
    assert!(codes.contains(&"VDO-1101"), "an unsigned address is not followed: {codes:?}");
    assert_eq!(status.cpi.unwrap().version.as_deref(), Some("1.36.0"));
    let version = status.csi.unwrap().version.unwrap();
    assert!(version.starts_with("3.7") || version.starts_with("3.8"), "{version}");
    let mut after = Vec::new();
    for (kind, home, name) in parts {
        after.push(stage.uid(kind, home, name).await);
    }
    assert_eq!(after, before, "nothing is made anew");
    assert_eq!(stage.deletions(), Vec::<String>::new(), "nothing is deleted");

    // What the old release had and the new one has not is gone from the objects.
    let controller = stage.controller().await;
    let text = serde_json::to_string(&controller.spec).unwrap();
    assert!(!text.contains("X_CSI_SERIAL_VOL_ACCESS_TIMEOUT"), "{text}");
    let conf = stage.secret(CSI, "vsphere-config-secret", "csi-vsphere.conf").await;
    assert!(conf.contains(&format!("cluster-id = \"{host}\"")), "{conf}");
    let maps =
        Api::<k8s_openapi::api::core::v1::ConfigMap>::namespaced(stage.client(), "kube-system");
    let map = maps.get("vsphere-cloud-config").await.unwrap().data.unwrap();
    assert!(map["vsphere.conf"].contains(&host), "no placeholder any more: {map:?}");
    assert_eq!(stage.refusals(), Vec::<String>::new());
    assert!(swapped.ended().is_none(), "{}", swapped.tail());
    assert_eq!(stage.writes_of(GO_VDO), Vec::<String>::new(), "with its rights nothing is changed");
}

/// Upstream's chart of the cloud controller, as Helm renders it.
fn chart_cpi() -> [Value; 2] {
    let labels = json!({"app": "vsphere-cpi"});
    let helm = json!({"meta.helm.sh/release-name": "cpi", "meta.helm.sh/release-namespace": "kube-system"});
    let conf = "global:\n  port: 443\n  insecureFlag: true\nvcenter:\n  vc.example.com:\n    \
                server: vc.example.com\n    datacenters:\n      - DC0\nlabels:\n  region: k8s-region\n  zone: k8s-zone\n";
    [
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "vsphere-cloud-config", "namespace": "kube-system", "annotations": helm},
            "data": {"vsphere.conf": conf},
        }),
        json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": {"name": "vsphere-cpi", "namespace": "kube-system", "annotations": helm},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "tolerations": [{"operator": "Exists"}],
                        "containers": [{
                            "name": "vsphere-cpi",
                            "image": "registry.k8s.io/cloud-pv-vsphere/cloud-provider-vsphere:v1.36.0",
                            "args": ["--cloud-provider=vsphere", "--v=2", "--cloud-config=/etc/cloud/vsphere.conf"],
                            "volumeMounts": [{"mountPath": "/etc/cloud", "name": "vsphere-config-volume", "readOnly": true}],
                        }],
                        "volumes": [{"name": "vsphere-config-volume", "configMap": {"name": "vsphere-cloud-config"}}],
                    },
                },
            },
        }),
    ]
}

#[tokio::test]
async fn drivers_of_charts_are_adopted_under_their_names_when_asked_and_upgraded() {
    let stage = Stage::of(1, false).await;
    let _configs = stage.use_catalog().await;
    stage.create("helm", chart_cpi()).await;
    // As Rancher's chart does it: everything in kube-system, its own build of the driver.
    let rancher = of_release(upstream_csi(), CSI, "kube-system");
    let rancher = of_release(
        rancher,
        "registry.k8s.io/csi-vsphere/driver:v3.7.0",
        "rancher/mirrored-cloud-provider-vsphere-csi-release-driver:v3.6.3-rancher1",
    );
    stage.create("helm", rancher.into_iter().filter(|object| object["kind"] != "Namespace")).await;
    let conf = "[Global]\ncluster-id = \"prod-7\"\n[VirtualCenter \"vc.example.com\"]\n\
                insecure-flag = \"true\"\nuser = \"them@vsphere.local\"\npassword = \"theirs\"\n";
    stage.create("helm", [storage_secret("kube-system", conf)]).await;
    stage.attach("pv-1", "node-1").await;
    let parts = [
        ("DaemonSet", "vsphere-cpi"),
        ("Deployment", "vsphere-csi-controller"),
        ("DaemonSet", "vsphere-csi-node"),
    ];
    let mut before = Vec::new();
    for (kind, name) in parts {
        before.push(stage.uid(kind, "kube-system", name).await);
    }

    let operator = stage.operator();
    stage
        .configure(json!({
            "cloudProvider": {"vsphereCloudConfigs": ["vc"]},
            "storageProvider": {"vsphereCloudConfig": "vc"},
        }))
        .await;
    let told = [
        "it is CPI 1.36.0",
        "it is CSI 3.6.3",
        "leaves the Helm release cpi",
        "the container vsphere-cpi goes",
        "them@vsphere.local",
        "insecure-flag",
    ];
    let status = stage
        .status("it says what adoption would change", 40, |status| {
            let plan = serde_json::to_string(&status.plan).unwrap();
            told.iter().all(|text| plan.contains(text))
        })
        .await;
    assert!(!serde_json::to_string(&status).unwrap().contains("theirs"), "no password");
    assert_eq!(stage.writes(), Vec::<String>::new(), "adoption is proposed, and waits");

    stage.change(json!({"spec": {"adoption": "Automatic"}})).await;
    let status = stage.ready(&operator, 120).await.status.unwrap();
    assert_eq!(status.cluster_id.as_deref(), Some("prod-7"));
    assert_eq!(status.csi.unwrap().version.as_deref(), Some("3.7.3"), "brought up to date");
    let mut after = Vec::new();
    for (kind, name) in parts {
        after.push(stage.uid(kind, "kube-system", name).await);
    }
    assert_eq!(after, before, "nothing is made anew");
    let sets = Api::<DaemonSet>::namespaced(stage.client(), "kube-system");
    let names: Vec<String> = sets
        .list(&ListParams::default())
        .await
        .unwrap()
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    assert!(!names.contains(&"vsphere-cloud-controller-manager".into()), "not doubled: {names:?}");
    let cpi = sets.get("vsphere-cpi").await.unwrap().spec.unwrap().template.spec.unwrap();
    assert_eq!(cpi.containers.len(), 1, "the chart's container made room: {cpi:?}");
    let elsewhere = Api::<Deployment>::namespaced(stage.client(), CSI);
    assert_eq!(elsewhere.list(&ListParams::default()).await.unwrap().items.len(), 0);
    let conf = stage.secret("kube-system", "vsphere-config-secret", "csi-vsphere.conf").await;
    assert!(conf.contains("prod-7") && !conf.contains("theirs"), "{conf}");
    assert_eq!(stage.deletions(), Vec::<String>::new(), "nothing is deleted");
    assert_eq!(stage.refusals(), Vec::<String>::new());
}

#[tokio::test]
async fn drivers_installed_from_upstreams_manifests_are_adopted_with_their_volumes_and_upgraded() {
    let stage = Stage::of(1, false).await;
    let _configs = stage.use_catalog().await;
    stage.create("kubectl-create", upstream_csi()).await;
    stage.create("kubectl-create", of_release(upstream_cpi(), "v1.36.0", "v1.35.0")).await;
    let cloud =
        async || stage.uid("DaemonSet", "kube-system", "vsphere-cloud-controller-manager").await;
    let cloud_before = cloud().await;
    let conf = "[Global]\ncluster-id = \"10.10.10.10\"\n[VirtualCenter \"10.10.10.10\"]\n\
                user = \"k8s@vsphere.local\"\npassword = \"theirs\"\n";
    stage.create("kubectl-create", [storage_secret(CSI, conf)]).await;
    stage.attach("pv-1", "node-1").await;
    let (controller, node) = (stage.controller().await.uid(), stage.node_driver().await.uid());

    let operator = stage.operator();
    stage
        .configure(json!({
            "cloudProvider": {"vsphereCloudConfigs": ["vc"]},
            "storageProvider": {"vsphereCloudConfig": "vc"},
        }))
        .await;
    stage.finding("VDO-1902", 30).await;
    stage
        .status("it says what adoption means", 20, |status| {
            let plan = serde_json::to_string(&status.plan).unwrap();
            plan.contains("it is CSI 3.7.0") && plan.contains("it is CPI 1.35.0")
        })
        .await;
    stage.check_now("before adoption").await;
    assert_eq!(stage.writes(), Vec::<String>::new(), "adoption is proposed, and waits");

    stage.change(json!({"spec": {"adoption": "Automatic"}})).await;
    let config = stage.ready(&operator, 90).await;
    let status = config.status.unwrap();
    assert_eq!(status.cluster_id.as_deref(), Some("10.10.10.10"), "volumes are known by it");
    let versions = [status.cpi, status.csi].map(|driver| driver.unwrap().version.unwrap());
    assert_eq!(versions, ["1.36.0", "3.7.3"], "and they are brought up to date");
    assert_eq!(cloud().await, cloud_before, "nothing is made anew");
    let conf = stage.secret("vmware-system-csi", "vsphere-config-secret", "csi-vsphere.conf").await;
    assert!(conf.contains("10.10.10.10") && !conf.contains("theirs"), "{conf}");
    assert_eq!(stage.controller().await.uid(), controller, "nothing is made anew");
    assert_eq!(stage.node_driver().await.uid(), node);
    assert_eq!(stage.deletions(), Vec::<String>::new());
    assert_eq!(stage.refusals(), Vec::<String>::new());
}

#[tokio::test]
async fn a_driver_in_a_namespace_of_its_own_is_adopted_where_it_is_once_vdo_is_let() {
    let stage = Stage::of(1, false).await;
    let there = |text: String| text.replace(CSI, "storage");
    let documents = upstream_csi().into_iter().map(|document| there(document.to_string()));
    let documents = documents.map(|text| serde_json::from_str(&text).unwrap());
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "storage"}});
    stage.create("kubectl-create", [namespace]).await;
    stage.create("helm", documents).await;
    let conf = "[Global]\ncluster-id = \"prod-7\"\n[VirtualCenter \"10.10.10.10\"]\n\
                user = \"k8s@vsphere.local\"\npassword = \"theirs\"\n";
    stage.create("helm", [storage_secret("storage", conf)]).await;
    let parts = [("Deployment", "vsphere-csi-controller"), ("DaemonSet", "vsphere-csi-node")];
    let uids = async || {
        let mut uids = Vec::new();
        for (kind, name) in parts {
            uids.push(stage.uid(kind, "storage", name).await);
        }
        uids
    };
    let before = uids().await;
    let operator = stage.operator();
    let wish = json!({"adoption": "Automatic", "storageProvider": {"vsphereCloudConfig": "vc"}});
    stage.configure(wish).await;
    stage
        .status("it says how to let VDO", 30, |status| {
            let plan = serde_json::to_string(&status.plan).unwrap();
            plan.contains("vdoctl deploy --driver-namespace storage")
        })
        .await;
    assert_eq!(stage.writes(), Vec::<String>::new());
    stage.dismiss(operator).await;

    let more = std::collections::BTreeSet::from(["storage".to_owned()]);
    let rights = operator::install::objects_with(&more).into_iter();
    let rights = rights.filter(|object| object.namespace() == "storage").map(|object| object.0);
    stage.create("vdoctl", rights).await;
    let operator = stage.operator_with(&["--driver-namespace=storage"]);
    let status = stage.ready(&operator, 90).await.status.unwrap();
    assert_eq!(status.cluster_id.as_deref(), Some("prod-7"), "volumes are known by it");
    assert_eq!(status.csi.unwrap().version.as_deref(), Some("3.8.0"), "it is brought up to date");
    stage.dismiss(operator).await;

    // Somebody applied the plain manifest: the driver stays where it is, and is cared for there, as soon
    // as VDO has its rights again.
    let roles = Api::<Role>::namespaced(stage.client(), "storage");
    let role = roles.get("vdo").await.unwrap();
    roles.delete("vdo", &DeleteParams::default()).await.unwrap();
    let operator = stage.operator();
    stage
        .status("it says which rights are missing, and how to give them back", 60, |status| {
            let said = status.csi.as_ref().and_then(|csi| csi.status_msg.as_deref());
            said.is_some_and(|said| said.contains("VDO-1912") && said.contains("run vdoctl deploy"))
        })
        .await;
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "vdo", "namespace": "storage"}, "rules": role.rules});
    stage.create("vdoctl", [role]).await;
    let sets = Api::<DaemonSet>::namespaced(stage.client(), "storage");
    let meddled = json!({"spec": {"template": {"spec": {"hostNetwork": false}}}});
    let by = PatchParams::default();
    sets.patch("vsphere-csi-node", &by, &Patch::Merge(meddled)).await.unwrap();
    eventually("what a human changed is put right", 60, async || {
        let set = sets.get("vsphere-csi-node").await.map_err(|e| e.to_string())?;
        let network = set.spec.unwrap().template.spec.unwrap().host_network;
        (network == Some(true)).then_some(()).ok_or(format!("{network:?}"))
    })
    .await;
    stage.ready(&operator, 90).await;
    assert_eq!(uids().await, before, "nothing is made anew");
    let elsewhere = Api::<Deployment>::namespaced(stage.client(), CSI);
    assert_eq!(elsewhere.list(&ListParams::default()).await.unwrap().items.len(), 0);
    assert_eq!(stage.deletions(), Vec::<String>::new());
    assert_eq!(stage.refusals(), Vec::<String>::new());
}

#[tokio::test]
async fn volumes_whose_driver_was_taken_away_are_those_of_the_driver_that_comes() {
    let stage = Stage::of(1, false).await;
    let (_vsphere, volume) = volume_under(&stage, "prod-7").await;
    let volumes = Api::<PersistentVolume>::all(stage.client());
    let create = PostParams::default();
    volumes.create(&create, &persistent("pvc-orders", &volume)).await.unwrap();
    let operator = stage.operator();
    stage.configure(json!({"storageProvider": {"vsphereCloudConfig": "vc"}})).await;
    let status = stage.ready(&operator, 90).await.status.unwrap();
    assert_eq!(status.cluster_id.as_deref(), Some("prod-7"), "the volume is known by it");
    let conf = stage.secret(CSI, "vsphere-config-secret", "csi-vsphere.conf").await;
    assert!(conf.contains("cluster-id = \"prod-7\""), "{conf}");
    assert_eq!(stage.refusals(), Vec::<String>::new());
}

#[tokio::test]
async fn volumes_under_two_cluster_ids_wait_for_somebody_to_say_which_is_right() {
    let stage = Stage::of(1, false).await;
    let volumes = Api::<PersistentVolume>::all(stage.client());
    for (name, id) in [("pvc-orders", "prod-7"), ("pvc-bills", "10.10.10.10")] {
        let (_vsphere, volume) = volume_under(&stage, id).await;
        volumes.create(&PostParams::default(), &persistent(name, &volume)).await.unwrap();
    }
    let _operator = stage.operator();
    stage.configure(json!({"storageProvider": {"vsphereCloudConfig": "vc"}})).await;
    let finding = stage.finding("VDO-1913", 60).await;
    assert!(finding.seen.as_deref().unwrap().contains("10.10.10.10 and prod-7"), "{finding:?}");
    assert_eq!(stage.writes(), Vec::<String>::new(), "no driver comes under a guessed id");

    // As the remedy says.
    let said = "[Global]\ncluster-id = prod-7\n";
    stage.create("kubectl-create", [storage_secret(CSI, said)]).await;
    stage
        .status("the driver runs under the id that was said", 90, |status| {
            let done = status.plan.as_ref().and_then(|plan| plan.state) == Some(PlanState::Done);
            done && status.cluster_id.as_deref() == Some("prod-7")
        })
        .await;
    stage.finding_about("VDO-1515", 60, &["pvc-bills"]).await;
    let conf = stage.secret(CSI, "vsphere-config-secret", "csi-vsphere.conf").await;
    assert!(conf.contains("cluster-id = \"prod-7\"") && conf.contains("VirtualCenter"), "{conf}");
    assert_eq!(stage.refusals(), Vec::<String>::new());
}

/// A PersistentVolume of the claim shop/orders.
fn persistent(name: &str, volume: &VolumeId) -> PersistentVolume {
    let volume = json!({
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": "csi.vsphere.vmware.com", "volumeHandle": volume.id},
            "claimRef": {"namespace": "shop", "name": "orders"},
        },
    });
    serde_json::from_value(volume).unwrap()
}
