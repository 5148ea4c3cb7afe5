//! The packages other than chart and kustomize, each checked by the program that reads it.
//!
//! ```text
//!   olm         the bundle: the validators of operator-framework/api, opm, and an installation as OLM makes it
//!   gitops      the health checks of Argo CD, in its Lua interpreter; the example for Flux
//!   manifests   every manifest: kubeconform with the schemas of a real API server, and kube-score
//!   release     make release: checksums, signatures, bills of materials, the kubectl plugin, twice the same; make publish
//! ```
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod commands;
mod gitops;
mod manifests;
mod olm;
mod release;

use std::{fs, path::Path};

use serde_json::Value;
use testkit::Workdir;

use self::commands::{run, shown};

/// A folder with the generated files, as in a checkout.
fn checkout() -> Workdir {
    let workdir = Workdir::new("packages").unwrap();
    for file in shipping::files().unwrap() {
        let path = workdir.path().join(&file.path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, file.text).unwrap();
    }
    workdir
}

fn documents(path: &Path) -> Vec<Value> {
    let text =
        fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_saphyr::from_multiple(&text).unwrap()
}
