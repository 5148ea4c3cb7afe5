//! The node accepts the requested number of volumes and is not nearly full.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "nodes/volume_limit",
    gives: &[codes::VOLUME_LIMIT_LOWER, codes::VOLUMES_AT_LIMIT],
    run: CheckScope::NodeVm(check),
};

fn check(view: &FactsView<'_>, node: &Node, found: &FoundVm<'_>, sink: &mut Sink) {
    let Some(storage) = &view.facts.wanted.storage else { return };
    let question = format_args!("how many volumes {} accepts", node.name);
    let Some(entry) = sink.need(&node.csi, || node_subject(node), question) else { return };
    let Some(limit) = entry.as_ref().and_then(|entry| entry.limit) else { return };
    let driver = view.storage_driver();
    // VDO's own driver reports how many disks the VM has room for, which no switch changes.
    let is_switched = driver.is_none_or(|driver| driver.upstream);
    if let Some(wanted) = storage.volumes_per_node.filter(|wanted| is_switched && *wanted > limit) {
        let namespace = driver.map_or("vmware-system-csi", |driver| driver.namespace.as_str());
        let hit = Hit::for_node(codes::VOLUME_LIMIT_LOWER, node).with("actual", limit);
        sink.raise(
            hit.shared("wanted", wanted)
                .shared("namespace", namespace)
                .shared("patch", r#"{"data":{"high-pv-node-density":"true"}}"#),
        );
    }
    let attached = u32::try_from(found.vm.volumes.len()).unwrap_or(u32::MAX);
    if limit > 0 && attached.saturating_mul(10) >= limit.saturating_mul(9) {
        let hit = Hit::for_node(codes::VOLUMES_AT_LIMIT, node).with("count", attached);
        sink.raise(hit.with("limit", limit));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_fell_back_to_59_is_reported() {
        shows(
            &CHECK,
            &["VDO-1226"],
            |facts| facts.wanted.storage.as_mut().unwrap().volumes_per_node = Some(255),
            |facts| facts.node("worker-1").csi = Known::unknown("VDO cannot read CSINodes"),
        );
    }

    #[test]
    fn the_own_driver_reports_the_room_of_the_vm() {
        let mut facts = healthy();
        facts.wanted.storage.as_mut().unwrap().volumes_per_node = Some(255);
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1226"]);
        facts.storage_driver().upstream = false;
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }

    #[test]
    fn a_node_that_is_nearly_full_is_reported_as_info() {
        shows_of_vms(&CHECK, &["VDO-1233"], |facts| {
            facts.vm("worker-1").volumes = (0..54).map(|n| format!("v{n}")).collect();
        });
    }
}
