//! Remediates the workloads of drivers that are not managed by VDO.

use std::collections::BTreeMap;

use health::repair::Moved;
use kube::{Api, Client, ResourceExt, api::DynamicObject};
use plan::{ObjectId, names};
use serde_json::{Value, json};
use snafu::{OptionExt, ResultExt};

use super::{ChangedSnafu, Error, KubernetesSnafu, OursSnafu, patch};
use crate::act;

/// Those of these images that the containers of a workload still have as observed. It refuses a workload that VDO
/// manages, because VDO would restore the image of the release.
pub(super) async fn replaceable(
    client: &Client,
    namespace: &str,
    workload: &str,
    images: &BTreeMap<String, Moved>,
) -> Result<BTreeMap<String, Moved>, Error> {
    let (api, name) = find(client, namespace, workload)?;
    let object = api.get(name).await.context(KubernetesSnafu)?;
    refuse_ours(&object, workload)?;
    let mut images = images.clone();
    images.retain(|container, image| {
        containers(&object.data)
            .any(|(_, name, seen)| name == container && *seen == image.from.as_str())
    });
    Ok(images)
}

/// Changes the image references of containers of a workload, in one patch. Fails if one of them differs from the
/// observed one, or if VDO manages the workload.
pub(super) async fn replace(
    client: &Client,
    namespace: &str,
    workload: &str,
    images: &BTreeMap<String, Moved>,
) -> Result<(), Error> {
    let (api, name) = find(client, namespace, workload)?;
    patch::change(&api, name, |object| {
        refuse_ours(object, workload)?;
        let replacements = replacements(object, images);
        if replacements.len() < images.len() {
            let what = "somebody else changed an image";
            return ChangedSnafu { object: workload, what }.fail();
        }
        Ok(replacements)
    })
    .await
}

/// The same for an undo. It skips a container whose image differs from the one that VDO wrote.
pub(super) async fn restore(
    client: &Client,
    namespace: &str,
    workload: &str,
    images: &BTreeMap<String, Moved>,
) -> Result<(), Error> {
    let (api, name) = find(client, namespace, workload)?;
    patch::change(&api, name, |object| {
        refuse_ours(object, workload)?;
        Ok(replacements(object, images))
    })
    .await
}

/// The workload that a repair names, as `deployment/vsphere-csi-controller`.
fn find<'a>(
    client: &Client,
    namespace: &str,
    workload: &'a str,
) -> Result<(Api<DynamicObject>, &'a str), Error> {
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
    Ok((act::api_of(client, &id).ok().with_context(what)?, name))
}

fn refuse_ours(object: &DynamicObject, workload: &str) -> Result<(), Error> {
    if object.labels().get(names::MANAGED_BY_LABEL).is_some_and(|by| by == names::MANAGED_BY) {
        return OursSnafu { object: workload }.fail();
    }
    Ok(())
}

const CONTAINERS: &str = "/spec/template/spec/containers";

/// The containers of a workload: position, name and image.
fn containers(object: &Value) -> impl Iterator<Item = (usize, &str, &Value)> {
    let containers = object.pointer(CONTAINERS).and_then(Value::as_array);
    let containers = containers.into_iter().flatten().enumerate();
    containers
        .filter_map(|(at, container)| Some((at, container["name"].as_str()?, &container["image"])))
}

fn replacements(object: &DynamicObject, images: &BTreeMap<String, Moved>) -> Vec<Value> {
    let moved = containers(&object.data).filter_map(|(at, name, seen)| {
        let image = images.get(name)?;
        (*seen == image.from.as_str()).then(|| {
            json!({"op": "replace", "path": format!("{CONTAINERS}/{at}/image"), "value": image.to})
        })
    });
    moved.collect()
}
