//! Examples for GitOps, in `deploy/gitops`: when Argo CD counts VDO's objects as healthy, and how Flux installs VDO.

use catalog::manifest::{Object, to_yaml};
use serde_json::{Map, Value, json};
use snafu::ResultExt as _;

use crate::{
    error::{Error, YamlSnafu},
    file::File,
};

const HOME: &str = env!("CARGO_PKG_REPOSITORY");
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The health check of all custom resources: their conditions have the same meaning.
const HEALTH: &str = include_str!("gitops/health.lua");

const ARGO_CD: &str = "\
# The health of VDO's objects in Argo CD. Add the data to the ConfigMap argocd-cm of your installation:
#   kubectl patch configmap argocd-cm --namespace argocd --patch-file argo-cd.yaml
";
const FLUX: &str = "\
# VDO with Flux: the operator first, then your VDOConfig, which is in the folder `vsphere` of your own repository.
";

/// The examples.
pub(crate) fn files() -> Result<Vec<File>, Error> {
    let kinds = ["CompatibilityConfig", "VDOConfig", "VsphereCloudConfig"];
    let check = |kind: &str| {
        (format!("resource.customizations.health.vdo.vmware.com_{kind}"), json!(HEALTH))
    };
    let data: Map<String, Value> = kinds.into_iter().map(check).collect();
    Ok(vec![
        headed("deploy/gitops/argo-cd.yaml", ARGO_CD, &[Object(json!({ "data": data }))])?,
        headed("deploy/gitops/flux.yaml", FLUX, &flux())?,
    ])
}

fn headed(path: &str, head: &str, objects: &[Object]) -> Result<File, Error> {
    let text = to_yaml(objects).context(YamlSnafu { what: path })?;
    Ok(File::yaml(path, &format!("{head}{text}")))
}

fn flux() -> Vec<Object> {
    let namespace = "flux-system";
    let kustomization = |name: &str, spec: Value| {
        Object(json!({
            "apiVersion": "kustomize.toolkit.fluxcd.io/v1", "kind": "Kustomization",
            "metadata": {"name": name, "namespace": namespace},
            "spec": spec,
        }))
    };
    let health = json!([{
        "apiVersion": "vdo.vmware.com/v1alpha1",
        "kind": "VDOConfig",
        "current": "status.conditions.exists(c, c.type == 'Ready' && c.status == 'True')",
        "failed": "status.conditions.exists(c, c.type == 'Degraded' && c.status == 'True')",
    }]);
    vec![
        Object(json!({
            "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "GitRepository",
            "metadata": {"name": "vdo", "namespace": namespace},
            "spec": {"interval": "1h", "url": HOME, "ref": {"tag": format!("v{VERSION}")}},
        })),
        kustomization(
            "vdo",
            json!({
                "interval": "10m", "path": "./deploy/kustomize/base", "prune": false, "wait": true,
                "sourceRef": {"kind": "GitRepository", "name": "vdo"},
            }),
        ),
        kustomization(
            "vsphere",
            json!({
                "interval": "10m", "path": "./vsphere", "prune": false, "wait": true,
                "dependsOn": [{"name": "vdo"}], "healthCheckExprs": health,
                "sourceRef": {"kind": "GitRepository", "name": "flux-system"},
            }),
        ),
    ]
}
