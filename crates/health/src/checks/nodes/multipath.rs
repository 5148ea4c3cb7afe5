//! multipathd does not claim VMware disks.

use crate::checks::prelude::*;

pub(super) const CHECK: Check =
    Check { name: "nodes/multipath", gives: &[codes::MULTIPATH], run: CheckScope::Node(check) };

fn check(_: &FactsView<'_>, node: &Node, sink: &mut Sink) {
    // VDO runs nothing on the node; the kubelet reports a claimed disk in its warnings.
    let question = format_args!("whether multipathd claims disks on {}", node.name);
    let failures = sink.need(&node.mount_failures, || node_subject(node), question);
    if failures.into_iter().flatten().any(|event| event.message.contains("/dev/dm-")) {
        sink.raise(Hit::for_node(codes::MULTIPATH, node));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Event;

    #[test]
    fn a_node_whose_disks_are_claimed_is_reported() {
        let message: String = "MountDevice failed: /dev/dm-3: no such file or directory".into();
        shows(
            &CHECK,
            &["VDO-1224"],
            |facts| {
                let event = Event { reason: "FailedMount".into(), message };
                facts.node("worker-1").mount_failures = vec![event].into();
            },
            |facts| {
                facts.node("worker-1").mount_failures = Known::unknown("VDO cannot list events");
            },
        );
    }
}
