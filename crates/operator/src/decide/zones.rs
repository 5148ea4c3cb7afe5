//! Whether every node has a zone before a driver that runs is told of zones.

use std::collections::BTreeSet;

use api::finding::codes;
use catalog::{Driver, manifest::Object};
use serde_json::json;

use super::{driver::waiting, wish::Wish};
use crate::{
    facts::Facts,
    names,
    plan::{DriverPlan, Next},
    record::Record,
};

/// The tag categories a driver is to be told of.
pub(super) fn wished(facts: &Facts, driver: Driver) -> BTreeSet<String> {
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

/// The tag categories a driver by other hands is told of, as far as it is known what it is told.
pub(super) fn in_use(facts: &Facts, driver: Driver) -> Option<BTreeSet<String>> {
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

/// Lets the storage driver's pods on nodes start anew when zones change: kubelet learns where a node is
/// only when the driver is registered.
pub(super) fn mark(objects: &mut [Object], zones: &BTreeSet<String>) {
    if zones.is_empty() {
        return;
    }
    let categories = json!(zones.iter().map(String::as_str).collect::<Vec<_>>().join(","));
    for object in objects.iter_mut().filter(|object| object.kind() == "DaemonSet") {
        let metadata = &mut object.0["spec"]["template"]["metadata"];
        metadata["annotations"][names::ZONES] = categories.clone();
    }
}

/// A driver that runs is not told of zones it did not know before every node is in one: the storage
/// driver would give up each node without, with the volumes of its pods. One that is installed only
/// waits for them.
pub(super) fn are_there(
    facts: &Facts,
    wish: &Wish<'_>,
    record: &Record,
    plan: &mut DriverPlan,
) -> bool {
    let Some(before) = &record.zones else { return true };
    if record.version.is_none() || wished(facts, wish.driver).is_subset(before) {
        return true;
    }
    let title = "Find the zone of every node";
    if !facts.health.tags_are_known {
        plan.steps.push(waiting(title, Some("the vCenters are asked for their tags".into())));
        plan.next = Next::Wait;
        return false;
    }
    let missing = [codes::CATEGORY_MISSING.code, codes::TAG_MISSING.code];
    let mut findings = facts.health.findings.iter();
    let Some(lacks) = findings.find(|finding| missing.contains(&finding.code.as_str())) else {
        return true;
    };
    let seen = lacks.seen.as_deref().unwrap_or(&lacks.title);
    let message = format!("{}: {seen}; until then the driver runs without", lacks.code);
    plan.steps.push(waiting(title, Some(message)));
    plan.next = Next::Blocked;
    false
}
