//! Records the commit this build was made from.

use std::{path::Path, process::Command};

fn main() {
    println!("cargo::rerun-if-env-changed=VDO_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    // The first changes with the branch, the second with every commit on it. A file that is not there
    // would have cargo build this crate anew each time: in a work tree they are elsewhere, in an archive
    // nowhere.
    for file in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--git-path", file]);
        if let Some(path) = path.filter(|path| Path::new(path).exists()) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    let commit = std::env::var("VDO_COMMIT").ok();
    let commit = commit.or_else(|| git(&["rev-parse", "--short=12", "HEAD"]));
    println!("cargo::rustc-env=VDO_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
}

/// What git says about the checkout; nothing when building from an archive.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
