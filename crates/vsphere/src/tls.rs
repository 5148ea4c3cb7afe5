//! TLS trust: how a vCenter's certificate is verified.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, OtherError, RootCertStore,
    SignatureScheme,
};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// How a vCenter proves its identity.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Trust {
    /// A certificate authority that this host trusts has issued the certificate.
    #[default]
    System,
    /// A certificate authority in this PEM bundle has issued the certificate, or the bundle
    /// contains the certificate itself.
    CaBundle(String),
    /// The certificate has this thumbprint. The thumbprint is proof enough: the client checks
    /// neither name nor validity.
    Thumbprint(Thumbprint),
    /// No verification. Anybody on the network path can read the password.
    Insecure,
}

/// The digest of a certificate: SHA-1, which older vCenter tools show, or SHA-256.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Thumbprint(Box<[u8]>);

impl Thumbprint {
    fn sha1(certificate: &[u8]) -> Self {
        Self(digest(&SHA1_FOR_LEGACY_USE_ONLY, certificate).as_ref().into())
    }

    fn sha256(certificate: &[u8]) -> Self {
        Self(digest(&SHA256, certificate).as_ref().into())
    }

    /// The digest of `certificate` with the same algorithm.
    fn same_kind(&self, certificate: &[u8]) -> Self {
        if self.0.len() == 20 { Self::sha1(certificate) } else { Self::sha256(certificate) }
    }
}

impl FromStr for Thumbprint {
    type Err = String;

    /// Parses 40 or 64 hexadecimal digits, with or without colons or blanks.
    fn from_str(text: &str) -> Result<Self, String> {
        let digits: Vec<u8> = text.bytes().filter(|b| !b": \t\r\n".contains(b)).collect();
        let value = |b: u8| char::from(b).to_digit(16).and_then(|v| u8::try_from(v).ok());
        let bytes: Option<Box<[u8]>> = digits
            .chunks(2)
            .map(|pair| match pair {
                [high, low] => Some(value(*high)? << 4 | value(*low)?),
                _ => None,
            })
            .collect();
        match bytes {
            Some(bytes) if matches!(bytes.len(), 20 | 32) => Ok(Self(bytes)),
            _ => Err("a thumbprint has 40 (SHA-1) or 64 (SHA-256) hexadecimal digits".to_owned()),
        }
    }
}

impl fmt::Display for Thumbprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            write!(f, "{}{byte:02X}", if i == 0 { "" } else { ":" })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Thumbprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A certificate that failed verification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateRefused {
    pub reason: Refusal,
    pub seen: Thumbprint,
    pub shown: Box<Shown>,
}

/// The contents of a certificate, to help an administrator decide whether to trust it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shown {
    /// The distinguished name of the owner.
    pub subject: String,
    /// The distinguished name of the issuer.
    pub issuer: String,
    /// The DNS names and IP addresses in the certificate.
    pub names: Vec<String>,
    /// The end of validity, in seconds since 1970.
    pub until: i64,
}

impl Shown {
    fn from_der(certificate: &[u8]) -> Self {
        let Ok((_, parsed)) = X509Certificate::from_der(certificate) else {
            return Self::default();
        };
        Self {
            subject: parsed.subject().to_string(),
            issuer: parsed.issuer().to_string(),
            names: names(certificate),
            until: parsed.validity().not_after.timestamp(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The thumbprint differs from the expected one.
    Thumbprint {
        /// The configured thumbprint.
        expected: Thumbprint,
        /// The certificate's thumbprint, with the same algorithm.
        seen: Thumbprint,
    },
    /// The validity has ended.
    Expired,
    /// The validity has not begun, or this host's clock is wrong.
    NotYetValid,
    /// The certificate does not cover this host name.
    Name {
        /// The names it covers.
        names: Vec<String>,
    },
    /// No trusted authority has issued it.
    Untrusted,
    /// The TLS library's message for any other reason.
    Other(String),
}

impl fmt::Display for CertificateRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            Refusal::Thumbprint { expected, seen } => {
                write!(
                    f,
                    "its thumbprint is {seen}, not {expected}; if vCenter has a new certificate, configure its thumbprint"
                )
            }
            Refusal::Expired => {
                f.write_str("it has expired; renew it in vCenter, or correct this host's clock")
            }
            Refusal::NotYetValid => {
                f.write_str("it is not valid yet; check the clocks of this host and of vCenter")
            }
            Refusal::Name { names } => {
                write!(f, "it is valid for {}; use one of these names", names.join(", "))
            }
            Refusal::Untrusted => write!(
                f,
                "its issuer is not trusted; configure the issuer's CA certificate or, after you compare it with the one vCenter shows, the thumbprint {}",
                self.seen
            ),
            Refusal::Other(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for CertificateRefused {}

/// Builds the TLS configuration for `trust`. The error is a message for the user.
pub(crate) fn client_config(trust: &Trust) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = Verifier {
        rule: VerificationRule::new(trust, &provider)?,
        provider: Arc::clone(&provider),
    };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    Ok(config)
}

#[derive(Debug)]
enum VerificationRule {
    IssuedBy { verifier: Arc<WebPkiServerVerifier>, listed: Vec<CertificateDer<'static>> },
    Pinned(Thumbprint),
    AcceptAll,
}

impl VerificationRule {
    fn new(trust: &Trust, provider: &Arc<CryptoProvider>) -> Result<Self, String> {
        let (roots, listed) = match trust {
            Trust::Insecure => return Ok(Self::AcceptAll),
            Trust::Thumbprint(thumbprint) => return Ok(Self::Pinned(thumbprint.clone())),
            Trust::System => {
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                if roots.is_empty() {
                    return Err(
                        "this host trusts no certificate authority; install CA certificates, \
                                or configure a CA bundle or a thumbprint"
                            .to_owned(),
                    );
                }
                (roots, Vec::new())
            }
            Trust::CaBundle(pem) => {
                let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem.as_bytes())
                    .collect::<Result<_, _>>()
                    .map_err(|e| format!("the CA bundle is not PEM: {e}"))?;
                let mut roots = RootCertStore::empty();
                let (added, _) = roots.add_parsable_certificates(certificates.iter().cloned());
                if added == 0 {
                    return Err("the CA bundle contains no certificate".to_owned());
                }
                (roots, certificates)
            }
        };
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
                .build()
                .map_err(|e| e.to_string())?;
        Ok(Self::IssuedBy { verifier, listed })
    }
}

#[derive(Debug)]
struct Verifier {
    rule: VerificationRule,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let refusal = match &self.rule {
            VerificationRule::AcceptAll => return Ok(ServerCertVerified::assertion()),
            VerificationRule::Pinned(expected) => {
                let seen = expected.same_kind(end_entity);
                if seen == *expected {
                    return Ok(ServerCertVerified::assertion());
                }
                Refusal::Thumbprint { expected: expected.clone(), seen }
            }
            VerificationRule::IssuedBy { verifier, listed } => {
                let error = match verifier.verify_server_cert(
                    end_entity,
                    intermediates,
                    server_name,
                    ocsp_response,
                    now,
                ) {
                    Ok(verified) => return Ok(verified),
                    Err(error) => error,
                };
                // A self-signed certificate in the bundle is its own issuer, which the library
                // rejects. The bundle makes it trusted; name and validity must still be right.
                let is_listed = listed.iter().any(|trusted| trusted == end_entity);
                match refusal(&error, end_entity) {
                    Refusal::Untrusted | Refusal::Other(_) if is_listed => {
                        match check_listed(end_entity, server_name, now) {
                            None => return Ok(ServerCertVerified::assertion()),
                            Some(refusal) => refusal,
                        }
                    }
                    refusal => refusal,
                }
            }
        };
        let refused = CertificateRefused {
            reason: refusal,
            seen: Thumbprint::sha256(end_entity),
            shown: Box::new(Shown::from_der(end_entity)),
        };
        Err(rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(
            refused,
        )))))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn refusal(error: &rustls::Error, certificate: &[u8]) -> Refusal {
    let rustls::Error::InvalidCertificate(error) = error else {
        return Refusal::Other(error.to_string());
    };
    match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => Refusal::Expired,
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            Refusal::NotYetValid
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            Refusal::Name { names: names(certificate) }
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => Refusal::Untrusted,
        // A self-signed CA certificate. The library has no name for this case.
        CertificateError::Other(OtherError(error))
            if format!("{error:?}").contains("CaUsedAsEndEntity") =>
        {
            Refusal::Untrusted
        }
        other => Refusal::Other(other.to_string()),
    }
}

/// Checks name and validity of a certificate that the bundle contains.
fn check_listed(
    certificate: &[u8],
    server_name: &ServerName<'_>,
    now: UnixTime,
) -> Option<Refusal> {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else {
        return Some(Refusal::Other("it cannot be read".to_owned()));
    };
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    if parsed.validity().not_after.timestamp() < now {
        return Some(Refusal::Expired);
    }
    if parsed.validity().not_before.timestamp() > now {
        return Some(Refusal::NotYetValid);
    }
    let names = names(certificate);
    let expected = server_name.to_str();
    let fits = |name: &String| {
        name.eq_ignore_ascii_case(&expected)
            || name.strip_prefix("*.").is_some_and(|domain| {
                expected.split_once('.').is_some_and(|(_, rest)| rest.eq_ignore_ascii_case(domain))
            })
    };
    if names.iter().any(fits) { None } else { Some(Refusal::Name { names }) }
}

/// The DNS names and IP addresses that a certificate covers.
fn names(certificate: &[u8]) -> Vec<String> {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else {
        return Vec::new();
    };
    let Ok(Some(alternatives)) = parsed.subject_alternative_name() else {
        return Vec::new();
    };
    let name = |general: &GeneralName<'_>| match general {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => <[u8; 4]>::try_from(*bytes).ok().map(|b| std::net::Ipv4Addr::from(b).to_string()),
            16 => {
                <[u8; 16]>::try_from(*bytes).ok().map(|b| std::net::Ipv6Addr::from(b).to_string())
            }
            _ => None,
        },
        _ => None,
    };
    alternatives.value.general_names.iter().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thumbprints_parse_in_every_spelling_and_display_in_one() {
        let colons = "AB:CD:EF:01:23:45:67:89:AB:CD:EF:01:23:45:67:89:AB:CD:EF:01";
        for text in [
            colons,
            "abcdef0123456789abcdef0123456789abcdef01",
            " ABCD EF01 23456789ABCDEF0123456789ABCDEF01\n",
        ] {
            assert_eq!(text.parse::<Thumbprint>().unwrap().to_string(), colons);
        }
        assert_eq!("ab".repeat(32).parse::<Thumbprint>().unwrap().0.len(), 32);
    }

    #[test]
    fn an_invalid_thumbprint_is_rejected() {
        for text in ["", "AB:CD", "zz", &"a".repeat(41), &"ab".repeat(31)] {
            assert!(text.parse::<Thumbprint>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_bundle_without_certificates_is_rejected() {
        let error = client_config(&Trust::CaBundle("hello".to_owned())).unwrap_err();
        assert_eq!(error, "the CA bundle contains no certificate");
    }
}
