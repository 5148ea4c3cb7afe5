//! Remediates the storage driver's feature switches.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use plan::names;
use serde_json::{Value, json};

use super::{Error, patch};

/// Adds the missing switches. A switch that is already set stays as it is.
pub(super) async fn add(
    client: &Client,
    namespace: &str,
    features: &BTreeMap<String, String>,
) -> Result<(), Error> {
    let maps = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    patch::change(&maps, names::CSI_FEATURES, |map| {
        let Some(data) = map.data.as_ref().filter(|data| !data.is_empty()) else {
            return Ok(vec![json!({"op": "add", "path": "/data", "value": features})]);
        };
        let missing = features.iter().filter(|(name, _)| !data.contains_key(*name));
        Ok(missing.map(|(name, value)| operation("add", name, Some(value))).collect())
    })
    .await
}

/// Removes the added switches whose value has not changed since.
pub(super) async fn remove(
    client: &Client,
    namespace: &str,
    features: &BTreeMap<String, String>,
) -> Result<(), Error> {
    let maps = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    patch::change(&maps, names::CSI_FEATURES, |map| {
        let data = map.data.clone().unwrap_or_default();
        let same = features.iter().filter(|(name, value)| data.get(*name) == Some(value));
        Ok(same.map(|(name, _)| operation("remove", name, None)).collect())
    })
    .await
}

fn operation(what: &str, name: &str, value: Option<&String>) -> Value {
    let path = format!("/data/{}", name.replace('~', "~0").replace('/', "~1"));
    match value {
        Some(value) => json!({"op": what, "path": path, "value": value}),
        None => json!({"op": what, "path": path}),
    }
}
