//! Certificates for every server and user of a test.

use std::net::IpAddr;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType,
};
use snafu::ResultExt;

use crate::error::{CertificateSnafu, Error};

/// The certificate authority of a test.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key, both PEM, and the certificate's DER for thumbprints.
#[derive(Clone)]
pub struct Identity {
    pub certificate: String,
    pub key: String,
    /// The certificate in DER.
    pub der: Vec<u8>,
}

impl Authority {
    pub fn new(name: &str) -> Result<Self, Error> {
        let make = || {
            let mut params = CertificateParams::default();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
            params.distinguished_name.push(DnType::CommonName, name);
            CertifiedIssuer::self_signed(params, KeyPair::generate()?)
        };
        Ok(Self { issuer: make().context(CertificateSnafu { name })? })
    }

    /// The CA certificate, PEM.
    pub fn certificate(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate for a server with these host names and addresses.
    pub fn server(&self, names: &[&str]) -> Result<Identity, Error> {
        self.server_valid(names, true)
    }

    /// A server certificate that expired yesterday.
    pub fn expired_server(&self, names: &[&str]) -> Result<Identity, Error> {
        self.server_valid(names, false)
    }

    fn server_valid(&self, names: &[&str], valid: bool) -> Result<Identity, Error> {
        let name = names.first().copied().unwrap_or("server");
        let make = || {
            let mut params = CertificateParams::default();
            params.distinguished_name.push(DnType::CommonName, name);
            params.extended_key_usages =
                vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
            for name in names {
                params.subject_alt_names.push(match name.parse::<IpAddr>() {
                    Ok(address) => SanType::IpAddress(address),
                    Err(_) => SanType::DnsName((*name).try_into()?),
                });
            }
            let now = std::time::SystemTime::now();
            let day = std::time::Duration::from_hours(24);
            params.not_before = (now - 30 * day).into();
            params.not_after = if valid { now + 365 * day } else { now - day }.into();
            self.issue(&params)
        };
        make().context(CertificateSnafu { name })
    }

    /// A client certificate for the Kubernetes user `name` in one group.
    pub fn client(&self, name: &str, group: &str) -> Result<Identity, Error> {
        let make = || {
            let mut params = CertificateParams::default();
            params.distinguished_name.push(DnType::CommonName, name);
            params.distinguished_name.push(DnType::OrganizationName, group);
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            self.issue(&params)
        };
        make().context(CertificateSnafu { name })
    }

    fn issue(&self, params: &CertificateParams) -> Result<Identity, rcgen::Error> {
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Identity {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
            der: certificate.der().to_vec(),
        })
    }
}

impl Identity {
    /// The SHA-1 thumbprint in the colon form of vSphere.
    pub fn thumbprint_sha1(&self) -> String {
        thumbprint(&aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY, &self.der)
    }

    /// The SHA-256 thumbprint in the colon form of vSphere.
    pub fn thumbprint_sha256(&self) -> String {
        thumbprint(&aws_lc_rs::digest::SHA256, &self.der)
    }
}

fn thumbprint(algorithm: &'static aws_lc_rs::digest::Algorithm, der: &[u8]) -> String {
    let digest = aws_lc_rs::digest::digest(algorithm, der);
    digest.as_ref().iter().map(|byte| format!("{byte:02X}")).collect::<Vec<_>>().join(":")
}
