//! The entries that CNS should have for the Kubernetes objects of a volume, and how they differ from those it has.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use vsphere::cns::{EntityMetadata, EntityReference, KeyValue};

use crate::loops::model::{Claim, Metadata as _, Volume};

pub const VOLUME: &str = "PERSISTENT_VOLUME";
pub const CLAIM: &str = "PERSISTENT_VOLUME_CLAIM";
pub const POD: &str = "POD";
/// The label of a pod's entry: the uid of the Kubernetes cluster. Two clusters can have the same cluster id by mistake;
/// an entry with another uid, or with none, is not removed.
pub const CLUSTER_UID: &str = "vdo.vmware.com/cluster-uid";

/// The cluster that entries belong to.
#[derive(Clone, Debug)]
pub struct Owner {
    /// The cluster id in CNS.
    pub id: String,
    /// The uid of the cluster, if it is known.
    pub uid: Option<String>,
}

/// A PersistentVolume with its claim and the running pods that use it.
pub struct Objects<'a> {
    pub volume: &'a Volume,
    pub claim: Option<&'a Claim>,
    pub pods: Vec<String>,
}

/// An entry of a volume in CNS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    kind: Box<str>,
    namespace: Box<str>,
    name: Box<str>,
    digest: u64,
    /// Whether this cluster certainly wrote it.
    pub is_ours: bool,
}

impl Entry {
    /// Reads an entry. It counts as ours if it has the uid of the cluster.
    pub fn from_entity(entity: &EntityMetadata, owner: &Owner) -> Self {
        let mut labels: Vec<(&str, &str)> =
            entity.labels.iter().map(|label| (&*label.key, &*label.value)).collect();
        labels.sort_unstable();
        let mut refers: Vec<(&str, &str)> = entity
            .refers
            .iter()
            .map(|to| (to.namespace.as_deref().unwrap_or_default(), &*to.name))
            .collect();
        refers.sort_unstable();
        let mut hasher = DefaultHasher::new();
        (&labels, &refers).hash(&mut hasher);
        let is_ours = owner.uid.as_deref().is_some_and(|uid| labels.contains(&(CLUSTER_UID, uid)));
        Self {
            kind: entity.kind.as_deref().unwrap_or_default().into(),
            namespace: entity.namespace.as_deref().unwrap_or_default().into(),
            name: entity.name.as_str().into(),
            digest: hasher.finish(),
            is_ours,
        }
    }

    fn is_same_object(&self, other: &Self) -> bool {
        self.kind == other.kind && self.namespace == other.namespace && self.name == other.name
    }

    /// The entry's removal, for CNS.
    fn removal(&self, owner: &Owner) -> EntityMetadata {
        EntityMetadata {
            name: self.name.to_string(),
            labels: Vec::new(),
            delete: Some(true),
            cluster: Some(owner.id.clone()),
            kind: Some(self.kind.to_string()),
            namespace: (!self.namespace.is_empty()).then(|| self.namespace.to_string()),
            refers: Vec::new(),
        }
    }
}

/// The entries that a volume should have.
pub fn desired(objects: &[Objects<'_>], owner: &Owner) -> Vec<EntityMetadata> {
    let mut entities = Vec::new();
    for Objects { volume, claim, pods } in objects {
        entities.push(entity(VOLUME, "", volume.name(), labels(*volume), None, owner));
        let Some(claim) = claim else { continue };
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        let to_volume = reference(VOLUME, "", volume.name(), owner);
        let of_claim = labels(*claim);
        entities.push(entity(CLAIM, namespace, claim.name(), of_claim, Some(to_volume), owner));
        for pod in pods {
            let uid = owner.uid.iter().map(|uid| label(CLUSTER_UID, uid)).collect();
            let to_claim = reference(CLAIM, namespace, claim.name(), owner);
            entities.push(entity(POD, namespace, pod, uid, Some(to_claim), owner));
        }
    }
    entities
}

fn labels(object: &impl kube::Resource) -> Vec<KeyValue> {
    object.meta().labels.iter().flatten().map(|(key, value)| label(key, value)).collect()
}

fn label(key: &str, value: &str) -> KeyValue {
    KeyValue { key: key.to_owned(), value: value.to_owned() }
}

fn entity(
    kind: &str,
    namespace: &str,
    name: &str,
    labels: Vec<KeyValue>,
    refers: Option<EntityReference>,
    owner: &Owner,
) -> EntityMetadata {
    EntityMetadata {
        name: name.to_owned(),
        labels,
        delete: None,
        cluster: Some(owner.id.clone()),
        kind: Some(kind.to_owned()),
        namespace: (!namespace.is_empty()).then(|| namespace.to_owned()),
        refers: refers.into_iter().collect(),
    }
}

fn reference(kind: &str, namespace: &str, name: &str, owner: &Owner) -> EntityReference {
    EntityReference {
        kind: kind.to_owned(),
        name: name.to_owned(),
        namespace: (!namespace.is_empty()).then(|| namespace.to_owned()),
        cluster: Some(owner.id.clone()),
    }
}

/// The entries to send to CNS, and what CNS knows afterwards.
///
/// Only entries that this cluster certainly wrote are removed. The entry of a PersistentVolume always stays: of a
/// volume that was retained, it tells an admin where the data came from.
pub fn difference(
    desired: Vec<EntityMetadata>,
    known: &[Entry],
    owner: &Owner,
) -> (Vec<EntityMetadata>, Vec<Entry>) {
    let wanted: Vec<Entry> = desired
        .iter()
        .map(|entity| Entry { is_ours: true, ..Entry::from_entity(entity, owner) })
        .collect();
    let (mut changes, mut after) = (Vec::new(), wanted.clone());
    for entry in known {
        if wanted.iter().any(|wanted| wanted.is_same_object(entry)) {
            continue;
        }
        if entry.is_ours && &*entry.kind != VOLUME {
            changes.push(entry.removal(owner));
        } else {
            after.push(entry.clone());
        }
    }
    let is_known = |wanted: &Entry| {
        known.iter().any(|entry| entry.is_same_object(wanted) && entry.digest == wanted.digest)
    };
    let added = desired.into_iter().zip(&wanted).filter(|(_, wanted)| !is_known(wanted));
    changes.extend(added.map(|(entity, _)| entity));
    (changes, after)
}

/// The entries of a volume in CNS, joined with those that this process knows to be its own.
pub fn known(in_cns: &[EntityMetadata], before: &[Entry], owner: &Owner) -> Vec<Entry> {
    let of_cluster = in_cns.iter().filter(|entity| entity.cluster.as_ref() == Some(&owner.id));
    let merged = of_cluster.map(|entity| {
        let entry = Entry::from_entity(entity, owner);
        let was_ours = before.iter().any(|known| known.is_same_object(&entry) && known.is_ours);
        Entry { is_ours: entry.is_ours || was_ours, ..entry }
    });
    merged.collect()
}

#[cfg(test)]
#[path = "entities/tests.rs"]
mod tests;
