//! Volumes attach and detach in time; if not, the driver's message and vCenter's inventory show the cause.

use api::finding::quoted;

use crate::{
    checks::{
        meaning::{self, About, Meanings},
        prelude::*,
    },
    facts::Attachment,
};

pub(super) const CHECK: Check = Check {
    name: "storage/attachments",
    gives: &[
        codes::DETACH_STUCK,
        codes::ATTACH_FAILS,
        codes::VOLUME_DISK_LOST,
        codes::DISK_HELD_ELSEWHERE,
    ],
    run: CheckScope::Cluster(meaning::PARTS, check),
};

/// Seconds that attaching or detaching may take.
const GRACE_PERIOD: i64 = 120;

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    let storage = &view.facts.storage;
    let question = "whether volumes attach and detach in time";
    let Some(attachments) = sink.need(&storage.attachments, cluster_subject, question) else {
        return;
    };
    let meanings = Meanings::new(view);
    for attachment in attachments {
        sink.recheck(view, attachment.since, view.grace_period(GRACE_PERIOD));
        let age = view.seconds_since(attachment.since);
        if age < view.grace_period(GRACE_PERIOD) || attachment.message.is_empty() {
            continue;
        }
        stuck(view, attachment, &meanings, sink);
        let volume = storage.volumes.get().and_then(|volumes| volumes.get(&attachment.volume));
        if let Some(volume) = volume.filter(|_| !attachment.detaching) {
            disk_lost(view, attachment, volume, sink);
            held_elsewhere(view, attachment, volume, sink);
        }
    }
}

fn stuck(view: &FactsView<'_>, attachment: &Attachment, meanings: &Meanings<'_>, sink: &mut Sink) {
    let definition = if attachment.detaching && is_forgotten(view, attachment) {
        codes::DETACH_STUCK
    } else {
        codes::ATTACH_FAILS
    };
    let found = view.node(&attachment.node).and_then(|node| view.only_vm(node));
    let [proof, removal] = steps(attachment, found.as_ref());
    let about = About {
        node: Some(&attachment.node),
        volume: Some(&attachment.volume),
        vcenter: found.map(|found| found.vcenter.name.as_str()),
        ..About::default()
    };
    let [meaning, question] =
        meaning::texts(meanings.explain(&attachment.message, &about).as_ref());
    let subject = Subject::kubernetes("VolumeAttachment", None, &attachment.name);
    let mut hit = Hit::new(definition, subject)
        .with("attachment", &attachment.name)
        .with("node", &attachment.node)
        .with("proof", proof)
        .with("removal", removal)
        .with("since", moment(attachment.since))
        .with("message", &attachment.message)
        .with("meaning", meaning)
        .with("question", question)
        .node(&attachment.node)
        .driver("CSI")
        .at(Anchor::Volume, &attachment.volume);
    if let Some(found) = found {
        hit = hit.vcenter(&found.vcenter.name).at(Anchor::Vm, &found.vm.path);
    }
    sink.raise(hit);
}

/// A program for awk that succeeds if the devices of a VM do not contain the id of a disk.
const ABSENT: &str =
    r#"/"[Dd]evices"/ {seen = 1} index($0, id) {held = 1} END {exit !seen || held}"#;

/// The proof that the VM of the node does not have the disk, and the removal of the attachment, which must not happen
/// without it. An empty output of govc proves nothing.
fn steps(attachment: &Attachment, found: Option<&FoundVm<'_>>) -> [String; 2] {
    let (node, handle) = (&attachment.node, &attachment.volume);
    let removal = format!(
        "kubectl patch volumeattachment {} --type merge --patch {}",
        quoted(&attachment.name),
        quoted(r#"{"metadata":{"finalizers":null}}"#)
    );
    // awk would change a backslash in the argument.
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/".contains(c);
    match found {
        Some(found) if handle.chars().all(plain) => [
            format!(
                "govc device.info -json -vm {} | awk -v {} {} && {removal}   removes the attachment, but only if the VM \
                 does not have the disk",
                quoted(&found.vm.path),
                quoted(&format!("id={handle}")),
                quoted(ABSENT)
            ),
            String::new(),
        ],
        Some(_) => [
            format!("Make sure in the vSphere Client that no VM has the disk {handle}"),
            format!("Then: {removal}   removes the attachment"),
        ],
        None => [
            format!(
                "VDO does not know the VM of {node}: make sure in the vSphere Client that no VM has the disk {handle}"
            ),
            format!("Then: {removal}   removes the attachment"),
        ],
    }
}

/// Whether vCenter does not know the volume and no VM has its disk. Only then is it safe to remove the
/// attachment manually. The driver's message may be older than the answer of CNS.
fn is_forgotten(view: &FactsView<'_>, attachment: &Attachment) -> bool {
    let known =
        view.facts.storage.cns.get().is_some_and(|cns| cns.contains_key(&attachment.volume));
    let driver_reports_it = !known && attachment.message.contains("not found in QueryVolume");
    let all_seen = view.facts.vcenters.values().all(|vcenter| vcenter.inventory.get().is_some());
    let held = !view.index.vms_with_volume(&attachment.volume).is_empty();
    (driver_reports_it || view.facts.storage.is_missing(&attachment.volume)) && all_seen && !held
}

/// Reports a CNS volume whose disk the driver does not find, unless its datastore is unreachable.
fn disk_lost(view: &FactsView<'_>, attachment: &Attachment, volume: &Volume, sink: &mut Sink) {
    let known = view.facts.storage.cns.get().and_then(|cns| cns.get(&attachment.volume));
    let lost = attachment.message.contains("Failed to retrieve datastore for vol");
    if let Some(known) = known.filter(|known| lost && !known.unreachable) {
        let datastore = view.datastores().find(|(_, _, d)| d.url == known.datastore);
        let path = datastore.map_or("DATASTORE", |(_, _, d)| d.path.as_str());
        sink.raise(super::hit(codes::VOLUME_DISK_LOST, volume).with("datastore", path));
    }
}

/// Reports a volume that cannot attach because another VM has its disk.
fn held_elsewhere(view: &FactsView<'_>, attachment: &Attachment, volume: &Volume, sink: &mut Sink) {
    // `attached_vm` compares volumes that Kubernetes has already attached.
    if volume.node.as_ref() == Some(&attachment.node) {
        return;
    }
    if let Some(node) = view.node(&attachment.node) {
        super::attached_vm::compare(view, volume, node, sink);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{facts::Vm, sample::handle};

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
    fn a_failed_attach_is_reported_with_an_explanation() {
        shows(
            &CHECK,
            &["VDO-1520"],
            |facts| {
                let message = "CNS: Failed to attach disk because missing SCSI controller";
                facts.storage.attachments = vec![attachment(false, message)].into();
                let_go(facts);
            },
            |facts| facts.storage.attachments = Known::unknown("VDO cannot list them"),
        );
    }

    #[test]
    fn a_detach_of_a_volume_unknown_to_vcenter_has_its_own_finding() {
        let mut facts = healthy();
        let message = "failed to detach: volumeID \"volume-1\" not found in QueryVolume";
        facts.storage.attachments = vec![attachment(true, message)].into();
        facts.storage.cns.get_mut().unwrap().remove(&handle(1));
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1520"], "a VM still has the disk");
        let_go(&mut facts);
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1519"]);
        let known = healthy().storage.cns;
        let unknown = std::mem::replace(&mut facts.storage.cns, known);
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1520"], "CNS knows it again");
        facts.storage.cns = Known::unknown("vcenter-a does not answer");
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1519"], "CNS does not contradict the driver");
        facts.storage.cns = unknown;
        facts.vcenter().inventory = Known::unknown("vcenter-a does not answer");
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1520"], "nobody knows whether one has it");
    }

    fn removal(facts: &Facts) -> Vec<String> {
        let all = crate::Examination::run(facts.clone()).report().all();
        all.into_iter().find(|finding| finding.code == "VDO-1519").unwrap().remedy
    }

    fn forgotten() -> Facts {
        let mut facts = healthy();
        let message = "failed to detach: volumeID \"volume-1\" not found in QueryVolume";
        facts.storage.attachments = vec![attachment(true, message)].into();
        facts.storage.cns.get_mut().unwrap().remove(&handle(1));
        let_go(&mut facts);
        facts
    }

    #[test]
    fn the_attachment_is_removed_only_if_the_vm_does_not_have_the_disk() {
        let steps = removal(&forgotten());
        let [step] = &steps[..] else { panic!("one command, which stops if it fails: {steps:?}") };
        let start = "govc device.info -json -vm /DC0/vm/k8s/worker-1 | ";
        assert!(step.starts_with(start), "{step}");
        assert!(step.contains(" && kubectl patch volumeattachment csi-1 "), "{step}");
        let held = format!(r#"{{"devices": [{{"vDiskId": {{"id": "{}"}}}}]}}"#, handle(1));
        let other = held.replace(&handle(1), &handle(2));
        for (govc, removed) in [
            (format!("echo '{other}'"), true),
            (format!("echo '{held}'"), false),
            ("echo 'connection refused' >&2; return 1".into(), false),
            ("echo '{\"fault\": {}}'; return 1".into(), false),
        ] {
            let script = format!("govc() {{ {govc}; }}; kubectl() {{ echo removed; }}; {step}");
            let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(output.stdout == b"removed\n", removed, "{govc}: {output:?}");
        }
    }

    #[test]
    fn without_a_proof_no_command_removes_the_attachment() {
        let mut unknown_vm = forgotten();
        unknown_vm.inventory().vms.retain(|_, vm| vm.name != "worker-1");
        let mut strange = forgotten();
        let attachments = strange.storage.attachments.get_mut().unwrap();
        attachments[0].volume = r"C:\disk".into();
        for (facts, reason) in [
            (unknown_vm, "# VDO does not know the VM of worker-1"),
            (strange, "# Make sure in the vSphere Client that no VM has the disk"),
        ] {
            let steps = removal(&facts);
            assert!(steps[0].starts_with(reason), "{steps:?}");
            assert!(
                steps[1].starts_with("# Then: kubectl patch volumeattachment csi-1"),
                "{steps:?}"
            );
            assert_eq!(steps.len(), 2, "{steps:?}");
        }
    }

    #[test]
    fn a_volume_that_is_only_too_young_to_be_known_is_not_forgotten() {
        let mut facts = healthy();
        facts.storage.attachments = vec![attachment(true, "rpc error: code = Unavailable")].into();
        let_go(&mut facts);
        facts.storage.cns.get_mut().unwrap().remove(&handle(1));
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1519"], "vCenter was asked, and has it not");
        let asked = facts.storage.cns_asked;
        facts.storage.volumes.get_mut().unwrap().get_mut(&handle(1)).unwrap().created = asked;
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1520"]);
    }

    /// Detaches the disk from its VM.
    fn let_go(facts: &mut Facts) {
        for vm in facts.inventory().vms.values_mut() {
            vm.volumes.retain(|volume| *volume != handle(1));
        }
    }

    #[test]
    fn a_missing_disk_is_reported_unless_its_datastore_is_unreachable() {
        let mut facts = healthy();
        let message = "Failed to retrieve datastore for vol volume-1: vim.fault.NotFound";
        facts.storage.attachments = vec![attachment(false, message)].into();
        let volume = facts.storage.volumes.get_mut().unwrap().get_mut(&handle(1)).unwrap();
        volume.node = None;
        let_go(&mut facts);
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1517", "VDO-1520"]);
        let cns = facts.storage.cns.get_mut().unwrap();
        cns.get_mut(&handle(1)).unwrap().unreachable = true;
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1520"]);
    }

    #[test]
    fn another_vm_that_holds_the_disk_of_a_volume_is_reported() {
        let mut facts = healthy();
        let message = "The operation is not allowed in the current state";
        facts.storage.attachments = vec![attachment(false, message)].into();
        let volume = facts.storage.volumes.get_mut().unwrap().get_mut(&handle(1)).unwrap();
        volume.node = None;
        let_go(&mut facts);
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1520"]);
        let zombie = Vm { bios_uuid: "zombie".into(), volumes: vec![handle(1)], ..Vm::default() };
        facts.inventory().vms.insert("vm-zombie".into(), zombie);
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1518", "VDO-1520"]);
    }

    #[test]
    fn a_recent_attachment_is_no_fault() {
        let mut facts = healthy();
        let fresh = Attachment { since: facts.now, ..attachment(false, "still at it") };
        facts.storage.attachments = vec![fresh].into();
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }
}
