//! `vdoctl configure compatibility-matrix`

use std::path::Path;

use ::catalog::{manifest::Object, trust::Bundle};
use clap::Args;
use operator::writing;
use serde_json::json;

use crate::{
    cluster::Cluster,
    critical,
    failure::{Failure, Outcome},
    options::Global,
    screen::Screen,
    text::wrap,
};

/// Set the catalog of driver releases.
#[derive(Args, Debug)]
pub(crate) struct Matrix {
    /// A URL that VDO reads regularly, or a file (also file://) that vdoctl copies to the cluster.
    source: String,
    /// The public key that must have signed the catalog (PEM or base64).
    #[arg(long, value_name = "KEY")]
    public_key: Option<String>,
}

/// The name of the CompatibilityConfig and its ConfigMap.
const NAME: &str = "vdo-catalog";

impl Matrix {
    pub(super) async fn run(&self, global: &Global, screen: &Screen) -> Outcome {
        let objects = self.objects(&global.namespace)?;
        let cluster = Cluster::connect(global).await?;
        cluster.own::<api::CompatibilityConfig>("CompatibilityConfigs").await?;
        let compared = writing::compare(&cluster.client, objects).await;
        let compared = compared.map_err(super::super::deploy::written)?;
        let written = critical::section(writing::write_all(&cluster.client, &compared)).await;
        written.map_err(super::super::deploy::written)?;
        let text = "VDO now uses this catalog. To see the changes: vdoctl plan";
        screen.print(&wrap("", text, screen.width))
    }

    fn objects(&self, namespace: &str) -> Outcome<Vec<Object>> {
        let mut spec = json!({});
        if let Some(key) = &self.public_key {
            spec["publicKey"] = key.as_str().into();
        }
        let mut objects = Vec::new();
        let path = self.source.strip_prefix("file://").unwrap_or(&self.source);
        if path.contains("://") {
            spec["matrixURL"] = path.into();
        } else {
            let text = std::fs::read_to_string(path).map_err(|source| Failure::File {
                path: path.into(),
                deed: "read",
                source,
            })?;
            super::super::catalog::proven(path, text.as_bytes())?;
            check(Path::new(path), &text)?;
            objects.push(Object(json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": NAME, "namespace": namespace},
                "data": {"catalog.yaml": text},
            })));
            spec["bundle"] = json!({"configMap": NAME});
        }
        objects.push(Object(json!({
            "apiVersion": "vdo.vmware.com/v1alpha1", "kind": "CompatibilityConfig",
            "metadata": {"name": NAME, "namespace": namespace},
            "spec": spec,
        })));
        Ok(objects)
    }
}

/// Checks that VDO accepts the catalog. Only the operator can check a signed bundle.
fn check(path: &Path, text: &str) -> Outcome {
    if Bundle::is_bundle(text.as_bytes()) {
        return Ok(());
    }
    let trust = ::catalog::trust::Trust { keys: &[], unsigned: true };
    let mut cache = ::catalog::trust::CatalogStore::embedded();
    match cache.offer(text.as_bytes(), trust, jiff::Timestamp::now()) {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::Other {
            text: format!("{} is not a catalog that VDO can use", path.display()),
            source: error.into(),
        }),
    }
}
