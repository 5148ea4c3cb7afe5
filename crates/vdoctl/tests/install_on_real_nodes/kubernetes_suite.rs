//! Kubernetes' own e2e tests for storage drivers (`e2e.test --storage.testdriver`), with our driver on two real nodes.
//!
//! ```text
//!   definition   what our driver can do, in the words of the suite
//!   images       the images that the suite's pods run
//!   limits       the specs that the test environment cannot run
//!   run          the suite's portions, as processes
//!   report       the outcome of each spec
//!   page         docs/storage-tests.md
//! ```
//!
//! `make test` runs a sample that a seed selects (`VDO_E2E_SEED`), `make e2e-storage` runs all. `VDO_E2E` names the
//! portions to run, and `VDO_E2E_FOCUS` the specs, by a regular expression. The page comes from the last report of each
//! portion, so that a portion can run again alone.

mod definition;
mod images;
mod limits;
mod page;
mod report;
mod run;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;
use testkit::{SeededRandom, Workdir};

use crate::{
    cluster::{Cluster, ZONES, cloud_provider},
    storage::copies::start_snapshot_controller,
};
use report::{Outcome, Outcomes};
use run::Portion;

/// Specs that take less than half a minute, for different parts of the driver.
const QUICK: [&str; 10] = [
    r"Dynamic PV \(default fs\)\] volumes should store data",
    r"Dynamic PV \(block volmode\)\] volumes should store data",
    r"Dynamic PV \(xfs\)\] \[Slow\] volumes should store data",
    r"Dynamic PV \(default fs\)\] subPath should support existing single file",
    r"Dynamic PV \(default fs\)\] provisioning should provision storage with mount options",
    r"Dynamic PV \(block volmode\)\] volumeMode should not mount / map unused volumes in a pod",
    r"Generic Ephemeral-volume \(default fs\) \(late-binding\)\] ephemeral should create read/write",
    r"Dynamic PV \(default fs\)\] fsgroupchangepolicy \(OnRootMismatch\).*, new pod fsgroup applied",
    r"Dynamic PV \(ext3\)\] volumes should store data",
    r"Dynamic PV \(filesystem volmode\)\] volumeLimits should verify that all csinodes have volume limits",
];
/// How many of them `make test` runs.
const SAMPLE: usize = 5;
/// Two nodes keep up with this many specs at a time.
const AT_A_TIME: usize = 4;

#[tokio::test]
#[ignore = "needs root, namespaces and cgroup v1: make test-nodes"]
async fn kubernetes_own_storage_tests_pass() {
    let portions = portions();
    let workdir = Workdir::new("kubernetes-suite").unwrap();
    definition::write(&workdir);
    if !portions.is_empty() {
        run_portions(portions, &workdir).await;
    }
    if let Ok(requested) = std::env::var("VDO_E2E") {
        write_page(&workdir, requested == "all").await;
    }
}

async fn run_portions(portions: Vec<Portion>, workdir: &Workdir) {
    let cluster = start().await;
    images::push(&cluster.registry, workdir);
    let snapshot_controller = start_snapshot_controller(&cluster).await;
    let (serial, parallel): (Vec<_>, Vec<_>) = portions.into_iter().partition(Portion::is_serial);
    let mut outcomes = Outcomes::new();
    run::run(&cluster, workdir, parallel, AT_A_TIME, &mut outcomes).await;
    run::run(&cluster, workdir, serial, 1, &mut outcomes).await;
    drop(snapshot_controller);

    let counts = counts(&outcomes);
    println!("{counts:?}");
    let failed: Vec<String> = outcomes
        .iter()
        .filter_map(|(spec, outcome)| match outcome {
            Outcome::Failed { message, .. } => Some(format!("{spec}\n{message}")),
            _ => None,
        })
        .collect();
    assert!(failed.is_empty(), "{} specs failed:\n{}", failed.len(), failed.join("\n\n"));
    assert!(counts.contains_key("passed"), "no spec ran: {counts:?}");
}

/// Writes the page from the last report of each portion. It lists specs that have not run.
async fn write_page(workdir: &Workdir, must_be_complete: bool) {
    let portions = run::all_portions();
    let mut last = report::kept(portions.iter().map(Portion::name));
    last.retain(|spec, _| limits::reason(spec).is_none());
    let names = run::names(workdir).await;
    let missing = names.iter().filter(|name| !last.contains_key(*name));
    let (limited, missing): (Vec<&str>, Vec<&str>) =
        missing.map(String::as_str).partition(|name| limits::reason(name).is_some());
    assert!(!must_be_complete || missing.is_empty(), "no portion has these specs: {missing:#?}");
    page::write(&last, &limited, &missing);
}

fn portions() -> Vec<Portion> {
    if let Ok(focus) = std::env::var("VDO_E2E_FOCUS") {
        return vec![Portion::focused("focus", &focus)];
    }
    match std::env::var("VDO_E2E").as_deref() {
        Ok("all") => run::all_portions(),
        Ok("none") => Vec::new(),
        Ok(names) => {
            let is_named = |portion: &Portion| names.split(',').any(|name| name == portion.name());
            let chosen: Vec<Portion> = run::all_portions().into_iter().filter(is_named).collect();
            assert!(!chosen.is_empty(), "there is no portion {names}");
            chosen
        }
        Err(_) => sample(),
    }
}

fn sample() -> Vec<Portion> {
    let seed = std::env::var("VDO_E2E_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!("VDO_E2E_SEED={seed}");
    let mut random = SeededRandom::new(seed);
    let mut left = QUICK.to_vec();
    let mut chosen = Vec::new();
    while chosen.len() < SAMPLE {
        let number = random.below(left.len() as u64);
        chosen.push(left.swap_remove(usize::try_from(number).unwrap()));
    }
    // Two at a time: each waits most of its time.
    let half = chosen.split_off(SAMPLE / 2);
    [("sample-1", chosen), ("sample-2", half)]
        .into_iter()
        .map(|(name, specs)| Portion::focused(name, &specs.join("|")))
        .collect()
}

/// A cluster with our drivers, whose nodes take any pod.
async fn start() -> Cluster {
    let cluster = Cluster::with_nodes_in_two_zones().await;
    cluster.registry.push_own("vdo-csi");
    let storage = json!({
        "vsphereCloudConfig": "vcenter", "implementation": "Rust", "topologyCategories": [ZONES],
        // One spec attaches as many volumes as a node can have.
        "maxVolumesPerNode": definition::VOLUMES_PER_NODE,
    });
    let drivers = json!({"cloudProvider": cloud_provider(), "storageProvider": storage});
    cluster.install_with(drivers).await;
    let nodes = Api::<Node>::all(cluster.plane.client());
    let untainted = Patch::Merge(json!({"spec": {"taints": null}}));
    nodes.patch("node-1", &PatchParams::default(), &untainted).await.unwrap();
    cluster
}

fn counts(outcomes: &Outcomes) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for outcome in outcomes.values() {
        *counts.entry(outcome.name()).or_default() += 1;
    }
    counts
}
