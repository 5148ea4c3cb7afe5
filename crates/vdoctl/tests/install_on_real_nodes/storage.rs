//! Volumes of our storage driver: made, attached, formatted, mounted, moved, grown and deleted for pods.

use k8s_openapi::api::{
    core::v1::{Event, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use testkit::eventually;

use crate::cluster::{Cluster, cloud_provider};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A pod that runs a script on the volume and then keeps it mounted. The script's answer is its termination message.
fn pod_with_volume(name: &str, node: &str, script: &str) -> Pod {
    let mounts = json!([{"name": "data", "mountPath": "/data"}]);
    let pod = json!({
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}],
            "terminationGracePeriodSeconds": 1,
            "securityContext": {"fsGroup": 65532},
            "initContainers": [{
                // An image with a shell.
                "name": "script", "image": format!("registry.test/vmware-tanzu/vdo-csi:{VERSION}"),
                "command": ["/bin/sh", "-ec", script], "volumeMounts": mounts,
            }],
            "containers": [{"name": "pause", "image": "registry.test/pause:1", "volumeMounts": mounts}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        },
    });
    serde_json::from_value(pod).unwrap()
}

impl Cluster {
    /// Runs the pod until its script ended, and returns the script's answer.
    async fn answer(&self, pod: &Pod) -> String {
        let (pods, name) = (Api::<Pod>::default_namespaced(self.plane.client()), pod.name_any());
        pods.create(&PostParams::default(), pod).await.unwrap();
        eventually("the pod runs with its volume", 120, async || {
            let status = pods.get(&name).await.unwrap().status.unwrap_or_default();
            let script = status.init_container_statuses.iter().flatten().next();
            let ended = script.and_then(|script| script.state.clone()?.terminated);
            match (status.phase.as_deref(), ended) {
                (Some("Running"), Some(ended)) => Ok(ended.message.unwrap_or_default()),
                _ => Err(format!("{status:?}\n{}", self.events(&[&name, "data"]).await)),
            }
        })
        .await
    }

    async fn events(&self, about: &[&str]) -> String {
        let events = Api::<Event>::default_namespaced(self.plane.client());
        let listed = events.list(&ListParams::default()).await.unwrap().items.into_iter();
        let concerns = |event: &Event| {
            event.involved_object.name.as_deref().is_some_and(|name| about.contains(&name))
        };
        listed.filter(concerns).filter_map(|event| event.message).collect::<Vec<_>>().join("\n")
    }

    async fn delete_pod(&self, name: &str) {
        let pods = Api::<Pod>::default_namespaced(self.plane.client());
        pods.delete(name, &DeleteParams::default()).await.unwrap();
        eventually("the pod is gone", 60, async || match pods.get_opt(name).await.unwrap() {
            None => Ok(()),
            Some(pod) => Err(format!("{:?}", pod.status)),
        })
        .await;
    }

    /// A class of XFS volumes, because this kernel grows XFS online everywhere, and a claim of 1 GiB.
    async fn claim_volume(&self) -> Api<PersistentVolumeClaim> {
        let client = self.plane.client();
        let class = json!({
            "metadata": {"name": "volumes"}, "provisioner": "csi.vsphere.vmware.com",
            "volumeBindingMode": "WaitForFirstConsumer", "allowVolumeExpansion": true,
            "parameters": {"csi.storage.k8s.io/fstype": "xfs"},
        });
        let class = serde_json::from_value(class).unwrap();
        let classes = Api::<StorageClass>::all(client.clone());
        classes.create(&PostParams::default(), &class).await.unwrap();
        let claim = json!({
            "metadata": {"name": "data"},
            "spec": {
                "storageClassName": "volumes", "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        });
        let claims = Api::<PersistentVolumeClaim>::default_namespaced(client);
        let claim = serde_json::from_value(claim).unwrap();
        claims.create(&PostParams::default(), &claim).await.unwrap();
        claims
    }
}

#[tokio::test]
#[ignore = "needs root, namespaces and cgroup v1: make test-nodes"]
async fn a_pod_writes_to_a_volume_of_our_driver_and_finds_its_data_on_another_node() {
    let cluster = Cluster::with_nodes(2).await;
    cluster.registry.push_own("vdo-csi");
    let storage = json!({"vsphereCloudConfig": "vcenter", "implementation": "Rust"});
    let drivers = json!({"cloudProvider": cloud_provider(), "storageProvider": storage});
    cluster.install_with(drivers).await;
    let claims = cluster.claim_volume().await;

    let write = "echo kept >/data/file && echo written >/dev/termination-log";
    let written = cluster.answer(&pod_with_volume("writer", "node-1", write)).await;
    assert_eq!(written.trim(), "written");
    cluster.delete_pod("writer").await;
    let read = "read line </data/file && echo $line >/dev/termination-log";
    let found = cluster.answer(&pod_with_volume("reader", "node-2", read)).await;
    assert_eq!(found.trim(), "kept", "the data moves with the volume");

    // Grown while the pod uses it.
    let larger = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    claims.patch("data", &PatchParams::default(), &Patch::Merge(larger)).await.unwrap();
    eventually("the volume and its file system are larger", 90, async || {
        let status = claims.get("data").await.unwrap().status.unwrap_or_default();
        let capacity = status.capacity.as_ref().and_then(|all| all.get("storage").cloned());
        match capacity {
            Some(capacity) if capacity.0 == "2Gi" => Ok(()),
            _ => Err(format!("{status:?}\n{}", cluster.events(&["data", "reader"]).await)),
        }
    })
    .await;

    let used = cluster.nodes[1].working_set("vsphere-csi").unwrap();
    println!("node plugin: working set {:.1} MiB", used as f64 / 1_048_576.0);
    cluster.delete_pod("reader").await;
    claims.delete("data", &DeleteParams::default()).await.unwrap();
    let volumes = Api::<PersistentVolume>::all(cluster.plane.client());
    eventually("the volume is deleted", 60, async || {
        let left = volumes.list(&ListParams::default()).await.unwrap().items;
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
}
