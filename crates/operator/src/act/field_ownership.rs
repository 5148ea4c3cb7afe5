//! Adopts the fields of an object that another field manager wrote.
//!
//! Server-side apply removes the fields that VDO applied before and no longer applies. It leaves the fields
//! of other managers alone: an adopted Deployment would keep the sidecars, variables and arguments of its
//! former release next to ours. So before the first apply, VDO becomes the owner of these fields, and
//! the apply that follows decides about all of them. Labels and annotations keep their managers, and so do
//! the fields that Kubernetes itself writes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
use kube::{
    Api,
    api::{DynamicObject, Patch, PatchParams},
};
use plan::names;
use serde_json::{Map, Value, json};

use crate::applied::BYSTANDERS;

/// Transfers the fields of former managers to VDO, if the object exists and VDO never applied it.
pub(super) async fn adopt_fields(api: &Api<DynamicObject>, name: &str) -> Result<(), kube::Error> {
    let Some(object) = api.get_metadata_opt(name).await? else { return Ok(()) };
    let entries = object.metadata.managed_fields.unwrap_or_default();
    let Some(entries) = transferred(&entries) else { return Ok(()) };
    let patch = json!({"metadata": {
        "managedFields": entries,
        // Limits the patch to this version: if somebody writes meanwhile, VDO looks at the object again.
        "resourceVersion": object.metadata.resource_version,
    }});
    let parameters =
        PatchParams { field_manager: Some(names::FIELD_MANAGER.into()), ..PatchParams::default() };
    match api.patch_metadata(name, &parameters, &Patch::Merge(patch)).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(drop),
    }
}

/// The entries after the transfer. `None` if there is nothing to transfer, or VDO has applied the object.
fn transferred(entries: &[ManagedFieldsEntry]) -> Option<Vec<ManagedFieldsEntry>> {
    let ours = |entry: &&ManagedFieldsEntry| {
        entry.manager.as_deref() == Some(names::FIELD_MANAGER)
            && entry.operation.as_deref() == Some("Apply")
    };
    if entries.iter().any(|entry| ours(&entry)) {
        return None;
    }
    let former = |entry: &ManagedFieldsEntry| {
        let bystander = BYSTANDERS.contains(&entry.manager.as_deref().unwrap_or_default());
        !bystander && entry.subresource.as_deref().unwrap_or_default().is_empty()
    };
    let (former, mut kept): (Vec<_>, Vec<_>) =
        entries.iter().cloned().partition(|entry| former(entry));
    let last = former.last()?.clone();
    let mut fields = Map::new();
    for entry in former {
        let Some(FieldsV1(Value::Object(more))) = entry.fields_v1 else { continue };
        merge(&mut fields, more);
    }
    fields.remove("f:metadata");
    if fields.is_empty() {
        return None;
    }
    kept.push(ManagedFieldsEntry {
        manager: Some(names::FIELD_MANAGER.into()),
        operation: Some("Apply".into()),
        fields_v1: Some(FieldsV1(Value::Object(fields))),
        ..last
    });
    Some(kept)
}

fn merge(into: &mut Map<String, Value>, more: Map<String, Value>) {
    for (key, value) in more {
        match (into.get_mut(&key), value) {
            (Some(Value::Object(into)), Value::Object(more)) => merge(into, more),
            (Some(_), _) => {}
            (None, value) => {
                into.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(
        manager: &str,
        operation: &str,
        subresource: &str,
        fields: Value,
    ) -> ManagedFieldsEntry {
        ManagedFieldsEntry {
            manager: Some(manager.into()),
            operation: Some(operation.into()),
            subresource: (!subresource.is_empty()).then(|| subresource.into()),
            fields_v1: Some(FieldsV1(fields)),
            ..ManagedFieldsEntry::default()
        }
    }

    #[test]
    fn the_fields_of_former_owners_become_ours_and_those_of_kubernetes_do_not() {
        let entries = [
            entry(
                "manager",
                "Update",
                "",
                json!({"f:metadata": {"f:labels": {}}, "f:spec": {"f:a": {}}}),
            ),
            entry("kubectl-edit", "Update", "", json!({"f:spec": {"f:b": {"f:c": {}}}})),
            entry("kube-controller-manager", "Update", "status", json!({"f:status": {}})),
        ];
        let entries_after = transferred(&entries).unwrap();
        assert_eq!(entries_after.len(), 2);
        assert_eq!(entries_after[0], entries[2]);
        assert_eq!(entries_after[1].manager.as_deref(), Some(names::FIELD_MANAGER));
        let fields = &entries_after[1].fields_v1.as_ref().unwrap().0;
        assert_eq!(*fields, json!({"f:spec": {"f:a": {}, "f:b": {"f:c": {}}}}));
    }

    #[test]
    fn fields_are_transferred_only_before_the_first_apply() {
        let ours = entry(names::FIELD_MANAGER, "Apply", "", json!({"f:spec": {}}));
        let edit = entry("kubectl-edit", "Update", "", json!({"f:spec": {"f:b": {}}}));
        assert_eq!(transferred(&[ours, edit]), None);
        assert_eq!(transferred(&[]), None);
    }
}
