//! The last good catalog from a network, kept in the cluster: after a restart it is in use at once,
//! network or not, and no older one takes its place.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::names;

/// The ConfigMap beside the operator.
const NAME: &str = "vdo-kept-catalog";
/// What fits into a ConfigMap with room to spare. Of a larger one only the serial is kept.
const LIMIT: usize = 900_000;

/// What was kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Kept {
    /// The highest serial of a signed catalog ever taken.
    pub(super) floor: u64,
    /// Where the catalog came from.
    pub(super) source: String,
    /// The signed catalog as it was fetched; its signature is checked again.
    pub(super) bundle: String,
}

/// What was kept, or nothing.
pub(super) async fn read(client: &Client, namespace: &str) -> Result<Kept, kube::Error> {
    let maps = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    let map = maps.get_opt(NAME).await?;
    let mut data = map.and_then(|map| map.data).unwrap_or_default();
    let mut take = |key: &str| data.remove(key).unwrap_or_default();
    Ok(Kept {
        floor: take("floor").parse().unwrap_or_default(),
        source: take("source"),
        bundle: take("bundle"),
    })
}

/// Keeps it.
pub(super) async fn write(
    client: &Client,
    namespace: &str,
    kept: &Kept,
) -> Result<(), kube::Error> {
    let bundle = if kept.bundle.len() <= LIMIT { kept.bundle.as_str() } else { "" };
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": NAME, "namespace": namespace},
        "data": {"floor": kept.floor.to_string(), "source": kept.source, "bundle": bundle},
    });
    let maps = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    let parameters = PatchParams::apply(names::FIELD_MANAGER).force();
    maps.patch(NAME, &parameters, &Patch::Apply(map)).await?;
    Ok(())
}
