//! No datastore belongs to two of the vCenters.

use std::collections::BTreeMap;

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "vcenter/shared_datastore",
    gives: &[codes::DATASTORE_OF_TWO_VCENTERS],
    run: CheckScope::Cluster(&[], check),
};

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    if view.facts.vcenters.len() < 2 || view.facts.wanted.storage.is_none() {
        return;
    }
    for vcenter in view.facts.vcenters.values() {
        let question =
            format!("whether {} shares datastores with another vCenter", vcenter.address);
        sink.need_from_vcenter(&vcenter.inventory, vcenter, &question);
    }
    let mut first: BTreeMap<&str, &Vcenter> = BTreeMap::new();
    // Datastores that the account cannot read have no URL and are not compared.
    for (vcenter, _, datastore) in view.datastores().filter(|(_, _, d)| !d.url.is_empty()) {
        match first.get(datastore.url.as_str()) {
            // Two VsphereCloudConfigs may name one vCenter with different users.
            Some(other) if other.address != vcenter.address => sink.raise(
                Hit::new(codes::DATASTORE_OF_TWO_VCENTERS, datastore_subject(datastore))
                    .with("url", &datastore.url)
                    .with("first", &other.address)
                    .with("second", &vcenter.address),
            ),
            Some(_) => {}
            None => {
                first.insert(&datastore.url, vcenter);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(facts: &mut Facts) {
        let mut other = facts.vcenter().clone();
        other.name = "vcenter-b".into();
        other.address = "vc-b.example.com".into();
        facts.vcenters.insert("vcenter-b".into(), other);
    }

    #[test]
    fn one_vcenter_by_two_names_shares_nothing() {
        let mut facts = crate::testing::healthy();
        second(&mut facts);
        let address = facts.vcenter().address.clone();
        facts.vcenters.get_mut("vcenter-b").unwrap().address = address;
        assert_eq!(crate::testing::codes_of(&CHECK, &facts), Vec::<&str>::new());
    }

    #[test]
    fn datastores_without_read_permission_are_not_taken_for_the_same() {
        let mut facts = crate::testing::healthy();
        for datastore in facts.inventory().datastores.values_mut() {
            datastore.url.clear();
        }
        second(&mut facts);
        assert_eq!(crate::testing::codes_of(&CHECK, &facts), Vec::<&str>::new());
    }

    #[test]
    fn a_datastore_of_two_vcenters_is_reported() {
        shows(&CHECK, &["VDO-1314"], second, |facts| {
            second(facts);
            facts.vcenter().inventory = Known::unknown("vcenter-a does not answer");
        });
    }
}
