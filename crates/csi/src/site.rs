//! The hosts and datastores of a vCenter, with topology segments: what placement needs of the inventory.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
};

use vsphere::{
    BiosUuid, MoRef,
    inventory::{HostConnection, Tree},
};

use crate::{
    configuration::Category,
    vcenters::{Connection, Purpose, TagTable},
};

/// Values by label: `topology.csi.vmware.com/k8s-zone` → `zone-a`.
pub type Segments = BTreeMap<String, String>;

/// Datastores with a tag of this category are preferred for the segment that the tag names.
const PREFERRED_DATASTORES: &str = "cns.vmware.topology-preferred-datastores";

#[derive(Clone, Debug)]
pub struct Site {
    pub vcenter: Arc<str>,
    pub hosts: Vec<SiteHost>,
    pub datastores: Vec<SiteDatastore>,
}

#[derive(Clone, Debug)]
pub struct SiteHost {
    pub reference: MoRef,
    pub name: String,
    pub segments: Segments,
    /// Connected and not in maintenance mode.
    pub usable: bool,
    /// Whether a node of the cluster runs on it. True if the nodes are not known.
    pub has_node: bool,
}

#[derive(Clone, Debug)]
pub struct SiteDatastore {
    pub reference: MoRef,
    pub name: String,
    pub url: String,
    pub free: i64,
    /// Accessible and not in maintenance mode.
    pub usable: bool,
    /// The hosts that can write to it.
    pub hosts: HashSet<MoRef>,
    /// The segments it is preferred for.
    pub preferred_for: Vec<String>,
    /// Whether the driver's vSphere user has the privilege to create volumes on it.
    pub writable: bool,
}

impl Site {
    pub fn new(
        connection: &Connection,
        tags: &TagTable,
        categories: &[Category],
        nodes: &BTreeSet<BiosUuid>,
    ) -> Self {
        let view = connection.inventory().view();
        let with_node = hosts_of(&view, nodes);
        let hosts = view.hosts().into_iter().map(|host| SiteHost {
            name: host.name.as_deref().unwrap_or_default().to_owned(),
            segments: segments(&view, tags, categories, &host.reference),
            usable: host.in_maintenance != Some(true)
                && host.connection.as_ref().is_none_or(|c| *c == HostConnection::Connected),
            has_node: nodes.is_empty() || with_node.contains(&host.reference),
            reference: host.reference.clone(),
        });
        let datastores = view.datastores().into_iter().map(|datastore| {
            let mounts = datastore.hosts.iter().flatten();
            let normal = datastore.maintenance.as_deref().is_none_or(|mode| mode == "normal");
            let tagged = tags.get(&datastore.reference).into_iter().flatten();
            let preferred = tagged.filter(|(category, _)| **category == *PREFERRED_DATASTORES);
            SiteDatastore {
                name: datastore.name.as_deref().unwrap_or_default().to_owned(),
                url: datastore.url.as_deref().unwrap_or_default().to_owned(),
                free: datastore.free_space.unwrap_or_default(),
                usable: datastore.accessible != Some(false) && normal,
                hosts: mounts.filter(|m| m.mount.is_usable()).map(|m| m.host.clone()).collect(),
                preferred_for: preferred.map(|(_, name)| name.to_string()).collect(),
                writable: true,
                reference: datastore.reference.clone(),
            }
        });
        let (vcenter, mut hosts) = (connection.name.clone(), hosts.collect::<Vec<_>>());
        let mut datastores: Vec<_> = datastores.collect();
        hosts.sort_unstable_by(|a, b| a.reference.cmp(&b.reference));
        datastores.sort_unstable_by(|a, b| a.reference.cmp(&b.reference));
        Self { vcenter, hosts, datastores }
    }

    /// Like [`Site::new`], with the privileges of the driver's user on the datastores.
    pub async fn with_privileges(
        connection: &Connection,
        tags: &TagTable,
        categories: &[Category],
        nodes: &BTreeSet<BiosUuid>,
        purpose: Purpose,
    ) -> Result<Self, vsphere::Error> {
        let mut site = Self::new(connection, tags, categories, nodes);
        let all: Vec<MoRef> = site.datastores.iter().map(|d| d.reference.clone()).collect();
        let writable = connection.writable_datastores.among(&all, purpose).await?;
        for datastore in &mut site.datastores {
            datastore.writable = writable.contains(&datastore.reference);
        }
        Ok(site)
    }

    pub fn datastore_at(&self, url: &str) -> Option<&SiteDatastore> {
        self.datastores.iter().find(|datastore| same_url(&datastore.url, url))
    }

    /// The segments from which a datastore is accessible: all usable hosts of the segment can use it. Hosts with nodes
    /// decide; without any, for example because the nodes of a segment come later, all hosts do.
    pub fn segments_with(&self, datastore: &SiteDatastore) -> Vec<Segments> {
        let with_nodes = self.accessible_segments(datastore, |host| host.usable && host.has_node);
        if !with_nodes.is_empty() {
            return with_nodes;
        }
        let usable = self.accessible_segments(datastore, |host| host.usable);
        if usable.is_empty() { self.accessible_segments(datastore, |_| true) } else { usable }
    }

    fn accessible_segments(
        &self,
        datastore: &SiteDatastore,
        counts: impl Fn(&SiteHost) -> bool,
    ) -> Vec<Segments> {
        let mut by_segment: BTreeMap<&Segments, bool> = BTreeMap::new();
        for host in self.hosts.iter().filter(|host| counts(host) && !host.segments.is_empty()) {
            let mounted = datastore.hosts.contains(&host.reference);
            *by_segment.entry(&host.segments).or_insert(true) &= mounted;
        }
        by_segment
            .into_iter()
            .filter(|(_, all)| *all)
            .map(|(segments, _)| segments.clone())
            .collect()
    }
}

/// vCenter ends the URLs of datastores with a slash; people forget it.
pub fn same_url(one: &str, other: &str) -> bool {
    one.trim_end_matches('/') == other.trim_end_matches('/')
}

fn hosts_of(view: &Tree, nodes: &BTreeSet<BiosUuid>) -> HashSet<MoRef> {
    let vms = nodes.iter().flat_map(|uuid| view.vms_by_bios_uuid(*uuid));
    vms.filter_map(|vm| vm.host.clone()).collect()
}

/// The segments of a host, in upstream's way: from the host upwards until each category has a value; of two values
/// of one category the higher one wins. Empty unless all categories have a value.
pub fn segments(view: &Tree, tags: &TagTable, categories: &[Category], host: &MoRef) -> Segments {
    let above = view.ancestors(host).into_iter().map(|object| object.reference().clone());
    let path: Vec<MoRef> = std::iter::once(host.clone()).chain(above).collect();
    let found = collect_segments(&path, tags, categories);
    if found.len() == categories.len() { found } else { Segments::new() }
}

/// The values found on the way, also if some are missing.
pub fn collect_segments(path: &[MoRef], tags: &TagTable, categories: &[Category]) -> Segments {
    let mut found = Segments::new();
    for object in path {
        if found.len() == categories.len() {
            break;
        }
        for (category, name) in tags.get(object).into_iter().flatten() {
            if let Some(known) = categories.iter().find(|known| *known.name == **category) {
                found.insert(known.label.clone(), name.to_string());
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_higher_tag_wins_until_all_categories_have_a_value() {
        let category = |name: &str| Category { name: name.into(), label: format!("t/{name}") };
        let categories = [category("region"), category("zone")];
        let path: Vec<MoRef> = ["host", "cluster", "dc"].map(|id| MoRef::new("Folder", id)).into();
        let tags = |entries: &[(usize, &str, &str)]| -> TagTable {
            let mut table = TagTable::new();
            for (at, category, name) in entries {
                let tags = table.entry(path[*at].clone()).or_default();
                tags.push(((*category).into(), (*name).into()));
            }
            table
        };
        let show = |table: TagTable| {
            let found = collect_segments(&path, &table, &categories);
            found.into_iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(show(tags(&[(0, "zone", "a"), (1, "region", "eu")])), "t/region=eu t/zone=a");
        assert_eq!(
            show(tags(&[(0, "zone", "a"), (1, "zone", "b"), (2, "region", "eu")])),
            "t/region=eu t/zone=b"
        );
        assert_eq!(
            show(tags(&[(0, "zone", "a"), (0, "region", "eu"), (1, "zone", "b")])),
            "t/region=eu t/zone=a",
            "complete at the host"
        );
        assert_eq!(show(tags(&[(0, "team", "x")])), "");
    }

    #[test]
    fn a_trailing_slash_does_not_matter() {
        assert!(same_url("ds:///vmfs/volumes/a/", "ds:///vmfs/volumes/a"));
        assert!(!same_url("ds:///vmfs/volumes/a/", "ds:///vmfs/volumes/b/"));
    }
}
