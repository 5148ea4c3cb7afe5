//! The front door.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rand::RngExt as _;
use serde_json::Value as Json;
use tokio::task::JoinSet;
use tracing::debug;

use crate::about::{AboutInfo, ServiceContent};
use crate::credentials::Credentials;
use crate::error::Error;
use crate::moref::MoRef;
use crate::rest::{RestCall, Style, with_session};
use crate::session::{Session, Side, Ticket};
use crate::soap::envelope::Args;
use crate::task_registry::TaskRegistry;
use crate::tls::Trust;
use crate::transport::address::Address;
use crate::transport::http::{Http, Limits};
use crate::transport::observe::{CallObserver, Unobserved};
use crate::version::ApiVersion;
use crate::wire::{Method, Nature, Wire};
use crate::xml::codec::Field;

/// A vCenter, connected. Clones share one session, one connection pool and one set of limits.
///
/// # Guarantees
/// - Calls that read are tried again after a failure that may pass; calls that change something
///   only when vCenter certainly never saw them.
/// - A session that vCenter ended is opened again, once for all who wait.
/// - Credentials that were refused are not tried again; after a login without an answer, not for a
///   time that grows.
///
/// [`Client::shut_down`] ends the session in vCenter. Dropping the last clone, or giving up
/// [`ClientBuilder::connect`], does so too as long as the runtime lives, without anybody waiting
/// for it.
#[derive(Debug, Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    wire: Arc<Wire>,
    session: Arc<Session>,
    tasks: TaskRegistry,
    /// What runs beside the callers: keeping the session alive.
    beside: Mutex<JoinSet<()>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.session.abandon();
    }
}

/// Collects what is needed to reach a vCenter.
#[derive(Debug)]
pub struct ClientBuilder {
    /// Read at once: what was given may hold a password, and is shown nowhere.
    address: Result<Address, Error>,
    trust: Trust,
    credentials: Option<Credentials>,
    user_agent: String,
    limits: Limits,
    observer: Arc<dyn CallObserver>,
}

impl ClientBuilder {
    /// How the vCenter proves who it is. System roots unless said otherwise.
    #[must_use]
    pub fn trust(mut self, trust: Trust) -> Self {
        self.trust = trust;
        self
    }

    /// Whom to log in as.
    #[must_use]
    pub fn credentials(mut self, credentials: Credentials) -> Self {
        self.credentials = Some(credentials);
        self
    }

    /// Program and version, as vCenter's list of sessions shows it.
    #[must_use]
    pub fn user_agent(mut self, user_agent: impl Into<String>) -> Self {
        self.user_agent = user_agent.into();
        self
    }

    /// How long and how much.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Who is told of every call.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn CallObserver>) -> Self {
        self.observer = observer;
        self
    }

    /// Connects, checks that a vCenter of a supported version is there, and logs in.
    ///
    /// # Errors
    /// Each bad address, certificate, peer or password is an [`Error`] of its own.
    pub async fn connect(self) -> Result<Client, Error> {
        let client = self.build()?;
        client.inner.session.ticket(Side::Soap).await?;
        Ok(client)
    }

    fn build(self) -> Result<Client, Error> {
        let http =
            Http::new(self.address?, &self.trust, &self.user_agent, self.limits, self.observer)?;
        let wire = Arc::new(Wire::new(http));
        let credentials = self.credentials.unwrap_or_else(|| Credentials::new("", ""));
        let session = Session::new(Arc::clone(&wire), credentials);
        let inner = Arc::new_cyclic(|weak: &Weak<Inner>| {
            let mut beside = JoinSet::new();
            beside.spawn(keep_alive(weak.clone(), wire.http.limits().clone()));
            Inner { wire, session, tasks: TaskRegistry::default(), beside: Mutex::new(beside) }
        });
        Ok(Client { inner })
    }
}

impl Client {
    /// Starts to describe a connection to `address`: a host name or IP address, with a port if it
    /// is not 443.
    pub fn builder(address: impl Into<String>) -> ClientBuilder {
        ClientBuilder {
            address: address.into().parse(),
            trust: Trust::default(),
            credentials: None,
            user_agent: concat!("vsphere-rs/", env!("CARGO_PKG_VERSION")).to_owned(),
            limits: Limits::default(),
            observer: Arc::new(Unobserved),
        }
    }

    /// The vCenter's address, as it is shown to people.
    pub fn address(&self) -> &str {
        self.inner.wire.name()
    }

    /// Product and version, as of the last login.
    pub fn about(&self) -> Result<AboutInfo, Error> {
        Ok(self.content()?.about)
    }

    /// The version of its API.
    pub fn api_version(&self) -> Result<ApiVersion, Error> {
        Ok(self.inner.wire.greeting()?.api)
    }

    /// The root of its inventory.
    pub fn root_folder(&self) -> Result<MoRef, Error> {
        Ok(self.content()?.root_folder)
    }

    /// The user of the session, as vCenter names it: `VSPHERE.LOCAL\vdo`.
    pub async fn user(&self) -> Result<Arc<str>, Error> {
        Ok(self.ticket().await?.user)
    }

    /// How many sessions this client holds open: one for SOAP, one for REST.
    pub fn open_sessions(&self) -> usize {
        let open = |side: &Side| self.inner.session.generation(*side).is_some();
        [Side::Soap, Side::Rest].iter().filter(|side| open(side)).count()
    }

    /// Uses other credentials from now on, after proving them by a login. Whoever works with the
    /// old ones is moved over; a lane closed by refused credentials opens.
    ///
    /// # Errors
    /// The old ones stay in use when the new ones are not accepted or vCenter cannot be reached.
    pub async fn set_credentials(&self, credentials: Credentials) -> Result<(), Error> {
        self.inner.session.replace(credentials).await
    }

    /// Ends the sessions in vCenter, also one that is being opened just now. Every call on this
    /// client and its clones fails from here on, and whoever waits for a task is told. Takes no
    /// longer than five seconds, whatever vCenter does.
    pub async fn shut_down(&self) {
        self.inner.beside.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
        self.inner.tasks.stop(&Error::ShutDown { address: self.address().to_owned() });
        self.inner.session.close().await;
    }

    pub(crate) fn content(&self) -> Result<ServiceContent, Error> {
        Ok(self.inner.wire.greeting()?.content.clone())
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
        self.inner.session.ticket(Side::Soap).await
    }

    /// Says that the session is in use, so that it need not be kept alive.
    pub(crate) fn touch(&self) {
        self.inner.session.touch(Side::Soap);
    }

    pub(crate) fn expired(&self, ticket: &Ticket) {
        self.inner.session.expired(Side::Soap, ticket);
    }

    /// The session that is open now, told from those before and after it. Opens none.
    pub(crate) fn generation(&self) -> Option<u64> {
        self.inner.session.generation(Side::Soap)
    }

    /// Whether nobody else holds this client.
    pub(crate) fn is_last(&self) -> bool {
        Arc::strong_count(&self.inner) <= 1
    }

    /// A clone that does not keep the client alive.
    pub(crate) fn downgrade(&self) -> WeakClient {
        WeakClient(Arc::downgrade(&self.inner))
    }

    /// Calls a method in the session, with everything [`Client`] guarantees.
    pub(crate) async fn call<R: Field>(
        &self,
        method: Method,
        this: &MoRef,
        args: Args<'_>,
    ) -> Result<R, Error> {
        let mut effort = self.effort(Side::Soap, method.nature);
        loop {
            let ticket = effort.ticket().await?;
            match self.inner.wire.once(method, this, args, Some(&ticket.secret)).await {
                Ok(value) => return Ok(value),
                Err(error) => effort.again(&ticket, error).await?,
            }
        }
    }

    /// A REST call in the session.
    pub(crate) async fn rest(&self, nature: Nature, call: &RestCall) -> Result<Json, Error> {
        let mut effort = self.effort(Side::Rest, nature);
        loop {
            let ticket = effort.ticket().await?;
            match with_session(&self.inner.wire, call, &ticket.secret).await {
                Ok(value) => return Ok(value),
                Err(error) => effort.again(&ticket, error).await?,
            }
        }
    }

    /// The generation of the REST API this vCenter speaks.
    pub(crate) fn rest_style(&self) -> Result<Style, Error> {
        Ok(Style::of(self.api_version()?))
    }

    /// The attempts of one call.
    pub(crate) fn effort(&self, side: Side, nature: Nature) -> Effort<'_> {
        Effort {
            client: self,
            side,
            nature,
            attempts: self.limits().attempts,
            attempt: 0,
            renewed: false,
        }
    }
}

/// Decides how often a call is tried, and waits in between.
#[derive(Debug)]
pub(crate) struct Effort<'c> {
    client: &'c Client,
    side: Side,
    nature: Nature,
    /// How often it may be tried in all.
    attempts: u32,
    attempt: u32,
    renewed: bool,
}

impl Effort<'_> {
    /// The same, but whoever makes the call sees to its repetition.
    pub(crate) fn once(self) -> Self {
        Self { attempts: 1, ..self }
    }

    /// The session for the next attempt.
    pub(crate) async fn ticket(&mut self) -> Result<Ticket, Error> {
        loop {
            match self.client.inner.session.ticket(self.side).await {
                Ok(ticket) => return Ok(ticket),
                // Whether vCenter counted the password is not known: each repetition may be one
                // step towards a locked account.
                Err(error) if error.is_login_in_doubt() => return Err(error),
                // Nothing was asked of vCenter yet, so even a change may wait for the session.
                Err(error) => self.wait(error).await?,
            }
        }
    }

    /// Judges a failed attempt. Returns when it is time for the next one, or with the error that
    /// ends the effort.
    pub(crate) async fn again(&mut self, ticket: &Ticket, error: Error) -> Result<(), Error> {
        if error.is_not_authenticated() {
            self.client.inner.session.expired(self.side, ticket);
            if self.renewed {
                return Err(error);
            }
            self.renewed = true;
            return Ok(());
        }
        if error.never_reached() || self.nature == Nature::Read {
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
        debug!(vcenter = self.client.address(), error = %error.error_chain(), attempt = self.attempt, "trying again");
        let limits = self.client.limits();
        tokio::time::sleep(respite(limits, self.attempt, error.retry_after())).await;
        Ok(())
    }
}

/// A client that can be gone.
#[derive(Debug, Clone)]
pub(crate) struct WeakClient(Weak<Inner>);

impl WeakClient {
    pub(crate) fn upgrade(&self) -> Option<Client> {
        self.0.upgrade().map(|inner| Client { inner })
    }
}

/// How long to wait before the next attempt: doubling, with jitter so that many clients do not come
/// back at once.
pub(crate) fn retry_pause(limits: &Limits, attempt: u32) -> Duration {
    let doubled = limits
        .pause
        .saturating_mul(1 << attempt.saturating_sub(1).min(16))
        .min(limits.longest_pause);
    doubled.mul_f64(rand::rng().random_range(0.5..1.0))
}

/// The pause before the next attempt, and not less than what vCenter asked for, within reason.
fn respite(limits: &Limits, attempt: u32, asked: Option<Duration>) -> Duration {
    retry_pause(limits, attempt).max(asked.unwrap_or_default().min(limits.longest_pause))
}

/// Touches sessions that nobody uses, so that vCenter does not end them.
async fn keep_alive(client: Weak<Inner>, limits: Limits) {
    let mut next = limits.keep_alive.min(limits.rest_keep_alive);
    loop {
        // First: the client is still being made when this starts.
        tokio::time::sleep(next.max(Duration::from_millis(10))).await;
        let Some(inner) = client.upgrade() else { return };
        let client = Client { inner };
        let soap = until_touched(client.inner.session.idle(Side::Soap), limits.keep_alive);
        let rest = until_touched(client.inner.session.idle(Side::Rest), limits.rest_keep_alive);
        let touch_soap = async {
            if soap.is_zero() {
                let this = MoRef::new("ServiceInstance", "ServiceInstance");
                let call = client.call::<()>(Method::read("CurrentTime"), &this, &[]);
                client.not_kept(Side::Soap, call.await.err());
            }
        };
        let touch_rest = async {
            if rest.is_zero() {
                client.not_kept(Side::Rest, client.touch_rest().await.err());
            }
        };
        tokio::join!(touch_soap, touch_rest);
        next = soap.min(rest);
    }
}

/// How long until a session that has been `idle` so long must be touched; one that is opened from
/// now on need not be before `after`.
fn until_touched(idle: Option<Duration>, after: Duration) -> Duration {
    idle.map_or(after, |idle| after.saturating_sub(idle))
}

impl Client {
    fn not_kept(&self, side: Side, error: Option<Error>) {
        if let Some(error) = error {
            // It is tried again after the usual time, not at once.
            self.inner.session.touch(side);
            debug!(vcenter = self.address(), ?side, error = %error.error_chain(), "cannot keep the session alive");
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
        self.rest(Nature::Read, &RestCall { verb, path, name, body: None }).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_touched_when_it_is_due_and_not_half_a_period_later() {
        let (minutes, seconds) = (Duration::from_mins, Duration::from_secs);
        assert_eq!(until_touched(Some(seconds(0)), minutes(4)), minutes(4));
        assert_eq!(until_touched(Some(seconds(239)), minutes(4)), seconds(1));
        assert_eq!(until_touched(Some(minutes(5)), minutes(4)), Duration::ZERO);
        assert_eq!(until_touched(None, minutes(4)), minutes(4), "one opened now is not due before");
        let limits = Limits::default();
        assert!(limits.rest_keep_alive < minutes(5), "vCenter ends an idle REST session by then");
    }

    #[test]
    fn an_attempt_waits_as_long_as_vcenter_asks_but_not_for_ever() {
        let limits = Limits::default();
        let asked = |seconds| respite(&limits, 1, Some(Duration::from_secs(seconds)));
        assert!(respite(&limits, 1, None) <= limits.pause);
        assert_eq!(asked(7), Duration::from_secs(7));
        assert_eq!(asked(86_400), limits.longest_pause);
        assert!(asked(0) >= limits.pause / 2, "a pause of our own is kept");
    }

    #[test]
    fn the_attempts_of_a_read_outlast_a_restart_of_three_seconds() {
        let limits = Limits::default();
        let shortest: Duration = (1..limits.attempts)
            .map(|attempt| limits.pause.saturating_mul(1 << (attempt - 1)) / 2)
            .sum();
        assert!(shortest > Duration::from_secs(3), "{shortest:?}");
    }
}
