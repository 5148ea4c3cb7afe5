//! Applies objects to a real API server.

use catalog::manifest::Object;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
    core::GroupVersionKind,
};

/// The API for objects of this kind and namespace.
pub(crate) fn api(client: &Client, object: &Object) -> Api<DynamicObject> {
    let (group, version) =
        object.api_version().split_once('/').unwrap_or(("", object.api_version()));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, object.kind()));
    match object.namespace() {
        "" => Api::all_with(client.clone(), &resource),
        namespace => Api::namespaced_with(client.clone(), namespace, &resource),
    }
}

/// The API server's message.
pub(crate) fn message_of(error: kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message,
        other => other.to_string(),
    }
}

/// Applies an object as a field manager, or returns the API server's refusal.
pub(crate) async fn apply(
    client: &Client,
    object: &Object,
    params: &PatchParams,
) -> Result<(), String> {
    let written = api(client, object).patch(object.name(), params, &Patch::Apply(&object.0)).await;
    written
        .map(drop)
        .map_err(|error| format!("{} {}: {}", object.kind(), object.name(), message_of(error)))
}

/// The operator's parameters: force, and strict field validation.
pub(crate) fn as_operator() -> PatchParams {
    PatchParams::apply("vdo").force().validation_strict()
}
