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

/// Annotates the pods of these workloads. An error about one of them does not stop the others.
pub(super) async fn renew(
    client: &Client,
    facts: &Facts,
    workloads: &[ObjectId],
) -> Result<(), Error> {
    let now = facts.now.to_string();
    let mut outcome = Ok(());
    for id in workloads {
        let Some(workload) = facts.workloads.get(id).filter(|w| !w.selector.is_empty()) else {
            continue;
        };
        let labels = workload.selector.iter().map(|(key, value)| format!("{key}={value}"));
        let selector = labels.collect::<Vec<_>>().join(",");
        let annotated = annotate(client, &id.namespace, &selector, &now).await;
        match annotated.context(RenewFilesSnafu { object: id.clone() }) {
            Ok(()) => tracing::info!(object = %id, "its pods get the new password"),
            Err(error) => outcome = Err(error),
        }
    }
    outcome
}

async fn annotate(
    client: &Client,
    namespace: &str,
    selector: &str,
    now: &str,
) -> Result<(), kube::Error> {
    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
    let parameters =
        PatchParams { field_manager: Some(names::FIELD_MANAGER.into()), ..PatchParams::default() };
    let patch = json!({"metadata": {"annotations": {names::FILES_RENEWED: now}}});
    let mut outcome = Ok(());
    for pod in pods.list_metadata(&ListParams::default().labels(selector)).await? {
        match pods.patch_metadata(&pod.name_any(), &parameters, &Patch::Merge(&patch)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => outcome = Err(error),
            Ok(_) => {}
        }
    }
    outcome
}
