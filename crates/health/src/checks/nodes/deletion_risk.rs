//! The cloud provider cannot mistake an existing node for a deleted one.

use crate::{
    checks::prelude::*,
    facts::{is_embedded_id, is_foreign_id},
};

pub(super) const CHECK: Check = Check {
    name: "nodes/deletion_risk",
    gives: &[codes::NODE_DELETION_RISK],
    run: CheckScope::Node(check),
};

/// Since this release, a failed look-up no longer counts as a deleted VM.
const CAREFUL: Version = Version::new(1, 26, 0);

fn check(view: &FactsView<'_>, node: &Node, sink: &mut Sink) {
    let (Some(cloud), Some(driver)) = (&view.facts.wanted.cloud, view.cloud_driver()) else {
        return;
    };
    if node.ready || cloud.keeps_nodes || !driver.upstream {
        return;
    }
    let hit = |reason: String| {
        let hit = Hit::for_node(codes::NODE_DELETION_RISK, node).driver("CPI");
        hit.with("reason", reason)
            .shared("namespace", &driver.namespace)
            .shared("workload", super::cloud_workload(Some(driver)))
    };
    let id = node.provider_id.as_deref().unwrap_or_default();
    if is_embedded_id(id) || is_foreign_id(id) {
        sink.raise(hit(format!(
            "looks for a VM by its provider id {id}, which contains no VM uuid"
        )));
        return;
    }
    if node.is_foreign() {
        return;
    }
    match view.node_vm(node) {
        NodeVm::One(found) => {
            let listed = &found.vcenter.datacenters;
            let configured = cloud.vcenters.contains(&found.vcenter.name);
            let seen = configured && (listed.is_empty() || listed.contains(&found.vm.datacenter));
            if !seen {
                sink.raise(hit(format!(
                    "does not search the location of its VM ({})",
                    found.vm.path
                )));
            } else if !found.vm.accessible {
                sink.raise(hit("cannot find a VM whose files are inaccessible".to_owned()));
            }
        }
        NodeVm::Unclear { vcenter: Some(vcenter), reason } => {
            let old = driver.version.is_some_and(|version| version < CAREFUL);
            if old {
                let text = format!("treats an unreachable vCenter like a deleted VM ({reason})");
                sink.raise(hit(text).vcenter(&vcenter.name));
            }
        }
        NodeVm::Several(_) | NodeVm::Absent | NodeVm::Unclear { .. } => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_not_ready_and_has_no_visible_vm_risks_deletion() {
        shows_of_vms(&CHECK, &["VDO-1227"], |facts| {
            facts.node("worker-1").ready = false;
            facts.vm("worker-1").datacenter = "DC9".into();
        });
    }

    #[test]
    fn the_command_names_the_workload_of_the_running_cloud_provider() {
        let mut facts = healthy();
        facts.node("worker-1").ready = false;
        facts.vm("worker-1").datacenter = "DC9".into();
        facts.cloud_driver().workloads[0].name = "rancher-vsphere-cpi".into();
        let findings = crate::Examination::run(facts).report().all();
        let finding = findings.iter().find(|finding| finding.code == "VDO-1227").unwrap();
        let step = &finding.remedy[0];
        assert!(step.contains(" daemonset/rancher-vsphere-cpi SKIP_NODE_DELETION=true"), "{step}");
    }

    #[test]
    fn a_node_with_the_provider_id_of_another_cloud_risks_deletion() {
        for id in ["k3s://worker-1", "aws:///eu-1/i-1"] {
            let mut facts = healthy();
            facts.node("worker-1").provider_id = Some(id.into());
            assert_eq!(codes_of(&CHECK, &facts), [""; 0], "while it is ready");
            facts.node("worker-1").ready = false;
            assert_eq!(codes_of(&CHECK, &facts), ["VDO-1227"], "{id}");
        }
    }

    #[test]
    fn old_releases_delete_nodes_if_vcenter_is_unreachable() {
        let mut facts = healthy();
        facts.node("worker-1").ready = false;
        facts.vcenter().inventory = Known::unknown("vcenter-a does not answer");
        assert_eq!(codes_of(&CHECK, &facts), [""; 0], "newer ones do not");
        facts.cloud_driver().version = Some(Version::new(1, 22, 4));
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1227"]);
    }

    #[test]
    fn a_cloud_provider_that_deletes_no_nodes_is_no_risk() {
        let mut facts = healthy();
        facts.node("worker-1").ready = false;
        facts.vm("worker-1").datacenter = "DC9".into();
        facts.wanted.cloud.as_mut().unwrap().keeps_nodes = true;
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }
}
