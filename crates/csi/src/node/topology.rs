//! The topology of this node, through its CSINodeTopology object.
//!
//! The node plugin has no access to vCenter. It creates the object, and the controller fills the object's status with
//! the tags of the VM, and an annotation with the number of volumes that the VM has room for.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::TryStreamExt as _;
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::{
    Api, Client, CustomResource, ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
    runtime::{WatchStreamExt as _, watcher},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use snafu::{ResultExt as _, Snafu};
use tokio::time::timeout;

use crate::volume_limit;

const SUCCESS: &str = "Success";
const ERROR: &str = "Error";

/// The object of a node, as in the upstream driver.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, CustomResource, Serialize, Deserialize, JsonSchema,
)]
#[kube(
    group = "cns.vmware.com",
    version = "v1alpha1",
    kind = "CSINodeTopology",
    plural = "csinodetopologies"
)]
#[kube(status = "CSINodeTopologyStatus")]
#[serde(rename_all = "camelCase")]
pub struct CSINodeTopologySpec {
    /// The name of the Node.
    #[serde(rename = "nodeID")]
    pub node_id: String,
    /// The uuid of its VM.
    #[serde(default, skip_serializing_if = "String::is_empty", rename = "nodeuuid")]
    pub node_uuid: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CSINodeTopologyStatus {
    /// `Success` or `Error`; empty until the controller has looked.
    pub status: String,
    pub topology_labels: Vec<TopologyLabel>,
    pub error_message: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TopologyLabel {
    pub key: String,
    pub value: String,
}

#[derive(Debug, Snafu)]
pub enum TopologyError {
    #[snafu(display("cannot read the Node {node}"))]
    Node {
        node: String,
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },
    #[snafu(display("cannot write the CSINodeTopology {node}"))]
    Write {
        node: String,
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },
    #[snafu(display("the controller cannot determine the topology of the node {node}: {message}"))]
    Failed { node: String, message: String },
    #[snafu(display(
        "the controller did not set the status of the CSINodeTopology {node} within {} s: check that the pods of the \
         controller run and reach vCenter",
        waited.as_secs()
    ))]
    NoAnswer { node: String, waited: Duration },
}

/// Segments by key.
pub type Segments = BTreeMap<String, String>;

/// The knowledge of the controller about the VM of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    pub segments: Segments,
    /// How many volumes the VM has room for, if the controller knows.
    pub limit: Option<i64>,
}

impl From<&CSINodeTopology> for Answer {
    fn from(object: &CSINodeTopology) -> Self {
        let limit = object.annotations().get(volume_limit::ANNOTATION);
        Self {
            segments: object.status.as_ref().map(segments).unwrap_or_default(),
            limit: limit.and_then(|limit| limit.parse().ok()),
        }
    }
}

/// Asks the controller about the VM of one node.
#[derive(Clone)]
pub struct NodeTopology {
    pub client: Client,
    pub node: String,
    /// How long the controller can take.
    pub timeout: Duration,
    /// Whether the controller answered this process.
    pub answered: Arc<AtomicBool>,
}

impl std::fmt::Debug for NodeTopology {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeTopology").field("node", &self.node).finish_non_exhaustive()
    }
}

impl NodeTopology {
    /// Asks the controller and waits for its answer, once in the life of the process. Later calls read the object: the
    /// kubelet repeats its question for the limit, and refuses a node whose topology changes.
    ///
    /// If the controller does not answer, the last answer for the same VM counts: a node whose plugin restarts must not
    /// depend on the controller.
    pub async fn ask(&self, vm_uuid: &str) -> Result<Answer, TopologyError> {
        let api = Api::<CSINodeTopology>::all(self.client.clone());
        let node = self.node.as_str();
        let before = api.get_opt(node).await.context(WriteSnafu { node })?;
        let is_answer = |object: &&CSINodeTopology| {
            let status = object.status.as_ref();
            object.spec.node_uuid == vm_uuid
                && status.is_some_and(|status| status.status == SUCCESS)
        };
        let known = before.as_ref().filter(is_answer).map(Answer::from);
        if let Some(known) = &known
            && self.answered.load(Ordering::Relaxed)
        {
            return Ok(known.clone());
        }
        match before {
            None => self.create(&api, vm_uuid).await?,
            Some(_) => self.reset(&api, vm_uuid).await?,
        }
        match (timeout(self.timeout, self.answer(&api)).await, known) {
            (Ok(answer), _) => {
                self.answered.store(answer.is_ok(), Ordering::Relaxed);
                answer
            }
            (Err(_), Some(known)) => {
                tracing::warn!("the controller did not answer; using its answer from before");
                self.write_status(&api, SUCCESS).await?;
                Ok(known)
            }
            (Err(_), None) => NoAnswerSnafu { node, waited: self.timeout }.fail(),
        }
    }

    async fn create(&self, api: &Api<CSINodeTopology>, vm_uuid: &str) -> Result<(), TopologyError> {
        let node = self.node.as_str();
        let owner =
            Api::<Node>::all(self.client.clone()).get(node).await.context(NodeSnafu { node })?;
        let spec = CSINodeTopologySpec { node_id: node.to_owned(), node_uuid: vm_uuid.to_owned() };
        let mut object = CSINodeTopology::new(node, spec);
        object.metadata.owner_references = Some(vec![OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: owner.name_any(),
            uid: owner.uid().unwrap_or_default(),
            ..OwnerReference::default()
        }]);
        match api.create(&PostParams::default(), &object).await {
            Err(kube::Error::Api(status)) if status.code == 409 => self.reset(api, vm_uuid).await,
            created => created.map(drop).context(WriteSnafu { node }),
        }
    }

    /// Clears the status, so that the controller looks again: the VM can have moved.
    async fn reset(&self, api: &Api<CSINodeTopology>, vm_uuid: &str) -> Result<(), TopologyError> {
        let node = self.node.as_str();
        let spec = json!({"spec": {"nodeID": node, "nodeuuid": vm_uuid}});
        let patched = api.patch(node, &PatchParams::default(), &Patch::Merge(spec)).await;
        patched.context(WriteSnafu { node })?;
        self.write_status(api, "").await
    }

    /// Writes the state of the status. The labels stay.
    async fn write_status(
        &self,
        api: &Api<CSINodeTopology>,
        state: &str,
    ) -> Result<(), TopologyError> {
        let node = self.node.as_str();
        let change = Patch::Merge(json!({"status": {"status": state, "errorMessage": ""}}));
        let patched = api.patch(node, &PatchParams::default(), &change).await;
        let patched = patched.context(WriteSnafu { node })?;
        // The status is a subresource, unless upstream installed the definition.
        if patched.status.unwrap_or_default().status != state {
            let patched = api.patch_status(node, &PatchParams::default(), &change).await;
            patched.context(WriteSnafu { node })?;
        }
        Ok(())
    }

    async fn answer(&self, api: &Api<CSINodeTopology>) -> Result<Answer, TopologyError> {
        let node = self.node.as_str();
        let only = watcher::Config::default().fields(&format!("metadata.name={node}"));
        let mut objects =
            std::pin::pin!(watcher(api.clone(), only).default_backoff().applied_objects());
        loop {
            let object = match objects.try_next().await {
                Ok(Some(object)) => object,
                Ok(None) => continue,
                // The watcher tries again by itself.
                Err(error) => {
                    tracing::warn!(%error, "the watch of the CSINodeTopology was interrupted");
                    continue;
                }
            };
            let Some(status) = &object.status else { continue };
            match status.status.as_str() {
                SUCCESS => return Ok(Answer::from(&object)),
                ERROR => return FailedSnafu { node, message: &status.error_message }.fail(),
                _ => {}
            }
        }
    }
}

fn segments(status: &CSINodeTopologyStatus) -> Segments {
    status.topology_labels.iter().map(|label| (label.key.clone(), label.value.clone())).collect()
}
