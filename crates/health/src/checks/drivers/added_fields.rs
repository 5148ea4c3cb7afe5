//! Nobody adds fields to the pods of a driver that VDO applies.

use crate::{
    checks::prelude::*,
    facts::{InstalledDriver, Pod, Workload},
};

pub(super) const CHECK: Check = Check {
    name: "drivers/added_fields",
    gives: &[codes::FIELDS_ADDED],
    run: CheckScope::Cluster(&[Part::Pods], check),
};

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    super::report_unknown_drivers(view, "whether somebody added fields to the drivers", sink);
    for driver in view.drivers() {
        for workload in driver.workloads.iter().filter(|w| !w.added_fields.is_empty()) {
            sink.raise(hit(driver, workload));
        }
    }
}

fn hit(driver: &InstalledDriver, workload: &Workload) -> Hit {
    let mut managers: Vec<&str> = workload.added_fields.iter().map(|(by, _)| by.as_str()).collect();
    managers.dedup();
    let fields: Vec<&str> = workload.added_fields.iter().map(|(_, path)| path.as_str()).collect();
    let subject = Subject::kubernetes(&workload.kind, Some(&driver.namespace), &workload.name);
    let hit = Hit::new(codes::FIELDS_ADDED, subject)
        .with("workload", format!("{} {}", workload.kind, workload.name))
        .with("manager", managers.join(", "))
        .with("fields", fields.join(", "))
        .with("step", step(driver, workload, &fields))
        .driver(&driver.name);
    // While pods start, the fields are a choice of somebody.
    if is_stuck(workload) { hit } else { hit.severity(Severity::Info) }
}

/// Whether a pod does not start. A node selector that no node has leaves a DaemonSet without pods.
fn is_stuck(workload: &Workload) -> bool {
    let waits = |pod: &Pod| {
        pod.unschedulable.is_some() || pod.containers.iter().any(|c| c.waiting.is_some())
    };
    workload.desired == 0 || workload.pods.iter().any(|pod| !pod.ready && waits(pod))
}

/// The maximum length of a patch, in bytes. A command must fit into a step.
const MAX_PATCH: usize = 768;

/// The command that removes the fields. A JSON patch can name only fields outside of lists.
fn step(driver: &InstalledDriver, workload: &Workload, fields: &[&str]) -> String {
    let kind = workload.kind.to_lowercase();
    let (namespace, name) = (&driver.namespace, &workload.name);
    let remove = |path: &&str| {
        let path = path.replace('.', "/");
        format!("{{\"op\":\"remove\",\"path\":\"/spec/template/spec/{path}\"}}")
    };
    let patch = fields.iter().map(remove).collect::<Vec<_>>().join(",");
    if fields.iter().any(|path| path.contains(['[', '/', '~'])) || patch.len() > MAX_PATCH {
        return format!(
            "kubectl edit {kind} --show-managed-fields --namespace {namespace} {name}   and remove the fields below spec \
             that this manager owns according to metadata.managedFields"
        );
    }
    format!("kubectl patch {kind} --namespace {namespace} {name} --type json --patch '[{patch}]'")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(facts: &mut Facts, path: &str) {
        let workload = &mut facts.storage_driver().workloads[0];
        workload.added_fields.insert(("kubectl-edit".into(), path.into()));
    }

    #[test]
    fn added_fields_are_a_warning_only_if_pods_do_not_run() {
        let severity = |facts: &Facts| {
            let found = crate::Examination::run(facts.clone()).report().all();
            found.iter().find(|f| f.code == "VDO-1624").map(|f| f.severity)
        };
        let mut facts = healthy();
        assert_eq!(severity(&facts), None);
        add(&mut facts, "nodeSelector");
        assert_eq!(severity(&facts), Some(Severity::Info));
        facts.storage_driver().workloads[0].pods[0].ready = false;
        assert_eq!(severity(&facts), Some(Severity::Info), "it may still start");
        facts.storage_driver().workloads[0].pods[0].unschedulable = Some("no node".into());
        assert_eq!(severity(&facts), Some(Severity::Warning));
    }

    #[test]
    fn the_printed_command_removes_the_field() {
        let mut facts = healthy();
        add(&mut facts, "nodeSelector");
        let hits = CHECK.hits(&crate::Examination::run(facts).view());
        let step = hits[0].own.iter().find(|(name, _)| *name == "step").unwrap().1.clone();
        assert_eq!(
            step,
            "kubectl patch deployment --namespace vmware-system-csi vsphere-csi-controller --type json \
             --patch '[{\"op\":\"remove\",\"path\":\"/spec/template/spec/nodeSelector\"}]'"
        );
    }
}
