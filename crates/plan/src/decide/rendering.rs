//! The same release, rendered differently by a newer VDO or from a newer catalog.
//!
//! Nobody asked for such a change. So it waits for the maintenance window or, without a window, for the next
//! requested change: an upgrade of VDO leaves the drivers untouched. Until then, every object that would
//! change stays as it is. VDO still repairs all other objects, and writes Secrets, because credentials do not
//! wait.

use api::VDOConfigSpec;
use catalog::{
    Driver,
    manifest::{Object, Profile, profile::MOST_CONTROLLERS},
};
use serde_json::{Value, json};

use super::{
    Notes,
    configuration::{RenderedDriver, digest},
    desired::DesiredDriver,
    overrides, profile, proxy, release,
};
use crate::{
    facts::Facts,
    names,
    object_id::ObjectId,
    record::{Build, Origin, Record},
};

/// The origin of a configuration.
pub(super) fn origin(facts: &Facts, desired: &DesiredDriver<'_>, settings: String) -> Origin {
    let VDOConfigSpec { cloud_provider, storage_provider, images, .. } = &facts.config.spec;
    let mut section = match desired.driver {
        Driver::Cpi => json!(cloud_provider),
        Driver::Csi => json!(storage_provider),
    };
    // The choice of the release happens elsewhere.
    if let Some(fields) = section.as_object_mut() {
        fields.remove("version");
        if let Some(overrides) = overrides::for_driver(&facts.config.spec, desired.driver) {
            fields.insert("overrides".into(), overrides);
        }
        if let Some(proxy) = proxy::of_cluster(facts) {
            fields.insert("clusterProxy".into(), proxy);
        }
    }
    let topology = facts.config.spec.topology_categories();
    // New nodes get what they need although no spec asks for them. Their number counts only up to
    // `MOST_CONTROLLERS`, because further nodes get no further controllers.
    let Profile { windows_nodes, kubelet_path, placement, .. } = profile::from_facts(facts);
    let taints = placement.taints.iter().map(|taint| json!([taint.key, taint.effect]));
    let taints: Vec<Value> = taints.collect();
    let room = placement.nodes.min(MOST_CONTROLLERS);
    let nodes = json!([windows_nodes, kubelet_path, room, placement.labels, taints]);
    Origin {
        build: format!("{}, catalog {}", facts.build, facts.catalog.serial),
        desired: digest(&json!([section, topology, images, nodes])),
        settings,
    }
}

/// The reason why a new rendering waits; none if there is no new rendering, or if it need not wait.
pub(super) fn hold(
    facts: &Facts,
    record: &Record,
    target: &Build,
    configuration: &RenderedDriver,
    notes: &mut Notes,
) -> Option<String> {
    let (now, before) = (&configuration.origin, record.origin.as_ref()?);
    let same = record.running().as_ref() == Some(target)
        && (&now.desired, &now.settings) == (&before.desired, &before.settings);
    let changed = record.configuration.as_deref() != Some(configuration.digest.as_str());
    if !record.healthy || !same || !changed || now.build == before.build {
        return None;
    }
    let windowed = facts.config.spec.upgrades.as_ref().is_some_and(|all| all.window.is_some());
    let why = if windowed {
        release::window(facts, notes)?
    } else {
        "that comes with the driver's next release or change, or in a maintenance window \
         (spec.upgrades.window)"
            .to_owned()
    };
    Some(format!("this VDO renders {} otherwise: {why}", target.version))
}

/// Whether an object stays as it is while a new rendering waits.
pub(super) fn is_left(facts: &Facts, record: &Record, object: &Object) -> bool {
    let id = ObjectId::from_object(object);
    let digest = object.0["metadata"]["annotations"][names::DIGEST].as_str();
    match facts.objects.get(&id) {
        _ if object.kind() == "Secret" => false,
        Some(seen) => seen.digest.as_deref() != digest,
        None => !record.objects.contains(&id),
    }
}
