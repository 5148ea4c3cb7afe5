//! SHA-256 digests of content.

use std::{fmt, str::FromStr};

use aws_lc_rs::digest::{Context, SHA256, digest};
use serde::{Deserialize, Deserializer, Serialize, de};
use snafu::ensure;

use crate::error::{DigestSnafu, Error};

/// `sha256:` and 64 lower-case hex digits. Other algorithms are refused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Digest(String);

impl Digest {
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self::from_hash(digest(&SHA256, bytes).as_ref())
    }

    pub fn hex(&self) -> &str {
        self.0.trim_start_matches("sha256:")
    }

    fn from_hash(hash: &[u8]) -> Self {
        let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        Self(format!("sha256:{hex}"))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Digest {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let is_hex = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
        let hex = text.strip_prefix("sha256:").unwrap_or_default();
        ensure!(hex.len() == 64 && hex.bytes().all(is_hex), DigestSnafu { text });
        Ok(Self(text.to_owned()))
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

/// Computes the digest of content that arrives in pieces.
pub(crate) struct Hasher(Context);

impl Hasher {
    pub(crate) fn new() -> Self {
        Self(Context::new(&SHA256))
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(self) -> Digest {
        Digest::from_hash(self.0.finish().as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sha256_is_a_digest() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::from_bytes(b"").to_string(), empty);
        assert_eq!(empty.parse::<Digest>().unwrap(), Digest::from_bytes(b""));
        let mut hasher = Hasher::new();
        hasher.update(b"a");
        hasher.update(b"b");
        assert_eq!(hasher.finish(), Digest::from_bytes(b"ab"));
        for text in
            ["", "sha256:", "sha256:../../etc", "md5:00", &empty.to_uppercase(), &empty[..70]]
        {
            assert!(text.parse::<Digest>().is_err(), "{text}");
        }
    }
}
