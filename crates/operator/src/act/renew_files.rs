//! Makes kubelets renew the files of a Secret at once.
//!
//! A kubelet renews the files that a pod mounts from a Secret when it next syncs the pod: 60 to 90 seconds later.
//! A driver that lost its session meanwhile logs in with the old password and can lock the account. A kubelet also
//! syncs a pod when the pod changes, so an annotation is enough, and the driver does not restart.

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use plan::{ObjectId, facts::Facts, names};
use serde_json::json;
use snafu::ResultExt;

use super::{Error, RenewFilesSnafu};

/// Annotates the pods of these workloads.
pub(super) async fn renew(
    client: &Client,
    facts: &Facts,
    workloads: &[ObjectId],
    changed: &str,
) -> Result<(), Error> {
    for id in workloads {
        let Some(workload) = facts.workloads.get(id).filter(|w| !w.selector.is_empty()) else {
            continue;
        };
        let labels = workload.selector.iter().map(|(key, value)| format!("{key}={value}"));
        let selector = labels.collect::<Vec<_>>().join(",");
        annotate(client, &id.namespace, &selector, changed)
            .await
            .context(RenewFilesSnafu { object: id.clone() })?;
        tracing::info!(object = %id, "its pods get the new password");
    }
    Ok(())
}

async fn annotate(
    client: &Client,
    namespace: &str,
    selector: &str,
    changed: &str,
) -> Result<(), kube::Error> {
    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
    let parameters =
        PatchParams { field_manager: Some(names::FIELD_MANAGER.into()), ..PatchParams::default() };
    let patch = json!({"metadata": {"annotations": {names::CREDENTIALS_CHANGED: changed}}});
    for pod in pods.list_metadata(&ListParams::default().labels(selector)).await? {
        if pod.annotations().get(names::CREDENTIALS_CHANGED).is_some_and(|known| known == changed) {
            continue;
        }
        match pods.patch_metadata(&pod.name_any(), &parameters, &Patch::Merge(&patch)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            other => drop(other?),
        }
    }
    Ok(())
}
