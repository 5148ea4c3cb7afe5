//! Fetches a catalog from a web server or from a container registry. A network can deliver anything: the size has a
//! limit here, and the signature is checked later.

use catalog::trust::{BoundedBuffer, MAX_BUNDLE_BYTES, MEDIA_TYPE};
use health::facts::CatalogTroubleKind;
use oci::{Client, ClientOptions, Reference};
use runtime::error_chain::error_chain;

use super::{Reason, refused, too_large};

fn unreachable(reason: impl Into<String>) -> Reason {
    (CatalogTroubleKind::Unreachable, reason.into())
}

/// Fetches the catalog at a URL: `https://`, `http://` or `oci://`.
pub(super) async fn fetch(url: &str) -> Result<Vec<u8>, Reason> {
    match url.split_once("://") {
        Some(("oci", _)) => fetch_artifact(url).await.map_err(|error| reason(&error)),
        Some(("file", _)) => Err(unreachable(
            "file:// is not read: publish the signed catalog under https:// or oci://, or put it \
             into a ConfigMap and name that in spec.bundle",
        )),
        _ => fetch_file(url).await,
    }
}

async fn fetch_file(url: &str) -> Result<Vec<u8>, Reason> {
    let failed = |error: reqwest::Error| unreachable(error_chain(&error));
    let mut answer =
        reqwest::get(url).await.and_then(reqwest::Response::error_for_status).map_err(failed)?;
    let mut intake = BoundedBuffer::expecting(answer.content_length()).map_err(|e| refused(&e))?;
    while let Some(piece) = answer.chunk().await.map_err(failed)? {
        intake.push(&piece).map_err(|e| refused(&e))?;
    }
    Ok(intake.into_bytes())
}

async fn fetch_artifact(url: &str) -> Result<Vec<u8>, oci::Error> {
    let artifact = Reference::from_url(url)?;
    let client = Client::new(ClientOptions::default())?;
    client.fetch_artifact(&artifact, MEDIA_TYPE, MAX_BUNDLE_BYTES as u64).await
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
        _ => error_chain(error),
    };
    (kind, text)
}
