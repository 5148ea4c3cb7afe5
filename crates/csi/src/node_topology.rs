//! Fills the CSINodeTopology objects: a node plugin creates one and waits for the topology of its VM.
//!
//! As upstream does, the topology of an object that once succeeded stays: the kubelet refuses a node whose topology
//! changes. The number of volumes that the VM has room for follows its hardware.

use std::{pin::pin, sync::Arc, time::Duration};

use futures::TryStreamExt as _;
use kube::{
    Api, Client,
    api::{ApiResource, Patch, PatchParams},
    core::{Object, gvk::GroupVersionKind},
    runtime::{WatchStreamExt as _, watcher},
};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use tokio::time::{MissedTickBehavior, interval, sleep};
use vsphere::{
    BiosUuid, MoRef,
    inventory::{Lookup, Tree},
};

use crate::{
    configuration::Category,
    site::{Segments, collect_segments},
    vcenters::{TagTable, Vcenters},
    volume_limit,
};

/// How soon a node whose topology could not be determined is tried again.
const RETRY: Duration = Duration::from_secs(5);
/// How often the limits are compared with the hardware of the VMs.
const LIMITS_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// The name of the node.
    #[serde(rename = "nodeID", default)]
    node_id: String,
    #[serde(rename = "nodeuuid", default)]
    node_uuid: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopologyStatus {
    status: String,
    topology_labels: Vec<TopologyLabel>,
    error_message: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopologyLabel {
    key: String,
    value: String,
}

type NodeTopology = Object<Spec, TopologyStatus>;

const SUCCESS: &str = "Success";
const ERROR: &str = "Error";

fn resource() -> ApiResource {
    let kind = GroupVersionKind::gvk("cns.vmware.com", "v1alpha1", "CSINodeTopology");
    ApiResource::from_gvk_with_plural(&kind, "csinodetopologies")
}

/// Applies the definition, unless it exists.
pub async fn install_definition(client: &Client) -> Result<(), kube::Error> {
    crate::definitions::install(client, include_str!("node_topology/definition.json")).await
}

/// Returns the current tag categories.
pub type Categories = Arc<dyn Fn() -> Vec<Category> + Send + Sync>;

/// Fills the objects for as long as the process runs.
pub async fn follow(client: Client, vcenters: Vcenters, categories: Categories) {
    let api: Api<NodeTopology> = Api::all_with(client, &resource());
    let mut events = pin!(watcher(api.clone(), watcher::Config::default()).default_backoff());
    let mut known: HashMap<String, NodeTopology> = HashMap::new();
    let mut limits = interval(LIMITS_INTERVAL);
    limits.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let has_open = known.values().any(|object| !is_success(object));
        let mut with_limits = false;
        tokio::select! {
            event = events.try_next() => match event {
                Ok(Some(event)) => note(event, &mut known),
                Ok(None) => return,
                Err(error) => {
                    let error = runtime::error_chain::error_chain(&error);
                    tracing::warn!(error, "cannot watch the CSINodeTopologies");
                    continue;
                }
            },
            () = sleep(RETRY), if has_open => {}
            _ = limits.tick() => with_limits = true,
        }
        for (name, object) in &mut known {
            if !with_limits && is_success(object) {
                continue;
            }
            let Some(patch) = changes(&vcenters, &categories(), object) else { continue };
            match api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await {
                Ok(written) => *object = without_managed_fields(written),
                Err(error) => {
                    let error = runtime::error_chain::error_chain(&error);
                    tracing::warn!(node = name, error, "cannot write the topology of a node");
                }
            }
        }
    }
}

/// The difference between the object and its VM: the status, unless it is a success already, and the limit.
fn changes(
    vcenters: &Vcenters,
    categories: &[Category],
    object: &NodeTopology,
) -> Option<serde_json::Value> {
    let mut patch = serde_json::Map::new();
    if !is_success(object) {
        let status = determine(vcenters, categories, object);
        if object.status.as_ref() != Some(&status) {
            patch.insert("status".to_owned(), serde_json::json!(status));
        }
    }
    let limit = limit(vcenters, object).map(|limit| limit.to_string());
    let annotations = object.metadata.annotations.as_ref();
    let written = annotations.and_then(|all| all.get(volume_limit::ANNOTATION));
    if limit.is_some() && limit.as_ref() != written {
        let annotations = serde_json::json!({volume_limit::ANNOTATION: limit});
        patch.insert("metadata".to_owned(), serde_json::json!({ "annotations": annotations }));
    }
    (!patch.is_empty()).then(|| patch.into())
}

fn is_success(object: &NodeTopology) -> bool {
    object.status.as_ref().is_some_and(|status| status.status == SUCCESS)
}

fn without_managed_fields(mut object: NodeTopology) -> NodeTopology {
    object.metadata.managed_fields = None;
    object
}

fn note(event: watcher::Event<NodeTopology>, known: &mut HashMap<String, NodeTopology>) {
    let name = |object: &NodeTopology| object.metadata.name.clone().unwrap_or_default();
    match event {
        watcher::Event::Init => known.clear(),
        watcher::Event::InitApply(object) | watcher::Event::Apply(object) => {
            known.insert(name(&object), without_managed_fields(object));
        }
        watcher::Event::InitDone => {}
        watcher::Event::Delete(object) => {
            known.remove(&name(&object));
        }
    }
}

/// How many volumes the VM of the node has room for. `None` if its hardware is unknown.
fn limit(vcenters: &Vcenters, object: &NodeTopology) -> Option<usize> {
    let uuid: BiosUuid = object.spec.node_uuid.parse().ok()?;
    for connection in vcenters.all_live().ok()? {
        let Lookup::Found(vm) = connection.find_vm(uuid) else { continue };
        let view = connection.inventory().view();
        let host = vm.host.as_ref().and_then(|host| view.get(host)?.as_host());
        let version = host.and_then(|host| host.version.as_deref());
        return Some(volume_limit::of_vm(vm.devices.as_deref()?, version));
    }
    None
}

fn determine(
    vcenters: &Vcenters,
    categories: &[Category],
    object: &NodeTopology,
) -> TopologyStatus {
    match labels(vcenters, categories, object) {
        Ok(labels) => TopologyStatus {
            status: SUCCESS.to_owned(),
            topology_labels: labels
                .into_iter()
                .map(|(key, value)| TopologyLabel { key, value })
                .collect(),
            error_message: String::new(),
        },
        Err(message) => TopologyStatus {
            status: ERROR.to_owned(),
            topology_labels: Vec::new(),
            error_message: message,
        },
    }
}

fn labels(
    vcenters: &Vcenters,
    categories: &[Category],
    object: &NodeTopology,
) -> Result<Segments, String> {
    if categories.is_empty() {
        return Ok(Segments::new());
    }
    let Spec { node_id, node_uuid } = &object.spec;
    let uuid: BiosUuid = node_uuid
        .parse()
        .map_err(|_| format!("the node {node_id} has no valid uuid of a VM: \"{node_uuid}\""))?;
    for connection in vcenters.all_live().map_err(|error| error.to_string())? {
        let Lookup::Found(vm) = connection.find_vm(uuid) else { continue };
        let tags = connection.require_tags().map_err(|error| error.to_string())?;
        let view = connection.inventory().view();
        let title = view.path_of(&vm.reference).unwrap_or_else(|| vm.reference.to_string());
        let host = vm.host.clone().ok_or_else(|| format!("the VM {title} has no host"))?;
        return from_host(&view, &tags, categories, &host)
            .map_err(|missing| format!("the VM {title} is on a host without {missing}"));
    }
    Err(format!(
        "no configured vCenter has a VM with the uuid {uuid} of the node {node_id}; check the datacenters in csi-vsphere.conf and the permissions on the VM"
    ))
}

fn from_host(
    view: &Tree,
    tags: &TagTable,
    categories: &[Category],
    host: &MoRef,
) -> Result<Segments, String> {
    let above = view.ancestors(host).into_iter().map(|object| object.reference().clone());
    let path: Vec<MoRef> = std::iter::once(host.clone()).chain(above).collect();
    let found = collect_segments(&path, tags, categories);
    let missing = categories.iter().filter(|c| !found.contains_key(&c.label));
    let missing: Vec<&str> = missing.map(|category| category.name.as_str()).collect();
    if missing.is_empty() {
        return Ok(found);
    }
    Err(format!(
        "a tag of the category {}; attach one to the host, its cluster, folder or datacenter",
        missing.join(", ")
    ))
}
