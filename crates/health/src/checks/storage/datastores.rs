//! Datastores volumes may be on are up, have room, and stay put.

use crate::{
    checks::prelude::*,
    facts::{Datastore, EntityKind},
};

pub(super) const CHECK: Check = Check {
    name: "storage/datastores",
    gives: &[codes::DATASTORE_DOWN, codes::DATASTORE_FULL, codes::DATASTORE_IN_POD],
    run: Run::Cluster(&[], check),
};

fn check(view: &View<'_>, sink: &mut Sink) {
    if view.facts.wanted.storage.is_none() {
        return;
    }
    for vcenter in view.facts.vcenters.values() {
        let question = format!("whether the datastores of {} are well", vcenter.address);
        let Some(inventory) = sink.need_of(&vcenter.inventory, vcenter, &question) else {
            continue;
        };
        for datastore in inventory.datastores.values().filter(|d| may_hold_volumes(vcenter, d)) {
            look(vcenter, datastore, sink);
        }
    }
}

/// A datastore the account may not make volumes on is somebody else's concern.
fn may_hold_volumes(vcenter: &Vcenter, datastore: &Datastore) -> bool {
    let entities = vcenter.grants.get().map_or(&[][..], |grants| grants.entities.as_slice());
    let entity = entities
        .iter()
        .find(|entity| entity.kind == EntityKind::Datastore && entity.path == datastore.path);
    let held = entity.and_then(|entity| entity.privileges.get());
    held.is_none_or(|held| held.contains("Datastore.FileManagement"))
}

fn look(vcenter: &Vcenter, datastore: &Datastore, sink: &mut Sink) {
    let hit = |definition| {
        Hit::new(definition, datastore_subject(datastore))
            .with("path", &datastore.path)
            .with("name", &datastore.name)
            .vcenter(&vcenter.name)
    };
    let state = match (datastore.accessible, datastore.maintenance) {
        (false, _) => Some("not accessible"),
        (_, true) => Some("in maintenance"),
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
    fn a_datastore_that_cannot_be_used_is_named() {
        shows(
            &CHECK,
            &["VDO-1508"],
            |facts| change(facts, |datastore| datastore.accessible = false),
            |facts| facts.vcenter().inventory = Known::unknown("vcenter-a does not answer"),
        );
    }

    #[test]
    fn a_datastore_that_fills_up_is_named_before_it_is_full() {
        let mut facts = healthy();
        change(&mut facts, |datastore| datastore.free = datastore.capacity / 25);
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1509"]);
    }

    #[test]
    fn storage_drs_is_named() {
        let mut facts = healthy();
        change(&mut facts, |datastore| datastore.storage_pod = Some("pod-1".into()));
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1510"]);
    }

    #[test]
    fn a_datastore_the_drivers_may_not_use_is_none_of_our_business() {
        let mut facts = healthy();
        change(&mut facts, |datastore| datastore.free = 0);
        let entities = &mut facts.vcenter().grants.get_mut().unwrap().entities;
        let entity = entities.iter_mut().find(|entity| entity.name == "shared").unwrap();
        entity.privileges.get_mut().unwrap().remove("Datastore.FileManagement");
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }
}
