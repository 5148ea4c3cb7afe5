//! The end of a VDOConfig: what becomes of the drivers when it is deleted.

use api::vdo_config::{DeletionPolicy, Mode};
use catalog::Driver;

use crate::{
    facts::Facts,
    names,
    plan::{DriverPlan, Finalizer, Next},
};

/// What the deletion of the VDOConfig means for the drivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeletionOutcome {
    /// It is not being deleted.
    None,
    /// It goes, the drivers stay as they are.
    Retain,
    /// The drivers go first.
    Remove,
}

pub(super) fn deletion_outcome(facts: &Facts) -> DeletionOutcome {
    match facts.config.spec.deletion_policy() {
        _ if facts.config.metadata.deletion_timestamp.is_none() => DeletionOutcome::None,
        DeletionPolicy::Retain => DeletionOutcome::Retain,
        DeletionPolicy::Remove => DeletionOutcome::Remove,
    }
}

/// The finalizer is there exactly while the drivers are to go with the object: with the default,
/// nothing ever holds up its deletion, and removing the operator removes no driver.
pub(super) fn finalizer(facts: &Facts, drivers: &[DriverPlan]) -> Finalizer {
    let finalizers = facts.config.metadata.finalizers.iter().flatten();
    let there = finalizers.into_iter().any(|name| name == names::FINALIZER);
    // What is only observed stays, and holds up nobody.
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
        // What is being deleted takes no new finalizer.
        (false, true) if deletion_outcome(facts) == DeletionOutcome::None => Finalizer::Set,
        (true, false) => Finalizer::Clear,
        _ => Finalizer::Stay,
    }
}
