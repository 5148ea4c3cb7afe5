//! Pods with volumes, and what they see.

use std::path::PathBuf;

use k8s_openapi::api::{
    core::v1::{Event, Pod},
    storage::v1::StorageClass,
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use testkit::{Registry, eventually};

use crate::cluster::Cluster;

/// Where a pod has its volume.
pub(super) const DATA: &str = "/data";
/// Where a pod has its raw block volume.
pub(super) const DEVICE: &str = "/dev/data";

/// A pod that runs a script and then keeps its volume. The message of the script is its result: `report` writes it.
pub(super) fn pod(name: &str, claim: &str, node: &str, script: &str) -> Value {
    pod_with(
        name,
        claim,
        node,
        script,
        &json!({"volumeMounts": [{"name": "data", "mountPath": DATA}]}),
    )
}

/// The same with a raw block volume.
pub(super) fn block_pod(name: &str, claim: &str, node: &str, script: &str) -> Value {
    pod_with(
        name,
        claim,
        node,
        script,
        &json!({"volumeDevices": [{"name": "data", "devicePath": DEVICE}]}),
    )
}

fn pod_with(name: &str, claim: &str, node: &str, script: &str, volumes: &Value) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}],
            "terminationGracePeriodSeconds": 1,
            "securityContext": {"runAsUser": 0},
            "initContainers": [script_container(script, volumes)],
            "containers": [pause_container(volumes)],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
        },
    })
}

/// A container with a shell and nothing else.
pub(super) fn script_container(script: &str, volumes: &Value) -> Value {
    let script = format!("report() {{ echo \"$*\" >/dev/termination-log; }}\n{script}");
    let mut container = json!({
        "name": "script", "image": format!("{}/pause:1", Registry::HOST),
        "command": ["/bin/sh", "-euc", script],
    });
    merge(&mut container, volumes);
    container
}

pub(super) fn pause_container(volumes: &Value) -> Value {
    let mut container = json!({"name": "pause", "image": format!("{}/pause:1", Registry::HOST)});
    merge(&mut container, volumes);
    container
}

fn merge(object: &mut Value, more: &Value) {
    for (key, value) in more.as_object().into_iter().flatten() {
        object[key] = value.clone();
    }
}

impl Cluster {
    pub(super) fn pods_api(&self) -> Api<Pod> {
        Api::default_namespaced(self.plane.client())
    }

    /// A class for each file system.
    pub(super) async fn create_classes(&self) {
        let classes = Api::<StorageClass>::all(self.plane.client());
        for file_system in ["xfs", "ext4"] {
            let class = json!({
                "metadata": {"name": file_system}, "provisioner": "csi.vsphere.vmware.com",
                "volumeBindingMode": "WaitForFirstConsumer", "allowVolumeExpansion": true,
                "parameters": {"csi.storage.k8s.io/fstype": file_system},
            });
            let class = serde_json::from_value(class).unwrap();
            classes.create(&PostParams::default(), &class).await.unwrap();
        }
    }

    /// A claim of 1 GiB for one node. `more` are fields of its spec.
    pub(super) async fn claim(&self, name: &str, class: &str, more: Value) {
        let mut spec = json!({
            "storageClassName": class, "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        });
        merge(&mut spec, &more);
        let claim = json!({"metadata": {"name": name}, "spec": spec});
        let claim = serde_json::from_value(claim).unwrap();
        self.claims().create(&PostParams::default(), &claim).await.unwrap();
    }

    /// Asks for a larger volume and waits until the claim has it.
    pub(super) async fn grow(&self, claim: &str, size: &str) {
        let larger = json!({"spec": {"resources": {"requests": {"storage": size}}}});
        let claims = self.claims();
        claims.patch(claim, &PatchParams::default(), &Patch::Merge(larger)).await.unwrap();
        eventually("the claim has the larger size", 90, async || {
            let status = claims.get(claim).await.unwrap().status.unwrap_or_default();
            let capacity = status.capacity.as_ref().and_then(|all| all.get("storage").cloned());
            match capacity {
                Some(capacity) if capacity.0 == size => Ok(()),
                _ => Err(format!("{status:?}\n{}", self.events(&[claim]).await)),
            }
        })
        .await;
    }

    pub(super) async fn create_pod(&self, pod: Value) {
        let pod = serde_json::from_value(pod).unwrap();
        self.pods_api().create(&PostParams::default(), &pod).await.unwrap();
    }

    /// Creates the pod, waits until it runs, and returns the message of its script.
    pub(super) async fn run(&self, pod: Value) -> String {
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        self.create_pod(pod).await;
        self.answer(&name).await
    }

    /// Waits until the pod runs, and returns the message of its script.
    pub(super) async fn answer(&self, name: &str) -> String {
        let pods = self.pods_api();
        eventually("the pod runs with its volume", 120, async || {
            let pod = pods.get(name).await.map_err(|error| error.to_string())?;
            let spec = pod.spec.unwrap();
            let claims = spec.volumes.into_iter().flatten();
            let claims =
                claims.filter_map(|volume| Some(volume.persistent_volume_claim?.claim_name));
            let status = pod.status.unwrap_or_default();
            let script = status.init_container_statuses.iter().flatten().next();
            let ended = script.and_then(|script| script.state.clone()?.terminated);
            if let (Some("Running"), Some(ended)) = (status.phase.as_deref(), ended) {
                return Ok(ended.message.unwrap_or_default().trim().to_owned());
            }
            let concerned: Vec<String> = claims.chain([name.to_owned()]).collect();
            let concerned: Vec<&str> = concerned.iter().map(String::as_str).collect();
            Err(format!("{name}: {:?}\n{}", status.phase, self.events(&concerned).await))
        })
        .await
    }

    /// The messages of the events about these objects.
    pub(super) async fn events(&self, about: &[&str]) -> String {
        let events = Api::<Event>::default_namespaced(self.plane.client());
        let listed = events.list(&ListParams::default()).await.unwrap().items.into_iter();
        let concerns = |event: &Event| {
            event.involved_object.name.as_deref().is_some_and(|name| about.contains(&name))
        };
        listed.filter(concerns).filter_map(|event| event.message).collect::<Vec<_>>().join("\n")
    }

    /// A path as a running pod sees it.
    pub(super) async fn in_pod(&self, name: &str, path: &str) -> PathBuf {
        let pod = self.pods_api().get(name).await.unwrap();
        let (uid, spec) = (pod.uid().unwrap(), pod.spec.unwrap());
        let name = spec.node_name.unwrap();
        let node = self.nodes.iter().find(|node| node.name() == name).unwrap();
        eventually("the pod has the path", 30, async || {
            node.in_pod(&uid, path).ok_or_else(|| format!("{name} has no {path}"))
        })
        .await
    }

    /// The size of the file system that a pod sees.
    pub(super) async fn size_in_pod(&self, name: &str) -> u64 {
        let path = self.in_pod(name, DATA).await;
        let sizes = rustix::fs::statvfs(&path).unwrap();
        sizes.f_blocks * sizes.f_frsize
    }

    pub(super) async fn delete_pod(&self, name: &str) {
        let pods = self.pods_api();
        pods.delete(name, &DeleteParams::default()).await.unwrap();
        eventually("the pod is gone", 60, async || match pods.get_opt(name).await.unwrap() {
            None => Ok(()),
            Some(pod) => Err(format!("{:?}", pod.status)),
        })
        .await;
    }

    /// Deletes claims that no pod uses any more. The last check of the test waits for their volumes.
    pub(super) async fn delete_claims(&self, names: &[&str]) {
        for name in names {
            self.claims().delete(name, &DeleteParams::default()).await.unwrap();
        }
    }
}
