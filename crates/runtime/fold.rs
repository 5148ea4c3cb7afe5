//! Has the linker keep one of several functions that are the same: generic code makes many of them.
#![allow(clippy::print_stdout, reason = "cargo reads what a build script prints")]

fn main() {
    println!("cargo::rerun-if-changed=../runtime/fold.rs");
    let of = |name: &str| std::env::var(name).unwrap_or_default();
    // The target for which Rust brings a linker that can do it.
    if of("PROFILE") == "release" && of("TARGET") == "x86_64-unknown-linux-gnu" {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
    }
}
