//! Compares our controller with the Go driver: same control plane, same simulator, same load, one after the other.
//!
//! `make bench ARGS=csi`, or
//! `cargo bench -p csi --bench compare_go -- --volumes=500 --parallel=100 --nodes=3,100 --latency=5,20`;
//! `-- ./vsphere-csi` measures an existing binary, `--only=load`, `--only=size` or `--only=sanity` a part,
//! `--sizes=100:500,5000:20000` other numbers of nodes and volumes.
//!
//! The load: create, attach, detach and delete volumes through the CSI socket. A step of the Go driver that takes
//! longer than `--go-seconds` (default 5 minutes) is stopped and marked. The output ends with the tables for
//! docs/benchmarks.md.
//!
//! ```text
//!   main          options, loads
//!   environment   control plane, simulator, both drivers
//!   load          the calls of a load and what they cost
//!   size          lists, starts and memory with many nodes and volumes
//!   sanity        the specs of csi-sanity about controllers
//! ```
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a bench prints")]
#![allow(clippy::cast_precision_loss, reason = "figures for people")]

mod environment;
mod load;
#[path = "../../tests/common/node_info.rs"]
mod node_info;
mod sanity;
mod size;

use std::{path::PathBuf, sync::LazyLock, time::Duration};

use environment::{Driver, Environment};
use load::{Load, Result, STEPS};

/// Our driver as shipped.
pub(crate) static PROGRAM: LazyLock<PathBuf> =
    LazyLock::new(|| testkit::shipped("csi", "vsphere-csi"));

struct Options {
    volumes: usize,
    parallel: usize,
    nodes: Vec<usize>,
    latencies: Vec<u64>,
    go: Duration,
    only: Option<String>,
    /// Nodes and volumes.
    sizes: Vec<(usize, usize)>,
}

fn options() -> Options {
    let mut options = Options {
        volumes: 100,
        parallel: 50,
        nodes: vec![3, 100],
        latencies: vec![5, 20],
        go: Duration::from_mins(5),
        only: None,
        sizes: vec![(100, 500), (100, 10_000), (5_000, 20_000)],
    };
    for argument in std::env::args().skip(1) {
        let Some((name, value)) = argument.strip_prefix("--").and_then(|a| a.split_once('='))
        else {
            continue;
        };
        let list = || value.split(',').map(|number| number.parse().unwrap());
        match name {
            "volumes" => options.volumes = value.parse().unwrap(),
            "parallel" => options.parallel = value.parse().unwrap(),
            "nodes" => options.nodes = list().collect(),
            "latency" => options.latencies = list().map(|ms: usize| ms as u64).collect(),
            "go-seconds" => options.go = Duration::from_secs(value.parse().unwrap()),
            "sizes" => {
                let size = |text: &str| {
                    let (nodes, volumes) = text.split_once(':').unwrap();
                    (nodes.parse().unwrap(), volumes.parse().unwrap())
                };
                options.sizes = value.split(',').map(size).collect();
            }
            "only" => options.only = Some(value.to_owned()),
            _ => panic!("unknown option --{name}"),
        }
    }
    options
}

/// The load average of this computer over 1, 5 and 15 minutes.
fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(", ")
}

#[tokio::main]
async fn main() {
    let options = options();
    LazyLock::force(&PROGRAM);
    let before = load_average();
    let wants = |part: &str| options.only.as_deref().is_none_or(|only| only == part);
    if wants("load") {
        let mut results = Vec::new();
        for nodes in &options.nodes {
            let environment = Environment::of_size(*nodes).await;
            for latency in &options.latencies {
                for driver in [Driver::Go, Driver::Ours] {
                    let load = Load {
                        volumes: options.volumes,
                        parallel: options.parallel,
                        latency: Duration::from_millis(*latency),
                        limit: if driver == Driver::Go {
                            options.go
                        } else {
                            Duration::from_mins(10)
                        },
                    };
                    let result = load::run(&environment, driver, &load).await;
                    println!(
                        "{nodes} nodes, {latency} ms, {driver:?}: {result:#?}; load {}",
                        load_average()
                    );
                    results.push((*nodes, *latency, driver, result));
                }
            }
        }
        print_loads(&options, &results);
    }
    if wants("size") {
        size::measure(&options.sizes).await;
    }
    if wants("sanity") {
        sanity::compare().await;
    }
    println!("\nload average {before} before, {} after", load_average());
}

fn print_loads(options: &Options, results: &[(usize, u64, Driver, Result)]) {
    println!("\n{} volumes, {} in parallel:\n", options.volumes, options.parallel);
    println!(
        "| nodes, latency | | {} | start | resident: own memory, files | working set |",
        STEPS.join(" | ")
    );
    println!("|---|---|{}---|---|---|", "---|".repeat(STEPS.len()));
    for (nodes, latency, driver, result) in results {
        let name = if *driver == Driver::Go { "Go" } else { "ours" };
        let steps: Vec<String> = result.steps.iter().map(load::Step::cell).collect();
        println!(
            "| {nodes}, {latency} ms | {name} | {} | {:.1} s | {:.1} MiB, {:.1} MiB | {:.1} MiB |",
            steps.join(" | "),
            result.start.as_secs_f64(),
            result.memory.anonymous,
            result.memory.files,
            result.memory.working_set,
        );
    }
}
