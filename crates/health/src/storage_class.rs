//! Chooses where the volumes of a new StorageClass go, with the reason for each datastore.

use crate::{
    facts::{Datastore, EntityKind, Known, Vcenter},
    topology,
    view::FactsView,
};

/// The privilege without which the storage driver ignores a datastore.
const FILES: &str = "Datastore.FileManagement";

/// Where the volumes of a StorageClass go.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Name and URL of the datastore. `None`: the driver chooses for each volume.
    pub datastore: Option<(String, String)>,
    /// Why, one sentence for each datastore or zone.
    pub reasons: Vec<String>,
}

/// Chooses a datastore that all nodes share. With zones or several vCenters, a single datastore would serve only some
/// of the nodes: the driver then chooses one in the zone of the pod.
///
/// # Errors
/// The reason why no volume could be created.
pub fn choose(view: &FactsView<'_>) -> Result<Choice, String> {
    let mut places = Vec::new();
    for place in topology::reachable(view) {
        let whose = place.zone.as_ref().map_or_else(
            || format!("the nodes in {}", place.vcenter),
            |zone| format!("the nodes of zone {zone}"),
        );
        match place.datastores {
            Known::Unknown { reason } => return Err(reason),
            Known::Known(names) if names.is_empty() => {
                return Err(format!("{whose} share no datastore"));
            }
            Known::Known(names) => places.push((place.vcenter, place.zone, whose, names)),
        }
    }
    match places.as_slice() {
        [] => Err("VDO finds no node in the vCenters of the storage driver".to_owned()),
        [(vcenter, None, _, names)] => on_one_datastore(view, vcenter, names),
        places => {
            let reasons = places.iter().map(|(_, _, whose, names)| {
                format!("{whose} share {}: the driver chooses one of them", names.join(", "))
            });
            Ok(Choice { datastore: None, reasons: reasons.collect() })
        }
    }
}

/// The usable datastore with the most free space.
fn on_one_datastore(
    view: &FactsView<'_>,
    vcenter: &str,
    names: &[String],
) -> Result<Choice, String> {
    let vcenter = view.facts.vcenters.get(vcenter);
    let inventory = vcenter.and_then(|vcenter| vcenter.inventory.get());
    let all = inventory.into_iter().flat_map(|inventory| inventory.datastores.values());
    let shared: Vec<&Datastore> = all.filter(|store| names.contains(&store.name)).collect();
    let mut reasons = Vec::new();
    let mut usable = Vec::new();
    for store in shared {
        match vcenter.and_then(|vcenter| unusable(vcenter, store)) {
            Some(why) => reasons.push(format!("{}: not chosen, because {why}", store.name)),
            None => usable.push(store),
        }
    }
    usable.sort_by(|one, other| other.free.cmp(&one.free).then(one.name.cmp(&other.name)));
    let Some((best, others)) = usable.split_first() else {
        return Err(format!("no datastore that all nodes share is usable: {}", reasons.join("; ")));
    };
    let size =
        |store: &Datastore| format!("{} of {} GiB free", store.free >> 30, store.capacity >> 30);
    let mut all = vec![format!("{}: chosen, {}, the most", best.name, size(best))];
    all.extend(others.iter().map(|store| format!("{}: not chosen, {}", store.name, size(store))));
    all.extend(reasons);
    Ok(Choice { datastore: Some((best.name.clone(), best.url.clone())), reasons: all })
}

/// Why volumes should not go to a datastore.
fn unusable(vcenter: &Vcenter, store: &Datastore) -> Option<String> {
    if !store.accessible {
        return Some("vCenter cannot access it".to_owned());
    }
    if store.maintenance {
        return Some("it is in maintenance mode".to_owned());
    }
    if let Some(cluster) = &store.storage_pod {
        return Some(format!(
            "it is in the datastore cluster {cluster}, which can move volumes behind the driver's back"
        ));
    }
    let entities = vcenter.grants.get().into_iter().flat_map(|grants| &grants.entities);
    let mut entities = entities.filter(|e| e.kind == EntityKind::Datastore && e.path == store.path);
    let lacks = entities.any(|entity| {
        entity.privileges.get().is_some_and(|privileges| !privileges.contains(FILES))
    });
    lacks.then(|| format!("{} lacks {FILES} on it", vcenter.account()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Examination, facts::Facts, shortcuts::Shortcuts, testing::healthy};

    fn chosen(facts: Facts) -> Result<Choice, String> {
        choose(&Examination::run(facts).view())
    }

    /// One vCenter without zones, whose nodes share two datastores.
    fn without_zones() -> Facts {
        let mut facts = healthy();
        facts.wanted.storage.as_mut().unwrap().categories.clear();
        let inventory = facts.inventory();
        let mut second = inventory.datastores["datastore-1"].clone();
        (second.name, second.url, second.path) =
            ("second".into(), "ds:///vmfs/volumes/second/".into(), "/DC0/datastore/second".into());
        second.free += 1 << 40;
        second.capacity += 1 << 40;
        inventory.datastores.insert("datastore-99".into(), second);
        for host in inventory.hosts.values_mut() {
            host.datastores.insert("datastore-99".into());
        }
        facts
    }

    fn second(facts: &mut Facts) -> &mut Datastore {
        facts.inventory().datastores.get_mut("datastore-99").unwrap()
    }

    #[test]
    fn the_shared_datastore_with_the_most_free_space_is_chosen() {
        let choice = chosen(without_zones()).unwrap();
        let url = "ds:///vmfs/volumes/second/".to_owned();
        assert_eq!(choice.datastore, Some(("second".to_owned(), url)));
        assert!(choice.reasons[0].starts_with("second: chosen, "), "{choice:?}");
        assert_eq!(choice.reasons.len(), 2, "{choice:?}");
    }

    #[test]
    fn a_datastore_that_cannot_take_volumes_is_skipped_with_the_reason() {
        type Spoil = fn(&mut Datastore);
        let spoil: [(Spoil, &str); 3] = [
            (|store| store.accessible = false, "cannot access"),
            (|store| store.maintenance = true, "maintenance mode"),
            (|store| store.storage_pod = Some("pod".into()), "datastore cluster pod"),
        ];
        for (spoil, why) in spoil {
            let mut facts = without_zones();
            spoil(second(&mut facts));
            let choice = chosen(facts).unwrap();
            assert_eq!(choice.datastore.as_ref().unwrap().0, "shared", "{choice:?}");
            assert!(choice.reasons.iter().any(|reason| reason.contains(why)), "{choice:?}");
        }
    }

    #[test]
    fn a_datastore_without_the_privilege_is_skipped() {
        let mut facts = without_zones();
        let entity = crate::facts::Entity {
            kind: EntityKind::Datastore,
            name: "second".into(),
            path: "/DC0/datastore/second".into(),
            privileges: std::collections::BTreeSet::new().into(),
        };
        facts.vcenter().grants.get_mut().unwrap().entities.push(entity);
        let choice = chosen(facts).unwrap();
        assert_eq!(choice.datastore.as_ref().unwrap().0, "shared", "{choice:?}");
    }

    #[test]
    fn with_zones_the_driver_chooses_in_the_zone_of_the_pod() {
        let choice = chosen(healthy()).unwrap();
        assert_eq!(choice.datastore, None);
        assert_eq!(choice.reasons.len(), 2, "{choice:?}");
        assert!(choice.reasons[0].contains("zone-a"), "{choice:?}");
    }

    #[test]
    fn nothing_is_chosen_without_a_shared_datastore_or_without_an_answer() {
        let mut facts = without_zones();
        facts.inventory().hosts.get_mut("host-4").unwrap().datastores.clear();
        assert!(chosen(facts).unwrap_err().contains("share no datastore"));
        let mut facts = without_zones();
        facts.vcenter().inventory = Known::unknown("vcenter-a does not answer");
        assert_eq!(chosen(facts).unwrap_err(), "vcenter-a does not answer");
    }
}
