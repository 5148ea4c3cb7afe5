//! Which addresses of a machine become addresses of its node, and why.
//!
//! ```text
//!   interfaces ──► usable candidates ──► cloud-init's order ──► per family: internal, external
//!                  (each one dropped has its reason)             1. first in a configured subnet
//!                                                                2. first on the configured network
//!                                                                3. neither side found: the first
//! ```
//!
//! Where several candidates fit one rule, the first is taken. A node that is initialised keeps the address
//! it has as long as that address fits: a virtual IP that moves to the VM and is listed first does not
//! take its place. Only if the addresses so chosen lack the one the kubelet was started with (`--node-ip`)
//! are they chosen again, and that one comes first.

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

/// What is configured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// For addresses reached from within.
    pub internal: Side,
    /// For addresses reached from outside.
    pub external: Side,
}

/// What is configured for one side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Side {
    /// Subnets to take from, in order of preference.
    pub subnets: Vec<IpNet>,
    /// Subnets never to take from.
    pub excluded: Vec<IpNet>,
    /// The network to take from; empty if any.
    pub network: String,
}

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The family an address belongs to. An IPv4 address in IPv6 clothes is an IPv4 address.
    pub fn of(address: IpAddr) -> Self {
        if address.to_canonical().is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::V4 { "ipv4" } else { "ipv6" })
    }
}

/// Why a machine has no usable address.
#[derive(Debug, Clone, PartialEq, Eq, Snafu)]
#[allow(missing_docs, reason = "a field is named as in the text it stands in")]
pub enum NoAddress {
    #[snafu(display("its guest reports no host name: are VMware Tools running?"))]
    NoHostName,
    #[snafu(display("its guest reports no network interface: are VMware Tools running?"))]
    NoInterface,
    #[snafu(display(
        "neither network \"{internal}\" nor network \"{external}\" is among its networks ({found}): \
         correct the configured network names or the machine"
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

/// Which candidate is taken where several fit one rule.
#[derive(Clone, Copy, Debug)]
pub enum Preference<'a> {
    /// The first, as at the first initialisation.
    First,
    /// One the node has already, on the same side; else the first.
    Present(&'a [Address]),
    /// One the kubelet was started with; else the first.
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

/// Why a candidate was taken or left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// On an interface with no virtual device behind it.
    NotADevice,
    /// Reaches nothing outside the machine or its link.
    Local(&'static str),
    /// Its family is not configured.
    OtherFamily,
    /// In an excluded subnet.
    Excluded(IpNet),
    /// In this configured subnet.
    InSubnet(IpNet),
    /// On the configured network.
    OnNetwork,
    /// No rule found any, and it is the first.
    First,
    /// Fits as well as the first, and the node has it.
    Present,
    /// Fits as well as the first, and is the kubelet's `--node-ip`.
    NodeIp,
    /// Fits as well, but is not the one taken.
    NotFirst,
    /// The other side has a rule that fits; this one has none.
    NoRuleFits,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotADevice => f.write_str("left: its interface is no virtual device"),
            Self::Local(kind) => write!(f, "left: {kind}"),
            Self::OtherFamily => f.write_str("left: its family is not configured"),
            Self::Excluded(subnet) => write!(f, "left: excluded by {subnet}"),
            Self::InSubnet(subnet) => write!(f, "taken: the first in {subnet}"),
            Self::OnNetwork => f.write_str("taken: the first on the configured network"),
            Self::First => f.write_str("taken: no rule fits any, and it is the first"),
            Self::Present => f.write_str("taken: the node has it, and it still fits"),
            Self::NodeIp => f.write_str("taken: it fits, and is the kubelet's --node-ip"),
            Self::NotFirst => f.write_str("left: another one comes first"),
            Self::NoRuleFits => f.write_str("left: no rule fits it"),
        }
    }
}

/// One line of the explanation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The candidate.
    pub address: IpAddr,
    /// The network it is on.
    pub network: String,
    /// What for; `None` where it was left for either.
    pub side: Option<AddressKind>,
    /// Why.
    pub verdict: Verdict,
}

/// The addresses and how they came about.
#[derive(Debug, Default)]
pub struct Selected {
    /// Host name first, then internal and external address of each family.
    pub addresses: Vec<Address>,
    /// Every candidate and what became of it.
    pub reasons: Vec<Reason>,
    /// Why cloud-init's order could not be used, if so.
    pub metadata: Option<MetadataError>,
}

#[derive(Clone, Copy)]
struct Candidate<'a> {
    address: IpAddr,
    network: &'a str,
}

/// Chooses the addresses of a VM. `families` in order of preference. The explanation is complete also
/// where nothing could be chosen.
pub fn select(
    guest: &Guest,
    rules: &Rules,
    families: &[Family],
    preference: Preference<'_>,
) -> (Selected, Option<NoAddress>) {
    let mut selected = Selected::default();
    let failed = choose(guest, rules, families, preference, &mut selected).err();
    (selected, failed)
}

fn choose(
    guest: &Guest,
    rules: &Rules,
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
    selected.addresses.push(Address::new(AddressKind::Hostname, guest.host_name.as_str()));
    networks_exist(guest, rules)?;
    let mut candidates = usable(guest, &mut selected.reasons);
    if candidates.is_empty() {
        return OnlyLocalSnafu { found: listed(guest.addresses()) }.fail();
    }
    match guest.metadata.as_ref().map(cloud_init::configured_addresses).transpose() {
        Ok(order) => prefer_configured(&mut candidates, &order.unwrap_or_default()),
        Err(error) => selected.metadata = Some(error),
    }
    for family in families {
        let of_family: Vec<_> =
            candidates.iter().copied().filter(|c| Family::of(c.address) == *family).collect();
        if !pair(&of_family, rules, preference, selected) {
            return NoneOfFamilySnafu { family: *family, found: listed(guest.addresses()) }.fail();
        }
    }
    let other = candidates.iter().filter(|c| !families.contains(&Family::of(c.address)));
    selected.reasons.extend(other.map(|c| reason(c, None, Verdict::OtherFamily)));
    Ok(())
}

/// With both networks configured, one of them must exist.
fn networks_exist(guest: &Guest, rules: &Rules) -> Result<(), NoAddress> {
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

/// The candidates that reach beyond the machine; the others are noted.
fn usable<'a>(guest: &'a Guest, reasons: &mut Vec<Reason>) -> Vec<Candidate<'a>> {
    let mut candidates = Vec::new();
    for interface in &guest.interfaces {
        for address in &interface.addresses {
            let candidate = Candidate { address: *address, network: &interface.network };
            if !is_device(interface) {
                reasons.push(reason(&candidate, None, Verdict::NotADevice));
            } else if let Some(kind) = local(*address) {
                reasons.push(reason(&candidate, None, Verdict::Local(kind)));
            } else {
                candidates.push(candidate);
            }
        }
    }
    candidates
}

/// What kind of local address it is, if it is one.
fn local(address: IpAddr) -> Option<&'static str> {
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

/// Configured addresses first, in their order; the others keep theirs.
fn prefer_configured(candidates: &mut [Candidate<'_>], order: &[IpAddr]) {
    let place = |c: &Candidate<'_>| order.iter().position(|configured| *configured == c.address);
    candidates.sort_by_key(|c| place(c).unwrap_or(usize::MAX));
}

/// Chooses internal and external address of one family; `false` if there is neither.
fn pair(
    family: &[Candidate<'_>],
    rules: &Rules,
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
    let any_rule_fits = choices.iter().any(|(_, _, choice)| choice.is_some());
    let mut found = false;
    for (kind, open, choice) in choices {
        let choice = match choice {
            None if !any_rule_fits => {
                preferred(open.iter().copied(), &kind, preference, |_| Verdict::First)
            }
            choice => choice,
        };
        let left = if choice.is_some() { Verdict::NotFirst } else { Verdict::NoRuleFits };
        for candidate in &open {
            match &choice {
                Some(taken) if taken.address == candidate.address => {}
                _ => into.reasons.push(reason(candidate, Some(&kind), left.clone())),
            }
        }
        if let Some(mut taken) = choice {
            found = true;
            let address = Address::new(kind.clone(), taken.address.to_string());
            if !into.addresses.contains(&address) {
                into.addresses.push(address);
            }
            taken.side = Some(kind);
            into.reasons.push(taken);
        }
    }
    found
}

/// The choice by subnet or network of one side.
fn by_rule(
    open: &[Candidate<'_>],
    kind: &AddressKind,
    side: &Side,
    preference: Preference<'_>,
) -> Option<Reason> {
    let fitting = side.subnets.iter().flat_map(|subnet| {
        open.iter().filter(|c| subnet.contains(&c.address)).map(move |c| (*c, *subnet))
    });
    let fitting: Vec<_> = fitting.collect();
    let subnet_of = |address: IpAddr| fitting.iter().find(|(c, _)| c.address == address);
    let by_subnet = preferred(fitting.iter().map(|(c, _)| *c), kind, preference, |c| {
        subnet_of(c.address).map_or(Verdict::First, |(_, subnet)| Verdict::InSubnet(*subnet))
    });
    by_subnet.or_else(|| {
        let named = |c: &Candidate<'_>| {
            !side.network.is_empty() && c.network.eq_ignore_ascii_case(&side.network)
        };
        preferred(open.iter().copied().filter(named), kind, preference, |_| Verdict::OnNetwork)
    })
}

/// Of candidates that fit equally, the preferred one, else the first.
fn preferred<'a>(
    fitting: impl Iterator<Item = Candidate<'a>>,
    kind: &AddressKind,
    preference: Preference<'_>,
    verdict: impl Fn(&Candidate<'_>) -> Verdict,
) -> Option<Reason> {
    let fitting: Vec<_> = fitting.collect();
    let first = fitting.first()?;
    let taken = fitting.iter().find(|c| preference.includes(kind, c.address)).unwrap_or(first);
    let verdict = match preference {
        _ if taken.address == first.address => verdict(taken),
        Preference::Present(_) => Verdict::Present,
        Preference::First | Preference::NodeIp(_) => Verdict::NodeIp,
    };
    Some(reason(taken, None, verdict))
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
