//! Caches the pods of the drivers, reduced to the fields that facts need.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::{Api, Client, ResourceExt, api::ListParams};
use plan::names;

use super::{Stores, pages::TENANT_PAGE};

/// The label that distinguishes the old pods of a DaemonSet from its new ones.
pub(crate) const REVISION: &str = "controller-revision-hash";

/// The cached part of a pod. There is one on every node, and of a ready pod the facts need only its node and
/// its revision.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CachedPod {
    namespace: Box<str>,
    /// Kind and name of its owner.
    owner: Option<(Box<str>, Box<str>)>,
    /// The node that the scheduler assigned to it.
    pub(crate) node: Option<Box<str>>,
    /// The revision of its DaemonSet that it was created from.
    pub(crate) revision: Option<Box<str>>,
    pub(crate) created: Timestamp,
    /// The time of the logins that it uses; see [`names::CREDENTIALS_CHANGED`].
    pub(crate) login: Option<Box<str>>,
    /// Whether it is being deleted.
    pub(crate) terminating: bool,
    /// The slimmed pod, if it is not ready: it shows why the pod does not run.
    pub(crate) unready: Option<Arc<Pod>>,
}

impl CachedPod {
    pub(crate) fn new(pod: &Pod) -> Self {
        let metadata = &pod.metadata;
        let owners = pod.owner_references();
        let owner = owners.iter().find(|owner| owner.controller == Some(true)).or(owners.first());
        let created = metadata.creation_timestamp.as_ref();
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        Self {
            namespace: metadata.namespace.as_deref().unwrap_or_default().into(),
            owner: owner.map(|owner| (owner.kind.as_str().into(), owner.name.as_str().into())),
            node: node.map(Into::into),
            revision: pod.labels().get(REVISION).map(|revision| revision.as_str().into()),
            created: created.map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            login: pod
                .annotations()
                .get(names::CREDENTIALS_CHANGED)
                .map(|time| time.as_str().into()),
            terminating: metadata.deletion_timestamp.is_some(),
            unready: (!is_ready(pod)).then(|| {
                let mut pod = pod.clone();
                slim(&mut pod);
                Arc::new(pod)
            }),
        }
    }

    /// Whether it is a pod of this workload.
    pub(crate) fn belongs_to(&self, namespace: Option<&str>, kind: &str, name: &str) -> bool {
        let owner = self.owner.as_ref();
        *self.namespace == *namespace.unwrap_or_default()
            && owner.is_some_and(|(owner_kind, owner)| is_owner(owner_kind, owner, kind, name))
    }
}

/// Whether a pod with this owner belongs to this workload. A Deployment owns its pods through a ReplicaSet.
pub(crate) fn is_owner(owner_kind: &str, owner: &str, kind: &str, name: &str) -> bool {
    if kind == "DaemonSet" {
        return owner_kind == kind && owner == name;
    }
    let hash = owner.strip_prefix(name).and_then(|rest| rest.strip_prefix('-'));
    owner_kind == "ReplicaSet" && hash.is_some_and(|hash| !hash.contains('-'))
}

/// The pods that are not ready.
pub(crate) fn unready(stores: &Stores) -> Vec<Arc<Pod>> {
    stores.pods(|pods| pods.values().filter_map(|pod| pod.unready.clone()).collect())
}

/// All pods, by `namespace/name`.
pub(crate) type Pods = BTreeMap<String, CachedPod>;

/// The pods with these labels, by `namespace/name`, for a workload whose pods no watch has.
pub(crate) async fn list(
    client: &Client,
    namespace: &str,
    selector: &str,
) -> Result<Pods, kube::Error> {
    let api = Api::<Pod>::namespaced(client.clone(), namespace);
    let mut parameters = ListParams::default().labels(selector).limit(TENANT_PAGE);
    let mut all = Pods::new();
    loop {
        let page = api.list(&parameters).await?;
        let pods = page.items.iter();
        all.extend(
            pods.map(|pod| (format!("{namespace}/{}", pod.name_any()), CachedPod::new(pod))),
        );
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters.continue_token = Some(token),
            None => return Ok(all),
        }
    }
}

pub(crate) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

/// The reason from Kubernetes why a pod does not run, if there is one.
pub(crate) fn trouble_of(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    if status.phase.as_deref() == Some("Failed") {
        let reason = status.reason.as_deref().unwrap_or("Failed");
        let message = status.message.as_deref().unwrap_or("no reason given");
        return Some(match &status.nominated_node_name {
            Some(node) => format!("{reason} on {node} ({message})"),
            None => format!("{reason} ({message})"),
        });
    }
    let first = status.init_container_statuses.iter().flatten();
    let containers = first.chain(status.container_statuses.iter().flatten());
    let waiting = containers.into_iter().find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting
            .reason
            .as_deref()
            .filter(|r| !matches!(*r, "ContainerCreating" | "PodInitializing"))?;
        let message = waiting.message.as_deref().unwrap_or_default();
        Some(format!("{reason} ({}: {message})", container.name))
    });
    let unscheduled = || {
        let conditions = status.conditions.iter().flatten();
        let mut unscheduled =
            conditions.filter(|c| c.type_ == "PodScheduled" && c.status == "False");
        unscheduled.next().map(|c| {
            format!("cannot be scheduled ({})", c.message.as_deref().unwrap_or("no reason given"))
        })
    };
    waiting.or_else(unscheduled)
}

/// Drops everything from a pod except its owner and the reason why it does not run.
pub(crate) fn slim(pod: &mut Pod) {
    let metadata = &mut pod.metadata;
    (metadata.managed_fields, metadata.annotations, metadata.labels) = (None, None, None);
    metadata.resource_version = None;
    // The node name moves to a small field of the status, because the rest of the spec is large.
    let node = pod.spec.take().and_then(|spec| spec.node_name);
    if let Some(status) = &mut pod.status {
        *status = PodStatus {
            container_statuses: status.container_statuses.take(),
            init_container_statuses: status.init_container_statuses.take(),
            conditions: status.conditions.take(),
            nominated_node_name: node,
            phase: status.phase.take(),
            reason: status.reason.take(),
            message: status.message.take(),
            ..PodStatus::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fake_api;

    #[tokio::test]
    async fn pods_without_a_watch_are_listed_in_pages() {
        let (client, _tasks) = fake_api::serving(|request| {
            assert!(request.contains(&format!("limit={TENANT_PAGE}")), "{request}");
            let (name, next) = if request.contains("continue=rest") {
                ("b", json!({}))
            } else {
                ("a", json!({"continue": "rest"}))
            };
            let pods = json!([{"metadata": {"name": name}}]);
            let page =
                json!({"kind": "PodList", "apiVersion": "v1", "metadata": next, "items": pods});
            std::future::ready((200, page))
        })
        .await;
        let pods = list(&client, "kube-system", "app=cpi").await.unwrap();
        assert_eq!(pods.keys().collect::<Vec<_>>(), ["kube-system/a", "kube-system/b"]);
    }
}
