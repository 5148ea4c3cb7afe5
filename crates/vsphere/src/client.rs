//! The client: one session for all callers, with retries.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rand::RngExt as _;
use serde_json::Value as Json;
use tokio::task::JoinSet;
use tracing::debug;

use crate::about::{AboutInfo, ServiceContent};
use crate::credentials::Credentials;
use crate::error::Error;
use crate::login_pace::LoginPace;
use crate::moref::MoRef;
use crate::rest::{RestCall, Style, with_session};
use crate::session::{Protocol, Session, Ticket};
use crate::soap::envelope::Args;
use crate::task_registry::TaskRegistry;
use crate::tls::Trust;
use crate::transport::address::Address;
use crate::transport::http::{Http, Limits};
use crate::transport::observe::{CallObserver, NoObserver};
use crate::version::ApiVersion;
use crate::wire::{CallKind, Method, Wire};
use crate::xml::codec::Field;

/// A connection to a vCenter. Clones share one session, one connection pool and one set of limits.
///
/// # Guarantees
/// - The client retries a read after a transient failure. It retries a change only if vCenter
///   certainly never received the call.
/// - When vCenter ends the session, the client logs in again, once for all callers.
/// - The client never repeats rejected credentials by itself. A program can, at a [`LoginPace`]. After
///   a login without an answer, the client waits with growing pauses.
///
/// [`Client::shut_down`] ends the session in vCenter. Dropping the last clone, or cancelling
/// [`ClientBuilder::connect`], ends it in the background while the runtime lives.
#[derive(Debug, Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    wire: Arc<Wire>,
    session: Arc<Session>,
    tasks: TaskRegistry,
    /// Background tasks: session keep-alive.
    background: Mutex<JoinSet<()>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.session.abandon();
    }
}

/// Configures a connection to a vCenter.
#[derive(Debug)]
pub struct ClientBuilder {
    /// Parsed at once. The raw text may contain a password and must not be kept.
    address: Result<Address, Error>,
    trust: Trust,
    credentials: Option<Credentials>,
    user_agent: String,
    limits: Limits,
    observer: Arc<dyn CallObserver>,
    login_pace: Option<LoginPace>,
}

impl ClientBuilder {
    /// Sets how the vCenter proves its identity. The default is the system's CA certificates.
    #[must_use]
    pub fn trust(mut self, trust: Trust) -> Self {
        self.trust = trust;
        self
    }

    /// Sets the user and password.
    #[must_use]
    pub fn credentials(mut self, credentials: Credentials) -> Self {
        self.credentials = Some(credentials);
        self
    }

    /// Sets the program name and version that vCenter shows in its session list.
    #[must_use]
    pub fn user_agent(mut self, user_agent: impl Into<String>) -> Self {
        self.user_agent = user_agent.into();
        self
    }

    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the observer of all calls.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn CallObserver>) -> Self {
        self.observer = observer;
        self
    }

    /// Counts the logins of this client with those of all clients that have a clone of this pace.
    #[must_use]
    pub fn login_pace(mut self, pace: LoginPace) -> Self {
        self.login_pace = Some(pace);
        self
    }

    /// Connects, checks that the server is a vCenter of a supported version, and logs in.
    ///
    /// # Errors
    /// Each kind of bad address, certificate, server or password is an [`Error`] variant of its own.
    pub async fn connect(self) -> Result<Client, Error> {
        let client = self.build()?;
        client.inner.session.ticket(Protocol::Soap).await?;
        Ok(client)
    }

    fn build(self) -> Result<Client, Error> {
        let http =
            Http::new(self.address?, &self.trust, &self.user_agent, self.limits, self.observer)?;
        let wire = Arc::new(Wire::new(http));
        let credentials = self.credentials.unwrap_or_else(|| Credentials::new("", ""));
        let session = Session::new(Arc::clone(&wire), credentials, self.login_pace);
        let inner = Arc::new_cyclic(|weak: &Weak<Inner>| {
            let mut background = JoinSet::new();
            background.spawn(keep_alive(weak.clone(), wire.http.limits().clone()));
            Inner {
                wire,
                session,
                tasks: TaskRegistry::default(),
                background: Mutex::new(background),
            }
        });
        Ok(Client { inner })
    }
}

impl Client {
    /// Configures a connection to `address`: a host name or IP address, with a port if it is not
    /// 443.
    pub fn builder(address: impl Into<String>) -> ClientBuilder {
        ClientBuilder {
            address: address.into().parse(),
            trust: Trust::default(),
            credentials: None,
            user_agent: concat!("vsphere-rs/", env!("CARGO_PKG_VERSION")).to_owned(),
            limits: Limits::default(),
            observer: Arc::new(NoObserver),
            login_pace: None,
        }
    }

    /// The vCenter's address, as [`Address`] displays it.
    pub fn address(&self) -> &str {
        self.inner.wire.name()
    }

    /// Product and version, read at the last login.
    pub fn about(&self) -> Result<AboutInfo, Error> {
        Ok(self.content()?.about)
    }

    pub fn api_version(&self) -> Result<ApiVersion, Error> {
        Ok(self.inner.wire.service_info()?.api)
    }

    pub fn root_folder(&self) -> Result<MoRef, Error> {
        Ok(self.content()?.root_folder)
    }

    /// The user of the session in vCenter's spelling: `VSPHERE.LOCAL\vdo`.
    pub async fn user(&self) -> Result<Arc<str>, Error> {
        Ok(self.ticket().await?.user)
    }

    /// The number of open sessions: at most one for SOAP and one for REST.
    pub fn open_sessions(&self) -> usize {
        let open = |protocol: &Protocol| self.inner.session.generation(*protocol).is_some();
        [Protocol::Soap, Protocol::Rest].iter().filter(|protocol| open(protocol)).count()
    }

    /// Logs in with new credentials and uses them from then on. Lifts the block after rejected
    /// credentials.
    ///
    /// # Errors
    /// The old credentials stay in use if the new ones fail or vCenter is unreachable.
    pub async fn set_credentials(&self, credentials: Credentials) -> Result<(), Error> {
        self.inner.session.replace(credentials).await
    }

    /// Ends the sessions in vCenter, including a login in progress. All later calls of this client
    /// and its clones fail, and all waits for tasks end. Takes at most five seconds.
    pub async fn shut_down(&self) {
        self.inner.background.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
        self.inner.tasks.stop(&Error::ShutDown { address: self.address().to_owned() });
        self.inner.session.close().await;
    }

    pub(crate) fn content(&self) -> Result<ServiceContent, Error> {
        Ok(self.inner.wire.service_info()?.content.clone())
    }

    pub(crate) fn wire(&self) -> &Arc<Wire> {
        &self.inner.wire
    }

    pub(crate) fn limits(&self) -> &Limits {
        self.inner.wire.http.limits()
    }

    pub(crate) fn task_registry(&self) -> &TaskRegistry {
        &self.inner.tasks
    }

    pub(crate) async fn ticket(&self) -> Result<Ticket, Error> {
        self.inner.session.ticket(Protocol::Soap).await
    }

    /// Marks the session as used, so that it needs no keep-alive call.
    pub(crate) fn touch(&self) {
        self.inner.session.touch(Protocol::Soap);
    }

    pub(crate) fn expired(&self, ticket: &Ticket) {
        self.inner.session.expired(Protocol::Soap, ticket);
    }

    /// The generation of the open session, if any. Does not open a session.
    pub(crate) fn generation(&self) -> Option<u64> {
        self.inner.session.generation(Protocol::Soap)
    }

    /// Whether this is the last clone of the client.
    pub(crate) fn is_last(&self) -> bool {
        Arc::strong_count(&self.inner) <= 1
    }

    /// A clone that does not keep the client alive.
    pub(crate) fn downgrade(&self) -> WeakClient {
        WeakClient(Arc::downgrade(&self.inner))
    }

    /// Calls a method in the session, with the guarantees of [`Client`].
    pub(crate) async fn call<R: Field>(
        &self,
        method: Method,
        this: &MoRef,
        args: Args<'_>,
    ) -> Result<R, Error> {
        let mut retries = self.retries(Protocol::Soap, method.kind);
        loop {
            let ticket = retries.ticket().await?;
            match self.inner.wire.call_once(method, this, args, Some(&ticket.secret)).await {
                Ok(value) => return Ok(value),
                Err(error) => retries.after_failure(&ticket, error).await?,
            }
        }
    }

    /// Makes a REST call in the session, with the guarantees of [`Client`].
    pub(crate) async fn rest(&self, kind: CallKind, call: &RestCall) -> Result<Json, Error> {
        let mut retries = self.retries(Protocol::Rest, kind);
        loop {
            let ticket = retries.ticket().await?;
            match with_session(&self.inner.wire, call, &ticket.secret).await {
                Ok(value) => return Ok(value),
                Err(error) => retries.after_failure(&ticket, error).await?,
            }
        }
    }

    /// The REST API that this vCenter supports.
    pub(crate) fn rest_style(&self) -> Result<Style, Error> {
        Ok(Style::for_version(self.api_version()?))
    }

    pub(crate) fn retries(&self, protocol: Protocol, kind: CallKind) -> Retries<'_> {
        Retries {
            client: self,
            protocol,
            kind,
            attempts: self.limits().attempts,
            attempt: 0,
            reauthenticated: false,
        }
    }
}

/// Decides whether to retry a call, and waits before each retry.
#[derive(Debug)]
pub(crate) struct Retries<'c> {
    client: &'c Client,
    protocol: Protocol,
    kind: CallKind,
    /// The maximum number of attempts.
    attempts: u32,
    attempt: u32,
    reauthenticated: bool,
}

impl Retries<'_> {
    /// Disables retries, for callers that repeat the call themselves.
    pub(crate) fn without_retry(self) -> Self {
        Self { attempts: 1, ..self }
    }

    /// Returns the session for the next attempt.
    pub(crate) async fn ticket(&mut self) -> Result<Ticket, Error> {
        loop {
            match self.client.inner.session.ticket(self.protocol).await {
                Ok(ticket) => return Ok(ticket),
                // vCenter may have counted a wrong password: each repetition could lock the
                // account.
                Err(error) if error.is_unanswered_login() => return Err(error),
                // vCenter has not received the call yet, so even a change can wait for the session.
                Err(error) => self.wait(error).await?,
            }
        }
    }

    /// Handles a failed attempt. Returns when the next attempt is due, or the error if there is
    /// none.
    pub(crate) async fn after_failure(
        &mut self,
        ticket: &Ticket,
        error: Error,
    ) -> Result<(), Error> {
        if error.is_not_authenticated() {
            self.client.inner.session.expired(self.protocol, ticket);
            if self.reauthenticated {
                return Err(error);
            }
            self.reauthenticated = true;
            return Ok(());
        }
        if error.never_reached() || self.kind == CallKind::Read {
            self.wait(error).await
        } else {
            Err(error)
        }
    }

    async fn wait(&mut self, error: Error) -> Result<(), Error> {
        self.attempt += 1;
        if self.attempt >= self.attempts || !error.is_transient() {
            return Err(error);
        }
        debug!(vcenter = self.client.address(), error = %error.error_chain(), attempt = self.attempt, "retrying");
        let limits = self.client.limits();
        tokio::time::sleep(pause_before_retry(limits, self.attempt, error.retry_after())).await;
        Ok(())
    }
}

/// A reference that does not keep the client alive.
#[derive(Debug, Clone)]
pub(crate) struct WeakClient(Weak<Inner>);

impl WeakClient {
    pub(crate) fn upgrade(&self) -> Option<Client> {
        self.0.upgrade().map(|inner| Client { inner })
    }
}

/// The pause before the next attempt. It doubles, with jitter so that many clients do not reconnect
/// at once.
pub(crate) fn retry_pause(limits: &Limits, attempt: u32) -> Duration {
    let doubled = limits
        .pause
        .saturating_mul(1 << attempt.saturating_sub(1).min(16))
        .min(limits.longest_pause);
    doubled.mul_f64(rand::rng().random_range(0.5..1.0))
}

/// The pause before the next attempt: at least the `Retry-After` vCenter asked for, capped.
fn pause_before_retry(limits: &Limits, attempt: u32, asked: Option<Duration>) -> Duration {
    retry_pause(limits, attempt).max(asked.unwrap_or_default().min(limits.longest_pause))
}

/// Touches idle sessions, so that vCenter does not end them.
async fn keep_alive(client: Weak<Inner>, limits: Limits) {
    let mut next = limits.keep_alive.min(limits.rest_keep_alive);
    loop {
        // Sleeps first: the client does not exist yet when this task starts.
        tokio::time::sleep(next.max(Duration::from_millis(10))).await;
        let Some(inner) = client.upgrade() else { return };
        let client = Client { inner };
        let soap = until_keep_alive(client.inner.session.idle(Protocol::Soap), limits.keep_alive);
        let rest =
            until_keep_alive(client.inner.session.idle(Protocol::Rest), limits.rest_keep_alive);
        let touch_soap = async {
            if soap.is_zero() {
                let this = MoRef::new("ServiceInstance", "ServiceInstance");
                let call = client.call::<()>(Method::read("CurrentTime"), &this, &[]);
                client.log_keep_alive_failure(Protocol::Soap, call.await.err());
            }
        };
        let touch_rest = async {
            if rest.is_zero() {
                client.log_keep_alive_failure(Protocol::Rest, client.touch_rest().await.err());
            }
        };
        tokio::join!(touch_soap, touch_rest);
        next = soap.min(rest);
    }
}

/// The time until an `idle` session needs a keep-alive call. Without a session, the full interval.
fn until_keep_alive(idle: Option<Duration>, after: Duration) -> Duration {
    idle.map_or(after, |idle| after.saturating_sub(idle))
}

impl Client {
    fn log_keep_alive_failure(&self, protocol: Protocol, error: Option<Error>) {
        if let Some(error) = error {
            // The next try is due after a full interval, not at once.
            self.inner.session.touch(protocol);
            debug!(vcenter = self.address(), ?protocol, error = %error.error_chain(), "cannot keep the session alive");
        }
    }

    async fn touch_rest(&self) -> Result<(), Error> {
        let style = self.rest_style()?;
        let path = style.path("cis/session");
        let (verb, path, name) = match style {
            Style::Api => (reqwest::Method::GET, path.clone(), format!("GET {path}")),
            Style::Rest => (
                reqwest::Method::POST,
                format!("{path}?~action=get"),
                format!("POST {path}?~action=get"),
            ),
        };
        self.rest(CallKind::Read, &RestCall { verb, path, name, body: None }).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_touched_exactly_when_it_is_due() {
        let (minutes, seconds) = (Duration::from_mins, Duration::from_secs);
        assert_eq!(until_keep_alive(Some(seconds(0)), minutes(4)), minutes(4));
        assert_eq!(until_keep_alive(Some(seconds(239)), minutes(4)), seconds(1));
        assert_eq!(until_keep_alive(Some(minutes(5)), minutes(4)), Duration::ZERO);
        assert_eq!(
            until_keep_alive(None, minutes(4)),
            minutes(4),
            "a session opened now is not due earlier"
        );
        let limits = Limits::default();
        assert!(
            limits.rest_keep_alive < minutes(5),
            "vCenter ends an idle REST session after five minutes"
        );
    }

    #[test]
    fn a_retry_respects_retry_after_up_to_the_maximum_pause() {
        let limits = Limits::default();
        let asked = |seconds| pause_before_retry(&limits, 1, Some(Duration::from_secs(seconds)));
        assert!(pause_before_retry(&limits, 1, None) <= limits.pause);
        assert_eq!(asked(7), Duration::from_secs(7));
        assert_eq!(asked(86_400), limits.longest_pause);
        assert!(asked(0) >= limits.pause / 2, "the regular pause is the minimum");
    }

    #[test]
    fn retries_of_a_read_outlast_a_restart_of_three_seconds() {
        let limits = Limits::default();
        let shortest: Duration = (1..limits.attempts)
            .map(|attempt| limits.pause.saturating_mul(1 << (attempt - 1)) / 2)
            .sum();
        assert!(shortest > Duration::from_secs(3), "{shortest:?}");
    }
}
