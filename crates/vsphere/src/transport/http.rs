//! HTTP: one pooled client per vCenter, with limits on everything.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, StatusCode};
use rustls::InvalidMessage;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};
use zeroize::Zeroizing;

use super::address::Address;
use super::observe::{CallObserver, Observed, Outcome};
use crate::error::{BadTrustSnafu, Error, ProxyRefusal};
use crate::tls::{CertificateRefused, Trust, client_config};
use crate::xml::XmlError;

/// How long and how much. The defaults suit a vCenter on the same continent; tests shorten them.
#[derive(Debug, Clone)]
pub struct Limits {
    /// For a connection to stand.
    pub connect: Duration,
    /// For a whole call: from waiting for its turn to the last byte received.
    pub call: Duration,
    /// Between two pieces of a reply.
    pub idle: Duration,
    /// How long vCenter may hold back its answer while a watch has nothing to report. Also the
    /// rhythm of a watch on a quiet vCenter: one call in this time.
    pub wait: Duration,
    /// Calls at the same time, watches not counted.
    pub concurrency: usize,
    /// Bytes of a reply that is read as it arrives: many objects.
    pub reply: usize,
    /// Bytes of a reply that is held in memory as a whole: all others. Documents and REST objects
    /// that are always small have a limit of their own, 1 MiB.
    pub text: usize,
    /// How often a read is tried in all.
    pub attempts: u32,
    /// Before the second attempt; it doubles from there.
    pub pause: Duration,
    /// The longest pause between attempts, also for a watch that tries to come back.
    pub longest_pause: Duration,
    /// After a login that vCenter did not answer, none is tried for this time: it may have counted a
    /// wrong password. Four times as long after each further one, up to five minutes; other
    /// credentials end it.
    pub doubt: Duration,
    /// A session without calls is touched after this time, so that vCenter does not end it.
    pub keep_alive: Duration,
    /// The same for the REST session, which vCenter ends sooner.
    pub rest_keep_alive: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            call: Duration::from_mins(1),
            idle: Duration::from_secs(30),
            wait: Duration::from_mins(2),
            concurrency: 8,
            reply: 1 << 30,
            text: 64 << 20,
            attempts: 5,
            pause: Duration::from_millis(500),
            longest_pause: Duration::from_secs(30),
            doubt: Duration::from_secs(5),
            keep_alive: Duration::from_mins(10),
            rest_keep_alive: Duration::from_mins(4),
        }
    }
}

/// How much of a reply is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    /// One object or document of a known kind.
    Small,
    /// Whatever is read in one piece.
    Whole,
    /// A list read as it arrives.
    Streamed,
}

impl Size {
    const SMALL: usize = 1 << 20;

    fn limit(self, limits: &Limits) -> usize {
        match self {
            Self::Small => Self::SMALL.min(limits.text),
            Self::Whole => limits.text,
            Self::Streamed => limits.reply,
        }
    }
}

/// A request about to be sent.
#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
    /// The name under which the call is observed and reported.
    pub(crate) name: &'a str,
    pub(crate) verb: Method,
    pub(crate) path: &'a str,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    /// Wiped once it is sent: a login carries the password.
    pub(crate) body: Option<Zeroizing<String>>,
    /// For the whole call.
    pub(crate) within: Duration,
    /// How long a reply may pause; [`Limits::idle`] unless said otherwise.
    pub(crate) idle: Option<Duration>,
    /// Whether it waits for its turn under [`Limits::concurrency`]. A call that waits for events
    /// does not, nor does the one that ends the session.
    pub(crate) queues: bool,
    pub(crate) size: Size,
}

/// One vCenter's HTTP side.
#[derive(Debug)]
pub(crate) struct Http {
    client: reqwest::Client,
    address: Address,
    name: Arc<str>,
    limits: Limits,
    gate: Arc<Semaphore>,
    observer: Arc<dyn CallObserver>,
}

impl Http {
    pub(crate) fn new(
        address: Address,
        trust: &Trust,
        user_agent: &str,
        limits: Limits,
        observer: Arc<dyn CallObserver>,
    ) -> Result<Self, Error> {
        let name: Arc<str> = address.to_string().into();
        let bad = |why: String| BadTrustSnafu { address: &*name, why }.build();
        let tls = client_config(trust).map_err(bad)?;
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .http1_only()
            .https_only(true)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(user_agent)
            .connect_timeout(limits.connect)
            .tcp_keepalive(Duration::from_secs(30))
            .pool_idle_timeout(Duration::from_secs(55))
            .pool_max_idle_per_host(limits.concurrency)
            .build()
            .map_err(|e| bad(e.to_string()))?;
        let gate = Arc::new(Semaphore::new(limits.concurrency.max(1)));
        Ok(Self { client, address, name, limits, gate, observer })
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The vCenter's name, for errors.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Sends a request and returns once the head of the reply is there.
    pub(crate) async fn send(&self, outgoing: Outgoing<'_>) -> Result<Incoming, Error> {
        let until = Instant::now() + outgoing.within;
        let permit = if outgoing.queues {
            let gone = |_| Error::ShutDown { address: self.name.to_string() };
            let turn = timeout_at(until, Arc::clone(&self.gate).acquire_owned()).await;
            let late = |_| self.timeout(outgoing.name, outgoing.within);
            Some(turn.map_err(late)?.map_err(gone)?)
        } else {
            None
        };
        let mut observed = Observed::start(&self.observer, &self.name, outgoing.name);
        let mut request = self.client.request(outgoing.verb, self.address.url(outgoing.path));
        for (name, value) in outgoing.headers {
            request = request.header(name, value);
        }
        if let Some(body) = outgoing.body {
            request = request.body(Bytes::from_owner(body));
        }
        let failed = |observed: &mut Observed| observed.set(Outcome::Failed);
        let response = match timeout_at(until, request.send()).await {
            Err(_) => {
                failed(&mut observed);
                return Err(self.timeout(outgoing.name, outgoing.within));
            }
            Ok(Err(error)) => {
                failed(&mut observed);
                return Err(self.classify(outgoing.name, outgoing.within, error));
            }
            Ok(Ok(response)) => response,
        };
        let limit = outgoing.size.limit(&self.limits);
        Ok(Incoming {
            response,
            address: Arc::clone(&self.name),
            method: outgoing.name.to_owned(),
            observed,
            _permit: permit,
            until,
            within: outgoing.within,
            idle: outgoing.idle.unwrap_or(self.limits.idle),
            left: limit,
            limit,
        })
    }

    fn timeout(&self, method: &str, after: Duration) -> Error {
        Error::Timeout { address: self.name.to_string(), method: method.to_owned(), after }
    }

    fn classify(&self, method: &str, within: Duration, error: reqwest::Error) -> Error {
        let address = self.name.to_string();
        if let Some(refused) = find::<CertificateRefused>(&error) {
            return Error::Certificate { address, refused: refused.clone() };
        }
        let not_tls = matches!(
            find::<rustls::Error>(&error),
            Some(rustls::Error::InvalidMessage(
                InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion
            ))
        );
        let is_connect = error.is_connect();
        let is_timeout = error.is_timeout();
        let unresolved = is_connect && says(&error, "dns error");
        let proxy = if is_connect { refusal_of_proxy(&error) } else { None };
        let source = Arc::new(error.without_url());
        if let Some(refusal) = proxy {
            return Error::Proxy { address, refusal, source };
        }
        match (is_connect, is_timeout) {
            _ if not_tls => Error::NotTls { address, source },
            _ if unresolved => Error::Unresolvable { address, source },
            (true, _) => Error::Unreachable { address, source },
            (_, true) => self.timeout(method, within),
            _ => Error::Dropped { address, method: method.to_owned(), source },
        }
    }
}

/// A reply that is arriving. The call counts as running until this is dropped.
#[derive(Debug)]
pub(crate) struct Incoming {
    response: reqwest::Response,
    address: Arc<str>,
    method: String,
    observed: Observed,
    _permit: Option<OwnedSemaphorePermit>,
    until: Instant,
    within: Duration,
    idle: Duration,
    left: usize,
    limit: usize,
}

impl Incoming {
    pub(crate) fn status(&self) -> StatusCode {
        self.response.status()
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    /// Says how the call ended; without a word it counts as cancelled.
    pub(crate) fn ended(&mut self, outcome: Outcome) {
        self.observed.set(outcome);
    }

    /// The next piece of the body, or `None` at its end.
    pub(crate) async fn chunk(&mut self) -> Result<Option<impl AsRef<[u8]> + use<>>, Error> {
        let until = self.until.min(Instant::now() + self.idle);
        let (address, method) = (self.address.to_string(), self.method.clone());
        let failure = match timeout_at(until, self.response.chunk()).await {
            Ok(Ok(Some(bytes))) if bytes.len() > self.left => {
                Error::TooLarge { address, method, limit: self.limit }
            }
            Ok(Ok(chunk)) => {
                self.left -= chunk.as_ref().map_or(0, |bytes| AsRef::<[u8]>::as_ref(bytes).len());
                return Ok(chunk);
            }
            Ok(Err(error)) => {
                Error::Dropped { address, method, source: Arc::new(error.without_url()) }
            }
            Err(_) => Error::Timeout { address, method, after: self.within.min(self.idle) },
        };
        self.ended(Outcome::Failed);
        Err(failure)
    }

    /// The whole body as text; wiped when it is dropped, for it may hold the id of a session.
    pub(crate) async fn text(&mut self) -> Result<Zeroizing<String>, Error> {
        // Room for all of it: text that grows leaves copies of itself behind.
        let announced = self.response.content_length().and_then(|n| usize::try_from(n).ok());
        let mut body = Vec::with_capacity(announced.unwrap_or(4096).min(self.limit).min(1 << 20));
        while let Some(chunk) = self.chunk().await? {
            body.extend_from_slice(chunk.as_ref());
        }
        String::from_utf8(body).map(Zeroizing::new).map_err(|_| self.unreadable(XmlError::NotText))
    }

    /// How long the reply asks to be left alone: `Retry-After` in seconds. A date in its place is
    /// passed over; the clocks would have to agree.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        let value = self.response.headers().get(reqwest::header::RETRY_AFTER)?.to_str().ok()?;
        value.trim().parse().ok().map(Duration::from_secs)
    }

    pub(crate) fn unreadable(&mut self, source: XmlError) -> Error {
        self.ended(Outcome::Failed);
        Error::Unreadable { address: self.address.to_string(), method: self.method.clone(), source }
    }
}

/// A header that is a secret: shown to nobody, and wiped with its last copy. `None` when it holds
/// what a header cannot.
pub(crate) fn secret_header(mut text: Zeroizing<String>) -> Option<HeaderValue> {
    let bytes = Bytes::from_owner(Zeroizing::new(std::mem::take(&mut *text).into_bytes()));
    let mut value = HeaderValue::from_maybe_shared(bytes).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Looks for an error of type `T` in the chain behind `error`. An I/O error hides the one it wraps
/// from `source`.
fn find<'a, T: std::error::Error + 'static>(
    error: &'a (dyn std::error::Error + 'static),
) -> Option<&'a T> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<T>() {
            return Some(found);
        }
        if let Some(rustls::Error::InvalidCertificate(rustls::CertificateError::Other(other))) =
            error.downcast_ref()
            && let Some(found) = other.0.downcast_ref::<T>()
        {
            return Some(found);
        }
        if let Some(inner) =
            error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref)
        {
            return find::<T>(inner);
        }
        next = error.source();
    }
    None
}

/// Whether any error in the chain says `words`: the only way the HTTP library tells a failed name
/// lookup.
fn says(error: &(dyn std::error::Error + 'static), words: &str) -> bool {
    std::iter::successors(Some(error), |e| e.source()).any(|e| e.to_string().contains(words))
}

/// What the proxy in between said, if it is the proxy that did not let us through. The HTTP library
/// tells it in words only.
fn refusal_of_proxy(error: &(dyn std::error::Error + 'static)) -> Option<ProxyRefusal> {
    if !says(error, "tunnel error: ") {
        return None;
    }
    Some(if says(error, "proxy authorization required") {
        ProxyRefusal::Authentication
    } else if says(error, "tunnel error: unsuccessful") {
        ProxyRefusal::Forbidden
    } else {
        ProxyRefusal::Unreachable
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::observe::Unobserved;

    #[tokio::test]
    async fn waiting_for_ones_turn_counts() {
        let limits = Limits { concurrency: 1, ..Limits::default() };
        let address = "localhost:9".parse().unwrap();
        let http =
            Http::new(address, &Trust::Insecure, "test", limits, Arc::new(Unobserved)).unwrap();
        let _taken = http.gate.acquire().await.unwrap();
        let outgoing = Outgoing {
            name: "Anything",
            verb: Method::GET,
            path: "/",
            headers: Vec::new(),
            body: None,
            within: Duration::from_millis(20),
            idle: None,
            queues: true,
            size: Size::Whole,
        };
        let sent = tokio::time::timeout(Duration::from_secs(20), http.send(outgoing)).await;
        let error = sent.expect("it does not wait for ever").unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
    }
}
