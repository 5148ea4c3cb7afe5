use crate::proto::csi::volume_capability::{AccessType, access_mode::Mode};

use super::*;

const DRIVER: &str = "csi.vsphere.vmware.com";

fn attachment(attached: bool, finalizers: &[&str], deleting: bool) -> Attachment {
    serde_json::from_value(json!({
        "metadata": {
            "name": "csi-1", "finalizers": finalizers,
            "deletionTimestamp": deleting.then_some("2026-01-01T00:00:00Z"),
        },
        "spec": {"attacher": DRIVER, "nodeName": "n1", "source": {"persistentVolumeName": "pv"}},
        "status": {"attached": attached},
    }))
    .unwrap()
}

fn volume(spec: &Value) -> Volume {
    let mut volume = json!({
        "metadata": {"name": "pv"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": DRIVER, "volumeHandle": "fcd", "volumeAttributes": {"type": "block"}},
        },
    });
    for (key, value) in spec.as_object().unwrap() {
        volume["spec"][key] = value.clone();
    }
    serde_json::from_value(volume).unwrap()
}

#[test]
fn an_attachment_is_attached_until_it_is_deleted() {
    let ours = &[ATTACHER_FINALIZER][..];
    let cases = [
        (false, &[][..], false, Step::Attach),
        (false, ours, false, Step::Attach),
        (true, ours, false, Step::Nothing),
        (true, ours, true, Step::Detach),
        // The answer of an attach may have been lost: it is detached too.
        (false, ours, true, Step::Detach),
        (false, &[][..], true, Step::Nothing),
    ];
    for (attached, finalizers, deleting, expected) in cases {
        let decided = step(&attachment(attached, finalizers, deleting), DRIVER);
        assert_eq!(decided, expected, "{attached} {finalizers:?} {deleting}");
    }
    assert_eq!(step(&attachment(false, &[], false), "other"), Step::Nothing);
}

#[test]
fn the_request_is_that_of_external_attacher() {
    let spec = json!({"mountOptions": ["noatime"], "volumeMode": "Filesystem"});
    let request = publish_request(&volume(&spec), DRIVER, "vm-1", "ext4", false, false).unwrap();
    assert_eq!((request.volume_id.as_str(), request.node_id.as_str()), ("fcd", "vm-1"));
    assert_eq!(request.volume_context["type"], "block");
    let capability = request.volume_capability.unwrap();
    assert_eq!(capability.access_mode.unwrap().mode(), Mode::SingleNodeWriter);
    let Some(AccessType::Mount(mount)) = capability.access_type else { panic!("a file system") };
    assert_eq!((mount.fs_type.as_str(), mount.mount_flags), ("ext4", vec!["noatime".into()]));
    let block = json!({"volumeMode": "Block"});
    let request = publish_request(&volume(&block), DRIVER, "vm-1", "ext4", false, false).unwrap();
    let access_type = request.volume_capability.unwrap().access_type;
    assert!(matches!(access_type, Some(AccessType::Block(_))));
}

#[test]
fn only_a_driver_with_the_capability_learns_of_read_only_volumes() {
    let spec = json!({"csi": {"driver": DRIVER, "volumeHandle": "fcd", "readOnly": true}});
    let readonly = |capability| {
        publish_request(&volume(&spec), DRIVER, "vm-1", "ext4", false, capability).unwrap().readonly
    };
    assert!(readonly(true));
    assert!(!readonly(false));
}

#[test]
fn a_volume_that_cannot_be_attached_is_explained() {
    let mut deleting = volume(&json!({}));
    deleting.metadata.deletion_timestamp = attachment(false, &[], true).metadata.deletion_timestamp;
    let foreign = volume(&json!({"csi": {"driver": "other", "volumeHandle": "x"}}));
    for (volume, reason) in [(deleting, "being deleted"), (foreign, "another driver")] {
        let refused = publish_request(&volume, DRIVER, "vm-1", "ext4", false, false).unwrap_err();
        assert!(refused.contains("PersistentVolume pv") && refused.contains(reason), "{refused}");
    }
}

#[test]
fn an_attachment_is_prepared_with_one_patch() {
    let patch = preparation(&attachment(false, &[], false), "vm-1").unwrap();
    let expected = json!({"metadata": {
        "finalizers": [ATTACHER_FINALIZER], "annotations": {"csi.alpha.kubernetes.io/node-id": "vm-1"},
    }});
    assert_eq!(patch, expected);
    let mut prepared = attachment(false, &[ATTACHER_FINALIZER], false);
    prepared.metadata.annotations = Some([(NODE_ID.to_owned(), "vm-1".to_owned())].into());
    assert_eq!(preparation(&prepared, "vm-1"), None);
    assert!(preparation(&prepared, "vm-2").is_some(), "the VM of the node was replaced");
}

#[test]
fn an_error_names_the_code_that_the_kubelet_reads() {
    let now = jiff::Timestamp::UNIX_EPOCH;
    let patch = failure("attachError", "the node is full", Some(Code::ResourceExhausted), now);
    let expected = json!({"status": {
        "attached": false,
        "attachError": {"message": "the node is full", "time": "1970-01-01T00:00:00Z", "errorCode": 8},
    }});
    assert_eq!(patch, expected);
}

#[test]
fn a_volume_is_detached_from_every_vm_that_can_have_it() {
    let mut attachment = attachment(true, &[ATTACHER_FINALIZER], true);
    assert_eq!(attached_to(&attachment, Some("vm-new")), ["vm-new"], "nothing is recorded");
    for (recorded, registered, expected) in [
        ("vm", Some("vm"), &["vm"][..]),
        ("vm-old", Some("vm-new"), &["vm-old", "vm-new"]),
        ("vm-old", None, &["vm-old"]),
        // Of the Go driver before release 2.5.
        ("n1", Some("vm-new"), &["vm-new"]),
        ("n1", None, &["n1"]),
        ("", Some("vm-new"), &["vm-new"]),
        // No id means all nodes to the driver.
        ("", None, &[]),
    ] {
        attachment.metadata.annotations = Some([(NODE_ID.to_owned(), recorded.to_owned())].into());
        assert_eq!(attached_to(&attachment, registered), expected, "{recorded}");
    }
}
