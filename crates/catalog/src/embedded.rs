//! The catalog the operator is born with, so that it needs no network to start.

use std::sync::LazyLock;

use crate::{model::Catalog, read};

/// The text, as it stands in the source tree.
pub const TEXT: &str = include_str!("../data/catalog.yaml");

/// The embedded catalog. Read once; that it can be read is proved by a test, so there is no error to
/// hand on. Should it ever fail, an empty catalog chooses nothing and so changes nothing.
pub fn embedded() -> &'static Catalog {
    static CATALOG: LazyLock<Catalog> = LazyLock::new(|| {
        read(TEXT.as_bytes()).unwrap_or_else(|_| Catalog {
            serial: 0,
            issued: jiff::Timestamp::UNIX_EPOCH,
            expires: None,
            newest_vsphere: crate::version::VsphereBound::of_major(9),
            newest_kubernetes: None,
            unavailable: Vec::new(),
            releases: Vec::new(),
            signed: false,
        })
    });
    &CATALOG
}
