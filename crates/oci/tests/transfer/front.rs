//! A reverse proxy before a registry: TLS, accounts, tokens, faults, and a list of the requests.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use testkit::Authority;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

/// The base64 of `robot:the password`.
pub(crate) const BASIC: &str = "Basic cm9ib3Q6dGhlIHBhc3N3b3Jk";
/// A login file with this account, for a host.
pub(crate) fn login(host: &str) -> String {
    format!(r#"{{"auths": {{"{host}": {{"auth": "cm9ib3Q6dGhlIHBhc3N3b3Jk"}}}}}}"#)
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Behaviour {
    /// Only the account of [`BASIC`] is served.
    pub(crate) basic: bool,
    /// Only requests with a token of this proxy are served; the account of [`BASIC`] gets tokens.
    pub(crate) tokens: bool,
    /// The token service that the proxy names, instead of itself.
    pub(crate) realm: Option<String>,
    /// Closes the connection after so many bytes of a blob.
    pub(crate) cut: Option<usize>,
    /// How often it does so; then it serves everything.
    pub(crate) cuts: usize,
    /// Changes a byte of every blob.
    pub(crate) manipulates: bool,
    /// Ignores the header `Range`, as some registries do.
    pub(crate) no_ranges: bool,
    /// Answers `HEAD` without the header `Content-Length`, as some proxies do.
    pub(crate) no_lengths: bool,
    /// Where clients send blobs, instead of the proxy itself.
    pub(crate) uploads: Option<String>,
}

#[derive(Default)]
struct Shared {
    behaviour: Mutex<Behaviour>,
    requests: Mutex<Vec<String>>,
    /// The requests with credentials.
    authorized: Mutex<Vec<String>>,
    address: Mutex<String>,
}

pub(crate) struct Front {
    pub(crate) address: SocketAddr,
    /// The certificate authority of a front with TLS, PEM.
    pub(crate) authority: Option<String>,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

impl Front {
    pub(crate) async fn before(registry: SocketAddr, behaviour: Behaviour) -> Self {
        Self::start(registry, behaviour, false).await
    }

    pub(crate) async fn with_tls(registry: SocketAddr, behaviour: Behaviour) -> Self {
        Self::start(registry, behaviour, true).await
    }

    async fn start(registry: SocketAddr, behaviour: Behaviour, tls: bool) -> Self {
        testkit::install_tls_provider();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let scheme = if tls { "https" } else { "http" };
        let shared = Shared { behaviour: behaviour.into(), ..Shared::default() };
        *shared.address.lock().unwrap() = format!("{scheme}://{address}");
        let shared = Arc::new(shared);
        let authority = tls.then(|| Authority::new("site").unwrap());
        let acceptor = authority.as_ref().map(|authority| {
            let identity = authority.server(&["127.0.0.1"]).unwrap();
            let chain = CertificateDer::from_pem_slice(identity.certificate.as_bytes()).unwrap();
            let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
            let config = rustls::ServerConfig::builder().with_no_client_auth();
            TlsAcceptor::from(Arc::new(config.with_single_cert(vec![chain], key).unwrap()))
        });
        let mut tasks = JoinSet::new();
        let common = shared.clone();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (acceptor, shared) = (acceptor.clone(), common.clone());
                connections.spawn(async move {
                    let _ = match acceptor {
                        Some(acceptor) => match acceptor.accept(client).await {
                            Ok(client) => serve(client, registry, &shared).await,
                            Err(error) => Err(error),
                        },
                        None => serve(client, registry, &shared).await,
                    };
                });
                while connections.try_join_next().is_some() {}
            }
        });
        let authority = authority.map(|authority| authority.certificate());
        Self { address, authority, shared, _tasks: tasks }
    }

    pub(crate) fn set(&self, behaviour: Behaviour) {
        *self.shared.behaviour.lock().unwrap() = behaviour;
    }

    /// The requests since the last call: method, path, range.
    pub(crate) fn requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.shared.requests.lock().unwrap())
    }

    /// All requests with the header `Authorization`.
    pub(crate) fn authorized(&self) -> Vec<String> {
        self.shared.authorized.lock().unwrap().clone()
    }
}

/// Serves one request and closes the connection.
async fn serve(
    mut client: impl AsyncRead + AsyncWrite + Unpin,
    registry: SocketAddr,
    shared: &Shared,
) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let mut lines = head.trim_end().lines();
    let first = lines.next().unwrap_or_default().to_owned();
    let (mut kept, mut authorization, mut range) = (String::new(), String::new(), String::new());
    let behaviour = shared.behaviour.lock().unwrap().clone();
    for line in lines {
        let (name, value) = line.split_once(':').unwrap_or_default();
        match name.to_ascii_lowercase().as_str() {
            "connection" => {}
            "authorization" => value.trim().clone_into(&mut authorization),
            "range" if behaviour.no_ranges => {}
            "range" => {
                value.trim().clone_into(&mut range);
                kept.extend([line, "\r\n"]);
            }
            _ => kept.extend([line, "\r\n"]),
        }
    }
    let mut words = first.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let shown = format!("{method} {path} {range}").trim_end().to_owned();
    if !authorization.is_empty() {
        shared.authorized.lock().unwrap().push(shown.clone());
    }
    shared.requests.lock().unwrap().push(shown);
    if let Some(answer) = refusal(&behaviour, shared, method, path, &authorization) {
        client.write_all(answer.as_bytes()).await?;
        return client.shutdown().await;
    }
    let mut server = TcpStream::connect(registry).await?;
    let request = format!("{first}\r\n{kept}Connection: close\r\n\r\n");
    server.write_all(request.as_bytes()).await?;
    let is_blob = method == "GET" && path.contains("/blobs/");
    let is_changed =
        method == "HEAD" && behaviour.no_lengths || method == "POST" && behaviour.uploads.is_some();
    if !is_blob && !is_changed {
        copy_bidirectional(&mut client, &mut server).await?;
        return client.shutdown().await;
    }
    let mut answer = Vec::new();
    server.read_to_end(&mut answer).await?;
    if is_changed {
        client.write_all(changed(&behaviour, method, &answer).as_bytes()).await?;
        return client.shutdown().await;
    }
    let start = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or(0) + 4;
    if behaviour.manipulates
        && let Some(last) = answer[start..].last_mut()
    {
        *last ^= 1;
    }
    shorten(shared, &mut answer, start);
    client.write_all(&answer).await?;
    client.shutdown().await
}

/// An answer without a body, with other headers.
fn changed(behaviour: &Behaviour, method: &str, answer: &[u8]) -> String {
    let text = String::from_utf8_lossy(answer);
    let line = |line: &str| match (line.split_once(": "), &behaviour.uploads) {
        (Some(("Content-Length", _)), _) if method == "HEAD" => String::new(),
        (Some(("Location", path)), Some(host)) => format!("Location: {host}{path}\r\n"),
        _ => format!("{line}\r\n"),
    };
    text.trim_end().lines().map(line).collect::<String>() + "\r\n"
}

/// Cuts the answer if that is due.
fn shorten(shared: &Shared, answer: &mut Vec<u8>, start: usize) {
    let mut now = shared.behaviour.lock().unwrap();
    let cut = now.cut.filter(|_| now.cuts > 0);
    if let Some(bytes) = cut.filter(|bytes| answer.len() > start + bytes) {
        now.cuts -= 1;
        answer.truncate(start + bytes);
    }
}

/// The answer of the token service, or to a request without permission.
fn refusal(
    behaviour: &Behaviour,
    shared: &Shared,
    method: &str,
    path: &str,
    authorization: &str,
) -> Option<String> {
    let answer = |status: &str, header: &str, body: &str| {
        let length = body.len();
        format!(
            "HTTP/1.1 {status}\r\n{header}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )
    };
    if let Some(query) = path.strip_prefix("/token?") {
        if authorization != BASIC {
            return Some(answer("401 Unauthorized", "", ""));
        }
        let scope =
            query.split('&').find_map(|pair| pair.strip_prefix("scope=")).unwrap_or_default();
        return Some(answer("200 OK", "", &format!(r#"{{"token": "{scope}"}}"#)));
    }
    if behaviour.basic && authorization != BASIC {
        return Some(answer("401 Unauthorized", "WWW-Authenticate: Basic realm=\"site\"\r\n", ""));
    }
    if !behaviour.tokens {
        return None;
    }
    let repository = path.trim_start_matches("/v2/");
    let end = ["/manifests/", "/blobs/"].iter().find_map(|part| repository.find(part));
    let repository = &repository[..end.unwrap_or_default()];
    let action = if ["GET", "HEAD"].contains(&method) { "pull" } else { "push" };
    let scope = format!("repository%3A{}%3A", repository.replace('/', "%2F"));
    let token = authorization.strip_prefix("Bearer ").unwrap_or_default();
    if token.starts_with(&scope) && token[scope.len()..].contains(action) {
        return None;
    }
    let own = format!("{}/token", shared.address.lock().unwrap());
    let realm = behaviour.realm.clone().unwrap_or(own);
    let header = format!("WWW-Authenticate: Bearer realm=\"{realm}\",service=\"site\"\r\n");
    Some(answer("401 Unauthorized", &header, ""))
}
