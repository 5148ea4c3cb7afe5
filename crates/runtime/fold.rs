//! Makes the linker merge identical functions, of which generic code produces many.
#![allow(clippy::print_stdout, reason = "cargo reads what a build script prints")]

fn main() {
    println!("cargo::rerun-if-changed=../runtime/fold.rs");
    let of = |name: &str| std::env::var(name).unwrap_or_default();
    // The target whose Rust toolchain includes a linker with this feature.
    if of("PROFILE") == "release" && of("TARGET") == "x86_64-unknown-linux-gnu" {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
    }
}
