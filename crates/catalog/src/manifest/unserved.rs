//! Removes webhooks without a working server from published manifests.
//!
//! Some webhooks need a script (`caBundle: ${CA_BUNDLE}`) or OpenShift, which injects a CA where an annotation
//! requests it. Applied as published, the API server cannot call them, and with `failurePolicy: Fail` it
//! refuses every StorageClass or volume they cover. So VDO removes such a webhook with the Service, the
//! workload and the configuration that only it uses. The driver runs without it; releases with a template
//! have it.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::common::CSI_FEATURES;

/// The annotation that requests a CA from OpenShift.
const INJECT: &str = "/metadata/annotations/service.beta.openshift.io~1inject-cabundle";

/// Removes webhooks without a working server, and the objects that only they use.
pub(super) fn without(objects: Vec<Value>, openshift: bool) -> Vec<Value> {
    let dead = |object: &Value| is_webhook(object) && !is_answered(object, openshift);
    let services: BTreeSet<String> =
        objects.iter().filter(|object| dead(object)).flat_map(services_of).collect();
    if services.is_empty() {
        return objects;
    }
    let is_service = |object: &Value| {
        object["kind"] == "Service" && name_of(object).is_some_and(|name| services.contains(name))
    };
    let selectors: Vec<Map<String, Value>> = objects
        .iter()
        .filter(|object| is_service(object))
        .filter_map(|service| service.pointer("/spec/selector")?.as_object().cloned())
        .filter(|selector| !selector.is_empty())
        .collect();
    let is_server = |object: &Value| {
        let labels = object.pointer("/spec/template/metadata/labels").and_then(Value::as_object);
        labels.is_some_and(|labels| {
            let meets = |selector: &Map<String, Value>| {
                selector.iter().all(|(key, value)| labels.get(key) == Some(value))
            };
            selectors.iter().any(meets)
        })
    };
    let (servers, others): (Vec<&Value>, Vec<&Value>) =
        objects.iter().partition(|object| is_server(object));
    let mut only: BTreeSet<(&str, String)> = servers.into_iter().flat_map(mounts_of).collect();
    for mount in others.into_iter().flat_map(mounts_of) {
        only.remove(&mount);
    }
    let is_its_own = |object: &Value| {
        let (Some(kind), Some(name)) = (object["kind"].as_str(), name_of(object)) else {
            return false;
        };
        name != CSI_FEATURES && only.iter().any(|(k, n)| *k == kind && n == name)
    };
    let goes = |object: &Value| {
        dead(object) || is_service(object) || is_server(object) || is_its_own(object)
    };
    objects.iter().filter(|object| !goes(object)).cloned().collect()
}

fn name_of(object: &Value) -> Option<&str> {
    object.pointer("/metadata/name").and_then(Value::as_str)
}

fn is_webhook(object: &Value) -> bool {
    let kind = object["kind"].as_str();
    matches!(kind, Some("ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration"))
}

/// True if every webhook of the object has a CA that the API server can verify.
fn is_answered(object: &Value, openshift: bool) -> bool {
    let injected = openshift && object.pointer(INJECT).is_some_and(|asked| asked == "true");
    let whole = |webhook: &Value| {
        let authority = webhook.pointer("/clientConfig/caBundle").and_then(Value::as_str);
        authority.is_some_and(|authority| !authority.is_empty() && !authority.starts_with("${"))
    };
    injected || object["webhooks"].as_array().into_iter().flatten().all(whole)
}

fn services_of(object: &Value) -> Vec<String> {
    let webhooks = object["webhooks"].as_array().into_iter().flatten();
    let service = |webhook: &Value| {
        webhook.pointer("/clientConfig/service/name")?.as_str().map(str::to_owned)
    };
    webhooks.filter_map(service).collect()
}

/// The ConfigMaps and Secrets that a workload mounts.
fn mounts_of(object: &Value) -> Vec<(&'static str, String)> {
    let volumes = object.pointer("/spec/template/spec/volumes").and_then(Value::as_array);
    let mount = |volume: &Value| {
        let named = |pointer: &str| volume.pointer(pointer)?.as_str().map(str::to_owned);
        let map = named("/configMap/name").map(|name| ("ConfigMap", name));
        map.or_else(|| named("/secret/secretName").map(|name| ("Secret", name)))
    };
    volumes.into_iter().flatten().filter_map(mount).collect()
}
