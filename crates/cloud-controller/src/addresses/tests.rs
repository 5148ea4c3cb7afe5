//! The rules as tables. "As in Go": the Go controller chooses the same.

use super::*;
use crate::{
    model::Metadata,
    testing::{addresses, interface},
};

/// Parses rules in a short form: `int=10.0.0.0/8 !int=10.1.0.0/16 intnet=name ext=.. !ext=.. extnet=..`.
fn rules(text: &str) -> AddressRules {
    let mut rules = AddressRules::default();
    for part in text.split(';').map(str::trim).filter(|p| !p.is_empty()) {
        let (key, value) = part.split_once('=').unwrap();
        let subnets = || value.split(',').map(|s| s.parse().unwrap()).collect::<Vec<IpNet>>();
        match key {
            "int" => rules.internal.subnets = subnets(),
            "ext" => rules.external.subnets = subnets(),
            "!int" => rules.internal.excluded = subnets(),
            "!ext" => rules.external.excluded = subnets(),
            "intnet" => rules.internal.network = value.into(),
            "extnet" => rules.external.network = value.into(),
            _ => panic!("{key}"),
        }
    }
    rules
}

fn guest(interfaces: &[(&str, &[&str])]) -> Guest {
    Guest {
        host_name: "node-1".into(),
        interfaces: interfaces
            .iter()
            .map(|(network, addresses)| interface(network, addresses))
            .collect(),
        metadata: None,
    }
}

fn chosen(
    guest: &Guest,
    rules: &AddressRules,
    families: &[Family],
    node_ip: &[IpAddr],
) -> Vec<String> {
    shown(select(guest, rules, families, Preference::NodeIp(node_ip)))
}

fn shown(outcome: (Selected, Option<NoAddress>)) -> Vec<String> {
    match outcome {
        (_, Some(error)) => vec![format!("{error}")],
        (selected, None) => {
            assert_eq!(selected.addresses[0], addresses(&["Hostname node-1"])[0]);
            selected.addresses[1..]
                .iter()
                .map(|a| match a.kind {
                    AddressKind::InternalIP => format!("int {}", a.address),
                    _ => format!("ext {}", a.address),
                })
                .collect()
        }
    }
}

const V4: &[Family] = &[Family::V4];
const V6: &[Family] = &[Family::V6];
const BOTH: &[Family] = &[Family::V4, Family::V6];

type Row = (
    &'static str,
    &'static [(&'static str, &'static [&'static str])],
    &'static str,
    &'static [Family],
    &'static [&'static str],
);

const TWO: &[(&str, &[&str])] = &[
    ("internal_net", &["192.168.0.1", "fd00:100:64::1"]),
    ("external_net", &["10.0.0.1", "fd00:200::1"]),
];

const TABLE: &[Row] = &[
    ("no rules: the first is both, as in Go", TWO, "", V4, &["int 192.168.0.1", "ext 192.168.0.1"]),
    ("no rules, IPv6, as in Go", TWO, "", V6, &["int fd00:100:64::1", "ext fd00:100:64::1"]),
    (
        "both families, as in Go",
        TWO,
        "",
        BOTH,
        &["int 192.168.0.1", "ext 192.168.0.1", "int fd00:100:64::1", "ext fd00:100:64::1"],
    ),
    (
        "by network names, as in Go",
        TWO,
        "intnet=internal_net;extnet=external_net",
        V4,
        &["int 192.168.0.1", "ext 10.0.0.1"],
    ),
    (
        "network names are case insensitive, as in Go",
        TWO,
        "intnet=INTERNAL_NET;extnet=External_Net",
        V4,
        &["int 192.168.0.1", "ext 10.0.0.1"],
    ),
    (
        "one network name: only that side, as in Go",
        TWO,
        "extnet=external_net",
        V4,
        &["ext 10.0.0.1"],
    ),
    (
        "one network name that does not exist: the first is both, as in Go",
        TWO,
        "intnet=nowhere",
        V4,
        &["int 192.168.0.1", "ext 192.168.0.1"],
    ),
    (
        "one of two network names exists, as in Go",
        TWO,
        "intnet=nowhere;extnet=external_net",
        V4,
        &["ext 10.0.0.1"],
    ),
    (
        "by subnets, as in Go",
        TWO,
        "int=10.0.0.0/8;ext=192.168.0.0/16",
        V4,
        &["int 10.0.0.1", "ext 192.168.0.1"],
    ),
    (
        "a subnet beats a network name, as in Go",
        TWO,
        "int=10.0.0.0/8;intnet=internal_net;extnet=external_net",
        V4,
        &["int 10.0.0.1", "ext 10.0.0.1"],
    ),
    (
        "a subnet without an address falls back to the network name, as in Go",
        TWO,
        "int=172.16.0.0/12;intnet=internal_net",
        V4,
        &["int 192.168.0.1"],
    ),
    (
        "the order of subnets beats that of addresses, as in Go",
        &[("n", &["192.168.0.1", "10.0.0.1"])],
        "int=10.0.0.0/8,192.168.0.0/16;ext=192.168.0.0/16,10.0.0.0/8",
        V4,
        &["int 10.0.0.1", "ext 192.168.0.1"],
    ),
    (
        "subnets of either family, as in Go",
        TWO,
        "int=10.0.0.0/8,fd00:200::/32;ext=192.168.0.0/16,fd00:100::/32",
        BOTH,
        &["int 10.0.0.1", "ext 192.168.0.1", "int fd00:200::1", "ext fd00:100:64::1"],
    ),
    (
        "an excluded address is not internal, as in Go",
        &[("n", &["192.168.0.1", "10.0.0.1"])],
        "!int=192.168.0.0/16",
        V4,
        &["int 10.0.0.1", "ext 192.168.0.1"],
    ),
    (
        "an excluded address is not external, as in Go",
        &[("n", &["192.168.0.1", "10.0.0.1"])],
        "!ext=192.168.0.1/32",
        V4,
        &["int 192.168.0.1", "ext 10.0.0.1"],
    ),
    (
        "exclusion beats subnet, as in Go",
        &[("n", &["10.0.0.1", "10.1.0.1"])],
        "int=10.0.0.0/8;!int=10.0.0.0/16",
        V4,
        &["int 10.1.0.1"],
    ),
    (
        "exclusion beats network name, as in Go",
        &[("n", &["10.0.0.1", "10.1.0.1"])],
        "intnet=n;extnet=n;!int=10.0.0.0/16",
        V4,
        &["int 10.1.0.1", "ext 10.0.0.1"],
    ),
    (
        "all excluded on one side, as in Go",
        &[("n", &["10.0.0.1"])],
        "!ext=10.0.0.0/8",
        V4,
        &["int 10.0.0.1"],
    ),
    (
        "all excluded on both sides",
        &[("n", &["10.0.0.1"])],
        "!ext=10.0.0.0/8;!int=10.0.0.0/8",
        V4,
        &[
            "it has no usable ipv4 address among 10.0.0.1: give it one, or correct ip-family, subnets and exclusions",
        ],
    ),
    (
        "local addresses are skipped, as in Go",
        &[("n", &["fe80::1", "127.0.0.1", "169.254.1.1", "224.0.0.1", "0.0.0.0", "10.10.108.12"])],
        "",
        V4,
        &["int 10.10.108.12", "ext 10.10.108.12"],
    ),
    (
        "nothing but local addresses",
        &[("n", &["127.0.0.1", "::1", "fe80::1", "ff02::1"])],
        "",
        V4,
        &["all its addresses are local ones (127.0.0.1, ::1, fe80::1, ff02::1)"],
    ),
    (
        "a family that is missing fails, as in Go",
        &[("n", &["10.0.0.1"])],
        "",
        BOTH,
        &[
            "it has no usable ipv6 address among 10.0.0.1: give it one, or correct ip-family, subnets and exclusions",
        ],
    ),
    (
        "both networks missing fails, as in Go",
        TWO,
        "intnet=a;extnet=b",
        V4,
        &[
            "neither network \"a\" nor network \"b\" is among its networks (internal_net, external_net): \
           correct the configured network names or the VM",
        ],
    ),
    (
        "IPv6 first, IPv4 second, as in Go",
        TWO,
        "int=fd00::/16,10.0.0.0/8",
        &[Family::V6, Family::V4],
        &["int fd00:100:64::1", "int 10.0.0.1"],
    ),
];

#[test]
fn addresses_are_chosen_by_subnet_then_network_then_order() {
    for (what, interfaces, rule, families, expected) in TABLE {
        let found = chosen(&guest(interfaces), &rules(rule), families, &[]);
        assert_eq!(found, *expected, "{what}");
    }
}

#[test]
fn interfaces_without_a_device_are_skipped() {
    let mut guest = guest(&[("pods", &["10.244.0.1"]), ("n", &["10.0.0.1"])]);
    guest.interfaces[0].device = -1;
    assert_eq!(chosen(&guest, &AddressRules::default(), V4, &[]), ["int 10.0.0.1", "ext 10.0.0.1"]);
}

#[test]
fn a_guest_without_a_name_of_its_own_does_not_name_the_node() {
    for (name, expected) in [("localhost.localdomain", 0), ("localhost", 0), ("node-1", 1)] {
        let guest = Guest { host_name: name.into(), ..guest(TWO) };
        let (selected, failed) = select(&guest, &AddressRules::default(), V4, Preference::First);
        assert_eq!(failed, None);
        let names = selected.addresses.iter().filter(|a| a.kind == AddressKind::Hostname);
        assert_eq!(names.count(), expected, "{name}");
    }
}

#[test]
fn a_guest_that_reports_nothing_has_no_address() {
    let silent = Guest { host_name: "a".into(), ..Guest::default() };
    assert_eq!(
        select(&silent, &AddressRules::default(), V4, Preference::First).1,
        Some(NoAddress::NoInterface)
    );
    let nameless = Guest { host_name: String::new(), ..guest(TWO) };
    assert_eq!(
        select(&nameless, &AddressRules::default(), V4, Preference::First).1,
        Some(NoAddress::NoHostName)
    );
}

#[test]
fn addresses_from_cloud_init_come_first_in_its_order() {
    use base64::Engine as _;
    let document =
        "network: {ethernets: {b: {addresses: [10.0.0.3/24]}, a: {addresses: [10.0.0.2/24]}}}";
    let content = base64::engine::general_purpose::STANDARD.encode(document);
    let mut guest = guest(&[("n", &["10.0.0.1", "10.0.0.2", "10.0.0.3"])]);
    guest.metadata = Some(Metadata { content, encoding: "base64".into() });
    assert_eq!(chosen(&guest, &AddressRules::default(), V4, &[]), ["int 10.0.0.3", "ext 10.0.0.3"]);
}

#[test]
fn with_malformed_metadata_the_order_of_the_interfaces_is_used() {
    let mut guest = guest(&[("n", &["10.0.0.1", "10.0.0.2"])]);
    guest.metadata = Some(Metadata { content: "%".into(), encoding: "base64".into() });
    let (selected, failed) = select(&guest, &AddressRules::default(), V4, Preference::First);
    assert_eq!(failed, None);
    assert_eq!(&*selected.addresses[1].address, "10.0.0.1");
    assert!(selected.metadata_error.is_some());
}

#[test]
fn the_kubelets_address_wins_among_those_that_match_a_rule_equally() {
    let vip_first = guest(&[("n", &["10.0.0.100", "10.0.0.1", "192.168.0.1"])]);
    let hint = ["10.0.0.1".parse().unwrap()];
    let found = |rule: &str| chosen(&vip_first, &rules(rule), V4, &hint);
    assert_eq!(found(""), ["int 10.0.0.1", "ext 10.0.0.1"]);
    assert_eq!(found("int=10.0.0.0/8"), ["int 10.0.0.1"]);
    assert_eq!(found("intnet=n;extnet=n"), ["int 10.0.0.1", "ext 10.0.0.1"]);
    // The kubelet's address never overrides a rule.
    assert_eq!(found("int=192.168.0.0/16"), ["int 192.168.0.1"]);
    assert_eq!(found("!int=10.0.0.1/32"), ["int 10.0.0.100", "ext 10.0.0.1"]);
}

#[test]
fn an_address_of_the_node_is_kept_as_long_as_it_matches() {
    const VIP_FIRST: &[(&str, &[&str])] =
        &[("n", &["10.0.0.100", "10.0.0.1", "fd00::100", "fd00::1"]), ("m", &["192.168.0.1"])];
    let present = ["InternalIP 10.0.0.1", "ExternalIP 192.168.0.1", "InternalIP fd00::1"];
    for (what, rule, families, has, expected) in [
        ("no rules", "", V4, &present[..], &["int 10.0.0.1", "ext 192.168.0.1"][..]),
        ("by subnet", "int=10.0.0.0/8", V4, &present, &["int 10.0.0.1"]),
        ("by network", "intnet=n;extnet=m", V4, &present, &["int 10.0.0.1", "ext 192.168.0.1"]),
        (
            "a subnet listed first, where the address is in the second",
            "int=192.168.0.0/16,10.0.0.0/8",
            V4,
            &present,
            &["int 10.0.0.1"],
        ),
        (
            "both families; the external IPv6 address is new",
            "",
            BOTH,
            &present,
            &["int 10.0.0.1", "ext 192.168.0.1", "int fd00::1", "ext fd00::100"],
        ),
        ("excluded now", "!int=10.0.0.1/32", V4, &present, &["int 10.0.0.100", "ext 192.168.0.1"]),
        ("outside the subnet now", "int=192.168.0.0/16", V4, &present, &["int 192.168.0.1"]),
        ("on another network now", "intnet=m", V4, &present, &["int 192.168.0.1"]),
        (
            "gone from the VM",
            "",
            V4,
            &["InternalIP 10.0.0.7", "ExternalIP 10.0.0.1"],
            &["int 10.0.0.100", "ext 10.0.0.1"],
        ),
        (
            "an address of the other side does not count",
            "",
            V4,
            &["ExternalIP 10.0.0.1", "Hostname node-1"],
            &["int 10.0.0.100", "ext 10.0.0.1"],
        ),
    ] {
        let has = addresses(has);
        let selected = select(&guest(VIP_FIRST), &rules(rule), families, Preference::Present(&has));
        assert_eq!(shown(selected), expected, "{what}");
    }
    let has = addresses(&present);
    let (selected, _) =
        select(&guest(VIP_FIRST), &AddressRules::default(), V4, Preference::Present(&has));
    let why = |r: &&Reason| {
        r.side == Some(AddressKind::InternalIP) && r.address.to_string() == "10.0.0.1"
    };
    let why = selected.reasons.iter().find(why).unwrap();
    assert_eq!(why.verdict.to_string(), "chosen: the node already has it, and it still matches");
}

#[test]
fn every_candidate_has_a_reason() {
    let mut guest =
        guest(&[("pods", &["10.244.0.1"]), ("n", &["fe80::1", "10.0.0.1", "10.1.0.1", "fd00::1"])]);
    guest.interfaces[0].device = -1;
    let rules = rules("int=10.0.0.0/8;!int=10.0.0.0/16");
    let (selected, failed) = select(&guest, &rules, V4, Preference::First);
    assert_eq!(failed, None);
    let texts: Vec<String> = selected
        .reasons
        .iter()
        .map(|r| format!("{} {:?} {}", r.address, r.side, r.verdict))
        .collect();
    assert_eq!(
        texts,
        [
            "10.244.0.1 None skipped: its interface has no virtual device",
            "fe80::1 None skipped: it is link-local",
            "10.0.0.1 Some(InternalIP) skipped: excluded by 10.0.0.0/16",
            "10.1.0.1 Some(InternalIP) chosen: the first in 10.0.0.0/8",
            "10.0.0.1 Some(ExternalIP) skipped: no rule matches it",
            "10.1.0.1 Some(ExternalIP) skipped: no rule matches it",
            "fd00::1 None skipped: its family is not configured",
        ]
    );
}

proptest::proptest! {
    #[test]
    fn all_addresses_come_from_the_guest_and_have_a_reason(
        octets in proptest::collection::vec((0u8..3, 0u8..3), 1..6),
        exclude in 0u8..3,
        subnet in 0u8..3,
        hinted in 0u8..3,
    ) {
        let all: Vec<String> = octets.iter().map(|(a, b)| format!("10.{a}.{b}.1")).collect();
        let texts: Vec<&str> = all.iter().map(String::as_str).collect();
        let guest = Guest {
            host_name: "h".into(),
            interfaces: vec![interface("n", &texts)],
            metadata: None,
        };
        let rules = rules(&format!("!int=10.{exclude}.0.0/16;int=10.{subnet}.0.0/16"));
        let hint = [format!("10.{hinted}.0.1").parse().unwrap()];
        let (selected, failed) = select(&guest, &rules, V4, Preference::NodeIp(&hint));
        for address in selected.addresses.iter().skip(1) {
            proptest::prop_assert!(all.contains(&address.address.to_string()));
        }
        if failed.is_none() {
            for address in guest.addresses() {
                proptest::prop_assert!(selected.reasons.iter().any(|r| r.address == address));
            }
        }
        for internal in selected.addresses.iter().filter(|a| a.kind == AddressKind::InternalIP) {
            let excluded = format!("10.{exclude}.");
            proptest::prop_assert!(!internal.address.starts_with(&excluded));
        }
    }
}
