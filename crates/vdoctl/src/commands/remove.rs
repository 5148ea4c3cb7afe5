//! `vdoctl remove`

use std::time::Duration;

use ::catalog::Driver;
use clap::{Args, ValueEnum};
use kube::api::DeleteParams;
use operator::{
    install::{self, Allowed},
    writing,
};
use plan::{ObjectId, facts::Facts, is_deleted, is_kept, names};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::{
    cluster::Cluster,
    critical,
    failure::{Doing as _, Failure, Outcome, refuse},
    findings,
    options::Global,
    progress::{PACE, ProgressStep},
    screen::Screen,
    text::{Table, count, wrap},
};

/// Remove a driver, or the operator.
///
/// VDO never deletes volumes, claims, storage classes, nodes, CRDs or namespaces. It does not remove the
/// storage driver while volumes are attached; it lists them instead.
#[derive(Args, Debug)]
pub(crate) struct Remove {
    /// The component to remove.
    #[arg(value_enum)]
    component: Component,
    /// Show what blocks the removal, what VDO deletes and what it keeps. Change nothing.
    #[arg(long)]
    dry_run: bool,
    /// How long to wait for the removal to finish, in seconds.
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    timeout: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Component {
    /// The cloud provider.
    Cpi,
    /// The storage driver.
    Csi,
    /// The operator. The drivers keep running.
    Vdo,
}

impl Remove {
    pub(crate) async fn run(&self, global: &Global, screen: &Screen) -> Outcome {
        match self.component {
            Component::Cpi => Box::pin(self.driver(Driver::Cpi, global, screen)).await,
            Component::Csi => Box::pin(self.driver(Driver::Csi, global, screen)).await,
            Component::Vdo => self.operator(global, screen).await,
        }
    }

    async fn driver(&self, driver: Driver, global: &Global, screen: &Screen) -> Outcome {
        let facts = super::plan::facts(global, screen).await?;
        let name = super::plan::name(driver);
        if facts.record(driver).objects.is_empty() {
            return refuse(
                format!("{name} was not installed by VDO"),
                "remove it with the tool that installed it",
            );
        }
        screen.print(&preview(&facts, driver, screen.width))?;
        if driver == Driver::Csi && !facts.attached.is_empty() {
            screen.note(
                "Detach the volumes first: stop the pods that use them, or drain their nodes.",
            );
            return Err(Failure::Verdict { exit: crate::exit::Exit::Degraded });
        }
        if self.dry_run {
            return Ok(());
        }
        screen.confirm(&format!("Remove {name}?"))?;
        let cluster = Cluster::connect(global).await?;
        let section = super::upgrade::section(driver);
        let mut spec = json!({"mode": "Removed"});
        for field in invalid_when_removed(driver) {
            spec[*field] = serde_json::Value::Null;
        }
        let patch = json!({"spec": {section: spec}});
        super::upgrade::patch_config(&cluster, &facts, &patch).await?;
        self.wait_until_removed(driver, &cluster, screen).await
    }

    async fn wait_until_removed(
        &self,
        driver: Driver,
        cluster: &Cluster,
        screen: &Screen,
    ) -> Outcome {
        let end = Instant::now() + Duration::from_secs(self.timeout);
        let mut step = ProgressStep::begin(screen, format!("Remove {}", super::plan::name(driver)));
        loop {
            let config = cluster.config().await?;
            let status = config.status.unwrap_or_default();
            let driver_status = match driver {
                Driver::Cpi => &status.cpi,
                Driver::Csi => &status.csi,
            };
            let current = status.observed_generation >= config.metadata.generation;
            let gone = driver_status.as_ref().is_none_or(|status| status.version.is_none());
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
                    help: "the operator continues; vdoctl status shows what it waits for".into(),
                });
            }
            let message = driver_status.as_ref().and_then(|status| status.status_msg.clone());
            step.waits(&message.unwrap_or_default());
            sleep(PACE).await;
        }
    }

    async fn operator(&self, global: &Global, screen: &Screen) -> Outcome {
        let cluster = Cluster::connect(global).await?;
        let version =
            cluster.client.apiserver_version().await.doing("asking the cluster who it is")?;
        let allowed = Allowed {
            namespaces: super::driver_namespaces(&cluster).await?,
            old_cloud_controllers: super::has_old_cloud_controllers(&version),
            ..Allowed::default()
        };
        let (kept, deleted): (Vec<ObjectId>, Vec<ObjectId>) = install::objects_for(&allowed)
            .iter()
            .map(ObjectId::from_object)
            .partition(|id| is_kept(&id.kind) || install::is_needed_by_drivers(&id.name));
        screen.print(&objects(&deleted, &kept, screen.width))?;
        let note = "The drivers, the VDOConfig and VDO's records stay. If you run vdoctl deploy later, \
                    VDO continues with them.";
        screen.note(&format!("\n{}", wrap("", note, screen.side_width).trim_end()));
        if self.dry_run {
            return Ok(());
        }
        screen.confirm("Remove the operator?")?;
        let step = ProgressStep::begin(screen, "Remove the operator");
        // The Deployment first, because the operator needs its permissions until it stops.
        let deleted: Vec<ObjectId> = deleted.into_iter().rev().collect();
        if let Err(failure) = critical::section(delete(&cluster, &deleted)).await {
            step.failed("");
            return Err(failure);
        }
        step.done("");
        Ok(())
    }
}

/// Deletes objects in this order. A dry run of all deletions comes first, so that a user without permission
/// changes nothing.
async fn delete(cluster: &Cluster, objects: &[ObjectId]) -> Outcome {
    let mut gone = Vec::new();
    for dry_run in [true, false] {
        let parameters = DeleteParams { dry_run, ..DeleteParams::background() };
        for id in objects {
            let api = writing::api_of(&cluster.client, id).map_err(super::deploy::written)?;
            match api.delete(&id.name, &parameters).await {
                Ok(_) if dry_run => {}
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

/// The fields that the CRD does not allow together with `mode: Removed`.
fn invalid_when_removed(driver: Driver) -> &'static [&'static str] {
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

/// The objects that VDO deletes and keeps, and what blocks the removal.
fn preview(facts: &Facts, driver: Driver, width: usize) -> String {
    let record = facts.record(driver);
    let (deleted, kept): (Vec<ObjectId>, Vec<ObjectId>) =
        record.objects.iter().cloned().partition(|id| is_deleted(facts, driver, id));
    let version = record.version.as_deref().unwrap_or_default();
    let title = format!(
        "{} {version}: VDO deletes {} and keeps {}.",
        super::plan::name(driver),
        count(deleted.len(), "object"),
        kept.len(),
    );
    let mut text = wrap("", &title, width) + &objects(&deleted, &kept, width);
    if driver == Driver::Csi {
        for (volume, node) in facts.attached.iter().take(20) {
            text.push_str(&wrap("  ", &format!("{volume} is attached to {node}"), width));
        }
        if facts.attached.len() > 20 {
            let more = facts.attached.len() - 20;
            text.push_str(&wrap("  ", &format!("and {more} more"), width));
        }
    } else {
        let tainted = facts.cluster.nodes().filter(|node| !node.is_initialized()).count();
        if tainted > 0 {
            let waiting = format!(
                "Waiting for a cloud provider: {} ({})",
                count(tainted, "node"),
                names::UNINITIALIZED
            );
            text.push_str(&wrap("  ", &waiting, width));
        }
        text.push_str(&wrap("  ", "New nodes will wait for another cloud provider.", width));
    }
    text
}

fn objects(deleted: &[ObjectId], kept: &[ObjectId], width: usize) -> String {
    let mut text = String::new();
    for (heading, all) in [("DELETED", deleted), ("KEPT", kept)] {
        let mut table = Table::new(&[heading, ""]);
        for ObjectId { kind, namespace, name, .. } in all {
            let slash = if namespace.is_empty() { "" } else { "/" };
            table.row([kind, &format!("{namespace}{slash}{name}")]);
        }
        if !table.is_empty() {
            text.push_str(&table.render(width));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_preview_keeps_what_the_operator_keeps() {
        let id = |kind: &str, namespace: &str| ObjectId {
            api_version: "v1".into(),
            kind: kind.into(),
            namespace: namespace.into(),
            name: "one".into(),
        };
        let all = vec![
            id("Deployment", "vmware-system-csi"),
            id("StorageClass", ""),
            id("VolumeSnapshotClass", ""),
        ];
        let (kept, deleted): (Vec<_>, Vec<_>) = all.into_iter().partition(|id| is_kept(&id.kind));
        let shown = anstream::adapter::strip_str(&objects(&deleted, &kept, 80)).to_string();
        assert_eq!(
            shown,
            "  DELETED\n  Deployment  vmware-system-csi/one\n  KEPT\n  StorageClass         one\n  \
             VolumeSnapshotClass  one\n"
        );
    }
}
