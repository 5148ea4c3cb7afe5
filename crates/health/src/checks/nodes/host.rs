//! The node's ESXi host is connected, in service and new enough.

use api::finding::quoted;

use crate::{checks::prelude::*, facts::Platform};

pub(super) const CHECK: Check = Check {
    name: "nodes/host",
    gives: &[codes::HOST_TOO_OLD, codes::HOST_UNUSABLE],
    run: CheckScope::NodeVm(check),
};

/// The minimum for OpenShift upgrades.
const FOR_OPENSHIFT: Version = Version::new(7, 0, 2);

fn check(view: &FactsView<'_>, node: &Node, found: &FoundVm<'_>, sink: &mut Sink) {
    let Some(storage) = &view.facts.wanted.storage else { return };
    // A host that the account can see but not read has no version.
    let readable = found.host.filter(|host| host.version != Version::default());
    let Some(host) = readable else {
        let question = format!("which ESXi version the host of {} runs", node.name);
        let reason = "the account lacks the privilege to read the host of its VM";
        sink.cannot_tell(node_subject(node), &question, reason);
        return;
    };
    let many = storage.volumes_per_node.is_some_and(|volumes| volumes > 59);
    let (needed, purpose) = if many {
        (Version::new(8, 0, 0), "more than 59 volumes per node")
    } else {
        (Version::new(6, 7, 3), "container volumes")
    };
    if host.version < needed {
        sink.raise(
            Hit::for_vm(codes::HOST_TOO_OLD, node, found)
                .shared("host", &host.name)
                .shared("path", &host.path)
                .shared("version", host.version)
                .shared("needed", needed)
                .shared("purpose", purpose),
        );
    }
    let openshift = view.facts.cluster.platform == Platform::OpenShift;
    if host.version >= needed && openshift && host.version < FOR_OPENSHIFT {
        sink.raise(
            Hit::for_vm(codes::HOST_TOO_OLD, node, found)
                .severity(Severity::Warning)
                .shared("host", &host.name)
                .shared("path", &host.path)
                .shared("version", host.version)
                .shared("needed", FOR_OPENSHIFT)
                .shared("purpose", "the next release of OpenShift"),
        );
    }
    let path = quoted(&host.path);
    let (state, step) = match (host.connected, host.maintenance) {
        (false, _) => (
            "not connected to vCenter",
            format!("govc host.reconnect {path}   once the host is on and vCenter can reach it"),
        ),
        (_, true) => (
            "in maintenance mode",
            format!("govc host.maintenance.exit {path}   when the maintenance is done"),
        ),
        _ => return,
    };
    sink.raise(
        Hit::for_vm(codes::HOST_UNUSABLE, node, found)
            .shared("host", &host.name)
            .shared("path", &host.path)
            .shared("state", state)
            .shared("step", step)
            .at(Anchor::Host, &host.path),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_from_before_container_volumes_is_reported() {
        shows_of_vms(&CHECK, &["VDO-1212"], |facts| {
            facts.inventory().hosts.get_mut("host-1").unwrap().version = Version::new(6, 7, 0);
        });
    }

    #[test]
    fn many_volumes_per_node_need_newer_hosts() {
        shows_of_vms(&CHECK, &["VDO-1212"], |facts| {
            facts.wanted.storage.as_mut().unwrap().volumes_per_node = Some(255);
            facts.inventory().hosts.get_mut("host-1").unwrap().version = Version::new(7, 0, 3);
        });
    }

    #[test]
    fn openshift_does_not_upgrade_on_hosts_with_7_0_update_1() {
        for (platform, expected) in
            [(Platform::OpenShift, &["VDO-1212"][..]), (Platform::Kubernetes, &[])]
        {
            let mut facts = crate::sample::cluster(platform);
            facts.inventory().hosts.get_mut("host-1").unwrap().version = Version::new(7, 0, 1);
            assert_eq!(codes_of(&CHECK, &facts), expected, "{platform:?}");
        }
    }

    #[test]
    fn a_host_in_maintenance_is_reported() {
        shows_of_vms(&CHECK, &["VDO-1213"], |facts| {
            facts.inventory().hosts.get_mut("host-1").unwrap().maintenance = true;
        });
    }

    #[test]
    fn the_command_fits_the_state_of_the_host() {
        for (connected, expected) in [
            (true, "govc host.maintenance.exit /DC0/host/C0/esx-1.example.com"),
            (false, "govc host.reconnect /DC0/host/C0/esx-1.example.com"),
        ] {
            let mut facts = healthy();
            let host = facts.inventory().hosts.get_mut("host-1").unwrap();
            (host.connected, host.maintenance) = (connected, true);
            let all = crate::Examination::run(facts).report().all();
            let finding = all.into_iter().find(|finding| finding.code == "VDO-1213").unwrap();
            assert!(finding.remedy[1].starts_with(expected), "{:?}", finding.remedy);
        }
    }

    #[test]
    fn a_host_that_is_not_visible_is_not_called_healthy() {
        let mut facts = healthy();
        facts.inventory().hosts.remove("host-1");
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1801"]);
    }

    #[test]
    fn a_host_without_read_permission_is_not_called_old() {
        let mut facts = healthy();
        facts.inventory().hosts.get_mut("host-1").unwrap().version = Version::default();
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1801"]);
    }
}
