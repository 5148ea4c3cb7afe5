//! The client of a registry: the distribution protocol of OCI.

use std::{
    array,
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use reqwest::{
    Certificate, Method, RequestBuilder, Response, StatusCode, Url,
    header::{self, HeaderMap},
};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use snafu::{OptionExt as _, ResultExt as _, ensure};

use crate::{
    authentication::{Challenge, basic},
    credentials::{Credentials, secret},
    digest::Digest,
    error::{
        Error, InterruptedSnafu, NoTokenSnafu, NotFoundSnafu, OtherDigestSnafu, RealmSnafu,
        RefusedSnafu, SetupSnafu, TooLargeSnafu, UnauthorizedSnafu, UnreachableSnafu,
        UploadPlaceSnafu,
    },
    manifest::{ACCEPTED, Descriptor, RawManifest},
    reference::Repository,
};

/// No manifest is larger; registries have the same limit.
const MAX_MANIFEST: u64 = 4 << 20;
/// No token is larger.
const MAX_TOKEN: u64 = 256 << 10;
/// How long a registry can stay silent.
const SILENCE: Duration = Duration::from_mins(1);
const CONNECT: Duration = Duration::from_secs(15);
/// The pauses before a request is sent again.
const PAUSES: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_secs(2), Duration::from_secs(5)];

/// How to reach registries.
#[derive(Clone, Debug, Default)]
pub struct ClientOptions {
    pub credentials: Credentials,
    /// Certificate authorities in PEM that are trusted in addition to those of the system.
    pub authorities: Option<Vec<u8>>,
    /// The proxy, instead of that in the environment variables `HTTPS_PROXY` and `HTTP_PROXY`.
    pub proxy: Option<String>,
    /// Connect without TLS.
    pub plain_http: bool,
}

/// A client of any number of registries.
pub struct Client {
    http: reqwest::Client,
    credentials: Credentials,
    scheme: &'static str,
    /// The value of the header `Authorization`, by repository and access.
    authorizations: Mutex<HashMap<(Repository, Access), SecretString>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Access {
    Pull,
    Push,
}

impl Access {
    fn scope(self, repository: &Repository) -> String {
        let actions = match self {
            Self::Pull => "pull",
            Self::Push => "pull,push",
        };
        format!("repository:{}:{actions}", repository.path)
    }
}

#[derive(Deserialize)]
struct Token {
    #[serde(default, deserialize_with = "secret")]
    token: Option<SecretString>,
    #[serde(default, deserialize_with = "secret")]
    access_token: Option<SecretString>,
}

/// Whether a registry has a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FoundBlob {
    Missing,
    Sized(u64),
    /// The registry has it and does not state its size, or a proxy removed that header.
    OfUnknownSize,
}

impl FoundBlob {
    /// Whether the registry has the blob, as far as it states.
    pub(crate) fn is_complete(self, size: u64) -> bool {
        match self {
            Self::Missing => false,
            Self::Sized(found) => found == size,
            Self::OfUnknownSize => true,
        }
    }
}

/// The content of a blob, from a certain byte on.
pub(crate) struct BlobContent {
    name: String,
    response: Response,
    /// Whether the content begins where it was asked to begin; otherwise it is the whole blob.
    pub(crate) is_continued: bool,
}

impl BlobContent {
    pub(crate) async fn next(&mut self) -> Result<Option<bytes::Bytes>, Error> {
        self.response.chunk().await.context(InterruptedSnafu { name: &self.name })
    }
}

impl Client {
    pub fn new(options: ClientOptions) -> Result<Self, Error> {
        let mut builder = reqwest::Client::builder()
            .connect_timeout(CONNECT)
            .read_timeout(SILENCE)
            .user_agent(concat!("vdo/", env!("CARGO_PKG_VERSION")));
        if let Some(pem) = &options.authorities {
            let what = "the file with certificate authorities";
            let authorities = Certificate::from_pem_bundle(pem).context(SetupSnafu { what })?;
            builder = builder.tls_certs_merge(authorities);
        }
        if let Some(proxy) = &options.proxy {
            let proxy = reqwest::Proxy::all(proxy).context(SetupSnafu { what: "the proxy" })?;
            builder = builder.proxy(proxy);
        }
        Ok(Self {
            http: builder.build().context(SetupSnafu { what: "the HTTP client" })?,
            credentials: options.credentials,
            scheme: if options.plain_http { "http" } else { "https" },
            authorizations: Mutex::default(),
        })
    }

    fn url(&self, repository: &Repository, rest: &str) -> String {
        // Docker Hub's API has another name.
        let host = match repository.host.as_str() {
            "docker.io" => "registry-1.docker.io",
            host => host,
        };
        format!("{}://{host}/v2/{}/{rest}", self.scheme, repository.path)
    }

    /// Fetches a manifest or an index by tag or by digest.
    pub(crate) async fn manifest(
        &self,
        repository: &Repository,
        which: &str,
    ) -> Result<RawManifest, Error> {
        let expected = which.parse::<Digest>().ok();
        let name = match expected {
            Some(_) => format!("{repository}@{which}"),
            None => format!("{repository}:{which}"),
        };
        let url = self.url(repository, &format!("manifests/{which}"));
        let accept = ACCEPTED.join(", ");
        let request = || self.http.get(&url).header(header::ACCEPT, &accept);
        let response = self.send(repository, Access::Pull, &name, request).await?;
        let headers = response.headers().clone();
        let bytes = bounded(&name, response, MAX_MANIFEST).await?;
        let found = Digest::from_bytes(&bytes);
        let announced = text(&headers, "docker-content-digest").and_then(|text| text.parse().ok());
        if let Some(expected) = expected.or(announced)
            && found != expected
        {
            let (expected, found) = (expected.to_string(), found.to_string());
            return OtherDigestSnafu { name, expected, found }.fail();
        }
        RawManifest::new(&name, bytes, text(&headers, header::CONTENT_TYPE.as_str()))
    }

    /// The digest of a manifest in the registry; `None` if the registry does not have it.
    pub(crate) async fn manifest_digest(
        &self,
        repository: &Repository,
        which: &str,
    ) -> Result<Option<Digest>, Error> {
        match self.manifest(repository, which).await {
            Ok(manifest) => Ok(Some(manifest.digest)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Begins to fetch a blob at a certain byte.
    pub(crate) async fn blob(
        &self,
        repository: &Repository,
        blob: &Descriptor,
        from: u64,
    ) -> Result<BlobContent, Error> {
        let name = format!("{repository}@{}", blob.digest);
        let url = self.url(repository, &format!("blobs/{}", blob.digest));
        let request = || match from {
            0 => self.http.get(&url),
            // With the end: not every registry understands a range without one.
            from => {
                let range = format!("bytes={from}-{}", blob.size.saturating_sub(1));
                self.http.get(&url).header(header::RANGE, range)
            }
        };
        let sent = self.send(repository, Access::Pull, &name, request).await;
        let response = match sent {
            // The registry does not continue: it sends the whole blob.
            Err(Error::Refused { status: StatusCode::RANGE_NOT_SATISFIABLE, .. }) => {
                let whole = || self.http.get(&url);
                self.send(repository, Access::Pull, &name, whole).await?
            }
            sent => sent?,
        };
        let range = text(response.headers(), header::CONTENT_RANGE.as_str()).unwrap_or_default();
        let is_continued = response.status() == StatusCode::PARTIAL_CONTENT
            && range.starts_with(&format!("bytes {from}-"));
        Ok(BlobContent { name, response, is_continued })
    }

    /// Whether the registry has a blob, and of which size.
    pub(crate) async fn find_blob(
        &self,
        repository: &Repository,
        digest: &Digest,
        access: Access,
    ) -> Result<FoundBlob, Error> {
        let name = format!("{repository}@{digest}");
        let url = self.url(repository, &format!("blobs/{digest}"));
        match self.send(repository, access, &name, || self.http.head(&url)).await {
            Ok(response) => {
                let length = text(response.headers(), header::CONTENT_LENGTH.as_str());
                let size = length.and_then(|length| length.parse().ok());
                Ok(size.map_or(FoundBlob::OfUnknownSize, FoundBlob::Sized))
            }
            Err(Error::NotFound { .. }) => Ok(FoundBlob::Missing),
            Err(error) => Err(error),
        }
    }

    /// Sends a blob. The registry checks its digest.
    pub(crate) async fn send_blob(
        &self,
        repository: &Repository,
        digest: &Digest,
        size: u64,
        body: impl Fn() -> reqwest::Body,
    ) -> Result<(), Error> {
        let name = format!("{repository}@{digest}");
        let url = self.url(repository, "blobs/uploads/");
        let empty = || self.http.post(&url);
        let response = self.send(repository, Access::Push, &name, empty).await?;
        let place = text(response.headers(), header::LOCATION.as_str());
        let place = place.and_then(|place| response.url().join(place).ok());
        let (status, message) = (response.status(), "it named no place for the upload");
        let place = place.context(RefusedSnafu { name: &name, status, message })?;
        let host = &repository.host;
        let shown = place.origin().ascii_serialization();
        let mut place = self.protected(place).context(UploadPlaceSnafu { host, place: shown })?;
        // A storage service knows the client by the address. The credentials are only for the registry.
        let is_registry = Url::parse(&url).is_ok_and(|url| url.origin() == place.origin());
        place.query_pairs_mut().append_pair("digest", &digest.to_string());
        let request = || {
            let request = self.http.put(place.clone());
            let request = request.header(header::CONTENT_TYPE, "application/octet-stream");
            request.header(header::CONTENT_LENGTH, size).body(body())
        };
        if is_registry {
            return self.send(repository, Access::Push, &name, request).await.map(drop);
        }
        let mut pauses = Pauses::new();
        loop {
            match send_anonymously(host, &name, request()).await {
                Ok(_) => return Ok(()),
                Err(error) => pauses.wait_after(error).await?,
            }
        }
    }

    /// Sends a manifest, under a tag or its digest.
    pub(crate) async fn send_manifest(
        &self,
        repository: &Repository,
        which: &str,
        manifest: &RawManifest,
    ) -> Result<(), Error> {
        let name = format!("the manifest {which} of {repository}");
        let url = self.url(repository, &format!("manifests/{which}"));
        let request = || {
            let request = self.http.put(&url);
            let request = request.header(header::CONTENT_TYPE, &manifest.media_type);
            request.body(manifest.bytes.clone())
        };
        match self.send(repository, Access::Push, &name, request).await {
            // A part of an index is missing.
            Err(Error::NotFound { name, message }) => {
                RefusedSnafu { name, status: StatusCode::NOT_FOUND, message }.fail()
            }
            sent => sent.map(drop),
        }
    }

    /// Sends a request, again after a passing failure, and with the credentials that the registry demands.
    async fn send(
        &self,
        repository: &Repository,
        access: Access,
        name: &str,
        request: impl Fn() -> RequestBuilder,
    ) -> Result<Response, Error> {
        let mut pauses = Pauses::new();
        loop {
            match self.send_once(repository, access, name, &request).await {
                Ok(response) => return Ok(response),
                Err(error) => pauses.wait_after(error).await?,
            }
        }
    }

    /// A registry with TLS must not lead to a connection without TLS.
    fn protected(&self, url: Url) -> Option<Url> {
        Some(url).filter(|url| url.scheme() == "https" || self.scheme == "http")
    }

    async fn send_once(
        &self,
        repository: &Repository,
        access: Access,
        name: &str,
        request: &impl Fn() -> RequestBuilder,
    ) -> Result<Response, Error> {
        let host = &repository.host;
        let unreachable = UnreachableSnafu { host };
        let known = self.authorization(repository, access);
        let response = authorized(request(), known.as_ref()).send().await.context(unreachable)?;
        // Tokens expire, so a known one can be refused too.
        let header = text(response.headers(), header::WWW_AUTHENTICATE.as_str());
        let fresh = match header.and_then(Challenge::parse) {
            Some(challenge) if response.status() == StatusCode::UNAUTHORIZED => {
                self.authorize(repository, access, challenge).await?
            }
            _ => None,
        };
        let response = match fresh {
            Some(fresh) => {
                let answer = authorized(request(), Some(&fresh)).send().await;
                self.remember(repository, access, fresh);
                answer.context(unreachable)?
            }
            None => response,
        };
        let refused =
            [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&response.status());
        let anonymous = self.credentials.account(repository).is_none();
        ensure!(!refused, UnauthorizedSnafu { host, path: &repository.path, anonymous });
        judged(name, response).await
    }

    fn authorization(&self, repository: &Repository, access: Access) -> Option<SecretString> {
        let known = self.authorizations.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&(repository.clone(), access)).cloned()
    }

    fn remember(&self, repository: &Repository, access: Access, value: SecretString) {
        let mut known = self.authorizations.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert((repository.clone(), access), value);
    }

    /// The value of the header `Authorization` that a challenge demands; `None` without credentials.
    async fn authorize(
        &self,
        repository: &Repository,
        access: Access,
        challenge: Challenge,
    ) -> Result<Option<SecretString>, Error> {
        let account = self.credentials.account(repository).map(basic);
        let (realm, service, scope) = match challenge {
            Challenge::Basic => return Ok(account),
            Challenge::Bearer { realm, service, scope } => (realm, service, scope),
        };
        let host = &repository.host;
        let url = Url::parse(&realm).ok().and_then(|url| self.protected(url));
        let mut url = url.context(RealmSnafu { host, realm })?;
        // The scope of a challenge can be narrower than what follows.
        let scope = match access {
            Access::Pull => scope.unwrap_or_else(|| access.scope(repository)),
            Access::Push => access.scope(repository),
        };
        for (key, value) in [("service", service), ("scope", Some(scope))] {
            if let Some(value) = value {
                url.query_pairs_mut().append_pair(key, &value);
            }
        }
        let request = authorized(self.http.request(Method::GET, url), account.as_ref());
        let response = request.send().await.context(UnreachableSnafu { host })?;
        let path = &repository.path;
        let refused =
            [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&response.status());
        ensure!(!refused, UnauthorizedSnafu { host, path, anonymous: account.is_none() });
        let response = judged(&format!("a token for {path}"), response).await?;
        let bytes = bounded("the token", response, MAX_TOKEN).await?;
        let token: Option<Token> = serde_json::from_slice(&bytes).ok();
        let token = token.and_then(|answer| answer.token.or(answer.access_token));
        let token = token.filter(|token| !token.expose_secret().is_empty());
        let token = token.context(NoTokenSnafu { host })?;
        Ok(Some(format!("Bearer {}", token.expose_secret()).into()))
    }
}

/// The attempts to send a request.
struct Pauses(array::IntoIter<Duration, 3>);

impl Pauses {
    fn new() -> Self {
        Self(PAUSES.into_iter())
    }

    /// Waits until the request can be sent again. Fails if the failure does not pass, or after the last attempt.
    async fn wait_after(&mut self, error: Error) -> Result<(), Error> {
        match self.0.next() {
            Some(pause) if error.is_transient() => tokio::time::sleep(pause).await,
            _ => return Err(error),
        }
        Ok(())
    }
}

async fn send_anonymously(
    host: &str,
    name: &str,
    request: RequestBuilder,
) -> Result<Response, Error> {
    judged(name, request.send().await.context(UnreachableSnafu { host })?).await
}

fn authorized(request: RequestBuilder, value: Option<&SecretString>) -> RequestBuilder {
    match value {
        Some(value) => {
            let mut header = header::HeaderValue::from_str(value.expose_secret());
            if let Ok(header) = &mut header {
                header.set_sensitive(true);
            }
            match header {
                Ok(header) => request.header(header::AUTHORIZATION, header),
                Err(_) => request,
            }
        }
        None => request,
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Turns an answer that is no success into an error, with the registry's message.
async fn judged(name: &str, response: Response) -> Result<Response, Error> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let bytes = bounded(name, response, MAX_TOKEN).await.unwrap_or_default();
    let message = message(&bytes);
    ensure!(status != StatusCode::NOT_FOUND, NotFoundSnafu { name, message });
    RefusedSnafu { name, status, message }.fail()
}

/// The first message in a registry's answer, on one line and short.
fn message(bytes: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Answer {
        errors: Vec<RegistryError>,
    }
    #[derive(Deserialize)]
    struct RegistryError {
        #[serde(default)]
        code: String,
        #[serde(default)]
        message: String,
    }
    let answer: Option<Answer> = serde_json::from_slice(bytes).ok();
    let first = answer.and_then(|answer| answer.errors.into_iter().next());
    let text = first.map(|first| format!("{} {}", first.code, first.message)).unwrap_or_default();
    let printable = text.chars().filter(|c| !c.is_control()).take(200);
    printable.collect::<String>().trim().to_owned()
}

async fn bounded(name: &str, mut response: Response, limit: u64) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    while let Some(piece) = response.chunk().await.context(InterruptedSnafu { name })? {
        bytes.extend_from_slice(&piece);
        ensure!(bytes.len() as u64 <= limit, TooLargeSnafu { name, limit });
    }
    Ok(bytes)
}
