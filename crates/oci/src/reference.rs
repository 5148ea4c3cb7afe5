//! Names of images and of the repositories that contain them.

use std::{fmt, str::FromStr};

use snafu::{OptionExt as _, ensure};

use crate::{
    digest::Digest,
    error::{Error, ReferenceSnafu},
};

/// A registry and a path in it, such as `registry.k8s.io/csi-vsphere/driver`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Repository {
    /// Host, and port if it is not the default.
    pub host: String,
    pub path: String,
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.host, self.path)
    }
}

impl FromStr for Repository {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (host, path) = match text.split_once('/') {
            Some((host, path)) if is_host(host) => (host, path.to_owned()),
            Some(_) => ("docker.io", text.to_owned()),
            None => ("docker.io", format!("library/{text}")),
        };
        let is_segment = |segment: &str| {
            let starts = segment.starts_with(|c: char| c.is_ascii_alphanumeric());
            let allowed =
                |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
            starts && segment.chars().all(allowed)
        };
        let plausible = path.split('/').all(is_segment)
            && host.chars().all(|c| c.is_ascii_alphanumeric() || ".-:[]".contains(c));
        ensure!(plausible, ReferenceSnafu { text });
        Ok(Self { host: host.to_owned(), path })
    }
}

/// Without a dot, a port or the name `localhost`, the first part of a name belongs to the path.
fn is_host(text: &str) -> bool {
    text.contains(['.', ':']) || text == "localhost"
}

/// An image in a repository, by tag, by digest, or by both.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference {
    pub repository: Repository,
    pub tag: Option<String>,
    pub digest: Option<Digest>,
}

impl Reference {
    /// Reads `oci://HOST/PATH:TAG` or `oci://HOST/PATH@DIGEST`. The host is never implied.
    pub fn from_url(url: &str) -> Result<Self, Error> {
        let text = url.strip_prefix("oci://").unwrap_or_default();
        let host = text.split('/').next().unwrap_or_default();
        let named = text.parse::<Self>().ok().filter(|named| named.repository.host == host);
        named.context(ReferenceSnafu { text: url })
    }

    /// Name and tag, without the digest.
    pub fn tagged(&self) -> String {
        match &self.tag {
            Some(tag) => format!("{}:{tag}", self.repository),
            None => self.repository.to_string(),
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.tagged())?;
        self.digest.as_ref().map_or(Ok(()), |digest| write!(f, "@{digest}"))
    }
}

impl FromStr for Reference {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (named, digest) = match text.split_once('@') {
            Some((named, digest)) => (named, Some(digest.parse::<Digest>()?)),
            None => (text, None),
        };
        // A colon after the last slash starts the tag; a colon before it is that of a port.
        let path = named.rfind('/').map_or(0, |slash| slash + 1);
        let (name, tag) = match named.get(path..).and_then(|last| last.split_once(':')) {
            Some((last, tag)) => (&named[..path + last.len()], Some(tag.to_owned())),
            None => (named, None),
        };
        let is_tag = |tag: &String| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            !tag.is_empty() && tag.len() <= 128 && tag.chars().all(allowed)
        };
        let named = tag.as_ref().map_or(digest.is_some(), is_tag);
        let repository = name.parse().ok().filter(|_| named);
        Ok(Self { repository: repository.context(ReferenceSnafu { text })?, tag, digest })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_read_as_every_container_tool_reads_them() {
        let digest = Digest::from_bytes(b"x");
        let cases = [
            ("registry.k8s.io/a/b:v1".to_owned(), "registry.k8s.io", "a/b", Some("v1")),
            (format!("localhost/a@{digest}"), "localhost", "a", None),
            (format!("10.0.0.1:5000/a:1@{digest}"), "10.0.0.1:5000", "a", Some("1")),
            ("vmware/vdo:1".to_owned(), "docker.io", "vmware/vdo", Some("1")),
            ("busybox:1".to_owned(), "docker.io", "library/busybox", Some("1")),
        ];
        for (text, host, path, tag) in cases {
            let found: Reference = text.parse().unwrap();
            assert_eq!(
                (found.repository.host.as_str(), found.repository.path.as_str()),
                (host, path)
            );
            assert_eq!(found.tag.as_deref(), tag, "{text}");
            assert_eq!(found.digest.is_some(), text.contains('@'), "{text}");
        }
    }

    #[test]
    fn other_texts_name_no_image() {
        for text in [
            "",
            "a.b/",
            "a.b/x",
            "a.b/../x:1",
            "a.b/x:",
            "a.b/x@sha256:1",
            "a.b//x:1",
            "a.b/X:1",
            "a.b/x:1?y",
            "https://a.b/x:1",
            "a b/x:1",
            "a.b/x y:1",
        ] {
            assert!(text.parse::<Reference>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_url_names_the_host() {
        let named = Reference::from_url("oci://r.example.com:5000/vdo/catalog:1").unwrap();
        assert_eq!(named.to_string(), "r.example.com:5000/vdo/catalog:1");
        for url in
            ["oci://vdo/catalog:1", "oci://catalog:1", "r.example.com/a:1", "oci://r.example.com/a"]
        {
            assert!(Reference::from_url(url).is_err(), "{url}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC*") {
            let _ = text.parse::<Reference>();
        }

        #[test]
        fn a_printed_name_is_read_again(text in "[a-z]{1,5}\\.io(:[0-9]{2,4})?(/[a-z0-9]{1,5}){1,3}:v[0-9]") {
            let found: Reference = text.parse().unwrap();
            prop_assert_eq!(found.to_string(), text);
        }
    }
}
