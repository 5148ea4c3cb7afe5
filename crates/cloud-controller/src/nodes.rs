//! The nodes of the cluster: a small mirror, and the writes.
//!
//! A Node object is some ten kilobytes, most of them images and managed fields. What is kept of it
//! here is a few hundred bytes.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Duration,
};

use futures::{Stream, StreamExt as _};
use k8s_openapi::{
    ClusterResourceScope,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
    runtime::{WatchStreamExt as _, watcher},
};
use runtime::lease::Mandate;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use crate::{
    model::{Address, Labels, Node, PAIRS, PROVIDED_NODE_IP, Taint},
    record,
};

/// The name writes are attributed to.
pub const FIELD_MANAGER: &str = "vsphere-cloud-controller-manager";
/// How long the API server may take to answer one read or write.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Nodes per page of the first list.
const PAGE: u32 = 250;
/// Sets of labels that are kept before those without a node are looked for.
const MANY_SETS: usize = 1000;

/// A Node, as much of it as is read from the wire.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct NodeObject {
    #[serde(default, deserialize_with = "metadata")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

/// As much of the metadata as is used: managed fields, most of a Node's bytes, are not even built.
fn metadata<'de, D: Deserializer<'de>>(wire: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Used {
        name: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        creation_timestamp: Option<Time>,
        deletion_timestamp: Option<Time>,
        labels: Option<BTreeMap<String, String>>,
        annotations: Option<BTreeMap<String, String>>,
    }
    let used = Used::deserialize(wire)?;
    Ok(ObjectMeta {
        name: used.name,
        uid: used.uid,
        resource_version: used.resource_version,
        creation_timestamp: used.creation_timestamp,
        deletion_timestamp: used.deletion_timestamp,
        labels: used.labels,
        annotations: used.annotations,
        ..ObjectMeta::default()
    })
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Spec {
    #[serde(rename = "providerID", default)]
    provider_id: Option<Box<str>>,
    #[serde(default)]
    taints: Option<Vec<Taint>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    #[serde(default)]
    addresses: Option<Vec<Address>>,
    #[serde(default)]
    conditions: Option<Vec<Condition>>,
    #[serde(default)]
    node_info: Option<NodeInfo>,
}

#[derive(Clone, Debug, Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: Box<str>,
    status: Box<str>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct NodeInfo {
    #[serde(rename = "systemUUID", default)]
    system_uuid: Box<str>,
}

impl Resource for NodeObject {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Node".into()
    }
    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }
    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }
    fn plural((): &()) -> Cow<'_, str> {
        "nodes".into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Which labels of a node are kept.
#[derive(Clone, Debug, Default)]
pub struct Kept(HashSet<String>);

impl Kept {
    /// Those of zone, region and type, and these.
    pub fn with<'a>(extra: impl IntoIterator<Item = &'a String>) -> Self {
        let own = PAIRS.iter().flat_map(|(beta, stable)| [beta.to_string(), stable.to_string()]);
        Self(own.chain(extra.into_iter().cloned()).collect())
    }
}

/// What is kept of a Node. `share` finds labels that are equal to these.
fn keep(object: NodeObject, kept: &Kept, share: impl FnOnce(Labels) -> Arc<Labels>) -> Node {
    let NodeObject { metadata, spec, status } = object;
    let mut annotations = metadata.annotations.unwrap_or_default();
    let mut annotation = |key: &str| annotations.remove(key).map(String::into_boxed_str);
    let labels = metadata.labels.unwrap_or_default().into_iter();
    let labels: Labels = labels
        .filter(|(key, _)| kept.0.contains(key))
        .map(|(key, value)| (key.into_boxed_str(), value.into_boxed_str()))
        .collect();
    let is_ready = |c: &Condition| &*c.kind == "Ready" && &*c.status == "True";
    Node {
        name: metadata.name.unwrap_or_default().into(),
        uid: metadata.uid.unwrap_or_default().into(),
        resource_version: metadata.resource_version.unwrap_or_default().into(),
        created: metadata.creation_timestamp.map_or(0, |time| time.0.as_second()),
        deleting: metadata.deletion_timestamp.is_some(),
        provider_id: spec.provider_id.unwrap_or_default(),
        taints: spec.taints.unwrap_or_default().into(),
        labels: share(labels),
        provided_ip: annotation(PROVIDED_NODE_IP),
        record: annotation(record::ANNOTATION),
        addresses: status.addresses.unwrap_or_default().into(),
        ready: status.conditions.iter().flatten().any(is_ready),
        system_uuid: status.node_info.unwrap_or_default().system_uuid,
    }
}

/// What happened to the mirror.
#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    /// A node is there or changed.
    Node(Arc<str>),
    /// A node is gone; its uid is left.
    Gone(Arc<str>, Box<str>),
    /// The mirror is complete.
    Complete,
}

/// The mirror and the door to the API server. Clones are one.
#[derive(Clone)]
pub struct Nodes {
    api: Api<NodeObject>,
    kept: Arc<Kept>,
    mandate: Mandate,
    mirror: Arc<RwLock<HashMap<Arc<str>, Arc<Node>>>>,
    /// The different sets of labels: as many as there are zones and types of machines.
    label_sets: Arc<Mutex<HashSet<Arc<Labels>>>>,
}

impl Nodes {
    /// An empty mirror. Nothing is written once `mandate` has ended.
    pub fn new(client: Client, kept: Kept, mandate: Mandate) -> Self {
        let (mirror, label_sets) = (Arc::default(), Arc::default());
        Self { api: Api::all(client), kept: Arc::new(kept), mandate, mirror, label_sets }
    }

    /// Follows the cluster for as long as the stream is read. Troubles are logged and retried.
    pub fn follow(&self) -> impl Stream<Item = Vec<Change>> + use<> {
        let nodes = self.clone();
        let config = watcher::Config::default().page_size(PAGE);
        let mut listed: HashSet<Arc<str>> = HashSet::new();
        watcher::watcher(self.api.clone(), config).default_backoff().map(move |event| match event {
            Ok(watcher::Event::Init) => {
                listed.clear();
                Vec::new()
            }
            Ok(watcher::Event::InitApply(object)) => {
                let name = nodes.put(object);
                listed.insert(name.clone());
                vec![Change::Node(name)]
            }
            Ok(watcher::Event::InitDone) => {
                let mut changes = nodes.retain(&std::mem::take(&mut listed));
                changes.push(Change::Complete);
                changes
            }
            Ok(watcher::Event::Apply(object)) => vec![Change::Node(nodes.put(object))],
            Ok(watcher::Event::Delete(object)) => {
                let name = object.metadata.name.unwrap_or_default();
                nodes.remove(&name).into_iter().collect()
            }
            Err(error) => {
                tracing::warn!(%error, "cannot watch the nodes");
                Vec::new()
            }
        })
    }

    /// A node, as last seen.
    pub fn get(&self, name: &str) -> Option<Arc<Node>> {
        self.read().get(name).cloned()
    }

    /// All nodes.
    pub fn all(&self) -> Vec<Arc<Node>> {
        self.read().values().cloned().collect()
    }

    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.read().len()
    }

    /// How many of them are so.
    pub fn count(&self, are: impl Fn(&Node) -> bool) -> usize {
        self.read().values().filter(|node| are(node)).count()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.read().is_empty()
    }

    /// Reads one node afresh.
    pub async fn fetch(&self, name: &str) -> Result<Option<Node>, kube::Error> {
        Ok(answer(self.api.get_opt(name)).await?.map(|object| self.keep(object)))
    }

    /// Writes to a node, provided it still is what `node` shows; returns it as written.
    pub async fn patch(&self, node: &Node, patch: Value) -> Result<Node, kube::Error> {
        let patch = conditional(node, patch);
        let parameters =
            PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
        let patch = Patch::Merge(patch);
        let written = self.write(self.api.patch(&node.name, &parameters, &patch)).await?;
        Ok(self.keep(written))
    }

    /// Writes a node's addresses, provided it still is what `node` shows; returns it as written.
    pub async fn set_addresses(
        &self,
        node: &Node,
        addresses: &[Address],
    ) -> Result<Node, kube::Error> {
        let patch = conditional(node, json!({"status": {"addresses": addresses}}));
        let parameters =
            PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
        let patch = Patch::Merge(patch);
        let written = self.write(self.api.patch_status(&node.name, &parameters, &patch)).await?;
        Ok(self.keep(written))
    }

    /// Deletes a node, provided it still is what `node` shows.
    pub async fn delete(&self, node: &Node) -> Result<(), kube::Error> {
        let preconditions = Preconditions {
            uid: Some(node.uid.to_string()),
            resource_version: Some(node.resource_version.to_string()),
        };
        let parameters =
            DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        self.write(self.api.delete(&node.name, &parameters)).await.map(drop)
    }

    fn keep(&self, object: NodeObject) -> Node {
        keep(object, &self.kept, |labels| {
            let mut sets = self.label_sets.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(same) = sets.get(&labels) {
                return same.clone();
            }
            // Sets that no node has any more are let go when the list has become long.
            if sets.len() >= MANY_SETS {
                sets.retain(|set| Arc::strong_count(set) > 1);
            }
            let labels = Arc::new(labels);
            sets.insert(labels.clone());
            labels
        })
    }

    fn put(&self, object: NodeObject) -> Arc<str> {
        self.mirror(self.keep(object))
    }

    /// Takes a node into the mirror.
    pub(crate) fn mirror(&self, node: Node) -> Arc<str> {
        let name = node.name.clone();
        self.change().insert(name.clone(), Arc::new(node));
        name
    }

    fn remove(&self, name: &str) -> Option<Change> {
        let node = self.change().remove(name)?;
        Some(Change::Gone(node.name.clone(), node.uid.clone()))
    }

    fn retain(&self, listed: &HashSet<Arc<str>>) -> Vec<Change> {
        let stale: Vec<Arc<str>> =
            self.read().keys().filter(|name| !listed.contains(*name)).cloned().collect();
        stale.iter().filter_map(|name| self.remove(name)).collect()
    }

    /// The answer to a write. A process that was frozen while another took over wakes up with its
    /// writes decided and ready: none of them goes out.
    async fn write<T>(
        &self,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, kube::Error> {
        let written = self.mandate.while_it_holds(answer(call)).await;
        written.unwrap_or_else(|| Err(kube::Error::Service("this instance leads no more".into())))
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, HashMap<Arc<str>, Arc<Node>>> {
        self.mirror.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self) -> std::sync::RwLockWriteGuard<'_, HashMap<Arc<str>, Arc<Node>>> {
        self.mirror.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An answer, or an error after [`TIMEOUT`]: a connection that died unnoticed holds a worker no longer.
async fn answer<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, kube::Error> {
    let late = || kube::Error::Service(format!("no answer within {TIMEOUT:?}").into());
    tokio::time::timeout(TIMEOUT, call).await.unwrap_or_else(|_| Err(late()))
}

/// The patch with the version it was decided on: the API server refuses it if there is a newer one.
fn conditional(node: &Node, mut patch: Value) -> Value {
    patch["metadata"]["resourceVersion"] = node.resource_version.to_string().into();
    patch["metadata"]["uid"] = node.uid.to_string().into();
    patch
}

/// Whether somebody else wrote first: look at the node again and decide anew.
pub fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

/// Whether the node is no more.
pub fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_ready_only_if_its_kubelet_says_so() {
        let ready = |conditions: serde_json::Value| {
            let object = json!({"metadata": {"name": "n"}, "spec": {}, "status": {"conditions": conditions}});
            keep(serde_json::from_value(object).unwrap(), &Kept::default(), Arc::new).ready
        };
        assert!(ready(json!([{"type": "Ready", "status": "True"}])));
        // What becomes of the node of a dead machine: its kubelet says nothing any more.
        assert!(!ready(json!([{"type": "Ready", "status": "Unknown"}])));
        assert!(!ready(json!([{"type": "Ready", "status": "False"}])));
        assert!(!ready(json!([{"type": "MemoryPressure", "status": "True"}])));
        assert!(!ready(json!([])));
    }

    #[test]
    fn only_what_the_controller_needs_is_kept_of_a_node() {
        let object: NodeObject = serde_json::from_value(json!({
            "metadata": {
                "name": "n", "uid": "u", "resourceVersion": "7",
                "creationTimestamp": "1970-01-01T00:01:00Z",
                "labels": {"topology.kubernetes.io/zone": "a", "site": "x", "junk": "y"},
                "annotations": {"alpha.kubernetes.io/provided-node-ip": "10.0.0.1", "junk": "z"},
            },
            "spec": {
                "providerID": "vsphere://x",
                "taints": [{"key": "k", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}],
                "podCIDR": "10.0.0.0/24",
            },
            "status": {
                "addresses": [{"type": "Hostname", "address": "n"}, {"type": "Future", "address": "f"}],
                "conditions": [{"type": "Ready", "status": "True", "reason": "r"}],
                "nodeInfo": {"systemUUID": "S", "kernelVersion": "6"},
                "images": [{"names": ["a"], "sizeBytes": 1}],
            },
        }))
        .unwrap();
        let node = keep(object, &Kept::with([&"site".to_owned()]), Arc::new);
        assert_eq!(
            (&*node.name, &*node.uid, &*node.resource_version, node.created),
            ("n", "u", "7", 60)
        );
        assert_eq!(
            node.labels.keys().map(|k| &**k).collect::<Vec<_>>(),
            ["site", "topology.kubernetes.io/zone"]
        );
        assert!(node.ready && !node.deleting);
        assert_eq!(node.provided_ip.as_deref(), Some("10.0.0.1"));
        let taints = serde_json::to_value(&node.taints).unwrap();
        assert_eq!(
            taints,
            json!([{"key": "k", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}])
        );
        let addresses = serde_json::to_value(&node.addresses).unwrap();
        assert_eq!(
            addresses[1],
            json!({"type": "Future", "address": "f"}),
            "written back as it was"
        );
    }

    #[test]
    fn a_node_without_anything_is_not_ready() {
        let object: NodeObject =
            serde_json::from_value(json!({"metadata": {"name": "n"}})).unwrap();
        assert!(!keep(object, &Kept::default(), Arc::new).ready);
    }

    #[test]
    fn managed_fields_are_not_even_built() {
        let object: NodeObject = serde_json::from_value(json!({
            "metadata": {"name": "n", "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}]},
        }))
        .unwrap();
        assert_eq!(object.metadata.managed_fields, None);
        assert_eq!(object.metadata.name.as_deref(), Some("n"));
    }

    #[tokio::test]
    async fn one_who_leads_no_more_sends_no_write() {
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        server.set_nonblocking(true).unwrap();
        let address = format!("http://{}", server.local_addr().unwrap()).parse().unwrap();
        let client = Client::try_from(kube::Config::new(address)).unwrap();
        let nodes = Nodes::new(client, Kept::default(), Mandate::ended());
        let node = Node { name: "n".into(), ..Node::default() };
        for error in [
            nodes.patch(&node, json!({})).await.unwrap_err(),
            nodes.set_addresses(&node, &[]).await.unwrap_err(),
            nodes.delete(&node).await.unwrap_err(),
        ] {
            assert!(error.to_string().contains("leads no more"), "{error}");
        }
        assert!(server.accept().is_err(), "nobody was called");
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_never_answers_is_waited_for_half_a_minute() {
        // Connections are taken by the system, and by nobody else.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", silent.local_addr().unwrap()).parse().unwrap();
        let client = Client::try_from(kube::Config::new(address)).unwrap();
        let nodes = Nodes::new(client, Kept::default(), Mandate::unlimited());
        let node = Node { name: "n".into(), ..Node::default() };
        let start = tokio::time::Instant::now();
        for error in [
            nodes.fetch("n").await.unwrap_err(),
            nodes.patch(&node, json!({})).await.unwrap_err(),
            nodes.set_addresses(&node, &[]).await.unwrap_err(),
            nodes.delete(&node).await.unwrap_err(),
        ] {
            assert!(error.to_string().contains("no answer within 30s"), "{error}");
        }
        assert_eq!(start.elapsed().as_secs(), 120);
    }
}
