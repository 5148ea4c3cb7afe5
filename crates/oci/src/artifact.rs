//! Artifacts: registries also keep files that are no images, such as a signed catalog.
//!
//! An artifact is a manifest with an empty configuration and one layer. The media type of the layer names the kind of
//! the file. Every tool that copies images copies artifacts too.

use std::{collections::BTreeMap, path::Path};

use serde::Serialize;
use snafu::{OptionExt as _, ResultExt as _, ensure};

use crate::{
    client::{Access, Client, FoundBlob},
    digest::Digest,
    error::{
        Error, FileSnafu, ManifestSnafu, NoContentSnafu, OtherDigestSnafu, ShortSnafu,
        TooLargeSnafu,
    },
    manifest::{Descriptor, INDEX, MANIFEST, Parts, RawManifest},
    reference::Reference,
};

const EMPTY_TYPE: &str = "application/vnd.oci.empty.v1+json";
const EMPTY: &[u8] = b"{}";
/// The name of a file, as other tools read it.
const TITLE: &str = "org.opencontainers.image.title";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ArtifactManifest<'a> {
    schema_version: u32,
    media_type: &'a str,
    artifact_type: &'a str,
    config: Descriptor,
    layers: [Descriptor; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Index<'a> {
    schema_version: u32,
    media_type: &'a str,
    manifests: [Descriptor; 1],
}

/// A file on its way to a registry.
#[derive(Clone, Debug)]
pub struct Artifact {
    /// The name of the file.
    pub title: String,
    pub media_type: String,
    pub content: Vec<u8>,
}

fn described(media_type: &str, content: &[u8]) -> Descriptor {
    Descriptor {
        media_type: media_type.to_owned(),
        digest: Digest::from_bytes(content),
        size: content.len() as u64,
        platform: None,
        annotations: BTreeMap::new(),
    }
}

impl Artifact {
    fn manifest(&self) -> Result<RawManifest, Error> {
        let mut layer = described(&self.media_type, &self.content);
        layer.annotations.insert(TITLE.to_owned(), self.title.clone());
        let manifest = ArtifactManifest {
            schema_version: 2,
            media_type: MANIFEST,
            artifact_type: &self.media_type,
            config: described(EMPTY_TYPE, EMPTY),
            layers: [layer],
        };
        let name = &self.title;
        let bytes = serde_json::to_vec(&manifest).context(ManifestSnafu { name })?;
        RawManifest::new(name, bytes, Some(MANIFEST))
    }

    /// The files of an OCI image layout with this artifact: path and content. The same artifact gives the same bytes.
    pub fn layout(&self) -> Result<Vec<(String, Vec<u8>)>, Error> {
        let manifest = self.manifest()?;
        let name = &self.title;
        let manifests = [manifest.descriptor()];
        let index = Index { schema_version: 2, media_type: INDEX, manifests };
        let index = serde_json::to_vec(&index).context(ManifestSnafu { name })?;
        let blob = |bytes: &[u8]| {
            (format!("blobs/sha256/{}", Digest::from_bytes(bytes).hex()), bytes.to_vec())
        };
        Ok(vec![
            ("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()),
            ("index.json".to_owned(), index),
            blob(EMPTY),
            blob(&self.content),
            blob(&manifest.bytes),
        ])
    }
}

impl Client {
    /// Fetches the file of an artifact, which has a certain media type and at most `limit` bytes.
    pub async fn fetch_artifact(
        &self,
        artifact: &Reference,
        media_type: &str,
        limit: u64,
    ) -> Result<Vec<u8>, Error> {
        let (name, repository) = (artifact.to_string(), &artifact.repository);
        let digest = artifact.digest.as_ref().map(Digest::to_string);
        let which = digest.or(artifact.tag.clone()).unwrap_or_default();
        let manifest = self.manifest(repository, &which).await?;
        let parts = match manifest.parts(&name)? {
            Parts::Blobs(parts) => parts,
            Parts::Index(_) => Vec::new(),
        };
        let layer = parts.into_iter().find(|part| part.media_type == media_type);
        let layer = layer.context(NoContentSnafu { name: &name, media_type })?;
        ensure!(layer.size <= limit, TooLargeSnafu { name, limit });
        let mut content = self.blob(repository, &layer, 0).await?;
        let mut bytes = Vec::new();
        while let Some(piece) = content.next().await? {
            bytes.extend_from_slice(&piece);
            // The registry can send more than it announced.
            ensure!(bytes.len() as u64 <= limit, TooLargeSnafu { name, limit });
        }
        let (got, size) = (bytes.len() as u64, layer.size);
        ensure!(got >= size, ShortSnafu { name, got, size });
        let found = Digest::from_bytes(&bytes);
        if found != layer.digest {
            let (expected, found) = (layer.digest.to_string(), found.to_string());
            return OtherDigestSnafu { name, expected, found }.fail();
        }
        Ok(bytes)
    }

    /// Puts a file into a registry. Returns the digest of the artifact.
    pub async fn push_artifact(
        &self,
        target: &Reference,
        media_type: &str,
        path: &Path,
    ) -> Result<Digest, Error> {
        let failed = FileSnafu { path, deed: "read" };
        let content = std::fs::read(path).context(failed)?;
        let title = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let artifact = Artifact { title, media_type: media_type.to_owned(), content };
        let manifest = artifact.manifest()?;
        let repository = &target.repository;
        for bytes in [EMPTY, &artifact.content] {
            let digest = Digest::from_bytes(bytes);
            let found = self.find_blob(repository, &digest, Access::Push).await?;
            if found == FoundBlob::Missing {
                let size = bytes.len() as u64;
                self.send_blob(repository, &digest, size, || bytes.to_vec().into()).await?;
            }
        }
        let digest = manifest.digest.to_string();
        let which = target.tag.as_deref().unwrap_or(&digest);
        self.send_manifest(repository, which, &manifest).await?;
        Ok(manifest.digest)
    }
}
