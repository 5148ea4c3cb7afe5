//! Facts of a release, and the install manifest with them.

use std::collections::BTreeMap;

use operator::install;
use serde_json::Value;
use snafu::{ResultExt as _, ensure};

use crate::error::{Error, NoDigestSnafu, YamlSnafu};

/// Where a Deployment names the operator's image.
pub(crate) const IMAGE: &str = "/spec/template/spec/containers/0/image";

/// Facts that a release knows and a checkout does not.
#[derive(Clone, Debug, Default)]
pub struct Release {
    /// The digest of each of VDO's own images, by name and tag.
    pub digests: BTreeMap<String, String>,
    /// The time of the release. Without one, it is that of the catalog.
    pub created: Option<String>,
}

impl Release {
    /// An image, with its digest if the release knows it.
    pub(crate) fn pinned(&self, image: &str) -> String {
        match self.digests.get(image) {
            Some(digest) => format!("{image}@{digest}"),
            None => image.to_owned(),
        }
    }

    /// The install manifest, in which the operator's image has a digest.
    pub fn install_manifest(&self) -> Result<String, Error> {
        let mut objects = install::objects();
        for object in &mut objects {
            if let Some(Value::String(image)) = object.0.pointer_mut(IMAGE) {
                ensure!(self.digests.contains_key(image), NoDigestSnafu { image: image.as_str() });
                *image = self.pinned(image);
            }
        }
        install::manifest_of(&objects).context(YamlSnafu { what: "the install manifest" })
    }
}
