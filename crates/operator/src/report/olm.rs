//! Reports to the Operator Lifecycle Manager (OLM) that it must not replace this operator while drivers
//! change.

use api::condition;
use jiff::Timestamp;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams},
};
use plan::names;
use serde_json::{Value, json};

/// The OperatorCondition that OLM created for this operator, if OLM runs it.
#[derive(Debug, Default)]
pub struct Olm {
    name: Option<String>,
    /// The status and reason of the last report.
    reported: Option<(String, String)>,
}

impl Olm {
    /// Reads the name of the OperatorCondition from the variable that OLM sets.
    pub fn from_environment() -> Self {
        let name = std::env::var("OPERATOR_CONDITION_NAME").ok().filter(|name| !name.is_empty());
        Self { name, reported: None }
    }

    /// Reports whether OLM can replace the operator, if that changed. A failed write stops nothing: OLM then
    /// relies on the previous report.
    pub async fn report(
        &mut self,
        client: &Client,
        namespace: &str,
        status: &api::VDOConfigStatus,
    ) {
        let Some(name) = &self.name else { return };
        let Some(upgradeable) = condition::get(&status.conditions, condition::UPGRADEABLE) else {
            return;
        };
        let news = (upgradeable.status.clone(), upgradeable.reason.clone());
        if self.reported.as_ref() == Some(&news) {
            return;
        }
        let gvk = GroupVersionKind::gvk("operators.coreos.com", "v2", "OperatorCondition");
        let resource = ApiResource::from_gvk_with_plural(&gvk, "operatorconditions");
        let conditions =
            Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &resource);
        let by = PatchParams {
            field_manager: Some(names::FIELD_MANAGER.into()),
            ..PatchParams::default()
        };
        let patch = Patch::Merge(body(upgradeable, Timestamp::now()));
        match conditions.patch(name, &by, &patch).await {
            Ok(_) => self.reported = Some(news),
            Err(error) => tracing::warn!(name, %error, "the status for OLM could not be written"),
        }
    }
}

/// The patch for OLM. Its condition must have a reason.
fn body(
    upgradeable: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition,
    now: Timestamp,
) -> Value {
    json!({"spec": {"conditions": [{
        "type": condition::UPGRADEABLE,
        "status": upgradeable.status,
        "reason": upgradeable.reason,
        "message": upgradeable.message,
        "lastTransitionTime": format!("{now:.0}"),
    }]}})
}
