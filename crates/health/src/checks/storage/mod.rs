//! Datastores, StorageClasses and volumes.

mod attached_vm;
mod attachments;
mod claims;
mod classes;
mod cluster_id;
mod datastores;
mod registered;
mod shared_datastore;
mod snapshots;
mod volume_counts;

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
    &volume_counts::CHECK,
    &attached_vm::CHECK,
    &attachments::CHECK,
    &snapshots::CHECK,
];

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
