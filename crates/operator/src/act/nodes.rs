//! Says of a node in its labels whether it is a machine of vSphere.

use health::facts::VSPHERE_LABEL;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams},
    runtime::events::{Event, EventType, Recorder},
};
use runtime::story::story;
use serde_json::json;

use crate::{facts::Facts, names, plan::NodeWord};

/// Writes the words, and says so in events. What cannot be written is tried again in the next round.
pub(crate) async fn tell(client: &Client, recorder: &Recorder, facts: &Facts, words: &[NodeWord]) {
    let nodes = Api::<Node>::all(client.clone());
    let writer =
        PatchParams { field_manager: Some(names::FIELD_MANAGER.into()), ..PatchParams::default() };
    for NodeWord { node, out, why } in words {
        let (label, note) = if *out { (Some("false"), Some(why)) } else { (None, None) };
        let patch = json!({"metadata": {
            "labels": {VSPHERE_LABEL: label}, "annotations": {names::LEFT_OUT: note},
        }});
        if let Err(error) = nodes.patch(node, &writer, &Patch::Merge(patch)).await {
            tracing::warn!(node, error = story(&error), "a node could not be labelled");
            continue;
        }
        let event = if *out {
            event("NodeLeftOut", node, format!("{node} gets no storage driver: {why}"))
        } else {
            event("NodeTakenBack", node, format!("{node} gets the storage driver again: {why}"))
        };
        tracing::info!(reason = event.reason, note = ?event.note, "a node");
        // That it was done does not depend on whether it can be told.
        let _ = recorder.publish(&event, &facts.config.object_ref(&())).await;
    }
}

fn event(reason: &str, node: &str, text: String) -> Event {
    Event {
        type_: EventType::Normal,
        reason: reason.into(),
        note: Some(text),
        action: node.chars().take(128).collect(),
        secondary: None,
    }
}
