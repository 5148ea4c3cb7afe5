//! VolumeAttributesClasses. Kubernetes 1.33 does not serve them, so they are read when a claim names one.

use std::collections::HashMap;

use kube::{
    Api, Client,
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde::Deserialize;

use super::writer::is_not_found;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttributesClass {
    pub driver_name: String,
    pub parameters: HashMap<String, String>,
}

/// `None` if there is no such class, or if the API server does not serve this kind.
pub async fn get(client: Client, name: &str) -> Result<Option<AttributesClass>, kube::Error> {
    let kind = GroupVersionKind::gvk("storage.k8s.io", "v1", "VolumeAttributesClass");
    let resource = ApiResource::from_gvk_with_plural(&kind, "volumeattributesclasses");
    let api = Api::<DynamicObject>::all_with(client, &resource);
    match api.get(name).await {
        Ok(object) => {
            serde_json::from_value(object.data).map(Some).map_err(kube::Error::SerdeError)
        }
        Err(error) if is_not_found(&error) => Ok(None),
        Err(error) => Err(error),
    }
}
