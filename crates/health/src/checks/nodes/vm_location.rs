//! The drivers' vCenters and datacenters include the node's VM.

use std::collections::BTreeSet;

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "nodes/vm_location",
    gives: &[codes::VM_OUT_OF_SIGHT],
    run: CheckScope::NodeVm(check),
};

fn check(view: &FactsView<'_>, node: &Node, found: &FoundVm<'_>, sink: &mut Sink) {
    let wanted = &view.facts.wanted;
    let cloud =
        wanted.cloud.as_ref().map(|cloud| ("the cloud provider", "cloudProvider", &cloud.vcenters));
    let storage = wanted
        .storage
        .as_ref()
        .map(|storage| ("the storage driver", "storageProvider", &storage.vcenters));
    // Two VsphereCloudConfigs may name one vCenter with different users: either is enough.
    let is_it = |name: &String| {
        let vcenter = view.facts.vcenters.get(name);
        vcenter.is_some_and(|vcenter| vcenter.address == found.vcenter.address)
    };
    for (driver, field, vcenters) in cloud.into_iter().chain(storage) {
        if !vcenters.contains(&found.vcenter.name) && !vcenters.iter().any(is_it) {
            let place = format!("the vCenter {}", found.vcenter.name);
            let field = format!("{field}.vsphereCloudConfigs of the VDOConfig");
            sink.raise(hit(node, found, &place, driver, vcenters, &field));
        }
    }
    let datacenters = &found.vcenter.datacenters;
    if !datacenters.is_empty() && !datacenters.contains(&found.vm.datacenter) {
        let place = format!("the datacenter {}", found.vm.datacenter);
        let field = format!("spec.datacenters of the VsphereCloudConfig {}", found.vcenter.name);
        sink.raise(hit(node, found, &place, "each driver", datacenters, &field));
    }
}

fn hit(
    node: &Node,
    found: &FoundVm<'_>,
    place: &str,
    drivers: &str,
    looked: &BTreeSet<String>,
    field: &str,
) -> Hit {
    Hit::for_vm(codes::VM_OUT_OF_SIGHT, node, found)
        .shared("place", place)
        .shared("drivers", drivers)
        .shared("looked", first_names(looked.iter().map(String::as_str)))
        .shared("field", field)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_in_a_datacenter_that_is_not_listed_is_reported() {
        shows_of_vms(&CHECK, &["VDO-1211"], |facts| facts.vm("worker-1").datacenter = "DC9".into());
    }

    #[test]
    fn a_vm_on_a_vcenter_missing_in_one_drivers_configuration_is_reported() {
        shows_of_vms(&CHECK, &["VDO-1211"], |facts| {
            facts.wanted.cloud.as_mut().unwrap().vcenters = BTreeSet::from(["other".to_owned()]);
        });
    }

    #[test]
    fn one_vcenter_by_two_names_is_looked_into_by_either() {
        let mut facts = healthy();
        let mut other = facts.vcenter().clone();
        other.name = "other".into();
        other.inventory = Known::unknown("it is the same");
        facts.vcenters.insert("other".into(), other);
        facts.wanted.cloud.as_mut().unwrap().vcenters = BTreeSet::from(["other".to_owned()]);
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }

    #[test]
    fn without_a_list_every_datacenter_is_looked_at() {
        let mut facts = healthy();
        facts.vcenter().datacenters.clear();
        facts.vm("worker-1").datacenter = "DC9".into();
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }
}
