//! Chooses the addresses of a node from those of its VM, with the reasons.
//!
//! ```text
//!   interfaces ──► usable candidates ──► cloud-init's order ──► per family: internal, external
//!                  (with the reason for each other one)          1. first in a configured subnet
//!                                                                2. first on the configured network
//!                                                                3. first, if neither side has one
//! ```
//!
//! If several candidates match a rule, the first is chosen. An initialised node keeps its address as
//! long as it matches: a virtual IP that moves to the VM and is listed first does not replace it. If
//! the kubelet's `--node-ip` is not among the chosen addresses, they are chosen again, and that
//! address takes precedence.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
};

use ipnet::IpNet;
use snafu::Snafu;

use crate::{
    cloud_init::{self, MetadataError},
    model::{Address, AddressKind, Guest, Interface},
};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressRules {
    pub internal: SideRules,
    pub external: SideRules,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SideRules {
    /// Allowed subnets, in order of preference.
    pub subnets: Vec<IpNet>,
    pub excluded: Vec<IpNet>,
    /// The name of the network; empty for any.
    pub network: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    /// An IPv4-mapped IPv6 address is an IPv4 address.
    pub fn of_address(address: IpAddr) -> Self {
        if address.to_canonical().is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::V4 { "ipv4" } else { "ipv6" })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Snafu)]
pub enum NoAddress {
    #[snafu(display("its guest reports no host name: are VMware Tools running?"))]
    NoHostName,
    #[snafu(display("its guest reports no network interface: are VMware Tools running?"))]
    NoInterface,
    #[snafu(display(
        "neither network \"{internal}\" nor network \"{external}\" is among its networks ({found}): \
         correct the configured network names or the VM"
    ))]
    NoNetwork { internal: String, external: String, found: String },
    #[snafu(display("all its addresses are local ones ({found})"))]
    OnlyLocal { found: String },
    #[snafu(display(
        "it has no usable {family} address among {found}: give it one, or correct ip-family, subnets \
         and exclusions"
    ))]
    NoneOfFamily { family: Family, found: String },
}

/// Which candidate to choose if several match a rule.
#[derive(Clone, Copy, Debug)]
pub enum Preference<'a> {
    /// The first, as at initialisation.
    First,
    /// One that the node already has on the same side; otherwise the first.
    Present(&'a [Address]),
    /// The kubelet's `--node-ip`; otherwise the first.
    NodeIp(&'a [IpAddr]),
}

impl Preference<'_> {
    fn includes(self, kind: &AddressKind, candidate: IpAddr) -> bool {
        match self {
            Self::First => false,
            Self::Present(present) => present
                .iter()
                .any(|address| address.kind == *kind && address.address.parse() == Ok(candidate)),
            Self::NodeIp(wanted) => wanted.contains(&candidate),
        }
    }
}

/// Why a candidate was chosen or skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The interface has no virtual device.
    NotADevice,
    /// Not reachable outside the VM or its link.
    Local(&'static str),
    OtherFamily,
    Excluded(IpNet),
    /// The first in this configured subnet.
    InSubnet(IpNet),
    OnNetwork,
    /// No rule matches any candidate, and this is the first.
    First,
    /// Matches like the first, and the node already has it.
    Present,
    /// Matches like the first, and is the kubelet's `--node-ip`.
    NodeIp,
    /// Matches too, but another one was chosen.
    NotFirst,
    /// A rule matches on the other side, but none on this side.
    NoRuleMatches,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotADevice => f.write_str("skipped: its interface has no virtual device"),
            Self::Local(kind) => write!(f, "skipped: {kind}"),
            Self::OtherFamily => f.write_str("skipped: its family is not configured"),
            Self::Excluded(subnet) => write!(f, "skipped: excluded by {subnet}"),
            Self::InSubnet(subnet) => write!(f, "chosen: the first in {subnet}"),
            Self::OnNetwork => f.write_str("chosen: the first on the configured network"),
            Self::First => f.write_str("chosen: no rule matches any address, and it is the first"),
            Self::Present => f.write_str("chosen: the node already has it, and it still matches"),
            Self::NodeIp => f.write_str("chosen: it matches, and is the kubelet's --node-ip"),
            Self::NotFirst => f.write_str("skipped: another one comes first"),
            Self::NoRuleMatches => f.write_str("skipped: no rule matches it"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    pub address: IpAddr,
    pub network: String,
    /// `None` if it was skipped for both sides.
    pub side: Option<AddressKind>,
    pub verdict: Verdict,
}

#[derive(Debug, Default)]
pub struct Selected {
    /// Host name first, then internal and external address of each family.
    pub addresses: Vec<Address>,
    /// The verdict on every candidate.
    pub reasons: Vec<Reason>,
    /// Why cloud-init's order could not be used.
    pub metadata_error: Option<MetadataError>,
}

#[derive(Clone, Copy)]
struct Candidate<'a> {
    address: IpAddr,
    network: &'a str,
}

/// Chooses addresses for `families`, in order of preference. The explanation is complete even if no
/// address could be chosen.
pub fn select(
    guest: &Guest,
    rules: &AddressRules,
    families: &[Family],
    preference: Preference<'_>,
) -> (Selected, Option<NoAddress>) {
    let mut selected = Selected::default();
    let failed = choose(guest, rules, families, preference, &mut selected).err();
    (selected, failed)
}

fn choose(
    guest: &Guest,
    rules: &AddressRules,
    families: &[Family],
    preference: Preference<'_>,
    selected: &mut Selected,
) -> Result<(), NoAddress> {
    if guest.host_name.is_empty() {
        return NoHostNameSnafu.fail();
    }
    if guest.interfaces.is_empty() {
        return NoInterfaceSnafu.fail();
    }
    if !is_placeholder(&guest.host_name) {
        selected.addresses.push(Address::new(AddressKind::Hostname, guest.host_name.as_str()));
    }
    check_networks_exist(guest, rules)?;
    let mut candidates = usable(guest, &mut selected.reasons);
    if candidates.is_empty() {
        return OnlyLocalSnafu { found: listed(guest.addresses()) }.fail();
    }
    match guest.metadata.as_ref().map(cloud_init::configured_addresses).transpose() {
        Ok(order) => prefer_configured(&mut candidates, &order.unwrap_or_default()),
        Err(error) => selected.metadata_error = Some(error),
    }
    for family in families {
        let of_family: Vec<_> = candidates
            .iter()
            .copied()
            .filter(|c| Family::of_address(c.address) == *family)
            .collect();
        if !select_pair(&of_family, rules, preference, selected) {
            return NoneOfFamilySnafu { family: *family, found: listed(guest.addresses()) }.fail();
        }
    }
    let other = candidates.iter().filter(|c| !families.contains(&Family::of_address(c.address)));
    selected.reasons.extend(other.map(|c| reason(c, None, Verdict::OtherFamily)));
    Ok(())
}

/// Whether a guest reports the host name of a system without one. The node keeps the kubelet's host name then.
fn is_placeholder(host_name: &str) -> bool {
    host_name.split('.').next().is_some_and(|name| name.eq_ignore_ascii_case("localhost"))
}

/// If both networks are configured, one of them must exist.
fn check_networks_exist(guest: &Guest, rules: &AddressRules) -> Result<(), NoAddress> {
    let (internal, external) = (&rules.internal.network, &rules.external.network);
    let devices = || guest.interfaces.iter().filter(|i| is_device(i));
    let exists = |name: &str| devices().any(|i| i.network.eq_ignore_ascii_case(name));
    if internal.is_empty() || external.is_empty() || exists(internal) || exists(external) {
        return Ok(());
    }
    let found: Vec<&str> = devices().map(|i| i.network.as_str()).collect();
    NoNetworkSnafu { internal, external, found: found.join(", ") }.fail()
}

fn is_device(interface: &Interface) -> bool {
    interface.device != -1
}

/// Candidates that are reachable outside the VM; `reasons` gets the others.
fn usable<'a>(guest: &'a Guest, reasons: &mut Vec<Reason>) -> Vec<Candidate<'a>> {
    let mut candidates = Vec::new();
    for interface in &guest.interfaces {
        for address in &interface.addresses {
            let candidate = Candidate { address: *address, network: &interface.network };
            if !is_device(interface) {
                reasons.push(reason(&candidate, None, Verdict::NotADevice));
            } else if let Some(kind) = local_kind(*address) {
                reasons.push(reason(&candidate, None, Verdict::Local(kind)));
            } else {
                candidates.push(candidate);
            }
        }
    }
    candidates
}

fn local_kind(address: IpAddr) -> Option<&'static str> {
    let link_multicast = |v6: Ipv6Addr| v6.segments()[0] & 0xff0f == 0xff02;
    match address.to_canonical() {
        a if a.is_unspecified() => Some("it is the unspecified address"),
        a if a.is_loopback() => Some("it is a loopback address"),
        IpAddr::V4(v4) if v4.is_link_local() => Some("it is link-local"),
        IpAddr::V4(v4) if v4.octets()[..3] == [224, 0, 0] => Some("it is link-local multicast"),
        IpAddr::V6(v6) if v6.is_unicast_link_local() => Some("it is link-local"),
        IpAddr::V6(v6) if link_multicast(v6) => Some("it is link-local multicast"),
        _ => None,
    }
}

/// Puts addresses from cloud-init first, in its order; the others keep theirs.
fn prefer_configured(candidates: &mut [Candidate<'_>], order: &[IpAddr]) {
    let rank = |c: &Candidate<'_>| order.iter().position(|configured| *configured == c.address);
    candidates.sort_by_key(|c| rank(c).unwrap_or(usize::MAX));
}

/// Chooses the internal and external address of one family. Returns `false` if there is neither.
fn select_pair(
    family: &[Candidate<'_>],
    rules: &AddressRules,
    preference: Preference<'_>,
    into: &mut Selected,
) -> bool {
    let sides =
        [(AddressKind::InternalIP, &rules.internal), (AddressKind::ExternalIP, &rules.external)];
    let mut choices = Vec::new();
    for (kind, side) in sides {
        let excluded = |c: &Candidate<'_>| side.excluded.iter().find(|s| s.contains(&c.address));
        for candidate in family {
            if let Some(subnet) = excluded(candidate) {
                into.reasons.push(reason(candidate, Some(&kind), Verdict::Excluded(*subnet)));
            }
        }
        let open: Vec<_> = family.iter().copied().filter(|c| excluded(c).is_none()).collect();
        let choice = by_rule(&open, &kind, side, preference);
        choices.push((kind, open, choice));
    }
    let any_rule_matches = choices.iter().any(|(_, _, choice)| choice.is_some());
    let mut found = false;
    for (kind, open, choice) in choices {
        let choice = match choice {
            None if !any_rule_matches => {
                preferred(open.iter().copied(), &kind, preference, |_| Verdict::First)
            }
            choice => choice,
        };
        let skipped = if choice.is_some() { Verdict::NotFirst } else { Verdict::NoRuleMatches };
        for candidate in &open {
            match &choice {
                Some(chosen) if chosen.address == candidate.address => {}
                _ => into.reasons.push(reason(candidate, Some(&kind), skipped.clone())),
            }
        }
        if let Some(mut chosen) = choice {
            found = true;
            let address = Address::new(kind.clone(), chosen.address.to_string());
            if !into.addresses.contains(&address) {
                into.addresses.push(address);
            }
            chosen.side = Some(kind);
            into.reasons.push(chosen);
        }
    }
    found
}

fn by_rule(
    open: &[Candidate<'_>],
    kind: &AddressKind,
    side: &SideRules,
    preference: Preference<'_>,
) -> Option<Reason> {
    let matching = side.subnets.iter().flat_map(|subnet| {
        open.iter().filter(|c| subnet.contains(&c.address)).map(move |c| (*c, *subnet))
    });
    let matching: Vec<_> = matching.collect();
    let subnet_of = |address: IpAddr| matching.iter().find(|(c, _)| c.address == address);
    let by_subnet = preferred(matching.iter().map(|(c, _)| *c), kind, preference, |c| {
        subnet_of(c.address).map_or(Verdict::First, |(_, subnet)| Verdict::InSubnet(*subnet))
    });
    by_subnet.or_else(|| {
        let named = |c: &Candidate<'_>| {
            !side.network.is_empty() && c.network.eq_ignore_ascii_case(&side.network)
        };
        preferred(open.iter().copied().filter(named), kind, preference, |_| Verdict::OnNetwork)
    })
}

/// Of candidates that match equally, the preferred one; otherwise the first.
fn preferred<'a>(
    matching: impl Iterator<Item = Candidate<'a>>,
    kind: &AddressKind,
    preference: Preference<'_>,
    verdict: impl Fn(&Candidate<'_>) -> Verdict,
) -> Option<Reason> {
    let matching: Vec<_> = matching.collect();
    let first = matching.first()?;
    let chosen = matching.iter().find(|c| preference.includes(kind, c.address)).unwrap_or(first);
    let verdict = match preference {
        _ if chosen.address == first.address => verdict(chosen),
        Preference::Present(_) => Verdict::Present,
        Preference::First | Preference::NodeIp(_) => Verdict::NodeIp,
    };
    Some(reason(chosen, None, verdict))
}

fn reason(candidate: &Candidate<'_>, side: Option<&AddressKind>, verdict: Verdict) -> Reason {
    Reason {
        address: candidate.address,
        network: candidate.network.to_owned(),
        side: side.cloned(),
        verdict,
    }
}

fn listed(addresses: impl Iterator<Item = IpAddr>) -> String {
    let all: Vec<String> = addresses.map(|a| a.to_string()).collect();
    if all.is_empty() { "none".into() } else { all.join(", ") }
}

#[cfg(test)]
mod tests;
