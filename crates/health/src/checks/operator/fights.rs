//! Nobody else changes what VDO manages.

use crate::checks::prelude::*;

pub(super) const CHECK: Check =
    Check { name: "operator/fights", gives: &[codes::FOUGHT_OVER], run: Run::Cluster(&[], check) };

/// Now and then is a repair; more often is a fight.
const FIGHT: u32 = 5;

fn check(view: &View<'_>, sink: &mut Sink) {
    let question = "whether somebody else changes what VDO manages";
    let fights = sink.need(&view.facts.operator.fights, cluster_subject, question);
    for fight in fights.into_iter().flatten().filter(|fight| fight.times >= FIGHT) {
        let (namespace, name) = fight.object.split_once('/').unwrap_or(("", &fight.object));
        let place =
            if namespace.is_empty() { String::new() } else { format!("--namespace {namespace} ") };
        sink.raise(
            Hit::new(codes::FOUGHT_OVER, Subject::kubernetes(&fight.kind, None, &fight.object))
                .with("kind", &fight.kind)
                .with("object", &fight.object)
                .with("where", place)
                .with("name", name)
                .with("field", &fight.field)
                .with("times", fight.times)
                .shared("manager", &fight.manager),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Fight;

    #[test]
    fn a_fight_is_named_and_a_single_repair_is_not() {
        let mut facts = healthy();
        let fight = |times| Fight {
            kind: "Deployment".into(),
            object: "vmware-system-csi/vsphere-csi-controller".into(),
            field: "spec.replicas".into(),
            manager: "argocd".into(),
            times,
        };
        facts.operator.fights = vec![fight(1)].into();
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
        shows(
            &CHECK,
            &["VDO-1805"],
            |facts| facts.operator.fights = vec![fight(12)].into(),
            |facts| facts.operator.fights = Known::unknown("VDO has only just begun"),
        );
    }
}
