//! From registries into an archive.

use std::{collections::BTreeSet, path::Path};

use snafu::ensure;

use crate::{
    archive::{ArchiveWriter, ArchivedImage},
    client::Client,
    digest::Digest,
    error::{Error, NoPlatformSnafu, ShortSnafu},
    manifest::{Descriptor, Parts, Platform, RawManifest},
    progress::Progress,
    reference::{Reference, Repository},
};

/// How often a blob whose transfer stops is continued.
const ATTEMPTS: usize = 5;

/// The images and files to export.
#[derive(Clone, Debug, Default)]
pub struct Export {
    /// Each image: its name, and the name under which a registry has it.
    pub images: Vec<(Reference, Reference)>,
    /// Only these platforms. Without any, images are copied completely.
    pub platforms: Vec<Platform>,
    /// Files that travel with the images: name and content.
    pub files: Vec<(String, Vec<u8>)>,
}

/// An image in a new archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportedImage {
    pub name: Reference,
    pub digest: Digest,
}

/// Copies images from their registries into an archive. Returns the images and the digest of the archive.
///
/// An interrupted export left `path` with the ending `.partial`; the same call continues it.
///
/// # Errors
/// On the first image that cannot be copied. What was copied stays for the next call.
pub async fn export(
    client: &Client,
    wanted: &Export,
    path: &Path,
    progress: &mut dyn Progress,
) -> Result<(Vec<ExportedImage>, Digest), Error> {
    let mut writer = ArchiveWriter::open(path)?;
    let mut archived = Vec::new();
    for (name, source) in &wanted.images {
        progress.image(&name.tagged());
        let (image, parts) = resolve(client, name, source, &wanted.platforms).await?;
        let mut new_bytes = 0;
        let all: u64 = parts.size();
        let mut done = 0;
        for manifest in &parts.manifests {
            add_manifest(&mut writer, manifest)?;
            done += manifest.bytes.len() as u64;
        }
        for blob in &parts.blobs {
            if !writer.has(&blob.digest) {
                let repository = &source.repository;
                let mut shown = |have: u64| progress.bytes(done + have, all);
                new_bytes += fetch(client, repository, blob, &mut writer, &mut shown).await?;
            }
            done += blob.size;
            progress.bytes(done, all);
        }
        progress.done(new_bytes);
        archived.push(image);
    }
    let digest = writer.finish(&archived, &wanted.files)?;
    let images = archived.into_iter();
    let images = images.map(|image| ExportedImage { name: image.name, digest: image.digest });
    Ok((images.collect(), digest))
}

/// Everything that belongs to an image.
struct ImageParts {
    manifests: Vec<RawManifest>,
    blobs: Vec<Descriptor>,
}

impl ImageParts {
    fn size(&self) -> u64 {
        let manifests: u64 =
            self.manifests.iter().map(|manifest| manifest.bytes.len() as u64).sum();
        manifests + self.blobs.iter().map(|blob| blob.size).sum::<u64>()
    }

    fn add(&mut self, manifest: RawManifest, name: &str) -> Result<(), Error> {
        if let Parts::Blobs(blobs) = manifest.parts(name)? {
            let known: BTreeSet<Digest> =
                self.blobs.iter().map(|blob| blob.digest.clone()).collect();
            let new = blobs.into_iter().filter(|blob| !blob.is_foreign());
            self.blobs.extend(new.filter(|blob| !known.contains(&blob.digest)));
        }
        self.manifests.push(manifest);
        Ok(())
    }
}

/// Fetches the manifests of an image.
async fn resolve(
    client: &Client,
    name: &Reference,
    source: &Reference,
    platforms: &[Platform],
) -> Result<(ArchivedImage, ImageParts), Error> {
    let (shown, repository) = (name.tagged(), &source.repository);
    let digest = source.digest.as_ref().map(Digest::to_string);
    let which = digest.or(source.tag.clone()).unwrap_or_default();
    let root = client.manifest(repository, &which).await?;
    let mut parts = ImageParts { manifests: Vec::new(), blobs: Vec::new() };
    let described = root.descriptor();
    let mut kept = None;
    match root.parts(&shown)? {
        Parts::Blobs(_) => {}
        Parts::Index(children) => {
            let is_wanted = |child: &&Descriptor| {
                let platform = child.platform.as_ref();
                platforms.is_empty() || platform.is_some_and(|one| platforms.contains(one))
            };
            let chosen: Vec<&Descriptor> = children.iter().filter(is_wanted).collect();
            let wanted = platforms.iter().map(Platform::to_string).collect::<Vec<_>>().join(", ");
            let has = children.iter().filter_map(|child| child.platform.as_ref());
            let has = has.map(Platform::to_string).collect::<Vec<_>>();
            ensure!(!chosen.is_empty(), NoPlatformSnafu { name: &shown, has, wanted });
            if chosen.len() < children.len() {
                kept = Some(platforms.to_vec());
            }
            for child in chosen {
                let manifest = client.manifest(repository, &child.digest.to_string()).await?;
                parts.add(manifest, &shown)?;
            }
        }
    }
    parts.add(root, &shown)?;
    let name = Reference { digest: Some(described.digest.clone()), ..name.clone() };
    let Descriptor { media_type, digest, size, .. } = described;
    Ok((ArchivedImage { name, digest, platforms: kept, media_type, size }, parts))
}

fn add_manifest(writer: &mut ArchiveWriter, manifest: &RawManifest) -> Result<(), Error> {
    if writer.has(&manifest.digest) {
        return Ok(());
    }
    let have = writer.begin(&manifest.digest, manifest.bytes.len() as u64)?;
    if have > 0 {
        writer.restart()?;
    }
    writer.append(&manifest.bytes)?;
    writer.finish_blob()
}

/// Fetches a blob, and continues it if the transfer stops. Returns the number of bytes that came over the network.
async fn fetch(
    client: &Client,
    repository: &Repository,
    blob: &Descriptor,
    writer: &mut ArchiveWriter,
    progress: &mut dyn FnMut(u64),
) -> Result<u64, Error> {
    let (mut received, mut attempt) = (0, 1);
    loop {
        let error =
            match fetch_rest(client, repository, blob, writer, &mut received, progress).await {
                Ok(()) => break,
                Err(error) => error,
            };
        if !error.is_transient() || attempt == ATTEMPTS {
            return Err(error);
        }
        attempt += 1;
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
    writer.finish_blob().map(|()| received)
}

async fn fetch_rest(
    client: &Client,
    repository: &Repository,
    blob: &Descriptor,
    writer: &mut ArchiveWriter,
    received: &mut u64,
    progress: &mut dyn FnMut(u64),
) -> Result<(), Error> {
    let mut have = writer.begin(&blob.digest, blob.size)?;
    if have == blob.size {
        return Ok(());
    }
    let mut content = client.blob(repository, blob, have).await?;
    if have > 0 && !content.is_continued {
        writer.restart()?;
        have = 0;
    }
    while let Some(piece) = content.next().await? {
        writer.append(&piece)?;
        have += piece.len() as u64;
        *received += piece.len() as u64;
        progress(have);
    }
    let name = format!("{repository}@{}", blob.digest);
    ensure!(have == blob.size, ShortSnafu { name, got: have, size: blob.size });
    Ok(())
}
