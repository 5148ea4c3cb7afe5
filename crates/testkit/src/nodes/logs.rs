//! The logs of simulated containers, as a kubelet serves them to the API server.
//!
//! It replaces the kubelet's own server: `pods/log` goes through the real API server, with its authorization, and ends
//! here. A crashing container also has the log of its previous run.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use rustls::{
    ServerConfig,
    pki_types::{PrivateKeyDer, pem::PemObject},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

use super::kubelet::Fates;
use crate::{authority::Authority, error::must};

/// Serves logs until dropped.
pub struct Logs {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
    _tasks: JoinSet<()>,
}

impl Logs {
    pub(super) async fn serve(client: Client, fates: Fates) -> Self {
        let identity = must(Authority::new("kubelet").and_then(|all| all.server(&["localhost"])));
        let acceptor = acceptor(&identity.key, identity.der);
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a loopback port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let requests = Arc::new(Mutex::new(Vec::new()));
        let recorded = requests.clone();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut answering = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, client) = (acceptor.clone(), client.clone());
                let (fates, recorded) = (fates.clone(), recorded.clone());
                answering.spawn(async move {
                    // A client that disconnects is not an error.
                    let _ = answer(stream, &acceptor, &client, &fates, &recorded).await;
                });
                while answering.try_join_next().is_some() {}
            }
        });
        Self { address, requests, _tasks: tasks }
    }

    pub(super) fn port(&self) -> u16 {
        self.address.port()
    }

    /// The requests so far: paths with their queries, in order.
    pub fn asked(&self) -> Vec<String> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn acceptor(key: &str, certificate: Vec<u8>) -> TlsAcceptor {
    crate::install_tls_provider();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key of our own");
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.into()], key)
        .expect("a certificate of our own");
    TlsAcceptor::from(Arc::new(config))
}

async fn answer(
    stream: TcpStream,
    acceptor: &TlsAcceptor,
    client: &Client,
    fates: &Fates,
    requests: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut stream = acceptor.accept(stream).await?;
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let head = String::from_utf8_lossy(&request).into_owned();
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    requests.lock().unwrap_or_else(PoisonError::into_inner).push(path.clone());
    let (status, body) = match log(&path, client, fates).await {
        Some(text) => ("200 OK", text),
        None => ("400 Bad Request", "previous terminated container not found".to_owned()),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

/// The end of the log of a container, as long as requested: of this run, or of a crashed one.
async fn log(path: &str, client: &Client, fates: &Fates) -> Option<String> {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let mut parts = path.strip_prefix("/containerLogs/")?.split('/');
    let (namespace, name) = (parts.next()?, parts.next()?);
    let asks = |key: &str| query.split('&').find_map(|pair| pair.strip_prefix(key));
    let pod = Api::<Pod>::namespaced(client.clone(), namespace).get(name).await.ok()?;
    let text = match fates.crash_log(&pod) {
        None if asks("previous=") == Some("true") => return None,
        text => text.unwrap_or_default(),
    };
    let mut lines: Vec<String> = (1..=100).map(|n| format!("line {n} of a long log")).collect();
    lines.extend(text.lines().map(str::to_owned));
    let wanted = asks("tailLines=").and_then(|number| number.parse().ok()).unwrap_or(usize::MAX);
    let from = lines.len().saturating_sub(wanted);
    let mut text = lines[from..].join("\n") + "\n";
    text.truncate(asks("limitBytes=").and_then(|n| n.parse().ok()).unwrap_or(usize::MAX));
    Some(text)
}
