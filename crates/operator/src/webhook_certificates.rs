//! Certificates for the webhook of the storage driver: made, read back, and due for renewal in time.
//!
//! The API server trusts the webhook by an authority that stands in the webhook's configuration. That
//! authority exists for one certificate: its key is forgotten as soon as it has signed. A renewal makes
//! a new authority, and hands on the one before, so that pods which still show the old certificate are
//! trusted until they have read the new one.

use std::{collections::BTreeMap, time::SystemTime};

use driver_config::SecretText;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use snafu::{ResultExt, Snafu};
use x509_parser::pem::Pem;

/// How long a certificate is good for.
pub const LIFE: SignedDuration = SignedDuration::from_hours(24 * 365);
/// A certificate that ends within this time is renewed.
pub const RENEWED_BEFORE: SignedDuration = SignedDuration::from_hours(24 * 60);
/// Clocks differ: a certificate is good from a little before it was made.
const SKEW: SignedDuration = SignedDuration::from_hours(24);

/// Why no certificate could be made.
#[derive(Debug, Snafu)]
#[allow(missing_docs, reason = "a field is named as in the text it stands in")]
pub enum Error {
    #[snafu(display("no certificate could be made for the webhook {host}"))]
    Make { host: String, source: rcgen::Error },
}

/// A certificate of the webhook, its key, and whom the API server has to trust for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The authority, PEM; followed by the one before, if there was one.
    pub authority: String,
    /// The certificate, PEM.
    pub certificate: String,
    /// Its key, PEM.
    pub key: SecretText,
    /// When it ends.
    pub expires: Timestamp,
}

impl Pair {
    /// A new one for the host name the API server calls the webhook by. `before` is the one that is
    /// in use, if there is one: it stays trusted.
    pub fn make(host: &str, before: Option<&Self>, now: Timestamp) -> Result<Self, Error> {
        let (from, until) = (now - SKEW, now + LIFE);
        let make = || {
            let mut params = CertificateParams::default();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
            params.distinguished_name.push(DnType::CommonName, format!("authority of {host}"));
            params.not_before = SystemTime::from(from).into();
            params.not_after = SystemTime::from(until).into();
            let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
            let mut params = CertificateParams::new(vec![host.to_owned()])?;
            params.distinguished_name.push(DnType::CommonName, host);
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            params.not_before = SystemTime::from(from).into();
            params.not_after = SystemTime::from(until).into();
            let key = KeyPair::generate()?;
            let certificate = params.signed_by(&key, &issuer)?;
            Ok((issuer.pem(), certificate.pem(), key.serialize_pem()))
        };
        let (authority, certificate, key) = make().context(MakeSnafu { host })?;
        let before = before.and_then(|pair| first(&pair.authority)).unwrap_or_default();
        Ok(Self { authority: authority + &before, certificate, key: key.into(), expires: until })
    }

    /// The one a Secret holds; none if it holds none that can be read, or not whom to trust for it, as
    /// where other hands made it.
    pub fn read(data: &BTreeMap<String, ByteString>) -> Option<Self> {
        let text = |key: &str| String::from_utf8(data.get(key)?.0.clone()).ok();
        let (authority, certificate) = (text("ca.crt")?, text("tls.crt")?);
        let expires = expiry(&certificate)?;
        Some(Self { authority, certificate, key: text("tls.key")?.into(), expires })
    }

    /// Whether it is time for another.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.expires.duration_since(now) < RENEWED_BEFORE
    }

    /// What stands in the Secret, beside the settings of the webhook.
    pub fn data(&self) -> BTreeMap<String, ByteString> {
        let entry = |key: &str, text: &str| (key.to_owned(), ByteString(text.as_bytes().to_vec()));
        BTreeMap::from([
            entry("ca.crt", &self.authority),
            entry("tls.crt", &self.certificate),
            entry("tls.key", self.key.expose()),
            entry("webhook.config", catalog::manifest::webhook::CONFIG),
        ])
    }
}

/// When the first certificate of a PEM text ends.
pub fn expiry(pem: &str) -> Option<Timestamp> {
    let first = Pem::iter_from_buffer(pem.as_bytes()).next()?.ok()?;
    let certificate = first.parse_x509().ok()?;
    Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()
}

/// The first certificate of a PEM text.
fn first(pem: &str) -> Option<String> {
    const END: &str = "-----END CERTIFICATE-----";
    let (text, _) = pem.split_once(END)?;
    Some(format!("{}{END}\n", text.trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(day: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap() + SignedDuration::from_hours(24 * day)
    }

    #[test]
    fn a_certificate_comes_back_from_its_secret_and_is_due_two_months_before_its_end() {
        let pair = Pair::make("hook.home.svc", None, at(0)).unwrap();
        assert_eq!(Pair::read(&pair.data()), Some(pair.clone()));
        assert!(!pair.is_due(at(300)));
        assert!(pair.is_due(at(306)));
        assert!(!format!("{pair:?}").contains("PRIVATE KEY"), "a key does not show");
    }

    #[test]
    fn the_authority_before_stays_trusted_and_the_one_before_that_does_not() {
        let first = Pair::make("hook.home.svc", None, at(0)).unwrap();
        let second = Pair::make("hook.home.svc", Some(&first), at(300)).unwrap();
        let third = Pair::make("hook.home.svc", Some(&second), at(600)).unwrap();
        assert!(second.authority.ends_with(&first.authority));
        assert_eq!(third.authority.matches("BEGIN CERTIFICATE").count(), 2);
        assert!(!third.authority.contains(&first.authority));
    }

    #[test]
    fn what_other_hands_made_is_not_taken_for_ours() {
        let mut data = Pair::make("hook.home.svc", None, at(0)).unwrap().data();
        data.remove("ca.crt");
        assert_eq!(Pair::read(&data), None);
        data.insert("ca.crt".into(), ByteString(b"x".to_vec()));
        data.insert("tls.crt".into(), ByteString(b"nonsense".to_vec()));
        assert_eq!(Pair::read(&data), None);
    }
}
