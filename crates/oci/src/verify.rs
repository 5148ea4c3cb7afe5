//! Compares a registry with an archive.

use crate::{
    archive::Archive,
    client::{Access, Client, FoundBlob},
    error::Error,
    import::{Target, placed},
    progress::Progress,
};

/// Content that a registry lacks, or has in another form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryProblem {
    /// The name of the image in the registry.
    pub image: String,
    pub text: String,
}

/// Checks that a registry has every image of an archive: each manifest with the same digest, under the same tag, and each
/// blob with the same size, if the registry states it. Returns what is wrong.
pub async fn verify_registry(
    client: &Client,
    archive: &Archive,
    target: &Target,
    progress: &mut dyn Progress,
) -> Result<Vec<RegistryProblem>, Error> {
    let mut problems = Vec::new();
    for (image, name) in placed(archive, target)? {
        let shown = name.tagged();
        progress.image(&shown);
        let mut wrong = |text: String| {
            problems.push(RegistryProblem { image: shown.clone(), text });
        };
        let (manifests, blobs) = archive.content(image)?;
        let repository = &name.repository;
        for manifest in &manifests {
            let digest = &manifest.digest;
            match client.manifest_digest(repository, &digest.to_string()).await {
                Ok(Some(_)) => {}
                Ok(None) => wrong(format!("the manifest {digest} is missing")),
                Err(Error::OtherDigest { found, .. }) => {
                    wrong(format!("the registry serves {found} for {digest}"));
                }
                Err(error) => return Err(error),
            }
        }
        if let Some(tag) = &name.tag {
            match client.manifest_digest(repository, tag).await? {
                Some(found) if found == image.digest => {}
                Some(found) => {
                    wrong(format!("the tag has the digest {found}, not {}", image.digest));
                }
                None => wrong("the tag is missing".to_owned()),
            }
        }
        for blob in &blobs {
            let digest = &blob.digest;
            match client.find_blob(repository, digest, Access::Pull).await? {
                FoundBlob::Missing => wrong(format!("the blob {digest} is missing")),
                FoundBlob::Sized(size) if size != blob.size => {
                    wrong(format!("the blob {digest} has {size} bytes, not {}", blob.size));
                }
                FoundBlob::Sized(_) | FoundBlob::OfUnknownSize => {}
            }
        }
        progress.done(0);
    }
    Ok(problems)
}
