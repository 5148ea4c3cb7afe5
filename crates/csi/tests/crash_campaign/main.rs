//! Random runs of volume operations while faults occur: `kill -9` of the controller, lost connections, answers that
//! never arrive, slow and failing tasks, and restarts of vCenter. The clients repeat each call until it succeeds, as
//! Kubernetes does. Then vCenter must have exactly the volumes, snapshots and attachments that the clients hold: none
//! lost, none doubled.
//!
//! ```text
//!   main      seeds, parallel lanes, statistics
//!   lane      one vCenter and one controller process, on the shared control plane
//!   faults    what happens to them
//!   client    creates, attaches, copies and deletes volumes
//! ```
//!
//! `VDO_SEEDS` is the number of runs for a campaign of average length; these runs are short, so there are twice as
//! many: `VDO_SEEDS=1000` means 2,000 runs. `VDO_FIRST_SEED` is the first seed; `VDO_SEED` repeats one run. A long campaign
//! prints its progress, and ends at the first run that fails, with its seed.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a failed unwrap fails the test"
)]

mod client;
mod faults;
mod lane;

use std::{cell::RefCell, collections::BTreeMap};

use client::Client;
use faults::Fault;
use futures::future::join_all;
use lane::{Lane, Outside};
use testkit::{SeededRandom, eventually};

/// Concurrent runs.
const LANES: usize = 5;
/// Runs on one vCenter before it is re-created.
const RUNS_ON_A_LANE: usize = 50;
/// Clients of the driver in a run, and the operations of each.
const CLIENTS: u64 = 3;
const OPERATIONS: u64 = 6;
/// With this many runs, every kind of fault and operation must happen.
const ENOUGH: usize = 100;
/// Runs between two lines of progress.
const PROGRESS: usize = 50;

/// How often each fault and operation happened.
#[derive(Debug, Default)]
struct Tally(RefCell<BTreeMap<&'static str, usize>>);

impl Tally {
    fn count(&self, what: &'static str) {
        *self.0.borrow_mut().entry(what).or_default() += 1;
    }
}

fn seeds() -> Vec<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("VDO_FIRST_SEED").unwrap_or(1);
    match number("VDO_SEED") {
        Some(seed) => vec![seed],
        None => (first..first + number("VDO_SEEDS").map_or(20, |count| count * 2)).collect(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_volume_is_lost_or_doubled_whatever_fails() {
    let seeds = seeds();
    let (began, count) = (tokio::time::Instant::now(), seeds.len());
    let outside = Outside::start().await;
    let (left, tally) = (RefCell::new(seeds.into_iter()), Tally::default());
    let done = std::cell::Cell::new(0_usize);
    let lane = async |number: usize| {
        let mut generation = 0;
        loop {
            let mut lane: Option<Lane> = None;
            for _ in 0..RUNS_ON_A_LANE {
                let Some(seed) = left.borrow_mut().next() else { return };
                if lane.is_none() {
                    lane = Some(Lane::start(&outside, number, generation).await);
                }
                if let Some(lane) = &lane {
                    run(lane, seed, &tally).await;
                    done.set(done.get() + 1);
                    if done.get().is_multiple_of(PROGRESS) {
                        println!(
                            "{} of {count} runs passed, {} s",
                            done.get(),
                            began.elapsed().as_secs()
                        );
                    }
                }
            }
            generation += 1;
        }
    };
    join_all((0..LANES).map(lane)).await;
    println!("{count} runs in {} s: {:?}", began.elapsed().as_secs(), tally.0.borrow());
    if count >= ENOUGH {
        let tally = tally.0.borrow();
        let all = Fault::ALL.iter().map(|fault| fault.name()).chain(client::OPERATIONS);
        let missing: Vec<_> = all.filter(|name| !tally.contains_key(name)).collect();
        assert!(missing.is_empty(), "never happened: {missing:?} {tally:?}");
    }
}

/// One run: clients work while faults occur. In the end, vCenter and the clients must agree.
async fn run(lane: &Lane, seed: u64, tally: &Tally) {
    let text = |what: &str| format!("seed {seed} (repeat it with VDO_SEED={seed}): {what}");
    let clients = (0..CLIENTS).map(|number| Client::new(lane, seed, number, tally));
    let mut clients: Vec<Client<'_>> = clients.collect();
    let work = join_all(clients.iter_mut().map(|client| client.work(OPERATIONS)));
    let mut random = SeededRandom::new(seed);
    let faults = async {
        faults::inject(lane, &mut random, tally).await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        _ = work => {}
        () = faults => {}
        () = lane.supervise() => {}
    }
    lane.heal().await;

    agree(lane, &clients, &text("vCenter has what the clients hold")).await;
    let end = join_all(clients.iter_mut().map(Client::clean_up));
    tokio::select! {
        _ = end => {}
        () = lane.supervise() => {}
    }
    agree(lane, &clients, &text("vCenter is empty")).await;
    let log = lane.log();
    assert!(!log.contains("panicked"), "{}", text(&log));
}

async fn agree(lane: &Lane, clients: &[Client<'_>], what: &str) {
    let held: BTreeMap<_, _> = clients.iter().flat_map(Client::held).collect();
    // A task that a client gave up can still run.
    eventually(what, 30, async || {
        let existing = lane.existing().await;
        if existing == held {
            return Ok(());
        }
        let only = |some: &lane::Volumes, other: &lane::Volumes| {
            let only = some.iter().filter(|(id, volume)| other.get(*id) != Some(*volume));
            only.map(|(id, volume)| format!("\n  {id} {volume:?}")).collect::<String>()
        };
        let (vcenter, clients) = (only(&existing, &held), only(&held, &existing));
        Err(format!("only in vCenter:{vcenter}\nonly held by clients:{clients}\n{}", lane.log()))
    })
    .await;
}
