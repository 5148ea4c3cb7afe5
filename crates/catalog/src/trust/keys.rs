//! The keys of publishers: public keys, private keys, and the keys that a build trusts.

use std::{
    fmt::{self, Write as _},
    str::FromStr,
};

use aws_lc_rs::{
    digest,
    rand::SystemRandom,
    signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::{Deserialize, Serialize};
use snafu::{OptionExt, Snafu};
use zeroize::Zeroizing;

#[derive(Debug, Snafu)]
pub enum KeyError {
    #[snafu(display(
        "this is not an ed25519 public key; specify its 32 bytes in base64, or PEM as `openssl pkey -pubout` writes it"
    ))]
    NotPublic,
    #[snafu(display(
        "this is not an ed25519 private key; specify PEM as `openssl genpkey -algorithm ed25519` writes it"
    ))]
    NotPrivate,
    #[snafu(display("the system has no random numbers for a new key"))]
    NoRandomness,
}

/// The first eight bytes of the SHA-256 of a key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeyId(String);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey([u8; 32]);

/// The start of every ed25519 public key in DER (RFC 8410).
const DER_PREFIX: [u8; 12] =
    [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

impl PublicKey {
    pub fn id(&self) -> KeyId {
        KeyId(hex(&digest::digest(&digest::SHA256, &self.0).as_ref()[..8]))
    }

    pub(super) fn verifies(&self, signed: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, self.0).verify(signed, signature).is_ok()
    }

    /// PEM, as `openssl pkey -pubout` writes it.
    pub fn to_pem(&self) -> String {
        let der = [&DER_PREFIX[..], &self.0[..]].concat();
        let encoded = BASE64_STANDARD.encode(der);
        format!("-----BEGIN PUBLIC KEY-----\n{encoded}\n-----END PUBLIC KEY-----\n")
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE64_STANDARD.encode(self.0))
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bytes = BASE64_STANDARD.decode(without_pem(text)).ok().context(NotPublicSnafu)?;
        let raw = bytes.strip_prefix(&DER_PREFIX).unwrap_or(&bytes);
        Ok(Self(raw.try_into().ok().context(NotPublicSnafu)?))
    }
}

/// The keys of the project: one base64 key per line, `#` starts a comment.
const PROJECT_KEYS: &str = include_str!("../../data/keys.txt");

/// The keys of the publisher of this build, in base64, separated by white space. `scripts/release` sets the variable to the
/// keys with which it signs the catalog.
const PUBLISHER_KEYS: &str = match option_env!("VDO_CATALOG_KEYS") {
    Some(keys) => keys,
    None => "",
};

// A build with a misspelled key would trust no key at all, and nobody would notice.
const _: () = assert!(
    are_keys(PUBLISHER_KEYS.as_bytes()),
    "VDO_CATALOG_KEYS must contain ed25519 public keys of 32 bytes in base64, separated by white space"
);

/// Whether each word is as long as a key in base64 and has its letters.
const fn are_keys(text: &[u8]) -> bool {
    const LENGTH: usize = 44;
    let (mut at, mut length) = (0, 0);
    while at < text.len() {
        let byte = text[at];
        if byte.is_ascii_whitespace() {
            if length != 0 && length != LENGTH {
                return false;
            }
            length = 0;
        } else {
            let fits = match length + 1 {
                LENGTH => byte == b'=',
                _ => byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/',
            };
            if !fits {
                return false;
            }
            length += 1;
        }
        at += 1;
    }
    length == 0 || length == LENGTH
}

/// The keys that this build trusts for catalogs from the network if the admin configures none. Two keys at a time allow a
/// key rotation without a gap.
pub fn build_keys() -> Result<Vec<PublicKey>, KeyError> {
    built_in_keys(PROJECT_KEYS, PUBLISHER_KEYS)
}

/// The keys of a build with this list and this value of `VDO_CATALOG_KEYS`. Lists a key once.
pub fn built_in_keys(list: &str, variable: &str) -> Result<Vec<PublicKey>, KeyError> {
    let mut keys = read_keys(list)?;
    for key in variable.split_whitespace() {
        let key = key.parse()?;
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    Ok(keys)
}

/// Reads a list of keys in the format of `data/keys.txt`.
pub fn read_keys(text: &str) -> Result<Vec<PublicKey>, KeyError> {
    let without_comments = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    without_comments.map(str::trim).filter(|key| !key.is_empty()).map(str::parse).collect()
}

fn without_pem(text: &str) -> String {
    text.lines().filter(|line| !line.starts_with("-----")).map(str::trim).collect()
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A private key. It has no `Debug` and no `Display`.
pub struct SigningKey(Ed25519KeyPair);

impl SigningKey {
    /// Returns a new key and its PKCS#8 document in PEM, which is the only copy. The document has version 1,
    /// which every tool reads.
    pub fn generate() -> Result<(Self, Zeroizing<String>), KeyError> {
        let document = Ed25519KeyPair::generate_pkcs8v1(&SystemRandom::new())
            .ok()
            .context(NoRandomnessSnafu)?;
        let encoded = Zeroizing::new(BASE64_STANDARD.encode(document.as_ref()));
        let pem = Zeroizing::new(format!(
            "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
            *encoded
        ));
        Ok((Self::from_pem(&pem)?, pem))
    }

    /// Reads a PKCS#8 document in PEM.
    pub fn from_pem(pem: &str) -> Result<Self, KeyError> {
        let document = BASE64_STANDARD.decode(without_pem(pem)).ok().context(NotPrivateSnafu)?;
        // Documents with the public key and without it (openssl's and ours) are both common.
        Ed25519KeyPair::from_pkcs8(&document)
            .or_else(|_| Ed25519KeyPair::from_pkcs8_maybe_unchecked(&document))
            .map(Self)
            .ok()
            .context(NotPrivateSnafu)
    }

    pub fn public(&self) -> PublicKey {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(self.0.public_key().as_ref());
        PublicKey(bytes)
    }

    pub(super) fn sign(&self, text: &[u8]) -> impl AsRef<[u8]> {
        self.0.sign(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_with_a_wrong_variable_fails() {
        let [one, two] = [(); 2].map(|()| SigningKey::generate().unwrap().0.public().to_string());
        for keys in ["", " \n", &one, &format!("{one} {two}"), &format!("\t{one}\r\n{two} ")] {
            assert!(are_keys(keys.as_bytes()), "{keys:?}");
            built_in_keys("", keys).unwrap();
        }
        let words = [&one[1..], &one[..43], "key", "-----BEGIN PUBLIC KEY-----", "keys.txt"];
        let together = [format!("{one}{two}"), format!("{one},{two}"), one.replace('=', "A")];
        let words = words.map(str::to_owned).into_iter().chain(together);
        for wrong in words.flat_map(|word| [format!("{one} {word}"), format!("{word}\n{one}")]) {
            assert!(!are_keys(wrong.as_bytes()), "{wrong:?}");
        }
    }
}
