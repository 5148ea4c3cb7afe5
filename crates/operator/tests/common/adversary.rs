//! A hostile tenant in the cluster of every test.
//!
//! The tenant has the ClusterRole `admin` in their own namespace, and all of `vdo.vmware.com` there.
//! Every trick of [`TRICKS`] runs right after the cluster starts, before the admin configures anything: in each test
//! program of the operator, in the test of the cloud controller with the operator, in the tests of vdoctl, and next to
//! an installation on real nodes. These checks hold the line, all but the third in every test program of the operator:
//!
//! - [`assert_ignored`] checks every status of the VDOConfig that a test reads: it contains nothing of the
//!   tenant's, except in findings up to Warning.
//! - [`Adversary::assert_held`] checks the objects of the drivers whenever a test finds VDO ready: none refers to
//!   the tenant.
//! - [`admin_objects_at_rest`] compares everything that belongs to the admin before and after a second attack on
//!   running drivers.
//! - At the end, no program has connected to the tenant's address. The operator has read and written nothing in
//!   the tenant's namespace but the status of its own kinds.

use std::{collections::BTreeMap, net::TcpListener, time::Duration};

use api::{VDOConfig, finding::Severity};
use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment},
    core::v1::{ConfigMap, Secret},
};
use kube::{
    Api, Client, Resource,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, PostParams},
};
use serde_json::{Value, json};
use testkit::{ControlPlane, User, eventually};

const NAMESPACE: &str = api::NAMESPACE;
/// The tenant's namespace. It sorts before all others.
pub const TENANT: &str = "a-mallory";
const USER: &str = "mallory";
/// The registry of the tenant's images.
const REGISTRY: &str = "mallory.example.com";
/// The version of the tenant's drivers.
const VERSION: &str = "99.9.9";
/// The network plugin that the tenant pretends to run. No test installs it.
const PLUGIN: &str = "Antrea";
/// The cluster id that the tenant tries to inject.
const CLUSTER_ID: &str = "mallorys-cluster";
/// The namespaces in which the operator writes.
const WATCHED: [&str; 3] = ["kube-system", "vmware-system-csi", NAMESPACE];
/// The roles that the ClusterRole `admin` aggregates. Without a controller-manager nothing aggregates them.
const ADMIN: [&str; 3] =
    ["system:aggregate-to-admin", "system:aggregate-to-edit", "system:aggregate-to-view"];

/// A name for failure messages, whether the API server must accept the objects, and the objects. The tenant
/// listens on `address`.
type Trick = (&'static str, bool, fn(address: &str) -> Vec<Value>);

const TRICKS: &[Trick] = &[
    ("workloads like the drivers", true, |_| drivers()),
    ("workloads like the Go VDO and the operator", true, |_| operators()),
    ("Secrets with our names", true, secrets),
    ("ConfigMaps with our names", true, |_| config_maps()),
    ("accounts and roles with our names", true, |_| accounts()),
    ("VsphereCloudConfigs", true, vcenters),
    ("CompatibilityConfigs", true, catalogs),
    ("a network plugin, leases with our names", true, |_| plugin_and_lease()),
    ("huge objects", true, |_| huge()),
    ("malformed objects", false, |_| malformed()),
    // They are older than the admin's.
    ("VDOConfigs", true, |_| configs()),
];

pub struct Adversary {
    listener: TcpListener,
}

impl Adversary {
    /// Creates the tenant's namespace and permissions.
    pub async fn settle(plane: &ControlPlane) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let client = plane.client();
        let group = "rbac.authorization.k8s.io";
        let binding = |kind: &str, role: &str| {
            let name = role.replace(':', "-");
            object(
                &format!("{group}/v1"),
                "RoleBinding",
                &name,
                json!({
                    "roleRef": {"apiGroup": group, "kind": kind, "name": role},
                    "subjects": [{"apiGroup": group, "kind": "User", "name": USER}],
                }),
            )
        };
        let ours = json!({"rules": [
            {"apiGroups": [api::GROUP], "resources": ["*"], "verbs": ["*"]},
        ]});
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TENANT},
        });
        create(&client, namespace).await.unwrap();
        create(&client, object(&format!("{group}/v1"), "Role", "vdo-all", ours)).await.unwrap();
        create(&client, binding("Role", "vdo-all")).await.unwrap();
        for role in ADMIN {
            create(&client, binding("ClusterRole", role)).await.unwrap();
        }
        Self { listener }
    }

    /// Plays every trick once more, on running drivers.
    pub async fn attack_again(&self, plane: &ControlPlane) {
        let client = plane.client_as(&User::named(USER).in_group("system:authenticated"));
        let address = self.listener.local_addr().unwrap().to_string();
        for object in TRICKS.iter().flat_map(|(_, _, objects)| objects(&address)) {
            let name = object["metadata"]["name"].as_str().unwrap().to_owned();
            let gone = api_of(&client, &object).delete(&name, &DeleteParams::default()).await;
            let answered = matches!(&gone, Ok(_) | Err(kube::Error::Api(_)));
            assert!(answered, "{name}: {gone:?}");
        }
        self.attack(plane).await;
    }

    /// Waits until VDO has written into the status of each of the tenant's VDOConfigs that it does not follow it.
    pub async fn until_reported(&self, client: &Client) {
        let configs = Api::<VDOConfig>::namespaced(client.clone(), TENANT);
        eventually("VDO has seen the tenant's VDOConfigs", 60, async || {
            let all = configs.list(&ListParams::default()).await.map_err(|e| e.to_string())?.items;
            let reported = |config: &VDOConfig| {
                config.status.as_ref().is_some_and(|status| !status.conditions.is_empty())
            };
            if !all.is_empty() && all.iter().all(reported) {
                Ok(())
            } else {
                Err(format!("{all:?}"))
            }
        })
        .await;
    }

    pub async fn attack(&self, plane: &ControlPlane) {
        let user = User::named(USER).in_group("system:authenticated");
        let client = plane.client_as(&user);
        let maps = Api::<ConfigMap>::namespaced(client.clone(), TENANT);
        eventually("the tenant has permissions", 30, async || {
            maps.list(&ListParams::default().limit(1)).await.map(drop)
        })
        .await;
        let address = self.listener.local_addr().unwrap().to_string();
        let tried = TRICKS.iter().flat_map(|(name, accepted, objects)| {
            objects(&address).into_iter().map(move |object| (name, accepted, object))
        });
        let tried = tried.map(async |(name, accepted, object)| {
            let what = format!("{name}: {} {}", object["kind"], object["metadata"]["name"]);
            let made = create(&client, object).await;
            assert!(made.is_ok() || !accepted, "{what}: {made:?}");
            let decided = matches!(&made, Ok(()) | Err(kube::Error::Api(_)));
            assert!(decided, "the API server did not decide on {what}: {made:?}");
        });
        futures::future::join_all(tried).await;
    }

    /// Checks that no object in the namespaces the operator writes to refers to anything of the tenant's.
    pub async fn assert_held(&self, client: &Client) {
        let address = self.listener.local_addr().unwrap().to_string();
        let marks = [REGISTRY, CLUSTER_ID, TENANT, address.as_str()];
        let untouched = async |namespace: &str| {
            let client = client.clone();
            let mut texts = contents::<Deployment>(&client, namespace).await;
            texts.extend(contents::<DaemonSet>(&client, namespace).await);
            texts.extend(contents::<ConfigMap>(&client, namespace).await);
            texts.extend(contents::<Secret>(&client, namespace).await);
            for (id, text) in texts {
                // The list of all findings can name the ignored objects of the tenant.
                let mark = marks.iter().find(|mark| text.contains(**mark));
                let findings = id.ends_with(plan::names::FINDINGS);
                assert!(mark.is_none() || findings, "{id} in {namespace} has {mark:?}: {text}");
            }
        };
        futures::future::join_all(WATCHED.map(untouched)).await;
        self.assert_unvisited();
    }

    fn assert_unvisited(&self) {
        match self.listener.accept() {
            Ok((_, visitor)) => panic!("{visitor} connected to the tenant"),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}"),
        }
    }
}

/// The checks at the end of a test: see the module.
pub fn assert_held_to_the_end(adversary: &Adversary, plane: &ControlPlane) {
    adversary.assert_unvisited();
    let namespace = format!("/namespaces/{TENANT}/");
    let ours = format!("/apis/{}/", api::GROUP);
    let touched = plane.audit().into_iter().filter(|event| {
        let user = event["impersonatedUser"]["username"].as_str().unwrap_or_default();
        let uri = event["requestURI"].as_str().unwrap_or_default();
        let path = uri.split('?').next().unwrap_or_default();
        user.starts_with(&format!("system:serviceaccount:{NAMESPACE}:"))
            && uri.contains(&namespace)
            && !(path.starts_with(&ours) && path.ends_with("/status"))
            && !path.contains("/events")
    });
    let touched: Vec<String> =
        touched.map(|event| format!("{} {}", event["verb"], event["requestURI"])).collect();
    assert_eq!(touched, Vec::<String>::new(), "the operator touched the tenant's namespace");
}

/// Checks that the status of the admin's VDOConfig shows nothing of the tenant's, except in findings up to
/// Warning.
pub fn assert_ignored(config: &VDOConfig) {
    let Some(mut status) = config.status.clone() else { return };
    status.findings.retain(|finding| finding.severity > Severity::Warning);
    let text = serde_json::to_string(&status).unwrap();
    let marks = [TENANT, REGISTRY, VERSION, CLUSTER_ID, PLUGIN];
    let mark = marks.iter().find(|mark| text.contains(**mark));
    assert_eq!(mark, None, "{}", serde_json::to_string_pretty(&status).unwrap());
}

/// The name and the full text of every object of a kind in a namespace.
async fn contents<K>(client: &Client, namespace: &str) -> Vec<(String, String)>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned
        + serde::Serialize,
{
    let api = Api::<K>::namespaced(client.clone(), namespace);
    let all = eventually("the API server lists", 60, async || {
        api.list(&ListParams::default()).await.map_err(|error| error.to_string())
    })
    .await;
    all.items
        .into_iter()
        .map(|mut object| {
            object.meta_mut().managed_fields = None;
            let name = object.meta().name.clone().unwrap_or_default();
            let mut value = serde_json::to_value(&object).unwrap();
            decode(&mut value["data"], &K::kind(&()));
            (name, value.to_string())
        })
        .collect()
}

/// Decodes the data of a Secret.
fn decode(data: &mut Value, kind: &str) {
    let Some(data) = data.as_object_mut().filter(|_| kind == "Secret") else { return };
    for value in data.values_mut() {
        let bytes: k8s_openapi::ByteString = serde_json::from_value(value.clone()).unwrap();
        *value = String::from_utf8_lossy(&bytes.0).into_owned().into();
    }
}

/// The kinds of the objects that belong to the admin, or that VDO keeps for the admin.
const OF_THE_ADMIN: &[(&str, &str)] = &[
    ("vdo.vmware.com/v1alpha1", "VDOConfig"),
    ("vdo.vmware.com/v1alpha1", "VsphereCloudConfig"),
    ("vdo.vmware.com/v1alpha1", "CompatibilityConfig"),
    ("v1", "Secret"),
    ("v1", "ConfigMap"),
    ("v1", "ServiceAccount"),
    ("apps/v1", "Deployment"),
    ("apps/v1", "DaemonSet"),
    ("rbac.authorization.k8s.io/v1", "Role"),
    ("rbac.authorization.k8s.io/v1", "RoleBinding"),
    ("rbac.authorization.k8s.io/v1", "ClusterRole"),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"),
    ("v1", "Service"),
    ("policy/v1", "PodDisruptionBudget"),
    ("storage.k8s.io/v1", "CSIDriver"),
    ("storage.k8s.io/v1", "StorageClass"),
    ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration"),
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
];

/// All objects outside the tenant's namespace that only the admin or VDO may change, by kind and name. They
/// come without their status and without the metadata that the API server maintains. The uid stays: it differs
/// if somebody re-creates an object.
async fn objects_of_the_admin(client: &Client) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for (version, kind) in OF_THE_ADMIN {
        let list = api_of(client, &json!({"apiVersion": version, "kind": kind}));
        for object in list.list(&ListParams::default()).await.unwrap() {
            let mut value = serde_json::to_value(&object).unwrap();
            let metadata = value["metadata"].as_object_mut().unwrap();
            let kept = ["name", "namespace", "uid", "labels", "annotations", "finalizers"];
            metadata.retain(|field, _| kept.contains(&field.as_str()));
            let (namespace, name) = (metadata.get("namespace"), object.metadata.name.unwrap());
            let namespace = namespace.and_then(Value::as_str).unwrap_or_default();
            // The list of all findings names the tenant's objects.
            if namespace == TENANT || name == plan::names::FINDINGS {
                continue;
            }
            let id = format!("{kind} {namespace}/{name}");
            value.as_object_mut().unwrap().remove("status");
            all.insert(id, value);
        }
    }
    all
}

/// [`objects_of_the_admin`], as soon as VDO has finished its own changes.
pub async fn admin_objects_at_rest(client: &Client) -> BTreeMap<String, Value> {
    eventually("the objects of the admin do not change", 60, async || {
        let before = objects_of_the_admin(client).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let after = objects_of_the_admin(client).await;
        let changed: Vec<&String> =
            after.keys().filter(|id| before.get(*id) != after.get(*id)).collect();
        if changed.is_empty() { Ok(before) } else { Err(format!("{changed:?}")) }
    })
    .await
}

/// The API for the kind of an object, in its namespace if it has one.
fn api_of(client: &Client, object: &Value) -> Api<DynamicObject> {
    let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
    let (version, kind) = (text("apiVersion"), text("kind"));
    let (group, short) = version.split_once('/').unwrap_or(("", &version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, short, &kind));
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

async fn create(client: &Client, object: Value) -> Result<(), kube::Error> {
    let api = api_of(client, &object);
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    api.create(&PostParams::default(), &object).await.map(drop)
}

/// An object in the tenant's namespace.
fn object(version: &str, kind: &str, name: &str, more: Value) -> Value {
    let mut object = json!({
        "apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": TENANT},
    });
    let Value::Object(more) = more else { panic!("{name} has no fields: {more}") };
    object.as_object_mut().unwrap().extend(more);
    object
}

/// A workload with all of VDO's labels that runs an image of the tenant's.
fn workload(kind: &str, name: &str, image: &str, account: &str) -> Value {
    let own = json!({"app": name});
    let labels = json!({
        "app": name, "name": name, "k8s-app": name,
        plan::names::MANAGED_BY_LABEL: plan::names::MANAGED_BY,
        plan::names::PART_OF_LABEL: plan::names::PART_OF,
        plan::names::VERSION_LABEL: VERSION,
    });
    let mount = json!([{"name": "config", "mountPath": "/etc/cloud"}]);
    let mut workload = object(
        "apps/v1",
        kind,
        name,
        json!({"spec": {
            "selector": {"matchLabels": own},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "serviceAccountName": account,
                    // One pod is enough.
                    "nodeSelector": {"kubernetes.io/hostname": "node-1"},
                    "containers": [{
                        "name": name, "image": format!("{REGISTRY}/{image}:v{VERSION}"),
                        "args": ["--cloud-config=/etc/cloud/vsphere.conf"], "volumeMounts": mount,
                    }],
                    "volumes": [{"name": "config", "secret": {"secretName": "vsphere-config-secret"}}],
                },
            },
        }}),
    );
    workload["metadata"]["labels"] = labels;
    workload["metadata"]["annotations"] = json!({plan::names::DIGEST: "mine"});
    workload
}

fn drivers() -> Vec<Value> {
    let cloud = "vsphere-cloud-controller-manager";
    vec![
        workload(
            "Deployment",
            "vsphere-csi-controller",
            "csi-vsphere/driver",
            "vsphere-csi-controller",
        ),
        workload("DaemonSet", "vsphere-csi-node", "csi-vsphere/driver", "vsphere-csi-node"),
        workload(
            "DaemonSet",
            cloud,
            "cloud-pv-vsphere/cloud-provider-vsphere",
            "cloud-controller-manager",
        ),
        workload("Deployment", "storage", "csi-vsphere/driver", "default"),
        workload("Deployment", "snapshot-controller", "anything", "default"),
    ]
}

fn operators() -> Vec<Value> {
    let mut go_vdo =
        workload("Deployment", "vdo-controller-manager", "vdo", "vdo-controller-manager");
    go_vdo["metadata"]["labels"]["control-plane"] = json!("controller-manager");
    vec![go_vdo, workload("Deployment", "vdo", "vdo", "vdo")]
}

fn secrets(address: &str) -> Vec<Value> {
    let login = json!({"stringData": {"username": "mallory@vsphere.local", "password": "mine"}});
    let storage = format!(
        "[Global]\ncluster-id = \"{CLUSTER_ID}\"\n[VirtualCenter \"{address}\"]\nuser = \"mallory\"\n\
         password = \"mine\"\ninsecure-flag = true\n"
    );
    let cloud = format!("global:\n  insecureFlag: true\nvcenter:\n  a:\n    server: {address}\n");
    vec![
        object("v1", "Secret", "vc-credentials", login.clone()),
        object("v1", "Secret", "cpi-global-secret", login),
        object(
            "v1",
            "Secret",
            "vsphere-config-secret",
            json!({"stringData": {
                "csi-vsphere.conf": storage, "vsphere.conf": cloud,
            }}),
        ),
        object("v1", "Secret", "vsphere-webhook-certs", json!({"stringData": {"tls.crt": "none"}})),
    ]
}

fn config_maps() -> Vec<Value> {
    let record = json!({"version": VERSION, "healthy": true, "clusterId": CLUSTER_ID}).to_string();
    let id = json!({"clusterID": CLUSTER_ID});
    [
        ("vdo-record-cpi", json!({"record.json": record})),
        ("vdo-record-csi", json!({"record.json": record})),
        ("vdo-catalog", json!({"catalog.yaml": "releases: []"})),
        ("compat-matrix-config", json!({"versionConfigURL": "https://mallory.example.com/matrix"})),
        (plan::names::FINDINGS, json!({"findings.json": "[]"})),
        (plan::names::REPAIRS, json!({"repairs.json": "[]"})),
        (plan::names::CSI_CLUSTER_ID, id),
        (plan::names::CSI_FEATURES, json!({"csi-migration": "mine"})),
        ("cloud-config", json!({"vsphere.conf": "global: {}"})),
        (plan::names::FOLLOWED, json!({"name": "vdo-config", "uid": "mine"})),
        ("vdo-kept-catalog", json!({"bundle.json": "{}"})),
    ]
    .map(|(name, data)| object("v1", "ConfigMap", name, json!({"data": data})))
    .to_vec()
}

fn accounts() -> Vec<Value> {
    let rbac = "rbac.authorization.k8s.io";
    let names = [
        "vdo",
        "vdo-controller-manager",
        "vsphere-csi-controller",
        "vsphere-csi-node",
        "cloud-controller-manager",
    ];
    let accounts = names.map(|name| object("v1", "ServiceAccount", name, json!({})));
    let own = object(
        &format!("{rbac}/v1"),
        "Role",
        "vsphere-csi-controller",
        json!({"rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list"]}]}),
    );
    let account = json!({
        "kind": "ServiceAccount", "name": "vsphere-csi-controller", "namespace": TENANT,
    });
    let bound = object(
        &format!("{rbac}/v1"),
        "RoleBinding",
        "vsphere-csi-controller",
        json!({
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "vdo-all"}, "subjects": [account],
        }),
    );
    accounts.into_iter().chain([own, bound]).collect()
}

/// vCenters at the tenant's address that name the admin's Secrets.
fn vcenters(address: &str) -> Vec<Value> {
    let vcenter = |name: &str, more: Value| {
        let mut spec = json!({
            "vcIp": address, "credentials": "vc-credentials", "datacenters": ["DC0"], "insecure": true,
        });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        object("vdo.vmware.com/v1alpha1", "VsphereCloudConfig", name, json!({"spec": spec}))
    };
    vec![
        vcenter("vc", json!({})),
        vcenter("bundle", json!({"insecure": false, "caBundle": {"configMap": {"name": "ca"}}})),
    ]
}

fn catalogs(address: &str) -> Vec<Value> {
    let spec = json!({"matrixURL": format!("http://{address}/catalog.yaml")});
    vec![object("vdo.vmware.com/v1alpha1", "CompatibilityConfig", "catalog", json!({"spec": spec}))]
}

/// VDOConfigs that request drivers from the tenant's registry and vCenter, and the removal of running drivers.
fn configs() -> Vec<Value> {
    let config = |name: &str, spec: Value| {
        let mut config =
            object("vdo.vmware.com/v1alpha1", "VDOConfig", name, json!({"spec": spec}));
        config["metadata"]["annotations"] = json!({plan::names::FOLLOW: "true"});
        config
    };
    let (cloud, storage) =
        (json!({"vsphereCloudConfigs": ["vc"]}), json!({"vsphereCloudConfig": "vc"}));
    vec![
        config(
            "vdo-config",
            json!({
                "cloudProvider": cloud, "storageProvider": storage,
                "images": {"registry": REGISTRY}, "adoption": "Automatic",
            }),
        ),
        config(
            "removal",
            json!({
                "storageProvider": {"vsphereCloudConfig": "vc", "mode": "Removed"},
                "deletionPolicy": "Remove",
            }),
        ),
    ]
}

fn plugin_and_lease() -> Vec<Value> {
    let mut set = workload("DaemonSet", "antrea-agent", "antrea/antrea-agent", "default");
    set["spec"]["template"]["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": "no-node"});
    let lease = json!({"spec": {
        "holderIdentity": format!("{TENANT}{}", "x".repeat(100_000)),
        "renewTime": "2020-01-01T00:00:00.000000Z", "leaseDurationSeconds": 1,
    }});
    let leases = ["external-attacher-leader-csi-vsphere-vmware-com", "vdo", "vdo-leader"];
    let leases = leases.map(|name| object("coordination.k8s.io/v1", "Lease", name, lease.clone()));
    std::iter::once(set).chain(leases).collect()
}

fn huge() -> Vec<Value> {
    let filler = "x".repeat(700_000);
    let mut set = workload("DaemonSet", "vsphere-csi-node-huge", "csi-vsphere/driver", "default");
    set["spec"]["template"]["spec"]["containers"][0]["env"] =
        json!([{"name": "FILLER", "value": filler}]);
    set["spec"]["template"]["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": "no-node"});
    let labels = (0..3000).map(|number| (format!("label-{number}"), json!("x".repeat(60))));
    let labels: serde_json::Map<String, Value> = labels.collect();
    set["metadata"]["labels"].as_object_mut().unwrap().extend(labels.clone());
    let vcenter =
        json!({"vcIp": "192.0.2.1", "credentials": "vc-credentials", "datacenters": ["DC0"]});
    let ours = [
        ("VDOConfig", json!({"storageProvider": {"vsphereCloudConfig": "vc"}})),
        ("VsphereCloudConfig", vcenter),
        ("CompatibilityConfig", json!({"matrixURL": "https://mallory.example.com/catalog.yaml"})),
    ];
    let ours = ours.map(|(kind, spec)| {
        let mut huge = object("vdo.vmware.com/v1alpha1", kind, "huge", json!({"spec": spec}));
        huge["metadata"]["labels"] = json!(labels);
        huge
    });
    let data = json!({"data": {"filler": filler}});
    let long = &filler[..300_000];
    let event = |name: &str, kind: &str, reason: &str, message: &str| {
        let about = json!({"kind": kind, "namespace": TENANT, "name": "web-1"});
        let more = json!({
            "type": "Warning", "reason": reason, "message": message, "involvedObject": about,
        });
        object("v1", "Event", name, more)
    };
    let contest = format!("Multi-Attach error for volume \"{long}\" Volume is already used");
    let more = [
        set,
        object("v1", "ConfigMap", "vsphere-cloud-config", data),
        event("huge-reason", "PersistentVolumeClaim", long, "waiting"),
        event("huge-volume", "Pod", "FailedAttachVolume", &contest),
    ];
    ours.into_iter().chain(more).collect()
}

/// Objects that the API server should reject; if it accepts one, the operator must tolerate it.
fn malformed() -> Vec<Value> {
    let ours = "vdo.vmware.com/v1alpha1";
    let vcenter = json!({"spec": {"vcIp": {"a": 1}, "credentials": 7}});
    let long = "x".repeat(300);
    vec![
        object(ours, "VsphereCloudConfig", "no-spec", json!({})),
        object(ours, "VsphereCloudConfig", "wrong-types", vcenter),
        object(ours, "CompatibilityConfig", "wrong-types", json!({"spec": "text"})),
        object("v1", "Secret", &long, json!({})),
        object("apps/v1", "DaemonSet", "vsphere-csi-node", json!({"spec": {"selector": "all"}})),
    ]
}
