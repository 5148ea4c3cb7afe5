//! The VMs that are nodes of this cluster.

use std::{
    collections::BTreeSet,
    sync::{Arc, PoisonError, RwLock},
};

use vsphere::BiosUuid;

/// The node ids of the cluster. Clones share the set.
///
/// Before the nodes are known, the set is empty, and the driver places volumes on any datastore.
#[derive(Clone, Debug, Default)]
pub struct NodeSet {
    uuids: Arc<RwLock<Arc<BTreeSet<BiosUuid>>>>,
}

impl NodeSet {
    pub fn set(&self, uuids: BTreeSet<BiosUuid>) {
        *self.uuids.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(uuids);
    }

    pub fn get(&self) -> Arc<BTreeSet<BiosUuid>> {
        Arc::clone(&self.uuids.read().unwrap_or_else(PoisonError::into_inner))
    }
}
