//! The agent in a guest: runs scripts and leads to sockets, for the test outside. A request is one line, `run LENGTH`
//! with a script of that many bytes after it, or `connect PATH`.

use std::{io, net::Ipv4Addr, process::Stdio};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream, UnixStream},
    task::JoinSet,
};

/// The port in the guest.
pub(super) const PORT: u16 = 9001;

/// Serves requests until the guest ends.
///
/// # Panics
/// If the port is taken: the guest has one agent.
pub async fn serve() {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).await.expect("a free port");
    let mut requests = JoinSet::new();
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            requests.spawn(answer(stream));
        }
        while requests.try_join_next().is_some() {}
    }
}

async fn answer(stream: TcpStream) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut request = String::new();
    stream.read_line(&mut request).await?;
    let (kind, value) = request.trim_end().split_once(' ').unwrap_or_default();
    if kind == "run" {
        let mut script = vec![0; value.parse().unwrap_or_default()];
        stream.read_exact(&mut script).await?;
        let (code, output) = run(script).await?;
        stream.write_all(&output).await?;
        stream.write_all(format!("\n{code}").as_bytes()).await?;
        return stream.shutdown().await;
    }
    let mut socket = UnixStream::connect(value).await?;
    tokio::io::copy_bidirectional(&mut stream, &mut socket).await.map(drop)
}

/// Programs that the script leaves running keep its output open: it goes to a file.
async fn run(script: Vec<u8>) -> io::Result<(i32, Vec<u8>)> {
    let running = move || {
        let path = format!("/run/agent-{:?}", std::thread::current().id());
        let output = std::fs::File::create(&path)?;
        let mut shell = std::process::Command::new("bash");
        shell.arg("-euc").arg(String::from_utf8_lossy(&script).into_owned());
        shell.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let status = shell.status()?;
        Ok((status.code().unwrap_or(-1), std::fs::read(&path)?))
    };
    tokio::task::spawn_blocking(running).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}
