//! The checkout and the cache.

use std::{
    path::{Path, PathBuf},
    sync::LazyLock,
};

/// The root of the checkout.
pub fn repository() -> &'static Path {
    static ROOT: LazyLock<PathBuf> = LazyLock::new(|| {
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/testkit").into()
    });
    &ROOT
}

/// The folder outside the checkout for built programs, reserved ports and files of running tests.
pub fn cache() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    set("VDO_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|c| c.join("vdo")))
        .or_else(|| set("HOME").map(|h| h.join(".cache/vdo")))
        .unwrap_or_else(|| std::env::temp_dir().join("vdo"))
}
