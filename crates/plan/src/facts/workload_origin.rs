//! The origin and the pod template of a workload, as far as adoption and the checks need them.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::core::v1::{PodSpec, PodTemplateSpec},
    apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry, ObjectMeta},
};
use serde_json::{Value, json};

use crate::names;

/// The origin and the pod template of a workload, as far as adoption and the checks need them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkloadOrigin {
    /// The Secret or ConfigMap from which the driver reads its configuration.
    pub settings: Option<String>,
    /// The image and the arguments of each container, by container name.
    pub containers: BTreeMap<String, (String, Vec<String>)>,
    /// The service account of its pods.
    pub account: String,
    /// The kubelet's directory, if its pods mount the plugin registration directory below it.
    pub kubelet_path: Option<String>,
    /// Whether it runs on Windows nodes.
    pub windows: bool,
    /// The field managers that wrote its spec, without Kubernetes and VDO.
    pub field_managers: BTreeSet<String>,
    /// Fields of the pods that another manager added to a workload that VDO applies: the manager and the path below
    /// the pod's spec. An apply does not remove them.
    pub added_fields: BTreeSet<(String, String)>,
    /// The Helm release that it belongs to.
    pub helm: Option<String>,
    /// The time of the logins that its pods use; see [`crate::names::CREDENTIALS_CHANGED`].
    pub credentials_changed: Option<String>,
}

/// The mount path of the configuration in the drivers' pods.
const CONFIG_FOLDER: &str = "/etc/cloud";
/// The Kubernetes components that write into objects of other owners.
const KUBERNETES: [&str; 2] = ["kube-controller-manager", "kube-scheduler"];

impl WorkloadOrigin {
    /// Reduces the managed fields to the managers that wrote the spec, and the fields of its pods that VDO does not own.
    pub fn spec_managers(metadata: &ObjectMeta) -> Option<Vec<ManagedFieldsEntry>> {
        let entries = metadata.managed_fields.as_ref()?.iter().filter(|entry| {
            let fields = entry.fields_v1.as_ref().and_then(|fields| fields.0.as_object());
            let spec = fields.is_some_and(|fields| fields.contains_key("f:spec"));
            spec && entry.subresource.as_deref().unwrap_or_default().is_empty()
        });
        let ours = metadata.managed_fields.iter().flatten().find(|entry| is_applied_by_vdo(entry));
        let ours = ours.and_then(pod_fields);
        let entries = entries.map(|entry| {
            let added = pod_fields(entry).zip(ours).map(|(theirs, ours)| {
                let mut added = Vec::new();
                added_fields(theirs, ours, "", &mut added);
                FieldsV1(json!({ADDED: added}))
            });
            ManagedFieldsEntry {
                manager: entry.manager.clone(),
                fields_v1: added.filter(|_| !is_applied_by_vdo(entry)),
                ..ManagedFieldsEntry::default()
            }
        });
        Some(entries.collect())
    }

    /// Reads the origin of a workload from its metadata and its pod template.
    pub fn read(metadata: &ObjectMeta, template: Option<&PodTemplateSpec>) -> Self {
        let spec = template.and_then(|template| template.spec.as_ref());
        let containers = spec.into_iter().flat_map(|spec| &spec.containers).map(|container| {
            let image = container.image.clone().unwrap_or_default();
            (container.name.clone(), (image, container.args.clone().unwrap_or_default()))
        });
        let field_managers: BTreeSet<String> = metadata
            .managed_fields
            .iter()
            .flatten()
            .filter_map(|entry| entry.manager.clone())
            .filter(|name| name != names::FIELD_MANAGER && !KUBERNETES.contains(&name.as_str()))
            .collect();
        let added = metadata.managed_fields.iter().flatten().flat_map(|entry| {
            let paths = entry.fields_v1.as_ref().and_then(|fields| fields.0[ADDED].as_array());
            let manager = entry.manager.clone().unwrap_or_default();
            let paths = paths.into_iter().flatten().filter_map(Value::as_str);
            paths.map(|path| (manager.clone(), path.to_owned())).collect::<Vec<_>>()
        });
        let added_fields = added.filter(|(by, _)| field_managers.contains(by)).collect();
        let annotations = metadata.annotations.as_ref();
        Self {
            added_fields,
            settings: settings(template),
            account: account(spec),
            kubelet_path: spec.and_then(kubelet_path),
            containers: containers.collect::<BTreeMap<_, _>>(),
            windows: spec.and_then(|spec| spec.node_selector.as_ref()).is_some_and(|selector| {
                selector.get("kubernetes.io/os").is_some_and(|system| system == "windows")
            }),
            field_managers,
            helm: annotations.and_then(|all| all.get("meta.helm.sh/release-name")).cloned(),
            credentials_changed: template
                .and_then(|template| template.metadata.as_ref()?.annotations.as_ref())
                .and_then(|all| all.get(names::CREDENTIALS_CHANGED))
                .cloned(),
        }
    }
}

/// The key of the added fields in a reduced entry of the managed fields.
const ADDED: &str = "added";

fn is_applied_by_vdo(entry: &ManagedFieldsEntry) -> bool {
    entry.manager.as_deref() == Some(names::FIELD_MANAGER)
        && entry.operation.as_deref() == Some("Apply")
}

/// The fields of the pods' spec that a manager owns.
fn pod_fields(entry: &ManagedFieldsEntry) -> Option<&Value> {
    entry.fields_v1.as_ref()?.0.pointer("/f:spec/f:template/f:spec")
}

/// Collects the paths that are in `theirs` and not in `ours`. A list item or a map that is only theirs is one path.
fn added_fields(theirs: &Value, ours: &Value, path: &str, added: &mut Vec<String>) {
    for (key, value) in theirs.as_object().into_iter().flatten() {
        let at = match key.split_once(':') {
            Some(("f", field)) if path.is_empty() => field.to_owned(),
            Some(("f", field)) => format!("{path}.{field}"),
            Some((_, item)) => format!("{path}[{}]", item_name(item)),
            // A dot stands for the item itself.
            None => continue,
        };
        match ours.get(key) {
            // The API server itself writes this old name of serviceAccountName.
            None if at == "serviceAccount" => {}
            None => added.push(at),
            Some(ours) => added_fields(value, ours, &at, added),
        }
    }
}

/// The name of a list item, or its other keys.
fn item_name(keys: &str) -> String {
    match serde_json::from_str::<Value>(keys) {
        Ok(Value::Object(keys)) => {
            let values = keys.values().map(|value| match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            });
            values.collect::<Vec<_>>().join(" ")
        }
        _ => keys.to_owned(),
    }
}

/// Pods without an account use `default`.
fn account(spec: Option<&PodSpec>) -> String {
    let name =
        spec.and_then(|spec| spec.service_account_name.as_ref().or(spec.service_account.as_ref()));
    name.filter(|name| !name.is_empty()).map_or_else(|| "default".to_owned(), Clone::clone)
}

/// The Secret or ConfigMap that is mounted at the drivers' configuration path.
fn settings(template: Option<&PodTemplateSpec>) -> Option<String> {
    let spec = template?.spec.as_ref()?;
    let mut mounts = spec.containers.iter().flat_map(|c| c.volume_mounts.iter().flatten());
    let mount = mounts.find(|mount| mount.mount_path.trim_end_matches('/') == CONFIG_FOLDER)?;
    let volume = spec.volumes.iter().flatten().find(|volume| volume.name == mount.name)?;
    let secret = volume.secret.as_ref().and_then(|secret| secret.secret_name.clone());
    secret.or_else(|| volume.config_map.as_ref().map(|map| map.name.clone()))
}

/// The kubelet's directory in a pod that registers a driver there.
fn kubelet_path(spec: &PodSpec) -> Option<String> {
    let paths = spec.volumes.iter().flatten().filter_map(|volume| volume.host_path.as_ref());
    let mut directories = paths.filter_map(|path| {
        path.path.trim_end_matches('/').strip_suffix("/plugins_registry").map(str::to_owned)
    });
    // A Windows node has a directory of its own, which VDO does not compare.
    directories.find(|path| path.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::DaemonSet;
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_that_another_manager_adds_to_a_workload_of_vdo_are_known() {
        let fields = |pod: Value| json!({"f:spec": {"f:template": {"f:spec": pod}}});
        let ours = fields(json!({"f:containers": {"k:{\"name\":\"driver\"}": {
            ".": {}, "f:args": {}, "f:env": {"k:{\"name\":\"A\"}": {".": {}, "f:value": {}}},
        }}}));
        let theirs = fields(json!({
            "f:nodeSelector": {}, "f:serviceAccount": {},
            "f:containers": {"k:{\"name\":\"driver\"}": {
                "f:args": {}, "f:env": {"k:{\"name\":\"PROXY\"}": {".": {}, "f:name": {}, "f:value": {}}},
            }},
        }));
        let metadata = |first: &str| -> ObjectMeta {
            serde_json::from_value(json!({"managedFields": [
                {"manager": first, "operation": "Apply", "fieldsV1": ours},
                {"manager": "kubectl-edit", "operation": "Update", "fieldsV1": theirs},
            ]}))
            .unwrap()
        };
        let added = |mut metadata: ObjectMeta| {
            metadata.managed_fields = WorkloadOrigin::spec_managers(&metadata);
            WorkloadOrigin::read(&metadata, None).added_fields
        };
        let by_edit = |path: &str| ("kubectl-edit".to_owned(), path.to_owned());
        let both = [by_edit("containers[driver].env[PROXY]"), by_edit("nodeSelector")];
        assert_eq!(added(metadata(names::FIELD_MANAGER)), BTreeSet::from(both));
        assert_eq!(added(metadata("helm")), BTreeSet::new(), "VDO does not apply this one");
    }

    #[test]
    fn the_origin_names_the_field_managers_and_the_settings() {
        let mut set: DaemonSet = serde_json::from_value(json!({
            "metadata": {
                "name": "vsphere-cpi",
                "annotations": {"meta.helm.sh/release-name": "cpi"},
                "managedFields": [
                    {"manager": "helm", "operation": "Update", "fieldsV1": {"f:spec": {}}},
                    {"manager": "kubectl-label", "operation": "Update", "fieldsV1": {"f:metadata": {}}},
                    {"manager": "kube-controller-manager", "subresource": "status", "fieldsV1": {"f:status": {}}},
                ],
            },
            "spec": {"selector": {}, "template": {"spec": {
                "containers": [{
                    "name": "cpi", "image": "example.com/cpi:v1", "args": ["--v=2"],
                    "volumeMounts": [{"name": "config", "mountPath": "/etc/cloud/"}],
                }],
                "volumes": [{"name": "config", "configMap": {"name": "vsphere-cloud-config"}}],
            }}},
        }))
        .unwrap();
        set.metadata.managed_fields = WorkloadOrigin::spec_managers(&set.metadata);
        let origin =
            WorkloadOrigin::read(&set.metadata, set.spec.as_ref().map(|spec| &spec.template));
        assert_eq!(origin.field_managers, BTreeSet::from(["helm".to_owned()]));
        assert_eq!(origin.helm.as_deref(), Some("cpi"));
        assert_eq!(origin.settings.as_deref(), Some("vsphere-cloud-config"));
        assert_eq!(origin.containers["cpi"].0, "example.com/cpi:v1");
    }
}
