//! The sessions with a vCenter, shared by all callers.
//!
//! ```text
//!   caller ─┐                     ┌─ logged in ─────────────────► ticket
//!   caller ─┼─► Session::ticket ──┼─ logged out ─► one login ───► ticket or error, for all callers
//!   caller ─┘                     └─ rejected or unanswered ────► the same error, without a call
//! ```
//!
//! SOAP and REST each have a [`ProtocolSession`]. They share the credentials and the login lock.
//! After a rejected login, neither logs in again until the program sets credentials. With a
//! [`LoginPace`], it can set the same ones again, and the session sends them when the pace allows it.
//! After an unanswered login, the client waits with growing pauses ([`Limits::login_backoff`]), so
//! that it never locks the account.
//!
//! [`Limits::login_backoff`]: crate::Limits::login_backoff

mod protocol_session;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use secrecy::SecretString;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{debug, info, warn};

pub(crate) use self::protocol_session::Ticket;
use self::protocol_session::{ProtocolSession, SessionState};
use crate::credentials::Credentials;
use crate::error::{Error, LoginRefusal};
use crate::login_pace::{Account, LoginPace};
use crate::rest;
use crate::soap::{Fault, FaultKind};
use crate::wire::{Method, Wire};
use crate::xml::codec::{Encode, data};

/// The maximum time for logging out.
const LOGOUT_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Soap,
    Rest,
}

data! {
    /// The fields of Login's reply that this crate needs.
    struct LoginReply {
        /// The key in vCenter's session list.
        key: String = "key",
        /// The user with its domain, in vCenter's spelling.
        user_name: String = "userName",
    }
}

#[derive(Debug)]
pub(crate) struct Session {
    wire: Arc<Wire>,
    credentials: RwLock<Credentials>,
    soap: ProtocolSession,
    rest: ProtocolSession,
    /// Held during a login, for either protocol.
    login_lock: tokio::sync::Mutex<()>,
    /// The error that rejected the credentials. The session does not try them again by itself.
    refused: Mutex<Option<Error>>,
    /// Shared with the other sessions of the program.
    pace: Option<LoginPace>,
    generations: AtomicU64,
    /// Logins in progress. They continue when the caller is dropped, so that no session in vCenter
    /// is lost.
    logins: Mutex<JoinSet<()>>,
    started: Instant,
}

impl Session {
    pub(crate) fn new(
        wire: Arc<Wire>,
        credentials: Credentials,
        pace: Option<LoginPace>,
    ) -> Arc<Self> {
        Arc::new(Self {
            wire,
            credentials: RwLock::new(credentials),
            soap: ProtocolSession::default(),
            rest: ProtocolSession::default(),
            login_lock: tokio::sync::Mutex::new(()),
            refused: Mutex::new(None),
            pace,
            generations: AtomicU64::new(0),
            logins: Mutex::new(JoinSet::new()),
            started: Instant::now(),
        })
    }

    fn protocol_session(&self, protocol: Protocol) -> &ProtocolSession {
        match protocol {
            Protocol::Soap => &self.soap,
            Protocol::Rest => &self.rest,
        }
    }

    fn credentials(&self) -> Credentials {
        self.credentials.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the session and opens it if needed. Concurrent callers share one login and its
    /// outcome.
    pub(crate) async fn ticket(self: &Arc<Self>, protocol: Protocol) -> Result<Ticket, Error> {
        let protocol_session = self.protocol_session(protocol);
        if let Some(known_outcome) = self.known_outcome(protocol) {
            return known_outcome;
        }
        let seen = protocol_session.attempts();
        let this = Arc::clone(self);
        self.run_to_completion(async move { this.attempt(protocol, seen).await }).await
    }

    /// Runs `login` to its end, even if the caller is dropped.
    async fn run_to_completion<T: Send + 'static>(
        &self,
        login: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let (send, receive) = oneshot::channel();
        {
            let mut logins = self.logins.lock().unwrap_or_else(PoisonError::into_inner);
            while logins.try_join_next().is_some() {}
            logins.spawn(async move {
                // The caller may be gone; the session stays.
                let _ = send.send(login.await);
            });
        }
        receive.await.unwrap_or_else(|_| Err(self.shut_down()))
    }

    /// The outcome, if no login is needed.
    fn known_outcome(&self, protocol: Protocol) -> Option<Result<Ticket, Error>> {
        match self.protocol_session(protocol).state() {
            SessionState::LoggedIn(ticket) => {
                self.protocol_session(protocol).touch(self.started.elapsed());
                Some(Ok(ticket))
            }
            SessionState::Closed => Some(Err(self.shut_down())),
            SessionState::LoggedOut => {
                self.standing_refusal().or_else(|| self.unanswered_login(protocol)).map(Err)
            }
        }
    }

    /// The error of an unanswered login while its pause lasts. An unanswered SOAP login concerns
    /// the password, so REST waits for it too. An unanswered REST login can have its own causes.
    fn unanswered_login(&self, protocol: Protocol) -> Option<Error> {
        let now = Instant::now();
        match protocol {
            Protocol::Soap => self.soap.unanswered_login(now),
            Protocol::Rest => {
                self.soap.unanswered_login(now).or_else(|| self.rest.unanswered_login(now))
            }
        }
    }

    /// The refusal of the credentials, unless vCenter has accepted them on another connection since.
    fn standing_refusal(&self) -> Option<Error> {
        let refused = self.refusal().clone()?;
        let stands = self.pace.as_ref().is_none_or(|pace| {
            let credentials = self.credentials();
            pace.has_refused(&self.account(&credentials), &credentials)
        });
        stands.then_some(refused)
    }

    fn account(&self, credentials: &Credentials) -> Account {
        Account::new(self.wire.name(), credentials.user())
    }

    fn refusal(&self) -> MutexGuard<'_, Option<Error>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn attempt(&self, protocol: Protocol, seen: u64) -> Result<Ticket, Error> {
        let protocol_session = self.protocol_session(protocol);
        let _login_lock = self.login_lock.lock().await;
        if let Some(known_outcome) = self.known_outcome(protocol) {
            return known_outcome;
        }
        if protocol_session.attempts() > seen
            && let Some(error) = protocol_session.failure()
        {
            return Err(error);
        }
        let outcome = self.log_in(protocol, &self.credentials()).await;
        let pause = self.wire.http.limits().login_backoff;
        protocol_session.count_attempt(outcome.as_ref().err(), pause, Instant::now());
        match outcome {
            Ok(ticket) => {
                if protocol_session.set_ticket(ticket.clone()) {
                    Ok(ticket)
                } else {
                    self.log_out(protocol, &ticket.secret).await;
                    Err(self.shut_down())
                }
            }
            Err(error) => {
                if matches!(error, Error::LoginRefused { .. }) {
                    warn!(vcenter = self.wire.name(), error = %error.error_chain(), "login refused; the session does not repeat it by itself");
                    *self.refusal() = Some(error.clone());
                }
                Err(error)
            }
        }
    }

    async fn log_in(&self, protocol: Protocol, credentials: &Credentials) -> Result<Ticket, Error> {
        if let Some(reason) = credentials.problem() {
            return Err(self.login_refused(credentials, reason));
        }
        // vCenter may have been upgraded or replaced since the last login.
        self.wire.discover().await?;
        let Some(pace) = &self.pace else { return self.open(protocol, credentials).await };
        let account = self.account(credentials);
        let claimed = pace.claim(&account, credentials);
        let earlier = claimed.map_err(|reason| self.login_refused(credentials, reason))?;
        let outcome = self.open(protocol, credentials).await;
        pace.finish(&account, credentials, earlier, outcome.as_ref().err());
        outcome
    }

    /// Sends the credentials.
    async fn open(&self, protocol: Protocol, credentials: &Credentials) -> Result<Ticket, Error> {
        let generation = self.generations.fetch_add(1, Ordering::Relaxed) + 1;
        let ticket = match protocol {
            Protocol::Soap => {
                let content = &self.wire.service_info()?.content;
                let login = credentials.login();
                let args: Vec<(&str, &dyn Encode)> =
                    login.args.iter().map(|(name, value)| (*name, value as &dyn Encode)).collect();
                let method = Method::change(login.method);
                let manager = &content.session_manager;
                let answer = self.wire.log_in::<LoginReply>(method, manager, &args).await;
                let (session, secret) = match answer {
                    Ok(opened) => opened,
                    Err((error, secret)) => {
                        self.discard_session(&error, secret).await;
                        return Err(self.login_error(credentials, error));
                    }
                };
                Ticket {
                    secret: Arc::new(secret),
                    generation,
                    user: session.user_name.into(),
                    key: session.key.into(),
                }
            }
            Protocol::Rest => {
                let opened = rest::open_session(&self.wire, credentials).await;
                let secret = opened.map_err(|e| self.login_error(credentials, e))?;
                Ticket {
                    secret: Arc::new(secret),
                    generation,
                    user: credentials.user().into(),
                    key: "".into(),
                }
            }
        };
        debug!(vcenter = self.wire.name(), user = &*ticket.user, ?protocol, "logged in");
        Ok(ticket)
    }

    /// Ends a session whose login reply arrived only in part.
    async fn discard_session(&self, error: &Error, secret: Option<SecretString>) {
        if error.fault().is_none()
            && let Some(secret) = secret
        {
            let left = tokio::time::timeout(LOGOUT_TIMEOUT, self.log_out(Protocol::Soap, &secret));
            if left.await.is_err() {
                debug!(
                    vcenter = self.wire.name(),
                    "logout timed out; vCenter will end the session itself"
                );
            }
        }
    }

    /// Turns the error of a rejected login into [`Error::LoginRefused`].
    fn login_error(&self, credentials: &Credentials, error: Error) -> Error {
        let reason = match &error {
            Error::Rest { status: 401 | 403, message, .. } if mentions_lock(message) => {
                LoginRefusal::Locked
            }
            Error::Rest { status: 401 | 403, .. } => LoginRefusal::Credentials,
            _ => match error.fault().map(refusal) {
                Some(Some(reason)) => reason,
                _ => return error,
            },
        };
        self.login_refused(credentials, reason)
    }

    fn login_refused(&self, credentials: &Credentials, reason: LoginRefusal) -> Error {
        Error::LoginRefused {
            address: self.wire.name().to_owned(),
            user: credentials.user().to_owned(),
            reason,
        }
    }

    /// Drops a session that vCenter no longer knows. The next caller opens a new one.
    pub(crate) fn expired(&self, protocol: Protocol, ticket: &Ticket) {
        if self.protocol_session(protocol).drop_generation(ticket.generation) {
            info!(vcenter = self.wire.name(), ?protocol, "session ended by vCenter");
        }
    }

    /// Logs in with `new` credentials and then uses them. On an error nothing changes. Continues
    /// when the caller is dropped, so that no session is lost.
    pub(crate) async fn replace(self: &Arc<Self>, new: Credentials) -> Result<(), Error> {
        let this = Arc::clone(self);
        self.run_to_completion(async move { this.replace_with(new).await }).await
    }

    async fn replace_with(&self, new: Credentials) -> Result<(), Error> {
        let _login_lock = self.login_lock.lock().await;
        if matches!(self.soap.state(), SessionState::Closed) {
            return Err(self.shut_down());
        }
        let ticket = self.log_in(Protocol::Soap, &new).await?;
        let old = self.soap.state();
        *self.credentials.write().unwrap_or_else(PoisonError::into_inner) = new;
        *self.refusal() = None;
        if !self.soap.set_ticket(ticket.clone()) {
            self.log_out(Protocol::Soap, &ticket.secret).await;
            return Err(self.shut_down());
        }
        let old_rest = self.rest.reset();
        for protocol in [Protocol::Soap, Protocol::Rest] {
            self.protocol_session(protocol).count_attempt(None, Duration::ZERO, Instant::now());
        }
        self.log_out_both(old, old_rest).await;
        Ok(())
    }

    /// Logs out of both sessions. No call succeeds afterwards. Waits for a running login, which
    /// finds the session closed and logs out again. Takes at most [`LOGOUT_TIMEOUT`]; a login that
    /// vCenter answers even later still logs out.
    pub(crate) async fn close(&self) {
        let (soap, rest) = (self.soap.close(), self.rest.close());
        let logins_done = async { drop(self.login_lock.lock().await) };
        let all = async { tokio::join!(self.log_out_both(soap, rest), logins_done) };
        if tokio::time::timeout(LOGOUT_TIMEOUT, all).await.is_err() {
            debug!(
                vcenter = self.wire.name(),
                "logout timed out; vCenter will end the sessions itself"
            );
        }
    }

    /// Runs [`Session::close`] in the background, also for a running login whose caller is gone.
    /// Outside a runtime, vCenter's timeout ends the sessions.
    pub(crate) fn abandon(self: &Arc<Self>) {
        let is_logged_out = |protocol_session: &ProtocolSession| {
            !matches!(protocol_session.state(), SessionState::LoggedIn(_))
        };
        let mut logins = self.logins.lock().unwrap_or_else(PoisonError::into_inner);
        while logins.try_join_next().is_some() {}
        if is_logged_out(&self.soap) && is_logged_out(&self.rest) && logins.is_empty() {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let this = Arc::clone(self);
            logins.spawn_on(async move { this.close().await }, &runtime);
        }
    }

    /// Logs out of both sessions, within [`LOGOUT_TIMEOUT`].
    async fn log_out_both(&self, soap: SessionState, rest: SessionState) {
        let log_out = async |protocol, state| {
            if let SessionState::LoggedIn(ticket) = state {
                self.log_out(protocol, &ticket.secret).await;
            }
        };
        let both =
            async { tokio::join!(log_out(Protocol::Soap, soap), log_out(Protocol::Rest, rest)) };
        if tokio::time::timeout(LOGOUT_TIMEOUT, both).await.is_err() {
            debug!(
                vcenter = self.wire.name(),
                "logout timed out; vCenter will end the session itself"
            );
        }
    }

    async fn log_out(&self, protocol: Protocol, secret: &SecretString) {
        let outcome = match protocol {
            Protocol::Soap => match self.wire.service_info() {
                Ok(service_info) => {
                    let manager = &service_info.content.session_manager;
                    self.wire
                        .call_once::<()>(Method::logout("Logout"), manager, &[], Some(secret))
                        .await
                }
                Err(error) => Err(error),
            },
            Protocol::Rest => rest::close_session(&self.wire, secret).await,
        };
        if let Err(error) = outcome {
            debug!(vcenter = self.wire.name(), error = %error.error_chain(), ?protocol, "logout failed; vCenter will end the session itself");
        }
    }

    /// Marks the session as used, for callers that keep a ticket.
    pub(crate) fn touch(&self, protocol: Protocol) {
        self.protocol_session(protocol).touch(self.started.elapsed());
    }

    /// The generation of the open session, if any.
    pub(crate) fn generation(&self, protocol: Protocol) -> Option<u64> {
        match self.protocol_session(protocol).state() {
            SessionState::LoggedIn(ticket) => Some(ticket.generation),
            _ => None,
        }
    }

    /// The idle time of the open session, if any.
    pub(crate) fn idle(&self, protocol: Protocol) -> Option<std::time::Duration> {
        let protocol_session = self.protocol_session(protocol);
        match protocol_session.state() {
            SessionState::LoggedIn(_) => {
                Some(self.started.elapsed().saturating_sub(protocol_session.last_used()))
            }
            _ => None,
        }
    }

    fn shut_down(&self) -> Error {
        Error::ShutDown { address: self.wire.name().to_owned() }
    }
}

fn refusal(fault: &Fault) -> Option<LoginRefusal> {
    let is_locked = || {
        fault
            .chain()
            .any(|f| mentions_lock(&f.message) || f.details.iter().any(|d| mentions_lock(d)))
    };
    match fault.kind {
        FaultKind::PasswordExpired => Some(LoginRefusal::PasswordExpired),
        FaultKind::InvalidLogin if is_locked() => Some(LoginRefusal::Locked),
        FaultKind::InvalidLogin => Some(LoginRefusal::Credentials),
        FaultKind::NoPermission { .. } => Some(LoginRefusal::NoPermission),
        _ => None,
    }
}

/// vCenter reports a locked account only in the message text.
fn mentions_lock(message: &str) -> bool {
    message.to_ascii_lowercase().contains("locked")
}

impl AsRef<SecretString> for Ticket {
    fn as_ref(&self) -> &SecretString {
        &self.secret
    }
}
