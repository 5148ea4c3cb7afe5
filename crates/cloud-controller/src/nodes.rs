//! A compact cache of the cluster's Nodes, and the writes to them.
//!
//! A Node object has about ten kilobytes, mostly images and managed fields. The cache keeps a few
//! hundred bytes of it.

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
    model::{
        Address, CLUSTER_LABEL, HOST_LABEL, LABEL_PAIRS, Labels, Node, PROVIDED_NODE_IP, Taint,
    },
    record,
};

pub const FIELD_MANAGER: &str = "vsphere-cloud-controller-manager";
/// For one request to the API server.
const TIMEOUT: Duration = Duration::from_secs(30);
const PAGE: u32 = 250;
/// Above this number of label sets, unused ones are dropped.
const MAX_LABEL_SETS: usize = 1000;

/// The fields of a Node that are deserialised.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct NodeObject {
    #[serde(default, deserialize_with = "metadata")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

/// Skips managed fields, which are most of a Node's bytes.
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

/// The labels that the cache keeps.
#[derive(Clone, Debug, Default)]
pub struct LabelFilter(HashSet<String>);

impl LabelFilter {
    /// Keeps the labels for zone, region, instance type, host and cluster, and `extra`.
    pub fn with<'a>(extra: impl IntoIterator<Item = &'a String>) -> Self {
        let own =
            LABEL_PAIRS.iter().flat_map(|(beta, stable)| [beta.to_string(), stable.to_string()]);
        let placement = [HOST_LABEL, CLUSTER_LABEL].map(str::to_owned);
        Self(own.chain(placement).chain(extra.into_iter().cloned()).collect())
    }
}

/// `share` returns a shared set of equal labels.
fn from_object(
    object: NodeObject,
    label_filter: &LabelFilter,
    share: impl FnOnce(Labels) -> Arc<Labels>,
) -> Node {
    let NodeObject { metadata, spec, status } = object;
    let mut annotations = metadata.annotations.unwrap_or_default();
    let mut annotation = |key: &str| annotations.remove(key).map(String::into_boxed_str);
    let labels = metadata.labels.unwrap_or_default().into_iter();
    let labels: Labels = labels
        .filter(|(key, _)| label_filter.0.contains(key))
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

#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    /// A node was added or changed.
    Node(Arc<str>),
    /// Name and uid of a deleted node.
    Gone(Arc<str>, Box<str>),
    /// The initial list is complete.
    Complete,
}

/// Clones share one cache.
#[derive(Clone)]
pub struct Nodes {
    api: Api<NodeObject>,
    label_filter: Arc<LabelFilter>,
    mandate: Mandate,
    cache: Arc<RwLock<HashMap<Arc<str>, Arc<Node>>>>,
    /// Distinct label sets: one for each combination of zone and instance type.
    label_sets: Arc<Mutex<HashSet<Arc<Labels>>>>,
}

impl Nodes {
    /// Writes nothing after `mandate` ended.
    pub fn new(client: Client, label_filter: LabelFilter, mandate: Mandate) -> Self {
        let (cache, label_sets) = (Arc::default(), Arc::default());
        Self {
            api: Api::all(client),
            label_filter: Arc::new(label_filter),
            mandate,
            cache,
            label_sets,
        }
    }

    /// Watches the Nodes while the stream is polled. Errors are logged and retried.
    pub fn watch(&self) -> impl Stream<Item = Vec<Change>> + use<> {
        let nodes = self.clone();
        let config = watcher::Config::default().page_size(PAGE);
        let mut listed: HashSet<Arc<str>> = HashSet::new();
        watcher::watcher(self.api.clone(), config).default_backoff().map(move |event| match event {
            Ok(watcher::Event::Init) => {
                listed.clear();
                Vec::new()
            }
            Ok(watcher::Event::InitApply(object)) => {
                let name = nodes.store(object);
                listed.insert(name.clone());
                vec![Change::Node(name)]
            }
            Ok(watcher::Event::InitDone) => {
                let mut changes = nodes.retain(&std::mem::take(&mut listed));
                changes.push(Change::Complete);
                changes
            }
            Ok(watcher::Event::Apply(object)) => vec![Change::Node(nodes.store(object))],
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

    pub fn get(&self, name: &str) -> Option<Arc<Node>> {
        self.read().get(name).cloned()
    }

    pub fn all(&self) -> Vec<Arc<Node>> {
        self.read().values().cloned().collect()
    }

    pub fn len(&self) -> usize {
        self.read().len()
    }

    pub fn count(&self, matches: impl Fn(&Node) -> bool) -> usize {
        self.read().values().filter(|node| matches(node)).count()
    }

    pub fn is_empty(&self) -> bool {
        self.read().is_empty()
    }

    /// Reads a node from the API server.
    pub async fn fetch(&self, name: &str) -> Result<Option<Node>, kube::Error> {
        Ok(with_timeout(self.api.get_opt(name)).await?.map(|object| self.convert(object)))
    }

    /// Patches a node if it has not changed since `node` was read. Returns the new node.
    pub async fn patch(&self, node: &Node, patch: Value) -> Result<Node, kube::Error> {
        let patch = conditional(node, patch);
        let parameters =
            PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
        let patch = Patch::Merge(patch);
        let written = self.write(self.api.patch(&node.name, &parameters, &patch)).await?;
        Ok(self.convert(written))
    }

    /// Writes addresses if the node has not changed since `node` was read. Returns the new node.
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
        Ok(self.convert(written))
    }

    /// Deletes a node if it has not changed since `node` was read.
    pub async fn delete(&self, node: &Node) -> Result<(), kube::Error> {
        let preconditions = Preconditions {
            uid: Some(node.uid.to_string()),
            resource_version: Some(node.resource_version.to_string()),
        };
        let parameters =
            DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        self.write(self.api.delete(&node.name, &parameters)).await.map(drop)
    }

    fn convert(&self, object: NodeObject) -> Node {
        from_object(object, &self.label_filter, |labels| {
            let mut sets = self.label_sets.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(same) = sets.get(&labels) {
                return same.clone();
            }
            if sets.len() >= MAX_LABEL_SETS {
                sets.retain(|set| Arc::strong_count(set) > 1);
            }
            let labels = Arc::new(labels);
            sets.insert(labels.clone());
            labels
        })
    }

    fn store(&self, object: NodeObject) -> Arc<str> {
        self.cache(self.convert(object))
    }

    pub(crate) fn cache(&self, node: Node) -> Arc<str> {
        let name = node.name.clone();
        self.write_cache().insert(name.clone(), Arc::new(node));
        name
    }

    fn remove(&self, name: &str) -> Option<Change> {
        let node = self.write_cache().remove(name)?;
        Some(Change::Gone(node.name.clone(), node.uid.clone()))
    }

    fn retain(&self, listed: &HashSet<Arc<str>>) -> Vec<Change> {
        let stale: Vec<Arc<str>> =
            self.read().keys().filter(|name| !listed.contains(*name)).cloned().collect();
        stale.iter().filter_map(|name| self.remove(name)).collect()
    }

    /// Sends a write only while this instance leads. A process that was frozen while another became the
    /// leader must not send its pending writes.
    async fn write<T>(
        &self,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, kube::Error> {
        let written = self.mandate.while_it_holds(with_timeout(call)).await;
        written.unwrap_or_else(|| {
            Err(kube::Error::Service("this instance is no longer the leader".into()))
        })
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, HashMap<Arc<str>, Arc<Node>>> {
        self.cache.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_cache(&self) -> std::sync::RwLockWriteGuard<'_, HashMap<Arc<str>, Arc<Node>>> {
        self.cache.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fails after [`TIMEOUT`], so that a dead connection does not block a worker.
async fn with_timeout<T>(
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, kube::Error> {
    let late = || kube::Error::Service(format!("no answer within {TIMEOUT:?}").into());
    tokio::time::timeout(TIMEOUT, call).await.unwrap_or_else(|_| Err(late()))
}

/// Adds the version of the node: the API server rejects the patch if there is a newer one.
fn conditional(node: &Node, mut patch: Value) -> Value {
    patch["metadata"]["resourceVersion"] = node.resource_version.to_string().into();
    patch["metadata"]["uid"] = node.uid.to_string().into();
    patch
}

/// The node has changed: sync it again.
pub fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

pub fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_ready_only_if_the_condition_is_true() {
        let ready = |conditions: serde_json::Value| {
            let object = json!({"metadata": {"name": "n"}, "spec": {}, "status": {"conditions": conditions}});
            from_object(serde_json::from_value(object).unwrap(), &LabelFilter::default(), Arc::new)
                .ready
        };
        assert!(ready(json!([{"type": "Ready", "status": "True"}])));
        // The kubelet of a stopped VM does not report any more.
        assert!(!ready(json!([{"type": "Ready", "status": "Unknown"}])));
        assert!(!ready(json!([{"type": "Ready", "status": "False"}])));
        assert!(!ready(json!([{"type": "MemoryPressure", "status": "True"}])));
        assert!(!ready(json!([])));
    }

    #[test]
    fn the_cache_keeps_only_the_needed_fields() {
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
        let node = from_object(object, &LabelFilter::with([&"site".to_owned()]), Arc::new);
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
            "written back unchanged"
        );
    }

    #[test]
    fn an_empty_node_is_not_ready() {
        let object: NodeObject =
            serde_json::from_value(json!({"metadata": {"name": "n"}})).unwrap();
        assert!(!from_object(object, &LabelFilter::default(), Arc::new).ready);
    }

    #[test]
    fn managed_fields_are_not_deserialised() {
        let object: NodeObject = serde_json::from_value(json!({
            "metadata": {"name": "n", "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}]},
        }))
        .unwrap();
        assert_eq!(object.metadata.managed_fields, None);
        assert_eq!(object.metadata.name.as_deref(), Some("n"));
    }

    #[tokio::test]
    async fn a_former_leader_sends_no_write() {
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        server.set_nonblocking(true).unwrap();
        let address = format!("http://{}", server.local_addr().unwrap()).parse().unwrap();
        let client = Client::try_from(kube::Config::new(address)).unwrap();
        let nodes = Nodes::new(client, LabelFilter::default(), Mandate::ended());
        let node = Node { name: "n".into(), ..Node::default() };
        for error in [
            nodes.patch(&node, json!({})).await.unwrap_err(),
            nodes.set_addresses(&node, &[]).await.unwrap_err(),
            nodes.delete(&node).await.unwrap_err(),
        ] {
            assert!(error.to_string().contains("no longer the leader"), "{error}");
        }
        assert!(server.accept().is_err(), "no request was sent");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_to_the_api_server_time_out_after_30_seconds() {
        // The kernel accepts connections, but nothing answers.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", silent.local_addr().unwrap()).parse().unwrap();
        let client = Client::try_from(kube::Config::new(address)).unwrap();
        let nodes = Nodes::new(client, LabelFilter::default(), Mandate::unlimited());
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
