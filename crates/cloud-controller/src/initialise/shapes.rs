//! Shapes of nodes that wait for us, and of their machines, as a table. The cases of the framework's own
//! controller, with those in which a node is left alone, are in `tests/conformance`.

use super::*;
use crate::{
    testing::{addresses as list, interface, node, vm},
    zones::Found,
};

const ID: &str = "vsphere://422e4956-ad22-1139-6d72-59cc8f26bc90";

/// One case: the node, its machine and what is configured.
struct Case {
    node: Node,
    vm: VirtualMachine,
    zones: Zones,
    extra: BTreeMap<String, String>,
}

/// A node that waits for us and a machine like any.
fn usual() -> Case {
    let mine = Taint::new(UNINITIALIZED, Some("true"), "NoSchedule");
    Case {
        node: Node { taints: [mine].into(), ..node("node-1") },
        vm: vm("node-1"),
        zones: Zones::default(),
        extra: BTreeMap::new(),
    }
}

fn with(change: impl FnOnce(&mut Case)) -> Case {
    let mut case = usual();
    change(&mut case);
    case
}

fn taints(of: &[(&str, Option<&str>, &str)]) -> Box<[Taint]> {
    of.iter().map(|(key, value, effect)| Taint::new(key, *value, effect)).collect()
}

fn labels(of: &[(&str, &str)]) -> std::sync::Arc<crate::model::Labels> {
    std::sync::Arc::new(of.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect())
}

/// What becomes of it, in words: `id`, the taints that stay, labels beside the type, addresses.
fn outcome(case: &Case) -> String {
    let (chosen, _) = addresses(&case.node, &case.vm, &Rules::default(), &[Family::V4]);
    let planned =
        chosen.and_then(|chosen| plan(&case.node, &case.vm, chosen, &case.zones, &case.extra));
    let plan = match planned {
        Ok(plan) => plan,
        Err(NotYet::NoAddress { .. }) => return "waits for an address".into(),
        Err(NotYet::ProvidedIp { .. }) => return "waits for the kubelet's address".into(),
        Err(NotYet::NoUuid { .. }) => return "waits for a uuid".into(),
        Err(NotYet::NoZones { .. }) => return "waits for zones".into(),
    };
    let mut told = Vec::new();
    if let Some(id) = plan.patch["spec"].get("providerID") {
        assert_eq!(*id, ID);
        told.push("id".to_owned());
    }
    let left = plan.patch["spec"]["taints"].as_array().unwrap();
    told.extend(left.iter().map(|taint| taint["key"].as_str().unwrap().to_owned()));
    let labels = plan.patch["metadata"]["labels"].as_object().unwrap();
    assert_eq!(
        labels["node.kubernetes.io/instance-type"],
        labels["beta.kubernetes.io/instance-type"]
    );
    for (key, value) in labels.iter().filter(|(key, _)| !key.contains("instance-type")) {
        told.push(format!("{}={}", key.rsplit('/').next().unwrap(), value.as_str().unwrap()));
    }
    match plan.addresses {
        None => told.push("addresses stay".into()),
        Some(addresses) => told.extend(addresses.iter().map(|address| address.address.to_string())),
    }
    told.join(" ")
}

#[test]
fn every_shape_of_node_and_machine_ends_as_it_should() {
    let zones = |zone: &str, region: &str| {
        let found = |v: &str| (!v.is_empty()).then(|| Found { value: v.into(), at: "x".into() });
        Zones { zone: found(zone), region: found(region), missing: Vec::new() }
    };
    let plain = "id node-1 10.0.0.1 10.0.0.1";
    let own = |value, effect| [(UNINITIALIZED, value, effect)];
    let cases = [
        ("tainted as kubelets do", usual(), plain),
        (
            "the taint without a value",
            with(|c| c.node.taints = taints(&own(None, "NoSchedule"))),
            plain,
        ),
        (
            "the taint with another value and effect",
            with(|c| c.node.taints = taints(&own(Some("false"), "NoExecute"))),
            plain,
        ),
        (
            "the taint as a mere preference",
            with(|c| c.node.taints = taints(&own(Some("true"), "PreferNoSchedule"))),
            plain,
        ),
        (
            "the taint twice",
            with(|c| {
                c.node.taints = taints(&[own(None, "NoSchedule"), own(None, "NoExecute")].concat());
            }),
            plain,
        ),
        (
            "another taint beside it",
            with(|c| {
                c.node.taints =
                    taints(&[own(None, "NoSchedule")[0], ("gpu", Some("x"), "NoExecute")]);
            }),
            "id gpu node-1 10.0.0.1 10.0.0.1",
        ),
        (
            "a provider id that is there",
            with(|c| c.node.provider_id = ID.into()),
            "node-1 10.0.0.1 10.0.0.1",
        ),
        (
            "a provider id in the other byte order",
            with(|c| c.node.provider_id = "vsphere://56492e42-22ad-3911-6d72-59cc8f26bc90".into()),
            "node-1 10.0.0.1 10.0.0.1",
        ),
        ("a machine whose uuid is not known", with(|c| c.vm.bios_uuid = None), "waits for a uuid"),
        (
            "that, but the node has its provider id",
            with(|c| {
                c.vm.bios_uuid = None;
                c.node.provider_id = ID.into();
            }),
            "node-1 10.0.0.1 10.0.0.1",
        ),
        (
            "zone and region",
            with(|c| c.zones = zones("a", "eu")),
            "id region=eu zone=a region=eu zone=a node-1 10.0.0.1 10.0.0.1",
        ),
        (
            "a zone without a region",
            with(|c| c.zones = zones("a", "")),
            "id zone=a zone=a node-1 10.0.0.1 10.0.0.1",
        ),
        (
            "a zone label somebody else wrote gives way",
            with(|c| {
                c.zones = zones("a", "");
                c.node.labels = labels(&[("topology.kubernetes.io/zone", "old")]);
            }),
            "id zone=a zone=a node-1 10.0.0.1 10.0.0.1",
        ),
        (
            "a label of the admin's",
            with(|c| c.extra = [("site".into(), "x".into())].into()),
            "id site=x node-1 10.0.0.1 10.0.0.1",
        ),
        (
            "a label of the admin's that the node has otherwise",
            with(|c| {
                c.extra = [("site".into(), "x".into())].into();
                c.node.labels = labels(&[("site", "y")]);
            }),
            plain,
        ),
        (
            "addresses that are right",
            with(|c| {
                let right = ["Hostname node-1", "InternalIP 10.0.0.1", "ExternalIP 10.0.0.1"];
                c.node.addresses = list(&right).into();
            }),
            "id addresses stay",
        ),
        (
            "addresses that are wrong",
            with(|c| c.node.addresses = list(&["InternalIP 10.9.9.9"]).into()),
            plain,
        ),
        (
            "the kubelet's address is one of them",
            with(|c| {
                c.vm.guest.interfaces = vec![interface("n", &["10.0.0.9", "10.0.0.1"])];
                c.node.provided_ip = Some("10.0.0.1".into());
            }),
            "id 10.0.0.1 10.0.0.1 node-1",
        ),
        (
            "the kubelet's address is none of them",
            with(|c| c.node.provided_ip = Some("10.0.0.7".into())),
            "waits for the kubelet's address",
        ),
        (
            "the kubelet's address is none at all",
            with(|c| c.node.provided_ip = Some("soon".into())),
            "waits for the kubelet's address",
        ),
        (
            "the guest reports nothing yet",
            with(|c| c.vm.guest.interfaces.clear()),
            "waits for an address",
        ),
        ("the guest tells no name", with(|c| c.vm.guest.host_name.clear()), "waits for an address"),
        (
            "the guest reports local addresses only",
            with(|c| c.vm.guest.interfaces = vec![interface("n", &["127.0.0.1", "fe80::1"])]),
            "waits for an address",
        ),
    ];
    for (what, case, expected) in cases {
        assert_eq!(outcome(&case), expected, "{what}");
    }
}
