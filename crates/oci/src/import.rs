//! From an archive into the registry of a site.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use snafu::ResultExt as _;
use tokio::time::{MissedTickBehavior, interval};

use crate::{
    archive::{Archive, ArchivedImage},
    client::{Access, Client},
    digest::Digest,
    error::{CollisionSnafu, Error, RegistrySnafu, SparseSnafu},
    manifest::Descriptor,
    progress::Progress,
    reference::{Reference, Repository},
    upload::FilePart,
};

/// How often the progress of an upload is shown.
const TICK: Duration = Duration::from_millis(150);

/// The registry of a site, with a path prefix if it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target(String);

impl Target {
    /// Reads a name like `registry.example.com/vsphere`.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let name = text.trim_end_matches('/');
        // A name without a dot or a port would become a path of Docker Hub.
        match format!("{name}/image").parse::<Repository>() {
            Ok(repository) if name.starts_with(&repository.host) => Ok(Self(name.to_owned())),
            _ => RegistrySnafu { text }.fail(),
        }
    }

    /// The place of an image: its path, without its registry, below the prefix.
    pub fn place(&self, image: &Reference) -> Result<Reference, Error> {
        let repository: Repository = format!("{}/{}", self.0, image.repository.path).parse()?;
        Ok(Reference { repository, ..image.clone() })
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// An image in the registry of the site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportedImage {
    pub name: Reference,
    pub digest: Digest,
}

/// Copies all images of an archive into a registry. Skips what the registry has already.
///
/// # Errors
/// On the first image that cannot be copied. The same call continues.
pub async fn import(
    client: &Client,
    archive: &Archive,
    target: &Target,
    progress: &mut dyn Progress,
) -> Result<Vec<ImportedImage>, Error> {
    let placed = placed(archive, target)?;
    let mut imported = Vec::new();
    for (image, name) in placed {
        progress.image(&name.tagged());
        let (manifests, blobs) = archive.content(image)?;
        let repository = &name.repository;
        let all: u64 = blobs.iter().map(|blob| blob.size).sum();
        let (mut done, mut new_bytes) = (0, 0);
        for blob in &blobs {
            let mut shown = |sent: u64| progress.bytes(done + sent, all);
            new_bytes += send(client, repository, archive, blob, &mut shown).await?;
            done += blob.size;
            progress.bytes(done, all);
        }
        for manifest in &manifests {
            let which = manifest.digest.to_string();
            let sent = client.send_manifest(repository, &which, manifest).await;
            match sent {
                Err(error @ Error::Refused { .. }) if image.platforms.is_some() => {
                    return Err(error).context(SparseSnafu { name: name.tagged() });
                }
                sent => sent?,
            }
        }
        if let (Some(tag), Some(root)) = (&name.tag, manifests.last()) {
            client.send_manifest(repository, tag, root).await?;
        }
        progress.done(new_bytes);
        imported.push(ImportedImage { name, digest: image.digest.clone() });
    }
    Ok(imported)
}

/// The place of each image in the registry. Two different images cannot have the same place.
pub(crate) fn placed<'a>(
    archive: &'a Archive,
    target: &Target,
) -> Result<Vec<(&'a ArchivedImage, Reference)>, Error> {
    let mut placed = Vec::new();
    let mut known: BTreeMap<String, &ArchivedImage> = BTreeMap::new();
    for image in archive.images() {
        let name = target.place(&image.name)?;
        if let Some(other) = known.insert(name.tagged(), image)
            && other.digest != image.digest
        {
            let [first, second] = [other, image].map(|image| image.name.tagged());
            return CollisionSnafu { first, second, name: name.tagged() }.fail();
        }
        placed.push((image, name));
    }
    Ok(placed)
}

/// Sends a blob that the registry lacks. Returns the number of bytes sent.
async fn send(
    client: &Client,
    repository: &Repository,
    archive: &Archive,
    blob: &Descriptor,
    progress: &mut dyn FnMut(u64),
) -> Result<u64, Error> {
    let found = client.find_blob(repository, &blob.digest, Access::Push).await?;
    let Some(place) = archive.place(&blob.digest).filter(|_| !found.is_complete(blob.size)) else {
        return Ok(0);
    };
    let (path, sent) = (archive.path.clone(), Arc::default());
    let part = FilePart { path, at: place.at, size: place.size, sent };
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let sending = client.send_blob(repository, &blob.digest, part.size, || part.body());
    tokio::pin!(sending);
    loop {
        tokio::select! {
            sent = &mut sending => return sent.map(|()| blob.size),
            _ = ticks.tick() => progress(part.sent.load(Ordering::Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_keeps_its_path_below_the_prefix() {
        let place = |target: &str| {
            let image: Reference = "registry.k8s.io/csi-vsphere/driver:v3.7.3".parse().unwrap();
            Target::parse(target)
                .and_then(|target| target.place(&image))
                .map(|name| name.to_string())
        };
        assert_eq!(place("r.example.com").unwrap(), "r.example.com/csi-vsphere/driver:v3.7.3");
        assert_eq!(
            place("localhost:5000/a/b/").unwrap(),
            "localhost:5000/a/b/csi-vsphere/driver:v3.7.3"
        );
        for wrong in
            ["", "registry", "https://r.example.com", "r.example.com/A", "r.example.com//a"]
        {
            assert!(place(wrong).is_err(), "{wrong}");
        }
    }
}
