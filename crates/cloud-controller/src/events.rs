//! Events on Nodes: what a person sees in `kubectl describe node`.

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

/// Events that wait to be sent. Beyond this they are dropped: they never hold up the work.
const BACKLOG: usize = 10_000;
/// The same words about the same node are not said again within this time.
const QUIET: Duration = Duration::from_mins(10);
/// Nodes whose last words are remembered.
const REMEMBERED: usize = 10_000;

/// Whether somebody should do something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// For the record.
    Normal,
    /// Needs attention.
    Warning,
}

/// Who says it, as upstream names them.
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
struct Said {
    node: Arc<str>,
    uid: Box<str>,
    source: Source,
    weight: Weight,
    reason: &'static str,
    text: String,
}

/// A node's uid and a reason.
type Topic = (Box<str>, &'static str);

/// Says things about nodes. Clones are one voice.
#[derive(Clone, Debug)]
pub struct Events {
    out: mpsc::Sender<Said>,
    last: Arc<Mutex<HashMap<Topic, (String, Instant)>>>,
}

impl Events {
    /// A voice, and the task that sends what it says for as long as `mandate` holds.
    pub fn new(client: Client, mandate: Mandate) -> (Self, impl Future<Output = ()>) {
        let (out, said) = mpsc::channel(BACKLOG);
        let events = Api::namespaced(client, "default");
        (Self { out, last: Arc::default() }, send(events, said, mandate))
    }

    /// Says it, unless it was just said.
    pub fn say(
        &self,
        node: &Node,
        source: Source,
        weight: Weight,
        reason: &'static str,
        text: String,
    ) {
        if self.is_repetition(node, reason, &text) {
            return;
        }
        match weight {
            Weight::Normal => tracing::debug!(node = &*node.name, reason, "{text}"),
            Weight::Warning => tracing::warn!(node = &*node.name, reason, "{text}"),
        }
        let said =
            Said { node: node.name.clone(), uid: node.uid.clone(), source, weight, reason, text };
        // Full only when the API server is far behind; work goes on without the words.
        let _ = self.out.try_send(said);
    }

    fn is_repetition(&self, node: &Node, reason: &'static str, text: &str) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if last.len() > REMEMBERED {
            last.retain(|_, (_, at)| now < *at + QUIET);
        }
        let key = (node.uid.clone(), reason);
        match last.get(&key) {
            Some((said, at)) if said == text && now < *at + QUIET => true,
            _ => {
                // What happens to every node once need not be remembered.
                if reason != "Synced" {
                    last.insert(key, (text.to_owned(), now));
                }
                false
            }
        }
    }
}

async fn send(api: Api<KubeEvent>, mut said: mpsc::Receiver<Said>, mandate: Mandate) {
    while let Some(said) = said.recv().await {
        // Whoever leads now says it too.
        if !mandate.holds() {
            continue;
        }
        let Said { node, uid, source, weight, reason, text } = said;
        let now = jiff::Timestamp::now();
        let stamp = format!("{now:.0}");
        let event = json!({
            "metadata": {
                "name": format!("{node}.{:x}{:04x}", now.as_nanosecond(), rand::random::<u16>()),
                "namespace": "default",
            },
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": &*node, "uid": &*uid},
            "type": if weight == Weight::Normal { "Normal" } else { "Warning" },
            "reason": reason,
            "message": cut(text),
            "source": {"component": source.name()},
            "reportingComponent": source.name(),
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        });
        let event: KubeEvent = match serde_json::from_value(event) {
            Ok(event) => event,
            Err(error) => {
                tracing::error!(%error, "an event cannot be written down");
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

/// The API server takes at most 1024 bytes.
fn cut(mut text: String) -> String {
    if text.len() > 1024 {
        let end = (0..=1020).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}
