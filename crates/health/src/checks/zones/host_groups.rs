//! Host groups that represent zones have no problems.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "zones/host_groups",
    gives: &[codes::HOST_GROUP_BROKEN],
    run: CheckScope::Cluster(&[], check),
};

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    for vcenter in view.facts.vcenters.values() {
        let question = format!("whether the host groups of {} match their zones", vcenter.address);
        let Some(inventory) = sink.need_from_vcenter(&vcenter.inventory, vcenter, &question) else {
            continue;
        };
        let groups = sink.need_from_vcenter(&inventory.host_groups, vcenter, &question);
        for group in groups.into_iter().flatten() {
            let Some(problem) = &group.problem else { continue };
            let subject = Subject::vsphere("HostGroup", &group.name, &group.name);
            sink.raise(
                Hit::new(codes::HOST_GROUP_BROKEN, subject)
                    .with("domain", &group.failure_domain)
                    .with("group", &group.name)
                    .with("problem", problem)
                    .vcenter(&vcenter.name),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::HostGroup;

    #[test]
    fn an_empty_group_is_reported() {
        shows_of_vms(&CHECK, &["VDO-1708"], |facts| {
            facts.inventory().host_groups = vec![HostGroup {
                failure_domain: "east-1".into(),
                name: "rack-1".into(),
                problem: Some("it has no hosts".into()),
            }]
            .into();
        });
    }
}
