//! Manifests and indexes of images, in the formats of OCI and Docker.

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use snafu::{OptionExt as _, ResultExt as _, ensure};

use crate::{
    digest::Digest,
    error::{Error, ManifestSnafu, PlatformSnafu, UnknownFormatSnafu},
};

pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";

/// The formats that a client accepts.
pub(crate) const ACCEPTED: [&str; 4] = [INDEX, MANIFEST, DOCKER_LIST, DOCKER_MANIFEST];

/// A part that an image refers to: another manifest, its configuration or a layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    pub(crate) media_type: String,
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) platform: Option<Platform>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) annotations: BTreeMap<String, String>,
}

impl Descriptor {
    /// Windows' base layers come from Microsoft's servers; registries do not have them.
    pub(crate) fn is_foreign(&self) -> bool {
        self.media_type.contains(".foreign.") || self.media_type.contains("nondistributable")
    }
}

/// The operating system and the processor that an image is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Platform {
    pub os: String,
    pub architecture: String,
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)
    }
}

impl FromStr for Platform {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (os, architecture) = text.split_once('/').context(PlatformSnafu { text })?;
        let is_word =
            |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric());
        ensure!(is_word(os) && is_word(architecture), PlatformSnafu { text });
        Ok(Self { os: os.to_owned(), architecture: architecture.to_owned() })
    }
}

/// A manifest or an index as its publisher wrote it. The digest covers exactly these bytes.
#[derive(Clone, Debug)]
pub(crate) struct RawManifest {
    pub(crate) media_type: String,
    pub(crate) digest: Digest,
    pub(crate) bytes: Vec<u8>,
}

/// The parts of an image.
#[derive(Clone, Debug)]
pub(crate) enum Parts {
    /// One manifest for each platform.
    Index(Vec<Descriptor>),
    /// The configuration and the layers of one platform.
    Blobs(Vec<Descriptor>),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    #[serde(default)]
    media_type: Option<String>,
    #[serde(default)]
    manifests: Option<Vec<Descriptor>>,
    #[serde(default)]
    config: Option<Descriptor>,
    #[serde(default)]
    layers: Vec<Descriptor>,
}

impl RawManifest {
    pub(crate) fn new(
        name: &str,
        bytes: Vec<u8>,
        content_type: Option<&str>,
    ) -> Result<Self, Error> {
        let document = document(name, &bytes)?;
        // OCI manifests may omit their type; the registry then names it in the header.
        let named = document.media_type.as_deref().or(content_type).unwrap_or_default();
        let named = named.split(';').next().unwrap_or_default().trim();
        let guessed = if document.manifests.is_some() { INDEX } else { MANIFEST };
        let media_type = if named.is_empty() { guessed } else { named }.to_owned();
        ensure!(ACCEPTED.contains(&media_type.as_str()), UnknownFormatSnafu { name, media_type });
        Ok(Self { media_type, digest: Digest::from_bytes(&bytes), bytes })
    }

    pub(crate) fn parts(&self, name: &str) -> Result<Parts, Error> {
        let document = document(name, &self.bytes)?;
        match document.manifests {
            Some(manifests) => Ok(Parts::Index(manifests)),
            None => Ok(Parts::Blobs(document.config.into_iter().chain(document.layers).collect())),
        }
    }

    pub(crate) fn descriptor(&self) -> Descriptor {
        Descriptor {
            media_type: self.media_type.clone(),
            digest: self.digest.clone(),
            size: self.bytes.len() as u64,
            platform: None,
            annotations: BTreeMap::new(),
        }
    }
}

fn document(name: &str, bytes: &[u8]) -> Result<Document, Error> {
    serde_json::from_slice(bytes).context(ManifestSnafu { name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_and_a_manifest_differ_by_their_content() {
        let digest = Digest::from_bytes(b"");
        let part = format!(r#"{{"mediaType": "x", "digest": "{digest}", "size": 0}}"#);
        let raw =
            |text: String, kind: Option<&str>| RawManifest::new("image", text.into_bytes(), kind);
        let index = raw(format!(r#"{{"manifests": [{part}]}}"#), None).unwrap();
        assert_eq!(index.media_type, INDEX);
        assert!(matches!(index.parts("image").unwrap(), Parts::Index(parts) if parts.len() == 1));
        let docker = format!("{DOCKER_MANIFEST}; charset=utf-8");
        let image =
            raw(format!(r#"{{"config": {part}, "layers": [{part}]}}"#), Some(&docker)).unwrap();
        assert_eq!(image.media_type, DOCKER_MANIFEST);
        assert!(matches!(image.parts("image").unwrap(), Parts::Blobs(parts) if parts.len() == 2));
        let old = "application/vnd.docker.distribution.manifest.v1+json";
        let refused = raw("{}".into(), Some(old)).unwrap_err().to_string();
        assert!(refused.contains(old), "{refused}");
        assert!(raw("no".into(), None).is_err());
        let escape =
            r#"{"manifests": [{"mediaType": "x", "digest": "sha256:../../x", "size": 0}]}"#;
        assert!(raw(escape.into(), None).is_err());
    }
}
