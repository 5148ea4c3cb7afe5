//! Random runs of faults and changes. The controller must never delete a Node whose VM exists. At the end
//! of a run, every Node whose VM is gone must be deleted; there is at least one in each run.
//!
//! VMs are in several folders of two vCenters, move between these, disappear and come back, are hidden, and
//! get copies with the same uuid. vCenters and the API server hang and restart, passwords and the
//! configuration change, and Nodes lose their record. A physical server has the name and the address of a
//! VM, and must never change.
//!
//! ```text
//!   main    seeds, parallel lanes, statistics
//!   run     one run: VMs, controller, invariants, end
//!   steps   faults and changes
//! ```
//!
//! `VDO_SEEDS` is the number of runs, `VDO_FIRST_SEED` the first seed; `VDO_SEED` repeats one run.
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

/// Steps per run.
const STEPS: usize = 16;
const FOLDERS: [&str; 3] = ["", "k8s", "k8s/workers"];
/// Concurrent runs.
const LANES: usize = 3;
/// Runs on one cluster before it is re-created.
const RUNS_ON_A_STAGE: usize = 10;
/// With this many runs, every kind of step must happen.
const ENOUGH: usize = 30;

/// The number of steps of each kind.
type Tally = RefCell<BTreeMap<Kind, usize>>;

struct Environment {
    stage: Stage,
    /// A second vCenter; VMs move between the two.
    other: Vcenter,
    /// Proxies of the first and the second vCenter.
    proxies: [FaultProxy; 2],
}

impl Environment {
    async fn new() -> Self {
        let mut other = readable(empty());
        let uuid = "22222222-0000-4000-8000-000000000002".to_owned();
        other.about.insert("instanceUuid".to_owned(), uuid);
        let (stage, other) = tokio::join!(Stage::with(empty()), Vcenter::start(other));
        let proxies = [
            FaultProxy::before(stage.vcenter.address()).await,
            FaultProxy::before(other.address()).await,
        ];
        Self { stage, other, proxies }
    }
}

/// An inventory with folders but without VMs.
fn empty() -> Inventory {
    let mut inventory = Inventory::small();
    let folders = FOLDERS.iter().filter(|folder| !folder.is_empty());
    inventory.datacenters[0].folders = folders.map(ToString::to_string).collect();
    inventory
}

#[tokio::test(flavor = "multi_thread")]
async fn no_node_is_deleted_whose_vm_exists() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("VDO_FIRST_SEED").unwrap_or(1);
    let seeds: Vec<u64> = match number("VDO_SEED") {
        Some(seed) => vec![seed],
        None => (first..first + number("VDO_SEEDS").unwrap_or(30)).collect(),
    };
    let began = tokio::time::Instant::now();
    let count = seeds.len();
    // A run mostly waits, so several run concurrently. Each lane has its own cluster and vCenters, because
    // faults and restarts affect all users of one.
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

/// Several runs share one environment, each with its own VMs and nodes.
async fn runs(seeds: &[u64], tally: &Tally) {
    let environment = Environment::new().await;
    for seed in seeds {
        let mut run = Run::new(&environment, tally, *seed).await;
        for number in 0..STEPS {
            run.step(number).await;
        }
        run.end().await;
    }
}
