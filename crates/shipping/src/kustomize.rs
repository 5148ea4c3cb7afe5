//! The kustomize base and overlays, in `deploy/kustomize`.
//!
//! kustomize reads no file outside the folder of a kustomization, so the base has its own copy of the install manifest.

use catalog::manifest::Object;
use operator::install;
use serde_json::{Value, json};

use crate::{error::Error, file::File};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A name that a user replaces with the registry of the site.
const REGISTRY: &str = "registry.example.com/vsphere";

/// The files of the base and of the overlays.
pub(crate) fn files() -> Result<Vec<File>, Error> {
    let (definitions, operator): (Vec<Object>, Vec<Object>) = install::objects()
        .into_iter()
        .partition(|object| object.kind() == "CustomResourceDefinition");
    let base = json!({"resources": ["crds.yaml", "operator.yaml"]});
    let monitoring = json!({"resources": ["../../base", "alerts.yaml"]});
    Ok(vec![
        kustomization("base", base)?,
        File::objects("deploy/kustomize/base/crds.yaml", &definitions)?,
        File::objects("deploy/kustomize/base/operator.yaml", &operator)?,
        kustomization("overlays/monitoring", monitoring)?,
        File::objects(
            "deploy/kustomize/overlays/monitoring/alerts.yaml",
            &[operator::alerts::rule()],
        )?,
        kustomization("overlays/air-gap", air_gap())?,
    ])
}

/// The operator's image comes from the registry of the site, with a pull Secret.
fn air_gap() -> Value {
    let secret =
        "- op: add\n  path: /spec/template/spec/imagePullSecrets\n  value:\n  - name: registry\n";
    json!({
        "resources": ["../../base"],
        "images": [{
            "name": "ghcr.io/vmware-tanzu/vdo",
            "newName": format!("{REGISTRY}/vmware-tanzu/vdo"),
            "newTag": VERSION,
        }],
        "patches": [{"target": {"kind": "Deployment", "name": "vdo"}, "patch": secret}],
    })
}

fn kustomization(folder: &str, mut content: Value) -> Result<File, Error> {
    content["apiVersion"] = json!("kustomize.config.k8s.io/v1beta1");
    content["kind"] = json!("Kustomization");
    let path = format!("deploy/kustomize/{folder}/kustomization.yaml");
    File::objects(&path, &[Object(content)])
}
