//! Zones and regions, read from the tags above a host.

use std::collections::BTreeMap;

use crate::facts::{Host, Inventory, Tags};

/// The tags of a category on a host and everything above it, nearest first, without doubles.
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

/// The hosts of each zone with their references: those with the same tags in all categories. Hosts that are not in service
/// are left out, and so are hosts without all the tags.
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
