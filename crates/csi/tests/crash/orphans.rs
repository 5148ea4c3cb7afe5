//! A claim is deleted while the controller that creates its volume is dead.

use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use serde_json::json;

use super::*;

struct Orphan<'a> {
    site: &'a Site,
    /// The name of the volume.
    name: String,
}

impl Site {
    fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.plane.client(), "default")
    }

    async fn storage_class(&self, name: &str, policy: &str) {
        let class: StorageClass = serde_json::from_value(json!({
            "metadata": {"name": name}, "provisioner": csi::DRIVER_NAME, "reclaimPolicy": policy,
            "volumeBindingMode": "Immediate",
        }))
        .unwrap();
        let classes = Api::<StorageClass>::all(self.plane.client());
        classes.create(&PostParams::default(), &class).await.unwrap();
    }

    /// Kills the controller while it creates the volume of a claim, and deletes the claim.
    async fn orphan(&self, class: &str, fault: Fault, with_task: bool) -> Orphan<'_> {
        self.vcenter.fault(fault.times(1)).await;
        let process = self.controller_with("orphaning", &[]).await;
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({
            "metadata": {"name": "data"},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": class,
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }))
        .unwrap();
        let claims = self.claims();
        let claim = eventually("the claim is created", 60, async || {
            claims.create(&PostParams::default(), &claim).await
        })
        .await;
        let name = format!("pvc-{}", claim.metadata.uid.unwrap());
        self.recorded_as(&name, with_task).await;
        process.kill();
        claims.delete("data", &DeleteParams::default()).await.unwrap();
        eventually("the claim is gone", 60, async || match claims.get_opt("data").await {
            Ok(None) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
        self.vcenter.clear_faults().await;
        Orphan { site: self, name }
    }
}

impl Orphan<'_> {
    async fn volume(&self) -> Option<PersistentVolume> {
        let volumes = Api::<PersistentVolume>::all(self.site.plane.client());
        volumes.get_opt(&self.name).await.unwrap()
    }

    fn was_made(&self) -> bool {
        self.site.plane.audit().iter().any(|request| {
            let object = &request["objectRef"];
            request["verb"] == "create"
                && object["resource"] == "persistentvolumes"
                && request["requestObject"]["metadata"]["name"].as_str().unwrap_or(&self.name)
                    == self.name
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_volume_of_a_deleted_claim_is_handled_by_its_reclaim_policy() {
    let plane = ControlPlane::builder().with_controllers().with_audit().start().await;
    let site = Site::on(plane).await;
    site.storage_class("delete", "Delete").await;
    site.storage_class("retain", "Retain").await;
    let slow = || Fault::on("CnsCreateVolume").task_takes(Duration::from_secs(15));

    let orphan = site.orphan("delete", slow(), true).await;
    let process = site.controller_with("deletes", &[]).await;
    eventually("the volume is deleted", 60, async || {
        match (orphan.was_made(), orphan.volume().await, site.volumes().await) {
            (true, None, 0) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    process.kill();

    let orphan = site.orphan("retain", slow(), true).await;
    let process = site.controller_with("retains", &[]).await;
    eventually("the volume is released", 60, async || {
        let phase = orphan.volume().await.and_then(|volume| volume.status?.phase);
        if phase.as_deref() == Some("Released") { Ok(()) } else { Err(format!("{phase:?}")) }
    })
    .await;
    let handle = orphan.volume().await.unwrap().spec.unwrap().csi.unwrap().volume_handle;
    let in_cns = site.cns_volumes().await;
    assert_eq!(in_cns.iter().map(|volume| &*volume.id.id).collect::<Vec<_>>(), [handle]);
    assert_eq!(site.vcenter.calls().await.count("CnsCreateVolume"), 2, "one for each claim");
    process.kill();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_creation_that_made_nothing_leaves_nothing() {
    let plane = ControlPlane::builder().with_controllers().with_audit().start().await;
    let site = Site::on(plane).await;
    site.storage_class("delete", "Delete").await;
    let orphan = site.orphan("delete", Fault::on("CnsCreateVolume").hangs(), false).await;
    let process = site.controller_with("finishes", &[]).await;
    eventually("the record is gone", 90, async || {
        let names = site.record_names().await;
        if names.is_empty() { Ok(()) } else { Err(format!("{names:?}")) }
    })
    .await;
    assert_eq!(site.volumes().await, 0);
    assert!(orphan.volume().await.is_none());
    process.kill();
}
