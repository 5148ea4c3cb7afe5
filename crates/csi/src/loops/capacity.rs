//! The capacity loop: CSIStorageCapacity objects tell the scheduler how much space each topology segment has.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::{
    api::storage::v1::{CSIStorageCapacity, StorageClass},
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta},
};
use kube::{
    Api,
    api::{ListParams, Patch, PostParams},
};
use serde_json::json;
use tokio::{sync::Notify, time::timeout};
use tokio_util::sync::CancellationToken;
use tonic::Request;

use super::{
    context::{CapacitySettings, ClusterTopology, Shared},
    model::Metadata as _,
    names::{CAPACITY_DRIVER, CAPACITY_MANAGED_BY},
    provision::topology::{NodeTopology as _, Segment},
    quantity::Bytes,
    writer::is_not_found,
};
use crate::proto::csi::{GetCapacityRequest, Topology};

const MANAGER: &str = "external-provisioner";
/// Changes within this time are handled together.
const DEBOUNCE: Duration = Duration::from_secs(1);

/// The space of a class in a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    pub class: String,
    pub segment: Segment,
    pub available: Bytes,
    pub largest: Option<Bytes>,
}

/// A write that is due.
#[derive(Debug)]
pub enum Write {
    Create(Space),
    Update(Box<CSIStorageCapacity>, Space),
    Delete(Box<CSIStorageCapacity>),
}

/// Compares the objects with the space. Objects that are correct are not written; of duplicates one stays.
pub fn difference(wanted: Vec<Space>, existing: Vec<CSIStorageCapacity>) -> Vec<Write> {
    let mut wanted: BTreeMap<(String, Segment), Space> = wanted
        .into_iter()
        .map(|space| ((space.class.clone(), space.segment.clone()), space))
        .collect();
    let mut writes = Vec::new();
    for object in existing {
        let key = (object.storage_class_name.clone(), segment_of(&object));
        match wanted.remove(&key) {
            None => writes.push(Write::Delete(Box::new(object))),
            Some(space) if !shows(&object, &space) => {
                writes.push(Write::Update(Box::new(object), space));
            }
            Some(_) => {}
        }
    }
    writes.extend(wanted.into_values().map(Write::Create));
    writes
}

fn segment_of(object: &CSIStorageCapacity) -> Segment {
    object.node_topology.clone().and_then(|selector| selector.match_labels).unwrap_or_default()
}

fn shows(object: &CSIStorageCapacity, space: &Space) -> bool {
    let bytes = |quantity: &Option<k8s_openapi::apimachinery::pkg::api::resource::Quantity>| {
        quantity.as_ref().and_then(|quantity| Bytes::parse(&quantity.0))
    };
    bytes(&object.capacity) == Some(space.available)
        && bytes(&object.maximum_volume_size) == space.largest
}

/// The classes whose volumes the scheduler places: not those that bind at once.
pub fn is_published(class: &StorageClass, driver: &str) -> bool {
    class.provisioner == driver && class.volume_binding_mode.as_deref() != Some("Immediate")
}

pub struct CapacityPublisher {
    context: Shared,
    settings: CapacitySettings,
    changed: Arc<Notify>,
    /// The problems of the last reading.
    problems: Mutex<BTreeSet<String>>,
}

impl CapacityPublisher {
    /// `changed` asks to read the capacity again.
    pub fn new(context: Shared, settings: CapacitySettings, changed: Arc<Notify>) -> Self {
        Self { context, settings, changed, problems: Mutex::default() }
    }

    /// Publishes the capacity until `stop` is cancelled.
    pub async fn run(self, stop: CancellationToken) {
        let publishing = async {
            loop {
                if let Err(error) = self.publish().await {
                    tracing::warn!("the storage capacity cannot be published: {error}");
                }
                // An error of this wait means that the interval has passed.
                let _ = timeout(self.settings.interval, self.changed.notified()).await;
                tokio::time::sleep(DEBOUNCE).await;
            }
        };
        stop.run_until_cancelled(Box::pin(publishing)).await;
    }

    async fn publish(&self) -> Result<(), String> {
        let api = Api::<CSIStorageCapacity>::namespaced(
            self.context.writer.client(),
            &self.settings.namespace,
        );
        let driver = &self.context.settings.driver;
        let labels = format!("{CAPACITY_DRIVER}={driver},{CAPACITY_MANAGED_BY}={MANAGER}");
        let existing = api.list(&ListParams::default().labels(&labels)).await;
        let existing = existing.map_err(|error| error.to_string())?.items;
        let (wanted, unknown) = self.spaces().await;
        let is_known = |object: &CSIStorageCapacity| {
            !unknown.contains(&(object.storage_class_name.clone(), segment_of(object)))
        };
        let existing = existing.into_iter().filter(is_known).collect();
        for write in difference(wanted, existing) {
            self.write(&api, write).await.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// The space of each class and segment, and those whose space is unknown: what is published about them stays. A
    /// class that cannot work does not hide the others from the scheduler.
    async fn spaces(&self) -> (Vec<Space>, BTreeSet<(String, Segment)>) {
        let context = &self.context;
        let driver = &context.settings.driver;
        let classes = context.cluster.classes.state_filter(|class| is_published(class, driver));
        let (mut spaces, mut unknown) = (Vec::new(), BTreeSet::new());
        let mut problems = BTreeSet::new();
        for segment in self.segments() {
            for class in &classes {
                match self.space(class, &segment).await {
                    Ok(space) => spaces.push(space),
                    Err(problem) => {
                        unknown.insert((class.name().to_owned(), segment.clone()));
                        problems.insert(problem);
                    }
                }
            }
        }
        self.log_new(problems);
        (spaces, unknown)
    }

    /// Each problem is logged when it begins.
    fn log_new(&self, problems: BTreeSet<String>) {
        let mut known = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
        for problem in problems.difference(&known) {
            tracing::warn!("{problem}");
        }
        *known = problems;
    }

    fn segments(&self) -> Vec<Segment> {
        if !self.context.settings.topology {
            return vec![Segment::new()];
        }
        let driver = &self.context.settings.driver;
        let nodes = ClusterTopology { cluster: &self.context.cluster, driver };
        let of_node = |(node, keys): (String, Vec<String>)| {
            let labels = nodes.labels(&node)?;
            keys.into_iter().map(|key| Some((key.clone(), labels.get(&key)?.clone()))).collect()
        };
        let mut segments: Vec<Segment> =
            nodes.nodes_with_keys().into_iter().filter_map(of_node).collect();
        segments.sort();
        segments.dedup();
        segments
    }

    async fn space(&self, class: &StorageClass, segment: &Segment) -> Result<Space, String> {
        let calls = &self.context.calls;
        let topology = Topology { segments: segment.clone().into_iter().collect() };
        let request = GetCapacityRequest {
            parameters: class.parameters.clone().unwrap_or_default().into_iter().collect(),
            accessible_topology: self.context.settings.topology.then_some(topology),
            ..GetCapacityRequest::default()
        };
        let answer = calls.send(calls.service().get_capacity(Request::new(request))).await;
        let answer = answer.map_err(|status| {
            format!(
                "the capacity of the StorageClass {} is unknown: {}",
                class.name(),
                status.message()
            )
        })?;
        Ok(Space {
            class: class.name().into(),
            segment: segment.clone(),
            available: Bytes(answer.available_capacity),
            largest: answer.maximum_volume_size.filter(|bytes| *bytes > 0).map(Bytes),
        })
    }

    async fn write(&self, api: &Api<CSIStorageCapacity>, write: Write) -> Result<(), kube::Error> {
        let writer = &self.context.writer;
        let written = match write {
            Write::Create(space) => {
                let object = self.object(space);
                writer.write(api.create(&PostParams::default(), &object)).await.map(drop)
            }
            Write::Update(object, space) => {
                let patch = json!({
                    "capacity": space.available.to_string(),
                    "maximumVolumeSize": space.largest.map(|largest| largest.to_string()),
                });
                writer.patch_with(api, &*object, Patch::Merge(patch)).await.map(drop)
            }
            Write::Delete(object) => writer.delete_with(api, &*object).await,
        };
        match written {
            // Deleted meanwhile: the next round creates it.
            Err(error) if is_not_found(&error) => Ok(()),
            other => other,
        }
    }

    fn object(&self, space: Space) -> CSIStorageCapacity {
        let driver = self.context.settings.driver.clone();
        let labels = [(CAPACITY_DRIVER, driver), (CAPACITY_MANAGED_BY, MANAGER.to_owned())];
        CSIStorageCapacity {
            metadata: ObjectMeta {
                generate_name: Some("csisc-".into()),
                namespace: Some(self.settings.namespace.clone()),
                labels: Some(labels.map(|(key, value)| (key.to_owned(), value)).into()),
                owner_references: self.settings.owner.clone().map(|owner| vec![owner]),
                ..ObjectMeta::default()
            },
            capacity: Some(space.available.quantity()),
            maximum_volume_size: space.largest.map(Bytes::quantity),
            node_topology: Some(LabelSelector {
                match_labels: (!space.segment.is_empty()).then_some(space.segment),
                ..LabelSelector::default()
            }),
            storage_class_name: space.class,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(zone: &str, gi: i64) -> Space {
        let segment = [("zone".to_owned(), zone.to_owned())].into();
        Space { class: "fast".into(), segment, available: Bytes(gi << 30), largest: None }
    }

    fn object(name: &str, zone: &str, size: &str) -> CSIStorageCapacity {
        serde_json::from_value(json!({
            "metadata": {"name": name}, "storageClassName": "fast", "capacity": size,
            "nodeTopology": {"matchLabels": {"zone": zone}},
        }))
        .unwrap()
    }

    fn summary(writes: &[Write]) -> Vec<String> {
        let one = |write: &Write| match write {
            Write::Create(space) => format!("create {}", space.segment["zone"]),
            Write::Update(object, space) => {
                format!("update {} to {}", object.name(), space.available)
            }
            Write::Delete(object) => format!("delete {}", object.name()),
        };
        writes.iter().map(one).collect()
    }

    #[test]
    fn only_differences_are_written() {
        let wanted = vec![space("a", 1), space("b", 2), space("c", 3)];
        let existing = vec![
            object("same", "a", "1Gi"),
            object("twice", "a", "1Gi"),
            object("changed", "b", "5Gi"),
            object("gone", "z", "5Gi"),
        ];
        let writes = difference(wanted, existing);
        let expected = ["delete twice", "update changed to 2Gi", "delete gone", "create c"];
        assert_eq!(summary(&writes), expected);
    }
}
