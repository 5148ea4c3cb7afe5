//! Records the commit this build was made from.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=VDO_COMMIT");
    println!("cargo::rerun-if-changed=../../.git/HEAD");
    println!("cargo::rerun-if-changed=../../.git/refs/heads");
    let commit = std::env::var("VDO_COMMIT").ok().or_else(from_git);
    println!("cargo::rustc-env=VDO_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
}

/// The commit of the checkout; none when building from an archive.
fn from_git() -> Option<String> {
    let output = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
