//! Claims get their volumes.

use crate::{
    checks::{
        meaning::{self, About, Meaning, Meanings},
        prelude::*,
    },
    facts::Claim,
};

pub(super) const CHECK: Check = Check {
    name: "storage/claims",
    gives: &[codes::FILE_SERVICE_MISSING, codes::CLAIM_PENDING],
    run: CheckScope::Cluster(meaning::PARTS, check),
};

/// Seconds that the creation of a volume may take.
const GRACE_PERIOD: i64 = 300;

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    let question = "whether claims wait for a volume";
    let pending = sink.need(&view.facts.storage.pending, cluster_subject, question);
    let meanings = Meanings::new(view);
    for claim in pending.into_iter().flatten() {
        if claim.many_writers {
            file_volume(view, claim, sink);
        }
        sink.recheck(view, claim.since, view.grace_period(GRACE_PERIOD));
        let age = view.seconds_since(claim.since);
        if age < view.grace_period(GRACE_PERIOD) || claim.message.is_empty() {
            continue;
        }
        let class = Some(claim.class.as_str()).filter(|class| !class.is_empty());
        let about = About { class, ..About::default() };
        let explained = meanings.explain(&claim.message, &about);
        let [meaning, question] = meaning::texts(explained.as_ref());
        let (namespace, name) = claim.name.split_once('/').unwrap_or(("default", &claim.name));
        sink.raise(
            Hit::new(codes::CLAIM_PENDING, subject(claim))
                .with("claim", &claim.name)
                .with("namespace", namespace)
                .with("name", name)
                .with("since", moment(claim.since))
                .with("message", &claim.message)
                .with("meaning", meaning)
                .with("question", question)
                .because(explained.iter().flat_map(Meaning::codes)),
        );
    }
}

fn subject(claim: &Claim) -> Subject {
    Subject::kubernetes("PersistentVolumeClaim", None, &claim.name)
}

fn file_volume(view: &FactsView<'_>, claim: &Claim, sink: &mut Sink) {
    let mut served = false;
    for vcenter in view.facts.vcenters.values() {
        let question = format!("whether {} has vSAN file service", vcenter.address);
        let Some(inventory) = sink.need_from_vcenter(&vcenter.inventory, vcenter, &question) else {
            return;
        };
        let Some(clusters) = sink.need_from_vcenter(&inventory.file_service, vcenter, &question)
        else {
            return;
        };
        served |= !clusters.is_empty();
    }
    if !served {
        let hit = Hit::new(codes::FILE_SERVICE_MISSING, subject(claim));
        sink.raise(hit.with("claim", &claim.name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(many_writers: bool) -> Claim {
        Claim {
            name: "shop/uploads".into(),
            class: "gold".into(),
            many_writers,
            message: "failed to provision volume".into(),
            since: jiff::Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn many_writers_without_file_service_are_explained() {
        let mut facts = healthy();
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
        facts.storage.pending = vec![claim(true)].into();
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1511", "VDO-1527"]);
        facts.inventory().file_service.get_mut().unwrap().insert("C0".into());
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1527"]);
        facts.inventory().file_service = Known::unknown("vSAN was not asked");
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1527", "VDO-1801"]);
    }

    #[test]
    fn a_recent_claim_has_a_grace_period() {
        let mut facts = healthy();
        facts.storage.pending = vec![Claim { since: facts.now, ..claim(false) }].into();
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }
}
