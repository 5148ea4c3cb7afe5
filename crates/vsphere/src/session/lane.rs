//! The state of one session, and the right to change it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use secrecy::SecretString;
use tokio::time::Instant;

use crate::error::Error;

/// Proof of a session. Cheap to clone; secret inside.
#[derive(Clone)]
pub(crate) struct Ticket {
    pub(crate) secret: Arc<SecretString>,
    /// Tells this session from those before and after it.
    pub(crate) generation: u64,
    /// The user as vCenter names it.
    pub(crate) user: Arc<str>,
    /// The session's name in vCenter's list.
    pub(crate) key: Arc<str>,
}

impl std::fmt::Debug for Ticket {
    /// The key can end the session: it is shown as little as the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { generation, user, secret: _, key: _ } = self;
        write!(f, "Ticket({user}, {generation})")
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) enum State {
    /// No session; the next caller opens one.
    #[default]
    Out,
    /// A session.
    In(Ticket),
    /// The client was shut down.
    Closed,
}

/// The longest time no login is tried after one without an answer.
const LONGEST_DOUBT: Duration = Duration::from_mins(5);

/// A login whose answer did not arrive: vCenter may have counted it as a wrong password.
#[derive(Debug)]
struct Doubt {
    failure: Error,
    /// How long no other is tried, and when that ends.
    pause: Duration,
    until: Instant,
}

#[derive(Debug, Default)]
pub(crate) struct Lane {
    state: Mutex<State>,
    /// How the last attempt failed, if it did.
    failure: Mutex<Option<Error>>,
    /// The last attempt without an answer, until one is answered.
    doubt: Mutex<Option<Doubt>>,
    /// Attempts that have ended.
    attempts: AtomicU64,
    /// When the session was last used, in milliseconds since the client started.
    used: AtomicU64,
}

impl Lane {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn state(&self) -> State {
        self.lock().clone()
    }

    pub(crate) fn failure(&self) -> Option<Error> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn attempts(&self) -> u64 {
        self.attempts.load(Ordering::Acquire)
    }

    /// Notes the end of an attempt and how it failed, if it did. After one without an answer no
    /// other is due for `pause`, and for four times as long after each further one.
    pub(crate) fn count_attempt(&self, failure: Option<&Error>, pause: Duration, now: Instant) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure.cloned();
        let mut doubt = self.doubt.lock().unwrap_or_else(PoisonError::into_inner);
        match failure {
            Some(failure) if failure.is_login_in_doubt() => {
                let longer = |earlier: &Doubt| earlier.pause.saturating_mul(4);
                let pause = doubt.as_ref().map_or(pause, longer).min(LONGEST_DOUBT);
                let until = now + pause;
                *doubt = Some(Doubt { failure: failure.clone(), pause, until });
            }
            // The password was not even sent.
            Some(failure) if failure.is_transient() => {}
            _ => *doubt = None,
        }
        drop(doubt);
        self.attempts.fetch_add(1, Ordering::AcqRel);
    }

    /// Why no login is tried at present.
    pub(crate) fn doubt(&self, now: Instant) -> Option<Error> {
        let doubt = self.doubt.lock().unwrap_or_else(PoisonError::into_inner);
        doubt.as_ref().filter(|doubt| now < doubt.until).map(|doubt| doubt.failure.clone())
    }

    /// Returns false when the lane was closed meanwhile.
    pub(crate) fn enter(&self, ticket: Ticket) -> bool {
        let mut state = self.lock();
        if matches!(*state, State::Closed) {
            return false;
        }
        *state = State::In(ticket);
        true
    }

    /// Returns whether it was this session that ended.
    pub(crate) fn leave(&self, generation: u64) -> bool {
        let mut state = self.lock();
        let is_it = matches!(&*state, State::In(ticket) if ticket.generation == generation);
        if is_it {
            *state = State::Out;
        }
        is_it
    }

    /// Forgets the session; returns what was there.
    pub(crate) fn reset(&self) -> State {
        let mut state = self.lock();
        if matches!(*state, State::Closed) { State::Closed } else { std::mem::take(&mut *state) }
    }

    pub(crate) fn close(&self) -> State {
        std::mem::replace(&mut *self.lock(), State::Closed)
    }

    pub(crate) fn touch(&self, now: Duration) {
        self.used.store(u64::try_from(now.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn last_used(&self) -> Duration {
        Duration::from_millis(self.used.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logins_without_an_answer_are_too_few_to_lock_an_account() {
        let lane = Lane::default();
        let pause = Duration::from_secs(5);
        let silent = Error::Timeout {
            address: "vc".to_owned(),
            method: "Login".to_owned(),
            after: Duration::from_mins(1),
        };
        let away = Error::Unavailable { address: "vc".to_owned(), status: 503, retry_after: None };
        let start = Instant::now();
        let (mut now, mut attempts) = (start, Vec::new());
        while attempts.len() < 7 {
            if lane.doubt(now).is_none() {
                attempts.push((now - start).as_secs());
                lane.count_attempt(Some(&silent), pause, now);
                // Somebody in between says that vCenter is away: that answers nothing.
                lane.count_attempt(Some(&away), pause, now);
            }
            now += Duration::from_secs(1);
        }
        assert_eq!(attempts, [0, 5, 25, 105, 405, 705, 1005]);
        // vCenter's own policy: five within three minutes.
        for window in attempts.windows(5) {
            assert!(window[4] - window[0] > 180, "{attempts:?}");
        }
        lane.count_attempt(None, pause, now);
        assert!(lane.doubt(now).is_none(), "an answer ends it");
    }
}
