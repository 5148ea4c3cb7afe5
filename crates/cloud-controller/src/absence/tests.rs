use super::*;

fn record(vcenter: &str, uuid: &str, folder: &str) -> Record {
    Record {
        vcenter: vcenter.into(),
        vcenter_uuid: uuid.into(),
        vm: "vm-1".into(),
        instance_uuid: String::new(),
        folder: folder.into(),
    }
}

fn last_seen(records: &[(&str, Record, bool)]) -> LastSeen {
    let mut last_seen = LastSeen::default();
    for (node, record, visible) in records {
        last_seen.add(&(*node).into(), record.clone(), || *visible);
    }
    last_seen
}

fn shown(history: &VcenterHistory) -> (Vec<&str>, Vec<&str>) {
    let folders = history.folders.iter().map(|folder| &*folder.id).collect();
    (folders, history.without_folder.iter().map(|node| &**node).collect())
}

#[test]
fn the_history_of_a_vcenter_covers_all_its_names() {
    let last_seen = last_seen(&[
        ("a", record("old", "U", "group-1"), false),
        ("b", record("new", "U", "group-2"), true),
        ("c", record("new", "", "group-3"), false),
        ("d", record("other", "V", "group-9"), false),
    ]);
    assert_eq!(shown(&last_seen.history("new", "U")).0, ["group-1", "group-2", "group-3"]);
    assert_eq!(shown(&last_seen.history("newest", "U")).0, ["group-1", "group-2"]);
    // A vCenter without a uuid is identified by its name alone.
    assert_eq!(shown(&last_seen.history("old", "")).0, ["group-1"]);
    assert_eq!(shown(&last_seen.history("elsewhere", "W")).0, Vec::<&str>::new());
}

#[test]
fn another_vcenter_under_an_old_name_is_detected_unless_the_old_one_is_present_too() {
    let last_seen = last_seen(&[("a", record("vc", "U", "group-1"), true)]);
    let present = |uuids: &[&str]| uuids.iter().map(|uuid| (*uuid).into()).collect();
    assert_eq!(last_seen.replaced_uuid("vc", &present(&["U"])), None);
    assert_eq!(last_seen.replaced_uuid("vc", &present(&["V"])), Some("U"));
    assert_eq!(
        last_seen.replaced_uuid("vc", &present(&["V", "U"])),
        None,
        "it only changed its name"
    );
    assert_eq!(last_seen.replaced_uuid("new", &present(&["V"])), None);
}

#[test]
fn a_vm_without_a_folder_must_be_visible() {
    let history = last_seen(&[
        ("in-view", record("vc", "U", ""), true),
        ("lost", record("vc", "U", ""), false),
        ("plain", record("vc", "U", "group-1"), false),
    ])
    .history("vc", "U");
    assert_eq!(shown(&history), (vec!["group-1"], vec!["lost"]));
}

#[test]
fn a_vm_in_a_vcenter_that_is_no_longer_configured_is_not_gone() {
    let answer = recorded_location(None, &record("vc", "U", "group-1")).err().unwrap();
    assert!(answer.contains("is no longer configured"), "{answer}");
    assert!(answer.contains(ANNOTATION), "the text contains the fix: {answer}");
}
