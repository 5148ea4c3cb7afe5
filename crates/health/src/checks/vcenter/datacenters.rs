//! The configured datacenters exist.

use std::collections::BTreeMap;

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "vcenter/datacenters",
    gives: &[codes::DATACENTER_MISSING],
    run: CheckScope::Cluster(&[], check),
};

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    for vcenter in view.facts.vcenters.values().filter(|v| !v.datacenters.is_empty()) {
        let question = format!("whether the datacenters of {} exist", vcenter.address);
        let nothing = BTreeMap::new();
        let (known, by_reference): (Vec<&str>, _) = if let Some(names) = &vcenter.only_datacenters {
            (names.iter().map(String::as_str).collect(), &nothing)
        } else {
            let Some(inventory) = sink.need_from_vcenter(&vcenter.inventory, vcenter, &question)
            else {
                continue;
            };
            let names = inventory.datacenters.values().map(|d| d.name.as_str());
            (names.collect(), &inventory.datacenters)
        };
        for datacenter in &vcenter.datacenters {
            // The configuration may also use the path or the managed object id.
            let name = datacenter.rsplit('/').next().unwrap_or(datacenter);
            let reference = datacenter.rsplit(':').next().unwrap_or(datacenter);
            if !known.contains(&name) && !by_reference.contains_key(reference) {
                let hit = super::hit(codes::DATACENTER_MISSING, vcenter);
                let list = if known.is_empty() {
                    "none".into()
                } else {
                    first_names(known.iter().copied())
                };
                sink.raise(hit.with("datacenter", datacenter).with("known", list));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datacenter_that_does_not_exist_is_reported() {
        shows(
            &CHECK,
            &["VDO-1315"],
            |facts| {
                facts.vcenter().datacenters.insert("DC1".into());
            },
            |facts| facts.vcenter().inventory = Known::unknown("vcenter-a does not answer"),
        );
    }

    #[test]
    fn paths_and_references_are_understood() {
        let mut facts = healthy();
        let names = ["/folder/DC0", "Datacenter:datacenter-1"].map(str::to_owned);
        facts.vcenter().datacenters = names.into();
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }
}
