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

fn census(of: &[(&str, Record, bool)]) -> LastSeen {
    let mut census = LastSeen::default();
    for (node, record, in_view) in of {
        census.note(&(*node).into(), record.clone(), || *in_view);
    }
    census
}

fn shown(there: &There) -> (Vec<&str>, Vec<&str>) {
    let folders = there.folders.iter().map(|folder| &*folder.id).collect();
    (folders, there.elsewhere.iter().map(|node| &**node).collect())
}

#[test]
fn a_vcenter_keeps_what_is_known_of_it_under_every_name_it_had() {
    let census = census(&[
        ("a", record("old", "U", "group-1"), false),
        ("b", record("new", "U", "group-2"), true),
        ("c", record("new", "", "group-3"), false),
        ("d", record("other", "V", "group-9"), false),
    ]);
    assert_eq!(shown(&census.of("new", "U")).0, ["group-1", "group-2", "group-3"]);
    assert_eq!(shown(&census.of("newest", "U")).0, ["group-1", "group-2"]);
    // Who does not know its own uuid is known by its name alone.
    assert_eq!(shown(&census.of("old", "")).0, ["group-1"]);
    assert_eq!(shown(&census.of("elsewhere", "W")).0, Vec::<&str>::new());
}

#[test]
fn another_vcenter_under_an_old_name_is_noticed_unless_the_old_one_is_there_too() {
    let census = census(&[("a", record("vc", "U", "group-1"), true)]);
    let present = |of: &[&str]| of.iter().map(|uuid| (*uuid).into()).collect();
    assert_eq!(census.replaced("vc", &present(&["U"])), None);
    assert_eq!(census.replaced("vc", &present(&["V"])), Some("U"));
    assert_eq!(census.replaced("vc", &present(&["V", "U"])), None, "it only changed its name");
    assert_eq!(census.replaced("new", &present(&["V"])), None);
}

#[test]
fn a_machine_that_stood_in_no_folder_counts_as_seen_only_while_it_is_in_view() {
    let there = census(&[
        ("in-view", record("vc", "U", ""), true),
        ("lost", record("vc", "U", ""), false),
        ("plain", record("vc", "U", "group-1"), false),
    ])
    .of("vc", "U");
    assert_eq!(shown(&there), (vec!["group-1"], vec!["lost"]));
}

#[test]
fn what_stood_in_a_vcenter_that_is_not_configured_any_more_is_not_gone() {
    let answer = recorded(None, &record("vc", "U", "group-1")).err().unwrap();
    assert!(answer.contains("is not configured any more"), "{answer}");
    assert!(answer.contains(ANNOTATION), "it says what to do: {answer}");
}
