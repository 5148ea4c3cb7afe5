//! However a test run ends, it leaves no processes and no files.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{
    panic::AssertUnwindSafe,
    path::{Path, PathBuf},
    sync::Mutex,
};

use futures::FutureExt;
use rustix::process::Signal;
use serde::Deserialize;
use testkit::{ControlPlane, Process, Workdir, eventually};

#[derive(Deserialize)]
struct Started {
    pids: Vec<u32>,
    folder: PathBuf,
}

fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
    !matches!(state, None | Some("Z" | "X"))
}

async fn a_run_killed_by(signal: Signal) {
    let workdir = Workdir::new("killed-run").unwrap();
    let run = Path::new(env!("CARGO_BIN_EXE_killed-run"));
    let run = Process::spawn(run, "run", [""; 0], &[], &workdir).unwrap();
    let started: Started = eventually("the run has started everything", 60, async || {
        assert!(run.ended().is_none(), "{}", run.log());
        serde_json::from_str(&run.output()).map_err(|e| e.to_string())
    })
    .await;
    assert_eq!(started.pids.len(), 5);
    assert!(started.pids.iter().all(|pid| lives(*pid)), "they run before the kill");

    run.signal(signal);

    eventually("every process of the run is gone", 20, async || {
        let left: Vec<&u32> = started.pids.iter().filter(|pid| lives(**pid)).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("left: {left:?}")) }
    })
    .await;
    eventually("its files are gone", 20, async || {
        if started.folder.exists() { Err(started.folder.display().to_string()) } else { Ok(()) }
    })
    .await;
}

#[tokio::test]
async fn a_run_killed_with_sigkill_leaves_nothing() {
    a_run_killed_by(Signal::KILL).await;
}

#[tokio::test]
async fn a_run_interrupted_from_the_keyboard_leaves_nothing() {
    a_run_killed_by(Signal::INT).await;
}

#[tokio::test]
async fn files_are_kept_on_request_and_removed_by_the_next_run() {
    let workdir = Workdir::new("kept-run").unwrap();
    let cache = workdir.path().join("cache");
    std::fs::create_dir(&cache).unwrap();
    // The programs are shared, but the folder of the runs is separate.
    std::os::unix::fs::symlink(testkit::cache().join("peers"), cache.join("peers")).unwrap();
    let cache = cache.display().to_string();
    let run = async |name: &str, variables: &[(&str, &str)]| {
        let program = Path::new(env!("CARGO_BIN_EXE_killed-run"));
        let run = Process::spawn(program, name, [""; 0], variables, &workdir).unwrap();
        let started: Started = eventually("the run has started everything", 60, async || {
            assert!(run.ended().is_none(), "{}", run.log());
            serde_json::from_str(&run.output()).map_err(|e| e.to_string())
        })
        .await;
        run.signal(Signal::KILL);
        run.wait(60).await.expect("it was killed");
        eventually("its processes are gone", 20, async || {
            let left: Vec<&u32> = started.pids.iter().filter(|pid| lives(**pid)).collect();
            if left.is_empty() { Ok(()) } else { Err(format!("left: {left:?}")) }
        })
        .await;
        started.folder
    };

    let kept = run("kept", &[("VDO_CACHE", &cache), ("VDO_KEEP", "1")]).await;
    assert!(kept.exists(), "{} is kept", kept.display());

    run("next", &[("VDO_CACHE", &cache)]).await;
    assert!(!kept.exists(), "{} is removed", kept.display());
}

#[tokio::test]
async fn a_test_that_panics_leaves_nothing() {
    let started = Mutex::default();
    let test = async {
        let plane = ControlPlane::start().await;
        let pids: Vec<u32> = plane.processes().into_iter().map(|(_, pid)| pid).collect();
        *started.lock().unwrap() = (pids, plane.folder().to_owned());
        panic!("this panic is part of the test");
    };
    let outcome: Result<(), _> = AssertUnwindSafe(test).catch_unwind().await;
    assert!(outcome.is_err(), "it panicked");
    let (pids, folder): (Vec<u32>, PathBuf) = started.into_inner().unwrap();
    assert_eq!(pids.len(), 2);
    assert!(pids.iter().all(|pid| !lives(*pid)), "a panic must stop all programs");
    assert!(!Path::new(&folder).exists());
}

#[tokio::test]
async fn a_peer_that_cannot_start_is_reported_with_cause_and_fix() {
    let workdir = Workdir::new("bad-inventory").unwrap();
    let bad = serde_json::json!({"datacentres": []}).to_string();
    let file = workdir.write("inventory.json", bad).unwrap();
    let arguments = [format!("-inventory={}", file.display())];
    let vcsim = Process::spawn(&testkit::peer("vcsim"), "vcsim", arguments, &[], &workdir).unwrap();
    let status = vcsim.wait(20).await.expect("it ends");
    assert_eq!(status.code(), Some(2));
    assert!(vcsim.log().contains("datacentres"), "{}", vcsim.log());
}
