//! Which objects belong together, said the way other tools understand.
//!
//! Kubernetes has a convention for tools that apply sets of objects (KEP-3659, "ApplySet"): a parent
//! object carries the set's id and says which kinds and namespaces its members are in, and every member
//! carries the id in a label. Here the parent is the record of a driver. VDO itself prunes from what
//! stands in the record; the labels are for people and for other tools, which see at once whose an
//! object is: `kubectl get all -A -l applyset.kubernetes.io/part-of=<id>`. And `kubectl apply --prune`
//! leaves a set alone that another tool keeps, as the parent says.

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

/// The metadata of a parent: what its members are, by the record.
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

/// `DaemonSet.apps`; of the core group the kind alone.
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
            object("v1", "ConfigMap", "home"),
            object("rbac.authorization.k8s.io/v1", "ClusterRole", ""),
        ];
        let record = Record { objects: objects.into(), ..Record::default() };
        let parent = parent("vdo-record-csi", "home", &record);
        let kinds = "ClusterRole.rbac.authorization.k8s.io,ConfigMap,DaemonSet.apps,Secret";
        assert_eq!(parent["annotations"][KINDS], kinds);
        assert_eq!(parent["annotations"][NAMESPACES], "vmware-system-csi");
        let id = parent["labels"][ID].as_str().unwrap();
        assert!(id.starts_with("applyset-") && id.ends_with("-v1") && id.len() <= 63, "{id}");
    }
}
