//! Datastores for volumes are available, have free space, and do not move disks.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    checks::prelude::*,
    facts::{Datastore, EntityKind, Host, Inventory},
};
use api::finding::Definition;

pub(super) const CHECK: Check = Check {
    name: "storage/datastores",
    gives: &[codes::DATASTORE_DOWN, codes::DATASTORE_FULL, codes::DATASTORE_IN_POD],
    run: CheckScope::Cluster(&[Part::Nodes, Part::Vms, Part::Volumes], check),
};

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    if view.facts.wanted.storage.is_none() {
        return;
    }
    let ours = Ours::new(view);
    for vcenter in view.storage_vcenters() {
        let question = format!("whether the datastores of {} are available", vcenter.address);
        let Some(inventory) = sink.need_from_vcenter(&vcenter.inventory, vcenter, &question) else {
            continue;
        };
        let hosts = view.hosts_of_nodes(vcenter);
        for (id, datastore) in &inventory.datastores {
            if may_hold_volumes(vcenter, datastore)
                && let Some(severity) = ours.concern(inventory, id, datastore, &hosts)
            {
                let lost = lost_with_its_hosts(inventory, id);
                check_datastore(vcenter, datastore, severity, &lost, sink);
            }
        }
    }
}

/// The datastores that matter to this cluster. Most datastores of a vCenter do not: local disks, libraries,
/// backups.
struct Ours<'a> {
    /// URLs of datastores with volumes of this cluster, or named by StorageClasses.
    urls: BTreeSet<&'a str>,
    /// Policies named by StorageClasses.
    policies: BTreeSet<&'a str>,
    zonal: bool,
}

/// How important a datastore is to this cluster.
#[derive(Clone, Copy, PartialEq)]
enum Concern {
    /// Volumes of this cluster are on it, or must be created on it.
    Ours,
    /// The driver can create new volumes on it, but also on others.
    Shared,
}

impl<'a> Ours<'a> {
    fn new(view: &FactsView<'a>) -> Self {
        let storage = &view.facts.storage;
        let volumes = storage.cns.get().into_iter().flat_map(BTreeMap::values);
        let mut urls: BTreeSet<&str> = volumes.map(|volume| volume.datastore.as_str()).collect();
        let classes = storage.classes.get().into_iter().flatten();
        urls.extend(classes.clone().filter_map(|class| class.parameter("datastoreurl")));
        urls.remove("");
        let policies = classes.filter_map(|class| class.parameter("storagepolicyname"));
        let wanted = view.facts.wanted.storage.as_ref();
        let zonal = wanted.is_some_and(|storage| !storage.categories.is_empty());
        Self { urls, policies: policies.collect(), zonal }
    }

    fn concern(
        &self,
        inventory: &Inventory,
        id: &str,
        datastore: &Datastore,
        hosts: &[(&str, &Host)],
    ) -> Option<Concern> {
        let policies = inventory.policies.get().into_iter().flatten();
        let mut named = policies.filter(|policy| self.policies.contains(policy.name.as_str()));
        if self.urls.contains(datastore.url.as_str())
            || named.any(|policy| policy.datastores.get().is_some_and(|fit| fit.contains(id)))
        {
            return Some(Concern::Ours);
        }
        let mounts = |host: &Host| host.datastores.contains(id) || host.unusable.contains(id);
        let near: Vec<&Host> = hosts.iter().map(|(_, host)| *host).filter(|h| mounts(h)).collect();
        // Without zones every node must reach a volume; with zones, the nodes of one zone. Local disks
        // do not count.
        let local = |id: &str| {
            let holds = |host: &&Host| host.datastores.contains(id) || host.unusable.contains(id);
            inventory.hosts.values().filter(holds).count() < 2
        };
        let shared = if self.zonal { !local(id) } else { near.len() == hosts.len() };
        if near.is_empty() || !shared {
            return None;
        }
        let others = inventory.datastores.keys().filter(|other| *other != id);
        let spare = others
            .filter(|other| !self.zonal || !local(other))
            .any(|other| near.iter().all(|host| host.datastores.contains(other)));
        Some(if spare { Concern::Shared } else { Concern::Ours })
    }
}

/// Paths of the hosts that mount a datastore, if vCenter has lost all of them.
fn lost_with_its_hosts<'a>(inventory: &'a Inventory, id: &str) -> Vec<&'a str> {
    let mounts = |host: &&Host| host.datastores.contains(id) || host.unusable.contains(id);
    let hosts: Vec<&Host> = inventory.hosts.values().filter(mounts).collect();
    if hosts.iter().any(|host| host.connected) {
        return Vec::new();
    }
    hosts.into_iter().map(|host| host.path.as_str()).collect()
}

/// Ignores datastores on which the account lacks the privilege to create volumes.
fn may_hold_volumes(vcenter: &Vcenter, datastore: &Datastore) -> bool {
    let entities = vcenter.grants.get().map_or(&[][..], |grants| grants.entities.as_slice());
    let entity = entities
        .iter()
        .find(|entity| entity.kind == EntityKind::Datastore && entity.path == datastore.path);
    let held = entity.and_then(|entity| entity.privileges.get());
    held.is_none_or(|held| held.contains("Datastore.FileManagement"))
}

fn check_datastore(
    vcenter: &Vcenter,
    datastore: &Datastore,
    concern: Concern,
    lost: &[&str],
    sink: &mut Sink,
) {
    let hit = |definition: &'static Definition| {
        let hit = Hit::new(definition, datastore_subject(datastore))
            .with("path", &datastore.path)
            .with("name", &datastore.name)
            .at(Anchor::Datastore, &datastore.url)
            .vcenter(&vcenter.name);
        let hit = lost.iter().fold(hit, |hit, host| hit.at(Anchor::Host, host));
        match concern {
            Concern::Ours => hit,
            Concern::Shared => hit.severity(Severity::Info),
        }
    };
    let state = match (datastore.accessible, datastore.maintenance) {
        (false, _) => Some("not accessible"),
        (_, true) => Some("in maintenance mode"),
        _ => None,
    };
    if let Some(state) = state {
        sink.raise(hit(codes::DATASTORE_DOWN).with("state", state));
    }
    if datastore.accessible && datastore.free < datastore.capacity / 20 {
        let hit = hit(codes::DATASTORE_FULL).with("free", size(datastore.free));
        sink.raise(hit.with("capacity", size(datastore.capacity)));
    }
    if let Some(pod) = &datastore.storage_pod {
        sink.raise(hit(codes::DATASTORE_IN_POD).with("pod", pod));
    }
}

fn size(bytes: u64) -> String {
    match bytes >> 30 {
        gib @ ..10_240 => format!("{gib} GiB"),
        gib => format!("{} TiB", gib >> 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(facts: &mut Facts, edit: impl FnOnce(&mut Datastore)) {
        edit(facts.inventory().datastores.get_mut("datastore-1").unwrap());
    }

    #[test]
    fn a_datastore_that_cannot_be_used_is_reported() {
        shows(
            &CHECK,
            &["VDO-1508"],
            |facts| change(facts, |datastore| datastore.accessible = false),
            |facts| facts.vcenter().inventory = Known::unknown("vcenter-a does not answer"),
        );
    }

    #[test]
    fn a_datastore_that_fills_up_is_reported_before_it_is_full() {
        let mut facts = healthy();
        change(&mut facts, |datastore| datastore.free = datastore.capacity / 25);
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1509"]);
    }

    #[test]
    fn storage_drs_is_reported() {
        let mut facts = healthy();
        change(&mut facts, |datastore| datastore.storage_pod = Some("pod-1".into()));
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1510"]);
    }

    fn other(facts: &mut Facts, id: &str, hosts: &[&str]) {
        let broken = Datastore {
            name: id.into(),
            path: format!("/DC0/datastore/{id}"),
            url: format!("ds:///vmfs/volumes/{id}/"),
            accessible: false,
            capacity: 1 << 40,
            free: 0,
            storage_pod: Some("pod-1".into()),
            ..Datastore::default()
        };
        facts.inventory().datastores.insert(id.into(), broken);
        for host in hosts {
            facts.inventory().hosts.get_mut(*host).unwrap().unusable.insert(id.into());
        }
    }

    #[test]
    fn datastores_this_cluster_has_nothing_to_do_with_raise_no_alarm() {
        let mut facts = healthy();
        other(&mut facts, "backup", &[]);
        other(&mut facts, "local", &["host-1"]);
        assert_eq!(codes_of(&CHECK, &facts), [""; 0], "not on the hosts of all nodes");
        other(&mut facts, "iso", &["host-1", "host-2", "host-3", "host-4"]);
        let worst = crate::Examination::run(facts.clone()).report().worst();
        assert_eq!(worst, Some(Severity::Info), "there are others to make volumes on");
        let volumes = facts.storage.cns.get_mut().unwrap();
        for volume in volumes.values_mut() {
            volume.datastore = "ds:///vmfs/volumes/local/".into();
        }
        let worst = crate::Examination::run(facts).report().worst();
        assert_eq!(worst, Some(Severity::Error), "volumes are on it");
    }

    #[test]
    fn the_only_datastore_of_a_zone_matters_before_there_are_volumes() {
        let mut facts = healthy();
        facts.storage.cns.get_mut().unwrap().clear();
        facts.storage.classes.get_mut().unwrap().clear();
        facts.inventory().datastores.remove("datastore-1");
        for host in facts.inventory().hosts.values_mut() {
            host.datastores.remove("datastore-1");
        }
        facts.inventory().datastores.get_mut("datastore-2").unwrap().free = 0;
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1509"]);
    }

    #[test]
    fn a_datastore_follows_its_hosts_only_if_all_of_them_are_lost() {
        for (lost, cause) in [(1, None), (4, Some("VDO-1213"))] {
            let mut facts = healthy();
            change(&mut facts, |datastore| datastore.accessible = false);
            for host in facts.inventory().hosts.values_mut().take(lost) {
                host.connected = false;
            }
            let findings = crate::Examination::run(facts).report().findings();
            let down = findings.iter().find(|finding| finding.code == "VDO-1508").unwrap();
            assert_eq!(down.consequence_of.as_deref(), cause, "{lost} hosts");
        }
    }

    #[test]
    fn a_datastore_that_the_drivers_do_not_use_is_not_reported() {
        let mut facts = healthy();
        change(&mut facts, |datastore| datastore.free = 0);
        let entities = &mut facts.vcenter().grants.get_mut().unwrap().entities;
        let entity = entities.iter_mut().find(|entity| entity.name == "shared").unwrap();
        entity.privileges.get_mut().unwrap().remove("Datastore.FileManagement");
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }
}
