//! Labels the nodes that do not run on vSphere, and removes the label from nodes that do again.

use health::facts::VSPHERE_LABEL;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams},
    runtime::events::{Event, EventType, Recorder},
};
use plan::{NodeLabel, facts::Facts, names};
use runtime::error_chain::error_chain;
use serde_json::json;

/// Writes the labels and publishes an event for each. The next round retries the writes that fail.
pub(crate) async fn label(
    client: &Client,
    recorder: &Recorder,
    facts: &Facts,
    labels: &[NodeLabel],
) {
    let nodes = Api::<Node>::all(client.clone());
    for label @ NodeLabel { node, out, why } in labels {
        if let Err(error) = write(&nodes, label).await {
            tracing::warn!(node, error = error_chain(&error), "a node could not be labelled");
            continue;
        }
        let event = if *out {
            event("NodeLeftOut", node, format!("{node} gets no storage driver: {why}"))
        } else {
            event("NodeTakenBack", node, format!("{node} gets the storage driver again: {why}"))
        };
        tracing::info!(reason = event.reason, note = ?event.note, "a node");
        // The label is written, whether or not the event is.
        let _ = recorder.publish(&event, &facts.config.object_ref(&())).await;
    }
}

/// Applies without force, so values that another manager wrote to the node stay. The uid limits the apply to
/// this node: VDO does not re-create a node that is gone.
async fn write(nodes: &Api<Node>, label: &NodeLabel) -> Result<(), kube::Error> {
    let seen = nodes.get_metadata(&label.node).await?;
    let mut patch = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": label.node, "uid": seen.metadata.uid},
    });
    if label.out {
        patch["metadata"]["labels"] = json!({VSPHERE_LABEL: "false"});
        patch["metadata"]["annotations"] = json!({names::LEFT_OUT: label.why});
    }
    let writer = PatchParams::apply(names::FIELD_MANAGER);
    nodes.patch_metadata(&label.node, &writer, &Patch::Apply(patch)).await?;
    Ok(())
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
