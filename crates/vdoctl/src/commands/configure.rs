//! `vdoctl configure`: verifies a configuration from a file, flags or questions, and then writes it.
//!
//! ```text
//!   file ─────┐
//!   flags ────┼─► Draft (objects) ─► check ─► verify ─► compare ─► confirm ─► write all or nothing
//!   dialogue ─┘                     schema    vCenter   diff
//! ```

mod dialogue;
mod draft;
mod flags;
mod matrix;
mod proving;

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};
use operator::writing::{self, Comparison};

pub(crate) use self::{
    draft::{Draft, Drivers},
    flags::VcenterFlags,
};
use crate::{
    cluster::{Cluster, ConfigLookup},
    critical,
    diff::diff,
    failure::{Outcome, request},
    options::{Global, OutputFormat},
    screen::Screen,
    text::{CARE, DIM, GOOD, paint},
};

/// Configure the vCenters and the drivers of the cluster.
///
/// Without -f and --vcenter, vdoctl asks questions on the terminal. Before it writes anything, it logs in to
/// every vCenter, reads its inventory, and validates every object with a dry run.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Configure {
    #[command(subcommand)]
    command: Option<ConfigureCommand>,
    #[command(flatten)]
    desired: DesiredDriver,
}

#[derive(Debug, Subcommand)]
enum ConfigureCommand {
    /// The same as without a subcommand, for compatibility with earlier versions.
    #[command(hide = true)]
    Drivers(Box<DesiredDriver>),
    /// Set the catalog of driver releases: a file or a URL.
    #[command(alias = "cm")]
    CompatibilityMatrix(matrix::Matrix),
}

/// `vdoctl update`, for compatibility with earlier versions.
#[derive(Args, Debug)]
pub(crate) struct Update {
    #[command(subcommand)]
    command: UpdateCommand,
}

#[derive(Debug, Subcommand)]
enum UpdateCommand {
    /// Set the catalog of driver releases: a file or a URL.
    #[command(alias = "cm")]
    CompatibilityMatrix(matrix::Matrix),
}

#[derive(Args, Debug, Default)]
pub(crate) struct DesiredDriver {
    /// Objects in YAML: Secret, VsphereCloudConfig, VDOConfig. You can repeat the flag.
    #[arg(long, short, value_name = "FILE", conflicts_with = "vcenter")]
    file: Vec<PathBuf>,
    #[command(flatten)]
    vcenter: VcenterFlags,
    /// The tag category for zones.
    #[arg(long, value_name = "CATEGORY", requires_all = ["vcenter", "region"])]
    zone: Option<String>,
    /// The tag category for regions.
    #[arg(long, value_name = "CATEGORY", requires_all = ["vcenter", "zone"])]
    region: Option<String>,
    /// Install only the storage driver, without a cloud provider.
    #[arg(long, requires = "vcenter")]
    storage_only: bool,
    /// Verify the vCenters and show the changes, but write nothing.
    #[arg(long)]
    dry_run: bool,
    /// Wait until everything is healthy.
    #[arg(long)]
    wait: bool,
    /// Print the objects instead of writing them. The output does not contain passwords.
    #[arg(long, short, value_enum)]
    output: Option<OutputFormat>,
}

impl Update {
    pub(crate) async fn run(&self, global: &Global, screen: &Screen) -> Outcome {
        let UpdateCommand::CompatibilityMatrix(matrix) = &self.command;
        matrix.run(global, screen).await
    }
}

impl Configure {
    pub(crate) async fn run(&self, global: &Global, screen: &Screen) -> Outcome {
        match &self.command {
            Some(ConfigureCommand::CompatibilityMatrix(matrix)) => matrix.run(global, screen).await,
            Some(ConfigureCommand::Drivers(desired)) => Box::pin(desired.run(global, screen)).await,
            None => Box::pin(self.desired.run(global, screen)).await,
        }
    }
}

impl DesiredDriver {
    async fn run(&self, global: &Global, screen: &Screen) -> Outcome {
        // Reports mistakes in files without a cluster.
        let files = match self.file.as_slice() {
            [] => None,
            files => Some(Draft::from_files(files, &global.namespace)?),
        };
        let cluster = Cluster::connect(global).await?;
        // Fails before the questions, not after them.
        let ConfigLookup { config: existing, followed, recorded } = cluster.found().await?;
        let vcenters = cluster.own::<api::VsphereCloudConfig>("VsphereCloudConfigs").await?;
        let mut draft = if let Some(draft) = files {
            draft
        } else if let Some(access) = self.vcenter.access(&vcenters)? {
            let topology = self.zone.clone().zip(self.region.clone());
            let cloud_provider = !self.storage_only;
            let drivers = Drivers { partial: true, cloud_provider, topology, class: None };
            Draft::new(&[access], &drivers, &cluster.namespace, existing.as_ref())
        } else if screen.interactive {
            dialogue::configure(screen, &cluster, existing.as_ref(), &vcenters).await?
        } else {
            return request(
                "no configuration is given, and there is no terminal to ask on",
                "use -f FILE, or --vcenter, --user and --password-file",
            );
        };
        if !followed {
            draft.confirm(recorded.as_ref());
        }
        draft.check_references(&vcenters)?;
        if !draft.proven {
            proving::prove(&mut draft, &cluster, screen).await?;
        }
        if let Some(form) = self.output {
            let texts =
                draft.objects.iter().map(|object| super::formatted(form, &redacted(&object.0)));
            return screen.print(&texts.collect::<Outcome<Vec<_>>>()?.join("---\n"));
        }
        draft.keep_types(&cluster.client).await;
        let compared = writing::compare(&cluster.client, draft.objects.clone()).await;
        let compared = compared.map_err(|error| draft.refused(error))?;
        if compared.iter().all(Comparison::is_same) {
            screen.print("The cluster is configured like this: nothing to change.\n")?;
            return Ok(());
        }
        screen.note("");
        show(&compared, screen)?;
        if self.dry_run {
            screen.note("Nothing was changed.");
            return Ok(());
        }
        let changes = compared.iter().any(|one| !one.is_new() && !one.is_same());
        if draft.asked || changes && screen.interactive {
            screen.confirm("Write this to the cluster?")?;
        }
        let written = critical::section(writing::write_all(&cluster.client, &compared)).await;
        written.map_err(super::deploy::written)?;
        screen.note(&format!("{} Configured.", paint(GOOD, "✔")));
        if self.wait {
            let overview = super::status::wait(&cluster, screen, Duration::from_mins(10)).await?;
            return overview.verdict();
        }
        screen.note("\nNext: vdoctl status --wait");
        Ok(())
    }
}

pub(crate) fn show(compared: &[Comparison], screen: &Screen) -> Outcome {
    let mut text = String::new();
    for one in compared {
        let word = match () {
            () if one.is_new() => paint(GOOD, "new"),
            () if one.is_same() => paint(DIM, "same"),
            () => paint(CARE, "changed"),
        };
        text.extend([&word, " ", &one.id.to_string(), "\n"]);
        if one.is_same() {
            continue;
        }
        let yaml = |value: &serde_json::Value| {
            super::formatted(
                OutputFormat::Yaml,
                &serde_json::json!({"spec": redacted(value)["spec"]}),
            )
        };
        match (&one.before, one.id.kind.as_str()) {
            (_, "Secret" | "ConfigMap") => {}
            (None, _) => {
                for line in yaml(&one.wanted.0)?.lines() {
                    text.extend(["    ", line, "\n"]);
                }
            }
            (Some(before), _) => text.push_str(&diff(&yaml(before)?, &yaml(&one.after)?)),
        }
    }
    screen.print(&text)
}

fn redacted(object: &serde_json::Value) -> serde_json::Value {
    let mut object = object.clone();
    if object["kind"] == "Secret" {
        for part in ["data", "stringData"] {
            for value in object[part].as_object_mut().into_iter().flatten() {
                *value.1 = redaction::REDACTED.into();
            }
        }
    }
    object
}
