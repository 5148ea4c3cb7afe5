//! Queries to vCenters, which can take a long time.

use std::pin::pin;

use super::{Shared, WorkerPermit};
use crate::model::Node;

impl Shared {
    /// Runs `query` for a node without a worker permit, so that other nodes do not wait for it.
    ///
    /// Returns `None` as soon as the answer is no longer needed: the Node is being deleted, has
    /// another uid, or no longer passes `is_needed_for`. The change that caused this syncs it again.
    pub(super) async fn query_vcenters<T>(
        &self,
        node: &Node,
        permit: Option<WorkerPermit>,
        query: impl Future<Output = T>,
        is_needed_for: impl Fn(&Node) -> bool,
    ) -> Option<T> {
        drop(permit);
        let answering = async {
            // The semaphore is never closed.
            let _turn = self.vcenter_queries.acquire().await;
            tracing::debug!(node = &*node.name, "asking vCenter whether the VM is gone");
            query.await
        };
        let mut answering = pin!(answering);
        let mut changed = false;
        let answer = loop {
            tokio::select! {
                answer = &mut answering => break Some(answer),
                () = self.queue.added_again(&node.name) => {
                    changed = true;
                    let is_same_node = |now: &Node| now.uid == node.uid && !now.deleting;
                    let now = self.nodes.get(&node.name);
                    if !now.is_some_and(|now| is_same_node(&now) && is_needed_for(&now)) {
                        break None;
                    }
                }
            }
        };
        if changed {
            self.queue.add(&node.name);
        }
        answer
    }
}
