//! The parameters of StorageClasses and VolumeAttributesClasses.

use std::collections::HashMap;

use snafu::Snafu;

/// Keys with this prefix are added by Kubernetes. Unknown ones carry metadata that does not change the volume.
const KUBERNETES: &str = "csi.storage.k8s.io/";

/// The parameters of a new volume, by upstream's names in any case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct VolumeParameters {
    pub(super) datastore_url: Option<String>,
    pub(super) policy: Option<String>,
    pub(super) fs_type: Option<String>,
    pub(super) pv_name: Option<String>,
    pub(super) pvc_name: Option<String>,
    pub(super) pvc_namespace: Option<String>,
}

#[derive(Debug, PartialEq, Eq, Snafu)]
pub(super) enum ParameterError {
    #[snafu(display(
        "the parameter \"{key}\" is unknown; the driver knows datastoreurl, storagepolicyname and csi.storage.k8s.io/fstype"
    ))]
    Unknown { key: String },
    #[snafu(display(
        "the parameter \"{key}\" cannot be changed; a VolumeAttributesClass can only change storagepolicyname"
    ))]
    Immutable { key: String },
    #[snafu(display("the parameter storagepolicyname is empty: name a storage policy of vCenter"))]
    EmptyPolicy,
    #[snafu(display(
        "the parameter \"{key}\" of a StorageClass of the in-tree driver is not supported: create a StorageClass with datastoreurl or storagepolicyname"
    ))]
    Migration { key: String },
}

impl VolumeParameters {
    pub(super) fn read(given: &HashMap<String, String>) -> Result<Self, ParameterError> {
        let mut parameters = Self::default();
        let mut given: Vec<(&String, &String)> = given.iter().collect();
        // The same message in every attempt.
        given.sort_unstable();
        for (key, value) in given {
            let lower = key.to_ascii_lowercase();
            let field = match lower.as_str() {
                "datastoreurl" => &mut parameters.datastore_url,
                "storagepolicyname" => &mut parameters.policy,
                "fstype" | "csi.storage.k8s.io/fstype" => &mut parameters.fs_type,
                "csi.storage.k8s.io/pv/name" => &mut parameters.pv_name,
                "csi.storage.k8s.io/pvc/name" => &mut parameters.pvc_name,
                "csi.storage.k8s.io/pvc/namespace" => &mut parameters.pvc_namespace,
                other if other.starts_with(KUBERNETES) => continue,
                other if other == "csimigration" || other.ends_with("-migrationparam") => {
                    return MigrationSnafu { key }.fail();
                }
                _ => return UnknownSnafu { key }.fail(),
            };
            if !value.is_empty() {
                *field = Some(value.clone());
            }
        }
        Ok(parameters)
    }
}

/// The policy in the mutable parameters; `None` if there are none.
pub(super) fn mutable_policy(
    given: &HashMap<String, String>,
) -> Result<Option<String>, ParameterError> {
    let mut policy = None;
    for (key, value) in given {
        if !key.eq_ignore_ascii_case("storagepolicyname") {
            return ImmutableSnafu { key }.fail();
        }
        if value.is_empty() {
            return EmptyPolicySnafu.fail();
        }
        policy = Some(value.clone());
    }
    Ok(policy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn names_match_in_any_case_and_kubernetes_metadata_is_accepted() {
        let parameters = VolumeParameters::read(&given(&[
            ("StoragePolicyName", "gold"),
            ("datastoreURL", "ds:///vmfs/volumes/a/"),
            ("csi.storage.k8s.io/fstype", "xfs"),
            ("csi.storage.k8s.io/pvc/name", "data"),
            ("csi.storage.k8s.io/serviceAccount.name", "x"),
        ]))
        .unwrap();
        assert_eq!(parameters.policy.as_deref(), Some("gold"));
        assert_eq!(parameters.datastore_url.as_deref(), Some("ds:///vmfs/volumes/a/"));
        assert_eq!(parameters.fs_type.as_deref(), Some("xfs"));
        assert_eq!(parameters.pvc_name.as_deref(), Some("data"));
    }

    #[test]
    fn an_unknown_parameter_is_named() {
        let error = VolumeParameters::read(&given(&[("datastoreulr", "x")])).unwrap_err();
        assert!(error.to_string().contains("\"datastoreulr\""), "{error}");
        let error = mutable_policy(&given(&[("iops", "7")])).unwrap_err();
        assert!(error.to_string().contains("\"iops\""), "{error}");
    }
}
