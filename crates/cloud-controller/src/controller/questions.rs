//! Questions to vCenters, whose answers may take long.

use std::pin::pin;

use super::{Shared, Slot};
use crate::model::Node;

impl Shared {
    /// Asks about a node, with its slot given back. Ends without an answer as soon as nobody needs one:
    /// when the node is another or going, or does not raise the question any more. It is looked at again
    /// then, by whatever changed.
    pub(super) async fn ask_about<T>(
        &self,
        node: &Node,
        slot: Option<Slot>,
        question: impl Future<Output = T>,
        is_raised_by: impl Fn(&Node) -> bool,
    ) -> Option<T> {
        drop(slot);
        let asking = async {
            // It is never closed.
            let _turn = self.questions.acquire().await;
            tracing::debug!(node = &*node.name, "asking whether its machine is gone");
            question.await
        };
        let mut asking = pin!(asking);
        let mut changed = false;
        let answer = loop {
            tokio::select! {
                answer = &mut asking => break Some(answer),
                () = self.queue.asked_for_again(&node.name) => {
                    changed = true;
                    let is_the_same = |now: &Node| now.uid == node.uid && !now.deleting;
                    let now = self.nodes.get(&node.name);
                    if !now.is_some_and(|now| is_the_same(&now) && is_raised_by(&now)) {
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
