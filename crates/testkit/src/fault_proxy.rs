//! A TCP proxy in front of any peer that can cut, delay or drop the traffic.

use std::{net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::watch,
    task::JoinSet,
    time::sleep,
};

/// The state of the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Forwards everything.
    Fair,
    /// Delays every chunk in each direction.
    Slow(Duration),
    /// Keeps connections open and forwards nothing, like a firewall that drops packets.
    BlackHole,
    /// Closes open and new connections.
    Cut,
    /// Like `Cut`, with a TCP reset.
    Reset,
    /// Forwards this many bytes of the response on each connection, then closes it.
    HalfAnswer(usize),
}

/// A proxy on a loopback port. It stops and closes all connections when dropped.
///
/// A change applies at once to open and new connections.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    state: watch::Sender<State>,
    upstreams: watch::Sender<Vec<SocketAddr>>,
    _tasks: JoinSet<()>,
}

impl FaultProxy {
    /// Starts a proxy in front of `upstream` that forwards everything.
    pub async fn before(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a loopback port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let (state, watching) = watch::channel(State::Fair);
        let mut tasks = JoinSet::new();
        let (upstreams, leading) = watch::channel(vec![upstream]);
        tasks.spawn(accept(listener, leading, watching));
        Self { address, state, upstreams, _tasks: tasks }
    }

    /// Distributes new connections over these addresses, like a load balancer. It closes open ones, so that clients
    /// reconnect.
    pub fn lead_to(&self, upstreams: &[SocketAddr]) {
        self.upstreams.send_replace(upstreams.to_vec());
    }

    /// The address for clients.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Forwards everything again. Closed connections stay closed; stalled ones continue.
    pub fn heal(&self) {
        self.state.send_replace(State::Fair);
    }

    /// Delays every chunk in either direction.
    pub fn delay(&self, by: Duration) {
        self.state.send_replace(State::Slow(by));
    }

    /// Forwards nothing, without an error.
    pub fn black_hole(&self) {
        self.state.send_replace(State::BlackHole);
    }

    /// Closes every open and new connection.
    pub fn cut(&self) {
        self.state.send_replace(State::Cut);
    }

    /// Resets every open and new connection.
    pub fn reset(&self) {
        self.state.send_replace(State::Reset);
    }

    /// Forwards only `bytes` of the response on each connection, then closes it.
    pub fn half_an_answer(&self, bytes: usize) {
        self.state.send_replace(State::HalfAnswer(bytes));
    }
}

async fn accept(
    listener: TcpListener,
    mut upstreams: watch::Receiver<Vec<SocketAddr>>,
    state: watch::Receiver<State>,
) {
    let mut connections = JoinSet::new();
    let mut number = 0_usize;
    loop {
        let client = tokio::select! {
            Ok(()) = upstreams.changed() => {
                connections.abort_all();
                continue;
            }
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => client,
                Err(_) => continue,
            },
        };
        while connections.try_join_next().is_some() {}
        let upstream = {
            let all = upstreams.borrow();
            all.get(number % all.len().max(1)).copied()
        };
        number = number.wrapping_add(1);
        if let Some(upstream) = upstream {
            connections.spawn(carry(client, upstream, state.clone()));
        }
    }
}

async fn carry(mut client: TcpStream, upstream: SocketAddr, mut state: watch::Receiver<State>) {
    let _ = client.set_nodelay(true);
    let mut now = *state.borrow_and_update();
    if !ends(now)
        && let Ok(mut server) = TcpStream::connect(upstream).await
    {
        let _ = server.set_nodelay(true);
        let (client_read, client_write) = client.split();
        let (server_read, server_write) = server.split();
        let forward = pump(client_read, server_write, state.clone(), false);
        let back = pump(server_read, client_write, state.clone(), true);
        tokio::select! {
            _ = async { tokio::join!(forward, back) } => {}
            Ok(storm) = state.wait_for(|now| ends(*now)) => now = *storm,
        }
    }
    if now == State::Reset {
        // Closing with a zero linger time makes the kernel send a reset.
        let _ = client.set_zero_linger();
    }
}

fn ends(state: State) -> bool {
    matches!(state, State::Cut | State::Reset)
}

/// The state, once it is not a black hole: bytes that were read before wait until it heals. `None` if the proxy
/// ends.
async fn outside_black_hole(state: &mut watch::Receiver<State>) -> Option<State> {
    state.wait_for(|now| *now != State::BlackHole).await.ok().map(|now| *now)
}

/// Copies bytes in one direction until either side closes.
async fn pump(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    mut state: watch::Receiver<State>,
    is_answer: bool,
) {
    let mut buffer = vec![0; 64 * 1024];
    let (mut passed, mut before) = (0, State::Fair);
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let Some(now) = outside_black_hole(&mut state).await else { return };
        if now != before {
            (passed, before) = (0, now);
        }
        let mut piece = &buffer[..read];
        match now {
            State::Slow(by) => {
                sleep(by).await;
                // The black hole can have begun meanwhile.
                if outside_black_hole(&mut state).await.is_none() {
                    return;
                }
            }
            State::HalfAnswer(limit) if is_answer => {
                piece = &piece[..read.min(limit.saturating_sub(passed))];
            }
            _ => {}
        }
        passed += piece.len();
        if to.write_all(piece).await.is_err() || piece.len() < read {
            break;
        }
    }
    let _ = to.shutdown().await;
}
