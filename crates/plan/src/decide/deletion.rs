//! The deletion of a VDOConfig, and its effect on the drivers.

use api::vdo_config::{DeletionPolicy, Mode};
use catalog::Driver;

use crate::{
    facts::Facts,
    names,
    plan::{DriverPlan, Finalizer, Next},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeletionOutcome {
    /// The VDOConfig is not being deleted.
    None,
    /// The VDOConfig is deleted, and the drivers stay as they are.
    Retain,
    /// VDO removes the drivers before the VDOConfig is deleted.
    Remove,
}

pub(super) fn deletion_outcome(facts: &Facts) -> DeletionOutcome {
    match facts.config.spec.deletion_policy() {
        _ if facts.config.metadata.deletion_timestamp.is_none() => DeletionOutcome::None,
        DeletionPolicy::Retain => DeletionOutcome::Retain,
        DeletionPolicy::Remove => DeletionOutcome::Remove,
    }
}

/// The finalizer exists exactly while VDO must remove the drivers together with the VDOConfig. With the
/// default policy, nothing delays the deletion, and the removal of the operator removes no driver.
pub(super) fn finalizer(facts: &Facts, drivers: &[DriverPlan]) -> Finalizer {
    let finalizers = facts.config.metadata.finalizers.iter().flatten();
    let there = finalizers.into_iter().any(|name| name == names::FINALIZER);
    // A driver in mode Observe stays, and does not delay the deletion.
    let stays = |driver| drivers.iter().any(|d| d.driver == driver && d.mode == Mode::Observe);
    let gone = |driver| facts.record(driver).objects.is_empty() || stays(driver);
    let all_gone = gone(Driver::Cpi)
        && gone(Driver::Csi)
        && drivers.iter().all(|driver| driver.next == Next::Nothing);
    let wanted = match deletion_outcome(facts) {
        DeletionOutcome::None => facts.config.spec.deletion_policy() == DeletionPolicy::Remove,
        DeletionOutcome::Retain => false,
        DeletionOutcome::Remove => !all_gone,
    };
    match (there, wanted) {
        // Kubernetes accepts no new finalizer on an object that is being deleted.
        (false, true) if deletion_outcome(facts) == DeletionOutcome::None => Finalizer::Set,
        (true, false) => Finalizer::Clear,
        _ => Finalizer::Stay,
    }
}
