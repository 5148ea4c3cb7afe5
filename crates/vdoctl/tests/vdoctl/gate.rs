//! A proxy in front of the API server that fails or delays exactly one write of a command.
//!
//! It can read requests because `kubectl proxy` behind it uses plain HTTP.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use crate::stage::Stage;

/// The effect on the selected write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The request is lost.
    OfRequest,
    /// The request succeeds, but its response is lost.
    OfAnswer,
    /// The request waits until `let_through`.
    Nothing,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Closing {
    /// The number of the write, from one. Dry runs do not count.
    pub(crate) at: usize,
    pub(crate) loss: Loss,
    /// The number of connections that are refused before it opens again.
    pub(crate) refused: usize,
}

pub(crate) struct Gate {
    behind: Child,
    kubeconfig: PathBuf,
    counts: Arc<Counts>,
    _carrying: JoinSet<()>,
}

#[derive(Default)]
struct Counts {
    writes: AtomicUsize,
    refused: AtomicUsize,
    /// Closes all connections, including idle ones.
    closed: CancellationToken,
    /// The selected write has arrived.
    came: CancellationToken,
    /// The selected write can continue.
    passes: CancellationToken,
}

impl Gate {
    pub(crate) async fn before(stage: &Stage, name: &str, closing: Closing) -> Self {
        let mut behind = Command::new(testkit::peer("kubectl"))
            .args(["proxy", "--port=0"])
            .env("KUBECONFIG", stage.kubeconfig())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // "Starting to serve on 127.0.0.1:40123"
        let mut line = String::new();
        BufReader::new(behind.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let upstream: SocketAddr = line.split_whitespace().last().unwrap().parse().unwrap();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let kubeconfig = stage.workdir.path().join(name);
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "gate",
            "clusters": [{"name": "gate", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "gate", "user": {}}],
            "contexts": [{"name": "gate", "context": {"cluster": "gate", "user": "gate"}}],
        });
        fs::write(&kubeconfig, text.to_string()).unwrap();
        let mut carrying = JoinSet::new();
        let counts = Arc::<Counts>::default();
        carrying.spawn(open(listener, upstream, closing, Arc::clone(&counts)));
        Self { behind, kubeconfig, counts, _carrying: carrying }
    }

    pub(crate) fn kubeconfig(&self) -> String {
        self.kubeconfig.display().to_string()
    }

    /// Waits for the selected write.
    pub(crate) async fn write_arrives(&self) {
        self.counts.came.cancelled().await;
    }

    pub(crate) fn let_through(&self) {
        self.counts.passes.cancel();
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let _ = self.behind.kill();
        let _ = self.behind.wait();
    }
}

async fn open(listener: TcpListener, upstream: SocketAddr, closing: Closing, counts: Arc<Counts>) {
    let mut connections = JoinSet::new();
    loop {
        let (client, _) = listener.accept().await.unwrap();
        let closed = counts.closed.is_cancelled();
        if closed && counts.refused.fetch_add(1, Ordering::SeqCst) < closing.refused {
            drop(client);
            continue;
        }
        let counts = Arc::clone(&counts);
        connections.spawn(async move {
            let carried = carry(client, upstream, closing, &counts);
            if closed {
                carried.await;
            } else {
                counts.closed.run_until_cancelled(carried).await;
            }
        });
    }
}

/// Forwards data until the selected write.
async fn carry(mut client: TcpStream, upstream: SocketAddr, closing: Closing, counts: &Counts) {
    let mut server = TcpStream::connect(upstream).await.unwrap();
    let (mut question, mut answer) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut lost = false;
    loop {
        tokio::select! {
            read = client.read(&mut question) => {
                let Ok(read @ 1..) = read else { return };
                let piece = &question[..read];
                let head = String::from_utf8_lossy(piece.split(|byte| *byte == b'\r').next().unwrap());
                let writes = head.starts_with("PATCH ") && !head.contains("dryRun=");
                if writes && counts.writes.fetch_add(1, Ordering::SeqCst) + 1 == closing.at {
                    match closing.loss {
                        Loss::OfRequest => {
                            counts.closed.cancel();
                            return;
                        }
                        Loss::OfAnswer => lost = true,
                        Loss::Nothing => {
                            counts.came.cancel();
                            counts.passes.cancelled().await;
                        }
                    }
                }
                if server.write_all(piece).await.is_err() {
                    return;
                }
            }
            read = server.read(&mut answer) => {
                let Ok(read @ 1..) = read else { return };
                if lost {
                    counts.closed.cancel();
                }
                if lost || client.write_all(&answer[..read]).await.is_err() {
                    return;
                }
            }
        }
    }
}
