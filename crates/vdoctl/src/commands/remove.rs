//! `vdoctl remove`: a driver, with what blocks it; or the operator.

use std::time::Duration;

use ::catalog::Driver;
use clap::{Args, ValueEnum};
use kube::api::DeleteParams;
use operator::{
    facts::{Facts, ObjectId},
    install::{self, Allowed},
    names, writing,
};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::{
    arguments::Global,
    cluster::Cluster,
    critical,
    failure::{Doing as _, Failure, Outcome, refuse},
    findings,
    progress::{PACE, Step},
    screen::Screen,
    text::{Table, count, wrap},
};

/// Take a driver away, or the operator.
///
/// Volumes, claims, storage classes, nodes, definitions and namespaces are never deleted. A driver with
/// attached volumes is not removed: what is attached is named.
#[derive(Args, Debug)]
pub(crate) struct Remove {
    /// What to remove.
    #[arg(value_enum)]
    what: What,
    /// Show what blocks it and what would go, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// How long to wait until it is gone, in seconds.
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    timeout: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// The cloud provider.
    Cpi,
    /// The storage driver.
    Csi,
    /// The operator; the drivers go on without it.
    Vdo,
}

impl Remove {
    pub(crate) async fn run(&self, global: &Global, screen: &Screen) -> Outcome {
        match self.what {
            What::Cpi => Box::pin(self.driver(Driver::Cpi, global, screen)).await,
            What::Csi => Box::pin(self.driver(Driver::Csi, global, screen)).await,
            What::Vdo => self.operator(global, screen).await,
        }
    }

    async fn driver(&self, driver: Driver, global: &Global, screen: &Screen) -> Outcome {
        let facts = super::plan::facts(global, screen).await?;
        let name = super::plan::name(driver);
        if facts.record(driver).objects.is_empty() {
            return refuse(
                format!("{name} was not installed by VDO"),
                "what other hands installed is removed the way it was installed",
            );
        }
        screen.print(&preview(&facts, driver, screen.width))?;
        if driver == Driver::Csi && !facts.attached.is_empty() {
            screen.note("Detach them first: drain or stop what uses them.");
            return Err(Failure::Verdict { exit: crate::exit::Exit::Degraded });
        }
        if self.dry_run {
            return Ok(());
        }
        screen.confirm(&format!("Remove {name}?"))?;
        let cluster = Cluster::connect(global).await?;
        let section = super::upgrade::section(driver);
        // What is said about a driver that goes has to go with it.
        let mut part = json!({"mode": "Removed"});
        for field in said_about(driver) {
            part[*field] = serde_json::Value::Null;
        }
        let patch = json!({"spec": {section: part}});
        super::upgrade::patch_config(&cluster, &facts, &patch).await?;
        self.follow(driver, &cluster, screen).await
    }

    /// Waits until nothing of it is left.
    async fn follow(&self, driver: Driver, cluster: &Cluster, screen: &Screen) -> Outcome {
        let end = Instant::now() + Duration::from_secs(self.timeout);
        let mut step = Step::begin(screen, format!("Remove {}", super::plan::name(driver)));
        loop {
            let config = cluster.config().await?;
            let status = config.status.unwrap_or_default();
            let part = match driver {
                Driver::Cpi => &status.cpi,
                Driver::Csi => &status.csi,
            };
            let current = status.observed_generation >= config.metadata.generation;
            let gone = part.as_ref().is_none_or(|part| part.version.is_none());
            if current && gone {
                step.done("");
                return Ok(());
            }
            if Instant::now() > end {
                step.failed("");
                let text = findings::render(&status.findings, screen.width, jiff::Timestamp::now());
                screen.print(&text)?;
                return Err(Failure::TooLate {
                    what: format!("{} was not removed", super::plan::name(driver)),
                    seconds: self.timeout,
                    help: "vdoctl status says what it waits for; it goes on by itself".into(),
                });
            }
            let waits = part.as_ref().and_then(|part| part.status_msg.clone());
            step.waits(&waits.unwrap_or_default());
            sleep(PACE).await;
        }
    }

    async fn operator(&self, global: &Global, screen: &Screen) -> Outcome {
        let cluster = Cluster::connect(global).await?;
        // What is asked about a cluster that does not answer is asked in vain.
        let version =
            cluster.client.apiserver_version().await.doing("asking the cluster who it is")?;
        let allowed = Allowed {
            namespaces: super::driver_namespaces(&cluster).await?,
            old_cloud_controllers: super::has_old_cloud_controllers(&version),
            ..Allowed::default()
        };
        let goes: Vec<ObjectId> = install::objects_for(&allowed)
            .iter()
            .map(ObjectId::of)
            .filter(|id| !matches!(id.kind.as_str(), "CustomResourceDefinition" | "Namespace"))
            .collect();
        let mut table = Table::new(&["GOES", ""]);
        for ObjectId { kind, namespace, name, .. } in &goes {
            let place = if namespace.is_empty() { "" } else { "/" };
            table.row([kind, &format!("{namespace}{place}{name}")]);
        }
        screen.print(&table.render(screen.width))?;
        let stays = "The drivers, the definitions, the VDOConfig and the records stay: a later \
                     vdoctl deploy takes up where this one left.";
        screen.note(&format!("\n{}", wrap("", stays, screen.side_width).trim_end()));
        if self.dry_run {
            return Ok(());
        }
        screen.confirm("Remove the operator?")?;
        let step = Step::begin(screen, "Remove the operator");
        // The Deployment first: without its rights it would only complain.
        let goes: Vec<ObjectId> = goes.into_iter().rev().collect();
        if let Err(failure) = critical::section(delete(&cluster, &goes)).await {
            step.failed("");
            return Err(failure);
        }
        step.done("");
        Ok(())
    }
}

/// Deletes objects in this order, after a trial of all of it: who is refused has changed nothing.
async fn delete(cluster: &Cluster, goes: &[ObjectId]) -> Outcome {
    let mut gone = Vec::new();
    for trial in [true, false] {
        let how = DeleteParams { dry_run: trial, ..DeleteParams::background() };
        for id in goes {
            let api = writing::api_of(&cluster.client, id).map_err(super::deploy::written)?;
            match api.delete(&id.name, &how).await {
                Ok(_) if trial => {}
                Ok(_) => gone.push(id.to_string()),
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(source) => {
                    let source = Box::new(source);
                    return Err(Failure::Undeleted { object: id.to_string(), gone, source });
                }
            }
        }
    }
    Ok(())
}

/// The fields that make no sense beside `mode: Removed`, as the definition says.
fn said_about(driver: Driver) -> &'static [&'static str] {
    match driver {
        Driver::Cpi => &["version", "implementation", "nodes", "nodeDeletion", "nsx"],
        Driver::Csi => &[
            "version",
            "storageClasses",
            "snapshots",
            "fileVolumes",
            "maxVolumesPerNode",
            "topologyCategories",
            "migrationDatastoreUrl",
            "tuning",
        ],
    }
}

/// What would go, and what is in the way.
fn preview(facts: &Facts, driver: Driver, width: usize) -> String {
    let record = facts.record(driver);
    let kept = |id: &&ObjectId| {
        !matches!(id.kind.as_str(), "Namespace" | "CustomResourceDefinition" | "StorageClass")
    };
    let goes = record.objects.iter().filter(kept).count();
    let name = super::plan::name(driver);
    let mut text = wrap(
        "",
        &format!(
            "{name} {}: {} would go.",
            record.version.as_deref().unwrap_or_default(),
            count(goes, "object")
        ),
        width,
    );
    if driver == Driver::Csi {
        for (volume, node) in facts.attached.iter().take(20) {
            text.push_str(&wrap("  ", &format!("{volume} is attached to {node}"), width));
        }
        if facts.attached.len() > 20 {
            let more = facts.attached.len() - 20;
            text.push_str(&wrap("  ", &format!("and {more} more"), width));
        }
    } else {
        let tainted = facts.cluster.nodes.iter().filter(|node| !node.is_initialized()).count();
        if tainted > 0 {
            text.push_str(&wrap(
                "  ",
                &format!("{} still wait for it ({})", count(tainted, "node"), names::UNINITIALIZED),
                width,
            ));
        }
        text.push_str(&wrap("  ", "New nodes will wait for another cloud provider.", width));
    }
    text
}
