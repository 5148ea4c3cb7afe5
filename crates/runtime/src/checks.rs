//! Named conditions behind `/livez` and `/readyz`.

use std::{collections::BTreeMap, sync::Arc};

use tokio::sync::watch;

/// A set of named checks. Cheap to clone; all clones are one set.
///
/// A check starts as failing with the reason it was registered with: what has not spoken yet is not
/// fine.
#[derive(Clone, Debug, Default)]
pub struct Checks {
    states: Arc<watch::Sender<BTreeMap<&'static str, State>>>,
}

type State = Result<(), String>;

/// The one who reports on a check.
#[derive(Clone, Debug)]
pub struct Check {
    name: &'static str,
    states: Arc<watch::Sender<BTreeMap<&'static str, State>>>,
}

impl Checks {
    /// Registers a check. Until it reports, it fails with `not_yet`.
    pub fn register(&self, name: &'static str, not_yet: &str) -> Check {
        self.states.send_modify(|states| {
            states.insert(name, Err(not_yet.to_owned()));
        });
        Check { name, states: self.states.clone() }
    }

    /// Every check with its state, by name.
    pub fn states(&self) -> BTreeMap<&'static str, State> {
        self.states.borrow().clone()
    }

    /// Whether all pass.
    pub fn pass(&self) -> bool {
        self.states.borrow().values().all(Result::is_ok)
    }
}

impl Check {
    /// Reports that all is well.
    pub fn pass(&self) {
        self.report(Ok(()));
    }

    /// Reports what is wrong, in words for the person who reads `/readyz?verbose`.
    pub fn fail(&self, reason: impl Into<String>) {
        self.report(Err(reason.into()));
    }

    fn report(&self, state: State) {
        self.states.send_if_modified(|states| {
            let changed = states.get(self.name) != Some(&state);
            states.insert(self.name, state);
            changed
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_that_has_not_spoken_is_not_fine() {
        let checks = Checks::default();
        assert!(checks.pass(), "nothing registered, nothing wrong");
        let check = checks.register("cache", "the cache is not filled yet");
        assert!(!checks.pass());
        assert_eq!(checks.states()["cache"], Err("the cache is not filled yet".into()));
        check.pass();
        assert!(checks.pass());
        check.fail("vCenter is away");
        assert_eq!(checks.states()["cache"], Err("vCenter is away".into()));
    }
}
