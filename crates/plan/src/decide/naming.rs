//! A release under the names of a driver that was adopted: what runs keeps its names, its namespace
//! and the labels it knows its pods by, from release to release.

use catalog::{
    Driver,
    manifest::{Object, Profile},
};
use serde_json::{Value, json};

use crate::{
    names,
    record::{Named, Names},
};

/// Where the driver lives and what it reads.
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

/// The objects of a release under the names that are kept.
pub(super) fn rename(mut objects: Vec<Object>, kept: &Names) -> Vec<Object> {
    // The labels of others' namespaces are not ours to set.
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

/// Whatever selected the pods by the release's labels selects them by those that are kept: the
/// workload itself, its affinity, its disruption budget, its Service.
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
