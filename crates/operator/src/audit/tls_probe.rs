//! Probes the certificate and the clock of a vCenter, without a login or a password.

use runtime::error_chain::error_chain;
use std::time::Duration;

use health::facts::{Known, Tls};
use jiff::Timestamp;
use reqwest::tls::TlsInfo;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Timeout for a vCenter to answer.
const WITHIN: Duration = Duration::from_secs(15);
/// A page that every vCenter serves without a login.
const PAGE: &str = "/sdk/vimServiceVersions.xml";
/// SHA-1 with RSA and with ECDSA.
const SHA1: [&str; 2] = ["1.2.840.113549.1.1.5", "1.2.840.10045.4.1"];
/// The longest RSA key that the storage driver accepts, in bits.
const LONGEST: usize = 8192;

/// The result of a probe.
#[derive(Clone, Debug, PartialEq)]
pub struct TlsProbe {
    /// The certificate. The probe does not check whether it is trusted; the login does.
    pub tls: Known<Tls>,
    /// The number of seconds that vCenter's clock is ahead of ours.
    pub clock_ahead: Known<i64>,
}

/// Probes a vCenter, given as `host` or `host:port`.
pub(super) async fn probe(address: &str) -> TlsProbe {
    match inspect(address).await {
        Ok(seen) => seen,
        Err(error) => {
            let reason = error_chain(&error);
            TlsProbe { tls: Known::unknown(&reason), clock_ahead: Known::unknown(&reason) }
        }
    }
}

/// Asks a vCenter for a page that needs no login, again and again over one connection.
pub(crate) struct AnswerProbe {
    client: Option<reqwest::Client>,
    url: String,
}

impl AnswerProbe {
    /// A probe of a vCenter, given as `host` or `host:port`.
    pub(crate) fn new(address: &str, timeout: Duration) -> Self {
        // The probe accepts any certificate, because it sends no secret and believes nothing that it reads.
        let client = reqwest::Client::builder()
            .danger_accept_invalid_certs(true)
            .timeout(timeout)
            .redirect(reqwest::redirect::Policy::none())
            .build();
        Self { client: client.ok(), url: page(address) }
    }

    /// Whether the vCenter answers at all, with any status. Only silence counts: the watch reports other failures.
    pub(crate) async fn is_answered(&self) -> bool {
        let Some(client) = &self.client else { return true };
        // Reading the whole page lets the next probe use the same connection.
        let page = async { client.get(&self.url).send().await?.bytes().await };
        match page.await {
            Ok(_) => true,
            Err(error) => !error.is_timeout(),
        }
    }
}

fn page(address: &str) -> String {
    format!("https://{}{PAGE}", address.trim_end_matches('/'))
}

async fn inspect(address: &str) -> Result<TlsProbe, reqwest::Error> {
    // The probe accepts any certificate, because it only inspects it and sends no secret.
    let client = reqwest::Client::builder()
        .danger_accept_invalid_certs(true)
        .tls_info(true)
        .timeout(WITHIN)
        .redirect(reqwest::redirect::Policy::none())
        .build()?;
    let answer = client.get(page(address)).send().await?;
    let date = answer.headers().get(reqwest::header::DATE).and_then(|date| date.to_str().ok());
    let clock = date.and_then(|date| jiff::fmt::rfc2822::parse(date).ok());
    let ahead = clock.map(|clock| clock.timestamp().as_second() - Timestamp::now().as_second());
    let silent = Known::unknown("it does not say the time");
    let info = answer.extensions().get::<TlsInfo>();
    let certificate = info.and_then(TlsInfo::peer_certificate).and_then(read);
    let hidden = Known::unknown("its certificate cannot be read");
    Ok(TlsProbe {
        tls: certificate.map_or(hidden, Known::Known),
        clock_ahead: ahead.map_or(silent, Known::Known),
    })
}

fn read(der: &[u8]) -> Option<Tls> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let expires = Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()?;
    let signed = certificate.signature_algorithm.algorithm.to_id_string();
    let bits = match certificate.public_key().parsed() {
        Ok(x509_parser::public_key::PublicKey::RSA(key)) => key.key_size(),
        _ => 0,
    };
    let outdated = if SHA1.contains(&signed.as_str()) {
        Some("it is signed with SHA-1".to_owned())
    } else {
        (bits > LONGEST).then(|| format!("its RSA key has {bits} bits"))
    };
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, der);
    let bytes: Vec<String> = digest.as_ref().iter().map(|byte| format!("{byte:02X}")).collect();
    Some(Tls { distrusted: None, expires, outdated, thumbprint: bytes.join(":") })
}
