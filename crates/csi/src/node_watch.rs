//! Follows the CSINodes: which VMs are nodes with this driver.

use std::{
    collections::{BTreeSet, HashMap},
    pin::pin,
};

use futures::TryStreamExt as _;
use k8s_openapi::api::storage::v1::CSINode;
use kube::{
    Api, Client, ResourceExt as _,
    runtime::{WatchStreamExt as _, watcher},
};
use vsphere::BiosUuid;

use crate::{DRIVER_NAME, node_set::NodeSet};

/// Keeps `nodes` equal to the CSINodes of the cluster, for as long as the process runs.
///
/// A node whose id is not a VM's uuid, such as a bare-metal one, is not ours and does not stop the driver.
pub async fn follow(client: Client, nodes: NodeSet) {
    let api = Api::<CSINode>::all(client);
    let mut events = pin!(watcher(api, watcher::Config::default()).default_backoff());
    let mut known: HashMap<String, BiosUuid> = HashMap::new();
    let mut listing: HashMap<String, BiosUuid> = HashMap::new();
    loop {
        match events.try_next().await {
            Ok(Some(event)) => match event {
                watcher::Event::Init => {
                    listing.clear();
                    continue;
                }
                watcher::Event::InitApply(node) => {
                    listing.extend(named(&node));
                    continue;
                }
                watcher::Event::InitDone => known = std::mem::take(&mut listing),
                watcher::Event::Apply(node) => match named(&node) {
                    Some((name, uuid)) => {
                        known.insert(name, uuid);
                    }
                    None => {
                        known.remove(&node.name_any());
                    }
                },
                watcher::Event::Delete(node) => {
                    known.remove(&node.name_any());
                }
            },
            Ok(None) => return,
            Err(error) => {
                let error = runtime::error_chain::error_chain(&error);
                tracing::warn!(error, "cannot watch the CSINodes");
                continue;
            }
        }
        nodes.set(known.values().copied().collect::<BTreeSet<_>>());
    }
}

fn named(node: &CSINode) -> Option<(String, BiosUuid)> {
    let driver = node.spec.drivers.iter().find(|driver| driver.name == DRIVER_NAME)?;
    Some((node.name_any(), driver.node_id.parse().ok()?))
}
