//! Records each repair, its time, and the state before it, in a ConfigMap in the operator's namespace.

use std::collections::BTreeMap;

use health::repair::{Proposal, Repair};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use plan::names;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use snafu::ResultExt;

use super::{Error, KeepSnafu, RepairClients};

/// Limit of the stored records, in bytes; a ConfigMap holds a little more. VDO drops the oldest records
/// beyond this limit.
const MOST_BYTES: usize = 800 * 1024;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordedRepair {
    /// The time when VDO last made the repair.
    pub at: Timestamp,
    pub repair: Repair,
    /// The state before the repair, if the repair itself does not contain it.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub before: Value,
    /// The time of the rollback, if VDO rolled it back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undone: Option<Timestamp>,
}

pub struct History {
    maps: Option<Api<ConfigMap>>,
}

impl History {
    /// The history in the namespace of these clients.
    pub fn new(clients: &RepairClients) -> Self {
        let namespace = clients.namespace.as_deref();
        Self { maps: namespace.map(|namespace| Self::maps(&clients.cluster, namespace)) }
    }

    pub fn in_namespace(client: &Client, namespace: &str) -> Self {
        Self { maps: Some(Self::maps(client, namespace)) }
    }

    fn maps(client: &Client, namespace: &str) -> Api<ConfigMap> {
        Api::namespaced(client.clone(), namespace)
    }

    /// All records, by id. Leaves out records that it cannot parse.
    ///
    /// # Errors
    /// Fails if the API server is unreachable or denies access.
    pub async fn read(&self) -> Result<BTreeMap<String, RecordedRepair>, kube::Error> {
        let Some(maps) = &self.maps else { return Ok(BTreeMap::new()) };
        let data = maps.get_opt(names::REPAIRS).await?.and_then(|map| map.data).unwrap_or_default();
        let read = data.into_iter();
        let read = read.filter_map(|(id, text)| Some((id, serde_json::from_str(&text).ok()?)));
        Ok(read.collect())
    }

    /// The record of this repair, if VDO has made it before and not rolled it back.
    pub(super) async fn earlier(&self, id: &str) -> Result<Option<RecordedRepair>, Error> {
        let entry = self.read().await.context(KeepSnafu)?.remove(id);
        Ok(entry.filter(|entry| entry.undone.is_none()))
    }

    /// Records that VDO is about to make a repair, next to the parts that VDO made earlier.
    pub(super) async fn keep(
        &self,
        proposal: &Proposal,
        before: Value,
        earlier: Option<&RecordedRepair>,
    ) -> Result<(), Error> {
        let mut repair = proposal.repair.clone();
        if let Some(earlier) = earlier {
            add_parts(&mut repair, &earlier.repair);
        }
        let entry = RecordedRepair { at: Timestamp::now(), repair, before, undone: None };
        self.write(&proposal.id(), &entry).await
    }

    /// Records that VDO rolled back a repair.
    pub(super) async fn undone(&self, id: &str, entry: RecordedRepair) -> Result<(), Error> {
        self.write(id, &RecordedRepair { undone: Some(Timestamp::now()), ..entry }).await
    }

    /// Removes the record of a repair that failed, except for the parts that VDO made earlier.
    pub(super) async fn forget(
        &self,
        proposal: &Proposal,
        earlier: Option<RecordedRepair>,
    ) -> Result<(), Error> {
        let id = proposal.id();
        if let Some(mut entry) = earlier
            && retain_other_parts(&mut entry.repair, &proposal.repair)
        {
            return self.write(&id, &entry).await;
        }
        let Some(maps) = &self.maps else { return Ok(()) };
        let change = Patch::Merge(json!({"data": {id: null}}));
        maps.patch(names::REPAIRS, &Self::parameters(), &change).await.map(drop).context(KeepSnafu)
    }

    fn parameters() -> PatchParams {
        PatchParams { field_manager: Some(names::FIELD_MANAGER.into()), ..PatchParams::default() }
    }

    async fn write(&self, id: &str, entry: &RecordedRepair) -> Result<(), Error> {
        let Some(maps) = &self.maps else { return Ok(()) };
        let kept = self.read().await.context(KeepSnafu)?;
        let text = |entry: &RecordedRepair| {
            serde_json::to_string(entry).map_err(kube::Error::SerdeError).context(KeepSnafu)
        };
        let mut data = BTreeMap::from([(id.to_owned(), Value::String(text(entry)?))]);
        let mut room = MOST_BYTES;
        let mut newest: Vec<(&String, &RecordedRepair)> = kept.iter().collect();
        newest.sort_by_key(|(_, entry)| std::cmp::Reverse(entry.at));
        for (id, entry) in newest {
            room = room.saturating_sub(id.len() + text(entry)?.len() + 16);
            if room == 0 {
                data.entry(id.clone()).or_insert(Value::Null);
            }
        }
        let change = Patch::Merge(json!({"data": data}));
        match maps.patch(names::REPAIRS, &Self::parameters(), &change).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {
                let body = json!({
                    "apiVersion": "v1", "kind": "ConfigMap",
                    "metadata": {"name": names::REPAIRS}, "data": data,
                });
                let parameters = PatchParams::apply(names::FIELD_MANAGER).force();
                maps.patch(names::REPAIRS, &parameters, &Patch::Apply(body)).await
            }
            other => other,
        }
        .map(drop)
        .context(KeepSnafu)
    }
}

/// Adds the parts of an earlier repair of the same object.
fn add_parts(repair: &mut Repair, earlier: &Repair) {
    fn add<T: Clone>(parts: &mut BTreeMap<String, T>, earlier: &BTreeMap<String, T>) {
        let newer = std::mem::replace(parts, earlier.clone());
        parts.extend(newer);
    }
    match (repair, earlier) {
        (Repair::ReplaceImages { images, .. }, Repair::ReplaceImages { images: earlier, .. }) => {
            add(images, earlier);
        }
        (Repair::SetFeatures { features, .. }, Repair::SetFeatures { features: earlier, .. }) => {
            add(features, earlier);
        }
        _ => {}
    }
}

/// Removes the parts of a failed repair from an earlier one: they were still to be made. Returns whether parts are left.
fn retain_other_parts(earlier: &mut Repair, failed: &Repair) -> bool {
    match (earlier, failed) {
        (Repair::ReplaceImages { images, .. }, Repair::ReplaceImages { images: failed, .. }) => {
            images.retain(|container, image| failed.get(container) != Some(image));
            !images.is_empty()
        }
        (Repair::SetFeatures { features, .. }, Repair::SetFeatures { features: failed, .. }) => {
            features.retain(|name, value| failed.get(name) != Some(value));
            !features.is_empty()
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use health::repair::Moved;

    use super::*;

    #[test]
    fn a_partial_replacement_keeps_the_record_of_the_earlier_one() {
        let moved = |from: &str, to: &str| Moved { from: from.into(), to: to.into() };
        let images = |images: &[(&str, Moved)]| Repair::ReplaceImages {
            namespace: "drivers".into(),
            workload: "deployment/controller".into(),
            images: images
                .iter()
                .map(|(name, image)| ((*name).to_owned(), image.clone()))
                .collect(),
        };
        let earlier = images(&[("first", moved("a", "b")), ("second", moved("a", "b"))]);
        let new = images(&[("second", moved("b", "c"))]);
        let mut merged = new.clone();
        add_parts(&mut merged, &earlier);
        assert_eq!(merged, images(&[("first", moved("a", "b")), ("second", moved("b", "c"))]));
        let mut left = earlier.clone();
        assert!(retain_other_parts(&mut left, &new));
        assert_eq!(left, earlier);
        assert!(!retain_other_parts(&mut left, &earlier));
    }
}
