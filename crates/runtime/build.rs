//! Records the commit of this build.

use std::{path::Path, process::Command};

fn main() {
    println!("cargo::rerun-if-env-changed=VDO_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    // `HEAD` changes with the branch, `logs/HEAD` with every commit. A missing file would make cargo rebuild this
    // crate every time. In a git worktree the files are elsewhere, and an archive has none.
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

/// Runs git in the checkout; `None` when building from an archive.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
