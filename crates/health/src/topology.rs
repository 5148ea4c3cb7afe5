//! Zones and regions, from the tags on a host and its ancestors.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    facts::{Host, Inventory, Known, Tags, Vcenter},
    view::FactsView,
};

/// The tags of a category on a host and its ancestors, nearest first, without duplicates.
pub fn above<'a>(tags: &'a Tags, id: &str, host: &Host, category: &str) -> Vec<&'a str> {
    let objects = std::iter::once(id).chain(host.ancestors.iter().map(String::as_str));
    let attached = objects.filter_map(|object| tags.attached.get(object)).flatten();
    let mut names: Vec<&str> = Vec::new();
    for tag in attached.filter(|tag| tag.category == category) {
        if !names.contains(&tag.name.as_str()) {
            names.push(&tag.name);
        }
    }
    names
}

/// The hosts of each zone, with their managed object ids. Hosts of one zone have the same tags in all
/// categories. Omits hosts that are not in service or lack a tag.
pub fn zones<'a>(
    inventory: &'a Inventory,
    tags: &'a Tags,
    categories: &[String],
) -> BTreeMap<Vec<&'a str>, Vec<(&'a str, &'a Host)>> {
    let mut zones: BTreeMap<Vec<&str>, Vec<(&str, &Host)>> = BTreeMap::new();
    for (id, host) in &inventory.hosts {
        if !host.connected || host.maintenance {
            continue;
        }
        let segment: Option<Vec<&str>> = categories
            .iter()
            .map(|category| above(tags, id, host, category).first().copied())
            .collect();
        if let Some(segment) = segment {
            zones.entry(segment).or_default().push((id.as_str(), host));
        }
    }
    zones
}

/// Like [`zones`], but only zones with a node of this cluster.
pub(crate) fn own_zones<'a>(
    view: &FactsView<'a>,
    vcenter: &'a Vcenter,
    tags: &'a Tags,
    categories: &[String],
) -> Vec<(Vec<&'a str>, Vec<&'a Host>)> {
    let Some(inventory) = vcenter.inventory.get() else { return Vec::new() };
    let own: BTreeSet<&str> = view.hosts_of_nodes(vcenter).into_iter().map(|(id, _)| id).collect();
    let zones = zones(inventory, tags, categories).into_iter();
    let zones = zones.filter(|(_, hosts)| hosts.iter().any(|(id, _)| own.contains(id)));
    zones.map(|(zone, hosts)| (zone, hosts.into_iter().map(|(_, host)| host).collect())).collect()
}

/// The datastores that all of these hosts mount.
pub(crate) fn shared(hosts: &[&Host]) -> BTreeSet<String> {
    let mut hosts = hosts.iter();
    let first = hosts.next().map(|host| host.datastores.clone()).unwrap_or_default();
    hosts.fold(first, |shared, host| shared.intersection(&host.datastores).cloned().collect())
}

/// The datastores that all nodes of a zone reach, where the storage driver can create their volumes.
#[derive(Clone, Debug, PartialEq)]
pub struct Reachable {
    /// Name of the VsphereCloudConfig.
    pub vcenter: String,
    /// Tags of the zone in the order of the categories; `None` without zones.
    pub zone: Option<String>,
    pub datastores: Known<Vec<String>>,
}

/// The datastores that the nodes of each zone share, or all nodes if there are no zones.
pub fn reachable(view: &FactsView<'_>) -> Vec<Reachable> {
    let Some(storage) = &view.facts.wanted.storage else { return Vec::new() };
    let mut all = Vec::new();
    for vcenter in view.storage_vcenters() {
        let mut place = |zone: Option<String>, datastores| {
            all.push(Reachable { vcenter: vcenter.name.clone(), zone, datastores });
        };
        let inventory = match &vcenter.inventory {
            Known::Known(inventory) => inventory,
            Known::Unknown { reason } => {
                place(None, Known::unknown(reason));
                continue;
            }
        };
        let names = |hosts: &[&Host]| -> Known<Vec<String>> {
            let shared = shared(hosts);
            let found = shared.iter().filter_map(|id| inventory.datastores.get(id));
            found.map(|datastore| datastore.name.clone()).collect::<Vec<_>>().into()
        };
        if storage.categories.is_empty() {
            let hosts = view.hosts_of_nodes(vcenter).into_iter().map(|(_, host)| host);
            let hosts: Vec<&Host> = hosts.filter(|host| host.connected).collect();
            if !hosts.is_empty() {
                place(None, names(&hosts));
            }
            continue;
        }
        match &inventory.tags {
            Known::Unknown { reason } => place(None, Known::unknown(reason)),
            Known::Known(tags) => {
                for (zone, hosts) in own_zones(view, vcenter, tags, &storage.categories) {
                    place(Some(zone.join("/")), names(&hosts));
                }
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Examination, shortcuts::Shortcuts, testing::healthy};

    fn datastores_by_zone(facts: crate::facts::Facts) -> Vec<(Option<String>, Known<Vec<String>>)> {
        let examination = Examination::run(facts);
        let all = reachable(&examination.view()).into_iter();
        all.map(|place| (place.zone, place.datastores)).collect()
    }

    #[test]
    fn datastores_are_grouped_by_zone_if_there_are_zones() {
        let names = |names: &[&str]| Known::Known(names.iter().map(|n| (*n).to_owned()).collect());
        let zone = |zone: &str| Some(format!("region-a/{zone}"));
        let expected = [
            (zone("zone-a"), names(&["shared", "ds-a"])),
            (zone("zone-b"), names(&["shared", "ds-b"])),
        ];
        assert_eq!(datastores_by_zone(healthy()), expected);
        let mut facts = healthy();
        facts.wanted.storage.as_mut().unwrap().categories.clear();
        assert_eq!(datastores_by_zone(facts.clone()), [(None, names(&["shared"]))]);
        facts.vcenter().inventory = Known::unknown("it does not answer");
        assert_eq!(datastores_by_zone(facts), [(None, Known::unknown("it does not answer"))]);
    }
}
