//! The names of an adopted driver: it keeps its names, its namespace and its pod selectors from release to
//! release.

use catalog::{
    Driver,
    manifest::{Object, Profile},
};
use serde_json::{Value, json};

use crate::{
    names,
    record::{Named, Names},
};

/// Sets the namespace of the driver and the object from which it reads its configuration.
pub(super) fn settle(profile: &mut Profile, driver: Driver, kept: &Names) {
    let (namespace, settings) = match driver {
        Driver::Cpi => (&mut profile.cpi.namespace, &mut profile.cpi.config_map),
        Driver::Csi => (&mut profile.csi.namespace, &mut profile.csi.config_secret),
    };
    kept.namespace.clone_into(namespace);
    if let Some(kept) = &kept.settings {
        kept.clone_into(settings);
    }
}

/// The objects of a release under the kept names.
pub(super) fn rename(mut objects: Vec<Object>, kept: &Names) -> Vec<Object> {
    // VDO must not set labels on namespaces of other owners.
    objects.retain(|object| object.kind() != "Namespace" || object.name() == names::CSI_NAMESPACE);
    for (rendered, named) in &kept.workloads {
        let is_it = |object: &&mut Object| is_workload(object) && object.name() == rendered;
        let Some(object) = objects.iter_mut().find(is_it) else { continue };
        let before = object.0["spec"]["selector"]["matchLabels"].clone();
        let labels = &mut object.0["spec"]["template"]["metadata"]["labels"];
        for (key, value) in &named.selector {
            labels[key] = json!(value);
        }
        object.0["metadata"]["name"] = json!(named.name);
        for object in &mut objects {
            replace(&mut object.0, &before, named);
        }
    }
    objects
}

fn is_workload(object: &Object) -> bool {
    matches!(object.kind(), "Deployment" | "DaemonSet")
}

/// Replaces the release's labels with the kept ones in everything that selects the pods: the workload itself,
/// its affinity, its PodDisruptionBudget and its Service.
fn replace(value: &mut Value, before: &Value, named: &Named) {
    match value {
        Value::Object(fields) => {
            for (key, field) in fields {
                if matches!(key.as_str(), "matchLabels" | "selector") && field == before {
                    *field = json!(named.selector);
                } else {
                    replace(field, before, named);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| replace(item, before, named)),
        _ => {}
    }
}
