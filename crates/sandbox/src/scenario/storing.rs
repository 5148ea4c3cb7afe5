//! Storage on real nodes: a pod gets a volume of our driver and writes to it.

use serde_json::{Value, json};
use snafu::ResultExt as _;
use testkit::Registry;

use crate::{
    arguments::Cpi,
    environment::VCENTER,
    failure::{Failure, PeerSnafu},
    user::User,
};

const FILE: &str = "volume.yaml";

/// The spec of the VDOConfig: the drivers of this project, from a mirror of their images.
pub(super) fn drivers() -> Value {
    json!({
        "images": {"registry": Registry::HOST},
        "cloudProvider": super::drivers(Cpi::Rust)["cloudProvider"],
        "storageProvider": {"vsphereCloudConfig": VCENTER, "implementation": "Rust"},
    })
}

/// Claims a volume and lets a pod write to it. The message of its container is what it read back.
pub(super) async fn run(user: &User<'_>) -> Result<(), Failure> {
    user.screen.heading("A pod writes to a volume");
    let text = objects().map(|object| format!("{object:#}\n")).join("---\n");
    user.environment.workdir.write(FILE, text).context(PeerSnafu)?;
    user.types_kubectl(&["apply", "-f", FILE]).await?;
    user.types_kubectl(&["wait", "pod/writer", "--for=condition=Ready", "--timeout=180s"]).await?;
    user.types_kubectl(&["get", "persistentvolumeclaims,volumeattachments"]).await?;
    let message = "jsonpath={.status.initContainerStatuses[0].state.terminated.message}";
    user.types_kubectl(&["get", "pod", "writer", "--output", message]).await?;
    user.types_kubectl(&["get", "pods", "--all-namespaces", "--output", "wide"]).await
}

fn objects() -> [Value; 3] {
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": "vsphere"},
        "provisioner": "csi.vsphere.vmware.com",
        "volumeBindingMode": "WaitForFirstConsumer",
    });
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data"},
        "spec": {
            "storageClassName": "vsphere", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    let mounts = json!([{"name": "data", "mountPath": "/data"}]);
    let image = format!("{}/pause:1", Registry::HOST);
    let script = "echo The volume keeps this line. >/data/file; read -r line </data/file; \
                  echo $line >/dev/termination-log";
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "writer"},
        "spec": {
            "securityContext": {"runAsUser": 65532, "fsGroup": 65532},
            "initContainers": [{
                "name": "script", "image": image, "command": ["/bin/sh", "-ec", script],
                "volumeMounts": mounts,
            }],
            "containers": [{
                "name": "pause", "image": image, "volumeMounts": mounts,
            }],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        },
    });
    [class, claim, pod]
}
