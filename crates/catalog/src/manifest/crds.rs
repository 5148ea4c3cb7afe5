//! The CRDs of the storage driver and of snapshots.
//!
//! The programs that use the objects define the schemas; the descriptions are ours. Versions of the snapshot
//! API that are no longer served are omitted: a cluster that still stores them has its own CRDs, and VDO does
//! not replace those.

use serde_json::{Value, json};

/// Each node driver states its VM here, and the syncer answers with the zone of that VM.
pub fn csi_node_topologies() -> Value {
    let spec = json!({
        "type": "object",
        "description": "The node that requests its topology.",
        "required": ["nodeID"],
        "properties": {
            "nodeID": { "type": "string", "description": "The name of the node." },
            "nodeuuid": { "type": "string", "description": "The UUID of its VM." },
        },
    });
    let status = json!({
        "type": "object",
        "description": "The answer.",
        "properties": {
            "status": { "type": "string", "description": "Success or Error." },
            "errorMessage": { "type": "string", "description": "Why the topology could not be determined." },
            "topologyLabels": {
                "type": "array",
                "description": "One entry per tag category that is configured.",
                "items": {
                    "type": "object",
                    "required": ["key", "value"],
                    "properties": { "key": { "type": "string" }, "value": { "type": "string" } },
                },
            },
        },
    });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": "csinodetopologies.cns.vmware.com" },
        "spec": {
            "group": "cns.vmware.com",
            "scope": "Cluster",
            "names": names("CSINodeTopology", "csinodetopologies", "csinodetopology", &[]),
            "versions": [{
                "name": "v1alpha1",
                "served": true,
                "storage": true,
                "schema": { "openAPIV3Schema": object(&spec, &status) },
            }],
        },
    })
}

/// The records of operations on volumes: a task in vCenter is found again after a restart.
pub fn volume_operation_requests() -> Value {
    let text = |description: &str| json!({ "type": "string", "description": description });
    let details = json!({
        "type": "object",
        "description": "One attempt.",
        "required": ["taskInvocationTimestamp"],
        "properties": {
            "taskInvocationTimestamp": { "type": "string", "format": "date-time" },
            "taskId": text("The task in vCenter; empty before vCenter answered."),
            "vCenterServer": text("The vCenter of the task."),
            "opId": text("The id of the operation in the logs of vCenter."),
            "taskStatus": text("InProgress, Success, Error, PartiallyFailed or TrackingAborted."),
            "error": text("Why the attempt failed."),
        },
    });
    let quota = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let spec = json!({
        "type": "object",
        "description": "The operation.",
        "required": ["name"],
        "properties": { "name": text("The name of the volume or snapshot, with a prefix for the kind of operation.") },
    });
    let status = json!({
        "type": "object",
        "description": "The attempts and the result.",
        "properties": {
            "volumeID": text("The volume."),
            "snapshotID": text("The snapshot."),
            "capacity": { "type": "integer", "format": "int64", "description": "The capacity in MiB." },
            "errorCount": { "type": "integer", "description": "How many attempts failed." },
            "quotaDetails": quota,
            "firstOperationDetails": details,
            "latestOperationDetails": { "type": "array", "items": details, "maxItems": 10 },
        },
    });
    let mut schema = object(&spec, &status);
    schema["x-kubernetes-preserve-unknown-fields"] = json!(true);
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": "cnsvolumeoperationrequests.cns.vmware.com" },
        "spec": {
            "group": "cns.vmware.com",
            "scope": "Namespaced",
            "names": names(
                "CnsVolumeOperationRequest", "cnsvolumeoperationrequests", "cnsvolumeoperationrequest", &[],
            ),
            "versions": [{
                "name": "v1alpha1",
                "served": true,
                "storage": true,
                "schema": { "openAPIV3Schema": schema },
            }],
        },
    })
}

/// The three CRDs of the snapshot API.
pub fn snapshots() -> [Value; 3] {
    [snapshot_classes(), snapshot_contents(), volume_snapshots()]
}

fn names(kind: &str, plural: &str, singular: &str, short: &[&str]) -> Value {
    let mut names = json!({
        "kind": kind, "listKind": format!("{kind}List"), "plural": plural, "singular": singular,
    });
    if !short.is_empty() {
        names["shortNames"] = json!(short);
    }
    names
}

fn object(spec: &Value, status: &Value) -> Value {
    json!({
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": { "type": "string" },
            "kind": { "type": "string" },
            "metadata": { "type": "object" },
            "spec": spec,
            "status": status,
        },
    })
}

fn snapshot_crd(
    scope: &str,
    names: &Value,
    columns: &Value,
    schema: &Value,
    has_status: bool,
) -> Value {
    let plural = names["plural"].as_str().unwrap_or_default().to_owned();
    let subresources = if has_status { json!({ "status": {} }) } else { json!({}) };
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{plural}.snapshot.storage.k8s.io"),
            "annotations": {
                // The API server accepts groups of the Kubernetes project only with this annotation.
                "api-approved.kubernetes.io": "https://github.com/kubernetes-csi/external-snapshotter/pull/814",
            },
        },
        "spec": {
            "group": "snapshot.storage.k8s.io",
            "scope": scope,
            "names": names,
            "versions": [{
                "name": "v1",
                "served": true,
                "storage": true,
                "additionalPrinterColumns": columns,
                "schema": { "openAPIV3Schema": schema },
                "subresources": subresources,
            }],
        },
    })
}

fn column(name: &str, kind: &str, path: &str) -> Value {
    json!({ "name": name, "type": kind, "jsonPath": path })
}

fn age() -> Value {
    column("Age", "date", ".metadata.creationTimestamp")
}

fn deletion_policy() -> Value {
    json!({
        "type": "string",
        "enum": ["Delete", "Retain"],
        "description": "Whether the snapshot is deleted from storage with its VolumeSnapshot.",
    })
}

/// A field that cannot change once it is set.
fn immutable(name: &str, description: &str) -> Value {
    json!({
        "type": "string",
        "description": description,
        "x-kubernetes-validations": [{ "rule": "self == oldSelf", "message": format!("{name} is immutable") }],
    })
}

/// Exactly one of two immutable fields.
fn one_of(a: (&str, &str), b: (&str, &str)) -> Value {
    let once_set = |name: &str| {
        json!({
            "rule": format!("!has(oldSelf.{name}) || has(self.{name})"),
            "message": format!("{name} is required once set"),
        })
    };
    json!({
        "type": "object",
        "description": "The source of the snapshot, either a volume or an existing snapshot.",
        "properties": { a.0: immutable(a.0, a.1), b.0: immutable(b.0, b.1) },
        "x-kubernetes-validations": [
            once_set(a.0),
            once_set(b.0),
            {
                "rule": format!("has(self.{}) != has(self.{})", a.0, b.0),
                "message": format!("exactly one of {} and {} must be set", a.0, b.0),
            },
        ],
    })
}

fn failure() -> Value {
    json!({
        "type": "object",
        "description": "The last error.",
        "properties": {
            "message": { "type": "string" },
            "time": { "type": "string", "format": "date-time" },
        },
    })
}

fn snapshot_classes() -> Value {
    let schema = json!({
        "type": "object",
        "description": "The driver and the parameters for snapshots.",
        "required": ["deletionPolicy", "driver"],
        "properties": {
            "apiVersion": { "type": "string" },
            "kind": { "type": "string" },
            "metadata": { "type": "object" },
            "deletionPolicy": deletion_policy(),
            "driver": { "type": "string", "description": "The driver that takes them." },
            "parameters": {
                "type": "object",
                "description": "Parameters for the driver.",
                "additionalProperties": { "type": "string" },
            },
        },
    });
    let names = names(
        "VolumeSnapshotClass",
        "volumesnapshotclasses",
        "volumesnapshotclass",
        &["vsclass", "vsclasses"],
    );
    let columns = json!([
        column("Driver", "string", ".driver"),
        column("DeletionPolicy", "string", ".deletionPolicy"),
        age()
    ]);
    snapshot_crd("Cluster", &names, &columns, &schema, false)
}

fn volume_snapshots() -> Value {
    let spec = json!({
        "type": "object",
        "description": "The desired snapshot.",
        "required": ["source"],
        "properties": {
            "source": one_of(
                ("persistentVolumeClaimName", "The claim to take a snapshot of."),
                ("volumeSnapshotContentName", "The content that holds a snapshot taken earlier."),
            ),
            "volumeSnapshotClassName": {
                "type": "string",
                "description": "The class. Absent: the default class of the claim's driver.",
                "x-kubernetes-validations": [{
                    "rule": "size(self) > 0",
                    "message": "volumeSnapshotClassName must not be the empty string when set",
                }],
            },
        },
    });
    let status = json!({
        "type": "object",
        "description": "The observed state of the snapshot.",
        "properties": {
            "boundVolumeSnapshotContentName": { "type": "string", "description": "The content it is bound to." },
            "creationTime": { "type": "string", "format": "date-time", "description": "When it was taken." },
            "error": failure(),
            "readyToUse": { "type": "boolean", "description": "Whether a volume can be created from it." },
            "restoreSize": {
                "description": "The minimum size of such a volume.",
                "pattern": QUANTITY,
                "x-kubernetes-int-or-string": true,
            },
            "volumeGroupSnapshotName": { "type": "string", "description": "The group it was taken with." },
        },
    });
    let columns = json!([
        column("ReadyToUse", "boolean", ".status.readyToUse"),
        column("SourcePVC", "string", ".spec.source.persistentVolumeClaimName"),
        column("SourceSnapshotContent", "string", ".spec.source.volumeSnapshotContentName"),
        column("RestoreSize", "string", ".status.restoreSize"),
        column("SnapshotClass", "string", ".spec.volumeSnapshotClassName"),
        column("SnapshotContent", "string", ".status.boundVolumeSnapshotContentName"),
        column("CreationTime", "date", ".status.creationTime"),
        age(),
    ]);
    let names = names("VolumeSnapshot", "volumesnapshots", "volumesnapshot", &["vs"]);
    snapshot_crd("Namespaced", &names, &columns, &object(&spec, &status), true)
}

/// The pattern of a Kubernetes quantity.
const QUANTITY: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

fn snapshot_contents() -> Value {
    let text = || json!({ "type": "string" });
    let reference = json!({
        "type": "object",
        "description": "The VolumeSnapshot it belongs to.",
        "x-kubernetes-map-type": "atomic",
        "properties": {
            "apiVersion": text(), "fieldPath": text(), "kind": text(), "name": text(), "namespace": text(),
            "resourceVersion": text(), "uid": text(),
        },
        "x-kubernetes-validations": [{
            "rule": "has(self.name) && has(self.__namespace__)",
            "message": "both spec.volumeSnapshotRef.name and spec.volumeSnapshotRef.namespace must be set",
        }],
    });
    let spec = json!({
        "type": "object",
        "description": "The snapshot on storage.",
        "required": ["deletionPolicy", "driver", "source", "volumeSnapshotRef"],
        "properties": {
            "deletionPolicy": deletion_policy(),
            "driver": { "type": "string", "description": "The driver that took it." },
            "source": one_of(
                ("snapshotHandle", "The driver's name of a snapshot taken earlier."),
                ("volumeHandle", "The driver's name of the volume to take one of."),
            ),
            "sourceVolumeMode": immutable("sourceVolumeMode", "Filesystem or Block, as the volume was."),
            "volumeSnapshotClassName": { "type": "string", "description": "The class it was taken with." },
            "volumeSnapshotRef": reference,
        },
        "x-kubernetes-validations": [{
            "rule": "!has(oldSelf.sourceVolumeMode) || has(self.sourceVolumeMode)",
            "message": "sourceVolumeMode is required once set",
        }],
    });
    let status = json!({
        "type": "object",
        "description": "The state that the storage driver reports.",
        "properties": {
            "creationTime": {
                "type": "integer", "format": "int64",
                "description": "When it was taken, in nanoseconds since 1970.",
            },
            "error": failure(),
            "readyToUse": { "type": "boolean", "description": "Whether a volume can be created from it." },
            "restoreSize": {
                "type": "integer", "format": "int64", "minimum": 0,
                "description": "The minimum size of such a volume, in bytes.",
            },
            "snapshotHandle": { "type": "string", "description": "The driver's name of the snapshot." },
            "volumeGroupSnapshotHandle": { "type": "string", "description": "The group it was taken with." },
        },
    });
    let columns = json!([
        column("ReadyToUse", "boolean", ".status.readyToUse"),
        column("RestoreSize", "integer", ".status.restoreSize"),
        column("DeletionPolicy", "string", ".spec.deletionPolicy"),
        column("Driver", "string", ".spec.driver"),
        column("VolumeSnapshotClass", "string", ".spec.volumeSnapshotClassName"),
        column("VolumeSnapshot", "string", ".spec.volumeSnapshotRef.name"),
        column("VolumeSnapshotNamespace", "string", ".spec.volumeSnapshotRef.namespace"),
        age(),
    ]);
    let names = names(
        "VolumeSnapshotContent",
        "volumesnapshotcontents",
        "volumesnapshotcontent",
        &["vsc", "vscs"],
    );
    snapshot_crd("Cluster", &names, &columns, &object(&spec, &status), true)
}
