//! Every node must have a zone before a running driver is configured with zones.

use std::sync::Arc;

use api::{finding::codes, text::TagCategory, vdo_config::Topology};
use catalog::{Driver, manifest::Object};
use serde_json::json;

use super::steps::waiting;
use crate::{facts::Facts, names, plan::PlannedStep, record::Record};

/// The desired tag categories of a driver, the widest first.
pub(super) fn desired(facts: &Facts, driver: Driver) -> Vec<String> {
    let spec = &facts.config.spec;
    match driver {
        Driver::Cpi => {
            let topology = spec.cloud_provider.as_ref().and_then(|cloud| cloud.topology.as_ref());
            let topology = topology.filter(|topology| topology.is_set()).into_iter();
            topology.flat_map(|set| [&*set.region, &*set.zone]).map(str::to_owned).collect()
        }
        Driver::Csi => spec.topology_categories().into_iter().map(str::to_owned).collect(),
    }
}

/// The tag categories of a driver that is not managed by VDO; none if VDO does not know its configuration.
pub(super) fn in_use(facts: &Facts, driver: Driver) -> Option<Vec<String>> {
    let names: Vec<&String> = match driver {
        Driver::Cpi => {
            let labels = &facts.in_use.cpi.as_ref()?.as_ref().ok()?.config.labels;
            vec![&labels.region, &labels.zone]
        }
        Driver::Csi => {
            let labels = &facts.in_use.csi.as_ref()?.as_ref().ok()?.config.labels;
            labels.topology_categories.iter().chain([&labels.region, &labels.zone]).collect()
        }
    };
    Some(names.into_iter().filter(|name| !name.is_empty()).cloned().collect())
}

/// Restarts the storage driver's node pods when zones change: the kubelet learns the zone of a node only when
/// the driver registers.
pub(super) fn mark(objects: &mut [Object], zones: &[String]) {
    if zones.is_empty() {
        return;
    }
    let categories = json!(zones.join(","));
    for object in objects.iter_mut().filter(|object| object.kind() == "DaemonSet") {
        let metadata = &mut object.0["spec"]["template"]["metadata"];
        metadata["annotations"][names::ZONES] = categories.clone();
    }
}

/// The desired state, but with the current zones of the driver.
pub(super) struct Held {
    pub(super) facts: Facts,
    pub(super) step: PlannedStep,
    /// Whether the change waits for a person, and not only for an answer.
    pub(super) blocked: bool,
}

/// VDO configures a running driver with new zones only after every node is in one. Otherwise the storage
/// driver would give up each node without a zone, together with the volumes of its pods. Until then the
/// driver keeps its zones, and gets all other changes. A new installation gets the zones at once, and its
/// nodes only wait for them.
pub(super) fn held(facts: &Facts, driver: Driver, record: &Record) -> Option<Held> {
    let before = record.zones.as_ref().filter(|_| record.version.is_some())?;
    if desired(facts, driver).iter().all(|zone| before.contains(zone)) {
        return None;
    }
    let title = "Find the zone of every node";
    let with = |message: String, blocked| Held {
        facts: as_before(facts, driver, before, record),
        step: waiting(title, Some(message)),
        blocked,
    };
    if !facts.health.tags_are_known {
        return Some(with("the vCenters are asked for their tags".into(), false));
    }
    if let Some(node) = facts.health.unplaced.first() {
        let more = match facts.health.unplaced.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let why = format!(
            "{}: the account cannot see the host of {node}{more}, and so not their zone; until then the \
             driver runs without",
            codes::PRIVILEGE_READ.code,
        );
        return Some(with(why, true));
    }
    let missing = [codes::CATEGORY_MISSING.code, codes::TAG_MISSING.code];
    let mut findings = facts.health.findings.iter().filter(|f| f.acknowledged.is_none());
    let lacks = findings.find(|finding| missing.contains(&finding.code.as_str()))?;
    let seen = lacks.seen.as_deref().unwrap_or(&lacks.title);
    Some(with(format!("{}: {seen}; until then the driver runs without", lacks.code), true))
}

/// The same facts, but with these zones in the spec of a driver.
fn as_before(facts: &Facts, driver: Driver, zones: &[String], record: &Record) -> Facts {
    let mut facts = facts.clone();
    let spec = &mut Arc::make_mut(&mut facts.config).spec;
    let category = |name: &String| TagCategory(name.clone());
    match (driver, spec.cloud_provider.as_mut(), spec.storage_provider.as_mut()) {
        (Driver::Cpi, Some(cloud), _) => {
            cloud.topology = match zones {
                [region, zone] => Some(Topology { region: region.clone(), zone: zone.clone() }),
                _ => None,
            };
        }
        (Driver::Csi, cloud, Some(storage)) => {
            storage.topology_categories = zones.iter().map(category).collect();
            // The zones in a StorageClass cannot change later, so new classes wait together with the zones.
            let is_there = |name: &str| {
                record.objects.iter().any(|id| id.kind == "StorageClass" && id.name == name)
            };
            storage.storage_classes.retain(|class| is_there(&class.name));
            // Without zones of its own, storage uses the zones of the cloud provider.
            if let Some(cloud) = cloud.filter(|_| zones.is_empty()) {
                cloud.topology = None;
            }
        }
        _ => {}
    }
    facts
}
