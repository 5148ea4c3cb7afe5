//! `vdoctl catalog`.

use ::catalog::{manifest::Object, read, tool, trust::Bundle};
use clap::{Args, Subcommand};
use operator::writing;
use serde_json::json;
use std::path::PathBuf;

use crate::{
    arguments::Global,
    cluster::Cluster,
    failure::{Failure, Outcome},
    screen::Screen,
    text::fold,
};

/// List, show, compare, build, sign and import catalogs of driver releases.
///
/// Where a file is asked for, `embedded` is the catalog in this program and `-` standard input.
#[derive(Args, Debug)]
pub(crate) struct Catalog {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    #[command(flatten)]
    Tool(tool::Command),
    /// Puts a catalog into the cluster, where VDO uses it from then on.
    Import {
        /// The catalog, or a signed bundle of one.
        file: PathBuf,
    },
}

/// The name of the ConfigMap and of the CompatibilityConfig that names it.
const NAME: &str = "vdo-catalog";

impl Catalog {
    /// Whether a cluster is needed.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self.what, What::Tool(_))
    }

    /// What needs no cluster.
    pub(crate) fn local(self, screen: &Screen) -> Outcome {
        match self.what {
            What::Tool(command) => {
                let prose = command.is_prose();
                let answer = tool::run(command).map_err(|error| said(&error))?;
                screen.print(&if prose { fold(&answer, screen.width) } else { answer })
            }
            What::Import { .. } => Ok(()),
        }
    }

    pub(crate) async fn run(self, global: &Global, screen: &Screen) -> Outcome {
        let What::Import { file } = &self.what else { return self.local(screen) };
        let text = std::fs::read_to_string(file).map_err(|source| Failure::File {
            path: file.clone(),
            deed: "read",
            source,
        })?;
        if !Bundle::is_one(text.as_bytes()) {
            read(text.as_bytes()).map_err(|error| Failure::Other {
                text: format!("{} is no catalog VDO would use", file.display()),
                source: error.into(),
            })?;
        }
        let cluster = Cluster::connect(global).await?;
        let objects = vec![
            Object(json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": NAME, "namespace": cluster.namespace},
                "data": {"catalog.yaml": text},
            })),
            Object(json!({
                "apiVersion": "vdo.vmware.com/v1alpha1", "kind": "CompatibilityConfig",
                "metadata": {"name": NAME, "namespace": cluster.namespace},
                "spec": {"bundle": {"configMap": NAME}},
            })),
        ];
        cluster.all::<api::CompatibilityConfig>("CompatibilityConfigs").await?;
        let compared = writing::compare(&cluster.client, objects).await;
        let compared = compared.map_err(super::deploy::written)?;
        writing::write_all(&cluster.client, &compared).await.map_err(super::deploy::written)?;
        screen.print("The catalog is in the cluster; vdoctl plan shows what it changes.\n")
    }
}

/// What the library says, as ours.
fn said(error: &snafu::Whatever) -> Failure {
    let mut texts = vec![error.to_string()];
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        texts.push(error.to_string());
        cause = error.source();
    }
    let first = texts.remove(0);
    if texts.is_empty() {
        Failure::Request { text: first, help: String::new() }
    } else {
        Failure::Other { text: first, source: texts.join(": ").into() }
    }
}
