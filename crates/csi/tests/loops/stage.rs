//! The test environment: a control plane with nodes in three zones, the driver, and the loops as a service account
//! with exactly their permissions.

use std::{collections::BTreeMap, fmt::Debug, sync::Arc};

use csi::{
    DRIVER_NAME,
    loops::{self, Services, Settings, permissions::RULES},
    proto::csi::controller_server::Controller,
};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        core::v1::{Event, PersistentVolume, PersistentVolumeClaim, Pod},
        storage::v1::{CSINode, StorageClass, VolumeAttachment},
    },
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use runtime::lease::Mandate;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use testkit::{ControlPlane, Node, Nodes, User, eventually};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::driver::Driver;

pub(crate) const ZONE: &str = "topology.csi.vmware.com/zone";
pub(crate) const NAMESPACE: &str = "default";
const ACCOUNT: &str = "vsphere-csi-controller";

pub(crate) struct Stage {
    pub(crate) nodes: Nodes,
    pub(crate) plane: ControlPlane,
    pub(crate) driver: Driver,
}

/// One run of the loops. It ends at once when dropped, like a killed process.
pub(crate) struct Run {
    tasks: JoinSet<Result<(), loops::Error>>,
    shutdown: CancellationToken,
}

impl Run {
    pub(crate) async fn stop(mut self) {
        self.shutdown.cancel();
        self.tasks.join_next().await.unwrap().unwrap().unwrap();
    }
}

impl Stage {
    /// Nodes `n-a`, `n-b` and `n-c`, one in each zone.
    pub(crate) async fn start() -> Self {
        let stage = Self::without_nodes().await;
        for zone in ["a", "b", "c"] {
            stage.add_node(&format!("n-{zone}"), zone).await;
        }
        stage
    }

    pub(crate) async fn without_nodes() -> Self {
        let plane = ControlPlane::builder().with_controllers().with_audit().start().await;
        let nodes = Nodes::start(&plane).await;
        let stage = Self { nodes, plane, driver: Driver::default() };
        stage.allow().await;
        let driver = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER_NAME},
            "spec": {"attachRequired": true, "podInfoOnMount": false, "storageCapacity": false},
        });
        stage.create::<k8s_openapi::api::storage::v1::CSIDriver>(driver).await;
        stage
            .class(
                "immediate",
                json!({"volumeBindingMode": "Immediate", "allowVolumeExpansion": true}),
            )
            .await;
        stage.class("delayed", json!({"volumeBindingMode": "WaitForFirstConsumer"})).await;
        stage
    }

    async fn add_node(&self, name: &str, zone: &str) {
        self.register(name, ZONE, zone, &format!("vm-{name}")).await;
    }

    /// Adds a node on which the driver is registered.
    pub(crate) async fn register(&self, name: &str, key: &str, zone: &str, node_id: &str) {
        let node = Node::named(name)
            .label(key, zone)
            .annotation("volumes.kubernetes.io/controller-managed-attach-detach", "true");
        self.nodes.add(node).await;
        let driver = json!({"spec": {"drivers": [
            {"name": DRIVER_NAME, "nodeID": node_id, "topologyKeys": [key]},
        ]}});
        self.patch::<CSINode>(name, driver).await;
    }

    /// Grants the loops exactly the permissions of their table.
    async fn allow(&self) {
        let rules: Vec<Value> = RULES
            .iter()
            .map(|rule| json!({"apiGroups": [rule.group], "resources": [rule.resource], "verbs": rule.verbs}))
            .collect();
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": ACCOUNT},
            "rules": rules,
        });
        self.create::<k8s_openapi::api::rbac::v1::ClusterRole>(role).await;
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": ACCOUNT},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ACCOUNT},
            "subjects": [{"kind": "ServiceAccount", "namespace": "kube-system", "name": ACCOUNT}],
        });
        self.create::<k8s_openapi::api::rbac::v1::ClusterRoleBinding>(binding).await;
    }

    pub(crate) fn client(&self) -> Client {
        self.plane.client()
    }

    pub(crate) fn settings() -> Settings {
        Settings { topology: true, ..Settings::new(DRIVER_NAME, "test") }
    }

    /// Starts the loops as the leader.
    pub(crate) fn run(&self) -> Run {
        self.run_with(Self::settings(), Mandate::unlimited())
    }

    pub(crate) fn run_with(&self, settings: Settings, mandate: Mandate) -> Run {
        self.run_on(Arc::new(self.driver.clone()), settings, mandate)
    }

    /// Starts the loops with all that the real driver has.
    pub(crate) fn run_all(&self, services: Services, settings: Settings) -> Run {
        let client = self.plane.client_as(&User::service_account("kube-system", ACCOUNT));
        let shutdown = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let mandate = Mandate::unlimited();
        tasks.spawn(loops::run(client, services, settings, mandate, shutdown.clone()));
        Run { tasks, shutdown }
    }

    pub(crate) fn run_on(
        &self,
        controller: Arc<dyn Controller>,
        settings: Settings,
        mandate: Mandate,
    ) -> Run {
        let client = self.plane.client_as(&User::service_account("kube-system", ACCOUNT));
        let shutdown = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let services = Services::with_controller(controller);
        tasks.spawn(loops::run(client, services, settings, mandate, shutdown.clone()));
        Run { tasks, shutdown }
    }

    pub(crate) fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client(), NAMESPACE)
    }

    pub(crate) fn volumes(&self) -> Api<PersistentVolume> {
        Api::all(self.client())
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client(), NAMESPACE)
    }

    pub(crate) fn attachments(&self) -> Api<VolumeAttachment> {
        Api::all(self.client())
    }

    pub(crate) async fn create<K>(&self, object: Value)
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::ClusterResourceScope>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned,
    {
        let object: K = serde_json::from_value(object).unwrap();
        let api = Api::<K>::all(self.client());
        eventually("an object is created", 60, async || {
            api.create(&PostParams::default(), &object).await.map(drop)
        })
        .await;
    }

    pub(crate) async fn create_namespaced<K>(&self, object: Value)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned,
    {
        let object: K = serde_json::from_value(object).unwrap();
        let api = Api::<K>::namespaced(self.client(), NAMESPACE);
        // The service account of pods exists a moment after the controller-manager starts.
        eventually("an object is created", 60, async || {
            api.create(&PostParams::default(), &object).await.map(drop)
        })
        .await;
    }

    pub(crate) async fn patch<K>(&self, name: &str, patch: Value)
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let api = Api::<K>::all(self.client());
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    pub(crate) async fn class(&self, name: &str, fields: Value) {
        let mut class = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
            "provisioner": DRIVER_NAME, "reclaimPolicy": "Delete",
        });
        for (key, value) in fields.as_object().unwrap() {
            class[key] = value.clone();
        }
        self.create::<StorageClass>(class).await;
    }

    pub(crate) async fn claim(&self, name: &str, class: &str) {
        self.claim_with(name, class, json!({})).await;
    }

    pub(crate) async fn claim_with(&self, name: &str, class: &str, fields: Value) {
        let mut spec = json!({
            "accessModes": ["ReadWriteOnce"], "storageClassName": class, "resources": {"requests": {"storage": "1Gi"}},
        });
        for (key, value) in fields.as_object().unwrap() {
            spec[key] = value.clone();
        }
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec,
        });
        self.create_namespaced::<PersistentVolumeClaim>(claim).await;
    }

    /// A pod that uses the claim.
    pub(crate) async fn pod(&self, name: &str, claim: &str, node_selector: Value) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {
                "nodeSelector": node_selector,
                "terminationGracePeriodSeconds": 0,
                "containers": [{
                    "name": "app", "image": "app", "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                }],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
            },
        });
        self.create_namespaced::<Pod>(pod).await;
    }

    /// Waits until the claim is bound, and returns its volume.
    pub(crate) async fn bound(&self, name: &str) -> PersistentVolume {
        let volume = eventually(&format!("the claim {name} is bound"), 60, async || {
            let claim = self.claims().get(name).await.map_err(|e| e.to_string())?;
            let phase = claim.status.and_then(|status| status.phase);
            match (phase.as_deref(), claim.spec.and_then(|spec| spec.volume_name)) {
                (Some("Bound"), Some(volume)) => Ok(volume),
                (phase, _) => Err(format!("{phase:?} {:#?}", self.events_of(name).await)),
            }
        })
        .await;
        self.volumes().get(&volume).await.unwrap()
    }

    /// Waits until the volume is attached, and returns its attachment.
    pub(crate) async fn attached(&self, volume: &str) -> VolumeAttachment {
        eventually(&format!("{volume} is attached"), 60, async || {
            let found = self.attachment_of(volume).await;
            let attached =
                found.as_ref().and_then(|a| a.status.as_ref()).is_some_and(|s| s.attached);
            found.filter(|_| attached).ok_or("not attached")
        })
        .await
    }

    pub(crate) async fn attachment_of(&self, volume: &str) -> Option<VolumeAttachment> {
        let all = self.attachments().list(&ListParams::default()).await.unwrap();
        all.into_iter().find(|a| a.spec.source.persistent_volume_name.as_deref() == Some(volume))
    }

    /// Deletes a pod, and reports as its kubelet would that the volumes of the node are unmounted.
    pub(crate) async fn delete_pod(&self, name: &str) {
        let pod = self.pods().get(name).await.unwrap();
        self.pods().delete(name, &DeleteParams::default().grace_period(0)).await.unwrap();
        let node = pod.spec.unwrap().node_name.unwrap();
        let nodes = Api::<k8s_openapi::api::core::v1::Node>::all(self.client());
        let unmounted = json!({"metadata": {"annotations": {"test/unmounted": name}}});
        nodes.patch(&node, &PatchParams::default(), &Patch::Merge(unmounted)).await.unwrap();
    }

    pub(crate) async fn gone<K>(&self, api: &Api<K>, name: &str)
    where
        K: Clone + Debug + DeserializeOwned,
    {
        eventually(&format!("{name} is gone"), 60, async || match api.get_opt(name).await {
            Ok(None) => Ok(()),
            Ok(Some(object)) => Err(format!("{object:?}")),
            Err(error) => Err(error.to_string()),
        })
        .await;
    }

    /// The reasons and messages of the events about an object.
    pub(crate) async fn events_of(&self, name: &str) -> Vec<(String, String)> {
        let all = Api::<Event>::all(self.client()).list(&ListParams::default()).await.unwrap();
        let about = all.into_iter().filter(|e| e.involved_object.name.as_deref() == Some(name));
        about.map(|e| (e.reason.unwrap_or_default(), e.message.unwrap_or_default())).collect()
    }

    pub(crate) async fn until_event(&self, name: &str, reason: &str) -> String {
        eventually(&format!("{name} has the event {reason}"), 60, async || {
            let all = self.events_of(name).await;
            let found = all.iter().find(|(known, _)| known == reason);
            found.map(|(_, message)| message.clone()).ok_or(format!("{all:#?}"))
        })
        .await
    }

    /// The number of the loops' writes so far, by verb and resource.
    pub(crate) fn writes(&self) -> BTreeMap<String, usize> {
        let account = format!("system:serviceaccount:kube-system:{ACCOUNT}");
        let mut counts = BTreeMap::new();
        for request in self.plane.audit() {
            let verb = request["verb"].as_str().unwrap_or_default();
            let writes = ["create", "update", "patch", "delete"].contains(&verb);
            if writes && request["impersonatedUser"]["username"] == account {
                let (object, resource) = (&request["objectRef"], "resource");
                let sub = object["subresource"].as_str().map_or(String::new(), |s| format!("/{s}"));
                let key = format!("{verb} {}{sub}", object[resource].as_str().unwrap_or_default());
                *counts.entry(key).or_default() += 1;
            }
        }
        counts
    }
}
