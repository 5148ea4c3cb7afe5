//! Fuzzes every RPC of the driver: random requests, and requests with damaged bytes, through the sockets of real
//! processes. No process panics, no call hangs, and every answer has a code that the CSI specification allows for that
//! RPC.
//!
//! ```text
//!   main       workers, answers
//!   rpcs       the RPCs with their codes
//!   requests   random requests
//!   wire       damaged bytes, and calls with them
//!   driver     the controller and the node plugin
//! ```
//!
//! The test runs for some seconds, as `make soak` (with `VDO_SEEDS`) for ten minutes, or for `VDO_FUZZ_SECONDS`.
//! `VDO_FIRST_SEED` is the first seed; every worker has its own.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a failed unwrap fails the test"
)]

mod driver;
mod requests;
mod rpcs;
mod wire;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use driver::Driver;
use requests::Requests;
use rpcs::{ALL, Rpc, Service};
use testkit::SeededRandom;
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};
use tonic::Code;

const WORKERS: u64 = 6;
/// Requests of each worker, also on a busy computer.
const AT_LEAST: u64 = 50;
/// A run of this many seconds gets beyond every first check.
const LONG: u64 = 60;
/// Longer than any timeout of the driver in this test.
const HANGS: Duration = Duration::from_mins(1);
const PROGRESS: Duration = Duration::from_mins(1);
static SENT: AtomicU64 = AtomicU64::new(0);

#[derive(Debug, Default)]
struct Answers {
    /// How often each RPC ended with each code.
    codes: HashMap<(&'static str, Code), u64>,
    /// The first wrong answer of each RPC and code.
    wrong: HashMap<(&'static str, Code), String>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_request_gets_an_answer_with_a_code_of_the_specification() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let default = if number("VDO_SEEDS").is_some() { 600 } else { 4 };
    let seconds = number("VDO_FUZZ_SECONDS").unwrap_or(default);
    let first = number("VDO_FIRST_SEED").unwrap_or(1);
    let driver = Arc::new(Driver::start().await);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut workers = JoinSet::new();
    for seed in first..first + WORKERS {
        workers.spawn(work(driver.clone(), seed, end));
    }
    let progress = async || -> std::convert::Infallible {
        let began = Instant::now();
        loop {
            tokio::time::sleep(PROGRESS).await;
            let (sent, passed) = (SENT.load(Ordering::Relaxed), began.elapsed().as_secs());
            println!("{sent} requests in {passed} of {seconds} s");
        }
    };
    let parts = tokio::select! {
        parts = workers.join_all() => parts,
        never = progress() => match never {},
    };
    let mut answers = Answers::default();
    for part in parts {
        answers.wrong.extend(part.wrong);
        for (key, count) in part.codes {
            *answers.codes.entry(key).or_default() += count;
        }
    }
    let wrong: Vec<&str> = answers.wrong.values().map(String::as_str).collect();
    assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), driver.log());
    driver.still_works().await;
    let total: u64 = answers.codes.values().sum();
    println!("{total} requests in {seconds} s");
    for rpc in ALL {
        let of_rpc = answers.codes.iter().filter(|((method, _), _)| *method == rpc.method);
        let codes: Vec<_> = of_rpc.map(|((_, code), count)| format!("{code:?} {count}")).collect();
        println!("  {}: {}", rpc.method, codes.join(", "));
        assert!(!codes.is_empty(), "{} was never called", rpc.method);
    }
    // Requests that are only random would never pass the first check.
    let wanted = if seconds < LONG {
        &[][..]
    } else {
        &["CreateVolume", "ControllerPublishVolume", "CreateSnapshot"]
    };
    for method in wanted {
        assert!(answers.codes.contains_key(&(*method, Code::Ok)), "{method} never succeeded");
    }
}

async fn work(driver: Arc<Driver>, seed: u64, end: Instant) -> Answers {
    let mut random = SeededRandom::new(seed);
    let mut answers = Answers::default();
    let mut number = 0_u64;
    while Instant::now() < end || number < AT_LEAST {
        number += 1;
        SENT.fetch_add(1, Ordering::Relaxed);
        let rpc = &ALL[usize::try_from(random.below(ALL.len() as u64)).unwrap()];
        let mut requests = Requests { random: &mut random, known: &driver.known };
        let mut bytes = (rpc.request)(&mut requests);
        if random.one_in(4) {
            wire::damage(&mut bytes, &mut random);
        }
        let text = || format!("seed {seed}, request {number}: {} {}", rpc.method, hex(&bytes));
        let call = wire::call(driver.channel(rpc.service), rpc.path(), bytes.clone());
        let answer = timeout(HANGS, call).await;
        let answer = answer.unwrap_or_else(|_| panic!("{} hangs\n{}", text(), driver.log()));
        let code = match answer {
            Ok(answer) => {
                driver.learn(rpc.method, &bytes, &answer);
                Code::Ok
            }
            Err(status) => {
                let says_why = status.message().len() > 10;
                if !says_why || !is_allowed(rpc, &bytes, status.code()) {
                    let text = format!("{}: {status}", text());
                    answers.wrong.entry((rpc.method, status.code())).or_insert(text);
                }
                status.code()
            }
        };
        *answers.codes.entry((rpc.method, code)).or_default() += 1;
    }
    answers
}

/// Bytes that are no message are the only internal error.
fn is_allowed(rpc: &Rpc, bytes: &[u8], code: Code) -> bool {
    // The codes for any RPC: a missing or wrong field, and a second call for the same volume.
    let common = [Code::InvalidArgument, Code::Aborted, Code::Unimplemented];
    match code {
        Code::Internal => {
            !(rpc.is_message)(bytes) || rpc.service == Service::Node && rpc.codes.contains(&code)
        }
        code => common.contains(&code) || rpc.codes.contains(&code),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
