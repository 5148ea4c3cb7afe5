//! Events on Nodes, as `kubectl describe node` shows them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::Event as KubeEvent;
use kube::{Api, Client, api::PostParams};
use runtime::lease::Mandate;
use serde_json::json;
use tokio::{sync::mpsc, time::Instant};

use crate::model::Node;

/// Capacity of the send queue. Further events are dropped, so that they never block a sync.
const BACKLOG: usize = 10_000;
/// An event with the same text about the same node is not repeated within this time.
const REPEAT_INTERVAL: Duration = Duration::from_mins(10);
/// Above this number of remembered texts, old ones are dropped.
const MAX_REMEMBERED: usize = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    Normal,
    Warning,
}

/// The component of the event, with the names of the upstream controllers.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    /// Initialisation, addresses, labels.
    Node,
    /// Taints and deletion.
    Lifecycle,
}

impl Source {
    fn name(self) -> &'static str {
        match self {
            Self::Node => "cloud-node-controller",
            Self::Lifecycle => "cloud-node-lifecycle-controller",
        }
    }
}

#[derive(Debug)]
struct PendingEvent {
    node: Arc<str>,
    uid: Box<str>,
    source: Source,
    event_type: EventType,
    reason: &'static str,
    text: String,
}

/// The uid of the node and the reason.
type EventKey = (Box<str>, &'static str);

/// Publishes events about Nodes. Clones share one queue.
#[derive(Clone, Debug)]
pub struct Events {
    sender: mpsc::Sender<PendingEvent>,
    last: Arc<Mutex<HashMap<EventKey, (String, Instant)>>>,
}

impl Events {
    /// Also returns the task that sends the events while `mandate` holds.
    pub fn new(client: Client, mandate: Mandate) -> (Self, impl Future<Output = ()>) {
        let (sender, pending) = mpsc::channel(BACKLOG);
        let events = Api::namespaced(client, "default");
        (Self { sender, last: Arc::default() }, send(events, pending, mandate))
    }

    /// Publishes an event and logs it, unless it repeats a recent one.
    pub fn publish(
        &self,
        node: &Node,
        source: Source,
        event_type: EventType,
        reason: &'static str,
        text: String,
    ) {
        if self.is_repetition(node, reason, &text) {
            return;
        }
        match event_type {
            EventType::Normal => tracing::debug!(node = &*node.name, reason, "{text}"),
            EventType::Warning => tracing::warn!(node = &*node.name, reason, "{text}"),
        }
        let pending = PendingEvent {
            node: node.name.clone(),
            uid: node.uid.clone(),
            source,
            event_type,
            reason,
            text,
        };
        // The queue is full only if the API server is slow; the event is dropped.
        let _ = self.sender.try_send(pending);
    }

    fn is_repetition(&self, node: &Node, reason: &'static str, text: &str) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if last.len() > MAX_REMEMBERED {
            last.retain(|_, (_, at)| now < *at + REPEAT_INTERVAL);
        }
        let key = (node.uid.clone(), reason);
        match last.get(&key) {
            Some((pending, at)) if pending == text && now < *at + REPEAT_INTERVAL => true,
            _ => {
                // Happens once per node, so it needs no deduplication.
                if reason != "Synced" {
                    last.insert(key, (text.to_owned(), now));
                }
                false
            }
        }
    }
}

async fn send(api: Api<KubeEvent>, mut pending: mpsc::Receiver<PendingEvent>, mandate: Mandate) {
    while let Some(pending) = pending.recv().await {
        // The new leader publishes it too.
        if !mandate.holds() {
            continue;
        }
        let PendingEvent { node, uid, source, event_type, reason, text } = pending;
        let now = jiff::Timestamp::now();
        let stamp = format!("{now:.0}");
        let event = json!({
            "metadata": {
                "name": format!("{node}.{:x}{:04x}", now.as_nanosecond(), rand::random::<u16>()),
                "namespace": "default",
            },
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": &*node, "uid": &*uid},
            "type": if event_type == EventType::Normal { "Normal" } else { "Warning" },
            "reason": reason,
            "message": truncate(text),
            "source": {"component": source.name()},
            "reportingComponent": source.name(),
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        });
        let event: KubeEvent = match serde_json::from_value(event) {
            Ok(event) => event,
            Err(error) => {
                tracing::error!(%error, "an event cannot be serialised");
                continue;
            }
        };
        let parameters = PostParams::default();
        let sent = mandate.while_it_holds(api.create(&parameters, &event)).await;
        if let Some(Err(error)) = sent {
            tracing::debug!(%error, node = &*node, "an event could not be sent");
        }
    }
}

/// The API server accepts at most 1024 bytes.
fn truncate(mut text: String) -> String {
    if text.len() > 1024 {
        text.truncate(text.floor_char_boundary(1020));
        text.push('…');
    }
    text
}
