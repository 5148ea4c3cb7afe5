use serde_json::json;

use super::*;

fn owner(uid: &str) -> Owner {
    Owner { id: "c1".into(), uid: Some(uid.into()) }
}

fn volume() -> Volume {
    serde_json::from_value(json!({"metadata": {"name": "pv", "labels": {"tier": "gold"}}})).unwrap()
}

fn claim(name: &str) -> Claim {
    let claim = json!({"metadata": {"name": name, "namespace": "shop", "labels": {"app": "db"}}});
    serde_json::from_value(claim).unwrap()
}

/// The entries of a volume with this claim and these pods.
fn entities(claim: Option<&Claim>, pods: &[&str], owner: &Owner) -> Vec<EntityMetadata> {
    let pods = pods.iter().map(ToString::to_string).collect();
    desired(&[Objects { volume: &volume(), claim, pods }], owner)
}

fn summary(changes: &[EntityMetadata]) -> Vec<String> {
    let one = |entity: &EntityMetadata| {
        let sign = if entity.delete == Some(true) { "-" } else { "+" };
        format!("{sign}{} {}", entity.kind.as_deref().unwrap_or_default(), entity.name)
    };
    changes.iter().map(one).collect()
}

#[test]
fn only_differences_are_sent() {
    let (owner, data) = (owner("k1"), claim("data"));
    let (changes, after) = difference(entities(Some(&data), &["app"], &owner), &[], &owner);
    let all = ["+PERSISTENT_VOLUME pv", "+PERSISTENT_VOLUME_CLAIM data", "+POD app"];
    assert_eq!(summary(&changes), all);
    assert_eq!(changes[1].labels, [label("app", "db")]);
    assert_eq!(changes[2].refers[0].name, "data");
    let (changes, _) = difference(entities(Some(&data), &["app"], &owner), &after, &owner);
    assert!(changes.is_empty(), "{changes:?}");
    let mut labelled = data.clone();
    labelled.metadata.labels = Some([("app".into(), "web".into())].into());
    let (changes, _) = difference(entities(Some(&labelled), &["app"], &owner), &after, &owner);
    assert_eq!(summary(&changes), ["+PERSISTENT_VOLUME_CLAIM data"]);
}

#[test]
fn objects_that_are_gone_are_removed_but_the_volume_keeps_its_name() {
    let (owner, data) = (owner("k1"), claim("data"));
    let (_, after) = difference(entities(Some(&data), &["app"], &owner), &[], &owner);
    let (changes, after) = difference(entities(None, &[], &owner), &after, &owner);
    assert_eq!(summary(&changes), ["-PERSISTENT_VOLUME_CLAIM data", "-POD app"]);
    let (changes, _) = difference(Vec::new(), &after, &owner);
    assert!(changes.is_empty(), "{changes:?}");
}

#[test]
fn entries_of_another_cluster_with_the_same_id_stay() {
    let (ours, theirs, data) = (owner("k1"), owner("k2"), claim("data"));
    let in_cns = entities(Some(&data), &["their-pod"], &theirs);
    let other = claim("other");
    let seen = known(&in_cns, &[], &ours);
    let (changes, _) = difference(entities(Some(&other), &[], &ours), &seen, &ours);
    assert_eq!(summary(&changes), ["+PERSISTENT_VOLUME_CLAIM other"]);
}

#[test]
fn a_pod_that_ended_while_no_controller_ran_is_removed() {
    let (owner, data) = (owner("k1"), claim("data"));
    let in_cns = entities(Some(&data), &["old", "new"], &owner);
    let seen = known(&in_cns, &[], &owner);
    let (changes, _) = difference(entities(Some(&data), &["new"], &owner), &seen, &owner);
    assert_eq!(summary(&changes), ["-POD old"]);
}

#[test]
fn an_entry_of_another_cluster_id_is_not_even_looked_at() {
    let elsewhere = Owner { id: "c2".into(), uid: Some("k1".into()) };
    let in_cns = entities(Some(&claim("data")), &["app"], &elsewhere);
    assert!(known(&in_cns, &[], &owner("k1")).is_empty());
}
