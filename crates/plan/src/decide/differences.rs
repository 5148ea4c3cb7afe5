//! The changes that the adoption of a driver would cause, as text.

use std::collections::{BTreeMap, BTreeSet};

use catalog::{Driver, manifest::Object};
use driver_config::{SecretText, WriteError, cpi::CpiConfig, csi::CsiConfig};
use k8s_openapi::api::core::v1::Secret;
use serde_json::Value;

use super::{configuration::RenderedDriver, desired::DesiredDriver};
use crate::{
    facts::{DriverWorkload, Facts},
    object_id::ObjectId,
};

/// One line for each change; empty if adoption would change nothing. VDO neither compares nor shows
/// passwords.
pub(super) fn list(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    configuration: &RenderedDriver,
    theirs: &[(&ObjectId, &DriverWorkload)],
) -> Vec<String> {
    let mut changes = Vec::new();
    for (id, workload) in theirs {
        if let Some(release) = &workload.origin.helm {
            changes.push(format!("{id} leaves the Helm release {release}"));
        }
    }
    let texts = match desired.driver {
        Driver::Cpi => cpi(facts, configuration),
        Driver::Csi => csi(facts, configuration),
    };
    if let Some((before, after)) = texts {
        lines(&before, &after, &mut changes);
    }
    for key in unknown(facts, desired.driver) {
        changes.push(format!("{key}: goes, no release is known to read it"));
    }
    for (id, workload) in theirs {
        let own = configuration.objects.iter().find(|object| ObjectId::from_object(object) == **id);
        if let Some(own) = own {
            containers(id, workload, own, &mut changes);
        }
    }
    changes
}

/// Settings keys that VDO does not understand, and therefore does not write again.
fn unknown(facts: &Facts, driver: Driver) -> &[String] {
    match driver {
        Driver::Cpi => match &facts.in_use.cpi {
            Some(Ok(running)) => &running.unknown,
            _ => &[],
        },
        Driver::Csi => match &facts.in_use.csi {
            Some(Ok(running)) => &running.unknown,
            _ => &[],
        },
    }
}

/// The variables of a proxy. They change the way to vCenter, so an admin wants to know about them.
const PROXY_VARIABLES: [&str; 2] = ["HTTP_PROXY", "HTTPS_PROXY"];

/// Compares images and arguments, and names the variables of a proxy. Their values can contain a password.
fn containers(id: &ObjectId, before: &DriverWorkload, own: &Object, changes: &mut Vec<String>) {
    let empty = Vec::new();
    let after = own.0.pointer("/spec/template/spec/containers").and_then(Value::as_array);
    let after: BTreeMap<&str, &Value> = after
        .unwrap_or(&empty)
        .iter()
        .filter_map(|container| Some((container["name"].as_str()?, container)))
        .collect();
    for (name, (image, arguments)) in &before.origin.containers {
        let Some(container) = after.get(name.as_str()) else {
            changes.push(format!("{id}: the container {name} goes"));
            continue;
        };
        let mut what = Vec::new();
        let image_after = without_digest(container["image"].as_str().unwrap_or_default());
        if without_digest(image) != image_after {
            what.push(format!("runs {image_after} instead of {image}"));
        }
        let listed = container["args"].as_array().unwrap_or(&empty);
        let listed: BTreeSet<&str> = listed.iter().filter_map(Value::as_str).collect();
        let was: BTreeSet<&str> = arguments.iter().map(String::as_str).collect();
        what.extend(was.difference(&listed).map(|gone| format!("loses {gone}")));
        what.extend(listed.difference(&was).map(|new| format!("gets {new}")));
        let variables = container["env"].as_array().unwrap_or(&empty).iter();
        let names = variables.filter_map(|variable| variable["name"].as_str());
        let of_proxy = names.filter(|name| PROXY_VARIABLES.contains(name));
        what.extend(of_proxy.map(|name| format!("uses the proxy in {name}")));
        if !what.is_empty() {
            changes.push(format!("{id}: {name} {}", what.join(", ")));
        }
    }
    for name in after.keys().filter(|name| !before.origin.containers.contains_key(**name)) {
        changes.push(format!("{id}: the container {name} comes"));
    }
}

/// Two references to one image, with and without its digest, count as equal.
fn without_digest(image: &str) -> &str {
    image.split('@').next().unwrap_or(image)
}

type Texts = Option<(SecretText, SecretText)>;

fn cpi(facts: &Facts, configuration: &RenderedDriver) -> Texts {
    let before = &facts.in_use.cpi.as_ref()?.as_ref().ok()?.config;
    let after = configuration.objects.iter().find_map(|object| {
        let text = object.0["data"]["vsphere.conf"].as_str()?;
        (object.kind() == "ConfigMap").then(|| CpiConfig::read(text).ok())?
    })?;
    both(before.to_ini(), after.config.to_ini())
}

fn csi(facts: &Facts, configuration: &RenderedDriver) -> Texts {
    let before = &facts.in_use.csi.as_ref()?.as_ref().ok()?.config;
    let after = configuration.objects.iter().find_map(|object| {
        if object.kind() != "Secret" {
            return None;
        }
        let secret: Secret = serde_json::from_value(object.0.clone()).ok()?;
        let text =
            SecretText::from(String::from_utf8(secret.data?.remove("csi-vsphere.conf")?.0).ok()?);
        CsiConfig::read(text.expose()).ok()
    })?;
    let mut after = after.config;
    for vcenter in after.vcenters.values_mut() {
        vcenter.password = String::new().into();
    }
    both(before.render(), after.render())
}

fn both(before: Result<SecretText, WriteError>, after: Result<SecretText, WriteError>) -> Texts {
    Some((before.ok()?, after.ok()?))
}

/// Compares the keys of two files, each with its section.
fn lines(before: &SecretText, after: &SecretText, changes: &mut Vec<String>) {
    let (before, after) = (keys(before.expose()), keys(after.expose()));
    let all: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    for key in all.into_iter().filter(|key| !redaction::is_secret_name(key.1)) {
        let what = format!("{} {}", key.0, key.1);
        match (before.get(key), after.get(key)) {
            (Some(was), Some(is)) if was != is => {
                changes.push(format!("{what}: {is} instead of {was}"));
            }
            (Some(was), None) => changes.push(format!("{what}: {was} goes")),
            (None, Some(is)) => changes.push(format!("{what}: {is} comes")),
            _ => {}
        }
    }
}

fn keys(text: &str) -> BTreeMap<(&str, &str), &str> {
    let mut section = "";
    let mut all = BTreeMap::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
        } else if let Some((key, value)) = line.split_once('=') {
            all.insert((section, key.trim()), value.trim());
        }
    }
    all
}
