//! The state of one session, for one protocol.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use secrecy::SecretString;
use tokio::time::Instant;

use crate::error::Error;

/// An open session with its secret. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Ticket {
    pub(crate) secret: Arc<SecretString>,
    /// Distinguishes this session from earlier and later ones.
    pub(crate) generation: u64,
    /// The user in vCenter's spelling.
    pub(crate) user: Arc<str>,
    /// The key in vCenter's session list.
    pub(crate) key: Arc<str>,
}

impl std::fmt::Debug for Ticket {
    /// Hides the key as well as the secret, because the key can end the session.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { generation, user, secret: _, key: _ } = self;
        write!(f, "Ticket({user}, {generation})")
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) enum SessionState {
    /// No session; the next caller opens one.
    #[default]
    LoggedOut,
    LoggedIn(Ticket),
    /// The client was shut down.
    Closed,
}

/// The maximum pause after an unanswered login.
const MAX_LOGIN_BACKOFF: Duration = Duration::from_mins(5);

/// A login without an answer. vCenter may have counted it as a wrong password.
#[derive(Debug)]
struct UnansweredLogin {
    failure: Error,
    /// The pause before the next login, and its end.
    pause: Duration,
    until: Instant,
}

#[derive(Debug, Default)]
pub(crate) struct ProtocolSession {
    state: Mutex<SessionState>,
    /// The error of the last attempt, if it failed.
    failure: Mutex<Option<Error>>,
    /// The last unanswered attempt, until vCenter answers one.
    unanswered_login: Mutex<Option<UnansweredLogin>>,
    /// The number of finished attempts.
    attempts: AtomicU64,
    /// When the session was last used, in milliseconds since the client started.
    used: AtomicU64,
}

impl ProtocolSession {
    fn lock(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn state(&self) -> SessionState {
        self.lock().clone()
    }

    pub(crate) fn failure(&self) -> Option<Error> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn attempts(&self) -> u64 {
        self.attempts.load(Ordering::Acquire)
    }

    /// Records a finished login attempt. After an unanswered one, the next login must wait for
    /// `pause`, and four times as long after each further one.
    pub(crate) fn count_attempt(&self, failure: Option<&Error>, pause: Duration, now: Instant) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure.cloned();
        let mut unanswered_login =
            self.unanswered_login.lock().unwrap_or_else(PoisonError::into_inner);
        match failure {
            Some(failure) if failure.is_unanswered_login() => {
                let longer = |earlier: &UnansweredLogin| earlier.pause.saturating_mul(4);
                let pause = unanswered_login.as_ref().map_or(pause, longer).min(MAX_LOGIN_BACKOFF);
                let until = now + pause;
                *unanswered_login =
                    Some(UnansweredLogin { failure: failure.clone(), pause, until });
            }
            // The client did not send the password.
            Some(failure) if failure.is_transient() => {}
            _ => *unanswered_login = None,
        }
        drop(unanswered_login);
        self.attempts.fetch_add(1, Ordering::AcqRel);
    }

    /// The error of the last unanswered login, while its pause lasts.
    pub(crate) fn unanswered_login(&self, now: Instant) -> Option<Error> {
        let unanswered_login = self.unanswered_login.lock().unwrap_or_else(PoisonError::into_inner);
        unanswered_login
            .as_ref()
            .filter(|unanswered_login| now < unanswered_login.until)
            .map(|unanswered_login| unanswered_login.failure.clone())
    }

    /// Returns false if the session was closed in the meantime.
    pub(crate) fn set_ticket(&self, ticket: Ticket) -> bool {
        let mut state = self.lock();
        if matches!(*state, SessionState::Closed) {
            return false;
        }
        *state = SessionState::LoggedIn(ticket);
        true
    }

    /// Drops the session of this generation. Returns false if another one is current.
    pub(crate) fn drop_generation(&self, generation: u64) -> bool {
        let mut state = self.lock();
        let is_current =
            matches!(&*state, SessionState::LoggedIn(ticket) if ticket.generation == generation);
        if is_current {
            *state = SessionState::LoggedOut;
        }
        is_current
    }

    /// Drops the session and returns the previous state.
    pub(crate) fn reset(&self) -> SessionState {
        let mut state = self.lock();
        if matches!(*state, SessionState::Closed) {
            SessionState::Closed
        } else {
            std::mem::take(&mut *state)
        }
    }

    pub(crate) fn close(&self) -> SessionState {
        std::mem::replace(&mut *self.lock(), SessionState::Closed)
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
        let protocol_session = ProtocolSession::default();
        let pause = Duration::from_secs(5);
        let silent = Error::Timeout {
            address: "vc".to_owned(),
            method: "Login".to_owned(),
            after: Duration::from_mins(1),
        };
        let unavailable =
            Error::Unavailable { address: "vc".to_owned(), status: 503, retry_after: None };
        let start = Instant::now();
        let (mut now, mut attempts) = (start, Vec::new());
        while attempts.len() < 7 {
            if protocol_session.unanswered_login(now).is_none() {
                attempts.push((now - start).as_secs());
                protocol_session.count_attempt(Some(&silent), pause, now);
                // A proxy reports that vCenter is unavailable: not an answer to the login.
                protocol_session.count_attempt(Some(&unavailable), pause, now);
            }
            now += Duration::from_secs(1);
        }
        assert_eq!(attempts, [0, 5, 25, 105, 405, 705, 1005]);
        // vCenter's default policy locks an account after five failed logins within three minutes.
        for window in attempts.windows(5) {
            assert!(window[4] - window[0] > 180, "{attempts:?}");
        }
        protocol_session.count_attempt(None, pause, now);
        assert!(protocol_session.unanswered_login(now).is_none(), "an answer ends it");
    }
}
