//! How soon a waiting contender takes a released lease.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a bench prints its table")]

use std::time::Duration;

use runtime::lease::{Contender, Terms};
use testkit::ControlPlane;
use tokio::time::Instant;

const HANDOVERS: usize = 50;

/// So long that only the release itself explains a handover.
const TERMS: Terms = Terms {
    lease_duration: Duration::from_mins(10),
    renew_deadline: Duration::from_mins(9),
    retry_period: Duration::from_mins(1),
};

#[tokio::main]
async fn main() {
    let plane = ControlPlane::start().await;
    let contender =
        |who: &str| Contender::new(plane.client(), "default", "measured", who, TERMS).unwrap();
    let (one, other) = (contender("one"), contender("other"));
    let mut leader = one.lead().await;
    let mut taken = Vec::with_capacity(HANDOVERS);
    for handover in 0..HANDOVERS {
        let next = if handover % 2 == 0 { &other } else { &one };
        let mut waiting = Box::pin(next.lead());
        // By now it has seen the leader and waits; the first read takes a few milliseconds.
        let first_look = tokio::time::timeout(Duration::from_millis(200), &mut waiting).await;
        assert!(first_look.is_err(), "two leaders");
        let began = Instant::now();
        let (next, ()) = tokio::join!(waiting, leader.release());
        taken.push(began.elapsed());
        leader = next;
    }
    taken.sort_unstable();
    println!(
        "| {HANDOVERS} released leases taken after | median | longest | allowed |\n|---|---|---|---|"
    );
    let millis = |duration: Duration| duration.as_secs_f64() * 1e3;
    println!(
        "| | {:.0} ms | {:.0} ms | 2,000 ms |",
        millis(taken[HANDOVERS / 2]),
        millis(taken[HANDOVERS - 1])
    );
}
