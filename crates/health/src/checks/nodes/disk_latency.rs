//! The disks of control plane nodes are fast enough for etcd.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "nodes/disk_latency",
    gives: &[codes::DISK_SLOW],
    run: CheckScope::NodeVm(check),
};

/// Milliseconds beyond which etcd loses its leader.
const LIMIT: u32 = 100;

fn check(_: &FactsView<'_>, node: &Node, found: &FoundVm<'_>, sink: &mut Sink) {
    let Some(latency) = found.vm.disk_latency_ms else { return };
    if node.control_plane.is_some() && latency > LIMIT {
        sink.raise(Hit::for_vm(codes::DISK_SLOW, node, found).with("latency", latency));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_control_plane_disk_is_reported() {
        shows_of_vms(&CHECK, &["VDO-1228"], |facts| {
            facts.vm("control-1").disk_latency_ms = Some(140);
        });
    }

    #[test]
    fn a_slow_disk_of_a_worker_and_an_unmeasured_disk_are_not_reported() {
        let mut facts = healthy();
        facts.vm("worker-1").disk_latency_ms = Some(140);
        facts.vm("control-1").disk_latency_ms = None;
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }
}
