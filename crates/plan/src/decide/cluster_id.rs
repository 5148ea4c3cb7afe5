//! The cluster id in CNS: VDO uses one only if no other cluster uses it.

use api::finding::{Finding, codes};
use catalog::Driver;
use jiff::SignedDuration;

use super::{Notes, desired::DesiredDriver, steps::waiting, vcenters::is_verified};
use crate::{
    facts::{Facts, WorkloadRole},
    plan::{DriverPlan, Next},
    record::Record,
};

/// Whether no other cluster uses the cluster id in CNS that VDO is about to use. VDO uses a shared cluster id
/// only if an admin accepts the finding, and so confirms that the claims belong to this cluster. If VDO does
/// not know whether it is shared, VDO does not use it at all.
pub(super) fn is_free(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    plan: &mut DriverPlan,
    notes: &mut Notes,
) -> bool {
    match &facts.foreign_volumes {
        _ if desired.driver == Driver::Cpi => return true,
        _ if !facts.ambiguous.is_empty() => {
            notes.findings.push(unclear(facts));
            plan.next = Next::Blocked;
        }
        Ok(foreign_volumes) if foreign_volumes.is_empty() => return true,
        // VDO uses no cluster id before the vCenters are verified. It reports then why they are not.
        Err(_) if !desired.vcenters.iter().all(|name| is_verified(facts, name)) => return true,
        Ok(foreign_volumes) => {
            let shared = shared(facts, foreign_volumes);
            let accepted = super::acknowledgement::by(facts, &shared).is_some();
            notes.findings.push(shared);
            if accepted {
                return true;
            }
            plan.next = Next::Blocked;
        }
        Err(why) => {
            let title = "Ask CNS whose volumes are under which cluster-id";
            plan.steps.push(waiting(title, Some(why.clone())));
            plan.next = Next::Wait;
        }
    }
    // VDO gets no event when the other volumes are gone, when CNS answers again, or when an admin sets the
    // cluster id. So VDO decides again after a while; an observation queries CNS only when a query is due.
    notes.wake_at(facts.now + SignedDuration::from_secs(20));
    false
}

/// Converts a record of another cluster into a record of this cluster. Its objects exist, or VDO creates
/// them. VDO waits until CNS has confirmed that the cluster id is free.
pub(super) fn claim(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    record: &Record,
    plan: &mut DriverPlan,
    notes: &mut Notes,
) {
    let asked = facts.foreign_volumes.is_ok()
        && desired.vcenters.iter().all(|name| is_verified(facts, name));
    if desired.driver == Driver::Cpi || asked {
        plan.next = Next::Record(Box::new(record.clone()));
        return;
    }
    let why = "the record was written in another cluster, and its cluster-id may be in use there";
    let title = "Ask CNS whose volumes are under which cluster-id";
    plan.steps.push(waiting(title, Some(why.into())));
    plan.next = Next::Wait;
    notes.wake_at(facts.now + SignedDuration::from_secs(20));
}

/// The volumes do not agree on the cluster id in CNS, and no other source determines it.
fn unclear(facts: &Facts) -> Finding {
    codes::CLUSTER_ID_UNCLEAR
        .found()
        .with("ids", facts.ambiguous.join(" and "))
        .with("namespace", crate::names::CSI_NAMESPACE)
        .with("secret", crate::names::CSI_SECRET)
        .about(super::myself(facts))
        .build()
}

/// Another cluster uses the same cluster id in CNS.
fn shared(facts: &Facts, foreign_volumes: &[String]) -> Finding {
    let id = facts.cluster_id.as_ref().ok().and_then(Option::as_ref);
    let first: Vec<&str> = foreign_volumes.iter().take(3).map(String::as_str).collect();
    let others = format!(
        "a cluster with {} claims that are not here: {}",
        foreign_volumes.len(),
        first.join(", ")
    );
    let controllers = facts.workloads_of(Driver::Csi, WorkloadRole::Controller);
    let namespace =
        controllers.first().map_or(crate::names::CSI_NAMESPACE, |(id, _)| id.namespace.as_str());
    codes::CLUSTER_ID_SHARED
        .found()
        .with("id", id.map(|id| id.id.as_str()).unwrap_or_default())
        .with("others", others)
        .with("namespace", namespace)
        .about(super::myself(facts))
        .build()
}
