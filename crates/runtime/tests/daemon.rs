//! A binary on this runtime, tested from outside: probes, metrics, log level, and each way to end.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::path::{Path, PathBuf};

use runtime::probe::{self, Answer};
use rustix::process::Signal;
use serde_json::Value;
use testkit::{Process, Workdir, eventually};

struct Daemon {
    process: Process,
    url: String,
    socket: PathBuf,
    _workdir: Workdir,
}

/// The example binary that cargo builds next to this test.
fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.parent().unwrap().parent().unwrap().join("examples/daemon");
    assert!(program.exists(), "build it first: cargo build -p runtime --examples");
    program
}

fn lines(log: &str) -> Vec<Value> {
    log.lines().map(|line| serde_json::from_str(line).expect("every log line is JSON")).collect()
}

async fn start(mode: &str) -> Daemon {
    testkit::install_tls_provider();
    let workdir = Workdir::new("daemon").unwrap();
    let socket = workdir.path().join("vdo.sock");
    // A crashed container leaves such a socket behind.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let arguments = [mode.to_owned(), socket.display().to_string()];
    let process = Process::spawn(&program(), "daemon", arguments, &[], &workdir).unwrap();
    let url = eventually("it listens", 20, async || {
        let log = process.log();
        let line = log.lines().next().ok_or("no line yet")?;
        let line: Value = serde_json::from_str(line).map_err(|_| "half a line")?;
        line["address"].as_str().map(|a| format!("http://{a}")).ok_or("no address")
    })
    .await;
    Daemon { process, url, socket, _workdir: workdir }
}

impl Daemon {
    async fn get(&self, path: &str) -> (u16, String) {
        let answer = reqwest::get(format!("{}{path}", self.url)).await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    async fn exit_code(&self) -> Option<i32> {
        self.process.wait(20).await.expect("it ends").code()
    }
}

#[tokio::test]
async fn probes_metrics_and_version_are_served() {
    let daemon = start("idle").await;
    eventually("it is ready", 10, async || match daemon.get("/readyz").await {
        (200, _) => Ok(()),
        (code, page) => Err(format!("{code} {page}")),
    })
    .await;
    assert_eq!(daemon.get("/livez").await.0, 200);
    assert!(daemon.get("/readyz").await.1.contains("[+] warm ok"));
    let (_, version) = daemon.get("/version").await;
    let version: Value = serde_json::from_str(&version).unwrap();
    assert_eq!(version["name"], "daemon");
    let commit = version["commit"].as_str().unwrap();
    assert!(commit.len() == 12 && commit != "unknown", "{version}");
    let (_, metrics) = daemon.get("/metrics").await;
    assert!(metrics.contains("daemon_build_info{version="), "{metrics}");
    assert!(metrics.ends_with("# EOF\n"), "{metrics}");
}

/// A page on the socket of a process, once it answers there.
async fn answered(socket: &Path, page: &str) -> Answer {
    eventually("it answers on its socket", 20, async || probe::get(socket, page)).await
}

#[tokio::test]
async fn the_log_level_changes_on_the_socket_and_an_invalid_filter_changes_nothing() {
    let daemon = start("idle").await;
    answered(&daemon.socket, "/livez").await;
    let ticks = || daemon.process.log().matches("\"tick\"").count();
    assert_eq!(ticks(), 0, "not at level info");
    assert!(probe::set_log_level(&daemon.socket, "debug").unwrap().ok);
    eventually("debug lines appear", 10, async || if ticks() > 0 { Ok(()) } else { Err("none") })
        .await;
    let refused = probe::set_log_level(&daemon.socket, "a=b=c").unwrap();
    assert!(!refused.ok);
    assert!(refused.text.contains("is not a log level: write `info`"), "{refused:?}");
    eventually("the change is in the log", 10, async || {
        let log = daemon.process.log();
        let whole = log.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let logged = lines(whole).iter().any(|line| line["message"] == "log level changed");
        if logged { Ok(()) } else { Err(log) }
    })
    .await;
}

#[tokio::test]
async fn the_log_level_cannot_be_changed_over_the_network() {
    let daemon = start("idle").await;
    let request = reqwest::Client::new().put(format!("{}/log-level", daemon.url)).body("debug");
    assert_eq!(request.send().await.unwrap().status().as_u16(), 404);
    assert!(!daemon.process.log().contains("log level changed"));
}

#[tokio::test]
async fn probes_are_answered_on_the_socket_too() {
    let daemon = start("cold").await;
    let live = answered(&daemon.socket, "/livez").await;
    assert_eq!(live, Answer { ok: true, text: "[+] progress ok\nok\n".into() });
    let ready = eventually("the check has reported", 10, async || {
        let ready = probe::get(&daemon.socket, "/readyz").map_err(|error| error.to_string())?;
        if ready.text.contains("still cold") { Ok(ready) } else { Err(ready.text) }
    })
    .await;
    assert!(!ready.ok);
    daemon.process.signal(Signal::STOP);
    // The kernel stops it a moment later.
    let frozen = eventually("it is frozen", 10, async || {
        probe::get(&daemon.socket, "/livez").err().ok_or("it still answers")
    })
    .await;
    assert!(matches!(frozen, probe::Error::Answer { .. }), "{frozen:?}");
    daemon.process.signal(Signal::CONT);
    assert!(answered(&daemon.socket, "/livez").await.ok, "it recovers");
    daemon.process.signal(Signal::TERM);
    assert_eq!(daemon.exit_code().await, Some(0));
    assert!(matches!(probe::get(&daemon.socket, "/livez"), Err(probe::Error::Connect { .. })));
}

#[tokio::test]
async fn work_that_hangs_fails_the_liveness_probe() {
    let daemon = start("hanging").await;
    let page = eventually("the watchdog fails", 20, async || match daemon.get("/livez").await {
        (503, page) => Ok(page),
        (code, page) => Err(format!("{code} {page}")),
    })
    .await;
    assert_eq!(page, "[-] progress: no step has ended for 1 seconds\nnot ok\n");
    assert_eq!(daemon.get("/readyz").await.0, 200, "that is another question");
}

#[tokio::test]
async fn a_failing_check_fails_the_readiness_probe_with_its_reason() {
    let daemon = start("cold").await;
    let page = eventually("the check has spoken", 10, async || match daemon.get("/readyz").await {
        (503, page) if page.contains("still cold") => Ok(page),
        (code, page) => Err(format!("{code} {page}")),
    })
    .await;
    assert_eq!(page, "[-] warm: still cold\nnot ok\n");
    assert_eq!(daemon.get("/livez").await.0, 200, "unready is not dead");
}

#[tokio::test]
async fn a_signal_ends_the_process_orderly() {
    let daemon = start("idle").await;
    daemon.process.signal(Signal::TERM);
    assert_eq!(daemon.exit_code().await, Some(0));
    assert!(daemon.process.log().contains("stopped"));
}

#[tokio::test]
async fn a_process_that_does_not_stop_in_time_is_ended() {
    let daemon = start("stubborn").await;
    daemon.process.signal(Signal::TERM);
    assert_eq!(daemon.exit_code().await, Some(runtime::process::EXIT_TOO_SLOW));
    assert!(daemon.process.log().contains("shutdown took too long"));
}

#[tokio::test]
async fn a_panic_is_logged_and_ends_the_process() {
    let daemon = start("panic").await;
    assert_eq!(daemon.exit_code().await, Some(runtime::process::EXIT_PANIC));
    let log = daemon.process.log();
    let panic =
        lines(&log).into_iter().find(|line| line["level"] == "ERROR").expect("an error line");
    assert_eq!(panic["message"], "panic: out of cheese");
    assert!(panic["place"].as_str().unwrap().contains("daemon.rs"), "{panic}");
}
