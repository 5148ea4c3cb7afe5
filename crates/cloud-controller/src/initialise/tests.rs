//! The cases of the Kubernetes cloud node controller, as tables.

use super::*;
use crate::{
    testing::{addresses as list, node, vm},
    zones::ZoneTag,
};

const UUID: &str = "422e4956-ad22-1139-6d72-59cc8f26bc90";
const TYPE: &str = "vsphere-vm.cpu-2.mem-4gb.os-ubuntu";

fn tainted(taints: &[Taint]) -> Node {
    let mut all = taints.to_vec();
    all.push(Taint::new(UNINITIALIZED, Some("true"), "NoSchedule"));
    Node { taints: all.into(), ..node("node-1") }
}

fn zones(zone: &str, region: &str) -> Zones {
    let found = |v: &str| (!v.is_empty()).then(|| ZoneTag { value: v.into(), at: "x".into() });
    Zones { zone: found(zone), region: found(region), missing: Vec::new() }
}

fn planned(node: &Node, zones: &Zones) -> Initialisation {
    let vm = vm("node-1");
    let (addresses, _) = addresses(node, &vm, &AddressRules::default(), &[Family::V4]);
    plan(node, &vm, addresses.unwrap(), zones, &BTreeMap::new()).unwrap()
}

#[test]
fn a_new_node_gets_everything_in_one_update() {
    let plan = planned(&tainted(&[]), &zones("a", "eu"));
    assert_eq!(
        plan.patch["spec"],
        json!({"providerID": format!("vsphere://{UUID}"), "taints": []})
    );
    assert_eq!(
        plan.patch["metadata"]["labels"],
        json!({
            "beta.kubernetes.io/instance-type": TYPE,
            "node.kubernetes.io/instance-type": TYPE,
            "failure-domain.beta.kubernetes.io/zone": "a",
            "topology.kubernetes.io/zone": "a",
            "failure-domain.beta.kubernetes.io/region": "eu",
            "topology.kubernetes.io/region": "eu",
        })
    );
    let record = plan.patch["metadata"]["annotations"][ANNOTATION].as_str().unwrap();
    assert_eq!(Record::read(record), Some(Record::for_vm(&vm("node-1"))));
    assert_eq!(
        plan.addresses,
        Some(list(&["Hostname node-1", "InternalIP 10.0.0.1", "ExternalIP 10.0.0.1"]))
    );
}

#[test]
fn the_taint_is_removed_by_key_and_all_others_stay() {
    let own_taint = |value, effect| Taint::new(UNINITIALIZED, value, effect);
    let other = Taint {
        time_added: Some("2026-01-01T00:00:00Z".into()),
        ..Taint::new("dedicated", Some("gpu"), "NoExecute")
    };
    for own in [
        own_taint(None, "NoSchedule"),
        own_taint(Some("false"), "NoExecute"),
        own_taint(Some("x"), "PreferNoSchedule"),
    ] {
        let node = tainted(&[own.clone(), other.clone()]);
        let plan = planned(&node, &Zones::default());
        assert_eq!(plan.patch["spec"]["taints"], json!([other]), "{own:?}");
    }
}

#[test]
fn an_existing_provider_id_never_changes() {
    let given = Node {
        provider_id: "vsphere://56492e42-22ad-3911-6d72-59cc8f26bc90".into(),
        ..tainted(&[])
    };
    let plan = planned(&given, &Zones::default());
    assert!(plan.patch["spec"].get("providerID").is_none());
}

#[test]
fn without_a_vm_uuid_there_is_no_provider_id() {
    let mut vm = vm("node-1");
    vm.bios_uuid = None;
    let result = plan(&tainted(&[]), &vm, vec![], &Zones::default(), &BTreeMap::new());
    assert!(matches!(result, Err(NotInitialised::NoUuid { .. })), "{result:?}");
}

#[test]
fn a_missing_region_does_not_change_its_labels() {
    let plan = planned(&tainted(&[]), &zones("a", ""));
    let labels = plan.patch["metadata"]["labels"].as_object().unwrap();
    assert_eq!(labels["topology.kubernetes.io/zone"], "a");
    assert!(!labels.keys().any(|key| key.contains("region")), "{labels:?}");
}

#[test]
fn extra_labels_do_not_overwrite_existing_ones() {
    let mut node = tainted(&[]);
    node.labels = std::sync::Arc::new([("site".into(), "own".into())].into());
    let extra = [("site", "x"), ("provider", "vsphere")];
    let extra = extra.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    let plan = plan(&node, &vm("a"), vec![], &Zones::default(), &extra).unwrap();
    let labels = &plan.patch["metadata"]["labels"];
    assert_eq!(labels["provider"], "vsphere");
    assert!(labels.get("site").is_none(), "{labels}");
}

#[test]
fn labels_of_kubernetes_domains_are_not_allowed() {
    let given = [
        "a/b",
        "x",
        "kubernetes.io/a",
        "node.kubernetes.io/b",
        "k8s.io/c",
        "my.k8s.io/d",
        "notkubernetes.io/e",
    ];
    let allowed = allowed_extra_labels(given.map(|k| (k.to_owned(), String::new())).into());
    assert_eq!(allowed.keys().collect::<Vec<_>>(), ["a/b", "notkubernetes.io/e", "x"]);
}

#[test]
fn the_kubelets_address_comes_first_or_the_node_waits() {
    let provided_ip = |ip: &str| Node { provided_ip: Some(ip.into()), ..tainted(&[]) };
    let mut vm = vm("node-1");
    vm.guest.interfaces = vec![crate::testing::interface("n", &["10.0.0.9", "10.0.0.1"])];
    let chosen =
        |ip: &str| addresses(&provided_ip(ip), &vm, &AddressRules::default(), &[Family::V4]).0;
    assert_eq!(
        chosen("10.0.0.1").unwrap(),
        list(&["InternalIP 10.0.0.1", "ExternalIP 10.0.0.1", "Hostname node-1"])
    );
    let error = chosen("10.0.0.7").unwrap_err();
    assert!(matches!(error, NotInitialised::ProvidedIp { .. }), "{error:?}");
    assert!(matches!(chosen("garbage"), Err(NotInitialised::ProvidedIp { .. })));
}

#[test]
fn addresses_are_grouped_by_kind() {
    let mut vm = vm("node-1");
    vm.guest.interfaces = vec![crate::testing::interface("n", &["10.0.0.1", "fd00::1"])];
    let families = [Family::V6, Family::V4];
    let (chosen, _) = addresses(&node("n"), &vm, &AddressRules::default(), &families);
    let expected = [
        "Hostname node-1",
        "InternalIP fd00::1",
        "InternalIP 10.0.0.1",
        "ExternalIP fd00::1",
        "ExternalIP 10.0.0.1",
    ];
    assert_eq!(chosen.unwrap(), list(&expected));
}

#[test]
fn addresses_are_written_only_when_they_differ() {
    let has = |of: &[&str]| Node { addresses: list(of).into(), ..node("n") };
    let same = ["Hostname a", "InternalIP 10.0.0.1"];
    for (what, before, wanted, written) in [
        ("the same", &same[..], &same[..], None),
        ("another order of kinds", &same, &["InternalIP 10.0.0.1", "Hostname a"], None),
        (
            "another order of one kind",
            &["InternalIP 10.0.0.1", "InternalIP 10.0.0.2", "Hostname a"],
            &["InternalIP 10.0.0.2", "InternalIP 10.0.0.1", "Hostname a"],
            Some(&["InternalIP 10.0.0.2", "InternalIP 10.0.0.1", "Hostname a"][..]),
        ),
        (
            "another address",
            &same,
            &["Hostname a", "InternalIP 10.0.0.2"],
            Some(&["Hostname a", "InternalIP 10.0.0.2"]),
        ),
        (
            "two of one kind, the same",
            &["InternalIP 10.0.0.1", "InternalIP fd00::1", "Hostname a"],
            &["InternalIP 10.0.0.1", "InternalIP fd00::1", "Hostname a"],
            None,
        ),
        (
            "a host name that is no longer reported is kept",
            &same,
            &["InternalIP 10.0.0.2"],
            Some(&["InternalIP 10.0.0.2", "Hostname a"]),
        ),
    ] {
        let found = changed_addresses(&has(before), list(wanted));
        assert_eq!(found, written.map(list), "{what}");
    }
}

#[test]
fn a_virtual_ip_listed_first_does_not_change_an_initialised_node() {
    let mut vm = vm("node-1");
    vm.guest.interfaces = vec![crate::testing::interface("n", &["10.0.0.100", "10.0.0.1"])];
    let has = list(&["Hostname node-1", "InternalIP 10.0.0.1", "ExternalIP 10.0.0.1"]);
    let chosen = |node: &Node| addresses(node, &vm, &AddressRules::default(), &[Family::V4]).0;
    let initialised = Node { addresses: has.clone().into(), ..node("node-1") };
    let kept = chosen(&initialised).unwrap();
    assert_eq!(kept, has);
    assert_eq!(changed_addresses(&initialised, kept), None);
    // At initialisation a node gets the first address, as with the Go controller.
    let fresh = Node { addresses: has.into(), ..tainted(&[]) };
    assert_eq!(
        chosen(&fresh).unwrap(),
        list(&["Hostname node-1", "InternalIP 10.0.0.100", "ExternalIP 10.0.0.100"])
    );
    // The kubelet's --node-ip takes precedence.
    let moved = Node { provided_ip: Some("10.0.0.100".into()), ..initialised };
    assert_eq!(
        chosen(&moved).unwrap(),
        list(&["InternalIP 10.0.0.100", "ExternalIP 10.0.0.100", "Hostname node-1"])
    );
}

#[test]
fn stable_labels_follow_beta_labels_on_initialised_nodes() {
    let with = |labels: &[(&str, &str)]| {
        let labels: crate::model::Labels =
            labels.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        Node { labels: labels.into(), ..node("n") }
    };
    let [(beta, stable), ..] = LABEL_PAIRS;
    let change = |v: &str| Some(BTreeMap::from([(stable.to_owned(), v.to_owned())]));
    assert_eq!(label_changes(&with(&[(beta, "a"), (stable, "a")]), None), None);
    assert_eq!(label_changes(&with(&[(beta, "a"), (stable, "b")]), None), change("a"));
    assert_eq!(label_changes(&with(&[(beta, "a")]), None), change("a"));
    assert_eq!(label_changes(&with(&[(stable, "a")]), None), None);
}

#[test]
fn labels_follow_the_vm_only_if_configured() {
    let vm = vm("n");
    let mut moved = node("n");
    for (key, value) in cloud_labels(&vm, &zones("a", "eu")) {
        std::sync::Arc::make_mut(&mut moved.labels).insert(key.into(), value.into());
    }
    let now = zones("b", "eu");
    assert_eq!(label_changes(&moved, None), None);
    let changes = label_changes(&moved, Some((&vm, &now))).unwrap();
    let expected = ["failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"];
    assert_eq!(changes, expected.map(|k| (k.to_owned(), "b".to_owned())).into());
    assert_eq!(
        label_changes(&moved, Some((&vm, &zones("", "")))),
        None,
        "a lost tag removes no label"
    );
}

#[test]
fn the_kubelets_address_changes_the_choice_only_if_it_is_not_chosen_already() {
    let mut vm = vm("node-1");
    let side = |subnets: &[&str]| addresses::SideRules {
        subnets: subnets.iter().map(|s| s.parse().unwrap()).collect(),
        ..addresses::SideRules::default()
    };
    let both = ["10.0.0.1", "10.0.1.2"];
    vm.guest.interfaces = vec![crate::testing::interface("VM Network", &both)];
    let chosen = |rules: &AddressRules| {
        let node = Node { provided_ip: Some("10.0.1.2".into()), ..node("node-1") };
        addresses(&node, &vm, rules, &[Family::V4]).0.unwrap()
    };
    // The external address is the kubelet's, so the internal one is the first that matches.
    let rules = AddressRules { internal: side(&["10.0.0.0/16"]), external: side(&["10.0.1.0/24"]) };
    assert_eq!(
        chosen(&rules),
        list(&["ExternalIP 10.0.1.2", "Hostname node-1", "InternalIP 10.0.0.1"])
    );
    // Neither is the kubelet's address, so it takes precedence.
    let rules = AddressRules { internal: side(&["10.0.0.0/16"]), external: side(&[]) };
    assert_eq!(chosen(&rules), list(&["InternalIP 10.0.1.2", "Hostname node-1"]));
}

#[test]
fn a_node_that_reports_another_computers_uuid_gets_no_record() {
    for (reported, recorded) in [
        (UUID, true),
        ("56492e42-22ad-3911-6d72-59cc8f26bc90", true),
        ("502e4956-ad22-1139-6d72-59cc8f26bc90", true),
        ("", true),
        ("4c4c4544-0043-4b10-8050-b4c04f4d3732", false),
    ] {
        let node = Node { system_uuid: reported.into(), ..tainted(&[]) };
        let patch = planned(&node, &zones("", "")).patch;
        let record = patch["metadata"]["annotations"][ANNOTATION].as_str();
        assert_eq!(record.is_some(), recorded, "{reported:?}: {patch}");
    }
}

#[test]
fn host_and_cluster_labels_follow_the_vm_while_they_are_wanted() {
    let at = |host: &str, cluster: Option<&str>| VirtualMachine {
        placement: Some(crate::model::Placement {
            host: host.into(),
            cluster: cluster.map(str::to_owned),
        }),
        ..vm("n")
    };
    let labelled = |labels: &[(&str, &str)]| {
        let labels: crate::model::Labels =
            labels.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        Node { labels: labels.into(), ..node("n") }
    };
    let changes = |node: &Node, vm: &VirtualMachine, wanted| {
        let text = |(key, value): (String, Option<String>)| {
            format!("{}={}", key.trim_start_matches("vdo.vmware.com/"), value.unwrap_or_default())
        };
        placement_changes(node, vm, wanted).into_iter().map(text).collect::<Vec<_>>()
    };
    let (bare, here) = (labelled(&[]), at("esx-1", Some("a")));
    let current = labelled(&[(HOST_LABEL, "esx-1"), (CLUSTER_LABEL, "a")]);
    assert_eq!(changes(&bare, &here, true), ["cluster=a", "esxi-host=esx-1"]);
    assert!(changes(&current, &here, true).is_empty());
    assert_eq!(changes(&current, &at("esx-2", Some("a")), true), ["esxi-host=esx-2"]);
    assert_eq!(changes(&current, &at("esx-9", None), true), ["cluster=", "esxi-host=esx-9"]);
    assert!(changes(&current, &vm("n"), true).is_empty(), "they stay while the host is unknown");
    assert!(changes(&bare, &here, false).is_empty());
    assert_eq!(changes(&current, &here, false), ["cluster=", "esxi-host="], "nobody updates them");
}

#[test]
fn every_name_becomes_a_valid_label_value() {
    let long = |end: &str| format!("{}.{end}", "esx".repeat(30));
    for (name, value) in [
        ("esx-a1.example.com", "esx-a1.example.com"),
        ("Cluster A (prod)", "Cluster-A--prod"),
        ("fd00::1", "fd00--1"),
        ("Zürich", "Z-rich"),
        ("_x_", "x"),
    ] {
        assert_eq!(label_value(name).as_deref(), Some(value));
    }
    assert_eq!(label_value("()"), None);
    let [one, two] = ["one", "two"].map(|end| label_value(&long(end)).unwrap());
    assert_ne!(one, two, "two hosts stay apart");
    for value in [one, two] {
        assert!(crate::zones::is_label_value(&value), "{value}");
    }
}
