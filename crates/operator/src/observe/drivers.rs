//! The drivers' workloads and volumes.

use std::collections::BTreeMap;

use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment},
    core::v1::{Pod, PodTemplateSpec},
};
use kube::ResourceExt;

use super::Stores;
use crate::{facts::Workload, names};

/// The workloads of both drivers by name, whoever installed them.
pub(super) fn workloads(stores: &Stores) -> BTreeMap<String, Workload> {
    let mut all = BTreeMap::new();
    for daemon_set in stores.daemon_sets.state() {
        let ours = is_ours(daemon_set.labels());
        let name = daemon_set.name_any();
        if ours || name == names::CPI_WORKLOAD || name == names::CSI_NODE {
            all.insert(name, of_daemon_set(stores, &daemon_set));
        }
    }
    for deployment in stores.deployments.state() {
        let name = deployment.name_any();
        if is_ours(deployment.labels()) || name == names::CSI_CONTROLLER {
            all.insert(name, of_deployment(stores, &deployment));
        }
    }
    all
}

fn is_ours(labels: &BTreeMap<String, String>) -> bool {
    labels.get(names::MANAGED_BY_LABEL).is_some_and(|value| value == names::MANAGED_BY)
}

fn of_daemon_set(stores: &Stores, set: &DaemonSet) -> Workload {
    let status = set.status.clone().unwrap_or_default();
    let updated = status.updated_number_scheduled.unwrap_or(0);
    Workload {
        namespace: set.namespace().unwrap_or_default(),
        kind: "DaemonSet".into(),
        ours: is_ours(set.labels()),
        version: version(set.labels(), set.spec.as_ref().map(|spec| &spec.template)),
        wanted: status.desired_number_scheduled,
        available: status.number_available.unwrap_or(0).min(updated),
        current: status.observed_generation >= set.metadata.generation
            && status.observed_generation > Some(0),
        trouble: trouble(stores, &set.name_any()),
    }
}

fn of_deployment(stores: &Stores, deployment: &Deployment) -> Workload {
    let status = deployment.status.clone().unwrap_or_default();
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let updated = status.updated_replicas.unwrap_or(0);
    Workload {
        namespace: deployment.namespace().unwrap_or_default(),
        kind: "Deployment".into(),
        ours: is_ours(deployment.labels()),
        version: version(deployment.labels(), deployment.spec.as_ref().map(|spec| &spec.template)),
        wanted,
        available: status.available_replicas.unwrap_or(0).min(updated),
        current: status.observed_generation >= deployment.metadata.generation
            && status.observed_generation > Some(0),
        trouble: trouble(stores, &deployment.name_any()),
    }
}

/// The driver's version: from our label, else from the tag of its first image.
fn version(
    labels: &BTreeMap<String, String>,
    template: Option<&PodTemplateSpec>,
) -> Option<String> {
    labels.get(names::VERSION_LABEL).cloned().or_else(|| {
        let image = template?.spec.as_ref()?.containers.first()?.image.as_deref()?;
        let tag = image.split('@').next()?.rsplit_once(':')?.1;
        Some(tag.trim_start_matches('v').to_owned())
    })
}

/// What keeps a pod of a workload from running.
fn trouble(stores: &Stores, workload: &str) -> Option<String> {
    let pods = stores.pods.state();
    let mut troubles: Vec<String> = pods
        .iter()
        .filter(|pod| pod.name_any().starts_with(workload))
        .filter_map(|pod| trouble_of(pod).map(|what| format!("{}: {what}", pod.name_any())))
        .collect();
    troubles.sort();
    troubles.into_iter().next()
}

fn trouble_of(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let waiting = status.container_statuses.iter().flatten().find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.as_deref().filter(|r| *r != "ContainerCreating")?;
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

/// Volumes the CSI driver has attached.
pub(super) fn attached(stores: &Stores) -> Vec<(String, String)> {
    let mut attached: Vec<(String, String)> = stores
        .attachments
        .state()
        .iter()
        .filter(|attachment| attachment.spec.attacher == names::CSI_DRIVER)
        .map(|attachment| {
            let volume = attachment.spec.source.persistent_volume_name.clone();
            let volume = volume.unwrap_or_else(|| "(an inline volume)".into());
            (volume, attachment.spec.node_name.clone())
        })
        .collect();
    attached.sort();
    attached
}
