//! Errors for a newcomer whose computer lacks something: one sentence with the fix.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{os::unix::fs::PermissionsExt, path::Path, process::Command};

use testkit::{Process, Workdir, eventually};

/// Runs `peers/build path etcd` on an empty cache with these variables.
fn build(workdir: &Workdir, variables: &[(&str, &Path)]) -> (bool, String) {
    let output = Command::new(testkit::repository().join("peers/build"))
        .args(["path", "etcd"])
        .env("VDO_CACHE", workdir.path().join("cache"))
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    (output.status.success(), String::from_utf8(output.stderr).unwrap())
}

/// A folder for `PATH` with the usual tools and a fake `go`, because no real Go can be missing, too old, or on a full
/// disk.
fn path_with_fake_go(workdir: &Workdir, script: Option<&str>) -> std::path::PathBuf {
    let folder = workdir.path().join("bin");
    std::fs::create_dir(&folder).unwrap();
    for tool in [
        "bash",
        "cat",
        "cut",
        "dirname",
        "env",
        "find",
        "flock",
        "grep",
        "mkdir",
        "mktemp",
        "mv",
        "rm",
        "sed",
        "sha256sum",
        "sort",
        "tail",
        "tr",
        "xargs",
    ] {
        let real = ["/bin", "/usr/bin"].iter().map(|d| Path::new(d).join(tool));
        let real = real.into_iter().find(|p| p.exists()).expect("a usual tool");
        std::os::unix::fs::symlink(real, folder.join(tool)).unwrap();
    }
    if let Some(script) = script {
        let go = folder.join("go");
        std::fs::write(&go, format!("#!/usr/bin/env bash\n{script}\n")).unwrap();
        std::fs::set_permissions(&go, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    folder
}

#[test]
fn without_go_the_error_names_the_package_to_install() {
    let workdir = Workdir::new("no-go").unwrap();
    let (built, text) = build(&workdir, &[("PATH", &path_with_fake_go(&workdir, None))]);
    assert!(!built && text.contains("Go is not installed"), "{text}");
    assert!(text.contains("install it from go.dev/dl"), "{text}");
}

#[test]
fn an_outdated_go_is_reported_with_the_required_version() {
    let workdir = Workdir::new("old-go").unwrap();
    let path = path_with_fake_go(&workdir, Some("echo go1.22.1"));
    let (built, text) = build(&workdir, &[("PATH", &path)]);
    assert!(!built && text.contains("Go is go1.22.1 here") && text.contains("go1.26"), "{text}");
}

#[test]
fn a_full_disk_is_reported() {
    let workdir = Workdir::new("full-disk").unwrap();
    let go = r#"case $1 in env) case $2 in GOVERSION) echo go1.26.8;; GOOS) echo linux; echo amd64;; *) echo /go-cache;; esac;; build) echo "write /tmp/x: no space left on device" >&2; exit 1;; esac"#;
    let (built, text) = build(&workdir, &[("PATH", &path_with_fake_go(&workdir, Some(go)))]);
    assert!(!built && text.contains("etcd: the disk is full: free about 8 GiB"), "{text}");
}

#[test]
fn an_empty_cache_without_network_is_reported_with_the_fix() {
    let workdir = Workdir::new("no-network").unwrap();
    let modules = workdir.path().join("modules");
    // Nothing listens on port 1.
    let proxy = Path::new("http://127.0.0.1:1");
    let (built, text) = build(&workdir, &[("GOPROXY", proxy), ("GOMODCACHE", &modules)]);
    assert!(!built && text.contains("cannot be reached and the cache is cold"), "{text}");
}

#[test]
fn a_read_only_cache_is_reported() {
    let workdir = Workdir::new("read-only").unwrap();
    let cache = workdir.write("cache", "a file where the folder should be").unwrap();
    let (built, text) = build(&workdir, &[]);
    let expected = format!("cannot write to {}", cache.display());
    assert!(!built && text.contains(&expected), "{text}");
}

#[tokio::test]
async fn a_peer_that_dies_during_a_test_is_reported_with_its_log() {
    let workdir = Workdir::new("dying-peer").unwrap();
    let run = Path::new(env!("CARGO_BIN_EXE_killed-run"));
    let run = Process::spawn(run, "run", [""; 0], &[], &workdir).unwrap();
    let etcd = eventually("the run has started everything", 60, async || {
        assert!(run.ended().is_none(), "{}", run.log());
        let started: serde_json::Value =
            serde_json::from_str(&run.output()).map_err(|e| e.to_string())?;
        started["pids"][0].as_i64().ok_or("no pid".to_owned())
    })
    .await;
    let etcd = rustix::process::Pid::from_raw(i32::try_from(etcd).unwrap()).unwrap();
    rustix::process::kill_process(etcd, rustix::process::Signal::KILL).unwrap();
    eventually("testkit reports the dead peer", 20, async || {
        let log = run.log();
        if log.contains("testkit: etcd ended by itself during a test (signal: 9") {
            Ok(())
        } else {
            Err(log)
        }
    })
    .await;
}
