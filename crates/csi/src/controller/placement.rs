//! Chooses the datastores for a new volume. Pure: the inventory comes in as [`Site`]s.

use std::collections::HashSet;

use snafu::Snafu;
use tonic::Code;
use vsphere::MoRef;

use crate::{
    site::{Segments, Site, SiteDatastore, same_url},
    vcenters::DATASTORE_PRIVILEGE,
};

/// The needs of a volume.
#[derive(Clone, Debug, Default)]
pub(super) struct Need<'a> {
    /// The acceptable segments, best first. Any if empty.
    pub(super) terms: Vec<Segments>,
    pub(super) datastore_url: Option<&'a str>,
    pub(super) policy: Option<&'a str>,
}

/// The candidates in one vCenter. CNS chooses one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Placement {
    /// The position in the sites.
    pub(super) site: usize,
    pub(super) datastores: Vec<MoRef>,
}

#[derive(Debug, Snafu)]
pub(super) enum PlacementError {
    #[snafu(display(
        "no datastore of any vCenter has the URL {url}; known are {known}. Correct the parameter datastoreurl of the StorageClass (VDO-1503)"
    ))]
    UnknownUrl { url: String, known: String },
    #[snafu(display(
        "the datastore {name} is not accessible from all hosts{scope}: {missing} cannot use it. Mount it there, or choose another datastore (VDO-1504)"
    ))]
    NotShared { name: String, scope: String, missing: String },
    #[snafu(display(
        "no host has the topology {wanted}; known segments are {known}. Attach the tags to hosts, clusters or datacenters, or correct the topology of the StorageClass"
    ))]
    UnknownSegment { wanted: String, known: String },
    #[snafu(display(
        "no usable datastore is mounted on all {hosts} hosts{scope}{nearest}. Mount one on all of them, or divide the hosts into zones (VDO-1501)"
    ))]
    NoShared { hosts: usize, scope: String, nearest: String },
    #[snafu(display(
        "no datastore{scope} satisfies the storage policy \"{policy}\"; checked {checked} (VDO-1506)"
    ))]
    Policy { policy: String, scope: String, checked: String },
    #[snafu(display(
        "the driver's vSphere user lacks the privilege {DATASTORE_PRIVILEGE} on {datastores}. Grant it on the datastores for volumes (VDO-1402)"
    ))]
    NoPrivilege { datastores: String },
    #[snafu(display("the vCenters have no usable host"))]
    NoHost,
}

impl PlacementError {
    pub(super) fn code(&self) -> Code {
        match self {
            Self::UnknownUrl { .. } => Code::InvalidArgument,
            Self::NoPrivilege { .. } => Code::PermissionDenied,
            _ => Code::ResourceExhausted,
        }
    }
}

/// Chooses the vCenter and the datastores. `compatible` has the datastores that satisfy the policy, by site.
pub(super) fn place(
    sites: &[Site],
    need: &Need<'_>,
    compatible: &[Option<HashSet<MoRef>>],
) -> Result<Placement, PlacementError> {
    if let Some(url) = need.datastore_url
        && sites.iter().all(|site| site.datastore_at(url).is_none())
    {
        let known = sites.iter().flat_map(|site| &site.datastores).map(|d| d.url.as_str());
        return UnknownUrlSnafu { url, known: list(known) }.fail();
    }
    let any = [Segments::new()];
    let terms = if need.terms.is_empty() { &any[..] } else { &need.terms };
    let mut failure = PlacementError::NoHost;
    for term in terms {
        for (position, site) in sites.iter().enumerate() {
            let compatible = compatible.get(position).and_then(Option::as_ref);
            match place_in(site, term, need, compatible) {
                Ok(datastores) => return Ok(Placement { site: position, datastores }),
                // A failure of a vCenter that has the segment says more.
                Err(PlacementError::UnknownSegment { .. } | PlacementError::NoHost)
                    if !matches!(failure, PlacementError::NoHost) => {}
                Err(error) => failure = error,
            }
        }
    }
    Err(failure)
}

/// Why a copy cannot be next to its source. CNS copies within a datastore.
#[derive(Debug, Snafu)]
pub(super) enum CopyError {
    #[snafu(display(
        "the datastore {url} of the source is not in view: check the datacenters in csi-vsphere.conf and the permissions on the datastore"
    ))]
    NotInView { url: String },
    #[snafu(display(
        "the StorageClass asks for the datastore {wanted}, but a copy is on the datastore of its source, {name} ({url})"
    ))]
    OtherDatastore { wanted: String, name: String, url: String },
    #[snafu(display(
        "a copy is on the datastore of its source, {name}, which does not satisfy the storage policy \"{policy}\""
    ))]
    OtherPolicy { name: String, policy: String },
    #[snafu(display(
        "the driver's vSphere user lacks the privilege {DATASTORE_PRIVILEGE} on {name}, the datastore of the source (VDO-1402)"
    ))]
    CopyPrivilege { name: String },
    #[snafu(display(
        "a copy is on the datastore of its source, {name}, which is accessible from {accessible}, but not from {wanted}. Let the pod run there, or copy the data"
    ))]
    OtherSegment { name: String, wanted: String, accessible: String },
}

/// The datastore of the source, if it meets the needs of the copy.
pub(super) fn place_copy(
    site: &Site,
    url: &str,
    need: &Need<'_>,
    compatible: Option<&HashSet<MoRef>>,
) -> Result<MoRef, CopyError> {
    let Some(datastore) = site.datastore_at(url) else {
        return NotInViewSnafu { url }.fail();
    };
    let name = &datastore.name;
    if let Some(wanted) = need.datastore_url.filter(|wanted| !same_url(wanted, url)) {
        return OtherDatastoreSnafu { wanted, name, url }.fail();
    }
    if compatible.is_some_and(|all| !all.contains(&datastore.reference)) {
        let policy = need.policy.unwrap_or_default();
        return OtherPolicySnafu { name, policy }.fail();
    }
    if !datastore.writable {
        return CopyPrivilegeSnafu { name }.fail();
    }
    let is_accessible = |term: &Segments| {
        let mut hosts =
            site.hosts.iter().filter(|host| host.usable && is_within(&host.segments, term));
        let first = hosts.next();
        first.is_some_and(|first| datastore.hosts.contains(&first.reference))
            && hosts.all(|host| datastore.hosts.contains(&host.reference))
    };
    if !need.terms.is_empty() && !need.terms.iter().any(is_accessible) {
        let shown = |segments: &[Segments]| {
            let texts: Vec<String> = segments.iter().map(show).collect();
            list(texts.iter().map(String::as_str))
        };
        let accessible = shown(&site.segments_with(datastore));
        return OtherSegmentSnafu { name, wanted: shown(&need.terms), accessible }.fail();
    }
    Ok(datastore.reference.clone())
}

/// Whether segments are among those that a term requests.
pub(super) fn is_within(segments: &Segments, term: &Segments) -> bool {
    term.iter().all(|(key, value)| segments.get(key) == Some(value))
}

fn place_in(
    site: &Site,
    term: &Segments,
    need: &Need<'_>,
    compatible: Option<&HashSet<MoRef>>,
) -> Result<Vec<MoRef>, PlacementError> {
    let scope = if term.is_empty() { String::new() } else { format!(" of {}", show(term)) };
    let of_segment = site.hosts.iter().filter(|host| is_within(&host.segments, term));
    let hosts: Vec<_> =
        of_segment.filter(|host| host.usable && (host.has_node || !term.is_empty())).collect();
    if hosts.is_empty() && !term.is_empty() {
        let known: HashSet<String> = site.hosts.iter().map(|host| show(&host.segments)).collect();
        let mut known: Vec<String> = known.into_iter().filter(|text| !text.is_empty()).collect();
        known.sort_unstable();
        let known = list(known.iter().map(String::as_str));
        return UnknownSegmentSnafu { wanted: show(term), known }.fail();
    }
    if hosts.is_empty() {
        return NoHostSnafu.fail();
    }
    let missing = |datastore: &SiteDatastore| -> Vec<&str> {
        let without = hosts.iter().filter(|host| !datastore.hosts.contains(&host.reference));
        without.map(|host| host.name.as_str()).collect()
    };
    let wanted = site
        .datastores
        .iter()
        .filter(|datastore| need.datastore_url.is_none_or(|url| same_url(url, &datastore.url)));
    let wanted: Vec<&SiteDatastore> = wanted.filter(|datastore| datastore.usable).collect();
    let shared: Vec<&SiteDatastore> =
        wanted.iter().copied().filter(|datastore| missing(datastore).is_empty()).collect();
    if shared.is_empty() {
        let nearest = wanted.iter().min_by_key(|datastore| missing(datastore).len());
        if let (Some(datastore), Some(_)) = (nearest, need.datastore_url) {
            let missing = list(missing(datastore).into_iter());
            return NotSharedSnafu { name: &datastore.name, scope, missing }.fail();
        }
        let nearest = nearest.map_or_else(String::new, |datastore| {
            format!("; {} lacks {}", datastore.name, list(missing(datastore).into_iter()))
        });
        return NoSharedSnafu { hosts: hosts.len(), scope, nearest }.fail();
    }
    if !shared.iter().any(|datastore| datastore.writable) {
        let datastores = list(shared.iter().map(|datastore| datastore.name.as_str()));
        return NoPrivilegeSnafu { datastores }.fail();
    }
    let suitable = shared.iter().copied().filter(|datastore| datastore.writable);
    let suitable: Vec<&SiteDatastore> = suitable
        .filter(|datastore| compatible.is_none_or(|all| all.contains(&datastore.reference)))
        .collect();
    if suitable.is_empty() {
        let checked = list(shared.iter().map(|datastore| datastore.name.as_str()));
        let policy = need.policy.unwrap_or_default();
        return PolicySnafu { policy, scope, checked }.fail();
    }
    Ok(prefer(suitable, term))
}

/// The preferred datastores of the segment if there are any; those with the most free space first.
fn prefer(mut suitable: Vec<&SiteDatastore>, term: &Segments) -> Vec<MoRef> {
    let is_preferred = |datastore: &&SiteDatastore| {
        datastore.preferred_for.iter().any(|segment| term.values().any(|value| value == segment))
    };
    if suitable.iter().any(is_preferred) {
        suitable.retain(is_preferred);
    }
    suitable.sort_by_key(|datastore| std::cmp::Reverse(datastore.free));
    suitable.into_iter().map(|datastore| datastore.reference.clone()).collect()
}

pub(super) fn show(segments: &Segments) -> String {
    let short = |label: &str| label.rsplit('/').next().unwrap_or(label).to_owned();
    let pairs = segments.iter().map(|(label, value)| format!("{}={value}", short(label)));
    pairs.collect::<Vec<_>>().join(", ")
}

/// At most a few names.
fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    match names.len() {
        0 => "none".to_owned(),
        1..=5 => names.join(", "),
        more => format!("{} and {} more", names[..4].join(", "), more - 4),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::SiteHost;

    fn host(id: &str, zone: &str) -> SiteHost {
        let segments = [("t/zone".to_owned(), zone.to_owned())].into();
        SiteHost {
            reference: MoRef::new("HostSystem", id),
            name: id.into(),
            segments: if zone.is_empty() { Segments::new() } else { segments },
            usable: true,
            has_node: true,
        }
    }

    fn datastore(id: &str, free: i64, hosts: &[&str]) -> SiteDatastore {
        SiteDatastore {
            reference: MoRef::new("Datastore", id),
            name: id.into(),
            url: format!("ds:///{id}/"),
            free,
            usable: true,
            hosts: hosts.iter().map(|host| MoRef::new("HostSystem", *host)).collect(),
            preferred_for: Vec::new(),
            writable: true,
        }
    }

    fn site() -> Site {
        Site {
            vcenter: "vc".into(),
            hosts: vec![host("h1", "a"), host("h2", "a"), host("h3", "b")],
            datastores: vec![
                datastore("all", 10, &["h1", "h2", "h3"]),
                datastore("zone-a", 50, &["h1", "h2"]),
                datastore("local", 90, &["h1"]),
            ],
        }
    }

    fn term(zone: &str) -> Segments {
        [("t/zone".to_owned(), zone.to_owned())].into()
    }

    fn placed(site: Site, need: &Need<'_>) -> Result<String, String> {
        let placed = place(&[site], need, &[None]).map_err(|error| error.to_string())?;
        Ok(placed.datastores.iter().map(|d| &*d.id).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn without_topology_a_datastore_must_be_on_the_hosts_of_all_nodes() {
        assert_eq!(placed(site(), &Need::default()).as_deref(), Ok("all"));
        let mut unreachable = site();
        unreachable.hosts[2].has_node = false;
        assert_eq!(
            placed(unreachable, &Need::default()).as_deref(),
            Ok("zone-a all"),
            "most space first"
        );
    }

    #[test]
    fn with_topology_the_hosts_of_the_segment_count_and_hosts_in_maintenance_do_not() {
        let need = Need { terms: vec![term("a")], ..Need::default() };
        assert_eq!(placed(site(), &need).as_deref(), Ok("zone-a all"));
        let mut maintenance = site();
        maintenance.hosts[1].usable = false;
        assert_eq!(placed(maintenance, &need).as_deref(), Ok("local zone-a all"));
    }

    #[test]
    fn the_first_feasible_term_wins() {
        let need = Need {
            terms: vec![term("b"), term("a")],
            datastore_url: Some("ds:///zone-a"),
            ..Need::default()
        };
        assert_eq!(placed(site(), &need).as_deref(), Ok("zone-a"));
    }

    #[test]
    fn a_preferred_datastore_excludes_the_others() {
        let mut preferred = site();
        preferred.datastores[0].preferred_for.push("a".into());
        let need = Need { terms: vec![term("a")], ..Need::default() };
        assert_eq!(placed(preferred, &need).as_deref(), Ok("all"));
    }

    #[test]
    fn datastores_without_the_privilege_are_left_out_and_named() {
        let mut some = site();
        some.datastores[1].writable = false;
        let need = Need { terms: vec![term("a")], ..Need::default() };
        assert_eq!(placed(some.clone(), &need).as_deref(), Ok("all"));
        some.datastores[0].writable = false;
        let error = placed(some, &need).unwrap_err();
        assert!(error.contains("Datastore.FileManagement on all, zone-a"), "{error}");
    }

    #[test]
    fn a_copy_is_next_to_its_source_or_nowhere() {
        let copied = |url: &str, need: &Need<'_>, compatible: Option<&HashSet<MoRef>>| {
            let placed = place_copy(&site(), url, need, compatible);
            placed.map(|datastore| datastore.id.to_string()).map_err(|error| error.to_string())
        };
        let zone = |zone: &str| Need { terms: vec![term(zone)], ..Need::default() };
        let zone_a = "ds:///zone-a/";
        assert_eq!(copied(zone_a, &Need::default(), None).as_deref(), Ok("zone-a"));
        assert_eq!(copied(zone_a, &zone("a"), None).as_deref(), Ok("zone-a"));
        let error = copied(zone_a, &zone("b"), None).unwrap_err();
        assert!(error.contains("accessible from zone=a, but not from zone=b"), "{error}");
        let error = copied(zone_a, &zone("c"), None).unwrap_err();
        assert!(error.contains("not from zone=c"), "{error}");
        let either = Need { terms: vec![term("b"), term("a")], ..Need::default() };
        assert_eq!(copied(zone_a, &either, None).as_deref(), Ok("zone-a"));
        let elsewhere = Need { datastore_url: Some("ds:///all"), ..Need::default() };
        let error = copied(zone_a, &elsewhere, None).unwrap_err();
        assert!(error.contains("ds:///all"), "{error}");
        let gold = Need { policy: Some("gold"), ..Need::default() };
        let error = copied(zone_a, &gold, Some(&HashSet::new())).unwrap_err();
        assert!(error.contains("\"gold\""), "{error}");
        let error = copied("ds:///hidden/", &Need::default(), None).unwrap_err();
        assert!(error.contains("ds:///hidden/ of the source is not in view"), "{error}");
    }

    #[test]
    fn failures_name_the_object_and_the_fix() {
        let url = |url| Need { datastore_url: Some(url), ..Need::default() };
        let fails = |need: &Need<'_>| placed(site(), need).unwrap_err();
        assert!(fails(&url("ds:///x/")).contains("has the URL ds:///x/; known are ds:///all/"));
        assert!(fails(&url("ds:///zone-a/")).contains("h3 cannot use it"));
        let unknown = Need { terms: vec![term("c")], ..Need::default() };
        assert!(
            fails(&unknown)
                .contains("no host has the topology zone=c; known segments are zone=a, zone=b")
        );
        let mut none = site();
        none.datastores.remove(0);
        let error = placed(none, &Need::default()).unwrap_err();
        assert!(error.contains("all 3 hosts; zone-a lacks h3"), "{error}");
        let need = Need { policy: Some("gold"), ..Need::default() };
        let error = place(&[site()], &need, &[Some(HashSet::new())]).unwrap_err();
        assert!(error.to_string().contains("\"gold\"; checked all"), "{error}");
    }
}
