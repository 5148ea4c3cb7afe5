//! Measures choosing from the embedded catalog, reading it and rendering a release.
//!
//! `cargo bench -p catalog`. A choice must take less than a millisecond.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a bench prints figures and measures real time"
)]

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use catalog::{
    Driver, EMBEDDED, Environment, Implementation, Policy, Request, Rewrite, Vcenter, choose,
    embedded,
    manifest::{Profile, render},
    read,
};

/// Prints the median and the worst run; returns the median.
fn measure(what: &str, runs: usize, mut work: impl FnMut()) -> Duration {
    work();
    let mut times: Vec<_> = (0..runs)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed()
        })
        .collect();
    times.sort();
    let (median, worst) = (times[runs / 2], times[runs - 1]);
    println!("{what:<58} median {median:>10.1?}   worst of {runs} {worst:>10.1?}");
    median
}

fn main() {
    let vcenter = |n: u32, version: &str| Vcenter {
        name: format!("vc-{n}"),
        version: version.parse().unwrap(),
        oldest_host: Some("8.0U1".parse().unwrap()),
    };
    let seen = Environment {
        kubernetes: "1.35.2".parse().unwrap(),
        vcenters: vec![vcenter(1, "8.0U3"), vcenter(2, "9.0")],
        distribution: "vanilla".to_owned(),
        windows_nodes: true,
        topology: true,
        rewrite: Rewrite::default(),
        today: None,
    };
    let request = |installed: &str| Request {
        implementation: Implementation::Upstream,
        policy: Policy::Stable,
        installed: Some(installed.parse().unwrap()),
    };
    let (csi, cpi) = (request("2.7.3"), request("1.33.1"));
    println!(
        "{} releases in the embedded catalog, {} bytes",
        embedded().releases.len(),
        EMBEDDED.len()
    );
    let both = measure("choose both drivers, with every reason", 2_000, || {
        black_box(choose(embedded(), &seen, Driver::Csi, &csi));
        black_box(choose(embedded(), &seen, Driver::Cpi, &cpi));
    });
    measure("the same, with every reason written out", 1_000, || {
        for (driver, request) in [(Driver::Csi, &csi), (Driver::Cpi, &cpi)] {
            for (_, reason) in choose(embedded(), &seen, driver, request).others {
                black_box(reason.to_string());
            }
        }
    });
    measure("read the embedded catalog", 50, || {
        drop(black_box(read(EMBEDDED.as_bytes()).unwrap()));
    });
    let release =
        embedded().releases_of(Driver::Csi, Implementation::Upstream).next_back().unwrap();
    let profile = Profile::new(seen.kubernetes);
    measure("render the newest CSI release", 500, || {
        drop(black_box(render(release, &profile).unwrap()));
    });
    assert!(
        both < Duration::from_millis(1),
        "choosing took {both:?}; the promise is a millisecond"
    );
}
