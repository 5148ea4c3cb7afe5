//! The generated types and services (`make proto`): the CSI specification 1.12, and the kubelet's registration of
//! plugins.
#![allow(
    clippy::pedantic,
    clippy::doc_lazy_continuation,
    clippy::doc_overindented_list_items,
    unreachable_pub,
    rust_2018_idioms,
    reason = "generated"
)]

pub mod csi {
    include!("proto/csi.v1.rs");
}

pub mod registration {
    include!("proto/pluginregistration.rs");
}
