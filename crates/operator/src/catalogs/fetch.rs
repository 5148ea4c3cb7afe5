//! Fetches a catalog from a web server or from a container registry. A network can deliver anything: the size has a
//! limit here, and the signature is checked later.

use catalog::trust::{BoundedBuffer, MAX_BUNDLE_BYTES, MEDIA_TYPE};
use health::facts::CatalogTroubleKind;
use oci::{Client, ClientOptions, Credentials, Reference};
use reqwest::{
    StatusCode,
    header::{ETAG, IF_NONE_MATCH},
};
use runtime::error_chain::error_chain;

use super::{Reason, refused, too_large};

/// The longest tag of a server that VDO sends back.
const MAX_ETAG: usize = 1024;

fn unreachable(reason: impl Into<String>) -> Reason {
    (CatalogTroubleKind::Unreachable, reason.into())
}

/// A request for a catalog.
pub(super) struct Request {
    pub(super) url: String,
    /// The tag that the server gave the catalog in use.
    pub(super) etag: Option<String>,
    /// The credentials of registries.
    pub(super) credentials: Credentials,
}

/// The answer to a request.
#[derive(Debug)]
pub(super) enum Fetched {
    /// A catalog, and the tag with which the server recognizes it.
    Catalog { bytes: Vec<u8>, etag: Option<String> },
    /// The server still has the catalog with the tag of the request.
    Unchanged,
}

/// Fetches the catalog at a URL: `https://`, `http://` or `oci://`.
pub(super) async fn fetch(request: Request) -> Result<Fetched, Reason> {
    match request.url.split_once("://") {
        Some(("oci", _)) => fetch_artifact(request).await.map_err(|error| reason(&error)),
        Some(("file", _)) => Err(unreachable(
            "file:// is not read: publish the signed catalog under https:// or oci://, or put it \
             into a ConfigMap and name that in spec.bundle",
        )),
        _ => fetch_file(request).await,
    }
}

async fn fetch_file(request: Request) -> Result<Fetched, Reason> {
    let failed = |error: reqwest::Error| unreachable(error_chain(&error));
    let mut get = reqwest::Client::new().get(&request.url);
    if let Some(etag) = &request.etag {
        get = get.header(IF_NONE_MATCH, etag);
    }
    let answer = get.send().await.and_then(reqwest::Response::error_for_status);
    let mut answer = answer.map_err(failed)?;
    if answer.status() == StatusCode::NOT_MODIFIED {
        let unasked = || unreachable("the server reports an unchanged catalog to a first request");
        return request.etag.map(|_| Fetched::Unchanged).ok_or_else(unasked);
    }
    let etag = answer.headers().get(ETAG).and_then(|etag| etag.to_str().ok());
    let etag = etag.filter(|etag| etag.len() <= MAX_ETAG).map(str::to_owned);
    let mut intake = BoundedBuffer::expecting(answer.content_length()).map_err(|e| refused(&e))?;
    while let Some(piece) = answer.chunk().await.map_err(failed)? {
        intake.push(&piece).map_err(|e| refused(&e))?;
    }
    Ok(Fetched::Catalog { bytes: intake.into_bytes(), etag })
}

async fn fetch_artifact(request: Request) -> Result<Fetched, oci::Error> {
    let artifact = Reference::from_url(&request.url)?;
    let credentials = request.credentials;
    let client = Client::new(ClientOptions { credentials, ..ClientOptions::default() })?;
    let bytes = client.fetch_artifact(&artifact, MEDIA_TYPE, MAX_BUNDLE_BYTES as u64).await?;
    Ok(Fetched::Catalog { bytes, etag: None })
}

fn reason(error: &oci::Error) -> Reason {
    let kind = match error {
        oci::Error::TooLarge { .. } => too_large(MAX_BUNDLE_BYTES),
        oci::Error::OtherDigest { .. } => CatalogTroubleKind::Untrusted,
        oci::Error::NoContent { .. }
        | oci::Error::Manifest { .. }
        | oci::Error::UnknownFormat { .. } => CatalogTroubleKind::Unreadable,
        _ => CatalogTroubleKind::Unreachable,
    };
    let text = match error {
        oci::Error::Reference { .. } => {
            format!("{error}: use oci://HOST/REPOSITORY:TAG, with a host that has a dot or a port")
        }
        oci::Error::Unauthorized { anonymous: true, .. } => {
            format!("{error}: name a Secret with them in spec.pullSecret")
        }
        oci::Error::Unauthorized { anonymous: false, .. } => {
            format!("{error}, and rejects those in the Secret of spec.pullSecret")
        }
        _ => error_chain(error),
    };
    (kind, text)
}
