//! Remediates the workloads of drivers that are not managed by VDO.

use std::collections::BTreeMap;

use health::repair::Moved;
use kube::{Client, ResourceExt, api::DynamicObject};
use plan::{ObjectId, names};
use serde_json::{Value, json};
use snafu::OptionExt;

use super::{ChangedSnafu, Error, OursSnafu, patch};
use crate::act;

/// Changes the image references of containers of a workload, in one patch. It skips a container whose image
/// differs from the observed one. It refuses a workload that VDO manages, because VDO would restore the image
/// of the release.
pub(super) async fn replace(
    client: &Client,
    namespace: &str,
    workload: &str,
    images: &BTreeMap<String, Moved>,
) -> Result<(), Error> {
    let what = || ChangedSnafu { object: workload, what: "nobody knows what it is" };
    let (kind, name) = workload.split_once('/').with_context(what)?;
    let kind = match kind {
        "deployment" => "Deployment",
        "daemonset" => "DaemonSet",
        _ => return what().fail(),
    };
    let id = ObjectId {
        api_version: "apps/v1".into(),
        kind: kind.into(),
        namespace: namespace.into(),
        name: name.into(),
    };
    let api = act::api_of(client, &id).ok().with_context(what)?;
    patch::change(&api, name, |object: &DynamicObject| {
        if object.labels().get(names::MANAGED_BY_LABEL).is_some_and(|by| by == names::MANAGED_BY) {
            return OursSnafu { object: workload }.fail();
        }
        Ok(replacements(&object.data, images))
    })
    .await
}

fn replacements(object: &Value, images: &BTreeMap<String, Moved>) -> Vec<Value> {
    let path = "/spec/template/spec/containers";
    let containers = object.pointer(path).and_then(Value::as_array);
    let containers = containers.into_iter().flatten().enumerate();
    let moved = containers.filter_map(|(at, container)| {
        let image = images.get(container["name"].as_str()?)?;
        (container["image"] == image.from.as_str()).then(
            || json!({"op": "replace", "path": format!("{path}/{at}/image"), "value": image.to}),
        )
    });
    moved.collect()
}
