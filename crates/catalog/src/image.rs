//! Image names, and their rewriting for mirrors.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use snafu::{Snafu, ensure};

#[derive(Debug, Clone, PartialEq, Eq, Snafu)]
#[snafu(display(
    "{text:?} does not name an image; write registry/path:tag, registry/path@sha256:... or both"
))]
pub struct ImageError {
    text: String,
}

/// `registry/path:tag@digest`. Tag and digest are optional, but one of them is required.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Image {
    /// Registry and path.
    pub name: String,
    pub tag: Option<String>,
    /// `sha256:` and 64 hex digits. With a digest, exactly the tested image runs.
    pub digest: Option<String>,
}

impl Image {
    pub fn tagged(&self) -> String {
        match &self.tag {
            None => self.name.clone(),
            Some(tag) => format!("{}:{tag}", self.name),
        }
    }
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.tagged())?;
        self.digest.as_ref().map_or(Ok(()), |digest| write!(f, "@{digest}"))
    }
}

impl FromStr for Image {
    type Err = ImageError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (rest, digest) = match text.split_once('@') {
            None => (text, None),
            Some((rest, digest)) => (rest, Some(digest.to_owned())),
        };
        // A colon after the last slash starts the tag; one before it is a port.
        let path = rest.rfind('/').map_or(0, |slash| slash + 1);
        let (name, tag) = match rest[path..].find(':') {
            None => (rest, None),
            Some(colon) => (&rest[..path + colon], Some(rest[path + colon + 1..].to_owned())),
        };
        let word = |text: &str, extra: &str| {
            !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || extra.contains(c))
        };
        let plausible = word(name, "./-_:")
            && !name.starts_with('/')
            && !name.ends_with('/')
            && (tag.is_some() || digest.is_some())
            && tag.as_deref().is_none_or(|tag| tag.len() <= 128 && word(tag, "._-"))
            && digest.as_deref().is_none_or(is_digest);
        ensure!(plausible, ImageSnafu { text });
        Ok(Self { name: name.to_owned(), tag, digest })
    }
}

/// `sha256:` and 64 lower-case hex digits.
pub fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(|hex| {
        hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    })
}

impl Serialize for Image {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Image {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

/// Maps prefixes of image names to replacements.
///
/// The longest matching prefix wins. A prefix only matches whole path segments, so `registry.k8s.io` does
/// not match `registry.k8s.io.example.com`. An empty prefix matches everything: the usual mirror that keeps
/// all paths below one host. Tag and digest are kept, so a node detects a mirror with different content.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rewrite {
    prefixes: Vec<(String, String)>,
}

impl Rewrite {
    /// From pairs of prefix and replacement.
    pub fn new(pairs: impl IntoIterator<Item = (String, String)>) -> Self {
        let trim = |text: String| text.trim_matches('/').to_owned();
        let mut prefixes: Vec<_> =
            pairs.into_iter().map(|(from, to)| (trim(from), trim(to))).collect();
        prefixes.sort_by_key(|(from, _)| std::cmp::Reverse(from.len()));
        Self { prefixes }
    }

    /// One mirror for every registry: `registry.k8s.io/a/b` becomes `mirror/a/b`.
    pub fn mirror(host: &str) -> Self {
        Self::new([(String::new(), host.to_owned())])
    }

    pub fn is_empty(&self) -> bool {
        self.prefixes.is_empty()
    }

    /// True if a prefix matches, which means that the admin knows where the image is.
    pub fn covers(&self, image: &Image) -> bool {
        self.find(image).is_some()
    }

    pub fn apply(&self, image: &Image) -> Image {
        let Some((from, to)) = self.find(image) else {
            return image.clone();
        };
        let rest = if from.is_empty() { path_of(&image.name) } else { &image.name[from.len()..] };
        let name = format!("{to}/{}", rest.trim_start_matches('/'));
        Image { name: name.trim_matches('/').to_owned(), ..image.clone() }
    }

    fn find(&self, image: &Image) -> Option<&(String, String)> {
        self.prefixes.iter().find(|(from, _)| {
            from.is_empty()
                || image
                    .name
                    .strip_prefix(from.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }
}

/// The path of an image name without its registry host.
fn path_of(name: &str) -> &str {
    match name.split_once('/') {
        Some((host, path)) if host.contains(['.', ':']) || host == "localhost" => path,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DIGEST: &str = "sha256:86f7673fd46484b456c16eed0d4f6c4372fdf1b66c8c513b85c76c54ee3af966";

    fn image(text: &str) -> Image {
        text.parse().unwrap()
    }

    #[test]
    fn tag_digest_and_port_are_distinguished() {
        let it = image(&format!("mirror.local:5000/csi/driver:v3.7.3@{DIGEST}"));
        assert_eq!(it.name, "mirror.local:5000/csi/driver");
        assert_eq!(it.tag.as_deref(), Some("v3.7.3"));
        assert_eq!(it.digest.as_deref(), Some(DIGEST));
        assert_eq!(image("mirror.local:5000/driver:v1").name, "mirror.local:5000/driver");
    }

    #[test]
    fn invalid_image_names_are_refused() {
        for text in
            ["", "driver", "a b:c", "x@sha256:12", "/x:1", "x:", "x:a:b", "x/:1", "r/x:v1@md5:aa"]
        {
            assert!(text.parse::<Image>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_longest_prefix_wins_and_digests_are_kept() {
        let rewrite = Rewrite::new([
            ("registry.k8s.io".to_owned(), "mirror.local/k8s".to_owned()),
            ("registry.k8s.io/sig-storage/".to_owned(), "mirror.local/sidecars".to_owned()),
        ]);
        let moved = |text: &str| rewrite.apply(&image(text)).to_string();
        assert_eq!(
            moved(&format!("registry.k8s.io/csi-vsphere/driver:v3.7.3@{DIGEST}")),
            format!("mirror.local/k8s/csi-vsphere/driver:v3.7.3@{DIGEST}")
        );
        assert_eq!(
            moved("registry.k8s.io/sig-storage/csi-attacher:v4.9.0"),
            "mirror.local/sidecars/csi-attacher:v4.9.0"
        );
        assert_eq!(moved("registry.k8s.io.example.com/x:1"), "registry.k8s.io.example.com/x:1");
        assert_eq!(moved("gcr.io/x:1"), "gcr.io/x:1");
    }

    #[test]
    fn one_mirror_takes_everything_and_drops_the_host() {
        let mirror = Rewrite::mirror("harbor.corp:8443/vdo/");
        assert_eq!(
            mirror.apply(&image("registry.k8s.io/a/b:1")).to_string(),
            "harbor.corp:8443/vdo/a/b:1"
        );
        assert_eq!(
            mirror.apply(&image("library/busybox:1")).to_string(),
            "harbor.corp:8443/vdo/library/busybox:1"
        );
    }

    proptest! {
        #[test]
        fn image_names_round_trip(name in "[a-z]{1,8}(\\.[a-z]{2,4})?(:[0-9]{2,4}/[a-z]{1,5})?(/[a-z0-9-]{1,9}){0,3}", tag in "v[0-9]{1,3}\\.[0-9]{1,2}", pinned: bool) {
            let it = Image { name, tag: Some(tag), digest: pinned.then(|| DIGEST.to_owned()) };
            prop_assert_eq!(image(&it.to_string()), it);
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC*") {
            let _ = text.parse::<Image>();
        }
    }
}
