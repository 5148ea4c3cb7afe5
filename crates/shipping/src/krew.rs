//! The manifest of the kubectl plugin `vdo`, for krew.

use catalog::manifest::Object;
use serde_json::{Value, json};

use crate::{error::Error, file::File};

const HOME: &str = env!("CARGO_PKG_REPOSITORY");

/// An archive that contains `kubectl-vdo` and `LICENSE`.
#[derive(Clone, Debug)]
pub struct PluginArchive {
    /// The file's name among those of the release.
    pub name: String,
    /// The operating system, as Go names it.
    pub os: String,
    /// The processor, as Go names it.
    pub architecture: String,
    /// The SHA-256 of the archive, in hexadecimal digits.
    pub sha256: String,
}

/// The manifest of a release.
pub fn manifest(version: &str, archives: &[PluginArchive]) -> Result<File, Error> {
    let platforms: Vec<Value> = archives.iter().map(|archive| platform(version, archive)).collect();
    let plugin = json!({
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "vdo"},
        "spec": {
            "version": format!("v{version}"),
            "homepage": HOME,
            "shortDescription": "Install, check and upgrade vSphere drivers",
            "description": "Installs VDO, configures it, and shows the health of the vSphere drivers of a cluster. \
                Names the cause of a problem, the object and the fix.\n",
            "platforms": platforms,
        },
    });
    File::objects("vdo-krew.yaml", &[Object(plugin)])
}

fn platform(version: &str, archive: &PluginArchive) -> Value {
    json!({
        "selector": {"matchLabels": {"os": archive.os, "arch": archive.architecture}},
        "uri": format!("{HOME}/releases/download/v{version}/{}", archive.name),
        "sha256": archive.sha256,
        "files": [{"from": "kubectl-vdo", "to": "."}, {"from": "LICENSE", "to": "."}],
        "bin": "kubectl-vdo",
    })
}
