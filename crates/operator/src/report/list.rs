//! The ConfigMap with every object of every finding, for when the status has no room for them.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use plan::{
    facts::{Facts, Paged},
    names,
};
use serde_json::json;

/// Writes the list if it differs from `written`, and empties it once nothing is left to list.
pub(super) async fn write(
    client: &Client,
    facts: &Facts,
    written: &mut Option<Paged>,
) -> Result<(), kube::Error> {
    let now = facts.health.paged.clone();
    // After a restart, the operator does not know the last list. It does not write an empty list again.
    if now.is_none() && written.is_none() || now == *written {
        return Ok(());
    }
    let pages = now.clone().unwrap_or_default().pages;
    let body = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": names::FINDINGS},
        "data": pages,
    });
    let maps = Api::<ConfigMap>::namespaced(client.clone(), &facts.operator_namespace);
    let parameters = PatchParams::apply(names::FIELD_MANAGER).force();
    maps.patch(names::FINDINGS, &parameters, &Patch::Apply(body)).await?;
    *written = now;
    Ok(())
}
