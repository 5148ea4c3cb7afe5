//! Applies the kubelet's `--node-ip` to the addresses of a node.

use std::net::IpAddr;

use snafu::Snafu;

use crate::model::Address;

#[derive(Debug, Clone, PartialEq, Eq, Snafu)]
pub enum ProvidedIpError {
    #[snafu(display(
        "the kubelet's --node-ip \"{text}\" is neither one address nor a pair of an IPv4 and an IPv6 address"
    ))]
    Unreadable { text: String },
    #[snafu(display(
        "the kubelet's --node-ip {address} is none of the addresses chosen for the VM ({found}): \
         give the kubelet one of these, or give the controller subnets that contain it"
    ))]
    NotThere { address: IpAddr, found: String },
}

/// Parses the annotation: one address, or one of each family separated by a comma.
pub fn read(text: &str) -> Result<Vec<IpAddr>, ProvidedIpError> {
    let unreadable = || UnreadableSnafu { text }.build();
    let parsed: Result<Vec<IpAddr>, _> = text.split(',').map(|part| part.trim().parse()).collect();
    match parsed.map_err(|_| unreadable())?.as_slice() {
        [one] => Ok(vec![*one]),
        [first, second] if first.is_ipv4() != second.is_ipv4() => Ok(vec![*first, *second]),
        _ => Err(unreadable()),
    }
}

/// Puts the kubelet's addresses first, in its order. Other addresses of the same kind are dropped;
/// other kinds follow unchanged.
pub fn apply(text: &str, addresses: Vec<Address>) -> Result<Vec<Address>, ProvidedIpError> {
    let mut chosen: Vec<Address> = Vec::new();
    for wanted in read(text)? {
        let before = chosen.len();
        let is_wanted = |a: &&Address| a.address.parse() == Ok(wanted);
        chosen.extend(addresses.iter().filter(is_wanted).cloned());
        if chosen.len() == before {
            let listed: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            return NotThereSnafu { address: wanted, found: listed.join(", ") }.fail();
        }
    }
    let rest = addresses.into_iter().filter(|a| chosen.iter().all(|c| c.kind != a.kind));
    let rest: Vec<Address> = rest.collect();
    chosen.extend(rest);
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::addresses;

    #[test]
    fn node_ip_orders_and_filters_the_addresses() {
        for (what, provided_ip, given, expected) in [
            (
                "one of one",
                "10.1.1.1",
                &["InternalIP 10.1.1.1", "Hostname a"][..],
                &["InternalIP 10.1.1.1", "Hostname a"][..],
            ),
            (
                "one of three",
                "10.1.1.1",
                &["InternalIP 10.1.1.2", "InternalIP 10.1.1.1", "InternalIP 10.1.1.3"],
                &["InternalIP 10.1.1.1"],
            ),
            (
                "internal and external at once",
                "10.1.1.1",
                &["InternalIP 10.1.1.1", "InternalIP 10.1.1.2", "ExternalIP 10.1.1.1"],
                &["InternalIP 10.1.1.1", "ExternalIP 10.1.1.1"],
            ),
            (
                "an external address does not change the internal ones",
                "55.55.55.55",
                &[
                    "InternalIP 10.1.1.1",
                    "ExternalIP 55.55.55.56",
                    "ExternalIP 55.55.55.55",
                    "Hostname a",
                ],
                &["ExternalIP 55.55.55.55", "InternalIP 10.1.1.1", "Hostname a"],
            ),
            (
                "names follow unchanged",
                "10.1.1.1",
                &[
                    "Hostname a",
                    "InternalIP 10.1.1.1",
                    "InternalDNS a.internal",
                    "ExternalIP 5.5.5.5",
                ],
                &[
                    "InternalIP 10.1.1.1",
                    "Hostname a",
                    "InternalDNS a.internal",
                    "ExternalIP 5.5.5.5",
                ],
            ),
            (
                "a pair in the kubelet's order",
                "fd01::1,10.1.1.1",
                &[
                    "InternalIP 10.1.1.1",
                    "InternalIP 10.1.1.2",
                    "InternalIP fd01::1",
                    "InternalIP fd01::2",
                ],
                &["InternalIP fd01::1", "InternalIP 10.1.1.1"],
            ),
            (
                "a pair with a blank",
                "10.1.1.1, fd01::1",
                &["InternalIP fd01::1", "InternalIP 10.1.1.1"],
                &["InternalIP 10.1.1.1", "InternalIP fd01::1"],
            ),
            (
                "a pair, and an external address",
                "10.1.1.1,fd01::1",
                &["InternalIP 10.1.1.1", "ExternalIP 55.55.55.55", "InternalIP fd01::1"],
                &["InternalIP 10.1.1.1", "InternalIP fd01::1", "ExternalIP 55.55.55.55"],
            ),
            (
                "a pair, and several external addresses of both families",
                "fd01::1,10.1.1.1",
                &[
                    "InternalIP 10.1.1.1",
                    "InternalIP fd01::1",
                    "ExternalIP 55.55.55.55",
                    "ExternalIP 2001:db8::1",
                    "ExternalIP 55.55.55.56",
                ],
                &[
                    "InternalIP fd01::1",
                    "InternalIP 10.1.1.1",
                    "ExternalIP 55.55.55.55",
                    "ExternalIP 2001:db8::1",
                    "ExternalIP 55.55.55.56",
                ],
            ),
            (
                "a pair of an internal and an external address filters both kinds",
                "10.1.1.1,2001:db8::1",
                &[
                    "InternalIP 10.1.1.2",
                    "InternalIP 10.1.1.1",
                    "ExternalIP 55.55.55.55",
                    "ExternalIP 2001:db8::1",
                ],
                &["InternalIP 10.1.1.1", "ExternalIP 2001:db8::1"],
            ),
            (
                "one address of a VM with both families",
                "fd01::1",
                &["InternalIP 10.1.1.1", "InternalIP fd01::1", "Hostname a"],
                &["InternalIP fd01::1", "Hostname a"],
            ),
            (
                "another notation of the same address",
                "fd01::1",
                &["InternalIP FD01:0:0::1"],
                &["InternalIP FD01:0:0::1"],
            ),
        ] {
            assert_eq!(apply(provided_ip, addresses(given)), Ok(addresses(expected)), "{what}");
        }
    }

    #[test]
    fn an_unusable_node_ip_is_an_error_with_the_reason() {
        for (provided_ip, given, why) in [
            ("10.1.1.9", &["InternalIP 10.1.1.1"][..], "10.1.1.9 is none of the addresses"),
            ("10.1.1.1,fd01::9", &["InternalIP 10.1.1.1"], "fd01::9 is none of the addresses"),
            ("10.1.1.1,10.1.1.2", &["InternalIP 10.1.1.1"], "neither one address nor a pair"),
            ("10.1.1", &["InternalIP 10.1.1.1"], "neither one address nor a pair"),
            ("", &["InternalIP 10.1.1.1"], "neither one address nor a pair"),
            ("10.1.1.1,fd01::1,fd01::2", &[], "neither one address nor a pair"),
        ] {
            let error = apply(provided_ip, addresses(given)).unwrap_err().to_string();
            assert!(error.contains(why), "{provided_ip}: {error}");
        }
    }
}
