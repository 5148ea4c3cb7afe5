//! The state of one session, and the right to change it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use secrecy::SecretString;

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

#[derive(Debug, Default)]
pub(crate) struct Lane {
    state: Mutex<State>,
    /// How the last attempt failed, if it did.
    failure: Mutex<Option<Error>>,
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

    /// Notes the end of an attempt and how it failed, if it did.
    pub(crate) fn count_attempt(&self, failure: Option<Error>) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
        self.attempts.fetch_add(1, Ordering::AcqRel);
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
