//! Each node has exactly one VM.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "nodes/vm_found",
    gives: &[codes::VM_NOT_FOUND, codes::VM_AMBIGUOUS],
    run: CheckScope::Node(check),
};

fn check(view: &FactsView<'_>, node: &Node, sink: &mut Sink) {
    if node.is_foreign() {
        return;
    }
    match view.node_vm(node) {
        NodeVm::One(_) => {}
        NodeVm::Absent => {
            // As vCenter writes it: govc compares letter by letter.
            let uuid = node.system_uuid.to_lowercase();
            sink.raise(Hit::for_node(codes::VM_NOT_FOUND, node).with("uuid", uuid));
        }
        NodeVm::Several(found) => {
            let paths: Vec<&str> = found.iter().map(|f| f.vm.path.as_str()).collect();
            let hit = Hit::for_node(codes::VM_AMBIGUOUS, node).with("vms", paths.join(" and "));
            sink.raise(hit.with("uuid", &found[0].vm.bios_uuid));
        }
        NodeVm::Unclear { vcenter, reason } => {
            let matters = super::super::vm_checks().join(", ");
            let question = format!("anything about the VM of {} ({matters})", node.name);
            let hit = sink.cannot_tell(node_subject(node), &question, reason);
            hit.anchors.extend(vcenter.map(|vcenter| (Anchor::Vcenter, vcenter.name.clone())));
            hit.anchors.push((Anchor::Node, node.name.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_a_vm_is_reported() {
        shows(
            &CHECK,
            &["VDO-1201"],
            |facts| {
                facts.inventory().vms.retain(|_, vm| vm.name != "worker-1");
            },
            |facts| facts.vcenter().inventory = Known::unknown("vcenter-a does not answer"),
        );
    }

    #[test]
    fn without_vcenters_no_vm_is_missing() {
        let mut facts = healthy();
        facts.vcenters.clear();
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1801"]);
    }

    #[test]
    fn a_copied_vm_is_reported_with_its_original() {
        let mut facts = healthy();
        let mut copy = facts.vm("worker-1").clone();
        copy.path.push_str("-copy");
        facts.inventory().vms.insert("vm-copy".into(), copy);
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1202"]);
    }

    #[test]
    fn firmware_that_writes_the_uuid_in_the_other_byte_order_is_no_fault() {
        let mut facts = healthy();
        let node = facts.node("worker-1");
        node.system_uuid = crate::index::swapped(&node.system_uuid).unwrap();
        node.provider_id = None;
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }

    #[test]
    fn one_silent_vcenter_is_no_proof_of_absence() {
        let mut facts = healthy();
        facts.inventory().vms.retain(|_, vm| vm.name != "worker-1");
        let other = Vcenter {
            name: "vcenter-b".into(),
            inventory: Known::unknown("vcenter-b does not answer"),
            ..Vcenter::default()
        };
        facts.vcenters.insert("vcenter-b".into(), other);
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1801"]);
    }
}
