//! The ApplySet of a driver, so that other tools know which objects belong together.
//!
//! Kubernetes has a convention for tools that apply sets of objects (KEP-3659, "ApplySet"). A parent object
//! carries the id of the set, and lists the kinds and namespaces of its members. Every member carries the id
//! in a label.
//!
//! The parent is the record of a driver. VDO itself prunes the objects that the record lists. The labels are
//! for people and for other tools: `kubectl get all -A -l applyset.kubernetes.io/part-of=<id>` lists the
//! members. The parent also names the tool, so `kubectl apply --prune` does not touch the set.

use std::collections::BTreeSet;

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use crate::{object_id::ObjectId, record::Record};

/// The label of a member, with the id of its set.
pub const PART_OF: &str = "applyset.kubernetes.io/part-of";
/// The label of a parent, with the id of its set.
pub const ID: &str = "applyset.kubernetes.io/id";
const TOOLING: &str = "applyset.kubernetes.io/tooling";
const KINDS: &str = "applyset.kubernetes.io/contains-group-kinds";
const NAMESPACES: &str = "applyset.kubernetes.io/additional-namespaces";

/// The id of the set whose parent is this ConfigMap.
pub fn id(parent: &str, namespace: &str) -> String {
    let identity = format!("{parent}.{namespace}.ConfigMap.");
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, identity.as_bytes());
    format!("applyset-{}-v1", BASE64_URL_SAFE_NO_PAD.encode(digest.as_ref()))
}

/// The metadata of a parent, with the kinds and namespaces of the objects in the record.
pub fn parent(name: &str, namespace: &str, record: &Record) -> Value {
    let kinds: BTreeSet<String> = record.objects.iter().map(group_kind).collect();
    let namespaces: BTreeSet<&str> = record
        .objects
        .iter()
        .map(|object| object.namespace.as_str())
        .filter(|other| !other.is_empty() && *other != namespace)
        .collect();
    let joined = |all: Vec<&str>| all.join(",");
    json!({
        "name": name,
        "namespace": namespace,
        "labels": {ID: id(name, namespace)},
        "annotations": {
            TOOLING: concat!("vdo/v", env!("CARGO_PKG_VERSION")),
            KINDS: joined(kinds.iter().map(String::as_str).collect()),
            NAMESPACES: joined(namespaces.into_iter().collect()),
        },
    })
}

/// `DaemonSet.apps`; for the core group, only the kind.
fn group_kind(object: &ObjectId) -> String {
    match object.api_version.split_once('/') {
        Some((group, _)) => format!("{}.{group}", object.kind),
        None => object.kind.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parent_says_what_its_members_are() {
        let object = |api_version: &str, kind: &str, namespace: &str| ObjectId {
            api_version: api_version.into(),
            kind: kind.into(),
            namespace: namespace.into(),
            name: "x".into(),
        };
        let objects = [
            object("apps/v1", "DaemonSet", "vmware-system-csi"),
            object("v1", "Secret", "vmware-system-csi"),
            object("v1", "ConfigMap", "vdo-system"),
            object("rbac.authorization.k8s.io/v1", "ClusterRole", ""),
        ];
        let record = Record { objects: objects.into(), ..Record::default() };
        let parent = parent("vdo-record-csi", "vdo-system", &record);
        let kinds = "ClusterRole.rbac.authorization.k8s.io,ConfigMap,DaemonSet.apps,Secret";
        assert_eq!(parent["annotations"][KINDS], kinds);
        assert_eq!(parent["annotations"][NAMESPACES], "vmware-system-csi");
        let id = parent["labels"][ID].as_str().unwrap();
        assert!(id.starts_with("applyset-") && id.ends_with("-v1") && id.len() <= 63, "{id}");
    }
}
