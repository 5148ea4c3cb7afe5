//! Single SOAP calls, without session handling or retries. Everything above builds on them.

use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, COOKIE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method as Verb, StatusCode};
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::OnceCell;
use tracing::instrument;
use zeroize::Zeroizing;

use crate::about::{PolicyService, ServiceContent};
use crate::error::Error;
use crate::moref::MoRef;
use crate::soap::Fault;
use crate::soap::envelope::{self, Args, Reply, open_response};
use crate::transport::body_trace::{self, ReplyTrace};
use crate::transport::http::{Http, Incoming, Outgoing, ReplySize, secret_header};
use crate::transport::observe::Outcome;
use crate::version::{ApiVersion, negotiate, service_versions};
use crate::xml::XmlError;
use crate::xml::codec::Field;
use crate::xml::reader::Reader;
use crate::xml::stream::Stream;

/// A SOAP method: its service, and whether a call can be retried.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Method {
    pub(crate) name: &'static str,
    pub(crate) service: Service,
    pub(crate) kind: CallKind,
}

/// The effect of a call, which decides whether it can be retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallKind {
    /// Reads only. Can be retried.
    Read,
    /// Changes an object or starts a task. Retried only if vCenter certainly never received the
    /// call.
    Change,
    /// Reads, and blocks until vCenter has something to report.
    Wait,
    /// Ends the session. Never retried. Does not wait for its turn behind calls that may be stuck.
    Logout,
}

/// The SOAP services of a vCenter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    Vim,
    /// Container volumes and vSAN.
    Vsan,
    Pbm,
}

impl Service {
    fn path(self) -> &'static str {
        match self {
            Self::Vim => "/sdk",
            Self::Vsan => "/vsanHealth",
            Self::Pbm => "/pbm",
        }
    }

    fn namespace(self) -> &'static str {
        match self {
            Self::Vim => "urn:vim25",
            Self::Vsan => "urn:vsan",
            Self::Pbm => "urn:pbm",
        }
    }
}

impl Method {
    pub(crate) const fn read(name: &'static str) -> Self {
        Self { name, service: Service::Vim, kind: CallKind::Read }
    }

    pub(crate) const fn change(name: &'static str) -> Self {
        Self { name, service: Service::Vim, kind: CallKind::Change }
    }

    pub(crate) const fn wait(name: &'static str) -> Self {
        Self { name, service: Service::Vim, kind: CallKind::Wait }
    }

    pub(crate) const fn logout(name: &'static str) -> Self {
        Self { name, service: Service::Vim, kind: CallKind::Logout }
    }

    pub(crate) const fn on(mut self, service: Service) -> Self {
        self.service = service;
        self
    }
}

struct Request<'a> {
    method: Method,
    this: &'a MoRef,
    args: Args<'a>,
    cookie: Option<&'a SecretString>,
    size: ReplySize,
}

/// The connection to one vCenter, below the session.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) http: Http,
    service_info: RwLock<Option<Arc<ServiceInfo>>>,
    /// The instance uuid of the first vCenter at this address. The client talks to no other.
    instance: OnceLock<String>,
}

/// The data that vCenter serves without a login.
#[derive(Debug)]
pub(crate) struct ServiceInfo {
    pub(crate) content: ServiceContent,
    pub(crate) api: ApiVersion,
    /// The API version used in requests.
    negotiated: ApiVersion,
    /// The version used with the vSAN service, which has its own version numbers. Read on first
    /// use, so that other calls do not depend on that service.
    vsan: OnceCell<String>,
    /// The managers of the policy service, which do not change while vCenter runs. Read on first use.
    pub(crate) policy: OnceCell<PolicyService>,
}

impl Wire {
    pub(crate) fn new(http: Http) -> Self {
        Self { http, service_info: RwLock::new(None), instance: OnceLock::new() }
    }

    pub(crate) fn name(&self) -> &str {
        self.http.name()
    }

    /// The result of the last [`Wire::discover`], which comes before any other call.
    pub(crate) fn service_info(&self) -> Result<Arc<ServiceInfo>, Error> {
        let service_info = self.service_info.read().unwrap_or_else(PoisonError::into_inner).clone();
        service_info.ok_or_else(|| self.not_vcenter("it has not described itself yet"))
    }

    /// Reads the server's version and identity. Fails if it is not a supported vCenter, or not the
    /// same vCenter as the first time. The client calls this before it sends a password.
    pub(crate) async fn discover(&self) -> Result<(), Error> {
        let document = self.get_document("/sdk/vimServiceVersions.xml").await?;
        let offered = service_versions(&document, "urn:vim25")
            .map_err(|_| self.not_vcenter(&describe_document(&document)))?;
        let negotiated = negotiate(&offered);
        let this = MoRef::new("ServiceInstance", "ServiceInstance");
        let method = Method::read("RetrieveServiceContent");
        let content: ServiceContent =
            self.call_once_as(negotiated, method, &this, &[], None).await?;
        let about = &content.about;
        if about.api_type != "VirtualCenter" {
            return Err(Error::Esxi {
                address: self.name().to_owned(),
                product: about.full_name.clone(),
            });
        }
        let api = about.api_version.parse().unwrap_or(negotiated);
        if api < ApiVersion::V6_7U3 {
            let found = about.api_version.clone();
            return Err(Error::TooOld {
                address: self.name().to_owned(),
                found,
                needed: "6.7.3 (6.7 Update 3)",
            });
        }
        self.check_instance(about.instance_uuid.as_deref())?;
        let service_info = ServiceInfo {
            content,
            api,
            negotiated,
            vsan: OnceCell::new(),
            policy: OnceCell::new(),
        };
        *self.service_info.write().unwrap_or_else(PoisonError::into_inner) =
            Some(Arc::new(service_info));
        Ok(())
    }

    /// Checks that this is the same vCenter as before. Remembers the first one.
    fn check_instance(&self, instance: Option<&str>) -> Result<(), Error> {
        let Some(found) = instance.filter(|uuid| !uuid.is_empty()) else { return Ok(()) };
        let expected = self.instance.get_or_init(|| found.to_owned());
        if expected.eq_ignore_ascii_case(found) {
            return Ok(());
        }
        Err(Error::OtherVcenter {
            address: self.name().to_owned(),
            expected: expected.clone(),
            found: found.to_owned(),
        })
    }

    /// The version to use with the vSAN service: the newest it offers. A service without a version
    /// list gets the oldest version.
    async fn vsan_version(&self) -> Result<String, Error> {
        let service_info = self.service_info()?;
        let ask = async || {
            let offered = self.find_document("/sdk/vsanServiceVersions.xml").await?;
            let versions = offered.and_then(|text| service_versions(&text, "urn:vsan").ok());
            let newest = versions.and_then(|versions| versions.into_iter().next());
            Ok(newest.unwrap_or_else(|| "vSAN 6.7U3".to_owned()))
        };
        service_info.vsan.get_or_try_init(ask).await.cloned()
    }

    /// Fetches a document that needs no session and that every vCenter has.
    async fn get_document(&self, path: &str) -> Result<Zeroizing<String>, Error> {
        let found = self.find_document(path).await?;
        found.ok_or_else(|| self.not_vcenter("it answers with HTTP status 404"))
    }

    /// Fetches a document that needs no session. Returns `None` for HTTP status 404.
    async fn find_document(&self, path: &str) -> Result<Option<Zeroizing<String>>, Error> {
        let outgoing = Outgoing {
            name: path,
            verb: Verb::GET,
            path,
            headers: Vec::new(),
            body: None,
            within: self.http.limits().call,
            idle: None,
            queues: true,
            size: ReplySize::Small,
        };
        let mut incoming = self.http.send(outgoing).await?;
        if incoming.status() != StatusCode::OK {
            incoming.set_outcome(Outcome::Refused);
            let missing = incoming.status() == StatusCode::NOT_FOUND;
            return if missing { Ok(None) } else { Err(self.status_error(&incoming)) };
        }
        let text = incoming.text().await?;
        incoming.set_outcome(Outcome::Done);
        Ok(Some(text))
    }

    /// Makes one call and reads the whole reply. `cookie` is the session cookie.
    pub(crate) async fn call_once<R: Field>(
        &self,
        method: Method,
        this: &MoRef,
        args: Args<'_>,
        cookie: Option<&SecretString>,
    ) -> Result<R, Error> {
        let service_info = self.service_info()?;
        self.call_once_as(service_info.negotiated, method, this, args, cookie).await
    }

    #[instrument(level = "debug", name = "call", skip_all, fields(vcenter = self.name(), method = method.name))]
    async fn call_once_as<R: Field>(
        &self,
        negotiated: ApiVersion,
        method: Method,
        this: &MoRef,
        args: Args<'_>,
        cookie: Option<&SecretString>,
    ) -> Result<R, Error> {
        let request = Request { method, this, args, cookie, size: ReplySize::Whole };
        let mut incoming = self.post(negotiated, request).await?;
        self.read_reply(method, &mut incoming).await
    }

    /// Logs in. The cookie of the reply is the session.
    ///
    /// # Errors
    /// Includes the cookie, which arrives before the reply and may be all that arrives.
    pub(crate) async fn log_in<R: Field>(
        &self,
        method: Method,
        this: &MoRef,
        args: Args<'_>,
    ) -> Result<(R, SecretString), (Error, Option<SecretString>)> {
        let request = Request { method, this, args, cookie: None, size: ReplySize::Small };
        let sent = async {
            let service_info = self.service_info()?;
            self.post(service_info.negotiated, request).await
        };
        let mut incoming = sent.await.map_err(|error| (error, None))?;
        let cookie = session_cookie(incoming.headers());
        match (self.read_reply(method, &mut incoming).await, cookie) {
            (Ok(reply), Some(cookie)) => Ok((reply, cookie)),
            (Ok(_), None) => Err((
                self.not_vcenter("it accepted the login but returned no session cookie"),
                None,
            )),
            (Err(error), cookie) => Err((error, cookie)),
        }
    }

    async fn read_reply<R: Field>(
        &self,
        method: Method,
        incoming: &mut Incoming,
    ) -> Result<R, Error> {
        let text = incoming.text().await?;
        body_trace::reply(self.name(), method.name, &text);
        match envelope::reply(&text) {
            Ok(Reply::Returned(value)) => {
                incoming.set_outcome(Outcome::Done);
                Ok(value)
            }
            Ok(Reply::Fault(fault)) => {
                incoming.set_outcome(Outcome::Refused);
                Err(self.fault(method.name, fault))
            }
            Err(XmlError::Unexpected { expected: "Envelope", .. }) => {
                incoming.set_outcome(Outcome::Failed);
                Err(self.not_vcenter(&describe_document(&text)))
            }
            Err(error) => Err(incoming.unreadable(error)),
        }
    }

    /// Makes one call and reads the reply as it arrives.
    #[instrument(level = "debug", name = "call", skip_all, fields(vcenter = self.name(), method = method.name))]
    pub(crate) async fn stream(
        &self,
        method: Method,
        this: &MoRef,
        args: Args<'_>,
        cookie: Option<&SecretString>,
    ) -> Result<ReplyStream, Error> {
        let service_info = self.service_info()?;
        let request = Request { method, this, args, cookie, size: ReplySize::Streamed };
        let incoming = self.post(service_info.negotiated, request).await?;
        let trace = ReplyTrace::new(self.name(), method.name);
        let mut reply = ReplyStream { incoming, stream: Stream::new(), trace };
        match reply.next(open_response).await? {
            None => Ok(reply),
            Some(fault) => {
                reply.incoming.set_outcome(Outcome::Refused);
                Err(self.fault(method.name, fault))
            }
        }
    }

    async fn post(&self, negotiated: ApiVersion, request: Request<'_>) -> Result<Incoming, Error> {
        let Request { method, this, args, cookie, size } = request;
        let service = method.service;
        let action = match service {
            Service::Vim => format!("{}/{negotiated}", service.namespace()),
            Service::Vsan => format!("{}/{}", service.namespace(), self.vsan_version().await?),
            Service::Pbm => format!("{}/2.0", service.namespace()),
        };
        let secret = cookie.map(ExposeSecret::expose_secret);
        // The cookie has quotes; the header needs the text between them.
        let in_header =
            if service == Service::Vim { None } else { secret.map(|c| c.trim_matches('"')) };
        let namespace = service.namespace();
        let body = Zeroizing::new(envelope::request(namespace, method.name, this, args, in_header));
        body_trace::request(self.name(), method.name, &body);
        let mut headers = vec![(CONTENT_TYPE, HeaderValue::from_static("text/xml; charset=utf-8"))];
        if let Ok(action) = HeaderValue::from_str(&action) {
            headers.push((HeaderName::from_static("soapaction"), action));
        }
        let cookie = secret.map(|c| Zeroizing::new(format!("vmware_soap_session={c}")));
        headers.extend(cookie.and_then(secret_header).map(|cookie| (COOKIE, cookie)));
        let limits = self.http.limits();
        let waits = method.kind == CallKind::Wait;
        let within = limits.call + if waits { limits.wait } else { Duration::ZERO };
        let (verb, path) = (Verb::POST, service.path());
        let outgoing = Outgoing {
            name: method.name,
            verb,
            path,
            headers,
            body: Some(body),
            within,
            idle: waits.then_some(within),
            queues: !matches!(method.kind, CallKind::Wait | CallKind::Logout),
            size,
        };
        let mut incoming = self.http.send(outgoing).await?;
        let status = incoming.status();
        // A SOAP fault has status 500, but so may an error page of a proxy.
        let is_soap = status == StatusCode::OK
            || (status == StatusCode::INTERNAL_SERVER_ERROR && !is_not_xml(incoming.headers()));
        if is_soap {
            return Ok(incoming);
        }
        incoming.set_outcome(Outcome::Failed);
        Err(self.status_error(&incoming))
    }

    pub(crate) fn fault(&self, method: &str, fault: Fault) -> Error {
        Error::Fault {
            address: self.name().to_owned(),
            method: method.to_owned(),
            source: Box::new(fault),
        }
    }

    fn not_vcenter(&self, what: &str) -> Error {
        Error::NotVcenter { address: self.name().to_owned(), what: what.to_owned() }
    }

    /// The error for an HTTP status without a SOAP reply.
    fn status_error(&self, reply: &Incoming) -> Error {
        match reply.status().as_u16() {
            status @ (500 | 502 | 503 | 504) => {
                let (address, retry_after) = (self.name().to_owned(), reply.retry_after());
                Error::Unavailable { address, status, retry_after }
            }
            301 | 302 | 303 | 307 | 308 => {
                let to = reply.headers().get("location").and_then(|v| v.to_str().ok());
                let to = to.unwrap_or("elsewhere");
                self.not_vcenter(&format!(
                    "it redirects to {}",
                    to.chars().take(80).collect::<String>()
                ))
            }
            other => self.not_vcenter(&format!("it answers with HTTP status {other}")),
        }
    }
}

#[derive(Debug)]
pub(crate) struct ReplyStream {
    incoming: Incoming,
    stream: Stream,
    /// Traces the beginning of the reply on drop.
    trace: ReplyTrace,
}

impl ReplyStream {
    /// Reads the next element with `read`. Calls `read` again from the start of the element when
    /// more of it has arrived.
    pub(crate) async fn next<T>(
        &mut self,
        read: impl Fn(&mut Reader<'_>) -> Result<T, XmlError>,
    ) -> Result<T, Error> {
        loop {
            match self.stream.attempt(&read) {
                Ok(Some(value)) => return Ok(value),
                Ok(None) => match self.incoming.chunk().await? {
                    Some(chunk) => {
                        self.trace.record(chunk.as_ref());
                        self.stream
                            .feed(chunk.as_ref())
                            .map_err(|e| self.incoming.unreadable(e))?;
                    }
                    None => self.stream.end(),
                },
                Err(error) => return Err(self.incoming.unreadable(error)),
            }
        }
    }

    /// Reads the rest, so that the connection can be reused.
    pub(crate) async fn finish(mut self) -> Result<(), Error> {
        while let Some(chunk) = self.incoming.chunk().await? {
            self.trace.record(chunk.as_ref());
        }
        self.incoming.set_outcome(Outcome::Done);
        Ok(())
    }
}

fn is_not_xml(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).is_some_and(|v| !v.contains("xml"))
}

/// The value of vCenter's session cookie.
fn session_cookie(headers: &HeaderMap) -> Option<SecretString> {
    headers.get_all("set-cookie").iter().find_map(|value| {
        let value = value.to_str().ok()?.strip_prefix("vmware_soap_session=")?;
        Some(SecretString::from(value.split(';').next()?.trim()))
    })
}

/// Describes a document that is not a SOAP reply.
fn describe_document(document: &str) -> String {
    let head: String =
        document.trim_start().chars().take(200).collect::<String>().to_ascii_lowercase();
    if head.contains("<html") || head.contains("<!doctype html") {
        "it answers with a web page".to_owned()
    } else if document.trim().is_empty() {
        "it answers with an empty page".to_owned()
    } else {
        "it answers, but not as a vCenter does".to_owned()
    }
}
