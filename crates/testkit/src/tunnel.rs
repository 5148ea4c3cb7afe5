//! The way of an API server into the networks of real nodes, for logs and exec.
//!
//! ```text
//!   API server ── CONNECT 10.77.0.11:10250 ──► nodes.sock ──► NodeTunnel ──► kubelet in the node's network namespace
//! ```
//!
//! Nodes of parallel tests have the same addresses, so no route of this computer leads to them.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    net::{IpAddr, SocketAddr},
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use snafu::ResultExt as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpStream, UnixListener, UnixStream},
    task::{JoinSet, spawn_blocking},
};

use crate::{
    error::{Error, FilesSnafu},
    workdir::Workdir,
};

/// No request of an API server to a proxy is longer.
const MAX_REQUEST: usize = 4096;

/// A process in the network namespace of each node, by the address of the node.
type Nodes = Arc<Mutex<BTreeMap<IpAddr, u32>>>;

/// A proxy for the protocol `HTTPConnect` of the API server's egress configuration. Gone when dropped.
pub(crate) struct NodeTunnel {
    socket: PathBuf,
    nodes: Nodes,
    _proxy: JoinSet<()>,
}

impl NodeTunnel {
    pub(crate) fn start(workdir: &Workdir) -> Result<Self, Error> {
        let socket = workdir.path().join("nodes.sock");
        let listener = UnixListener::bind(&socket).context(FilesSnafu { path: &socket })?;
        let nodes = Nodes::default();
        let mut proxy = JoinSet::new();
        let known = nodes.clone();
        proxy.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let known = known.clone();
                // An error ends the connection; the API server reports it.
                connections.spawn(async move { serve(client, &known).await.unwrap_or_default() });
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self { socket, nodes, _proxy: proxy })
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(crate) fn add(&self, address: IpAddr, process: u32) {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner).insert(address, process);
    }
}

async fn serve(mut client: UnixStream, nodes: &Nodes) -> io::Result<()> {
    let target = read_target(&mut client).await?;
    let process = {
        let nodes = nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.get(&target.ip()).copied()
    };
    let connected = match process {
        Some(process) => connect(process, target).await,
        None => Err(io::Error::other("no node has this address")),
    };
    match connected {
        Ok(mut server) => {
            client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
            copy_bidirectional(&mut client, &mut server).await.map(drop)
        }
        Err(error) => client.write_all(format!("HTTP/1.1 502 {error}\r\n\r\n").as_bytes()).await,
    }
}

/// The client sends nothing after the request before it has the answer.
async fn read_target(client: &mut UnixStream) -> io::Result<SocketAddr> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        if request.len() > MAX_REQUEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        request.push(client.read_u8().await?);
    }
    let request = String::from_utf8_lossy(&request);
    let target = request.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next());
    target.and_then(|target| target.parse().ok()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

async fn connect(process: u32, target: SocketAddr) -> io::Result<TcpStream> {
    let connect = move || {
        let stream = std::net::TcpStream::connect(target)?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    };
    let stream = spawn_blocking(move || in_network_of(process, connect)).await??;
    TcpStream::from_std(stream)
}

/// Runs `work` in the network namespace of a process. A socket belongs to the namespace of the thread that made it, for
/// good.
///
/// # Panics
/// If `work` panics.
pub(crate) fn in_network_of<T: Send + 'static>(
    process: u32,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let entered = move || {
        let namespace = File::open(format!("/proc/{process}/ns/net"))?;
        let kind = Some(rustix::thread::LinkNameSpaceType::Network);
        rustix::thread::move_into_link_name_space(namespace.as_fd(), kind)?;
        work()
    };
    // The thread ends afterwards: no other code ever runs in that namespace.
    std::thread::spawn(entered).join().expect("work in a namespace does not panic")
}
