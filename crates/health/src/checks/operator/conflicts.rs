//! No other manager changes objects that VDO manages.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "operator/conflicts",
    gives: &[codes::FOUGHT_OVER],
    run: CheckScope::Cluster(&[], check),
};

/// Fewer changes per hour are normal repairs.
const CONFLICT: u32 = 5;

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    let question = "whether another manager changes objects that VDO manages";
    let conflicts = sink.need(&view.facts.operator.conflicts, cluster_subject, question);
    for conflict in conflicts.into_iter().flatten().filter(|conflict| conflict.times >= CONFLICT) {
        let (namespace, name) = conflict.object.split_once('/').unwrap_or(("", &conflict.object));
        let place =
            if namespace.is_empty() { String::new() } else { format!("--namespace {namespace} ") };
        sink.raise(
            Hit::new(
                codes::FOUGHT_OVER,
                Subject::kubernetes(&conflict.kind, None, &conflict.object),
            )
            .with("kind", &conflict.kind)
            .with("object", &conflict.object)
            .with("where", place)
            .with("name", name)
            .with("field", "it")
            .with("times", conflict.times)
            .shared("manager", &conflict.manager),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Conflict;

    #[test]
    fn frequent_changes_are_reported_and_a_single_one_is_not() {
        let mut facts = healthy();
        let last = facts.now;
        let conflict = |times| Conflict {
            kind: "Deployment".into(),
            object: "vmware-system-csi/vsphere-csi-controller".into(),
            manager: "argocd".into(),
            times,
            last,
        };
        facts.operator.conflicts = vec![conflict(1)].into();
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
        shows(
            &CHECK,
            &["VDO-1805"],
            |facts| facts.operator.conflicts = vec![conflict(12)].into(),
            |facts| facts.operator.conflicts = Known::unknown("VDO has only just begun"),
        );
    }
}
