//! Which catalogs are believed.
//!
//! A catalog that comes over a network is wrapped in a *bundle*: the text, and signatures over it. It
//! replaces the one in use only if a known key signed exactly this text, its serial is higher than that of
//! every catalog this key signed before, it says when it expires and has not expired, and it reads well and
//! makes sense. Anything else changes nothing: the last good one stays in use, and the [`Refusal`] says in
//! one sentence what was wrong. Serials of two keys are never compared: no publisher can shut out another.
//!
//! ```text
//!   stream ─► Intake ─► bundle ─► signature ─► read ─► serial, expiry ─► Shelf
//!           (bounded)          (before a byte of it is parsed)            (in use)
//! ```
//!
//! A compatibility matrix of the Go VDO has neither serial nor expiry: from a network it must be signed,
//! and that is all that can be asked of it.
//!
//! A catalog the admin puts into the cluster by hand needs no signature: whoever may write it may
//! write the drivers too. A catalog already in use does not stop working on the day it expires, nor at a
//! restart after it ([`CatalogStore::restore`]); that is a warning ([`CatalogStore::overdue`]). Only a *new* one that is
//! already expired is refused, since that is how somebody who controls the network would hold a cluster
//! back.
//!
//! The signature also covers what runs as root: a release of a signed catalog is installed only if all
//! its images are named by digest ([`crate::why::Reason::ImagesNotPinned`]).

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    io::{self, Read},
    str::FromStr,
    sync::Arc,
};

use aws_lc_rs::{
    digest,
    rand::SystemRandom,
    signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use snafu::{OptionExt, ResultExt, Snafu, ensure};
use zeroize::Zeroizing;

use crate::{
    model::Catalog,
    read::{self, ReadError, read},
};

/// The largest bundle that is read: a catalog of the largest size in base64, and room for signatures.
pub const MAX_BUNDLE_BYTES: usize = read::MAX_BYTES / 3 * 4 + (64 << 10);

/// What a bundle is called where files have types: in an OCI registry, in an HTTP header.
pub const MEDIA_TYPE: &str = "application/vnd.vmware.vdo.catalog.bundle.v1+json";

/// What is signed begins with this, so that a signature made for something else proves nothing here.
const CONTEXT: &[u8] = b"vdo-catalog-bundle-v1\n";

/// The form of bundle this operator reads.
const FORMAT: u64 = 1;

/// Why a catalog was not taken.
#[derive(Debug, Snafu)]
pub enum Refusal {
    /// More bytes than any bundle has.
    #[snafu(display(
        "the catalog is larger than {} MiB; reading stopped there and nothing of it is used",
        MAX_BUNDLE_BYTES >> 20
    ))]
    TooLarge,
    /// The source failed while it was read.
    #[snafu(display("the catalog could not be read to its end"))]
    Unreadable {
        /// Why.
        source: io::Error,
    },
    /// Looks like a bundle and is none.
    #[snafu(display(
        "the catalog bundle is cut short or damaged; it is not valid JSON to its end"
    ))]
    Damaged {
        /// Where.
        source: serde_json::Error,
    },
    /// A bundle of another form.
    #[snafu(display(
        "the catalog bundle has format {found}; this operator reads {FORMAT}. Upgrade the operator"
    ))]
    OtherFormat {
        /// What it says.
        found: u64,
    },
    /// The payload is not base64.
    #[snafu(display("the catalog in the bundle is not base64"))]
    NotBase64 {
        /// Where.
        source: base64::DecodeError,
    },
    /// Nobody vouches for it.
    #[snafu(display("the catalog is not signed; catalogs from a network have to be"))]
    Unsigned,
    /// Somebody vouches for it whom nobody here knows.
    #[snafu(display(
        "the catalog is signed with {found}, and the keys trusted here are {trusted}; a new key goes into CompatibilityConfig spec.publicKey"
    ))]
    UnknownKey {
        /// The ids of the keys it names.
        found: String,
        /// The ids of the keys trusted here.
        trusted: String,
    },
    /// Signed, but not this text.
    #[snafu(display(
        "the signature of key {key} does not match: the catalog was changed after it was signed"
    ))]
    Tampered {
        /// The id of the key.
        key: KeyId,
    },
    /// Older than one that was taken before.
    #[snafu(display(
        "the catalog has serial {offered}, older than {newest}, which was taken before"
    ))]
    RolledBack {
        /// The one offered.
        offered: u64,
        /// The newest taken so far.
        newest: u64,
    },
    /// Two catalogs with one serial.
    #[snafu(display(
        "the catalog has serial {serial} like one taken before, but says something else"
    ))]
    SerialReused {
        /// The serial.
        serial: u64,
    },
    /// Without an end, a catalog with a fault could be offered again for ever.
    #[snafu(display(
        "the catalog does not say when it expires, and a signed one must: set `expires` and sign it again"
    ))]
    NoExpiry,
    /// Out of date before it was ever used.
    #[snafu(display(
        "the catalog expired on {expired}; a source that still offers it is out of date"
    ))]
    Expired {
        /// When.
        expired: Timestamp,
    },
    /// It cannot be read.
    #[snafu(transparent)]
    Read {
        /// Why.
        source: ReadError,
    },
}

/// What a text must have to be a key.
#[derive(Debug, Snafu)]
pub enum KeyError {
    /// Not a key.
    #[snafu(display(
        "this is no ed25519 public key; give its 32 bytes in base64, or PEM as `openssl pkey -pubout` writes it"
    ))]
    NotPublic,
    /// Not a key pair.
    #[snafu(display(
        "this is no ed25519 private key; give PEM as `openssl genpkey -algorithm ed25519` writes it"
    ))]
    NotPrivate,
    /// No randomness.
    #[snafu(display("the system gave no random numbers for a new key"))]
    NoRandomness,
}

/// The short name of a key: the first eight bytes of the SHA-256 of its bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeyId(String);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An ed25519 public key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey([u8; 32]);

/// What every ed25519 public key in DER begins with (RFC 8410).
const DER_PREFIX: [u8; 12] =
    [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

impl PublicKey {
    /// Its short name.
    pub fn id(&self) -> KeyId {
        KeyId(hex(&digest::digest(&digest::SHA256, &self.0).as_ref()[..8]))
    }

    /// In PEM, as `openssl pkey -pubout` writes it.
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

/// The keys this build trusts for catalogs from a network when the admin names none: one a line in
/// base64, `#` begins a comment. Two keys at a time let one follow the other without a gap.
const PROJECT_KEYS: &str = include_str!("../data/keys.txt");

/// The keys that came with this build.
pub fn project_keys() -> Result<Vec<PublicKey>, KeyError> {
    read_keys(PROJECT_KEYS)
}

/// Reads a list of keys in that form.
pub fn read_keys(text: &str) -> Result<Vec<PublicKey>, KeyError> {
    let without_comments = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    without_comments.map(str::trim).filter(|key| !key.is_empty()).map(str::parse).collect()
}

/// The base64 of a PEM block, or of a text without one.
fn without_pem(text: &str) -> String {
    text.lines().filter(|line| !line.starts_with("-----")).map(str::trim).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A key that signs. Never shown.
pub struct SigningKey(Ed25519KeyPair);

impl SigningKey {
    /// A new key, and its PKCS#8 document in PEM, which is the only copy. The document is of version 1,
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

    /// A key from its PKCS#8 document in PEM.
    pub fn from_pem(pem: &str) -> Result<Self, KeyError> {
        let document = BASE64_STANDARD.decode(without_pem(pem)).ok().context(NotPrivateSnafu)?;
        // Documents with the public key inside and without (openssl's, and ours) are both common.
        Ed25519KeyPair::from_pkcs8(&document)
            .or_else(|_| Ed25519KeyPair::from_pkcs8_maybe_unchecked(&document))
            .map(Self)
            .ok()
            .context(NotPrivateSnafu)
    }

    /// The key others verify with.
    pub fn public(&self) -> PublicKey {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(self.0.public_key().as_ref());
        PublicKey(bytes)
    }
}

/// A catalog and the signatures over it, as it travels.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Bundle {
    format: u64,
    payload: String,
    signatures: Vec<Signature>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Signature {
    key: KeyId,
    signature: String,
}

impl Bundle {
    /// Wraps a catalog's text and signs it. Several keys let one be replaced without a gap.
    pub fn sign(text: &[u8], keys: &[SigningKey]) -> Self {
        let signed = [CONTEXT, text].concat();
        let signature = |key: &SigningKey| Signature {
            key: key.public().id(),
            signature: BASE64_STANDARD.encode(key.0.sign(&signed)),
        };
        let signatures = keys.iter().map(signature).collect();
        Self { format: FORMAT, payload: BASE64_STANDARD.encode(text), signatures }
    }

    /// Whether bytes look like a bundle. Bundles are JSON objects that open with their format; catalogs
    /// and matrices do not.
    pub fn is_one(bytes: &[u8]) -> bool {
        let text = String::from_utf8_lossy(&bytes[..bytes.len().min(64)]);
        let text = text.trim_start();
        text.starts_with('{') && text[1..].trim_start().starts_with("\"format\"")
    }

    /// The bundle as it is published.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The catalog's text and the trusted keys that signed it, if one signed exactly it. No byte of it is
    /// looked at before that.
    fn open(&self, keys: &[PublicKey]) -> Result<(Vec<u8>, Vec<KeyId>), Refusal> {
        ensure!(self.format == FORMAT, OtherFormatSnafu { found: self.format });
        ensure!(!self.signatures.is_empty(), UnsignedSnafu);
        let text = BASE64_STANDARD.decode(&self.payload).context(NotBase64Snafu)?;
        let signed = [CONTEXT, &text].concat();
        let mut signers = Vec::new();
        for Signature { key, signature } in &self.signatures {
            let Some(public) = keys.iter().find(|public| public.id() == *key) else {
                continue;
            };
            let genuine = BASE64_STANDARD.decode(signature).is_ok_and(|bytes| {
                UnparsedPublicKey::new(&ED25519, public.0).verify(&signed, &bytes).is_ok()
            });
            ensure!(genuine, TamperedSnafu { key: key.clone() });
            signers.push(key.clone());
        }
        let list = |ids: &mut dyn Iterator<Item = KeyId>| {
            let ids: Vec<_> = ids.map(|id| id.to_string()).collect();
            if ids.is_empty() { "none".to_owned() } else { ids.join(", ") }
        };
        ensure!(
            !signers.is_empty(),
            UnknownKeySnafu {
                found: list(&mut self.signatures.iter().map(|signature| signature.key.clone())),
                trusted: list(&mut keys.iter().map(PublicKey::id)),
            }
        );
        Ok((text, signers))
    }
}

/// Whom a source is believed to be.
#[derive(Debug, Clone, Copy)]
pub struct Trust<'a> {
    /// Keys whose signature counts.
    pub keys: &'a [PublicKey],
    /// Whether a catalog without a signature is taken: only where the admin put it there by hand.
    pub unsigned: bool,
}

/// Takes in what a source sends, and no more than a bundle can have.
///
/// For streams of unknown length: nothing beyond the limit is ever held.
#[derive(Debug, Default)]
pub struct Intake {
    bytes: Vec<u8>,
}

impl Intake {
    /// Refuses at once a source that says it will send too much.
    pub fn expecting(length: Option<u64>) -> Result<Self, Refusal> {
        let fits = length.is_none_or(|length| length <= MAX_BUNDLE_BYTES as u64);
        ensure!(fits, TooLargeSnafu);
        Ok(Self::default())
    }

    /// Takes the next piece.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), Refusal> {
        ensure!(self.bytes.len().saturating_add(piece.len()) <= MAX_BUNDLE_BYTES, TooLargeSnafu);
        self.bytes.extend_from_slice(piece);
        Ok(())
    }

    /// Takes a whole stream.
    pub fn drain(mut self, mut from: impl Read) -> Result<Vec<u8>, Refusal> {
        let mut piece = vec![0; 64 << 10];
        loop {
            match from.read(&mut piece).context(UnreadableSnafu)? {
                0 => return Ok(self.bytes),
                length => self.push(&piece[..length])?,
            }
        }
    }

    /// What was taken in.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// The catalog in use, and the rules by which another takes its place.
#[derive(Debug, Clone)]
pub struct CatalogStore {
    catalog: Arc<Catalog>,
    /// SHA-256 of the text it was read from.
    digest: [u8; 32],
    /// Whether it was signed.
    signed: bool,
    /// By key, the newest catalog ever taken that it signed. It outlives its use: a catalog written by
    /// hand, or signed with another key, may stand in between and must not open the way back.
    newest: BTreeMap<KeyId, Newest>,
}

#[derive(Debug, Clone, Copy)]
struct Newest {
    serial: u64,
    /// Its text, if this program saw it; of one from before a restart only the serial is known.
    digest: Option<[u8; 32]>,
}

impl CatalogStore {
    /// Starts with the embedded catalog, which is as good as signed with the keys of the build: it came
    /// with the program.
    pub fn embedded() -> Self {
        let catalog = Arc::new(crate::embedded().clone());
        let digest = sha256(crate::EMBEDDED.as_bytes());
        let newest = Newest { serial: catalog.serial, digest: Some(digest) };
        let keys = project_keys().unwrap_or_default();
        let newest = keys.iter().map(|key| (key.id(), newest)).collect();
        Self { catalog, digest, signed: false, newest }
    }

    /// Takes no catalog signed with one of these keys that is older than its serial: the highest that was
    /// in use before a restart, from [`CatalogStore::floors`]. A catalog of this very serial is taken, since it
    /// is the one to go on with.
    #[must_use]
    pub fn with_floors(mut self, floors: &BTreeMap<KeyId, u64>) -> Self {
        for (key, &serial) in floors {
            if self.newest.get(key).is_none_or(|known| serial > known.serial) {
                self.newest.insert(key.clone(), Newest { serial, digest: None });
            }
        }
        self
    }

    /// By key, the highest serial of a catalog taken so far that it signed, to be kept over a restart.
    pub fn floors(&self) -> BTreeMap<KeyId, u64> {
        self.newest.iter().map(|(key, newest)| (key.clone(), newest.serial)).collect()
    }

    /// The catalog in use.
    pub fn catalog(&self) -> Arc<Catalog> {
        Arc::clone(&self.catalog)
    }

    /// Whether the catalog in use was signed.
    pub fn is_signed(&self) -> bool {
        self.signed
    }

    /// `sha256:...` of the catalog in use, for status.
    pub fn digest(&self) -> String {
        format!("sha256:{}", hex(&self.digest))
    }

    /// Since when the catalog in use should have been followed by a newer one, if it should.
    pub fn overdue(&self, now: Timestamp) -> Option<Timestamp> {
        self.catalog.expires.filter(|expires| *expires <= now)
    }

    /// Offers another catalog. `Ok(true)`: it is in use now. `Ok(false)`: it is the one in use already.
    /// An error changes nothing.
    pub fn offer(
        &mut self,
        bytes: &[u8],
        trust: Trust<'_>,
        now: Timestamp,
    ) -> Result<bool, Refusal> {
        self.take(bytes, trust, Some(now))
    }

    /// Puts back the catalog that was in use before a restart. Its expiry was judged when it was taken and
    /// does not count again; its signature and its serial do.
    pub fn restore(&mut self, bytes: &[u8], trust: Trust<'_>) -> Result<bool, Refusal> {
        self.take(bytes, trust, None)
    }

    fn take(
        &mut self,
        bytes: &[u8],
        trust: Trust<'_>,
        now: Option<Timestamp>,
    ) -> Result<bool, Refusal> {
        ensure!(bytes.len() <= MAX_BUNDLE_BYTES, TooLargeSnafu);
        let bundle = Bundle::is_one(bytes)
            .then(|| serde_json::from_slice::<Bundle>(bytes))
            .transpose()
            .context(DamagedSnafu)?;
        let (text, signers) = match bundle {
            Some(bundle) => bundle.open(trust.keys)?,
            None if trust.unsigned => (bytes.to_vec(), Vec::new()),
            None => return UnsignedSnafu.fail(),
        };
        let (digest, signed) = (sha256(&text), !signers.is_empty());
        if digest == self.digest && signed == self.signed {
            // One taken by a VDO that did not ask for an expiry.
            let endless = signed && !self.catalog.is_matrix() && self.catalog.expires.is_none();
            ensure!(!endless || now.is_none(), NoExpirySnafu);
            return Ok(false);
        }
        let mut catalog = read(&text)?;
        let mut newest = self.newest.clone();
        // A matrix of the Go VDO has no serial; a signature is all that can be asked of it.
        if signed && !catalog.is_matrix() {
            self.check_order(&signers, catalog.serial, digest)?;
            if let Some(now) = now {
                let expires = catalog.expires.context(NoExpirySnafu)?;
                ensure!(expires > now, ExpiredSnafu { expired: expires });
            }
            catalog.signed = true;
            let taken = Newest { serial: catalog.serial, digest: Some(digest) };
            newest.extend(signers.into_iter().map(|key| (key, taken)));
        }
        *self = Self { catalog: Arc::new(catalog), digest, signed, newest };
        Ok(true)
    }

    /// Whether a catalog is none that goes back behind another of one of its signers.
    fn check_order(
        &self,
        signers: &[KeyId],
        offered: u64,
        digest: [u8; 32],
    ) -> Result<(), Refusal> {
        for known in signers.iter().filter_map(|key| self.newest.get(key)) {
            let newest = known.serial;
            ensure!(offered >= newest, RolledBackSnafu { offered, newest });
            let another = known.digest.is_some_and(|known| known != digest);
            ensure!(offered > newest || !another, SerialReusedSnafu { serial: offered });
        }
        Ok(())
    }
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
    out
}
