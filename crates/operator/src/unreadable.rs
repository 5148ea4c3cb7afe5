//! Reports a VDOConfig that cannot be parsed. It cannot have a status, so an event on it names the field.

use api::VDOConfig;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Api, Client,
    api::DynamicObject,
    core::ApiResource,
    runtime::events::{Event, EventType, Recorder},
};

/// A VDOConfig that cannot be parsed, and the error.
#[derive(Clone, Debug, PartialEq)]
pub struct Spoilt {
    object: Box<ObjectReference>,
    error: String,
}

impl Spoilt {
    pub fn new(object: ObjectReference, error: &str) -> Self {
        Self { object: Box::new(object), error: error.to_owned() }
    }
}

/// The last report. The operator reports each error once.
#[derive(Debug, Default)]
pub struct Unreadable(Option<Spoilt>);

impl Unreadable {
    /// Publishes an event, if the error is new.
    pub async fn report(&mut self, client: &Client, recorder: &Recorder, now: Option<&Spoilt>) {
        if self.0.as_ref() == now {
            return;
        }
        self.0 = now.cloned();
        let Some(Spoilt { object, error }) = now else { return };
        let field = field(client, object).await.unwrap_or_else(|| error.clone());
        let note = format!(
            "this VDOConfig cannot be read, so nothing is changed and the drivers stay as they are: \
             {field}. Correct the field, or remove it"
        );
        tracing::error!(name = object.name, note, "the VDOConfig cannot be read");
        let event = Event {
            type_: EventType::Warning,
            reason: "Unreadable".into(),
            note: Some(note.chars().take(1000).collect()),
            action: "Read".into(),
            secondary: None,
        };
        if let Err(error) = recorder.publish(&event, object).await {
            // The next round reports it again.
            tracing::warn!(%error, "the event could not be written");
            self.0 = None;
        }
    }
}

/// The field that cannot be parsed, and the reason.
async fn field(client: &Client, object: &ObjectReference) -> Option<String> {
    let resource = ApiResource::erase::<VDOConfig>(&());
    let namespace = object.namespace.as_deref().unwrap_or_default();
    let configs = Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &resource);
    let found = configs.get(object.name.as_deref()?).await.ok()?;
    let raw = serde_json::to_value(&found).ok()?;
    misfit(raw)
}

fn misfit(raw: serde_json::Value) -> Option<String> {
    let error = serde_path_to_error::deserialize::<_, VDOConfig>(raw).err()?;
    Some(format!("{}: {}", error.path(), error.inner()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_field_that_does_not_fit_is_named() {
        let config = |version: serde_json::Value| {
            json!({
                "apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VDOConfig",
                "metadata": {"name": "vdo-config"},
                "spec": {"storageProvider": {"vsphereCloudConfig": "vc", "version": version}},
            })
        };
        assert_eq!(misfit(config(json!("3.7.0"))), None);
        let text = misfit(config(json!({"major": 3}))).unwrap();
        assert!(text.starts_with("spec.storageProvider.version: "), "{text}");
    }
}
