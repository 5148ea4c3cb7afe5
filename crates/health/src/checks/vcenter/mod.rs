//! vCenters.

mod account;
mod certificate;
mod clock;
mod credentials;
mod datacenters;
mod reachable;
mod services;
mod sessions;
mod shared_datastore;
mod version;

use api::finding::Definition;

use crate::{
    check::{Check, Hit},
    facts::Vcenter,
    view::vcenter_subject,
};

pub(super) const CHECKS: &[&Check] = &[
    &reachable::CHECK,
    &certificate::CHECK,
    &account::CHECK,
    &credentials::CHECK,
    &clock::CHECK,
    &version::CHECK,
    &sessions::CHECK,
    &services::CHECK,
    &shared_datastore::CHECK,
    &datacenters::CHECK,
];

fn hit(definition: &'static Definition, vcenter: &Vcenter) -> Hit {
    Hit::new(definition, vcenter_subject(vcenter))
        .with("address", &vcenter.address)
        .with("config", &vcenter.name)
        .vcenter(&vcenter.name)
}
