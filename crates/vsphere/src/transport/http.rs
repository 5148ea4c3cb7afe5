//! One pooled HTTP client per vCenter, with limits on time, size and concurrency.

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
use super::observe::{CallObserver, ObservedCall, Outcome};
use crate::error::{BadTrustSnafu, Error, ProxyRefusal};
use crate::tls::{CertificateRefused, Trust, client_config};
use crate::xml::XmlError;

/// Timeouts and size limits. The defaults suit a vCenter on the same continent.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The timeout for opening a connection.
    pub connect: Duration,
    /// The timeout for a whole call, from waiting for its turn to the last byte of the reply.
    pub call: Duration,
    /// The timeout between two chunks of a reply.
    pub idle: Duration,
    /// How long vCenter can block a watch that has nothing to report. A watch on a quiet vCenter
    /// makes one call in this time.
    pub wait: Duration,
    /// The maximum number of concurrent calls, not counting watches.
    pub concurrency: usize,
    /// The maximum size of a streamed reply, in bytes.
    pub reply: usize,
    /// The maximum size of a reply that is held in memory as a whole, in bytes. Documents and REST
    /// objects that are always small have a fixed limit of 1 MiB.
    pub text: usize,
    /// The maximum number of attempts for a read.
    pub attempts: u32,
    /// The pause before the second attempt. It doubles with each further attempt.
    pub pause: Duration,
    /// The maximum pause between attempts, also for a watch that reconnects.
    pub longest_pause: Duration,
    /// The pause after a login without an answer, because vCenter may have counted a wrong
    /// password. Each further one quadruples the pause, up to five minutes. New credentials end it.
    pub login_backoff: Duration,
    /// The client touches an idle SOAP session after this time, so that vCenter does not end it.
    pub keep_alive: Duration,
    /// The same for the REST session, which vCenter ends earlier.
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
            login_backoff: Duration::from_secs(5),
            keep_alive: Duration::from_mins(10),
            rest_keep_alive: Duration::from_mins(4),
        }
    }
}

/// The size class of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplySize {
    /// A single object or document.
    Small,
    /// A reply that is held in memory as a whole.
    Whole,
    /// A list that is read as it arrives.
    Streamed,
}

impl ReplySize {
    const SMALL: usize = 1 << 20;

    fn limit(self, limits: &Limits) -> usize {
        match self {
            Self::Small => Self::SMALL.min(limits.text),
            Self::Whole => limits.text,
            Self::Streamed => limits.reply,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
    /// The name of the call for observers and errors.
    pub(crate) name: &'a str,
    pub(crate) verb: Method,
    pub(crate) path: &'a str,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    /// Wiped after sending, because a login contains the password.
    pub(crate) body: Option<Zeroizing<String>>,
    pub(crate) within: Duration,
    /// Overrides [`Limits::idle`].
    pub(crate) idle: Option<Duration>,
    /// Whether the call waits for its turn under [`Limits::concurrency`]. Waits for updates and
    /// logouts do not.
    pub(crate) queues: bool,
    pub(crate) size: ReplySize,
}

/// The HTTP client of one vCenter.
#[derive(Debug)]
pub(crate) struct Http {
    client: reqwest::Client,
    address: Address,
    name: Arc<str>,
    limits: Limits,
    call_permits: Arc<Semaphore>,
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
        let invalid = |why: String| BadTrustSnafu { address: &*name, why }.build();
        let tls = client_config(trust).map_err(invalid)?;
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
            .map_err(|e| invalid(e.to_string()))?;
        let call_permits = Arc::new(Semaphore::new(limits.concurrency.max(1)));
        Ok(Self { client, address, name, limits, call_permits, observer })
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The vCenter's address, for errors.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Sends a request. Returns when the headers of the reply have arrived.
    pub(crate) async fn send(&self, outgoing: Outgoing<'_>) -> Result<Incoming, Error> {
        let until = Instant::now() + outgoing.within;
        let permit = if outgoing.queues {
            let gone = |_| Error::ShutDown { address: self.name.to_string() };
            let turn = timeout_at(until, Arc::clone(&self.call_permits).acquire_owned()).await;
            let late = |_| self.timeout(outgoing.name, outgoing.within);
            Some(turn.map_err(late)?.map_err(gone)?)
        } else {
            None
        };
        let mut observed = ObservedCall::start(&self.observer, &self.name, outgoing.name);
        let mut request = self.client.request(outgoing.verb, self.address.url(outgoing.path));
        for (name, value) in outgoing.headers {
            request = request.header(name, value);
        }
        if let Some(body) = outgoing.body {
            request = request.body(Bytes::from_owner(body));
        }
        let failed = |observed: &mut ObservedCall| observed.set(Outcome::Failed);
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
        let unresolved = is_connect && chain_contains(&error, "dns error");
        let proxy = if is_connect { proxy_refusal(&error) } else { None };
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

/// A reply that is arriving. The call counts as running until this value is dropped.
#[derive(Debug)]
pub(crate) struct Incoming {
    response: reqwest::Response,
    address: Arc<str>,
    method: String,
    observed: ObservedCall,
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

    /// Sets the outcome of the call. Without it, the call counts as cancelled.
    pub(crate) fn set_outcome(&mut self, outcome: Outcome) {
        self.observed.set(outcome);
    }

    /// The next chunk of the body, or `None` at the end.
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
        self.set_outcome(Outcome::Failed);
        Err(failure)
    }

    /// The whole body as text. It is wiped on drop, because it may contain a session id.
    pub(crate) async fn text(&mut self) -> Result<Zeroizing<String>, Error> {
        // Allocates the whole size at once, because a buffer that grows leaves copies behind in
        // memory.
        let announced = self.response.content_length().and_then(|n| usize::try_from(n).ok());
        let mut body = Vec::with_capacity(announced.unwrap_or(4096).min(self.limit).min(1 << 20));
        while let Some(chunk) = self.chunk().await? {
            body.extend_from_slice(chunk.as_ref());
        }
        String::from_utf8(body).map(Zeroizing::new).map_err(|_| self.unreadable(XmlError::NotText))
    }

    /// The `Retry-After` header in seconds. Ignores a date, because it needs synchronized clocks.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        let value = self.response.headers().get(reqwest::header::RETRY_AFTER)?.to_str().ok()?;
        value.trim().parse().ok().map(Duration::from_secs)
    }

    pub(crate) fn unreadable(&mut self, source: XmlError) -> Error {
        self.set_outcome(Outcome::Failed);
        Error::Unreadable { address: self.address.to_string(), method: self.method.clone(), source }
    }
}

/// A header with a secret. It is hidden from logs and wiped with its last copy. Returns `None` if
/// the text is not a valid header value.
pub(crate) fn secret_header(mut text: Zeroizing<String>) -> Option<HeaderValue> {
    let bytes = Bytes::from_owner(Zeroizing::new(std::mem::take(&mut *text).into_bytes()));
    let mut value = HeaderValue::from_maybe_shared(bytes).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Finds an error of type `T` in the error chain. Looks into I/O errors explicitly, because their
/// `source` skips the wrapped error.
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

/// Whether any message in the error chain contains `text`. The HTTP library reports some failures
/// only as text, such as a failed DNS lookup.
fn chain_contains(error: &(dyn std::error::Error + 'static), text: &str) -> bool {
    std::iter::successors(Some(error), |e| e.source()).any(|e| e.to_string().contains(text))
}

/// Why the proxy did not open the connection, if the proxy is the cause. The HTTP library reports
/// this only as text.
fn proxy_refusal(error: &(dyn std::error::Error + 'static)) -> Option<ProxyRefusal> {
    if !chain_contains(error, "tunnel error: ") {
        return None;
    }
    Some(if chain_contains(error, "proxy authorization required") {
        ProxyRefusal::Authentication
    } else if chain_contains(error, "tunnel error: unsuccessful") {
        ProxyRefusal::Forbidden
    } else {
        ProxyRefusal::Unreachable
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::observe::NoObserver;

    #[tokio::test]
    async fn waiting_for_a_turn_counts_towards_the_timeout() {
        let limits = Limits { concurrency: 1, ..Limits::default() };
        let address = "localhost:9".parse().unwrap();
        let http =
            Http::new(address, &Trust::Insecure, "test", limits, Arc::new(NoObserver)).unwrap();
        let _taken = http.call_permits.acquire().await.unwrap();
        let outgoing = Outgoing {
            name: "Anything",
            verb: Method::GET,
            path: "/",
            headers: Vec::new(),
            body: None,
            within: Duration::from_millis(20),
            idle: None,
            queues: true,
            size: ReplySize::Whole,
        };
        let sent = tokio::time::timeout(Duration::from_secs(20), http.send(outgoing)).await;
        let error = sent.expect("the call does not wait forever").unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
    }
}
