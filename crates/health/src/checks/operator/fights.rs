//! Nobody else changes what VDO manages.

use crate::checks::prelude::*;

pub(super) const CHECK: Check =
    Check { name: "operator/fights", gives: &[codes::FOUGHT_OVER], run: Run::Cluster(&[], check) };

/// Now and then is a repair; more often is a fight.
const FIGHT: u32 = 5;

fn check(view: &View<'_>, sink: &mut Sink) {
    for fight in view.facts.operator.fights.iter().filter(|fight| fight.times >= FIGHT) {
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
        facts.operator.fights = vec![fight(1)];
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
        facts.operator.fights = vec![fight(12)];
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1805"]);
    }
}
