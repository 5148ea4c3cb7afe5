//! The parts that all loops share.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{
    cluster::Cluster,
    events::Events,
    model::Metadata as _,
    provision::topology::{NodeTopology, Options},
    rpc::{Calls, Capabilities},
    writer::Writer,
};

/// The loops' settings. The defaults are those of upstream's manifest of the vSphere driver.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The name of the driver.
    pub driver: String,
    /// Unique to this run of the process: part of the source of events.
    pub identity: String,
    /// Whether volumes are accessible from a part of the cluster only
    /// (the plugin capability `VOLUME_ACCESSIBILITY_CONSTRAINTS`).
    pub topology: bool,
    pub topology_options: Options,
    /// The file system of classes and volumes that name none.
    pub default_fs_type: String,
    /// CreateVolume and CreateSnapshot get the names of the Kubernetes objects as parameters.
    pub extra_metadata: bool,
    /// Number of objects that each loop works on at the same time.
    pub concurrency: usize,
    /// How long a call of the Controller service can take. The loop repeats it after that.
    pub call_timeout: Duration,
    /// How often the attachments are compared with the disks of the VMs. Also done at the start.
    pub comparison_interval: Duration,
    /// How often the metadata of all volumes is compared with CNS. Also done at the start.
    pub full_sync: Duration,
    /// How often creations whose claim is gone are looked for. Also done at the start.
    pub orphan_interval: Duration,
    /// Whether to publish CSIStorageCapacity objects, and in which namespace.
    pub capacity: Option<CapacitySettings>,
}

#[derive(Clone, Debug)]
pub struct CapacitySettings {
    /// The namespace of the objects: that of the driver's pod.
    pub namespace: String,
    /// The owner of the objects: Kubernetes deletes them with it.
    pub owner: Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference>,
    /// How often the capacity is read again.
    pub interval: Duration,
}

impl Settings {
    pub fn new(driver: &str, identity: &str) -> Self {
        Self {
            driver: driver.into(),
            identity: identity.into(),
            topology: false,
            topology_options: Options { strict: true, immediate: true },
            default_fs_type: "ext4".into(),
            extra_metadata: true,
            concurrency: 100,
            call_timeout: Duration::from_mins(5),
            comparison_interval: Duration::from_mins(30),
            full_sync: super::metadata::FULL_SYNC,
            orphan_interval: Duration::from_mins(1),
            capacity: None,
        }
    }
}

pub struct Context {
    pub settings: Settings,
    pub cluster: Cluster,
    pub writer: Writer,
    pub calls: Calls,
    pub capabilities: Capabilities,
    pub events: Events,
}

/// The topology of nodes in the view of the watches.
pub struct ClusterTopology<'a> {
    pub cluster: &'a Cluster,
    pub driver: &'a str,
}

impl NodeTopology for ClusterTopology<'_> {
    fn keys(&self, node: &str) -> Option<Vec<String>> {
        let node = self.cluster.csi_nodes.get(&kube::runtime::reflector::ObjectRef::new(node))?;
        Some(
            node.driver(self.driver).map(|driver| driver.topology_keys.clone()).unwrap_or_default(),
        )
    }

    fn nodes_with_keys(&self) -> Vec<(String, Vec<String>)> {
        let nodes = self.cluster.csi_nodes.state();
        let keys = nodes.iter().filter_map(|node| {
            let keys = &node.driver(self.driver)?.topology_keys;
            (!keys.is_empty()).then(|| (node.name().to_owned(), keys.clone()))
        });
        let mut keys: Vec<_> = keys.collect();
        keys.sort();
        keys
    }

    fn labels(&self, node: &str) -> Option<BTreeMap<String, String>> {
        let node = self.cluster.nodes.get(&kube::runtime::reflector::ObjectRef::new(node))?;
        Some(node.metadata.labels.clone().unwrap_or_default())
    }
}

impl Context {
    /// The id by which the driver knows a node.
    pub fn node_id(&self, node: &str) -> Option<String> {
        let node = self.cluster.csi_nodes.get(&kube::runtime::reflector::ObjectRef::new(node))?;
        Some(node.driver(&self.settings.driver)?.node_id.clone()).filter(|id| !id.is_empty())
    }
}

pub type Shared = Arc<Context>;
