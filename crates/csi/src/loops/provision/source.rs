//! The data source of a claim: a snapshot, or another claim to clone.

use kube::Api;
use serde_json::json;

use crate::{
    loops::{
        context::Context,
        model::{Claim, Metadata as _},
        names::{ALLOW_MODE_CHANGE, CLONING_PROTECTION, SNAPSHOT_SOURCE_PROTECTION},
        quantity::Bytes,
        snapshot::objects::{Content, Snapshot},
        writer::{add_finalizer, is_not_found},
    },
    proto::csi::{
        VolumeContentSource,
        controller_service_capability::rpc::Type as Rpc,
        volume_content_source::{SnapshotSource, Type, VolumeSource},
    },
};

/// The data that a new volume begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataSource {
    Empty,
    Snapshot(String),
    Claim(String),
    /// Another program fills a volume of its own and gives it to the claim.
    Populator(String),
}

/// Reads the data source from the spec of a claim.
pub fn data_source(claim: &Claim) -> Result<DataSource, String> {
    let (group, kind, name) = if let Some(source) = &claim.spec.data_source {
        (source.api_group.as_deref(), source.kind.as_str(), source.name.clone())
    } else if let Some(source) = &claim.spec.data_source_ref {
        if source.namespace.is_some() && source.namespace != claim.metadata.namespace {
            return Err("a data source in another namespace is not supported: use one in the namespace of the \
                        claim"
                .into());
        }
        (source.api_group.as_deref(), source.kind.as_str(), source.name.clone())
    } else {
        return Ok(DataSource::Empty);
    };
    Ok(match (group.unwrap_or_default(), kind) {
        ("snapshot.storage.k8s.io", "VolumeSnapshot") => DataSource::Snapshot(name),
        ("", "PersistentVolumeClaim") => DataSource::Claim(name),
        (_, kind) => DataSource::Populator(kind.into()),
    })
}

fn size(claim: &Claim) -> Bytes {
    claim.spec.resources.requests.storage.unwrap_or_default()
}

/// Whether the claim can be filled from this snapshot, and the snapshot's handle.
pub fn snapshot_handle(
    claim: &Claim,
    snapshot: &Snapshot,
    content: &Content,
    driver: &str,
) -> Result<String, String> {
    let name = snapshot.name();
    let bound_name = snapshot.status.bound_volume_snapshot_content_name.as_deref();
    let reference = &content.spec.volume_snapshot_ref;
    if bound_name != Some(content.name())
        || reference.name != name
        || reference.uid.as_deref() != Some(snapshot.uid())
    {
        return Err(format!("the VolumeSnapshot {name} is not bound to its content yet"));
    }
    if content.spec.driver != driver {
        return Err(format!(
            "the VolumeSnapshot {name} belongs to the driver {}: use a StorageClass of that driver",
            content.spec.driver
        ));
    }
    if snapshot.status.ready_to_use != Some(true) {
        return Err(format!("the VolumeSnapshot {name} is not ready to use yet"));
    }
    let handle = content.status.clone().and_then(|status| status.snapshot_handle);
    let handle = handle.unwrap_or_default();
    if handle.is_empty() {
        return Err(format!("the VolumeSnapshot {name} has no snapshot handle yet"));
    }
    if let Some(needed) = snapshot.status.restore_size
        && size(claim) < needed
    {
        return Err(format!(
            "the claim requests {}, but the VolumeSnapshot {name} needs {needed}: request at least that",
            size(claim)
        ));
    }
    let mode = |mode: Option<&str>| mode.unwrap_or("Filesystem").to_owned();
    let (wanted, source) =
        (mode(claim.spec.volume_mode.as_deref()), content.spec.source_volume_mode.as_deref());
    if source.is_some_and(|source| source != wanted)
        && content.annotation(ALLOW_MODE_CHANGE) != Some("true")
    {
        return Err(format!(
            "the claim has the volume mode {wanted}, but the VolumeSnapshot {name} was taken of a volume with \
             the mode {}: use the same mode, or set the annotation {ALLOW_MODE_CHANGE}: \"true\" on the \
             VolumeSnapshotContent {}",
            mode(source),
            content.name()
        ));
    }
    Ok(handle)
}

impl Context {
    /// The content source for CreateVolume, after its checks. The source is protected from deletion.
    pub async fn content_source(
        &self,
        claim: &Claim,
        source: &DataSource,
    ) -> Result<Option<VolumeContentSource>, String> {
        let source = match source {
            DataSource::Empty | DataSource::Populator(_) => return Ok(None),
            DataSource::Snapshot(name) => self.snapshot_source(claim, name).await?,
            DataSource::Claim(name) => self.clone_source(claim, name).await?,
        };
        Ok(Some(VolumeContentSource { r#type: Some(source) }))
    }

    async fn snapshot_source(&self, claim: &Claim, name: &str) -> Result<Type, String> {
        if !self.capabilities.has(Rpc::CreateDeleteSnapshot) {
            return Err("the driver does not support snapshots".into());
        }
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        let api = Api::<Snapshot>::namespaced(self.writer.client(), namespace);
        let snapshot = api.get(name).await.map_err(|error| match error {
            error if is_not_found(&error) => format!("the VolumeSnapshot {name} does not exist"),
            error => format!("the VolumeSnapshot {name} cannot be read: {error}"),
        })?;
        if snapshot.is_deleting() && !snapshot.has_finalizer(SNAPSHOT_SOURCE_PROTECTION) {
            return Err(format!("the VolumeSnapshot {name} is being deleted"));
        }
        let bound = snapshot.status.bound_volume_snapshot_content_name.clone().unwrap_or_default();
        if bound.is_empty() {
            return Err(format!("the VolumeSnapshot {name} is not bound to its content yet"));
        }
        let content = Api::<Content>::all(self.writer.client()).get(&bound).await;
        let content = content.map_err(|error| {
            format!("the VolumeSnapshotContent {bound} of the VolumeSnapshot {name} cannot be read: {error}")
        })?;
        let handle = snapshot_handle(claim, &snapshot, &content, &self.settings.driver)?;
        if !snapshot.has_finalizer(SNAPSHOT_SOURCE_PROTECTION) {
            let mut finalizers = snapshot.metadata.finalizers.clone().unwrap_or_default();
            finalizers.push(SNAPSHOT_SOURCE_PROTECTION.into());
            let patch = json!({"metadata": {"finalizers": finalizers}});
            let patched = self.writer.replace_fields(&snapshot, patch).await;
            patched.map_err(|e| format!("the VolumeSnapshot {name} cannot be protected: {e}"))?;
        }
        Ok(Type::Snapshot(SnapshotSource { snapshot_id: handle }))
    }

    /// Lets a snapshot be deleted again, after a volume was made from it.
    pub async fn release_snapshot(&self, claim: &Claim, name: &str) -> Result<(), kube::Error> {
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        let still_used = self.cluster.claims.find(|other| {
            other.metadata.namespace == claim.metadata.namespace
                && other.uid() != claim.uid()
                && other.spec.volume_name.as_deref().unwrap_or_default().is_empty()
                && data_source(other) == Ok(DataSource::Snapshot(name.into()))
        });
        if still_used.is_some() {
            return Ok(());
        }
        let api = Api::<Snapshot>::namespaced(self.writer.client(), namespace);
        let snapshot = match api.get(name).await {
            Err(error) if is_not_found(&error) => return Ok(()),
            other => other?,
        };
        if !snapshot.has_finalizer(SNAPSHOT_SOURCE_PROTECTION) {
            return Ok(());
        }
        let kept = snapshot.metadata.finalizers.iter().flatten();
        let kept: Vec<&String> = kept.filter(|f| *f != SNAPSHOT_SOURCE_PROTECTION).collect();
        let patch = json!({"metadata": {"finalizers": kept}});
        self.writer.replace_fields(&snapshot, patch).await.map(drop)
    }

    async fn clone_source(&self, claim: &Claim, name: &str) -> Result<Type, String> {
        if !self.capabilities.has(Rpc::CloneVolume) {
            return Err("the driver does not support cloning of volumes".into());
        }
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        let source = self.cluster.claim(namespace, name);
        let source = source
            .ok_or_else(|| format!("the claim {name}, the source of the clone, does not exist"))?;
        let volume = self.cluster.volume(source.spec.volume_name.as_deref().unwrap_or_default());
        let handle = clone_handle(claim, &source, volume.as_deref(), &self.settings.driver)?;
        if !source.has_finalizer(CLONING_PROTECTION) {
            let patched =
                self.writer.patch_namespaced(&*source, add_finalizer(CLONING_PROTECTION)).await;
            patched.map_err(|e| format!("the claim {name} cannot be protected: {e}"))?;
        }
        Ok(Type::Volume(VolumeSource { volume_id: handle }))
    }
}

/// Whether the claim can be a clone of this one, and the handle of the source volume.
pub fn clone_handle(
    claim: &Claim,
    source: &Claim,
    volume: Option<&crate::loops::model::Volume>,
    driver: &str,
) -> Result<String, String> {
    let name = source.name();
    if source.is_deleting() {
        return Err(format!("the claim {name}, the source of the clone, is being deleted"));
    }
    let volume =
        volume.filter(|volume| source.status.phase == "Bound" && volume.is_bound_to(source));
    let volume = volume
        .ok_or_else(|| format!("the claim {name}, the source of the clone, is not bound yet"))?;
    let Some(csi) = volume.source_of(driver) else {
        return Err(format!("the volume of the claim {name} belongs to another driver"));
    };
    if claim.is_block() != source.is_block() {
        return Err(format!("the claim {name}, the source of the clone, has another volume mode"));
    }
    if size(claim) < size(source) {
        return Err(format!(
            "the claim requests {}, but the claim {name}, the source of the clone, has {}: request at least that",
            size(claim),
            size(source)
        ));
    }
    Ok(csi.volume_handle.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loops::model::Volume;

    const DRIVER: &str = "csi.vsphere.vmware.com";

    fn claim(spec: &serde_json::Value) -> Claim {
        let mut claim = json!({
            "metadata": {"namespace": "shop", "name": "copy", "uid": "u-2"},
            "spec": {"resources": {"requests": {"storage": "2Gi"}}, "volumeMode": "Filesystem"},
        });
        for (key, value) in spec.as_object().unwrap() {
            claim["spec"][key] = value.clone();
        }
        serde_json::from_value(claim).unwrap()
    }

    #[test]
    fn the_source_of_a_claim_is_recognised() {
        let source = |spec| data_source(&claim(&spec));
        assert_eq!(source(json!({})), Ok(DataSource::Empty));
        let snapshot =
            json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"});
        assert_eq!(source(json!({"dataSource": snapshot})), Ok(DataSource::Snapshot("s".into())));
        assert_eq!(
            source(json!({"dataSourceRef": snapshot})),
            Ok(DataSource::Snapshot("s".into()))
        );
        let other_claim = json!({"kind": "PersistentVolumeClaim", "name": "c"});
        assert_eq!(source(json!({"dataSource": other_claim})), Ok(DataSource::Claim("c".into())));
        let backup = json!({"apiGroup": "example.com", "kind": "Backup", "name": "b"});
        assert_eq!(
            source(json!({"dataSourceRef": backup})),
            Ok(DataSource::Populator("Backup".into()))
        );
        let mut elsewhere = snapshot;
        elsewhere["namespace"] = "other".into();
        assert!(
            source(json!({"dataSourceRef": elsewhere})).unwrap_err().contains("another namespace")
        );
    }

    fn snapshot(status: &serde_json::Value) -> Snapshot {
        let mut snapshot = json!({
            "metadata": {"namespace": "shop", "name": "s", "uid": "u-s"},
            "status": {"boundVolumeSnapshotContentName": "c", "readyToUse": true, "restoreSize": "2Gi"},
        });
        for (key, value) in status.as_object().unwrap() {
            snapshot["status"][key] = value.clone();
        }
        serde_json::from_value(snapshot).unwrap()
    }

    fn content(annotations: &serde_json::Value, spec: &serde_json::Value) -> Content {
        let mut content = json!({
            "metadata": {"name": "c", "annotations": annotations},
            "spec": {
                "driver": DRIVER, "sourceVolumeMode": "Filesystem",
                "volumeSnapshotRef": {"namespace": "shop", "name": "s", "uid": "u-s"},
            },
            "status": {"snapshotHandle": "fcd+1"},
        });
        for (key, value) in spec.as_object().unwrap() {
            content["spec"][key] = value.clone();
        }
        serde_json::from_value(content).unwrap()
    }

    #[test]
    fn a_claim_is_restored_only_from_a_snapshot_that_fits() {
        let none = json!({});
        let (same, fits) = (claim(&none), content(&none, &none));
        let ok = snapshot_handle(&same, &snapshot(&none), &fits, DRIVER);
        assert_eq!(ok.as_deref(), Ok("fcd+1"));
        let small = claim(&json!({"resources": {"requests": {"storage": "1Gi"}}}));
        let block = claim(&json!({"volumeMode": "Block"}));
        let foreign = content(&none, &json!({"driver": "other"}));
        let of_other = json!({"volumeSnapshotRef": {"name": "s", "uid": "another"}});
        let cases = [
            (&small, snapshot(&none), fits.clone(), "needs 2Gi"),
            (&block, snapshot(&none), fits.clone(), ALLOW_MODE_CHANGE),
            (&same, snapshot(&json!({"readyToUse": false})), fits, "not ready"),
            (&same, snapshot(&none), foreign, "belongs to the driver other"),
            (&same, snapshot(&none), content(&none, &of_other), "not bound"),
        ];
        for (claim, snapshot, content, reason) in cases {
            let refused = snapshot_handle(claim, &snapshot, &content, DRIVER).unwrap_err();
            assert!(refused.contains(reason), "{refused}");
        }
        let allowed = content(&json!({ALLOW_MODE_CHANGE: "true"}), &none);
        assert!(snapshot_handle(&block, &snapshot(&none), &allowed, DRIVER).is_ok());
    }

    #[test]
    fn a_claim_is_cloned_only_from_a_bound_one_of_the_same_kind() {
        let mut source = claim(&json!({"volumeName": "pv"}));
        source.metadata.name = Some("data".into());
        source.status.phase = "Bound".into();
        let volume: Volume = serde_json::from_value(json!({
            "metadata": {"name": "pv"},
            "spec": {
                "claimRef": {"namespace": "shop", "name": "data", "uid": "u-2"},
                "csi": {"driver": DRIVER, "volumeHandle": "fcd"},
            },
        }))
        .unwrap();
        let same = claim(&json!({}));
        assert_eq!(clone_handle(&same, &source, Some(&volume), DRIVER).as_deref(), Ok("fcd"));
        let small = claim(&json!({"resources": {"requests": {"storage": "1Gi"}}}));
        let block = claim(&json!({"volumeMode": "Block"}));
        for (claim, volume, driver, reason) in [
            (&small, Some(&volume), DRIVER, "has 2Gi"),
            (&block, Some(&volume), DRIVER, "another volume mode"),
            (&same, None, DRIVER, "not bound"),
            (&same, Some(&volume), "other", "another driver"),
        ] {
            let refused = clone_handle(claim, &source, volume, driver).unwrap_err();
            assert!(refused.contains(reason), "{refused}");
        }
    }
}
