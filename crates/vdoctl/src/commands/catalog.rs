//! `vdoctl catalog`.

use std::path::PathBuf;

use ::catalog::{
    ReadError,
    manifest::Object,
    proofread,
    proofread::Mistake,
    read, tool,
    trust::{Bundle, MEDIA_TYPE},
};
use clap::{Args, Subcommand};
use oci::Reference;
use operator::writing;
use serde_json::json;

use crate::{
    cluster::Cluster,
    commands::images::connection::{Connection, failed},
    critical,
    document::File,
    failure::{Failure, Outcome, request},
    options::Global,
    screen::Screen,
    text::{fold, nearest, wrap},
};

/// List, show, compare, build, sign, publish and import catalogs of driver releases.
///
/// As a file, `embedded` means the built-in catalog and `-` means standard input.
#[derive(Args, Debug)]
pub(crate) struct Catalog {
    #[command(subcommand)]
    command: CatalogCommand,
}

#[derive(Debug, Subcommand)]
enum CatalogCommand {
    #[command(flatten)]
    Tool(tool::Command),
    /// Copy a catalog to the cluster. VDO then uses it.
    Import {
        /// The catalog, or a signed bundle.
        file: String,
    },
    Push(Push),
}

/// Put a signed catalog into a container registry, from where VDO fetches it.
///
/// The command prints the URL for spec.matrixURL of the CompatibilityConfig, and the digest of the artifact.
#[derive(Args, Debug)]
struct Push {
    /// The signed bundle that vdoctl catalog sign wrote.
    file: PathBuf,
    /// The place in the registry, such as oci://registry.example.com/vdo/catalog:1.
    #[arg(value_name = "URL")]
    target: String,
    #[command(flatten)]
    connection: Connection,
}

impl Push {
    async fn run(&self, screen: &Screen) -> Outcome {
        let path = self.file.display().to_string();
        let bytes = tool::bytes(&path).map_err(|error| tool_failed(&error))?;
        if !Bundle::is_bundle(&bytes) {
            let help = "sign it first: vdoctl catalog sign";
            return request(format!("{path} is not signed, so VDO would refuse it"), help);
        }
        let target = Reference::from_url(&self.target);
        let target = target.map_err(failed("reading the URL of the registry"))?;
        let client = self.connection.client()?;
        let pushed = client.push_artifact(&target, MEDIA_TYPE, &self.file).await;
        let digest = pushed.map_err(failed("publishing the catalog"))?;
        screen.print(&format!("matrixURL: {}\ndigest: {digest}\n", self.target))
    }
}

/// The name of the ConfigMap and of the CompatibilityConfig that names it.
const NAME: &str = "vdo-catalog";

impl Catalog {
    /// Whether the command needs no cluster.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self.command, CatalogCommand::Tool(_))
    }

    pub(crate) fn local(self, screen: &Screen) -> Outcome {
        match self.command {
            CatalogCommand::Tool(tool::Command::Verify { file, keys }) => {
                let bytes = tool::bytes(&file).map_err(|error| tool_failed(&error))?;
                if keys.is_empty() {
                    proven(&file, &bytes)?;
                }
                let answer =
                    tool::check(&file, &bytes, &keys).map_err(|error| tool_failed(&error))?;
                screen.print(&fold(&answer, screen.width))
            }
            CatalogCommand::Tool(command) => {
                // Standard input can be read only once, and tests cover the built-in catalog.
                let files = command.catalogs().into_iter();
                for file in files.filter(|file| !["-", "embedded"].contains(file)) {
                    let bytes = tool::bytes(file).map_err(|error| tool_failed(&error))?;
                    legible(file, &bytes, command.publishes())?;
                }
                let prose = command.is_prose();
                let answer = tool::run(command).map_err(|error| tool_failed(&error))?;
                screen.print(&if prose { fold(&answer, screen.width) } else { answer })
            }
            CatalogCommand::Import { .. } | CatalogCommand::Push(_) => Ok(()),
        }
    }

    pub(crate) async fn run(self, global: &Global, screen: &Screen) -> Outcome {
        let file = match &self.command {
            CatalogCommand::Import { file } => file,
            CatalogCommand::Push(task) => return task.run(screen).await,
            CatalogCommand::Tool(_) => return self.local(screen),
        };
        let bytes = tool::bytes(file).map_err(|error| tool_failed(&error))?;
        proven(file, &bytes)?;
        let text = String::from_utf8_lossy(&bytes);
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
        cluster.own::<api::CompatibilityConfig>("CompatibilityConfigs").await?;
        let compared = writing::compare(&cluster.client, objects).await;
        let compared = compared.map_err(super::deploy::written)?;
        let written = critical::section(writing::write_all(&cluster.client, &compared)).await;
        written.map_err(super::deploy::written)?;
        let text = "VDO now uses this catalog. To see the changes: vdoctl plan";
        screen.print(&wrap("", text, screen.width))
    }
}

/// Checks that VDO accepts a catalog and knows all its fields. Reports the location of a mistake. Only the operator
/// has the key to check a bundle.
pub(crate) fn proven(name: &str, bytes: &[u8]) -> Outcome {
    if Bundle::is_bundle(bytes) {
        return Ok(());
    }
    legible(name, bytes, true)?;
    read(bytes).map(drop).map_err(|error| Failure::Other {
        text: format!("{name} is not a catalog that VDO can use"),
        source: error.into(),
    })
}

/// Reports the location of a syntax error. With `every_word`, unknown fields are errors too.
fn legible(name: &str, bytes: &[u8], every_word: bool) -> Outcome {
    match read(bytes) {
        Err(ReadError::NotADocument { .. } | ReadError::Malformed { .. }) => {}
        Ok(_) if every_word => {}
        _ => return Ok(()),
    }
    mistakes(name, String::from_utf8_lossy(bytes).into_owned())
}

fn mistakes(name: &str, text: String) -> Outcome {
    let file = File::parse(name, text)?;
    let Some(document) = file.documents.first() else { return Ok(()) };
    let Some(mistake) = proofread(&document.value).into_iter().next() else { return Ok(()) };
    let Mistake { path, in_name, text, given, known } = mistake;
    let near = given.and_then(|given| nearest(&given, known.iter().copied()));
    let help = match near {
        Some(near) => format!("did you mean {near}?"),
        None if known.is_empty() => String::new(),
        None => format!("use one of {}", known.join(", ")),
    };
    Err(file.wrong(document, &path, in_name, &text, &help))
}

fn tool_failed(error: &snafu::Whatever) -> Failure {
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
