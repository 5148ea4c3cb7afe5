//! One SOAP call on the wire: no session, no second attempt. Everything above is built from this.

use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, COOKIE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method as Verb, StatusCode};
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::OnceCell;
use tracing::instrument;
use zeroize::Zeroizing;

use crate::about::ServiceContent;
use crate::error::Error;
use crate::moref::MoRef;
use crate::soap::Fault;
use crate::soap::envelope::{self, Args, Reply, open_response};
use crate::transport::body_trace::{self, ReplyTrace};
use crate::transport::http::{Http, Incoming, Outgoing, Size, secret_header};
use crate::transport::observe::Outcome;
use crate::version::{ApiVersion, negotiate, service_versions};
use crate::xml::XmlError;
use crate::xml::codec::Field;
use crate::xml::reader::Reader;
use crate::xml::stream::Stream;

/// A method: where it lives and what a second attempt would mean.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Method {
    pub(crate) name: &'static str,
    pub(crate) service: Service,
    pub(crate) nature: Nature,
}

/// What a call does, which decides whether it may be tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nature {
    /// Reads. May be repeated.
    Read,
    /// Changes something or starts a task. Repeated only when vCenter certainly never saw it.
    Change,
    /// Reads, and may take as long as vCenter has nothing to say.
    Wait,
    /// Ends the session. Never repeated, and does not wait for its turn: those in front of it may
    /// be the reason to leave.
    Leave,
}

/// The services behind one vCenter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    Vim,
    /// Container volumes and vSAN.
    Vsan,
    /// Storage policies.
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
        Self { name, service: Service::Vim, nature: Nature::Read }
    }

    pub(crate) const fn change(name: &'static str) -> Self {
        Self { name, service: Service::Vim, nature: Nature::Change }
    }

    pub(crate) const fn wait(name: &'static str) -> Self {
        Self { name, service: Service::Vim, nature: Nature::Wait }
    }

    pub(crate) const fn leave(name: &'static str) -> Self {
        Self { name, service: Service::Vim, nature: Nature::Leave }
    }

    pub(crate) const fn of(mut self, service: Service) -> Self {
        self.service = service;
        self
    }
}

/// A call about to be made.
struct Request<'a> {
    method: Method,
    this: &'a MoRef,
    args: Args<'a>,
    cookie: Option<&'a SecretString>,
    size: Size,
}

/// The connection to one vCenter, without a session.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) http: Http,
    greeting: RwLock<Option<Arc<Greeting>>>,
    /// The instance uuid of the vCenter first met here. No other is spoken to.
    instance: OnceLock<String>,
}

/// What vCenter says of itself before anybody has logged in.
#[derive(Debug)]
pub(crate) struct Greeting {
    pub(crate) content: ServiceContent,
    /// vCenter's version.
    pub(crate) api: ApiVersion,
    /// The version spoken with it.
    spoken: ApiVersion,
    /// The same for the vSAN service, in that service's own way of counting; asked for when it is
    /// first called, so that nobody else depends on it.
    vsan: OnceCell<String>,
}

impl Wire {
    pub(crate) fn new(http: Http) -> Self {
        Self { http, greeting: RwLock::new(None), instance: OnceLock::new() }
    }

    pub(crate) fn name(&self) -> &str {
        self.http.name()
    }

    /// What vCenter last said of itself. [`Wire::greet`] comes before anything else, so it is
    /// always there.
    pub(crate) fn greeting(&self) -> Result<Arc<Greeting>, Error> {
        let greeting = self.greeting.read().unwrap_or_else(PoisonError::into_inner).clone();
        greeting.ok_or_else(|| self.not_vcenter("it has not introduced itself"))
    }

    /// Asks vCenter what it is. Finds out about everything that is not a vCenter of a supported
    /// version, or not the one it was the first time. Comes before every password.
    pub(crate) async fn greet(&self) -> Result<(), Error> {
        let document = self.get("/sdk/vimServiceVersions.xml").await?;
        let offered = service_versions(&document, "urn:vim25")
            .map_err(|_| self.not_vcenter(&look_of(&document)))?;
        let spoken = negotiate(&offered);
        let this = MoRef::new("ServiceInstance", "ServiceInstance");
        let method = Method::read("RetrieveServiceContent");
        let content: ServiceContent = self.once_as(spoken, method, &this, &[], None).await?;
        let about = &content.about;
        if about.api_type != "VirtualCenter" {
            return Err(Error::Esxi {
                address: self.name().to_owned(),
                product: about.full_name.clone(),
            });
        }
        let api = about.api_version.parse().unwrap_or(spoken);
        if api < ApiVersion::V6_7U3 {
            let found = about.api_version.clone();
            return Err(Error::TooOld {
                address: self.name().to_owned(),
                found,
                needed: "6.7.3 (6.7 Update 3)",
            });
        }
        self.recognize(about.instance_uuid.as_deref())?;
        let greeting = Greeting { content, api, spoken, vsan: OnceCell::new() };
        *self.greeting.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(greeting));
        Ok(())
    }

    /// Compares a vCenter with the one first met; the first is remembered.
    fn recognize(&self, instance: Option<&str>) -> Result<(), Error> {
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

    /// The version to speak with the vSAN service: the newest it offers, or the oldest there is when
    /// it is so old that it has no list.
    async fn vsan_version(&self) -> Result<String, Error> {
        let greeting = self.greeting()?;
        let ask = async || {
            let offered = self.find("/sdk/vsanServiceVersions.xml").await?;
            let versions = offered.and_then(|text| service_versions(&text, "urn:vsan").ok());
            let newest = versions.and_then(|versions| versions.into_iter().next());
            Ok(newest.unwrap_or_else(|| "vSAN 6.7U3".to_owned()))
        };
        greeting.vsan.get_or_try_init(ask).await.cloned()
    }

    /// A document that needs no session and is always there.
    async fn get(&self, path: &str) -> Result<Zeroizing<String>, Error> {
        let found = self.find(path).await?;
        found.ok_or_else(|| self.not_vcenter("it answers with HTTP status 404"))
    }

    /// A document that needs no session; `None` when there is none of this name.
    async fn find(&self, path: &str) -> Result<Option<Zeroizing<String>>, Error> {
        let outgoing = Outgoing {
            name: path,
            verb: Verb::GET,
            path,
            headers: Vec::new(),
            body: None,
            within: self.http.limits().call,
            idle: None,
            queues: true,
            size: Size::Small,
        };
        let mut incoming = self.http.send(outgoing).await?;
        if incoming.status() != StatusCode::OK {
            incoming.ended(Outcome::Refused);
            let missing = incoming.status() == StatusCode::NOT_FOUND;
            return if missing { Ok(None) } else { Err(self.by_status(&incoming)) };
        }
        let text = incoming.text().await?;
        incoming.ended(Outcome::Done);
        Ok(Some(text))
    }

    /// The call, its whole reply read at once. `cookie` is the session's.
    pub(crate) async fn once<R: Field>(
        &self,
        method: Method,
        this: &MoRef,
        args: Args<'_>,
        cookie: Option<&SecretString>,
    ) -> Result<R, Error> {
        let greeting = self.greeting()?;
        self.once_as(greeting.spoken, method, this, args, cookie).await
    }

    #[instrument(level = "debug", name = "call", skip_all, fields(vcenter = self.name(), method = method.name))]
    async fn once_as<R: Field>(
        &self,
        spoken: ApiVersion,
        method: Method,
        this: &MoRef,
        args: Args<'_>,
        cookie: Option<&SecretString>,
    ) -> Result<R, Error> {
        let request = Request { method, this, args, cookie, size: Size::Whole };
        let mut incoming = self.post(spoken, request).await?;
        self.read_reply(method, &mut incoming).await
    }

    /// Logs in: the reply's cookie is the session.
    ///
    /// # Errors
    /// With the cookie, which comes before the reply and may be all that arrives.
    pub(crate) async fn once_with_cookie<R: Field>(
        &self,
        method: Method,
        this: &MoRef,
        args: Args<'_>,
    ) -> Result<(R, SecretString), (Error, Option<SecretString>)> {
        let request = Request { method, this, args, cookie: None, size: Size::Small };
        let sent = async {
            let greeting = self.greeting()?;
            self.post(greeting.spoken, request).await
        };
        let mut incoming = sent.await.map_err(|error| (error, None))?;
        let cookie = session_cookie(incoming.headers());
        match (self.read_reply(method, &mut incoming).await, cookie) {
            (Ok(reply), Some(cookie)) => Ok((reply, cookie)),
            (Ok(_), None) => Err((self.not_vcenter("it let us log in but gave no session"), None)),
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
                incoming.ended(Outcome::Done);
                Ok(value)
            }
            Ok(Reply::Fault(fault)) => {
                incoming.ended(Outcome::Refused);
                Err(self.fault(method.name, fault))
            }
            Err(XmlError::Unexpected { expected: "Envelope", .. }) => {
                incoming.ended(Outcome::Failed);
                Err(self.not_vcenter(&look_of(&text)))
            }
            Err(error) => Err(incoming.unreadable(error)),
        }
    }

    /// The call, its reply read while it arrives.
    #[instrument(level = "debug", name = "call", skip_all, fields(vcenter = self.name(), method = method.name))]
    pub(crate) async fn stream(
        &self,
        method: Method,
        this: &MoRef,
        args: Args<'_>,
        cookie: Option<&SecretString>,
    ) -> Result<ReplyStream, Error> {
        let greeting = self.greeting()?;
        let request = Request { method, this, args, cookie, size: Size::Streamed };
        let incoming = self.post(greeting.spoken, request).await?;
        let trace = ReplyTrace::new(self.name(), method.name);
        let mut reply = ReplyStream { incoming, stream: Stream::new(), trace };
        match reply.next(open_response).await? {
            None => Ok(reply),
            Some(fault) => {
                reply.incoming.ended(Outcome::Refused);
                Err(self.fault(method.name, fault))
            }
        }
    }

    async fn post(&self, spoken: ApiVersion, request: Request<'_>) -> Result<Incoming, Error> {
        let Request { method, this, args, cookie, size } = request;
        let service = method.service;
        let action = match service {
            Service::Vim => format!("{}/{spoken}", service.namespace()),
            Service::Vsan => format!("{}/{}", service.namespace(), self.vsan_version().await?),
            Service::Pbm => format!("{}/2.0", service.namespace()),
        };
        let secret = cookie.map(ExposeSecret::expose_secret);
        // The cookie comes in quotes; the header wants what is between them.
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
        let waits = method.nature == Nature::Wait;
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
            queues: !matches!(method.nature, Nature::Wait | Nature::Leave),
            size,
        };
        let mut incoming = self.http.send(outgoing).await?;
        let status = incoming.status();
        // A fault comes with status 500; so may the error page of something in between.
        let is_soap = status == StatusCode::OK
            || (status == StatusCode::INTERNAL_SERVER_ERROR && !is_page(incoming.headers()));
        if is_soap {
            return Ok(incoming);
        }
        incoming.ended(Outcome::Failed);
        Err(self.by_status(&incoming))
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

    /// What an HTTP status without a SOAP reply means.
    fn by_status(&self, reply: &Incoming) -> Error {
        match reply.status().as_u16() {
            status @ (500 | 502 | 503 | 504) => {
                let (address, retry_after) = (self.name().to_owned(), reply.retry_after());
                Error::Unavailable { address, status, retry_after }
            }
            301 | 302 | 303 | 307 | 308 => {
                let to = reply.headers().get("location").and_then(|v| v.to_str().ok());
                let to = to.unwrap_or("elsewhere");
                self.not_vcenter(&format!(
                    "it sends us to {}",
                    to.chars().take(80).collect::<String>()
                ))
            }
            other => self.not_vcenter(&format!("it answers with HTTP status {other}")),
        }
    }
}

/// A reply that is read while it arrives.
#[derive(Debug)]
pub(crate) struct ReplyStream {
    incoming: Incoming,
    stream: Stream,
    /// Traces the beginning of the reply when it has been read, or when reading was given up.
    trace: ReplyTrace,
}

impl ReplyStream {
    /// Reads the next piece with `read`, which is called again from the start when the piece has
    /// not all arrived.
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

    /// Reads what is left, so that the connection can be used again.
    pub(crate) async fn finish(mut self) -> Result<(), Error> {
        while let Some(chunk) = self.incoming.chunk().await? {
            self.trace.record(chunk.as_ref());
        }
        self.incoming.ended(Outcome::Done);
        Ok(())
    }
}

fn is_page(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).is_some_and(|v| !v.contains("xml"))
}

/// The value of vCenter's session cookie.
fn session_cookie(headers: &HeaderMap) -> Option<SecretString> {
    headers.get_all("set-cookie").iter().find_map(|value| {
        let value = value.to_str().ok()?.strip_prefix("vmware_soap_session=")?;
        Some(SecretString::from(value.split(';').next()?.trim()))
    })
}

/// What a document looks like to somebody who expected something else.
fn look_of(document: &str) -> String {
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
