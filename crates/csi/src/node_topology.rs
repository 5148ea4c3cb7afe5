//! Fills the CSINodeTopology objects: a node plugin creates one and waits for the topology of its VM.
//!
//! As upstream does, an object that once succeeded is left alone: the kubelet refuses a node whose topology changes.

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
use tokio::time::sleep;
use vsphere::{
    BiosUuid, MoRef,
    inventory::{Lookup, Tree},
};

use crate::{
    configuration::Category,
    site::{Segments, collect_segments},
    vcenters::{TagTable, Vcenters},
};

/// How soon a node whose topology could not be determined is tried again.
const RETRY: Duration = Duration::from_secs(5);

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
    // The objects without success, with the status that was written last.
    let mut open: HashMap<String, NodeTopology> = HashMap::new();
    loop {
        tokio::select! {
            event = events.try_next() => match event {
                Ok(Some(event)) => note(event, &mut open),
                Ok(None) => return,
                Err(error) => {
                    let error = runtime::error_chain::error_chain(&error);
                    tracing::warn!(error, "cannot watch the CSINodeTopologies");
                    continue;
                }
            },
            () = sleep(RETRY), if !open.is_empty() => {}
        }
        let names: Vec<String> = open.keys().cloned().collect();
        for name in names {
            let Some(object) = open.get_mut(&name) else { continue };
            let status = determine(&vcenters, &categories(), object);
            if object.status.as_ref() == Some(&status) {
                continue;
            }
            let patch = serde_json::json!({ "status": status });
            match api.patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await {
                Ok(_) if status.status == SUCCESS => {
                    open.remove(&name);
                }
                Ok(_) => object.status = Some(status),
                Err(error) => {
                    let error = runtime::error_chain::error_chain(&error);
                    tracing::warn!(node = name, error, "cannot write the topology of a node");
                }
            }
        }
    }
}

fn note(event: watcher::Event<NodeTopology>, open: &mut HashMap<String, NodeTopology>) {
    let name = |object: &NodeTopology| object.metadata.name.clone().unwrap_or_default();
    match event {
        watcher::Event::Init => open.clear(),
        watcher::Event::InitApply(object) | watcher::Event::Apply(object) => {
            if object.status.as_ref().is_some_and(|status| status.status == SUCCESS) {
                open.remove(&name(&object));
            } else {
                open.insert(name(&object), object);
            }
        }
        watcher::Event::InitDone => {}
        watcher::Event::Delete(object) => {
            open.remove(&name(&object));
        }
    }
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
