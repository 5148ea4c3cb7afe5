//! The guest's host name is the node's name and unique.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "nodes/guest_name",
    gives: &[codes::GUEST_NAME_DIFFERS, codes::GUEST_NAME_SHARED],
    run: CheckScope::NodeVm(check),
};

fn check(view: &FactsView<'_>, node: &Node, found: &FoundVm<'_>, sink: &mut Sink) {
    // The cloud provider finds initialised nodes by uuid; VDO's own cloud controller always does.
    let by_uuid = view.cloud_driver().is_some_and(|driver| !driver.upstream);
    if view.facts.wanted.cloud.is_none() || node.provider_id.is_some() || by_uuid {
        return;
    }
    let guest = &found.vm.guest_name;
    if !guest.is_empty() && !guest.eq_ignore_ascii_case(&node.name) {
        sink.raise(Hit::for_node(codes::GUEST_NAME_DIFFERS, node).with("guest", guest));
    }
    let same = view.index.vms_with_guest_name(&node.name).iter().filter_map(|at| view.vm(at));
    let same: Vec<&str> = same
        .filter(|other| {
            other.vm.datacenter == found.vm.datacenter && other.vcenter.name == found.vcenter.name
        })
        .map(|other| other.vm.path.as_str())
        .collect();
    if same.len() > 1 {
        let vms = same.join(" and ");
        sink.raise(Hit::for_node(codes::GUEST_NAME_SHARED, node).with("vms", vms));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_with_another_name_is_reported() {
        shows_of_vms(&CHECK, &["VDO-1209"], |facts| {
            facts.node("worker-1").provider_id = None;
            facts.vm("worker-1").guest_name = "worker-1.example.com".into();
        });
    }

    #[test]
    fn a_name_two_guests_share_is_reported() {
        shows_of_vms(&CHECK, &["VDO-1210"], |facts| {
            facts.node("worker-1").provider_id = None;
            facts.vm("worker-2").guest_name = "WORKER-1".into();
        });
    }

    #[test]
    fn names_do_not_matter_to_the_cloud_controller_of_vdo() {
        let mut facts = healthy();
        facts.cloud_driver().upstream = false;
        facts.node("worker-1").provider_id = None;
        facts.vm("worker-1").guest_name = "worker-1.example.com".into();
        facts.vm("worker-2").guest_name = "WORKER-1".into();
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }

    #[test]
    fn an_initialised_node_is_found_by_its_uuid_whatever_its_name() {
        let mut facts = healthy();
        facts.vm("worker-1").guest_name = "other".into();
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }
}
