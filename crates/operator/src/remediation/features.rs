//! Remediates the storage driver's feature switches.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use plan::names;
use serde_json::{Value, json};
use snafu::ResultExt;

use super::{ChangedSnafu, Error, KubernetesSnafu, patch};

/// Those of these switches that nobody has set.
pub(super) async fn missing(
    client: &Client,
    namespace: &str,
    features: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, Error> {
    let maps = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    let map = maps.get(names::CSI_FEATURES).await.context(KubernetesSnafu)?;
    let mut features = features.clone();
    features.retain(|name, _| !is_set(&map, name));
    Ok(features)
}

fn is_set(map: &ConfigMap, name: &str) -> bool {
    map.data.as_ref().is_some_and(|data| data.contains_key(name))
}

/// Adds these switches. Fails if somebody else has set one of them.
pub(super) async fn add(
    client: &Client,
    namespace: &str,
    features: &BTreeMap<String, String>,
) -> Result<(), Error> {
    let maps = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    patch::change(&maps, names::CSI_FEATURES, |map| {
        if let Some(name) = features.keys().find(|name| is_set(map, name)) {
            let what = format!("somebody else set {name}");
            return ChangedSnafu { object: names::CSI_FEATURES, what }.fail();
        }
        if map.data.as_ref().is_none_or(BTreeMap::is_empty) {
            return Ok(vec![json!({"op": "add", "path": "/data", "value": features})]);
        }
        Ok(features.iter().map(|(name, value)| operation("add", name, Some(value))).collect())
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
