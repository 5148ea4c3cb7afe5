//! Events on claims, volumes and snapshots, as `kubectl describe` shows them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::Event as KubeEvent;
use kube::{Api, Client, Resource, api::PostParams};
use runtime::lease::Mandate;
use serde_json::json;
use tokio::{sync::mpsc, time::Instant};

use super::model::Metadata;

/// Capacity of the send queue. Further events are dropped, so that they never block a loop.
const BACKLOG: usize = 10_000;
/// An event with the same text about the same object is not repeated within this time.
const REPEAT_INTERVAL: Duration = Duration::from_mins(10);
/// Above this number of remembered texts, old ones are dropped.
const MAX_REMEMBERED: usize = 10_000;

/// The component of an event, with the names of the upstream sidecars.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    Provisioner,
    Resizer,
    Snapshotter,
}

#[derive(Debug)]
struct PendingEvent {
    object: ObjectReference,
    source: Source,
    is_warning: bool,
    reason: &'static str,
    text: String,
}

/// The object that an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectReference {
    pub api_version: String,
    pub kind: String,
    pub namespace: Option<String>,
    pub name: String,
    pub uid: String,
}

impl ObjectReference {
    pub fn to<K: Resource<DynamicType: Default>>(object: &K) -> Self {
        Self {
            api_version: K::api_version(&K::DynamicType::default()).into_owned(),
            kind: K::kind(&K::DynamicType::default()).into_owned(),
            namespace: object.meta().namespace.clone(),
            name: object.name().into(),
            uid: object.uid().into(),
        }
    }
}

/// The uid of the object and the reason.
type EventKey = (String, &'static str);

/// Publishes events. Clones share one queue.
#[derive(Clone, Debug)]
pub struct Events {
    sender: mpsc::Sender<PendingEvent>,
    last: Arc<Mutex<HashMap<EventKey, (String, Instant)>>>,
}

impl Events {
    /// Also returns the task that sends the events while `mandate` holds.
    pub fn new(
        client: Client,
        mandate: Mandate,
        driver: &str,
        identity: &str,
    ) -> (Self, impl Future<Output = ()> + use<>) {
        let (sender, pending) = mpsc::channel(BACKLOG);
        let components = Components {
            provisioner: format!("{driver}_{identity}"),
            resizer: format!("external-resizer {driver}"),
            snapshotter: format!("csi-snapshotter {driver}"),
        };
        (Self { sender, last: Arc::default() }, send(client, pending, mandate, components))
    }

    pub fn normal(
        &self,
        object: ObjectReference,
        source: Source,
        reason: &'static str,
        text: String,
    ) {
        self.publish(PendingEvent { object, source, is_warning: false, reason, text });
    }

    pub fn warning(
        &self,
        object: ObjectReference,
        source: Source,
        reason: &'static str,
        text: String,
    ) {
        self.publish(PendingEvent { object, source, is_warning: true, reason, text });
    }

    /// Publishes an event and logs it, unless it repeats a recent one.
    fn publish(&self, event: PendingEvent) {
        if self.is_repetition(&event) {
            return;
        }
        let PendingEvent { object, reason, text, .. } = &event;
        let (kind, name) = (&object.kind, &object.name);
        let namespace = object.namespace.as_deref();
        if event.is_warning {
            tracing::warn!(kind, namespace, name, reason, "{text}");
        } else {
            tracing::debug!(kind, namespace, name, reason, "{text}");
        }
        // The queue is full only if the API server is slow; the event is dropped.
        let _ = self.sender.try_send(event);
    }

    fn is_repetition(&self, event: &PendingEvent) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if last.len() > MAX_REMEMBERED {
            last.retain(|_, (_, at)| now < *at + REPEAT_INTERVAL);
        }
        let key = (event.object.uid.clone(), event.reason);
        match last.get(&key) {
            Some((text, at)) if *text == event.text && now < *at + REPEAT_INTERVAL => true,
            _ => {
                last.insert(key, (event.text.clone(), now));
                false
            }
        }
    }
}

struct Components {
    provisioner: String,
    resizer: String,
    snapshotter: String,
}

async fn send(
    client: Client,
    mut pending: mpsc::Receiver<PendingEvent>,
    mandate: Mandate,
    components: Components,
) {
    while let Some(event) = pending.recv().await {
        // The new leader publishes it too.
        if !mandate.holds() {
            continue;
        }
        let PendingEvent { object, source, is_warning, reason, text } = event;
        let component = match source {
            Source::Provisioner => &components.provisioner,
            Source::Resizer => &components.resizer,
            Source::Snapshotter => &components.snapshotter,
        };
        let now = jiff::Timestamp::now();
        let stamp = format!("{now:.0}");
        // Events of cluster-scoped objects are in this namespace.
        let namespace = object.namespace.as_deref().unwrap_or("default");
        let event = json!({
            "metadata": {
                "name": format!("{}.{:x}{:04x}", object.name, now.as_nanosecond(), rand::random::<u16>()),
                "namespace": namespace,
            },
            "involvedObject": {
                "apiVersion": object.api_version, "kind": object.kind, "name": object.name, "uid": object.uid,
                "namespace": object.namespace,
            },
            "type": if is_warning { "Warning" } else { "Normal" },
            "reason": reason,
            "message": truncate(text),
            "source": {"component": component},
            "reportingComponent": component,
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
        let api = Api::namespaced(client.clone(), namespace);
        let parameters = PostParams::default();
        let sent = mandate.while_it_holds(api.create(&parameters, &event)).await;
        if let Some(Err(error)) = sent {
            tracing::debug!(%error, name = object.name, "an event could not be sent");
        }
    }
}

/// The API server accepts at most 1024 bytes.
fn truncate(mut text: String) -> String {
    if text.len() > 1024 {
        let end = (0..=1020).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}
