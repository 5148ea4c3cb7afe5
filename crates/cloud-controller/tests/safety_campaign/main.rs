//! Random runs of faults and changes. In none of them is a Node deleted whose machine exists, and in
//! the end every Node goes whose machine is really gone; in each run there is at least one.
//!
//! Machines stand in several folders of two vCenters, move between these, leave and come back, are
//! hidden, and get copies with the same uuid; vCenters hang and restart, the API server does, passwords
//! and the configuration change; Nodes lose the note that says which machine they are. Beside them stands
//! a server of its own that has the name and the address of a machine, and is never touched.
//!
//! ```text
//!   main    seeds, lanes, what happened how often
//!   run     one run: its machines, its controller, what must hold, its end
//!   steps   what can happen
//! ```
//!
//! `VDO_SEEDS` says how many runs, `VDO_FIRST_SEED` with which they begin; `VDO_SEED` repeats one.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a failed unwrap fails the test"
)]

#[path = "../common/mod.rs"]
mod common;
mod run;
mod steps;

use std::{cell::RefCell, collections::BTreeMap};

use common::*;
use run::Run;
use steps::{Kind, WEIGHTS};
use testkit::{FaultProxy, Inventory, Vcenter};

/// Things that happen in a run.
const STEPS: usize = 16;
/// Where machines stand.
const FOLDERS: [&str; 3] = ["", "k8s", "k8s/workers"];
/// Runs that go on at once.
const LANES: usize = 3;
/// Runs on one cluster before it is made anew.
const RUNS_ON_A_STAGE: usize = 10;
/// With so many runs, everything happens.
const ENOUGH: usize = 30;

/// How often each thing happened.
type Tally = RefCell<BTreeMap<Kind, usize>>;

/// What runs take place on.
struct World {
    stage: Stage,
    /// A second vCenter, with which machines go and come.
    other: Vcenter,
    /// The ways to the first and to the second.
    ways: [FaultProxy; 2],
}

impl World {
    async fn new() -> Self {
        let mut other = readable(empty());
        let uuid = "22222222-0000-4000-8000-000000000002".to_owned();
        other.about.insert("instanceUuid".to_owned(), uuid);
        let (stage, other) = tokio::join!(Stage::with(empty()), Vcenter::start(other));
        let ways = [
            FaultProxy::before(stage.vcenter.address()).await,
            FaultProxy::before(other.address()).await,
        ];
        Self { stage, other, ways }
    }
}

/// An inventory without machines, but with folders for them.
fn empty() -> Inventory {
    let mut inventory = Inventory::small();
    let folders = FOLDERS.iter().filter(|folder| !folder.is_empty());
    inventory.datacenters[0].folders = folders.map(ToString::to_string).collect();
    inventory
}

#[tokio::test(flavor = "multi_thread")]
async fn no_node_is_deleted_whose_machine_exists() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("VDO_FIRST_SEED").unwrap_or(1);
    let seeds: Vec<u64> = match number("VDO_SEED") {
        Some(seed) => vec![seed],
        None => (first..first + number("VDO_SEEDS").unwrap_or(30)).collect(),
    };
    let began = tokio::time::Instant::now();
    let count = seeds.len();
    // A run mostly waits, so several go on at once; each of these lanes has a cluster and a vCenter of
    // its own, because faults and restarts strike all who use one.
    let left = RefCell::new(seeds.into_iter());
    let tally = Tally::default();
    let lane = async || {
        loop {
            let some: Vec<u64> = left.borrow_mut().by_ref().take(RUNS_ON_A_STAGE).collect();
            if some.is_empty() {
                return;
            }
            runs(&some, &tally).await;
        }
    };
    futures::future::join_all((0..LANES).map(|_| lane())).await;
    println!("{count} runs in {} s: {:?}", began.elapsed().as_secs(), tally.borrow());
    if count >= ENOUGH {
        for (kind, _) in WEIGHTS {
            assert!(tally.borrow().contains_key(kind), "{kind:?} never happened: {tally:?}");
        }
    }
}

/// One stage serves many runs, each with machines and nodes of its own.
async fn runs(seeds: &[u64], tally: &Tally) {
    let world = World::new().await;
    for seed in seeds {
        let mut run = Run::new(&world, tally, *seed).await;
        for number in 0..STEPS {
            run.step(number).await;
        }
        run.end().await;
    }
}
