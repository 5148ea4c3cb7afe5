//! The outcome of each check, for people who want to see what was checked.

use std::collections::BTreeSet;

use api::{Severity, finding::codes};

use crate::{check::Check, checks, examination::Examination, view::NodeVm};

/// The outcome of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Passed,
    /// The codes of its findings above Info.
    Failed(BTreeSet<&'static str>),
    /// Some question has no answer, for this reason.
    CannotTell(String),
}

/// Runs every check on its own, in a fixed order. A check that both finds a problem and misses an answer has failed.
pub fn outcomes(examination: &Examination) -> Vec<(&'static Check, Verdict)> {
    let view = examination.view();
    let hidden = view.nodes().any(|node| !matches!(view.node_vm(node), NodeVm::One(_)));
    let verdict = |check: &'static Check| {
        let hits = check.hits(&view);
        let unknown = |code: &str| code == codes::CHECK_INCOMPLETE.code;
        let severity = |hit: &crate::Hit| hit.severity.unwrap_or(hit.definition.severity);
        let failed = hits.iter().filter(|hit| severity(hit) > Severity::Info);
        let failed = failed.map(|hit| hit.definition.code).filter(|code| !unknown(code));
        let failed: BTreeSet<&'static str> = failed.collect();
        if !failed.is_empty() {
            return Verdict::Failed(failed);
        }
        let reason = |hit: &crate::Hit| {
            let reason = hit.shared.iter().find(|(name, _)| *name == "reason");
            reason.map(|(_, reason)| reason.clone()).unwrap_or_default()
        };
        let open =
            hits.iter().find(|hit| unknown(hit.definition.code) && severity(hit) > Severity::Info);
        match open {
            Some(hit) => Verdict::CannotTell(reason(hit)),
            // These checks do not run for a node without a VM.
            None if hidden && check.needs_vm() && check.name != "nodes/vm_found" => {
                Verdict::CannotTell("the VM of a node is not known".into())
            }
            None => Verdict::Passed,
        }
    };
    checks::all().iter().map(|check| (*check, verdict(check))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        facts::{Facts, Known, Platform},
        sample,
        shortcuts::Shortcuts,
    };

    fn verdict(name: &str, facts: Facts) -> Verdict {
        let all = outcomes(&Examination::run(facts));
        assert_eq!(all.len(), checks::all().len());
        all.into_iter().find(|(check, _)| check.name == name).unwrap().1
    }

    #[test]
    fn every_check_passes_on_a_healthy_cluster() {
        let all = outcomes(&Examination::run(sample::cluster(Platform::Kubernetes)));
        let open: Vec<_> = all.iter().filter(|(_, verdict)| *verdict != Verdict::Passed).collect();
        assert!(open.is_empty(), "{open:?}");
    }

    #[test]
    fn a_check_fails_with_its_code_and_cannot_tell_without_its_facts() {
        let mut facts = sample::cluster(Platform::Kubernetes);
        facts.vm("worker-1").disk_uuid = false.into();
        facts.vm("worker-1").disk_uuid_set = false;
        assert_eq!(
            verdict("nodes/disk_uuid", facts),
            Verdict::Failed(BTreeSet::from(["VDO-1203"]))
        );
        let mut facts = sample::cluster(Platform::Kubernetes);
        facts.storage_driver().accounts = Known::unknown("forbidden");
        assert_eq!(verdict("drivers/accounts", facts), Verdict::CannotTell("forbidden".into()));
    }

    #[test]
    fn a_check_of_vms_cannot_tell_while_a_vm_is_not_known() {
        let mut facts = sample::cluster(Platform::Kubernetes);
        facts.vcenter().inventory = Known::unknown("vCenter does not answer");
        let verdict = verdict("nodes/hardware", facts);
        assert!(matches!(verdict, Verdict::CannotTell(_)), "{verdict:?}");
    }
}
