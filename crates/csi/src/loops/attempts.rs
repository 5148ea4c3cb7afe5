//! The memory of a loop of failed attempts to change the volume of a claim.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::queue::Next;

/// How long a change that can never succeed is not repeated.
const INFEASIBLE_PAUSE: Duration = Duration::from_mins(5);

/// `T` is the desired state: a size or a class.
pub struct Attempts<T> {
    state: Mutex<State<T>>,
}

struct State<T> {
    /// Claims whose last attempt certainly ended, by uid.
    final_errors: HashSet<String>,
    /// Claims with a target that cannot be reached, by uid: the target and when it was tried.
    infeasible: HashMap<String, (T, Instant)>,
}

impl<T> Default for Attempts<T> {
    fn default() -> Self {
        let state = State { final_errors: HashSet::new(), infeasible: HashMap::new() };
        Self { state: Mutex::new(state) }
    }
}

impl<T: PartialEq> Attempts<T> {
    pub fn forget(&self, claim: &str) {
        let mut state = self.state();
        state.final_errors.remove(claim);
        state.infeasible.remove(claim);
    }

    pub fn had_final_error(&self, claim: &str) -> bool {
        self.state().final_errors.contains(claim)
    }

    /// The rest of the pause after an infeasible attempt with the same target.
    pub fn pause(&self, claim: &str, target: &T) -> Option<Duration> {
        let state = self.state();
        let (tried, at) = state.infeasible.get(claim)?;
        INFEASIBLE_PAUSE.checked_sub(at.elapsed()).filter(|_| tried == target)
    }

    /// An attempt certainly ended without success. `infeasible` is its target, if no attempt with it can succeed.
    pub fn failed(&self, claim: &str, infeasible: Option<T>) {
        let mut state = self.state();
        state.final_errors.insert(claim.into());
        if let Some(target) = infeasible {
            state.infeasible.insert(claim.into(), (target, Instant::now()));
        }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When to try again.
pub fn next(is_infeasible: bool) -> Next {
    if is_infeasible { Next::After(INFEASIBLE_PAUSE) } else { Next::Retry }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_infeasible_target_is_tried_rarely_and_another_one_at_once() {
        let attempts = Attempts::default();
        attempts.failed("uid", Some("gold"));
        assert!(attempts.had_final_error("uid"));
        assert!(attempts.pause("uid", &"gold").is_some());
        assert_eq!(attempts.pause("uid", &"silver"), None);
        tokio::time::sleep(INFEASIBLE_PAUSE + Duration::from_secs(1)).await;
        assert_eq!(attempts.pause("uid", &"gold"), None);
        attempts.forget("uid");
        assert!(!attempts.had_final_error("uid"));
    }
}
