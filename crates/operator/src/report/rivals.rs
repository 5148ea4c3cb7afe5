//! VDOConfigs beside the one that is followed: each says so itself.

use api::condition::{self, Answer};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::{facts::Facts, names};

/// Writes the status of those that do not say it yet. One that cannot be read, or whose status is refused,
/// is named on the one that is followed, and stops nothing.
pub(super) async fn report(client: &Client, facts: &Facts) -> Result<(), kube::Error> {
    let followed = &facts.config.metadata;
    let followed = format!(
        "{}/{}",
        followed.namespace.as_deref().unwrap_or_default(),
        followed.name.as_deref().unwrap_or_default()
    );
    for rival in &facts.rivals {
        let Some(before) = rival.status.clone() else { continue };
        let mut after = api::VDOConfigStatus {
            observed_generation: rival.generation,
            conditions: condition::get(&before.conditions, condition::READY)
                .cloned()
                .into_iter()
                .collect(),
            ..api::VDOConfigStatus::default()
        };
        condition::set(
            &mut after.conditions,
            condition::READY,
            Answer::False,
            "NotFollowed",
            format!(
                "a cluster has one VDOConfig: VDO follows {followed}, the oldest; this one changes nothing"
            ),
            rival.generation,
            &Time(facts.now),
        );
        if before == after {
            continue;
        }
        let configs = Api::<api::VDOConfig>::namespaced(client.clone(), &rival.namespace);
        let body =
            json!({"apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VDOConfig", "status": after});
        let parameters = PatchParams::apply(names::FIELD_MANAGER).force();
        let written = configs.patch_status(&rival.name, &parameters, &Patch::Apply(body)).await;
        super::unless_refused(written, &rival.namespace, &rival.name)?;
    }
    Ok(())
}
