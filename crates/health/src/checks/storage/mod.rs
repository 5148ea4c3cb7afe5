//! Datastores, StorageClasses and volumes.

mod attachments;
mod claims;
mod classes;
mod cluster_id;
mod datastores;
mod holders;
mod numbers;
mod registered;
mod shared_datastore;
mod snapshots;

use api::finding::{Definition, Subject};

use crate::{
    check::{Anchor, Check, Hit},
    facts::Volume,
};

pub(super) const CHECKS: &[&Check] = &[
    &shared_datastore::CHECK,
    &classes::CHECK,
    &datastores::CHECK,
    &claims::CHECK,
    &cluster_id::CHECK,
    &registered::CHECK,
    &numbers::CHECK,
    &holders::CHECK,
    &attachments::CHECK,
    &snapshots::CHECK,
];

/// A fault of a volume.
fn hit(definition: &'static Definition, volume: &Volume) -> Hit {
    let claim = volume.claim.as_deref();
    let namespace = claim.and_then(|claim| claim.split_once('/')).map_or("default", |(ns, _)| ns);
    Hit::new(definition, Subject::kubernetes("PersistentVolume", None, &volume.name))
        .with("volume", &volume.name)
        .with("handle", &volume.handle)
        .with("claim", claim.map_or(String::new(), |claim| format!(" (claim {claim})")))
        .with("namespace", namespace)
        .at(Anchor::Volume, &volume.handle)
}
