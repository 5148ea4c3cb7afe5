//! Who we are to a vCenter: one session for all callers.
//!
//! ```text
//!   caller ─┐                      ┌─ In(ticket) ──────────────► the call
//!   caller ─┼─► Session::ticket ───┼─ Out ─► one login for all ─► In | Refused | Out
//!   caller ─┘                      └─ Refused, in doubt ─► the same error, without a call
//! ```
//!
//! SOAP and REST each have a [`Lane`]; they share the credentials, the right to try them and the
//! refusal. After a refused login neither lane tries again until the credentials change; after one
//! that was not answered, for a time that grows ([`Limits::doubt`]): an account is never locked by
//! us.
//!
//! [`Limits::doubt`]: crate::Limits::doubt

mod lane;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use secrecy::SecretString;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{debug, info, warn};

pub(crate) use self::lane::Ticket;
use self::lane::{Lane, State};
use crate::credentials::Credentials;
use crate::error::{Error, LoginRefusal};
use crate::rest;
use crate::soap::{Fault, FaultKind};
use crate::wire::{Method, Wire};
use crate::xml::codec::{Encode, data};

/// How long the end of the sessions may take.
const FAREWELL: Duration = Duration::from_secs(5);

/// Which of the two sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Soap,
    Rest,
}

data! {
    /// What Login returns, as far as it is of use.
    struct LoggedIn {
        /// Names the session in the list of sessions.
        key: String = "key",
        /// The user, with domain, as vCenter knows it.
        user_name: String = "userName",
    }
}

/// The sessions with one vCenter.
#[derive(Debug)]
pub(crate) struct Session {
    wire: Arc<Wire>,
    credentials: RwLock<Credentials>,
    soap: Lane,
    rest: Lane,
    /// Held by whoever logs in, on either side.
    flight: tokio::sync::Mutex<()>,
    /// Why the credentials are not accepted; no attempt is made with them again.
    refused: Mutex<Option<Error>>,
    generations: AtomicU64,
    /// Logins in progress. They run on when the caller who started them goes away, so that no
    /// session is lost between vCenter opening it and us knowing of it.
    logins: Mutex<JoinSet<()>>,
    started: Instant,
}

impl Session {
    pub(crate) fn new(wire: Arc<Wire>, credentials: Credentials) -> Arc<Self> {
        Arc::new(Self {
            wire,
            credentials: RwLock::new(credentials),
            soap: Lane::default(),
            rest: Lane::default(),
            flight: tokio::sync::Mutex::new(()),
            refused: Mutex::new(None),
            generations: AtomicU64::new(0),
            logins: Mutex::new(JoinSet::new()),
            started: Instant::now(),
        })
    }

    fn lane(&self, side: Side) -> &Lane {
        match side {
            Side::Soap => &self.soap,
            Side::Rest => &self.rest,
        }
    }

    fn credentials(&self) -> Credentials {
        self.credentials.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The session, opened if there is none. All who ask at the same time get the outcome of the
    /// same attempt.
    pub(crate) async fn ticket(self: &Arc<Self>, side: Side) -> Result<Ticket, Error> {
        let lane = self.lane(side);
        if let Some(settled) = self.settled(side) {
            return settled;
        }
        let seen = lane.attempts();
        let this = Arc::clone(self);
        self.fly(async move { this.attempt(side, seen).await }).await
    }

    /// Runs `login` to its end, whatever becomes of the caller.
    async fn fly<T: Send + 'static>(
        &self,
        login: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let (send, receive) = oneshot::channel();
        {
            let mut logins = self.logins.lock().unwrap_or_else(PoisonError::into_inner);
            while logins.try_join_next().is_some() {}
            logins.spawn(async move {
                // The caller may have gone; the session stays.
                let _ = send.send(login.await);
            });
        }
        receive.await.unwrap_or_else(|_| Err(self.shut_down()))
    }

    /// The outcome, where no attempt is needed.
    fn settled(&self, side: Side) -> Option<Result<Ticket, Error>> {
        match self.lane(side).state() {
            State::In(ticket) => {
                self.lane(side).touch(self.started.elapsed());
                Some(Ok(ticket))
            }
            State::Closed => Some(Err(self.shut_down())),
            State::Out => self.refusal().clone().or_else(|| self.doubt(side)).map(Err),
        }
    }

    /// The failure of a login that vCenter may have counted, while it is too early for another. A
    /// doubt about SOAP is one about the password, so REST waits for it too; the REST service alone
    /// may be silent for reasons of its own.
    fn doubt(&self, side: Side) -> Option<Error> {
        let now = Instant::now();
        match side {
            Side::Soap => self.soap.doubt(now),
            Side::Rest => self.soap.doubt(now).or_else(|| self.rest.doubt(now)),
        }
    }

    fn refusal(&self) -> MutexGuard<'_, Option<Error>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn attempt(&self, side: Side, seen: u64) -> Result<Ticket, Error> {
        let lane = self.lane(side);
        let _flight = self.flight.lock().await;
        if let Some(settled) = self.settled(side) {
            return settled;
        }
        if lane.attempts() > seen
            && let Some(error) = lane.failure()
        {
            return Err(error);
        }
        let outcome = self.log_in(side, &self.credentials()).await;
        let pause = self.wire.http.limits().doubt;
        lane.count_attempt(outcome.as_ref().err(), pause, Instant::now());
        match outcome {
            Ok(ticket) => {
                if lane.enter(ticket.clone()) {
                    Ok(ticket)
                } else {
                    self.log_out(side, &ticket.secret).await;
                    Err(self.shut_down())
                }
            }
            Err(error) => {
                if matches!(error, Error::LoginRefused { .. }) {
                    warn!(vcenter = self.wire.name(), error = %error.error_chain(), "login refused, not trying again");
                    *self.refusal() = Some(error.clone());
                }
                Err(error)
            }
        }
    }

    async fn log_in(&self, side: Side, credentials: &Credentials) -> Result<Ticket, Error> {
        if let Some(reason) = credentials.flaw() {
            return Err(self.refused(credentials, reason));
        }
        let generation = self.generations.fetch_add(1, Ordering::Relaxed) + 1;
        // vCenter may have been upgraded since the last time, or be another one.
        self.wire.greet().await?;
        let ticket = match side {
            Side::Soap => {
                let content = &self.wire.greeting()?.content;
                let login = credentials.login();
                let args: Vec<(&str, &dyn Encode)> =
                    login.args.iter().map(|(name, value)| (*name, value as &dyn Encode)).collect();
                let method = Method::change(login.method);
                let manager = &content.session_manager;
                let answer = self.wire.once_with_cookie::<LoggedIn>(method, manager, &args).await;
                let (session, secret) = match answer {
                    Ok(opened) => opened,
                    Err((error, secret)) => {
                        self.forsake(&error, secret).await;
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
            Side::Rest => {
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
        debug!(vcenter = self.wire.name(), user = &*ticket.user, ?side, "logged in");
        Ok(ticket)
    }

    /// Ends a session that vCenter opened in a reply of which the rest was lost.
    async fn forsake(&self, error: &Error, secret: Option<SecretString>) {
        if error.fault().is_none()
            && let Some(secret) = secret
        {
            let left = tokio::time::timeout(FAREWELL, self.log_out(Side::Soap, &secret));
            if left.await.is_err() {
                debug!(
                    vcenter = self.wire.name(),
                    "a session is left for vCenter to end by itself"
                );
            }
        }
    }

    /// Tells a refused login from a failed one.
    fn login_error(&self, credentials: &Credentials, error: Error) -> Error {
        let reason = match &error {
            Error::Rest { status: 401 | 403, message, .. } if says_locked(message) => {
                LoginRefusal::Locked
            }
            Error::Rest { status: 401 | 403, .. } => LoginRefusal::Credentials,
            _ => match error.fault().map(refusal) {
                Some(Some(reason)) => reason,
                _ => return error,
            },
        };
        self.refused(credentials, reason)
    }

    fn refused(&self, credentials: &Credentials, reason: LoginRefusal) -> Error {
        Error::LoginRefused {
            address: self.wire.name().to_owned(),
            user: credentials.user().to_owned(),
            reason,
        }
    }

    /// Says that vCenter no longer knows this session. The next caller opens a new one.
    pub(crate) fn expired(&self, side: Side, ticket: &Ticket) {
        if self.lane(side).leave(ticket.generation) {
            info!(vcenter = self.wire.name(), ?side, "session ended by vCenter");
        }
    }

    /// Proves `new` by logging in with them, then uses them. On an error everything stays as it
    /// was. Runs on when its caller goes away, so that no session is lost.
    pub(crate) async fn replace(self: &Arc<Self>, new: Credentials) -> Result<(), Error> {
        let this = Arc::clone(self);
        self.fly(async move { this.replace_with(new).await }).await
    }

    async fn replace_with(&self, new: Credentials) -> Result<(), Error> {
        let _flight = self.flight.lock().await;
        if matches!(self.soap.state(), State::Closed) {
            return Err(self.shut_down());
        }
        let ticket = self.log_in(Side::Soap, &new).await?;
        let old = self.soap.state();
        *self.credentials.write().unwrap_or_else(PoisonError::into_inner) = new;
        *self.refusal() = None;
        if !self.soap.enter(ticket.clone()) {
            self.log_out(Side::Soap, &ticket.secret).await;
            return Err(self.shut_down());
        }
        let old_rest = self.rest.reset();
        for side in [Side::Soap, Side::Rest] {
            self.lane(side).count_attempt(None, Duration::ZERO, Instant::now());
        }
        self.leave(old, old_rest).await;
        Ok(())
    }

    /// Ends both sessions, in vCenter too. No call succeeds afterwards. A login under way is waited
    /// for: whoever made it finds the lane closed and logs out again. Takes no longer than
    /// [`FAREWELL`]; a login that vCenter answers later still is logged out then.
    pub(crate) async fn close(&self) {
        let (soap, rest) = (self.soap.close(), self.rest.close());
        let landed = async { drop(self.flight.lock().await) };
        let all = async { tokio::join!(self.leave(soap, rest), landed) };
        if tokio::time::timeout(FAREWELL, all).await.is_err() {
            debug!(vcenter = self.wire.name(), "vCenter does not take leave in time");
        }
    }

    /// [`Session::close`] without anybody waiting for it, also for a login under way whose caller has
    /// gone. Outside a runtime that is left to vCenter's timeout.
    pub(crate) fn abandon(self: &Arc<Self>) {
        let is_out = |lane: &Lane| !matches!(lane.state(), State::In(_));
        let mut logins = self.logins.lock().unwrap_or_else(PoisonError::into_inner);
        while logins.try_join_next().is_some() {}
        if is_out(&self.soap) && is_out(&self.rest) && logins.is_empty() {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let this = Arc::clone(self);
            logins.spawn_on(async move { this.close().await }, &runtime);
        }
    }

    /// Logs out of what were the sessions of the two sides, for no longer than [`FAREWELL`].
    async fn leave(&self, soap: State, rest: State) {
        let leave = async |side, state| {
            if let State::In(ticket) = state {
                self.log_out(side, &ticket.secret).await;
            }
        };
        let both = async { tokio::join!(leave(Side::Soap, soap), leave(Side::Rest, rest)) };
        if tokio::time::timeout(FAREWELL, both).await.is_err() {
            debug!(vcenter = self.wire.name(), "a session is left for vCenter to end by itself");
        }
    }

    async fn log_out(&self, side: Side, secret: &SecretString) {
        let outcome = match side {
            Side::Soap => match self.wire.greeting() {
                Ok(greeting) => {
                    let manager = &greeting.content.session_manager;
                    self.wire.once::<()>(Method::leave("Logout"), manager, &[], Some(secret)).await
                }
                Err(error) => Err(error),
            },
            Side::Rest => rest::close_session(&self.wire, secret).await,
        };
        if let Err(error) = outcome {
            debug!(vcenter = self.wire.name(), error = %error.error_chain(), ?side, "logout failed; vCenter will end the session by itself");
        }
    }

    /// Says that the session is in use by something that does not ask for it each time.
    pub(crate) fn touch(&self, side: Side) {
        self.lane(side).touch(self.started.elapsed());
    }

    /// Tells the session that is open, if there is one, from all others.
    pub(crate) fn generation(&self, side: Side) -> Option<u64> {
        match self.lane(side).state() {
            State::In(ticket) => Some(ticket.generation),
            _ => None,
        }
    }

    /// How long the session, if there is one, has not been used.
    pub(crate) fn idle(&self, side: Side) -> Option<std::time::Duration> {
        let lane = self.lane(side);
        match lane.state() {
            State::In(_) => Some(self.started.elapsed().saturating_sub(lane.last_used())),
            _ => None,
        }
    }

    fn shut_down(&self) -> Error {
        Error::ShutDown { address: self.wire.name().to_owned() }
    }
}

fn refusal(fault: &Fault) -> Option<LoginRefusal> {
    let words = || {
        fault.chain().any(|f| says_locked(&f.message) || f.details.iter().any(|d| says_locked(d)))
    };
    match fault.kind {
        FaultKind::PasswordExpired => Some(LoginRefusal::PasswordExpired),
        FaultKind::InvalidLogin if words() => Some(LoginRefusal::Locked),
        FaultKind::InvalidLogin => Some(LoginRefusal::Credentials),
        FaultKind::NoPermission { .. } => Some(LoginRefusal::NoPermission),
        _ => None,
    }
}

/// vCenter's only sign of a locked account is in its sentence.
fn says_locked(message: &str) -> bool {
    message.to_ascii_lowercase().contains("locked")
}

/// The secret of a ticket, for the calls made with it.
impl AsRef<SecretString> for Ticket {
    fn as_ref(&self) -> &SecretString {
        &self.secret
    }
}
