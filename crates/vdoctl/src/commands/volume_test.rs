//! `vdoctl test`

mod cleanup;
mod evidence;
mod objects;
mod observation;
mod ownership;
mod report;
mod run;
mod targets;

use std::{collections::BTreeMap, time::Duration};

use clap::Args;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::Node,
    storage::v1::{CSINode, StorageClass},
};
use kube::{Api, ResourceExt, api::ListParams};
use plan::names::{CSI_DRIVER, VOLUME_TEST};
use serde_json::json;

use self::{
    cleanup::Cleanup,
    objects::{PodTemplate, TestObjects},
    report::TestReport,
    run::VolumeTest,
    targets::Target,
};
use crate::{
    cluster::Cluster,
    critical,
    exit::Exit,
    failure::{Doing as _, Failure, Outcome, refuse},
    options::{Global, OutputFormat},
    progress::ProgressStep,
    screen::Screen,
    text::{STRONG, Table, count, nearest, paint, wrap},
};

/// Test storage with a new volume in each zone and StorageClass.
///
/// For each StorageClass of the storage driver, and for each zone, vdoctl makes a volume, attaches it, writes to it, moves
/// it to another node, reads it there and deletes it. It shows the time of each step, and for a failed step the reason. The
/// exit code is 3 if a step failed.
///
/// vdoctl uses a copy of the StorageClass with a new name, so the test can never bind or delete an existing volume. The
/// pods run the operator's image in its namespace. vdoctl deletes everything again, also after a failure or Ctrl-C.
#[derive(Args, Debug)]
pub(crate) struct Test {
    /// Test this StorageClass instead of all. You can repeat the flag.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    storage_class: Vec<String>,
    /// Test only in this zone. You can repeat the flag.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    zone: Vec<String>,
    /// The size of each volume.
    #[arg(long, value_name = "QUANTITY", default_value = "1Gi", value_parser = size)]
    size: String,
    /// The timeout of each step, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// Show what vdoctl would make, and make nothing.
    #[arg(long, conflicts_with = "clean")]
    dry_run: bool,
    /// Delete what an earlier test left behind, because it was killed.
    #[arg(long, conflicts_with_all = ["storage_class", "zone", "output"])]
    clean: bool,
    /// The output format.
    #[arg(long, short, value_enum)]
    output: Option<OutputFormat>,
}

/// Checks a size: a whole number of bytes, with or without a suffix.
fn size(text: &str) -> Result<String, String> {
    let at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, suffix) = text.split_at(at);
    let known = ["", "k", "M", "G", "T", "P", "Ki", "Mi", "Gi", "Ti", "Pi"];
    let is_positive = number.parse::<u64>().is_ok_and(|number| number > 0);
    if is_positive && known.contains(&suffix) {
        return Ok(text.to_owned());
    }
    Err("write the size as 1Gi or 500Mi".to_owned())
}

impl Test {
    pub(crate) async fn run(&self, global: &Global, screen: &Screen) -> Outcome {
        let cluster = Cluster::connect(global).await?;
        if self.clean {
            return Box::pin(self.clean(&cluster, screen)).await;
        }
        let template = template(&cluster).await?;
        let classes = self.classes(&cluster).await?;
        let (targets, untested) = self.targets(&cluster, &template, &classes).await?;
        let leftovers = cleanup::labelled(&cluster).await?;
        if !leftovers.is_empty() {
            screen.note(&left_behind(&leftovers));
        }
        if self.dry_run {
            for report in &untested {
                screen.print(&report.render(screen.width))?;
            }
            return self.preview(&cluster, &template, &targets, screen);
        }
        let reports = self.run_all(&cluster, &template, &targets, untested, screen);
        let reports = critical::section(reports).await?;
        if let Some(form) = self.output {
            let passed = reports.iter().all(TestReport::passed);
            let all = json!({"passed": passed, "tests": reports, "leftovers": leftovers});
            screen.print(&super::formatted(form, &all)?)?;
        }
        let failed = reports.iter().filter(|report| report.failed()).count();
        if failed > 0 {
            let all = count(reports.len(), "test");
            screen.note(&format!("{failed} of {all} failed."));
        }
        match (critical::is_stopped(), failed) {
            (true, _) => Err(Failure::Stopped),
            (_, 0) => Ok(()),
            _ => Err(Failure::Verdict { exit: Exit::Degraded }),
        }
    }

    /// Tests one volume after the other, so that the times do not depend on each other.
    async fn run_all(
        &self,
        cluster: &Cluster,
        template: &PodTemplate,
        targets: &[Target],
        untested: Vec<TestReport>,
        screen: &Screen,
    ) -> Outcome<Vec<TestReport>> {
        let mut reports = Vec::new();
        let show = |report: &TestReport| match self.output {
            Some(_) => Ok(()),
            None => screen.print(&format!("{}\n", report.render(screen.width))),
        };
        for report in untested {
            show(&report)?;
            reports.push(report);
        }
        for target in targets {
            if critical::is_stopped() {
                break;
            }
            let objects = TestObjects::new(target, template, &cluster.namespace, &self.size)?;
            let timeout = Duration::from_secs(self.timeout);
            let test = VolumeTest::new(cluster, target, objects, &template.image, timeout, screen);
            let report = Box::pin(test.run()).await;
            show(&report)?;
            reports.push(report);
        }
        Ok(reports)
    }

    /// The StorageClasses to test, without the copies of other tests.
    async fn classes(&self, cluster: &Cluster) -> Outcome<Vec<StorageClass>> {
        let api = Api::<StorageClass>::all(cluster.client.clone());
        let all = api.list(&ListParams::default()).await.doing("listing the StorageClasses")?;
        let copy = |class: &StorageClass| class.labels().contains_key(VOLUME_TEST);
        let all: Vec<StorageClass> = all.into_iter().filter(|class| !copy(class)).collect();
        wanted_classes(all, &self.storage_class)
    }

    /// The volumes to test, and a report for each class that fits no node.
    async fn targets(
        &self,
        cluster: &Cluster,
        template: &PodTemplate,
        classes: &[StorageClass],
    ) -> Outcome<(Vec<Target>, Vec<TestReport>)> {
        let every = ListParams::default();
        let nodes = Api::<Node>::all(cluster.client.clone());
        let nodes = nodes.list(&every).await.doing("listing nodes")?.items;
        let csi_nodes = Api::<CSINode>::all(cluster.client.clone());
        let csi_nodes = csi_nodes.list(&every).await.doing("listing CSINodes")?.items;
        let candidates = targets::candidates(&nodes, &csi_nodes, &template.tolerations);
        if candidates.is_empty() {
            return refuse(
                "no node can run the test: a node must be Ready, accept pods and have the storage driver",
                "vdoctl status shows the storage driver; kubectl get csinodes shows where it is registered",
            );
        }
        if let Some(zone) = targets::unknown_zones(&candidates, &self.zone).first() {
            let known: Vec<String> = targets::zone_names(&candidates).into_iter().collect();
            return refuse(
                format!("no node that can run the test is in zone {zone}"),
                match known.as_slice() {
                    [] => "the storage driver reports no zones: omit --zone".to_owned(),
                    known => format!("there are {}", known.join(", ")),
                },
            );
        }
        let (mut all, mut untested) = (Vec::new(), Vec::new());
        for class in classes {
            let of_class = targets::targets(class, &candidates, &self.zone);
            if of_class.is_empty() && self.zone.is_empty() {
                let why =
                    "allowedTopologies of this StorageClass match no node that can run the test";
                untested.push(TestReport::untested(class.name_any(), why.to_owned()));
            }
            all.extend(of_class);
        }
        if all.is_empty() && untested.is_empty() {
            return refuse(
                format!("no StorageClass allows volumes in {}", self.zone.join(", ")),
                "allowedTopologies of a StorageClass name its zones",
            );
        }
        Ok((all, untested))
    }

    fn preview(
        &self,
        cluster: &Cluster,
        template: &PodTemplate,
        targets: &[Target],
        screen: &Screen,
    ) -> Outcome {
        let namespace = &cluster.namespace;
        let mut all = Vec::new();
        for target in targets {
            let objects = TestObjects::new(target, template, namespace, &self.size)?;
            if self.output.is_some() {
                let TestObjects { class, claim, writer, reader, .. } = objects;
                all.push(json!({
                    "storageClass": target.class.name_any(), "zone": target.zone.name(),
                    "nodes": target.nodes(), "objects": [class, claim, writer, reader],
                }));
            } else {
                let text = previewed(target, &objects, namespace, &self.size, screen.width);
                screen.print(&text)?;
            }
        }
        if let Some(form) = self.output {
            screen.print(&super::formatted(form, &json!({"tests": all}))?)?;
        }
        screen.note("Nothing was made.");
        Ok(())
    }

    async fn clean(&self, cluster: &Cluster, screen: &Screen) -> Outcome {
        let found = cleanup::labelled(cluster).await?;
        if found.is_empty() {
            return screen.print("No test left anything behind.\n");
        }
        let objects: Vec<&String> = found.values().flatten().collect();
        for object in &objects {
            screen.print(&wrap("  ", object, screen.width))?;
        }
        screen.note("If a test runs now, these are its objects. Their volumes are deleted, too.");
        screen.confirm(&format!("Delete {}?", count(objects.len(), "object")))?;
        let timeout = Duration::from_secs(self.timeout);
        let mut left = Vec::new();
        let mut step = ProgressStep::begin(screen, "Delete the objects of tests");
        let deleting = async {
            for id in found.keys() {
                let cleanup = Cleanup { cluster, id, timeout };
                left.extend(cleanup.run(|what| step.waits(what)).await);
            }
        };
        Box::pin(critical::section(deleting)).await;
        if left.is_empty() {
            step.done("");
            return Ok(());
        }
        step.failed("");
        for line in left {
            screen.print(&wrap("  ", &line, screen.width))?;
        }
        Err(Failure::Verdict { exit: Exit::Degraded })
    }
}

/// Reads the image and the settings that the pods of the test share with the operator's pods.
async fn template(cluster: &Cluster) -> Outcome<PodTemplate> {
    let deployments = Api::<Deployment>::namespaced(cluster.client.clone(), &cluster.namespace);
    let operator = deployments.get_opt("vdo").await.doing("reading the operator's Deployment")?;
    operator.and_then(PodTemplate::of_operator).ok_or(Failure::NotInstalled)
}

/// The named classes, or all of the driver.
fn wanted_classes(all: Vec<StorageClass>, wanted: &[String]) -> Outcome<Vec<StorageClass>> {
    let is_ours = |class: &StorageClass| class.provisioner == CSI_DRIVER;
    for name in wanted {
        match all.iter().find(|class| class.name_any() == *name) {
            Some(class) if is_ours(class) => {}
            Some(class) => {
                return refuse(
                    format!("StorageClass {name} is of the driver {}", class.provisioner),
                    format!("vdoctl tests only classes of {CSI_DRIVER}"),
                );
            }
            None => {
                let names: Vec<String> =
                    all.iter().filter(|class| is_ours(class)).map(ResourceExt::name_any).collect();
                let help = match nearest(name, names.iter().map(String::as_str)) {
                    Some(near) => format!("did you mean {near}?"),
                    None => "kubectl get storageclasses lists them".to_owned(),
                };
                return refuse(format!("there is no StorageClass {name}"), help);
            }
        }
    }
    let is_wanted = |class: &StorageClass| {
        is_ours(class) && (wanted.is_empty() || wanted.contains(&class.name_any()))
    };
    let classes: Vec<StorageClass> = all.into_iter().filter(is_wanted).collect();
    if classes.is_empty() {
        return refuse(
            format!("the cluster has no StorageClass of {CSI_DRIVER}"),
            "vdoctl storage-class adds one",
        );
    }
    Ok(classes)
}

fn left_behind(leftovers: &BTreeMap<String, Vec<String>>) -> String {
    let objects: Vec<&str> = leftovers.values().flatten().map(String::as_str).collect();
    format!(
        "An earlier test, or one that runs now, has {}. To delete them: vdoctl test --clean",
        objects.join(", ")
    )
}

fn previewed(
    target: &Target,
    objects: &TestObjects,
    namespace: &str,
    size: &str,
    width: usize,
) -> String {
    let class = target.class.name_any();
    let mut parts = vec![paint(STRONG, &class)];
    parts.extend(target.zone.name());
    let mut table = Table::plain();
    let TestObjects { class: copy, claim, writer, reader, .. } = objects;
    table.row(["StorageClass".to_owned(), format!("{}, a copy of {class}", copy.name_any())]);
    let claim = format!("{namespace}/{}, {size}", claim.name_any());
    table.row(["PersistentVolumeClaim".to_owned(), claim]);
    let pod = |pod: String, node: &str| ["Pod".to_owned(), format!("{namespace}/{pod} on {node}")];
    table.row(pod(writer.name_any(), &target.first));
    table.row(pod(reader.name_any(), &target.second));
    wrap("", &parts.join(" · "), width) + &table.render(width)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(name: &str, provisioner: &str) -> StorageClass {
        let metadata = json!({"name": name});
        serde_json::from_value(json!({"metadata": metadata, "provisioner": provisioner})).unwrap()
    }

    fn names(wanted: &[&str], all: Vec<StorageClass>) -> Result<Vec<String>, String> {
        let wanted: Vec<String> = wanted.iter().map(|&name| name.to_owned()).collect();
        match wanted_classes(all, &wanted) {
            Ok(classes) => Ok(classes.iter().map(ResourceExt::name_any).collect()),
            Err(failure) => Err(failure.to_string()),
        }
    }

    #[test]
    fn without_a_name_every_class_of_the_driver_is_tested() {
        let all = || {
            vec![
                class("gold", CSI_DRIVER),
                class("nfs", "nfs.csi.k8s.io"),
                class("tin", CSI_DRIVER),
            ]
        };
        assert_eq!(names(&[], all()).unwrap(), ["gold", "tin"]);
        assert_eq!(names(&["tin"], all()).unwrap(), ["tin"]);
        assert_eq!(names(&["glod"], all()).unwrap_err(), "there is no StorageClass glod");
        let other = names(&["nfs"], all()).unwrap_err();
        assert_eq!(other, "StorageClass nfs is of the driver nfs.csi.k8s.io");
        let none = names(&[], vec![class("nfs", "nfs.csi.k8s.io")]).unwrap_err();
        assert_eq!(none, "the cluster has no StorageClass of csi.vsphere.vmware.com");
    }

    #[test]
    fn a_size_is_a_number_of_bytes() {
        for right in ["1Gi", "500Mi", "1073741824", "2T"] {
            assert_eq!(size(right).unwrap(), right);
        }
        for wrong in ["", "0", "0Gi", "-1Gi", "1 Gi", "1GB", "Gi", "100m", "1.5Gi", "lots"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
