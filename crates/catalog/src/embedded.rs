//! The catalog that is compiled in, so that the operator starts without a network.

use std::sync::LazyLock;

use crate::{model::Catalog, parse};

pub const TEXT: &str = include_str!("../data/catalog.yaml");

/// The embedded catalog, read once. A test proves that it can be read, so there is no error to return. If
/// reading failed anyway, the empty catalog would choose nothing and so change nothing.
pub fn embedded() -> &'static Catalog {
    static CATALOG: LazyLock<Catalog> = LazyLock::new(|| {
        let catalog =
            parse::document(TEXT.as_bytes()).and_then(|document| parse::catalog(&document));
        catalog.unwrap_or_else(|_| Catalog {
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
