//! Why a step of a test does not get further: what Kubernetes and the driver report about its objects.

use std::collections::BTreeSet;

use api::Finding;
use health::messages;
use k8s_openapi::api::{
    core::v1::{Event, ObjectReference},
    storage::v1::VolumeAttachment,
};
use kube::{Api, ResourceExt, api::ListParams};

use super::{observation::Observation, report::RelatedFinding};
use crate::{
    cluster::Cluster,
    rollout::{one_line, trouble_of},
};

/// The namespace of events about objects without a namespace.
const CLUSTER_EVENTS: &str = "default";

/// The reasons why a step does not get further, most telling first.
pub(super) async fn reasons(cluster: &Cluster, seen: &Observation) -> Vec<String> {
    let uid = |object: Option<String>| object.unwrap_or_default();
    let claim = uid(seen.claim.as_ref().and_then(ResourceExt::uid));
    let pod = uid(seen.pod.as_ref().and_then(ResourceExt::uid));
    let volume = uid(seen.volume.as_ref().and_then(ResourceExt::uid));
    let mut events = events(cluster, &cluster.namespace, &claim).await;
    events.extend(self::events(cluster, &cluster.namespace, &pod).await);
    events.extend(self::events(cluster, CLUSTER_EVENTS, &volume).await);
    explanation(seen, &events)
}

/// The events about an object. A user without permission to read events gets none.
async fn events(cluster: &Cluster, namespace: &str, uid: &str) -> Vec<Event> {
    if uid.is_empty() {
        return Vec::new();
    }
    let api = Api::<Event>::namespaced(cluster.client.clone(), namespace);
    let about = ListParams::default().fields(&format!("involvedObject.uid={uid}"));
    api.list(&about).await.map(|list| list.items).unwrap_or_default()
}

fn explanation(seen: &Observation, events: &[Event]) -> Vec<String> {
    let trouble = seen.pod.as_ref().and_then(trouble_of).map(|trouble| trouble.text);
    let mut all: Vec<String> = seen.attachments.iter().flat_map(errors).collect();
    let warnings = newest(events, |event| {
        // The condition of the pod has the same text.
        let repeats = trouble.is_some() && event.reason.as_deref() == Some("FailedScheduling");
        event.type_.as_deref() == Some("Warning") && !repeats
    });
    all.extend(warnings);
    all.extend(trouble);
    if all.is_empty() {
        all = newest(events, |_| true).pop().into_iter().collect();
    }
    all.iter().map(|text| clean(text)).collect()
}

/// As vdoctl shows a text of the cluster: in one line, without secrets.
pub(super) fn clean(text: &str) -> String {
    redaction::redact_line(&one_line(text))
}

/// The newest event of each reason, oldest first.
fn newest(events: &[Event], wanted: impl Fn(&Event) -> bool) -> Vec<String> {
    let mut ordered: Vec<&Event> = events.iter().filter(|event| wanted(event)).collect();
    ordered.sort_by_key(|event| {
        let time = event.last_timestamp.as_ref().map(|time| time.0);
        time.or_else(|| event.event_time.as_ref().map(|time| time.0))
    });
    let mut seen = BTreeSet::new();
    let mut texts = Vec::new();
    for event in ordered.into_iter().rev() {
        let ObjectReference { kind, .. } = &event.involved_object;
        let kind = kind.as_deref().unwrap_or("object");
        let reason = event.reason.as_deref().unwrap_or("event");
        if seen.insert((kind.to_owned(), reason.to_owned())) {
            let message = event.message.as_deref().unwrap_or_default();
            texts.push(format!("{kind}: {reason}: {message}"));
        }
    }
    texts.reverse();
    texts
}

/// The answers of the driver.
fn errors(attachment: &VolumeAttachment) -> Vec<String> {
    let status = attachment.status.clone().unwrap_or_default();
    let errors = [("attach", status.attach_error), ("detach", status.detach_error)];
    let text = |(deed, error): (&str, Option<_>)| {
        let error: k8s_openapi::api::storage::v1::VolumeError = error?;
        let message = error.message.unwrap_or_default();
        Some(format!("VolumeAttachment: cannot {deed} on {}: {message}", attachment.spec.node_name))
    };
    errors.into_iter().filter_map(text).collect()
}

/// The meaning of a message for the user.
pub(super) fn explained(message: &str, image: &str) -> Option<String> {
    if message.contains("unrecognized subcommand") {
        return Some(format!(
            "The operator's image {image} is older than vdoctl and lacks this test: vdoctl deploy upgrades it."
        ));
    }
    if message.contains("did not have enough free storage") {
        return Some(
            "The storage driver reports no free capacity for this StorageClass on that node: its storage policy or \
             datastore does not exist, is full, or is not accessible from the node."
                .to_owned(),
        );
    }
    message.contains("Permission denied").then(|| {
        "The pod runs as user and group 65532. The driver did not give the files of this volume to that group \
         (fsGroup), so only root can write to volumes of this StorageClass."
            .to_owned()
    })
}

/// The operator's findings about the objects of a test, and those that its messages indicate.
pub(super) fn related(
    findings: &[Finding],
    objects: &[(&str, String)],
    reasons: &[String],
) -> Vec<RelatedFinding> {
    let concerns = |finding: &&Finding| {
        let mut all = finding.objects.iter();
        all.any(|about| {
            objects.iter().any(|(kind, name)| about.kind == *kind && about.name == *name)
        })
    };
    let reported = findings.iter().filter(concerns).map(|finding| RelatedFinding {
        code: finding.code.clone(),
        text: clean(finding.seen.as_ref().unwrap_or(&finding.title)),
    });
    let indicated =
        reasons.iter().filter_map(|reason| messages::explain(reason)).filter_map(|known| {
            let definition = known.findings.first()?;
            Some(RelatedFinding {
                code: definition.code.to_owned(),
                text: known.meaning.to_owned(),
            })
        });
    let mut all: Vec<RelatedFinding> = Vec::new();
    for finding in reported.chain(indicated) {
        if !all.iter().any(|known| known.code == finding.code) {
            all.push(finding);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use api::finding::{Subject, codes};
    use serde_json::{Value, json};

    use super::*;

    fn event(kind: &str, type_: &str, reason: &str, message: &str, minute: u8) -> Event {
        serde_json::from_value(json!({
            "metadata": {}, "involvedObject": {"kind": kind}, "type": type_, "reason": reason,
            "message": message, "lastTimestamp": format!("2026-01-01T10:{minute:02}:00Z"),
        }))
        .unwrap()
    }

    fn seen(pod: Value, attachments: Value) -> Observation {
        Observation {
            pod: serde_json::from_value(pod).unwrap(),
            attachments: serde_json::from_value(attachments).unwrap(),
            ..Observation::default()
        }
    }

    #[test]
    fn the_newest_warning_of_each_reason_is_shown_without_secrets() {
        let events = [
            event("PersistentVolumeClaim", "Normal", "Provisioning", "started", 9),
            event("PersistentVolumeClaim", "Warning", "ProvisioningFailed", "new: no\npolicy", 5),
            event("PersistentVolumeClaim", "Warning", "ProvisioningFailed", "old", 1),
            event("Pod", "Warning", "FailedMount", "password=Secret4711 is wrong", 3),
        ];
        let shown = explanation(&seen(json!(null), json!([])), &events);
        assert_eq!(shown.len(), 2, "{shown:?}");
        assert!(
            shown[0].starts_with("Pod: FailedMount:") && !shown[0].contains("4711"),
            "{shown:?}"
        );
        assert_eq!(shown[1], "PersistentVolumeClaim: ProvisioningFailed: new: no policy");
    }

    #[test]
    fn the_answer_of_the_driver_comes_first_and_nothing_is_shown_twice() {
        let attachments = json!([{
            "metadata": {"name": "a"}, "spec": {"attacher": "d", "nodeName": "n-1", "source": {}},
            "status": {"attached": false, "attachError": {"message": "the VM is locked"}},
        }]);
        let pod = json!({"metadata": {"name": "p"}, "status": {"phase": "Pending", "conditions": [{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no memory",
        }]}});
        let events = [event("Pod", "Warning", "FailedScheduling", "no memory", 1)];
        let shown = explanation(&seen(pod, attachments), &events);
        assert_eq!(shown[0], "VolumeAttachment: cannot attach on n-1: the VM is locked");
        assert_eq!(shown[1..], ["pod p fits on no node: no memory"]);
    }

    #[test]
    fn without_a_warning_the_newest_event_shows_what_kubernetes_waits_for() {
        let waiting = "Waiting for a volume to be created";
        let events = [
            event("PersistentVolumeClaim", "Normal", "WaitForFirstConsumer", "waiting", 1),
            event("PersistentVolumeClaim", "Normal", "ExternalProvisioning", waiting, 2),
        ];
        let shown = explanation(&seen(json!(null), json!([])), &events);
        assert_eq!(shown, [format!("PersistentVolumeClaim: ExternalProvisioning: {waiting}")]);
    }

    #[test]
    fn findings_about_objects_of_the_test_are_named_and_no_others() {
        let finding = |name: &str| {
            let mut finding = codes::DISK_UUID_OFF.found().build();
            finding.objects = vec![Subject::kubernetes("Node", None, name)];
            finding
        };
        let objects = [("Node", "n-1".to_owned())];
        let named = related(&[finding("n-1"), finding("n-1")], &objects, &[]);
        assert_eq!(named.len(), 1, "{named:?}");
        assert_eq!(named[0].code, "VDO-1203");
        assert!(related(&[finding("n-2")], &objects, &[]).is_empty());
    }

    #[test]
    fn the_meaning_of_a_message_is_explained() {
        let old = explained("error: unrecognized subcommand 'volume'", "r/vdo:1").unwrap();
        assert!(old.contains("r/vdo:1") && old.contains("vdoctl deploy"), "{old}");
        assert!(explained("Permission denied (os error 13)", "").unwrap().contains("fsGroup"));
        let full = "0/2 nodes are available: 2 node(s) did not have enough free storage.";
        assert!(explained(full, "").unwrap().contains("its storage policy or datastore"));
        assert_eq!(explained("Input/output error", ""), None);
    }
}
