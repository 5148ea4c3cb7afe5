//! The reclaim loop: volumes whose claim is gone are deleted, if the reclaim policy of their PersistentVolume is Delete.
//!
//! It also keeps the finalizers of PersistentVolumes: the provisioner's, which keeps an object until its volume is
//! deleted, and the attacher's, which keeps it until it is detached from every node.

use kube::Api;
use tonic::Request;

use super::{
    context::Shared,
    events::{ObjectReference, Source},
    model::{Attachment, Metadata as _, Volume},
    names::{ATTACHER_FINALIZER, PROVISIONED_BY, PROVISIONER_FINALIZER},
    queue::{Next, Reconcile},
    writer::{add_finalizer, after_failure, is_not_found, remove_finalizers},
};
use crate::proto::csi::DeleteVolumeRequest;

/// The next step for a PersistentVolume.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    Nothing,
    AddFinalizer,
    RemoveFinalizers(Vec<&'static str>),
    /// Delete the volume, then the object.
    Delete,
    /// It would be deleted, but something still uses it.
    Blocked(String),
}

/// Whether the driver manages the life of this PersistentVolume.
fn is_ours(volume: &Volume, driver: &str) -> bool {
    volume.source_of(driver).is_some()
        && volume.annotation(PROVISIONED_BY).is_none_or(|provisioner| provisioner == driver)
}

/// Decides the next step. `attachment` is any VolumeAttachment that names the volume.
pub fn step(volume: &Volume, attachment: Option<&Attachment>, driver: &str) -> Step {
    if volume.source_of(driver).is_none() {
        return Step::Nothing;
    }
    let ours = is_ours(volume, driver);
    let deletes = volume.spec.persistent_volume_reclaim_policy == "Delete";
    let has_finalizer = volume.has_finalizer(PROVISIONER_FINALIZER);
    let deleting = volume.is_deleting();
    // Without a claim reference, an admin is about to use the volume again.
    let released = volume.status.phase == "Released" && volume.spec.claim_ref.is_some();
    if ours && released && deletes && (has_finalizer || !deleting) {
        return attachment.map_or(Step::Delete, |attachment| {
            Step::Blocked(format!(
                "persistentvolume {} is still attached to node {}",
                volume.name(),
                attachment.spec.node_name
            ))
        });
    }
    let mut remove = Vec::new();
    if ours && !deletes && has_finalizer {
        remove.push(PROVISIONER_FINALIZER);
    }
    if deleting && attachment.is_none() && volume.has_finalizer(ATTACHER_FINALIZER) {
        remove.push(ATTACHER_FINALIZER);
    }
    if !remove.is_empty() {
        return Step::RemoveFinalizers(remove);
    }
    if ours && deletes && volume.status.phase == "Bound" && !deleting && !has_finalizer {
        return Step::AddFinalizer;
    }
    Step::Nothing
}

/// Whether a change of the volume can concern this loop.
pub fn concerns(volume: &Volume, driver: &str) -> bool {
    !matches!(step(volume, None, driver), Step::Nothing)
}

pub struct Reclaimer {
    context: Shared,
}

impl Reclaimer {
    pub fn new(context: Shared) -> Self {
        Self { context }
    }

    async fn delete(&self, name: &str) -> Next {
        // Data is lost here, so the decision is made again on the current object.
        let api = Api::<Volume>::all(self.context.writer.client());
        let volume = match api.get(name).await {
            Ok(volume) => volume,
            Err(error) if is_not_found(&error) => return Next::OnChange,
            Err(error) => {
                tracing::warn!(%error, name, "a PersistentVolume cannot be read");
                return Next::Retry;
            }
        };
        let driver = &self.context.settings.driver;
        let attachment = self.context.cluster.attachment_of(name);
        if step(&volume, attachment.as_deref(), driver) != Step::Delete {
            return Next::Conflict;
        }
        if let Some(reason) = self.still_used(&volume) {
            return self.failed(&volume, reason);
        }
        let Some(source) = volume.source_of(driver) else { return Next::OnChange };
        let request =
            DeleteVolumeRequest { volume_id: source.volume_handle.clone(), ..Default::default() };
        let calls = &self.context.calls;
        let deleted = calls.send(calls.service().delete_volume(Request::new(request))).await;
        if let Err(status) = deleted {
            return self.failed(&volume, status.message().to_owned());
        }
        tracing::info!(name, handle = source.volume_handle, "the volume is deleted");
        self.remove_object(&volume).await
    }

    /// Another object that uses the same volume. Kubernetes allows that, and the data belongs to both.
    fn still_used(&self, volume: &Volume) -> Option<String> {
        let cluster = &self.context.cluster;
        let claim_ref = volume.spec.claim_ref.as_ref()?;
        let claim = cluster.claim(&claim_ref.namespace, &claim_ref.name);
        if claim.is_some_and(|claim| volume.is_bound_to(&claim)) {
            return Some(format!(
                "the claim {}/{} still exists: the volume is not deleted",
                claim_ref.namespace, claim_ref.name
            ));
        }
        let handle = volume.spec.csi.as_ref().map(|csi| &csi.volume_handle);
        let driver = &self.context.settings.driver;
        let other = cluster.volumes.find(|other| {
            other.source_of(driver).map(|csi| &csi.volume_handle) == handle
                && other.uid() != volume.uid()
                && !(other.status.phase == "Released" && other.is_deleting())
        });
        other.map(|other| {
            format!(
                "the PersistentVolume {} uses the same volume: delete it first, or set the reclaim policy of {} \
                 to Retain",
                other.name(),
                volume.name()
            )
        })
    }

    async fn remove_object(&self, volume: &Volume) -> Next {
        let writer = &self.context.writer;
        if !volume.is_deleting()
            && let Err(error) = writer.delete(volume).await
        {
            return after_failure(&error);
        }
        let ours = [PROVISIONER_FINALIZER, ATTACHER_FINALIZER];
        let present: Vec<&str> =
            ours.into_iter().filter(|finalizer| volume.has_finalizer(finalizer)).collect();
        if present.is_empty() {
            return Next::OnChange;
        }
        match writer.patch(volume, remove_finalizers(&present)).await {
            Ok(_) => Next::OnChange,
            Err(error) => after_failure(&error),
        }
    }

    fn failed(&self, volume: &Volume, reason: String) -> Next {
        let object = ObjectReference::to(volume);
        self.context.events.warning(object, Source::Provisioner, "VolumeFailedDelete", reason);
        Next::Retry
    }
}

impl Reconcile for Reclaimer {
    async fn reconcile(&self, name: &str) -> Next {
        let Some(volume) = self.context.cluster.volume(name) else { return Next::OnChange };
        if !self.context.writer.is_current(&*volume) {
            return Next::Conflict;
        }
        let attachment = self.context.cluster.attachment_of(name);
        let patch = match step(&volume, attachment.as_deref(), &self.context.settings.driver) {
            Step::Nothing => return Next::OnChange,
            Step::Delete => return self.delete(name).await,
            Step::Blocked(reason) => return self.failed(&volume, reason),
            Step::AddFinalizer => add_finalizer(PROVISIONER_FINALIZER),
            Step::RemoveFinalizers(finalizers) => remove_finalizers(&finalizers),
        };
        match self.context.writer.patch(&*volume, patch).await {
            Ok(_) => Next::OnChange,
            Err(error) => after_failure(&error),
        }
    }

    fn known_version(&self, name: &str) -> u64 {
        let volume = self.context.cluster.volume(name);
        volume.map_or(0, |volume| self.context.writer.known_version(&*volume))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const DRIVER: &str = "csi.vsphere.vmware.com";

    fn volume(policy: &str, phase: &str, finalizers: &[&str], deleting: bool) -> Volume {
        let deletion = deleting.then_some("2026-01-01T00:00:00Z");
        serde_json::from_value(json!({
            "metadata": {
                "name": "pv", "finalizers": finalizers, "deletionTimestamp": deletion,
                "annotations": {PROVISIONED_BY: DRIVER},
            },
            "spec": {
                "persistentVolumeReclaimPolicy": policy, "csi": {"driver": DRIVER, "volumeHandle": "fcd"},
                "claimRef": {"namespace": "shop", "name": "data", "uid": "u-1"},
            },
            "status": {"phase": phase},
        }))
        .unwrap()
    }

    fn attachment() -> Attachment {
        serde_json::from_value(json!({"metadata": {}, "spec": {"nodeName": "n1"}})).unwrap()
    }

    const OURS: &[&str] = &[PROVISIONER_FINALIZER];

    #[test]
    fn a_released_volume_is_deleted_only_with_the_policy_delete() {
        let decide = |policy, phase, finalizers, deleting| {
            step(&volume(policy, phase, finalizers, deleting), None, DRIVER)
        };
        assert_eq!(decide("Delete", "Released", OURS, false), Step::Delete);
        assert_eq!(decide("Delete", "Released", OURS, true), Step::Delete);
        assert_eq!(decide("Delete", "Released", &[], false), Step::Delete);
        // Its finalizer is gone: the volume is deleted already, or the user removed the protection.
        assert_eq!(decide("Delete", "Released", &[], true), Step::Nothing);
        assert_eq!(decide("Retain", "Released", &[], false), Step::Nothing);
        assert_eq!(decide("Delete", "Failed", OURS, false), Step::Nothing);
        assert_eq!(decide("Delete", "Available", OURS, true), Step::Nothing);
    }

    #[test]
    fn a_volume_that_an_admin_uses_again_is_not_deleted() {
        let mut reused = volume("Delete", "Released", OURS, false);
        reused.spec.claim_ref = None;
        assert_eq!(step(&reused, None, DRIVER), Step::Nothing);
    }

    #[test]
    fn a_bound_volume_is_never_deleted_and_keeps_its_protection() {
        let decide = |finalizers, deleting| {
            step(&volume("Delete", "Bound", finalizers, deleting), None, DRIVER)
        };
        assert_eq!(decide(OURS, true), Step::Nothing);
        assert_eq!(decide(OURS, false), Step::Nothing);
        assert_eq!(decide(&[], false), Step::AddFinalizer);
        assert_eq!(decide(&[], true), Step::Nothing);
    }

    #[test]
    fn a_volume_to_retain_needs_no_protection() {
        for phase in ["Bound", "Released", "Available"] {
            let decided = step(&volume("Retain", phase, OURS, false), None, DRIVER);
            assert_eq!(decided, Step::RemoveFinalizers(OURS.to_vec()), "{phase}");
        }
    }

    #[test]
    fn an_attached_volume_is_not_deleted() {
        let decided = step(&volume("Delete", "Released", OURS, false), Some(&attachment()), DRIVER);
        let expected = "persistentvolume pv is still attached to node n1";
        assert_eq!(decided, Step::Blocked(expected.into()));
    }

    #[test]
    fn the_attacher_releases_a_deleted_volume_that_is_attached_nowhere() {
        let protected = volume("Retain", "Available", &[ATTACHER_FINALIZER], true);
        let expected = Step::RemoveFinalizers(vec![ATTACHER_FINALIZER]);
        assert_eq!(step(&protected, None, DRIVER), expected);
        assert_eq!(step(&protected, Some(&attachment()), DRIVER), Step::Nothing);
        let alive = volume("Retain", "Bound", &[ATTACHER_FINALIZER], false);
        assert_eq!(step(&alive, None, DRIVER), Step::Nothing);
    }

    #[test]
    fn volumes_of_other_drivers_are_left_alone() {
        let mut other_driver = volume("Delete", "Released", OURS, false);
        other_driver.spec.csi.as_mut().unwrap().driver = "other".into();
        assert_eq!(step(&other_driver, None, DRIVER), Step::Nothing);
        let mut other_provisioner = volume("Delete", "Released", OURS, false);
        let annotations = other_provisioner.metadata.annotations.as_mut().unwrap();
        annotations.insert(PROVISIONED_BY.into(), "other".into());
        assert_eq!(step(&other_provisioner, None, DRIVER), Step::Nothing);
    }
}
