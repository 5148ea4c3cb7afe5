//! multipathd leaves VMware disks alone.

use crate::checks::prelude::*;

pub(super) const CHECK: Check =
    Check { name: "nodes/multipath", gives: &[codes::MULTIPATH], run: Run::Node(check) };

fn check(_: &View<'_>, node: &Node, sink: &mut Sink) {
    // Somebody looked, or the node's own warnings show it. Where nobody looked there is no sign of a
    // fault either, and looking needs a program on every node: that is not "cannot tell" news.
    let said = node.events.iter().any(|event| event.message.contains("/dev/dm-"));
    if node.multipath == Some(true) || said {
        sink.raise(Hit::of_node(codes::MULTIPATH, node));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Event;

    #[test]
    fn a_node_whose_disks_are_claimed_is_named() {
        let mut facts = healthy();
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
        facts.node("worker-1").multipath = Some(true);
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1224"]);
    }

    #[test]
    fn where_nobody_looked_the_nodes_own_warnings_tell() {
        let mut facts = healthy();
        facts.node("worker-1").multipath = None;
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
        let message = "MountDevice failed: /dev/dm-3: no such file or directory".into();
        facts.node("worker-1").events = vec![Event { reason: "FailedMount".into(), message }];
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1224"]);
    }
}
