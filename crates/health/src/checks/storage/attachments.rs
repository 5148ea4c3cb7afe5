//! Attaching and detaching come to an end.

use crate::{checks::prelude::*, messages};

pub(super) const CHECK: Check = Check {
    name: "storage/attachments",
    gives: &[codes::DETACH_STUCK, codes::ATTACH_FAILS],
    run: Run::Cluster(&[Part::Nodes, Part::Vms, Part::Volumes], check),
};

/// How long it may take.
const PATIENCE: i64 = 120;

fn check(view: &View<'_>, sink: &mut Sink) {
    let storage = &view.facts.storage;
    let question = "whether volumes are attached and detached in time";
    let Some(attachments) = sink.need(&storage.attachments, cluster_subject, question) else {
        return;
    };
    for attachment in attachments {
        let age = view.seconds_since(attachment.since);
        if age < PATIENCE || attachment.message.is_empty() {
            continue;
        }
        let cns = storage.cns.get();
        let forgotten = attachment.message.contains("not found in QueryVolume")
            || cns.is_some_and(|cns| !cns.contains_key(&attachment.volume));
        let definition = if attachment.detaching && forgotten {
            codes::DETACH_STUCK
        } else {
            codes::ATTACH_FAILS
        };
        let machine = view.node(&attachment.node).and_then(|node| view.only_machine(node));
        let vm = machine.map_or("THE_NODES_VM", |found| found.vm.path.as_str());
        let meaning = messages::explain(&attachment.message);
        let subject = Subject::kubernetes("VolumeAttachment", None, &attachment.name);
        sink.raise(
            Hit::new(definition, subject)
                .with("attachment", &attachment.name)
                .with("node", &attachment.node)
                .with("vm", vm)
                .with("handle", &attachment.volume)
                .with("age", span(age))
                .with("message", &attachment.message)
                .with("meaning", meaning.map_or(String::new(), |m| format!("; {}", m.meaning)))
                .shared("patch", r#"{"metadata":{"finalizers":null}}"#)
                .node(&attachment.node)
                .at(Anchor::Volume, &attachment.volume),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Attachment;

    fn attachment(detaching: bool, message: &str) -> Attachment {
        Attachment {
            name: "csi-1".into(),
            volume: crate::sample::handle(1),
            node: "worker-1".into(),
            detaching,
            message: message.into(),
            since: jiff::Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn a_volume_that_does_not_come_is_named_with_the_meaning_of_the_words() {
        shows(
            &CHECK,
            &["VDO-1520"],
            |facts| {
                let message = "CNS: Failed to attach disk because missing SCSI controller";
                facts.storage.attachments = vec![attachment(false, message)].into();
            },
            |facts| facts.storage.attachments = Known::unknown("VDO may not list them"),
        );
    }

    #[test]
    fn a_volume_that_cannot_go_because_vcenter_forgot_it_is_told_apart() {
        let mut facts = healthy();
        let message = "failed to detach: volumeID \"volume-1\" not found in QueryVolume";
        facts.storage.attachments = vec![attachment(true, message)].into();
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1519"]);
    }

    #[test]
    fn what_is_under_way_is_no_fault() {
        let mut facts = healthy();
        let fresh = Attachment { since: facts.now, ..attachment(false, "still at it") };
        facts.storage.attachments = vec![fresh].into();
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }
}
