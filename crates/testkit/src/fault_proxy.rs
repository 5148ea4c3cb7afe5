//! A TCP proxy in front of any peer, to cut, delay, starve or garble what passes.

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

/// What happens to what passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weather {
    /// Everything passes.
    Fair,
    /// Every piece, in each direction, arrives this much later.
    Slow(Duration),
    /// Connections stay open and nothing passes: a firewall that drops.
    BlackHole,
    /// Open connections are closed, new ones are closed at once.
    Cut,
    /// As `Cut`, but with a TCP reset.
    Reset,
    /// So many bytes of answer pass on each connection, then it is closed.
    HalfAnswer(usize),
}

/// A proxy on a loopback port. Stops, and closes all it carries, when dropped.
///
/// A change applies at once to connections that are open and to new ones.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    weather: watch::Sender<Weather>,
    upstreams: watch::Sender<Vec<SocketAddr>>,
    _tasks: JoinSet<()>,
}

impl FaultProxy {
    /// A proxy in front of `upstream`, letting everything pass.
    pub async fn before(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a loopback port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let (weather, watching) = watch::channel(Weather::Fair);
        let mut tasks = JoinSet::new();
        let (upstreams, leading) = watch::channel(vec![upstream]);
        tasks.spawn(accept(listener, leading, watching));
        Self { address, weather, upstreams, _tasks: tasks }
    }

    /// Leads new connections to these, one after the other, as a load balancer does. Open ones are
    /// closed: who comes again is led anew.
    pub fn lead_to(&self, upstreams: &[SocketAddr]) {
        self.upstreams.send_replace(upstreams.to_vec());
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets everything pass again. Connections that were cut stay cut; starved ones go on.
    pub fn heal(&self) {
        self.weather.send_replace(Weather::Fair);
    }

    /// Each piece of data, in either direction, arrives this much later.
    pub fn delay(&self, by: Duration) {
        self.weather.send_replace(Weather::Slow(by));
    }

    /// Nothing passes any more, and nobody is told.
    pub fn black_hole(&self) {
        self.weather.send_replace(Weather::BlackHole);
    }

    /// Closes every connection, old and new.
    pub fn cut(&self) {
        self.weather.send_replace(Weather::Cut);
    }

    /// Resets every connection, old and new.
    pub fn reset(&self) {
        self.weather.send_replace(Weather::Reset);
    }

    /// Lets only `bytes` of answer pass on each connection from now on, then closes it.
    pub fn half_an_answer(&self, bytes: usize) {
        self.weather.send_replace(Weather::HalfAnswer(bytes));
    }
}

async fn accept(
    listener: TcpListener,
    mut upstreams: watch::Receiver<Vec<SocketAddr>>,
    weather: watch::Receiver<Weather>,
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
            connections.spawn(carry(client, upstream, weather.clone()));
        }
    }
}

async fn carry(mut client: TcpStream, upstream: SocketAddr, mut weather: watch::Receiver<Weather>) {
    let _ = client.set_nodelay(true);
    let mut now = *weather.borrow_and_update();
    if !ends(now)
        && let Ok(mut server) = TcpStream::connect(upstream).await
    {
        let _ = server.set_nodelay(true);
        let (client_read, client_write) = client.split();
        let (server_read, server_write) = server.split();
        let there = pump(client_read, server_write, weather.clone(), false);
        let back = pump(server_read, client_write, weather.clone(), true);
        tokio::select! {
            _ = async { tokio::join!(there, back) } => {}
            Ok(storm) = weather.wait_for(|now| ends(*now)) => now = *storm,
        }
    }
    if now == Weather::Reset {
        // Closing with a zero linger time makes the kernel send a reset.
        let _ = client.set_zero_linger();
    }
}

fn ends(weather: Weather) -> bool {
    matches!(weather, Weather::Cut | Weather::Reset)
}

/// Carries bytes one way until either side closes.
async fn pump(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    mut weather: watch::Receiver<Weather>,
    is_answer: bool,
) {
    let mut buffer = vec![0; 64 * 1024];
    let (mut passed, mut before) = (0, Weather::Fair);
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        // What was read before the hole opened does not pass either, until it closes.
        if weather.wait_for(|now| *now != Weather::BlackHole).await.is_err() {
            return;
        }
        let now = *weather.borrow();
        if now != before {
            (passed, before) = (0, now);
        }
        let mut piece = &buffer[..read];
        match now {
            Weather::Slow(by) => sleep(by).await,
            Weather::HalfAnswer(limit) if is_answer => {
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
