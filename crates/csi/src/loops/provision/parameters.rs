//! The parameters of a StorageClass: which are for the driver, and which for Kubernetes.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::core::v1::SecretReference;

use crate::loops::{
    model::{Claim, Metadata as _},
    names::RESERVED_PREFIX,
};

/// The parameters of a class, read for one claim.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters {
    /// The parameters for the driver.
    pub for_driver: HashMap<String, String>,
    pub fs_type: String,
    pub secrets: Secrets,
}

/// The Secrets that the class names. The vSphere driver reads none of them; the PersistentVolume names them as
/// upstream's does.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Secrets {
    pub provisioner: Option<SecretReference>,
    pub controller_publish: Option<SecretReference>,
    pub node_stage: Option<SecretReference>,
    pub node_publish: Option<SecretReference>,
    pub controller_expand: Option<SecretReference>,
    pub node_expand: Option<SecretReference>,
    pub controller_modify: Option<SecretReference>,
}

const SECRET_USES: [&str; 7] = [
    "provisioner",
    "controller-publish",
    "node-stage",
    "node-publish",
    "controller-expand",
    "node-expand",
    "controller-modify",
];

/// Separates the parameters. Errors are final: only another class helps.
pub fn separate(
    parameters: &BTreeMap<String, String>,
    claim: &Claim,
    volume_name: &str,
    default_fs_type: &str,
) -> Result<Parameters, String> {
    let mut for_driver = HashMap::new();
    let mut fs_types = Vec::new();
    for (key, value) in parameters {
        if key.eq_ignore_ascii_case("fstype") {
            fs_types.push(value);
            for_driver.insert(key.clone(), value.clone());
        } else if let Some(reserved) = key.strip_prefix(RESERVED_PREFIX) {
            if reserved == "fstype" {
                fs_types.push(value);
            } else if !is_secret_key(reserved) {
                return Err(format!("the StorageClass has the unknown parameter {key}: remove it"));
            }
        } else {
            for_driver.insert(key.clone(), value.clone());
        }
    }
    if fs_types.len() > 1 {
        return Err("the StorageClass sets the file system type more than once: keep only \
                    csi.storage.k8s.io/fstype"
            .into());
    }
    let fs_type = fs_types.first().map_or(default_fs_type, |value| value.as_str()).to_owned();
    Ok(Parameters { for_driver, fs_type, secrets: secrets(parameters, claim, volume_name)? })
}

fn is_secret_key(key: &str) -> bool {
    let uses = key.strip_suffix("secret-name").or_else(|| key.strip_suffix("secret-namespace"));
    uses.is_some_and(|uses| {
        uses.is_empty() || uses.strip_suffix('-').is_some_and(|uses| SECRET_USES.contains(&uses))
    })
}

fn secrets(
    parameters: &BTreeMap<String, String>,
    claim: &Claim,
    volume_name: &str,
) -> Result<Secrets, String> {
    let of = |uses: &str| -> Result<Option<SecretReference>, String> {
        let get = |what: &str| {
            let own = parameters.get(&format!("{RESERVED_PREFIX}{uses}-secret-{what}"));
            own.or_else(|| parameters.get(&format!("{RESERVED_PREFIX}secret-{what}")))
        };
        match (get("name"), get("namespace")) {
            (None, None) => Ok(None),
            (Some(name), Some(namespace)) => Ok(Some(SecretReference {
                name: Some(resolve(name, claim, volume_name, true)?),
                namespace: Some(resolve(namespace, claim, volume_name, false)?),
            })),
            _ => Err(format!(
                "the StorageClass names only a part of the {uses} Secret: set both its name and its namespace"
            )),
        }
    };
    Ok(Secrets {
        provisioner: of("provisioner")?,
        controller_publish: of("controller-publish")?,
        node_stage: of("node-stage")?,
        node_publish: of("node-publish")?,
        controller_expand: of("controller-expand")?,
        node_expand: of("node-expand")?,
        controller_modify: of("controller-modify")?,
    })
}

/// Fills a template such as `${pvc.namespace}`. A name can also contain the name and annotations of the claim.
fn resolve(
    template: &str,
    claim: &Claim,
    volume_name: &str,
    is_name: bool,
) -> Result<String, String> {
    let mut resolved = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("${") {
        let unclosed =
            || format!("the Secret template {template:?} of the StorageClass has no closing brace");
        let (token, after) = after.split_once('}').ok_or_else(unclosed)?;
        let annotation = token
            .strip_prefix("pvc.annotations['")
            .and_then(|token| token.strip_suffix("']"))
            .filter(|_| is_name);
        let value = match (token, annotation) {
            ("pv.name", _) => Some(volume_name),
            ("pvc.namespace", _) => claim.metadata.namespace.as_deref(),
            ("pvc.name", _) if is_name => claim.metadata.name.as_deref(),
            (_, Some(key)) => claim.annotation(key),
            _ => None,
        };
        let value = value.ok_or_else(|| {
            format!("the Secret template {template:?} of the StorageClass names {token}, which has no value")
        })?;
        resolved.extend([before, value]);
        rest = after;
    }
    resolved.push_str(rest);
    Ok(resolved)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(parameters: serde_json::Value) -> Result<Parameters, String> {
        let parameters = serde_json::from_value(parameters).unwrap();
        let claim = serde_json::from_value(json!({
            "metadata": {"namespace": "shop", "name": "data", "annotations": {"team": "blue"}},
        }));
        separate(&parameters, &claim.unwrap(), "pvc-1", "ext4")
    }

    #[test]
    fn the_driver_gets_only_its_own_parameters() {
        let all = read(json!({
            "storagepolicyname": "gold", "csi.storage.k8s.io/fstype": "xfs",
            "csi.storage.k8s.io/node-stage-secret-name": "s", "csi.storage.k8s.io/node-stage-secret-namespace": "n",
        }))
        .unwrap();
        assert_eq!(all.for_driver, HashMap::from([("storagepolicyname".into(), "gold".into())]));
        assert_eq!(all.fs_type, "xfs");
        assert_eq!(all.secrets.node_stage.unwrap().name.as_deref(), Some("s"));
        assert_eq!(all.secrets.provisioner, None);
    }

    #[test]
    fn the_old_file_system_parameter_is_kept_for_the_driver() {
        let all = read(json!({"FsType": "ext3"})).unwrap();
        assert_eq!((all.fs_type.as_str(), all.for_driver.len()), ("ext3", 1));
        assert_eq!(read(json!({})).unwrap().fs_type, "ext4");
        let twice = read(json!({"fstype": "ext3", "csi.storage.k8s.io/fstype": "ext4"}));
        assert!(twice.unwrap_err().contains("more than once"));
    }

    #[test]
    fn an_unknown_reserved_parameter_is_refused() {
        let unknown = read(json!({"csi.storage.k8s.io/fsType": "ext4"})).unwrap_err();
        assert!(unknown.contains("csi.storage.k8s.io/fsType"), "{unknown}");
    }

    #[test]
    fn secret_names_are_filled_from_the_claim() {
        let all = read(json!({
            "csi.storage.k8s.io/secret-name": "${pvc.name}-${pvc.annotations['team']}-${pv.name}",
            "csi.storage.k8s.io/secret-namespace": "${pvc.namespace}",
        }))
        .unwrap();
        let secret = all.secrets.controller_expand.unwrap();
        assert_eq!(secret.name.as_deref(), Some("data-blue-pvc-1"));
        assert_eq!(secret.namespace.as_deref(), Some("shop"));
        for (name, namespace) in [
            ("${pvc.name", "n"),
            ("${pvc.uid}", "n"),
            ("n", "${pvc.name}"),
            ("${pvc.annotations['x']}", "n"),
        ] {
            let refused = read(json!({
                "csi.storage.k8s.io/secret-name": name, "csi.storage.k8s.io/secret-namespace": namespace,
            }));
            assert!(refused.is_err(), "{name} {namespace}");
        }
        assert!(read(json!({"csi.storage.k8s.io/secret-name": "s"})).is_err());
    }
}
