//! The nodes share a datastore: all nodes without zones, the nodes of each zone with zones.

use std::collections::BTreeMap;

use crate::{
    checks::prelude::*,
    facts::{Host, Inventory},
    topology,
};

pub(super) const CHECK: Check = Check {
    name: "storage/shared_datastore",
    gives: &[codes::NO_SHARED_DATASTORE, codes::ZONE_WITHOUT_DATASTORE],
    run: CheckScope::Cluster(&[Part::Nodes, Part::Vms], check),
};

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    let Some(storage) = &view.facts.wanted.storage else { return };
    for vcenter in view.storage_vcenters() {
        let question = format!("which datastores of {} all nodes share", vcenter.address);
        let Some(inventory) = sink.need_from_vcenter(&vcenter.inventory, vcenter, &question) else {
            continue;
        };
        if storage.categories.is_empty() && storage.assumed {
            // The settings are unknown: there may be zones with their own datastores.
            sink.leave_open();
            continue;
        }
        if storage.categories.is_empty() {
            whole_cluster(view, vcenter, inventory, sink);
        } else if let Some(tags) = sink.need_from_vcenter(&inventory.tags, vcenter, &question) {
            for (zone, hosts) in topology::own_zones(view, vcenter, tags, &storage.categories) {
                if topology::shared(&hosts).is_empty() {
                    let zone = zone.join("/");
                    let subject = Subject::vsphere("Zone", &zone, &vcenter.address);
                    let hosts = first_names(hosts.iter().map(|host| host.name.as_str()));
                    let hit = Hit::new(codes::ZONE_WITHOUT_DATASTORE, subject).with("zone", zone);
                    sink.raise(hit.with("hosts", hosts).vcenter(&vcenter.name));
                }
            }
        }
    }
}

fn whole_cluster(view: &FactsView<'_>, vcenter: &Vcenter, inventory: &Inventory, sink: &mut Sink) {
    // The mounts of a disconnected host are unknown.
    let hosts = view.hosts_of_nodes(vcenter).into_iter().map(|(_, host)| host);
    let hosts: Vec<&Host> = hosts.filter(|host| host.connected).collect();
    if hosts.is_empty() {
        sink.leave_open();
        return;
    }
    if !topology::shared(&hosts).is_empty() {
        return;
    }
    let mut mounts: BTreeMap<&str, usize> = BTreeMap::new();
    for datastore in hosts.iter().flat_map(|host| &host.datastores) {
        *mounts.entry(datastore).or_default() += 1;
    }
    let best =
        mounts.iter().max_by_key(|(_, count)| **count).map(|(id, _)| *id).unwrap_or_default();
    let name = inventory.datastores.get(best).map_or("no datastore", |d| d.name.as_str());
    let missing = hosts.iter().filter(|host| !host.datastores.contains(best));
    sink.raise(
        Hit::new(codes::NO_SHARED_DATASTORE, vcenter_subject(vcenter))
            .with("count", mounts.len())
            .with("best", name)
            .with("missing", first_names(missing.map(|host| host.name.as_str())))
            .vcenter(&vcenter.name),
    );
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn blind(facts: &mut Facts) {
        facts.vcenter().inventory = Known::unknown("vcenter-a does not answer");
    }

    #[test]
    fn the_host_that_lacks_the_best_datastore_is_reported() {
        let fault = |facts: &mut Facts| {
            facts.wanted.storage.as_mut().unwrap().categories.clear();
            facts.inventory().hosts.get_mut("host-4").unwrap().datastores.remove("datastore-1");
        };
        shows(&CHECK, &["VDO-1501"], fault, blind);
        let mut facts = healthy();
        fault(&mut facts);
        let examination = crate::Examination::run(facts);
        let seen = &examination.report().page("VDO-1501", 0, 1).entries[0].seen;
        assert!(seen.contains("shared") && seen.contains("esx-4"), "{seen}");
    }

    #[test]
    fn a_zone_whose_hosts_share_nothing_is_reported() {
        let fault = |facts: &mut Facts| {
            facts.inventory().hosts.get_mut("host-4").unwrap().datastores.clear();
        };
        shows(&CHECK, &["VDO-1502"], fault, blind);
    }

    #[test]
    fn a_zone_of_another_cluster_is_ignored() {
        let mut facts = healthy();
        let lonely = Host {
            name: "esx-9.example.com".into(),
            ancestors: vec!["domain-c9".into(), "datacenter-1".into()],
            datastores: BTreeSet::new(),
            ..facts.inventory().hosts["host-1"].clone()
        };
        facts.inventory().hosts.insert("host-9".into(), lonely);
        let tag = crate::facts::Tag { category: "k8s-zone".into(), name: "zone-z".into() };
        let tags = facts.inventory().tags.get_mut().unwrap();
        tags.attached.insert("domain-c9".into(), vec![tag]);
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
        facts.vm("worker-1").host = "host-9".into();
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1502"], "now a node is there");
    }

    #[test]
    fn a_host_vcenter_has_lost_does_not_count_without_zones_either() {
        let mut facts = healthy();
        facts.wanted.storage.as_mut().unwrap().categories.clear();
        let host = facts.inventory().hosts.get_mut("host-4").unwrap();
        host.datastores.clear();
        host.connected = false;
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }

    #[test]
    fn nothing_is_reported_if_the_zone_settings_are_unknown() {
        let mut facts = healthy();
        let storage = facts.wanted.storage.as_mut().unwrap();
        storage.categories.clear();
        storage.assumed = true;
        for host in facts.inventory().hosts.values_mut() {
            host.datastores.remove("datastore-1");
        }
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }

    #[test]
    fn with_zones_each_may_have_its_own_datastore() {
        let mut facts = healthy();
        for host in facts.inventory().hosts.values_mut() {
            host.datastores.remove("datastore-1");
        }
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }

    #[test]
    fn a_host_in_maintenance_does_not_count() {
        let mut facts = healthy();
        let host = facts.inventory().hosts.get_mut("host-4").unwrap();
        host.datastores.clear();
        host.maintenance = true;
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }
}
