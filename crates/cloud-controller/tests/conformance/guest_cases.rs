//! The Go controller's 53 cases of choosing addresses from a guest, in its order. The rules come from a
//! parsed configuration.

use std::{collections::BTreeMap, io::Write as _, net::IpAddr};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use cloud_controller::{
    addresses::{Preference, select},
    configuration::Configuration,
    model::{AddressKind, Guest, Interface, Metadata},
};
use flate2::{Compression, write::GzEncoder};

/// Case; families in order; interfaces (`network: address address; ...`, in brackets without a device);
/// rules as in [`configuration`]; cloud-init addresses as in [`metadata`]; and the chosen addresses, with
/// `i` and `e` for internal and external, or, after `!`, a part of the error.
type Row = [&'static str; 6];

const ALL: &str = "n: 127.0.0.6 20.0.0.5 10.1.0.2 10.1.0.3 172.20.0.2 172.20.0.3";
const APART: &str = "in: 127.0.0.6 10.1.0.2 10.1.0.3; out: 127.0.0.7 172.20.0.2 172.20.0.3";
const BEHIND: &str = "n: 127.0.0.6 169.0.1.2; in: 10.1.0.2; out: 172.20.0.3";
const SUBNETS: &str = "int 10.1.0.0/16, ext 172.20.0.0/16";
const NETWORKS: &str = "intnet in, extnet out";
const ALL_6: &str = "n: fe80::1 fd00:9::1 fd00:1::1 fd00:1::2 fd00:2::1 fd00:2::2";
const APART_6: &str = "in: fe80::3 fd00:1::1 fd00:1::2; out: fe80::2 fd00:2::1 fd00:2::2";
const CROSSED: &str = "n: 127.0.0.6 169.0.1.2; a: 10.1.0.2 fd00:2::1; b: 172.20.0.3 fd00:1::2";
const MIXED: &str = "in: 20.0.0.5 172.20.0.3; out: 30.0.0.5 10.1.0.2";
const WIDE: &str = "in: 10.1.0.1 10.1.0.2 10.1.0.3 fd00:1::1 fd00:1::2 fd00:1::3; \
                    out: 172.20.0.1 172.20.0.2 172.20.0.3 fd00:2::1 fd00:2::2 fd00:2::3";
const GUEST_6: &str = "n: fe80::1 fd00:1::1 fd00:2::1";
const GUEST: &str = "n: 192.168.1.10 192.168.1.12 10.1.0.2";

/// All cases.
pub(crate) const ROWS: [Row; 53] = [
    ["by subnets", "4", ALL, SUBNETS, "", "i 10.1.0.2, e 172.20.0.2"],
    ["by networks", "4", APART, NETWORKS, "", "i 10.1.0.2, e 172.20.0.2"],
    ["by nothing", "4", APART, "", "", "i 10.1.0.2, e 10.1.0.2"],
    [
        "by subnets, IPv6",
        "6",
        ALL_6,
        "int fd00:1::/64, ext fd00:2::/64",
        "",
        "i fd00:1::1, e fd00:2::1",
    ],
    ["by networks, IPv6", "6", APART_6, NETWORKS, "", "i fd00:1::1, e fd00:2::1"],
    ["by nothing, IPv6", "6", APART_6, "", "", "i fd00:1::1, e fd00:1::1"],
    ["by networks behind another", "4", BEHIND, NETWORKS, "", "i 10.1.0.2, e 172.20.0.3"],
    [
        "subnets of two families",
        "46",
        CROSSED,
        "int 10.1.0.0/16+fd00:1::/64, ext 172.20.0.0/16+fd00:2::/64",
        "",
        "i 10.1.0.2, e 172.20.0.3, i fd00:1::2, e fd00:2::1",
    ],
    [
        "two families, for one of which no subnet fits: its first",
        "46",
        CROSSED,
        "int 10.1.0.0/16+fd00:8::/64, ext 172.20.0.0/16+fd00:9::/64",
        "",
        "i 10.1.0.2, e 172.20.0.3, i fd00:2::1, e fd00:2::1",
    ],
    [
        "two families, for one of which only one side fits: that side",
        "46",
        CROSSED,
        "int 10.1.0.0/16+fd00:8::/64, ext 172.20.0.0/16+fd00:2::/64",
        "",
        "i 10.1.0.2, e 172.20.0.3, e fd00:2::1",
    ],
    [
        "the first of two subnets holds nothing",
        "4",
        BEHIND,
        "int 10.7.0.0/16+10.1.0.0/16, ext 172.20.0.0/16",
        "",
        "i 10.1.0.2, e 172.20.0.3",
    ],
    ["by subnets behind another", "4", BEHIND, SUBNETS, "", "i 10.1.0.2, e 172.20.0.3"],
    [
        "by subnets, on two interfaces",
        "4",
        "a: 127.0.0.6 169.0.1.2 10.1.0.2; b: 127.0.0.7 172.20.0.3",
        SUBNETS,
        "",
        "i 10.1.0.2, e 172.20.0.3",
    ],
    [
        "the external subnet holds nothing",
        "4",
        "a: 127.0.0.6 169.0.1.2 10.1.0.2; b: 127.0.0.7",
        SUBNETS,
        "",
        "i 10.1.0.2",
    ],
    [
        "the internal subnet holds nothing",
        "4",
        "a: 127.0.0.6 169.0.1.2 172.20.0.3; b: 127.0.0.7",
        SUBNETS,
        "",
        "e 172.20.0.3",
    ],
    [
        "the internal network does not exist",
        "4",
        BEHIND,
        "intnet nowhere, extnet out",
        "",
        "e 172.20.0.3",
    ],
    [
        "the external network does not exist",
        "4",
        BEHIND,
        "intnet in, extnet nowhere",
        "",
        "i 10.1.0.2",
    ],
    ["an external subnet alone", "4", ALL, "ext 172.20.0.0/16", "", "e 172.20.0.2"],
    ["an internal subnet alone", "4", ALL, "int 10.1.0.0/16", "", "i 10.1.0.2"],
    [
        "networks in other letters",
        "4",
        APART,
        "intnet IN, extnet oUt",
        "",
        "i 10.1.0.2, e 172.20.0.2",
    ],
    ["an external network alone", "4", APART, "extnet out", "", "e 172.20.0.2"],
    ["an internal network alone", "4", APART, "intnet in", "", "i 10.1.0.2"],
    [
        "a subnet for one side, a network for the other",
        "4",
        "a: 127.0.0.6 169.0.1.2 10.1.0.2; b: 127.0.0.7 172.20.0.3",
        "int 10.1.0.0/16, extnet b",
        "",
        "i 10.1.0.2, e 172.20.0.3",
    ],
    [
        "subnets beat networks",
        "4",
        MIXED,
        "int 10.1.0.0/16, ext 172.20.0.0/16, intnet in, extnet out",
        "",
        "i 10.1.0.2, e 172.20.0.3",
    ],
    [
        "subnets that hold nothing leave it to networks",
        "4",
        MIXED,
        "int 10.7.0.0/16, ext 10.8.0.0/16, intnet in, extnet out",
        "",
        "i 20.0.0.5, e 30.0.0.5",
    ],
    [
        "an interface without a device",
        "4",
        "(pods): 10.7.0.1 10.8.0.1; in: 20.0.0.5 172.20.0.3; out: 30.0.0.5 10.1.0.2",
        "int 10.7.0.0/16, ext 10.8.0.0/16, intnet in, extnet out",
        "",
        "i 20.0.0.5, e 30.0.0.5",
    ],
    [
        "neither network exists",
        "4",
        "a: 10.1.0.2; b: 172.20.0.3",
        NETWORKS,
        "",
        "!neither network \"in\" nor network \"out\"",
    ],
    [
        "something that is not an address",
        "4",
        "a: soon 127.0.0.6 10.1.0.2 10.1.0.3; b: 127.0.0.7 172.20.0.3",
        "",
        "",
        "i 10.1.0.2, e 10.1.0.2",
    ],
    [
        "nothing on the second interface",
        "4",
        "a: 172.20.0.3; b:",
        "",
        "",
        "i 172.20.0.3, e 172.20.0.3",
    ],
    [
        "nothing on the first interface",
        "4",
        "a:; b: 172.20.0.3",
        "",
        "",
        "i 172.20.0.3, e 172.20.0.3",
    ],
    [
        "only the other family on the first interface",
        "4",
        "a: fd00:1::1; b: 172.20.0.3",
        "",
        "",
        "i 172.20.0.3, e 172.20.0.3",
    ],
    [
        "only the other family on the second interface",
        "4",
        "a: 172.20.0.3 fe80:1::1; b: fe80:1::2",
        "",
        "",
        "i 172.20.0.3, e 172.20.0.3",
    ],
    [
        "two families, IPv4 first",
        "46",
        "a: 10.1.0.2 fd00:1::1; b: fd00:1::2",
        "",
        "",
        "i 10.1.0.2, e 10.1.0.2, i fd00:1::1, e fd00:1::1",
    ],
    [
        "exclusions, by nothing",
        "46",
        "a: 10.1.0.1 10.1.0.2 10.1.0.3 fd00:1::1; b: fd00:1::2 fd00:1::3",
        "!int 10.1.0.1/32+fd00:1::1/128+fd00:1::2/128, !ext 10.1.0.1/32+10.1.0.2/32+fd00:1::1/128",
        "",
        "i 10.1.0.2, e 10.1.0.3, i fd00:1::3, e fd00:1::2",
    ],
    [
        "two families, IPv6 first",
        "64",
        "a: 10.1.0.2 fd00:1::1; b: fd00:1::2",
        "",
        "",
        "i fd00:1::1, e fd00:1::1, i 10.1.0.2, e 10.1.0.2",
    ],
    [
        "two families, by networks",
        "64",
        "in: 10.1.0.2 fd00:1::1; out: fd00:1::2 10.1.0.3",
        NETWORKS,
        "",
        "i fd00:1::1, e fd00:1::2, i 10.1.0.2, e 10.1.0.3",
    ],
    [
        "exclusions, by subnets",
        "46",
        WIDE,
        "int 10.1.0.0/16+fd00:1::/32, ext 172.20.0.0/16+fd00:2::/32, \
         !int 10.1.0.1/32+fd00:1::1/128+fd00:1::2/128, !ext 172.20.0.1/32+172.20.0.2/32+fd00:2::1/128",
        "",
        "i 10.1.0.2, e 172.20.0.3, i fd00:1::3, e fd00:2::2",
    ],
    [
        "exclusions, by networks",
        "46",
        WIDE,
        "intnet in, extnet out, !int 10.1.0.1/32+fd00:1::1/128+fd00:1::2/128, \
         !ext 172.20.0.1/32+172.20.0.2/32+fd00:2::1/128",
        "",
        "i 10.1.0.2, e 172.20.0.3, i fd00:1::3, e fd00:2::2",
    ],
    [
        "two families, all of IPv4 excluded",
        "64",
        "in: 10.1.0.2 fd00:1::1",
        "!int 10.1.0.2/8, !ext 10.1.0.2/8",
        "",
        "!no usable ipv4 address",
    ],
    [
        "two families, all of IPv6 excluded",
        "64",
        "in: 10.1.0.2 fd00:1::1",
        "!int fd00:1::1/16, !ext fd00:1::1/16",
        "",
        "!no usable ipv6 address",
    ],
    [
        "two families, a guest with one",
        "64",
        "in: 127.0.0.1 fd00:1::1",
        "",
        "",
        "!no usable ipv4 address",
    ],
    ["cloud-init asked for DHCP", "6", GUEST_6, "", "dhcp", "i fd00:1::1, e fd00:1::1"],
    [
        "cloud-init's address, IPv6",
        "6",
        GUEST_6,
        "",
        "plain fd00:2::1/128",
        "i fd00:2::1, e fd00:2::1",
    ],
    [
        "cloud-init's address",
        "4",
        GUEST,
        "",
        "plain 192.168.1.12/24",
        "i 192.168.1.12, e 192.168.1.12",
    ],
    [
        "cloud-init's order",
        "4",
        GUEST,
        "",
        "plain 192.168.1.12/24 192.168.1.10/24",
        "i 192.168.1.12, e 192.168.1.12",
    ],
    [
        "cloud-init's order among what a subnet holds",
        "4",
        GUEST,
        "int 192.168.0.0/16, ext 192.168.0.0/16",
        "plain 10.1.0.2/24 192.168.1.12/24",
        "i 192.168.1.12, e 192.168.1.12",
    ],
    [
        "cloud-init's address is excluded",
        "4",
        GUEST,
        "!int 192.168.0.0/16, !ext 192.168.0.0/16",
        "plain 192.168.1.12/24 10.1.0.2/24",
        "i 10.1.0.2, e 10.1.0.2",
    ],
    [
        "cloud-init's order on the configured network",
        "4",
        "a: 192.168.1.8; n: 192.168.1.10 192.168.1.12 10.1.0.2",
        "intnet n, extnet n",
        "plain 192.168.1.8/24 192.168.1.12/24 10.1.0.2/24",
        "i 192.168.1.12, e 192.168.1.12",
    ],
    [
        "cloud-init's addresses are on no interface",
        "4",
        "n: 192.168.1.8",
        "",
        "plain 192.168.1.12/24 10.1.0.2/24",
        "i 192.168.1.8, e 192.168.1.8",
    ],
    [
        "cloud-init spells an address at length",
        "6",
        "n: fd00::1 fd00:1:2:3:4::5",
        "",
        "plain fd00:1:2:3:4:0000:0000:5/128",
        "i fd00:1:2:3:4::5, e fd00:1:2:3:4::5",
    ],
    [
        "cloud-init's network is packed",
        "6",
        GUEST_6,
        "",
        "gzip+base64 fd00:2::1/128",
        "i fd00:2::1, e fd00:2::1",
    ],
    [
        "cloud-init's network is encoded",
        "6",
        GUEST_6,
        "",
        "base64 fd00:2::1/128",
        "i fd00:2::1, e fd00:2::1",
    ],
    // The Go controller does not initialise such a node. Ours reports it and uses the guest's order.
    [
        "cloud-init's metadata is no YAML",
        "4",
        "n: 192.168.1.10",
        "",
        "broken",
        "i 192.168.1.10, e 192.168.1.10, ignored",
    ],
];

/// Families and rules: `int` and `ext` for subnets (separated by `+`), `!int` and `!ext` for excluded
/// subnets, `intnet` and `extnet` for networks.
fn configuration(families: &str, rules: &str) -> Configuration {
    let families: Vec<String> = families.chars().map(|family| format!("ipv{family}")).collect();
    let lines = rules.split(", ").filter(|rule| !rule.is_empty()).map(|rule| {
        let (key, value) = rule.split_once(' ').unwrap();
        let key = match key {
            "int" => "internalNetworkSubnetCidr",
            "ext" => "externalNetworkSubnetCidr",
            "!int" => "excludeInternalNetworkSubnetCidr",
            "!ext" => "excludeExternalNetworkSubnetCidr",
            "intnet" => "internalVmNetworkName",
            "extnet" => "externalVmNetworkName",
            other => panic!("{other}"),
        };
        format!("  {key}: '{}'\n", value.replace('+', ","))
    });
    let lines: String = lines.collect();
    let nodes = if lines.is_empty() { String::new() } else { format!("nodes:\n{lines}") };
    let text = format!(
        "global: {{user: u, password: p, ipFamily: [{}]}}\nvcenter: {{one: {{server: vc.test}}}}\n{nodes}",
        families.join(", ")
    );
    Configuration::read(Some(&text), &BTreeMap::new()).unwrap()
}

fn interfaces(text: &str) -> Vec<Interface> {
    let one = |text: &str| {
        let (network, addresses) = text.trim().split_once(':').unwrap();
        let bare = network.trim_matches(['(', ')']);
        // The vSphere client drops invalid addresses.
        let addresses = addresses.split_whitespace().filter_map(|a| a.parse::<IpAddr>().ok());
        Interface {
            network: bare.into(),
            device: if bare == network { 4000 } else { -1 },
            addresses: addresses.collect(),
        }
    };
    text.split(';').map(one).collect()
}

/// The encoding of the network, and its addresses.
fn metadata(text: &str) -> Option<Metadata> {
    let (form, addresses) = text.split_once(' ').unwrap_or((text, ""));
    let listed = addresses.split(' ').map(|a| format!("'{a}'")).collect::<Vec<_>>().join(", ");
    let network = format!("{{ethernets: {{id0: {{addresses: [{listed}]}}}}}}");
    let encoded =
        |packed: &[u8]| format!("network: {}\nnetwork.encoding: {form}\n", STANDARD.encode(packed));
    let document = match form {
        "" => return None,
        "broken" => "[ this ends nowhere".into(),
        "dhcp" => "network: {ethernets: {id0: {dhcp6: true}}}".into(),
        "plain" => format!("network: {network}"),
        "base64" => encoded(network.as_bytes()),
        _ => {
            let mut packer = GzEncoder::new(Vec::new(), Compression::default());
            packer.write_all(network.as_bytes()).unwrap();
            encoded(&packer.finish().unwrap())
        }
    };
    Some(Metadata { content: STANDARD.encode(document), encoding: "base64".into() })
}

#[test]
fn every_case_of_the_go_controllers_addresses_ends_as_it_should() {
    for [case, families, guest, rules, configured, expected] in ROWS {
        let configuration = configuration(families, rules);
        let guest = Guest {
            host_name: "node-1".into(),
            interfaces: interfaces(guest),
            metadata: metadata(configured),
        };
        let families = &configuration.vcenters[0].families;
        let (selected, failed) = select(&guest, &configuration.rules, families, Preference::First);
        if let Some(text) = expected.strip_prefix('!') {
            let error =
                failed.unwrap_or_else(|| panic!("{case}: {:?}", selected.addresses)).to_string();
            assert!(error.contains(text), "{case}: {error}");
            continue;
        }
        assert_eq!(failed, None, "{case}");
        assert_eq!(selected.addresses[0].kind, AddressKind::Hostname, "{case}");
        let side = |kind: &AddressKind| if *kind == AddressKind::InternalIP { "i" } else { "e" };
        let chosen =
            selected.addresses[1..].iter().map(|a| format!("{} {}", side(&a.kind), a.address));
        let ignored = selected.metadata_error.iter().map(|_| "ignored".to_owned());
        assert_eq!(chosen.chain(ignored).collect::<Vec<_>>().join(", "), expected, "{case}");
    }
}
