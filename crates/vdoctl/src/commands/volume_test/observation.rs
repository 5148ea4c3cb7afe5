//! The objects of a test as the cluster shows them, and how far a step is.

use k8s_openapi::api::{
    core::v1::{ContainerState, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::VolumeAttachment,
};
use kube::ResourceExt as _;
use plan::names::CSI_DRIVER;

use super::{ownership, report::Step};

/// The objects of a test at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Observation {
    pub(super) claim: Option<PersistentVolumeClaim>,
    pub(super) volume: Option<PersistentVolume>,
    /// The attachments of the volume to the nodes of the test.
    pub(super) attachments: Vec<VolumeAttachment>,
    /// The pod of the step.
    pub(super) pod: Option<Pod>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    Done(String),
    Waits(&'static str),
    Failed(String),
}

/// The name of the attachment that Kubernetes makes for a volume and a node.
pub(super) fn attachment_name(handle: &str, node: &str) -> String {
    let digest = oci::Digest::from_bytes(format!("{handle}{CSI_DRIVER}{node}").as_bytes());
    format!("csi-{}", digest.hex())
}

pub(super) fn handle(volume: &PersistentVolume) -> Option<&str> {
    Some(volume.spec.as_ref()?.csi.as_ref()?.volume_handle.as_str())
}

impl Observation {
    /// How far a step is. `node` is the node of its pod.
    pub(super) fn judge(&self, step: Step, node: &str) -> Judgement {
        match step {
            Step::Create => self.created(),
            Step::Attach => self.attached(node),
            Step::Mount => self.started(),
            Step::Write | Step::Read => self.ended(),
            Step::Detach | Step::Delete => self.detached(),
            Step::Move => match self.attached(node) {
                Judgement::Done(_) => match self.started() {
                    Judgement::Done(_) => Judgement::Done(node.to_owned()),
                    other => other,
                },
                other => other,
            },
        }
    }

    fn created(&self) -> Judgement {
        let Some(claim) = &self.claim else {
            return Judgement::Failed("the claim was deleted during the test".into());
        };
        match claim.status.as_ref().and_then(|status| status.phase.as_deref()) {
            Some("Lost") => return Judgement::Failed("the claim lost its volume".into()),
            Some("Bound") => {}
            _ => return self.unless_pod_failed("waits for a PersistentVolume"),
        }
        let Some(volume) = &self.volume else { return Judgement::Waits("reads the volume") };
        let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
        match ownership::foreign(volume, claim, class.unwrap_or_default()) {
            Some(why) => Judgement::Failed(why),
            None => Judgement::Done(format!("PersistentVolume {}", volume.name_any())),
        }
    }

    fn attached(&self, node: &str) -> Judgement {
        let is_attached = |one: &VolumeAttachment| {
            one.spec.node_name == node && one.status.as_ref().is_some_and(|status| status.attached)
        };
        // A container runs only after its volume is attached and mounted.
        if self.attachments.iter().any(is_attached) || self.container().is_some() {
            return Judgement::Done(node.to_owned());
        }
        self.unless_pod_failed("waits for the VolumeAttachment")
    }

    fn started(&self) -> Judgement {
        if self.container().is_some() {
            return Judgement::Done(String::new());
        }
        self.unless_pod_failed("waits until the pod runs")
    }

    fn ended(&self) -> Judgement {
        let state = self.container();
        let Some(ended) = state.as_ref().and_then(|state| state.terminated.as_ref()) else {
            return self.unless_pod_failed("waits until the pod ends");
        };
        if ended.exit_code == 0 {
            return Judgement::Done(String::new());
        }
        let output = ended.message.as_deref().unwrap_or_default().trim();
        let reason = ended.reason.as_deref().unwrap_or("Error");
        let colon = if output.is_empty() { "" } else { ": " };
        Judgement::Failed(format!("{reason}, exit code {}{colon}{output}", ended.exit_code))
    }

    fn detached(&self) -> Judgement {
        if self.pod.is_some() {
            return Judgement::Waits("waits until the pod is gone");
        }
        if self.attachments.is_empty() {
            return Judgement::Done(String::new());
        }
        Judgement::Waits("waits until the VolumeAttachment is gone")
    }

    /// The state of a container that has run.
    fn container(&self) -> Option<ContainerState> {
        let status = self.pod.as_ref()?.status.as_ref()?;
        let state = status.container_statuses.as_ref()?.first()?.state.clone()?;
        (state.running.is_some() || state.terminated.is_some()).then_some(state)
    }

    fn unless_pod_failed(&self, waits: &'static str) -> Judgement {
        let Some(pod) = &self.pod else {
            return Judgement::Failed("the pod was deleted during the test".into());
        };
        let status = pod.status.clone().unwrap_or_default();
        if status.phase.as_deref() != Some("Failed") {
            return Judgement::Waits(waits);
        }
        let reason = status.reason.unwrap_or_else(|| "the pod failed".to_owned());
        let message = status.message.map(|message| format!(": {message}")).unwrap_or_default();
        Judgement::Failed(format!("{reason}{message}"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[expect(
        clippy::needless_pass_by_value,
        clippy::unnecessary_wraps,
        reason = "json! makes values, and an observation may lack the pod"
    )]
    fn pod(status: Value) -> Option<Pod> {
        Some(serde_json::from_value(json!({"metadata": {"name": "p"}, "status": status})).unwrap())
    }

    #[expect(clippy::needless_pass_by_value, reason = "json! makes values")]
    fn container(state: Value) -> Option<Pod> {
        let container = json!({"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state});
        pod(json!({"phase": "Running", "containerStatuses": [container]}))
    }

    fn attachment(node: &str, attached: bool) -> VolumeAttachment {
        serde_json::from_value(json!({
            "metadata": {"name": "a"}, "status": {"attached": attached},
            "spec": {"attacher": CSI_DRIVER, "nodeName": node, "source": {"persistentVolumeName": "pv-1"}},
        }))
        .unwrap()
    }

    fn bound(annotations: &Value) -> Observation {
        let claim = json!({
            "metadata": {"name": "c", "uid": "u"}, "spec": {"storageClassName": "copy", "volumeName": "pv-1"},
            "status": {"phase": "Bound"},
        });
        let volume = json!({
            "metadata": {"name": "pv-1", "annotations": annotations},
            "spec": {
                "storageClassName": "copy", "claimRef": {"uid": "u"},
                "csi": {"driver": CSI_DRIVER, "volumeHandle": "fcd-1"},
            },
        });
        Observation {
            claim: serde_json::from_value(claim).unwrap(),
            volume: serde_json::from_value(volume).unwrap(),
            pod: pod(json!({"phase": "Pending"})),
            ..Observation::default()
        }
    }

    #[test]
    fn a_volume_is_created_only_if_it_was_made_for_the_claim() {
        let ours = bound(&json!({"pv.kubernetes.io/provisioned-by": CSI_DRIVER}));
        assert_eq!(ours.judge(Step::Create, "n"), Judgement::Done("PersistentVolume pv-1".into()));
        let foreign = bound(&json!({})).judge(Step::Create, "n");
        assert!(
            matches!(&foreign, Judgement::Failed(why) if why.contains("was not provisioned")),
            "{foreign:?}"
        );
        let mut pending = ours.clone();
        pending.claim.as_mut().unwrap().status = None;
        assert!(matches!(pending.judge(Step::Create, "n"), Judgement::Waits(_)));
        let gone = Observation { claim: None, ..ours };
        assert!(matches!(gone.judge(Step::Create, "n"), Judgement::Failed(_)));
    }

    #[test]
    fn an_attachment_counts_for_its_node() {
        let mut seen =
            Observation { pod: pod(json!({"phase": "Pending"})), ..Observation::default() };
        assert!(matches!(seen.judge(Step::Attach, "n-1"), Judgement::Waits(_)));
        seen.attachments = vec![attachment("n-2", true), attachment("n-1", false)];
        assert!(matches!(seen.judge(Step::Attach, "n-1"), Judgement::Waits(_)));
        assert_eq!(seen.judge(Step::Attach, "n-2"), Judgement::Done("n-2".into()));
        assert!(
            matches!(seen.judge(Step::Move, "n-2"), Judgement::Waits(_)),
            "it does not run yet"
        );
        seen.pod = container(json!({"running": {}}));
        assert_eq!(seen.judge(Step::Move, "n-2"), Judgement::Done("n-2".into()));
    }

    #[test]
    fn the_exit_code_of_the_pod_decides() {
        let ended = |code: i32, message: &str| {
            let state =
                json!({"terminated": {"exitCode": code, "reason": "Error", "message": message}});
            let seen = Observation { pod: container(state), ..Observation::default() };
            seen.judge(Step::Read, "n")
        };
        assert_eq!(ended(0, ""), Judgement::Done(String::new()));
        let failed = Judgement::Failed("Error, exit code 1: cannot read /volume/vdo-test".into());
        assert_eq!(ended(1, "cannot read /volume/vdo-test\n"), failed);
        let evicted = pod(json!({"phase": "Failed", "reason": "Evicted", "message": "no disk"}));
        let seen = Observation { pod: evicted, ..Observation::default() };
        assert_eq!(seen.judge(Step::Mount, "n"), Judgement::Failed("Evicted: no disk".into()));
    }

    #[test]
    fn a_volume_is_detached_when_pod_and_attachments_are_gone() {
        let seen = |pod: Option<Pod>, attachments: Vec<VolumeAttachment>| {
            let seen = Observation { attachments, pod, ..Observation::default() };
            seen.judge(Step::Detach, "n")
        };
        assert!(matches!(seen(pod(json!({})), vec![]), Judgement::Waits(_)));
        assert!(matches!(seen(None, vec![attachment("n", false)]), Judgement::Waits(_)));
        assert_eq!(seen(None, vec![]), Judgement::Done(String::new()));
    }

    #[test]
    fn an_attachment_has_the_name_that_kubernetes_gives_it() {
        // sha256sum of "fcd-1csi.vsphere.vmware.comnode-1"
        assert_eq!(
            attachment_name("fcd-1", "node-1"),
            "csi-ba279107a767bb685d0e735a6be8e5824811540ae6f039af5fac849d4fcc9f7a"
        );
    }
}
