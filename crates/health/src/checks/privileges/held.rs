//! The account has every privilege that the drivers need, on every object.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    checks::prelude::*,
    facts::{Entity, EntityKind},
    privileges::{self, Requirement},
};

pub(super) const CHECK: Check = Check {
    name: "privileges/held",
    gives: &[
        codes::PRIVILEGE_ROOT,
        codes::PRIVILEGE_DATASTORE,
        codes::PRIVILEGE_VM,
        codes::PRIVILEGE_READ,
        codes::PRIVILEGE_FILE,
    ],
    run: CheckScope::Cluster(&[], check),
};

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    for vcenter in view.facts.vcenters.values() {
        let account = vcenter.account();
        let question = format!("which privileges {account} has in {}", vcenter.address);
        let Some(grants) = sink.need_from_vcenter(&vcenter.grants, vcenter, &question) else {
            continue;
        };
        let datastores = Datastores::new(view, &grants.entities);
        let mut needed: BTreeMap<EntityKind, Vec<&Requirement>> = BTreeMap::new();
        for entity in &grants.entities {
            let question = format_args!("which privileges {account} has on {}", entity.path);
            let Some(held) = sink.need_from_vcenter(&entity.privileges, vcenter, question) else {
                continue;
            };
            let needed = needed
                .entry(entity.kind)
                .or_insert_with(|| privileges::needed(entity.kind, &view.facts.wanted).collect());
            let missing: Vec<(&Requirement, Vec<&str>)> =
                needed.iter().filter_map(|r| Some((*r, missing_names(r, held)?))).collect();
            // Every other role includes reading, and an object holds only one role per user.
            let more = missing.iter().any(|(requirement, _)| requirement.role != READ_ONLY);
            for (requirement, names) in missing {
                if requirement.role != READ_ONLY || !more {
                    let hit = missing_hit(vcenter, entity, requirement, &names, needed);
                    sink.raise(datastores.weigh(entity, hit));
                }
            }
        }
    }
}

/// vCenter's built-in role.
const READ_ONLY: &str = "ReadOnly";

fn missing_names(requirement: &Requirement, held: &BTreeSet<String>) -> Option<Vec<&'static str>> {
    let names = requirement.privileges.iter().copied().filter(|name| !held.contains(*name));
    let names: Vec<&str> = names.collect();
    (!names.is_empty()).then_some(names)
}

fn missing_hit(
    vcenter: &Vcenter,
    entity: &Entity,
    requirement: &Requirement,
    names: &[&str],
    needed: &[&Requirement],
) -> Hit {
    // A new role replaces the current one, so it must include every privilege needed on the object.
    let all: BTreeSet<&str> = needed.iter().flat_map(|r| r.privileges).copied().collect();
    let all: Vec<&str> = all.into_iter().filter(|name| !name.starts_with("System.")).collect();
    let subject = Subject::vsphere(entity.kind.name(), &entity.name, &entity.path);
    let hit = Hit::new(requirement.finding, subject)
        .with("path", &entity.path)
        .shared("user", vcenter.account())
        .shared("privileges", names.join(", "))
        .shared("list", all.join(" "))
        .shared("role", requirement.role)
        .shared("address", &vcenter.address)
        .vcenter(&vcenter.name);
    if entity.kind == EntityKind::Vm { hit.at(Anchor::Vm, &entity.path) } else { hit }
}

/// Sets the severity of missing privileges on datastores. Few accessible datastores are good practice; none
/// at all, or a missing one that a StorageClass names, is a fault.
struct Datastores<'a> {
    none_usable: bool,
    named: BTreeSet<&'a str>,
}

impl<'a> Datastores<'a> {
    fn new(view: &FactsView<'a>, entities: &[Entity]) -> Self {
        let usable = |entity: &&Entity| {
            let held = entity.privileges.get();
            held.is_some_and(|held| held.contains("Datastore.FileManagement"))
        };
        let mut datastores = entities.iter().filter(|entity| entity.kind == EntityKind::Datastore);
        let classes = view.facts.storage.classes.get().into_iter().flatten();
        let urls: BTreeSet<&str> = classes.filter_map(|c| c.parameter("datastoreurl")).collect();
        let named =
            view.datastores().filter(|(_, _, datastore)| urls.contains(datastore.url.as_str()));
        Self {
            none_usable: !datastores.any(|entity| usable(&entity)),
            named: named.map(|(_, _, datastore)| datastore.path.as_str()).collect(),
        }
    }

    fn weigh(&self, entity: &Entity, hit: Hit) -> Hit {
        if hit.definition.code != codes::PRIVILEGE_DATASTORE.code {
            return hit;
        }
        let bad = self.none_usable || self.named.contains(entity.path.as_str());
        hit.severity(if bad { Severity::Error } else { Severity::Info })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Removes a privilege from all objects of a kind.
    fn without(facts: &mut Facts, kind: EntityKind, name: &str) {
        for entity in &mut facts.vcenter().grants.get_mut().unwrap().entities {
            if entity.kind == kind {
                entity.privileges.get_mut().unwrap().remove(name);
            }
        }
    }

    #[test]
    fn each_missing_privilege_is_reported_where_it_is_missing() {
        for (kind, name, code) in [
            (EntityKind::Root, "StorageProfile.View", "VDO-1401"),
            (EntityKind::Datastore, "Datastore.FileManagement", "VDO-1402"),
            (EntityKind::Vm, "VirtualMachine.Config.AddRemoveDevice", "VDO-1403"),
            (EntityKind::Host, "System.Read", "VDO-1404"),
            (EntityKind::Folder, "System.Read", "VDO-1404"),
        ] {
            shows(
                &CHECK,
                &[code],
                |facts| without(facts, kind, name),
                |facts| {
                    facts.vcenter().grants = Known::unknown("the account cannot ask");
                },
            );
        }
    }

    #[test]
    fn file_volumes_need_one_more_privilege() {
        let mut facts = healthy();
        facts.wanted.storage.as_mut().unwrap().file_volumes = true;
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1405"]);
    }

    #[test]
    fn one_datastore_kept_from_the_drivers_is_only_mentioned() {
        let mut facts = healthy();
        let entities = &mut facts.vcenter().grants.get_mut().unwrap().entities;
        let local = entities.iter_mut().find(|e| e.name == "ds-a").unwrap();
        local.privileges.get_mut().unwrap().remove("Datastore.FileManagement");
        let examination = crate::Examination::run(facts);
        assert_eq!(examination.report().worst(), Some(Severity::Info));
    }

    #[test]
    fn an_object_that_could_not_be_asked_about_is_not_called_fine() {
        let mut facts = healthy();
        let entities = &mut facts.vcenter().grants.get_mut().unwrap().entities;
        entities[0].privileges = Known::unknown("it vanished while we asked");
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1801"]);
    }
}
