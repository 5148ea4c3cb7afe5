//! The framework's 14 cases of `--node-ip`: which addresses a node keeps, in which order.

use cloud_controller::{
    model::{Address, AddressKind},
    provided_ip,
};

/// Addresses are written as `InternalIP 10.1.1.1`.
pub(crate) struct Row {
    case: &'static str,
    /// The kubelet's `--node-ip`.
    provided_ip: &'static str,
    given: &'static [&'static str],
    /// The kept addresses, or a part of the error.
    kept: Result<&'static [&'static str], &'static str>,
}

/// All cases, in the framework's order.
pub(crate) const ROWS: [Row; 14] = [
    Row {
        case: "one internal address",
        provided_ip: "10.1.1.1",
        given: &["InternalIP 10.1.1.1", "Hostname n"],
        kept: Ok(&["InternalIP 10.1.1.1", "Hostname n"]),
    },
    Row {
        case: "an external address is requested",
        provided_ip: "55.55.55.55",
        given: &["InternalIP 10.1.1.1", "ExternalIP 55.55.55.55", "Hostname n"],
        kept: Ok(&["ExternalIP 55.55.55.55", "InternalIP 10.1.1.1", "Hostname n"]),
    },
    Row {
        case: "one address is internal and external",
        provided_ip: "55.55.55.55",
        given: &[
            "InternalIP 44.44.44.44",
            "ExternalIP 44.44.44.44",
            "InternalIP 55.55.55.55",
            "ExternalIP 55.55.55.55",
            "Hostname n",
        ],
        kept: Ok(&["InternalIP 55.55.55.55", "ExternalIP 55.55.55.55", "Hostname n"]),
    },
    Row {
        case: "addresses and names, inside and outside",
        provided_ip: "10.1.1.1",
        given: &[
            "InternalIP 10.1.1.1",
            "ExternalIP 55.55.55.55",
            "InternalDNS n.internal",
            "ExternalDNS n.example",
            "Hostname n",
        ],
        kept: Ok(&[
            "InternalIP 10.1.1.1",
            "ExternalIP 55.55.55.55",
            "InternalDNS n.internal",
            "ExternalDNS n.example",
            "Hostname n",
        ]),
    },
    Row {
        case: "one of several internal addresses",
        provided_ip: "10.1.1.1",
        given: &[
            "InternalIP 10.1.1.1",
            "InternalIP 10.2.2.2",
            "InternalIP 10.3.3.3",
            "ExternalIP 55.55.55.55",
            "Hostname n",
        ],
        kept: Ok(&["InternalIP 10.1.1.1", "ExternalIP 55.55.55.55", "Hostname n"]),
    },
    Row {
        case: "an address that the VM does not have",
        provided_ip: "10.2.2.2",
        given: &["InternalIP 10.1.1.1", "ExternalIP 55.55.55.55", "Hostname n"],
        kept: Err("10.2.2.2 is none of the addresses"),
    },
    Row {
        case: "two spellings of one IPv6 address",
        provided_ip: "2600:1f14:1d4:d101::ba3d",
        given: &["InternalIP 10.1.1.1", "InternalIP 2600:1f14:1d4:d101:0:0:0:ba3d", "Hostname n"],
        kept: Ok(&["InternalIP 2600:1f14:1d4:d101:0:0:0:ba3d", "Hostname n"]),
    },
    Row {
        case: "a pair for a VM with one family",
        provided_ip: "10.1.1.1,fc01:1234::5678",
        given: &["InternalIP 10.1.1.1", "Hostname n"],
        kept: Err("fc01:1234::5678 is none of the addresses"),
    },
    Row {
        case: "a pair in the VM's order",
        provided_ip: "10.1.1.1,fc01:1234::5678",
        given: &["InternalIP 10.1.1.1", "InternalIP fc01:1234::5678", "Hostname n"],
        kept: Ok(&["InternalIP 10.1.1.1", "InternalIP fc01:1234::5678", "Hostname n"]),
    },
    Row {
        case: "a pair in another order than the VM's",
        provided_ip: "10.1.1.1,fc01:1234::5678",
        given: &["InternalIP fc01:1234::5678", "InternalIP 10.1.1.1", "Hostname n"],
        kept: Ok(&["InternalIP 10.1.1.1", "InternalIP fc01:1234::5678", "Hostname n"]),
    },
    Row {
        case: "a pair, and more internal addresses of both families",
        provided_ip: "10.1.1.1,fc01:1234::5678",
        given: &[
            "InternalIP 10.1.1.1",
            "InternalIP 10.1.1.2",
            "InternalIP fc01:1234::1234",
            "InternalIP fc01:1234::5678",
            "Hostname n",
        ],
        kept: Ok(&["InternalIP 10.1.1.1", "InternalIP fc01:1234::5678", "Hostname n"]),
    },
    Row {
        case: "a pair, and an external address",
        provided_ip: "10.1.1.1,fc01:1234::5678",
        given: &[
            "InternalIP 10.1.1.1",
            "ExternalIP 55.55.55.55",
            "InternalIP fc01:1234::1234",
            "InternalIP fc01:1234::5678",
            "Hostname n",
        ],
        kept: Ok(&[
            "InternalIP 10.1.1.1",
            "InternalIP fc01:1234::5678",
            "ExternalIP 55.55.55.55",
            "Hostname n",
        ]),
    },
    Row {
        case: "a pair, and external addresses of both families",
        provided_ip: "fc01:1234::5678,10.1.1.1",
        given: &[
            "InternalIP 10.1.1.1",
            "ExternalIP 55.55.55.55",
            "InternalIP fc01:1234::5678",
            "ExternalIP 2001:db1::1",
            "Hostname n",
        ],
        kept: Ok(&[
            "InternalIP fc01:1234::5678",
            "InternalIP 10.1.1.1",
            "ExternalIP 55.55.55.55",
            "ExternalIP 2001:db1::1",
            "Hostname n",
        ]),
    },
    Row {
        case: "a pair of an external and an internal address",
        provided_ip: "55.55.55.55,fc01:1234::5678",
        given: &[
            "InternalIP 10.1.1.1",
            "ExternalIP 55.55.55.55",
            "InternalIP fc01:1234::5678",
            "ExternalIP 2001:db1::1",
            "Hostname n",
        ],
        kept: Ok(&["ExternalIP 55.55.55.55", "InternalIP fc01:1234::5678", "Hostname n"]),
    },
];

fn address(text: &&str) -> Address {
    let (kind, address) = text.split_once(' ').unwrap();
    let kind: AddressKind = serde_json::from_value(kind.into()).unwrap();
    assert!(!matches!(kind, AddressKind::Other(_)), "{text}");
    Address::new(kind, address)
}

#[test]
fn every_case_of_the_frameworks_addresses_ends_as_it_should() {
    for row in ROWS {
        let given = row.given.iter().map(address).collect();
        match (provided_ip::apply(row.provided_ip, given), row.kept) {
            (Ok(kept), Ok(expected)) => {
                assert_eq!(kept, expected.iter().map(address).collect::<Vec<_>>(), "{}", row.case);
            }
            (Err(error), Err(text)) => {
                assert!(error.to_string().contains(text), "{}: {error}", row.case);
            }
            (outcome, _) => panic!("{}: {outcome:?}", row.case),
        }
    }
}
