//! Certificates for the webhook of the storage driver: creates them, reads them back, and renews them in
//! time.
//!
//! The API server trusts the webhook through the CA certificate in the webhook's configuration. That CA
//! exists for a single certificate: VDO discards the key of the CA right after signing. A renewal creates a
//! new CA and keeps the previous CA certificate. So the API server trusts pods with the old certificate until
//! they have read the new one.

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

/// The validity of a certificate.
pub const LIFE: SignedDuration = SignedDuration::from_hours(24 * 365);
/// VDO renews a certificate that expires within this time.
pub const RENEWED_BEFORE: SignedDuration = SignedDuration::from_hours(24 * 60);
/// Clocks differ, so a certificate is valid from a little before its creation.
const SKEW: SignedDuration = SignedDuration::from_hours(24);

#[derive(Debug, Snafu)]
#[allow(missing_docs, reason = "a field is named as in the text it stands in")]
pub enum Error {
    #[snafu(display("no certificate could be created for the webhook {host}"))]
    Issue { host: String, source: rcgen::Error },
}

/// A certificate of the webhook, its key, and the CA certificates that the API server must trust.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The CA certificate as PEM, followed by the previous one if there was one.
    pub authority: String,
    /// The certificate as PEM.
    pub certificate: String,
    /// The key of the certificate as PEM.
    pub key: SecretText,
    /// When the certificate expires.
    pub expires: Timestamp,
}

impl Pair {
    /// Creates a certificate for the host name that the API server uses for the webhook. `before` is the
    /// certificate in use, if any: its CA stays trusted.
    pub fn issue(host: &str, before: Option<&Self>, now: Timestamp) -> Result<Self, Error> {
        let (from, until) = (now - SKEW, now + LIFE);
        let issue = || {
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
        let (authority, certificate, key) = issue().context(IssueSnafu { host })?;
        let before = before.and_then(|pair| first(&pair.authority)).unwrap_or_default();
        Ok(Self { authority: authority + &before, certificate, key: key.into(), expires: until })
    }

    /// Reads the certificate in a Secret. `None` if the Secret has no readable certificate, or no CA
    /// certificate, as in a Secret that is not managed by VDO.
    pub fn read(data: &BTreeMap<String, ByteString>) -> Option<Self> {
        let text = |key: &str| String::from_utf8(data.get(key)?.0.clone()).ok();
        let (authority, certificate) = (text("ca.crt")?, text("tls.crt")?);
        let expires = expiry(&certificate)?;
        Some(Self { authority, certificate, key: text("tls.key")?.into(), expires })
    }

    /// Whether the certificate must be renewed.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.expires.duration_since(now) < RENEWED_BEFORE
    }

    /// The data of the Secret, including the settings of the webhook.
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

/// When the first certificate in a PEM text expires.
pub fn expiry(pem: &str) -> Option<Timestamp> {
    let first = Pem::iter_from_buffer(pem.as_bytes()).next()?.ok()?;
    let certificate = first.parse_x509().ok()?;
    Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()
}

/// The first certificate in a PEM text.
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
        let pair = Pair::issue("hook.vdo-system.svc", None, at(0)).unwrap();
        assert_eq!(Pair::read(&pair.data()), Some(pair.clone()));
        assert!(!pair.is_due(at(300)));
        assert!(pair.is_due(at(306)));
        assert!(!format!("{pair:?}").contains("PRIVATE KEY"), "a key does not show");
    }

    #[test]
    fn the_authority_before_stays_trusted_and_the_one_before_that_does_not() {
        let first = Pair::issue("hook.vdo-system.svc", None, at(0)).unwrap();
        let second = Pair::issue("hook.vdo-system.svc", Some(&first), at(300)).unwrap();
        let third = Pair::issue("hook.vdo-system.svc", Some(&second), at(600)).unwrap();
        assert!(second.authority.ends_with(&first.authority));
        assert_eq!(third.authority.matches("BEGIN CERTIFICATE").count(), 2);
        assert!(!third.authority.contains(&first.authority));
    }

    #[test]
    fn certificates_not_made_by_vdo_are_kept() {
        let mut data = Pair::issue("hook.vdo-system.svc", None, at(0)).unwrap().data();
        data.remove("ca.crt");
        assert_eq!(Pair::read(&data), None);
        data.insert("ca.crt".into(), ByteString(b"x".to_vec()));
        data.insert("tls.crt".into(), ByteString(b"nonsense".to_vec()));
        assert_eq!(Pair::read(&data), None);
    }
}
