//! Which catalogs the operator trusts.
//!
//! A catalog from the network comes in a *bundle*: the text and its signatures. It replaces the catalog in use
//! only if
//!
//! - a trusted key signed exactly this text,
//! - its serial is higher than that of every catalog this key signed before,
//! - it has an expiry in the future, and
//! - it is valid.
//!
//! Otherwise nothing changes: the last good catalog stays in use, and the [`Refusal`] states the reason.
//! Serials of different keys are never compared, so no publisher can lock out another.
//!
//! ```text
//!   stream ─► BoundedBuffer ─► bundle ─► signature ─► read ─► serial, expiry ─► CatalogStore
//!             (size limit)           (before any parsing)                        (in use)
//! ```
//!
//! A compatibility matrix of the Go VDO has neither serial nor expiry. From the network it needs a signature.
//!
//! A catalog that the admin puts into the cluster needs no signature: the admin can change the drivers anyway.
//! A catalog in use keeps working after its expiry, even across a restart ([`CatalogStore::restore`]); VDO only
//! warns ([`CatalogStore::overdue`]). VDO refuses a *new* catalog that has expired, because an attacker who
//! controls the network could use old catalogs to hold a cluster back.
//!
//! The signature also covers the code that runs as root: VDO installs a release of a signed catalog only if
//! all its images have a digest ([`crate::why::Reason::ImagesNotPinned`]).

mod keys;

use std::{
    collections::BTreeMap,
    io::{self, Read},
    sync::Arc,
};

use aws_lc_rs::digest;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use snafu::{OptionExt, ResultExt, Snafu, ensure};

use self::keys::hex;
pub use self::keys::{
    KeyError, KeyId, PublicKey, SigningKey, build_keys, built_in_keys, read_keys,
};
use crate::{
    model::Catalog,
    parse::{self, ReadError},
    read::read,
};

/// The size limit of a bundle: the largest catalog in base64, and room for signatures.
pub const MAX_BUNDLE_BYTES: usize = parse::MAX_BYTES / 3 * 4 + (64 << 10);

/// The media type of a bundle in an OCI registry and in HTTP headers.
pub const MEDIA_TYPE: &str = "application/vnd.vmware.vdo.catalog.bundle.v1+json";

/// The prefix of the signed text, so that a signature made for another purpose is not valid here.
const CONTEXT: &[u8] = b"vdo-catalog-bundle-v1\n";

/// The bundle format that this operator reads.
const FORMAT: u64 = 1;

#[derive(Debug, Snafu)]
pub enum Refusal {
    #[snafu(display(
        "the catalog is larger than {} MiB; VDO stopped reading and uses nothing of it",
        MAX_BUNDLE_BYTES >> 20
    ))]
    TooLarge,
    #[snafu(display("the catalog could not be read completely"))]
    Unreadable { source: io::Error },
    /// Looks like a bundle, but cannot be parsed.
    #[snafu(display("the catalog bundle is incomplete or damaged: it is not valid JSON"))]
    Damaged { source: serde_json::Error },
    #[snafu(display(
        "the catalog bundle has format {found}; this operator reads {FORMAT}. Upgrade the operator"
    ))]
    OtherFormat { found: u64 },
    #[snafu(display("the catalog in the bundle is not base64"))]
    NotBase64 { source: base64::DecodeError },
    #[snafu(display("the catalog is not signed; a catalog from the network must be"))]
    Unsigned,
    #[snafu(display(
        "the catalog is signed with {found}, but the trusted keys are {trusted}; add a new key to spec.publicKey of the CompatibilityConfig"
    ))]
    UnknownKey { found: String, trusted: String },
    /// The signature belongs to another text.
    #[snafu(display(
        "the signature of key {key} does not match: the catalog was changed after it was signed"
    ))]
    Tampered { key: KeyId },
    #[snafu(display(
        "the catalog has serial {offered}, older than {newest}, which was accepted before"
    ))]
    RolledBack { offered: u64, newest: u64 },
    /// Two different catalogs share a serial.
    #[snafu(display(
        "the catalog has serial {serial} like one accepted before, but other content"
    ))]
    SerialReused { serial: u64 },
    /// Without an expiry, an attacker could offer a faulty catalog again for ever.
    #[snafu(display(
        "the catalog has no expiry, but a signed catalog needs one: set `expires` and sign it again"
    ))]
    NoExpiry,
    #[snafu(display("the catalog expired on {expired}; the source that offers it is out of date"))]
    Expired { expired: Timestamp },
    #[snafu(transparent)]
    Read { source: ReadError },
}

/// A catalog and its signatures, in transport format.
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
    /// Signs a catalog. Several keys allow a key rotation without a gap.
    pub fn sign(text: &[u8], keys: &[SigningKey]) -> Self {
        let signed = [CONTEXT, text].concat();
        let signature = |key: &SigningKey| Signature {
            key: key.public().id(),
            signature: BASE64_STANDARD.encode(key.sign(&signed)),
        };
        let signatures = keys.iter().map(signature).collect();
        Self { format: FORMAT, payload: BASE64_STANDARD.encode(text), signatures }
    }

    /// True if the bytes look like a bundle: a JSON object that starts with `format`. Catalogs and matrices
    /// do not.
    pub fn is_bundle(bytes: &[u8]) -> bool {
        let text = String::from_utf8_lossy(&bytes[..bytes.len().min(64)]);
        let text = text.trim_start();
        text.starts_with('{') && text[1..].trim_start().starts_with("\"format\"")
    }

    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Returns the catalog's text and the trusted keys that signed exactly this text. Nothing parses the text
    /// before this check.
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
            let genuine = BASE64_STANDARD
                .decode(signature)
                .is_ok_and(|signature| public.verifies(&signed, &signature));
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

/// The trust that a source of catalogs gets.
#[derive(Debug, Clone, Copy)]
pub struct Trust<'a> {
    /// Keys whose signature is accepted.
    pub keys: &'a [PublicKey],
    /// Accept unsigned catalogs: only for the admin's own.
    pub unsigned: bool,
}

/// Collects the bytes of a source up to the size limit of a bundle. Beyond the limit it keeps nothing, so the
/// length of the stream does not matter.
#[derive(Debug, Default)]
pub struct BoundedBuffer {
    bytes: Vec<u8>,
}

impl BoundedBuffer {
    /// Fails at once if the source announces more than the limit.
    pub fn expecting(length: Option<u64>) -> Result<Self, Refusal> {
        let fits = length.is_none_or(|length| length <= MAX_BUNDLE_BYTES as u64);
        ensure!(fits, TooLargeSnafu);
        Ok(Self::default())
    }

    pub fn push(&mut self, piece: &[u8]) -> Result<(), Refusal> {
        ensure!(self.bytes.len().saturating_add(piece.len()) <= MAX_BUNDLE_BYTES, TooLargeSnafu);
        self.bytes.extend_from_slice(piece);
        Ok(())
    }

    /// Reads a whole stream.
    pub fn drain(mut self, mut from: impl Read) -> Result<Vec<u8>, Refusal> {
        let mut piece = vec![0; 64 << 10];
        loop {
            match from.read(&mut piece).context(UnreadableSnafu)? {
                0 => return Ok(self.bytes),
                length => self.push(&piece[..length])?,
            }
        }
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// The catalog in use, and the rules for replacing it.
#[derive(Debug, Clone)]
pub struct CatalogStore {
    catalog: Arc<Catalog>,
    /// SHA-256 of its text.
    digest: [u8; 32],
    signed: bool,
    /// Per key, the newest accepted catalog that the key signed. An entry stays when an unsigned catalog or
    /// one of another key replaces that catalog, so that an older one cannot return later.
    newest: BTreeMap<KeyId, Newest>,
}

#[derive(Debug, Clone, Copy)]
struct Newest {
    serial: u64,
    /// The digest of its text. `None` if it was accepted before a restart: then only the serial is known.
    digest: Option<[u8; 32]>,
}

impl CatalogStore {
    /// Starts with the embedded catalog. It counts as signed with the keys of the build, because it came with
    /// the program.
    pub fn embedded() -> Self {
        let catalog = Arc::new(crate::embedded().clone());
        let digest = sha256(crate::EMBEDDED.as_bytes());
        let newest = Newest { serial: catalog.serial, digest: Some(digest) };
        let keys = build_keys().unwrap_or_default();
        let newest = keys.iter().map(|key| (key.id(), newest)).collect();
        Self { catalog, digest, signed: false, newest }
    }

    /// Sets, per key, the lowest acceptable serial: the highest one accepted before a restart, from
    /// [`CatalogStore::floors`]. A catalog with exactly this serial is accepted, because it is the one to
    /// continue with.
    #[must_use]
    pub fn with_floors(mut self, floors: &BTreeMap<KeyId, u64>) -> Self {
        for (key, &serial) in floors {
            if self.newest.get(key).is_none_or(|known| serial > known.serial) {
                self.newest.insert(key.clone(), Newest { serial, digest: None });
            }
        }
        self
    }

    /// Per key, the highest serial accepted so far, to be stored across a restart.
    pub fn floors(&self) -> BTreeMap<KeyId, u64> {
        self.newest.iter().map(|(key, newest)| (key.clone(), newest.serial)).collect()
    }

    pub fn catalog(&self) -> Arc<Catalog> {
        Arc::clone(&self.catalog)
    }

    pub fn is_signed(&self) -> bool {
        self.signed
    }

    /// `sha256:...` of the catalog in use, for the status.
    pub fn digest(&self) -> String {
        format!("sha256:{}", hex(&self.digest))
    }

    /// The expiry of the catalog in use, if it has passed.
    pub fn overdue(&self, now: Timestamp) -> Option<Timestamp> {
        self.catalog.expires.filter(|expires| *expires <= now)
    }

    /// Offers another catalog. `Ok(true)`: it is in use now. `Ok(false)`: it was in use already. An error changes
    /// nothing.
    pub fn offer(
        &mut self,
        bytes: &[u8],
        trust: Trust<'_>,
        now: Timestamp,
    ) -> Result<bool, Refusal> {
        self.take(bytes, trust, Some(now))
    }

    /// Restores the catalog that was in use before a restart. Its signature and serial are checked again, its
    /// expiry is not.
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
        let bundle = Bundle::is_bundle(bytes)
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
            return Ok(false);
        }
        let mut catalog = read(&text)?;
        let mut newest = self.newest.clone();
        // A matrix of the Go VDO has no serial. So it counts as older than every catalog of the same signer.
        if signed {
            self.check_order(&signers, catalog.serial, digest)?;
        }
        if signed && !catalog.is_matrix() {
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

    /// Refuses a catalog that is older than another one of the same signer.
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
