//! Uninitialised nodes and their VMs, as a table. The framework's own cases are in `tests/conformance`.

use super::*;
use crate::{
    testing::{addresses as list, interface, node, vm},
    zones::ZoneTag,
};

const ID: &str = "vsphere://422e4956-ad22-1139-6d72-59cc8f26bc90";

struct InitialisationCase {
    node: Node,
    vm: VirtualMachine,
    zones: Zones,
    extra: BTreeMap<String, String>,
}

fn default_case() -> InitialisationCase {
    let taint = Taint::new(UNINITIALIZED, Some("true"), "NoSchedule");
    InitialisationCase {
        node: Node { taints: [taint].into(), ..node("node-1") },
        vm: vm("node-1"),
        zones: Zones::default(),
        extra: BTreeMap::new(),
    }
}

fn with(change: impl FnOnce(&mut InitialisationCase)) -> InitialisationCase {
    let mut case = default_case();
    change(&mut case);
    case
}

fn taints(taints: &[(&str, Option<&str>, &str)]) -> Box<[Taint]> {
    taints.iter().map(|(key, value, effect)| Taint::new(key, *value, effect)).collect()
}

fn labels(labels: &[(&str, &str)]) -> std::sync::Arc<crate::model::Labels> {
    std::sync::Arc::new(labels.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect())
}

/// The result as text: `id`, remaining taints, labels except the instance type, addresses.
fn outcome(case: &InitialisationCase) -> String {
    let (chosen, _) = addresses(&case.node, &case.vm, &AddressRules::default(), &[Family::V4]);
    let planned =
        chosen.and_then(|chosen| plan(&case.node, &case.vm, chosen, &case.zones, &case.extra));
    let plan = match planned {
        Ok(plan) => plan,
        Err(NotInitialised::NoAddress { .. }) => return "waits for an address".into(),
        Err(NotInitialised::ProvidedIp { .. }) => return "waits for the kubelet's address".into(),
        Err(NotInitialised::NoUuid { .. }) => return "waits for a uuid".into(),
        Err(NotInitialised::NoZones { .. }) => return "waits for zones".into(),
    };
    let mut parts = Vec::new();
    if let Some(id) = plan.patch["spec"].get("providerID") {
        assert_eq!(*id, ID);
        parts.push("id".to_owned());
    }
    let left = plan.patch["spec"]["taints"].as_array().unwrap();
    parts.extend(left.iter().map(|taint| taint["key"].as_str().unwrap().to_owned()));
    let labels = plan.patch["metadata"]["labels"].as_object().unwrap();
    assert_eq!(
        labels["node.kubernetes.io/instance-type"],
        labels["beta.kubernetes.io/instance-type"]
    );
    for (key, value) in labels.iter().filter(|(key, _)| !key.contains("instance-type")) {
        parts.push(format!("{}={}", key.rsplit('/').next().unwrap(), value.as_str().unwrap()));
    }
    match plan.addresses {
        None => parts.push("addresses stay".into()),
        Some(addresses) => {
            parts.extend(addresses.iter().map(|address| address.address.to_string()));
        }
    }
    parts.join(" ")
}

#[test]
fn every_case_has_the_expected_result() {
    let zones = |zone: &str, region: &str| {
        let found = |v: &str| (!v.is_empty()).then(|| ZoneTag { value: v.into(), at: "x".into() });
        Zones { zone: found(zone), region: found(region), missing: Vec::new() }
    };
    let plain = "id node-1 10.0.0.1 10.0.0.1";
    let own = |value, effect| [(UNINITIALIZED, value, effect)];
    let cases = [
        ("the taint of the kubelet", default_case(), plain),
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
            "the taint with the effect PreferNoSchedule",
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
            "another taint next to it",
            with(|c| {
                c.node.taints =
                    taints(&[own(None, "NoSchedule")[0], ("gpu", Some("x"), "NoExecute")]);
            }),
            "id gpu node-1 10.0.0.1 10.0.0.1",
        ),
        (
            "an existing provider id",
            with(|c| c.node.provider_id = ID.into()),
            "node-1 10.0.0.1 10.0.0.1",
        ),
        (
            "a provider id in the other byte order",
            with(|c| c.node.provider_id = "vsphere://56492e42-22ad-3911-6d72-59cc8f26bc90".into()),
            "node-1 10.0.0.1 10.0.0.1",
        ),
        ("a VM whose uuid is unknown", with(|c| c.vm.bios_uuid = None), "waits for a uuid"),
        (
            "a VM whose uuid is unknown, and an existing provider id",
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
            "an existing zone label is overwritten",
            with(|c| {
                c.zones = zones("a", "");
                c.node.labels = labels(&[("topology.kubernetes.io/zone", "old")]);
            }),
            "id zone=a zone=a node-1 10.0.0.1 10.0.0.1",
        ),
        (
            "an extra label",
            with(|c| c.extra = [("site".into(), "x".into())].into()),
            "id site=x node-1 10.0.0.1 10.0.0.1",
        ),
        (
            "an extra label that the node has with another value",
            with(|c| {
                c.extra = [("site".into(), "x".into())].into();
                c.node.labels = labels(&[("site", "y")]);
            }),
            plain,
        ),
        (
            "correct addresses",
            with(|c| {
                let right = ["Hostname node-1", "InternalIP 10.0.0.1", "ExternalIP 10.0.0.1"];
                c.node.addresses = list(&right).into();
            }),
            "id addresses stay",
        ),
        (
            "wrong addresses",
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
            "the kubelet's address is not among them",
            with(|c| c.node.provided_ip = Some("10.0.0.7".into())),
            "waits for the kubelet's address",
        ),
        (
            "the kubelet's address is not an address",
            with(|c| c.node.provided_ip = Some("soon".into())),
            "waits for the kubelet's address",
        ),
        (
            "the guest reports nothing yet",
            with(|c| c.vm.guest.interfaces.clear()),
            "waits for an address",
        ),
        (
            "the guest reports no host name",
            with(|c| c.vm.guest.host_name.clear()),
            "waits for an address",
        ),
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
