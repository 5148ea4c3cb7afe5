//! The status of the CompatibilityConfig that is followed.

use api::{CompatibilityConfig, condition};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use plan::names;
use serde_json::json;

use crate::catalogs::Catalogs;

/// Writes which catalog is in use, and why no other is.
pub async fn report(
    client: &Client,
    catalogs: &Catalogs,
    config: Option<&CompatibilityConfig>,
) -> Result<(), kube::Error> {
    let Some(config) = config else { return Ok(()) };
    let before = config.status.clone().unwrap_or_default();
    let generation = config.metadata.generation;
    let mut after = catalogs.status();
    after.observed_generation = generation;
    after.conditions.clone_from(&before.conditions);
    let current = format!(
        "serial {} from {}",
        catalogs.current().serial,
        after.source.as_deref().unwrap_or_default()
    );
    let (reason, message) = match catalogs.trouble() {
        None => {
            let left_out = match catalogs.left_out() {
                [] => String::new(),
                left => format!("; not used, because VDO does not carry them: {}", left.join(", ")),
            };
            ("InUse", format!("the catalog in use has {current}{left_out}"))
        }
        Some(trouble) => {
            let message =
                format!("{}: {}; VDO goes on with {current}", trouble.source, trouble.reason);
            (trouble.kind.name(), message)
        }
    };
    let ready = catalogs.trouble().is_none();
    let now = Time(Timestamp::now());
    let conditions = &mut after.conditions;
    condition::set(conditions, condition::READY, ready, reason, message, generation, &now);
    if before == after {
        return Ok(());
    }
    let home = config.namespace().unwrap_or_default();
    let configs = Api::<CompatibilityConfig>::namespaced(client.clone(), &home);
    let body = json!({
        "apiVersion": "vdo.vmware.com/v1alpha1", "kind": "CompatibilityConfig", "status": after,
    });
    let parameters = PatchParams::apply(names::FIELD_MANAGER).force();
    configs.patch_status(&config.name_any(), &parameters, &Patch::Apply(body)).await?;
    Ok(())
}
