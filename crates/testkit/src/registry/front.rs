//! The registry as nodes see it. `crane registry serve` knows neither accounts nor faults: this proxy of ours adds
//! both. Nodes only pull, so it serves one `GET` or `HEAD` per connection.

use std::net::SocketAddr;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use snafu::ResultExt as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

use crate::error::{Error, FilesSnafu};

/// The images that need no account: in a cluster they come from another registry.
const PUBLIC: &str = "/v2/pause/";
/// No request for an image has a longer head.
const LONGEST_HEAD: usize = 64 * 1024;

#[derive(Clone, Debug, Default)]
struct Behaviour {
    /// The `Authorization` header of the only account. Without one everybody can pull.
    account: Option<String>,
    is_cut: bool,
    is_silent: bool,
    /// Paths, and the paths that the registry answers instead.
    substitutes: Vec<(String, String)>,
}

#[derive(Debug)]
pub(super) struct RegistryFront {
    address: SocketAddr,
    behaviour: watch::Sender<Behaviour>,
    _tasks: JoinSet<()>,
}

impl RegistryFront {
    pub(super) async fn before(registry: SocketAddr) -> Result<Self, Error> {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let context = FilesSnafu { path: "a loopback port" };
        let listener = TcpListener::bind(any).await.context(context)?;
        let address = listener.local_addr().context(context)?;
        let (behaviour, watching) = watch::channel(Behaviour::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let Ok((client, _)) = listener.accept().await else { continue };
                while connections.try_join_next().is_some() {}
                connections.spawn(serve(client, registry, watching.clone()));
            }
        });
        Ok(Self { address, behaviour, _tasks: tasks })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn require_account(&self, user: &str, password: &str) {
        let account = STANDARD.encode(format!("{user}:{password}"));
        self.behaviour.send_modify(|now| now.account = Some(format!("Basic {account}")));
    }

    pub(super) fn set_cut(&self, is_cut: bool) {
        self.behaviour.send_modify(|now| now.is_cut = is_cut);
    }

    pub(super) fn set_silent(&self, is_silent: bool) {
        self.behaviour.send_modify(|now| now.is_silent = is_silent);
    }

    /// Answers a request for `path` with the content of `other`.
    pub(super) fn substitute(&self, path: &str, other: &str) {
        let pair = (path.to_owned(), other.to_owned());
        self.behaviour.send_modify(|now| now.substitutes.push(pair));
    }

    pub(super) fn forget_substitutes(&self) {
        self.behaviour.send_modify(|now| now.substitutes.clear());
    }
}

/// Serves one request and closes the connection. A cut closes it at once. A silent registry reads the request and answers
/// when it is no longer silent.
async fn serve(mut client: TcpStream, registry: SocketAddr, watching: watch::Receiver<Behaviour>) {
    let mut cut = watching.clone();
    let mut talks = watching.clone();
    let answered = async {
        let head = read_head(&mut client).await?;
        let _ = talks.wait_for(|now| !now.is_silent).await;
        let answer = judge(&head, &watching.borrow());
        match answer {
            Err(refusal) => client.write_all(refusal.as_bytes()).await?,
            Ok(request) => {
                let mut server = TcpStream::connect(registry).await?;
                server.write_all(request.as_bytes()).await?;
                tokio::io::copy(&mut server, &mut client).await?;
            }
        }
        client.shutdown().await
    };
    tokio::select! {
        _ = answered => {}
        _ = cut.wait_for(|now| now.is_cut) => {}
    }
}

async fn read_head(client: &mut TcpStream) -> std::io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if client.read_buf(&mut head).await? == 0 || head.len() > LONGEST_HEAD {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// The request for the registry, or the answer that refuses it.
fn judge(head: &str, behaviour: &Behaviour) -> Result<String, String> {
    let mut lines = head.trim_end().lines();
    let mut first = lines.next().unwrap_or_default().split(' ');
    let (method, path) = (first.next().unwrap_or_default(), first.next().unwrap_or_default());
    if !["GET", "HEAD"].contains(&method) {
        return Err(refusal("405 Method Not Allowed", "Allow: GET, HEAD"));
    }
    let (mut headers, mut presented) = (String::new(), None);
    for line in lines {
        let (name, value) = line.split_once(':').unwrap_or_default();
        match name.to_ascii_lowercase().as_str() {
            "connection" => {}
            "authorization" => presented = Some(value.trim().to_owned()),
            _ => headers.extend([line, "\r\n"]),
        }
    }
    if behaviour.account.is_some() && presented != behaviour.account && !path.starts_with(PUBLIC) {
        return Err(refusal("401 Unauthorized", "WWW-Authenticate: Basic realm=\"registry.test\""));
    }
    let other = behaviour.substitutes.iter().find(|(from, _)| from == path);
    let path = other.map_or(path, |(_, to)| to);
    Ok(format!("{method} {path} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n"))
}

fn refusal(status: &str, header: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{header}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_account_pulls_and_everybody_gets_the_image_of_pods() {
        let account = Some("Basic dXNlcjpwYXNzd29yZA==".to_owned());
        let behaviour = Behaviour { account, ..Behaviour::default() };
        let request = |path: &str, header: &str| {
            judge(
                &format!("GET {path} HTTP/1.1\r\nHost: registry.test\r\n{header}\r\n"),
                &behaviour,
            )
        };
        let vdo = "/v2/vmware-tanzu/vdo/manifests/0.7.0";
        for header in ["", "Authorization: Basic bm9ib2R5Og==\r\n"] {
            let refused = request(vdo, header).unwrap_err();
            assert!(refused.starts_with("HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic"));
        }
        let right = "authorization: Basic dXNlcjpwYXNzd29yZA==\r\n";
        let passed = request(vdo, right).unwrap();
        assert!(
            passed.ends_with("\r\nHost: registry.test\r\nConnection: close\r\n\r\n"),
            "{passed}"
        );
        assert!(request("/v2/pause/manifests/1", "").is_ok());
    }
}
