//! Stored objects keep their meaning.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use api::text::ObjectName;
use api::vdo_config::NodeState;
use api::{CompatibilityConfig, VDOConfig, VsphereCloudConfig};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Stored {
    what: String,
    object: Value,
}

fn round_trip<T: DeserializeOwned + serde::Serialize>(object: &Value) -> Value {
    serde_json::to_value(serde_json::from_value::<T>(object.clone()).unwrap()).unwrap()
}

/// Removes values that mean "not set".
fn without_blanks(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().map(|(key, value)| (key.clone(), without_blanks(value)));
            let blank = |value: &Value| match value {
                Value::Object(map) => map.is_empty(),
                Value::Array(list) => list.is_empty(),
                _ => value == "" || value == false || value.is_null(),
            };
            Value::Object(kept.filter(|(_, value)| !blank(value)).collect())
        }
        Value::Array(list) => list.iter().map(without_blanks).collect(),
        other => other.clone(),
    }
}

#[test]
fn every_object_of_the_go_vdo_survives_a_round_trip() {
    let text = include_str!("fixtures/go-vdo-objects.yaml");
    let table: Vec<Stored> = serde_saphyr::from_str(text).unwrap();
    for Stored { what, object } in table {
        let kept = match object["kind"].as_str().unwrap() {
            "VDOConfig" => round_trip::<VDOConfig>(&object),
            "VsphereCloudConfig" => round_trip::<VsphereCloudConfig>(&object),
            _ => round_trip::<CompatibilityConfig>(&object),
        };
        let mut expected = object.clone();
        if let Some(cpi) = expected.pointer_mut("/status/cpi").and_then(Value::as_object_mut) {
            cpi.remove("nodeStatus ");
        }
        let urls = "/spec/storageProvider/fileVolumes/vsanDataStoreUrl";
        let urls = expected.pointer_mut(urls).and_then(Value::as_array_mut);
        for url in urls.into_iter().flatten() {
            *url = url.as_str().unwrap().trim().into();
        }
        assert_eq!(without_blanks(&kept), without_blanks(&expected), "{what}");
    }
}

#[test]
fn the_node_status_with_a_space_in_its_key_is_read_and_not_written() {
    let object = json!({
        "apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VDOConfig", "metadata": {"name": "x"},
        "spec": {"storageProvider": {"vsphereCloudConfig": "a"}},
        "status": {"cpi": {"phase": "Configured", "nodeStatus ": {"worker-1": "ready"}}},
    });
    let config: VDOConfig = serde_json::from_value(object).unwrap();
    let cpi = config.status.clone().unwrap().cpi.unwrap();
    assert_eq!(cpi.node_states()["worker-1"], NodeState::Ready);
    assert!(!serde_json::to_string(&config).unwrap().contains("nodeStatus"));
}

#[test]
fn datacenters_are_the_same_if_the_old_vdoctl_split_them() {
    let config: VsphereCloudConfig = serde_json::from_value(json!({
        "apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VsphereCloudConfig", "metadata": {"name": "x"},
        "spec": {"vcIp": "vc", "insecure": false, "credentials": "c", "datacenters": ["dc0,", " dc1"]},
    }))
    .unwrap();
    assert_eq!(config.spec.datacenter_names(), ["dc0", "dc1"]);
}

#[test]
fn datastores_are_the_same_with_the_spaces_of_the_old_vdoctl() {
    let config: VDOConfig = serde_json::from_value(json!({
        "apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VDOConfig", "metadata": {"name": "x"},
        "spec": {"storageProvider": {"vsphereCloudConfig": "a",
            "fileVolumes": {"vsanDataStoreUrl": ["ds:///a/", " ds:///b/"]}}},
    }))
    .unwrap();
    let files = config.spec.storage_provider.unwrap().file_volumes.unwrap();
    let urls: Vec<&str> = files.vsan_data_store_url.iter().map(|url| &**url).collect();
    assert_eq!(urls, ["ds:///a/", "ds:///b/"]);
}

/// A later release can add a field, and this one has dropped `networkProvider`.
#[test]
fn unknown_fields_are_ignored() {
    let config: VDOConfig = serde_json::from_value(json!({
        "apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VDOConfig", "metadata": {"name": "x"},
        "spec": {"storageProvider": {"vsphereCloudConfig": "a", "teleport": true}, "hologram": {},
            "networkProvider": {"plugin": "Antrea", "mode": "Observe"}},
        "status": {"csi": {"mood": "good"}},
    }))
    .unwrap();
    assert_eq!(config.spec.storage_provider.unwrap().vcenters(), [&ObjectName::from("a")]);
}
