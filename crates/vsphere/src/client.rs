//! The front door.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rand::RngExt as _;
use serde_json::Value as Json;
use tokio::task::JoinSet;
use tracing::debug;

use crate::about::{AboutInfo, ServiceContent};
use crate::error::Error;
use crate::moref::MoRef;
use crate::rest::{RestCall, Style, with_session};
use crate::session::{Credentials, Session, Side, Ticket};
use crate::soap::codec::Field;
use crate::soap::envelope::Args;
use crate::tasks::Tasks;
use crate::transport::address::Address;
use crate::transport::http::{Http, Limits};
use crate::transport::observe::{CallObserver, Unobserved};
use crate::transport::tls::Trust;
use crate::version::ApiVersion;
use crate::wire::{Method, Nature, Wire};

/// A vCenter, connected. Clones share one session, one connection pool and one set of limits.
///
/// # Guarantees
/// - Calls that read are tried again after a failure that may pass; calls that change something
///   only when vCenter certainly never saw them.
/// - A session that vCenter ended is opened again, once for all who wait.
/// - Credentials that were refused are not tried again.
///
/// [`Client::shut_down`] ends the session in vCenter; dropping the last clone leaves that to
/// vCenter's timeout.
#[derive(Debug, Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    wire: Arc<Wire>,
    session: Arc<Session>,
    tasks: Tasks,
    /// What runs beside the callers: keeping the session alive.
    beside: Mutex<JoinSet<()>>,
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
            Inner { wire, session, tasks: Tasks::default(), beside: Mutex::new(beside) }
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

    /// Uses other credentials from now on, after proving them by a login. Whoever works with the
    /// old ones is moved over; a lane closed by refused credentials opens.
    ///
    /// # Errors
    /// The old ones stay in use when the new ones are not accepted or vCenter cannot be reached.
    pub async fn set_credentials(&self, credentials: Credentials) -> Result<(), Error> {
        self.inner.session.replace(credentials).await
    }

    /// Ends the session in vCenter. Every call on this client and its clones fails from here on.
    pub async fn shut_down(&self) {
        self.inner.beside.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
        self.inner.tasks.stop();
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

    pub(crate) fn tasks(&self) -> &Tasks {
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
        Effort { client: self, side, nature, attempt: 0, renewed: false }
    }
}

/// Decides how often a call is tried, and waits in between.
#[derive(Debug)]
pub(crate) struct Effort<'c> {
    client: &'c Client,
    side: Side,
    nature: Nature,
    attempt: u32,
    renewed: bool,
}

impl Effort<'_> {
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
        if self.attempt >= self.client.limits().attempts || !error.is_transient() {
            return Err(error);
        }
        debug!(vcenter = self.client.address(), error = %error.story(), attempt = self.attempt, "trying again");
        tokio::time::sleep(pause(self.client.limits(), self.attempt)).await;
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
pub(crate) fn pause(limits: &Limits, attempt: u32) -> Duration {
    let doubled = limits
        .pause
        .saturating_mul(1 << attempt.saturating_sub(1).min(16))
        .min(limits.longest_pause);
    doubled.mul_f64(rand::rng().random_range(0.5..1.0))
}

/// Touches sessions that nobody uses, so that vCenter does not end them.
async fn keep_alive(client: Weak<Inner>, limits: Limits) {
    let rhythm = limits.keep_alive.min(limits.rest_keep_alive) / 2;
    loop {
        tokio::time::sleep(rhythm.max(Duration::from_millis(10))).await;
        let Some(inner) = client.upgrade() else { return };
        let client = Client { inner };
        let idle = |side| client.inner.session.idle(side);
        let outcome = if idle(Side::Soap).is_some_and(|idle| idle >= limits.keep_alive) {
            let this = MoRef::new("ServiceInstance", "ServiceInstance");
            client.call::<()>(Method::read("CurrentTime"), &this, &[]).await
        } else if idle(Side::Rest).is_some_and(|idle| idle >= limits.rest_keep_alive) {
            client.touch_rest().await
        } else {
            Ok(())
        };
        if let Err(error) = outcome {
            debug!(vcenter = client.address(), error = %error.story(), "cannot keep the session alive");
        }
    }
}

impl Client {
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
