//! The account has only privileges that the drivers need.

use std::collections::{BTreeMap, BTreeSet};

use crate::{checks::prelude::*, facts::EntityKind, privileges};

pub(super) const CHECK: Check = Check {
    name: "privileges/superfluous",
    gives: &[codes::PRIVILEGES_SUPERFLUOUS],
    run: CheckScope::Cluster(&[], check),
};

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    for vcenter in view.facts.vcenters.values() {
        let question =
            format!("whether {} has more privileges than the drivers need", vcenter.account());
        let grants = sink.prefer_from_vcenter(&vcenter.grants, vcenter, question);
        let entities = grants.into_iter().flat_map(|grants| &grants.entities);
        let mut kinds: BTreeMap<EntityKind, BTreeSet<&str>> = BTreeMap::new();
        for entity in entities {
            let Some(held) = entity.privileges.get() else { continue };
            let needed = kinds
                .entry(entity.kind)
                .or_insert_with(|| privileges::needed_names(entity.kind, &view.facts.wanted));
            let more: Vec<&str> =
                held.iter().map(String::as_str).filter(|name| !needed.contains(name)).collect();
            if more.is_empty() {
                continue;
            }
            let listed: Vec<&str> =
                needed.iter().copied().filter(|n| !n.starts_with("System.")).collect();
            let listed = if listed.is_empty() { "ReadOnly".to_owned() } else { listed.join(", ") };
            let subject = Subject::vsphere(entity.kind.name(), &entity.name, &entity.path);
            sink.raise(
                Hit::new(codes::PRIVILEGES_SUPERFLUOUS, subject)
                    .with("path", &entity.path)
                    .shared("user", vcenter.account())
                    .shared("privileges", first_names(more))
                    .shared("needed", listed)
                    .vcenter(&vcenter.name),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_administrators_account_is_reported_as_info() {
        shows(
            &CHECK,
            &["VDO-1410"],
            |facts| {
                let entity = &mut facts.vcenter().grants.get_mut().unwrap().entities[0];
                let held = entity.privileges.get_mut().unwrap();
                held.insert("VirtualMachine.Inventory.Delete".into());
            },
            |facts| facts.vcenter().grants = Known::unknown("the account cannot ask"),
        );
    }
}
