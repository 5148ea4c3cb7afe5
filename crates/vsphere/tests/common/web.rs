//! A TLS server with scripted replies, for cases that the simulator cannot produce.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use testkit::Authority;

/// Serves every request with the result of `answer`. The threads end with the process.
pub(crate) struct WebServer {
    pub(crate) address: SocketAddr,
    pub(crate) ca_pem: String,
}

/// An HTTP request.
#[derive(Debug)]
pub(crate) struct Asked {
    /// The first line.
    pub(crate) line: String,
    pub(crate) body: String,
}

impl Asked {
    /// The SOAP method, or the first line of a request that is not SOAP.
    pub(crate) fn method(&self) -> &str {
        let inside = self.body.split_once("<soapenv:Body><").map(|(_, inside)| inside);
        inside.and_then(|inside| inside.split([' ', '>']).next()).unwrap_or(&self.line)
    }
}

/// Serves a login like a vCenter with one user. `then` makes all other replies.
pub(crate) fn fake_vcenter(then: impl Fn(&Asked) -> Vec<u8> + Send + Sync + 'static) -> WebServer {
    let corpus = testkit::repository().join("fuzz/corpus/soap_decoder");
    let recorded = move |name: &str| {
        let bytes = std::fs::read(corpus.join(name)).unwrap();
        answer("200 OK", "text/xml", &String::from_utf8_lossy(&bytes[1..]))
    };
    WebServer::start(move |asked| match asked.method() {
        line if line.starts_with("GET /sdk/vim") => recorded("versions"),
        line if line.starts_with("GET /sdk/") => answer("404 Not Found", "text/plain", ""),
        "RetrieveServiceContent" => recorded("service-content"),
        "Login" => {
            let session = "<key>k</key><userName>VSPHERE.LOCAL\\u</userName>";
            let body = returned("Login", session);
            format!(
                "HTTP/1.1 200 OK\r\ncontent-type: text/xml\r\nset-cookie: vmware_soap_session=\"c\"\r\n\
                 content-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            )
            .into_bytes()
        }
        "Logout" => soap("Logout", None),
        _ => then(asked),
    })
}

fn returned(method: &str, value: &str) -> String {
    envelope(&format!("<{method}Response><returnval>{value}</returnval></{method}Response>"))
}

/// Wraps a body in a SOAP envelope.
pub(crate) fn envelope(body: &str) -> String {
    format!(
        "<e:Envelope xmlns:e=\"http://schemas.xmlsoap.org/soap/envelope/\" \
         xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\"><e:Body>{body}</e:Body></e:Envelope>"
    )
}

/// The reply of a method that returns `value`.
pub(crate) fn soap(method: &str, value: Option<&str>) -> Vec<u8> {
    let body = match value {
        Some(value) => returned(method, value),
        None => envelope(&format!("<{method}Response/>")),
    };
    answer("200 OK", "text/xml", &body)
}

/// An HTTP response.
pub(crate) fn answer(status: &str, content_type: &str, body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

impl WebServer {
    /// Uses a self-signed CA certificate, as appliances create them.
    pub(crate) fn self_signed(answer: impl Fn(&Asked) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let mut parameters = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = parameters.self_signed(&key).unwrap().pem();
        Self::serve(&certificate, &key.serialize_pem(), certificate.clone(), answer)
    }

    pub(crate) fn start(answer: impl Fn(&Asked) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let authority = Authority::new("web").unwrap();
        let identity = authority.server(&["127.0.0.1"]).unwrap();
        Self::serve(&identity.certificate, &identity.key, authority.certificate(), answer)
    }

    fn serve(
        certificate: &str,
        key: &str,
        ca_pem: String,
        answer: impl Fn(&Asked) -> Vec<u8> + Send + Sync + 'static,
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
        let answer = Arc::new(answer);
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let (config, answer) = (Arc::clone(&config), Arc::clone(&answer));
                std::thread::spawn(move || {
                    // Some tests hang up early.
                    let _ = serve(&config, connection, &*answer);
                });
            }
        });
        Self { address, ca_pem }
    }
}

fn serve(
    config: &Arc<ServerConfig>,
    connection: TcpStream,
    answer: &impl Fn(&Asked) -> Vec<u8>,
) -> std::io::Result<()> {
    let session = ServerConnection::new(Arc::clone(config)).map_err(std::io::Error::other)?;
    let mut stream = StreamOwned::new(session, connection);
    let mut request = Vec::new();
    let mut buffer = [0; 8192];
    let asked = loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            n => request.extend_from_slice(&buffer[..n]),
        }
        if let Some(asked) = whole(&String::from_utf8_lossy(&request)) {
            break asked;
        }
    };
    stream.write_all(&answer(&asked))?;
    stream.conn.send_close_notify();
    stream.flush()
}

/// Reads a complete request.
fn whole(text: &str) -> Option<Asked> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let line = head.lines().next().unwrap_or_default().to_owned();
    (body.len() >= length.unwrap_or(0)).then(|| Asked { line, body: body.to_owned() })
}
