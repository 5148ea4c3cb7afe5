//! A TLS server that says what it is told: for what a simulator of vCenter cannot be made to say.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use testkit::Authority;

/// Answers every request with what `answer` makes of its first line. Its thread ends with the
/// process.
pub(crate) struct WebServer {
    pub(crate) address: SocketAddr,
    pub(crate) ca_pem: String,
}

/// Head and body of an HTTP answer.
pub(crate) fn answer(status: &str, content_type: &str, body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

impl WebServer {
    /// With a certificate signed by itself that calls itself an authority, as appliances make them.
    pub(crate) fn self_signed(answer: impl Fn(&str) -> Vec<u8> + Send + 'static) -> Self {
        let mut parameters = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = parameters.self_signed(&key).unwrap().pem();
        Self::serve(&certificate, &key.serialize_pem(), certificate.clone(), answer)
    }

    pub(crate) fn start(answer: impl Fn(&str) -> Vec<u8> + Send + 'static) -> Self {
        let authority = Authority::new("web").unwrap();
        let identity = authority.server(&["127.0.0.1"]).unwrap();
        Self::serve(&identity.certificate, &identity.key, authority.certificate(), answer)
    }

    fn serve(
        certificate: &str,
        key: &str,
        ca_pem: String,
        answer: impl Fn(&str) -> Vec<u8> + Send + 'static,
    ) -> Self {
        testkit::install_tls_provider();
        let chain = CertificateDer::pem_slice_iter(certificate.as_bytes());
        let chain = chain.collect::<Result<_, _>>().unwrap();
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        let config =
            ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key).unwrap();
        let config = Arc::new(config);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                // A client that hangs up early is part of the game.
                let _ = serve(&config, connection, &answer);
            }
        });
        Self { address, ca_pem }
    }
}

fn serve(
    config: &Arc<ServerConfig>,
    connection: TcpStream,
    answer: &impl Fn(&str) -> Vec<u8>,
) -> std::io::Result<()> {
    let session = ServerConnection::new(Arc::clone(config)).map_err(std::io::Error::other)?;
    let mut stream = StreamOwned::new(session, connection);
    let mut request = Vec::new();
    let mut buffer = [0; 8192];
    while !request.windows(4).any(|w| w == b"\r\n\r\n") {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            n => request.extend_from_slice(&buffer[..n]),
        }
    }
    let text = String::from_utf8_lossy(&request);
    stream.write_all(&answer(text.lines().next().unwrap_or_default()))?;
    stream.conn.send_close_notify();
    stream.flush()
}
