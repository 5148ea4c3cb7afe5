//! `vdoctl versions`

use std::time::Duration;

use clap::Args;
use operator::one_shot;
use plan::{
    ObjectId,
    facts::{DriverWorkload, VcenterState, WorkloadRole},
    names,
};
use serde_json::json;

use crate::{
    BUILD,
    cluster::Cluster,
    failure::Outcome,
    options::{Global, OutputFormat},
    progress::ProgressStep,
    screen::Screen,
    text::{CARE, DIM, GOOD, Table, paint},
};

/// Show the versions that run in the cluster, including drivers that VDO did not install.
#[derive(Args, Debug)]
pub(crate) struct Versions {
    /// The output format.
    #[arg(long, short, value_enum)]
    output: Option<OutputFormat>,
}

impl Versions {
    pub(crate) async fn run(&self, global: &Global, screen: &Screen) -> Outcome {
        let cluster = Cluster::connect(global).await?;
        let step = ProgressStep::begin(screen, "Look at the cluster and its vCenters");
        let within = Duration::from_mins(1);
        let observation =
            one_shot::observe_once(&cluster.client, &cluster.namespace, BUILD, within);
        let seen = Box::pin(observation).await;
        let seen = seen.map_err(super::plan::observed)?;
        step.done("");
        if let Some(form) = self.output {
            return screen.print(&super::formatted(form, &as_value(&seen))?);
        }
        let mut table = Table::new(&["WHAT", "VERSION", "PODS", "WHERE"]);
        let kubernetes = seen.around.version.text.trim_start_matches('v').to_owned();
        let platform = seen.around.platform.name().to_owned();
        table.row(["Kubernetes".to_owned(), kubernetes, "-".into(), platform]);
        for ((_, name), vcenter) in &seen.vcenters {
            let version = match &vcenter.state {
                VcenterState::Verified { version, .. } => version.clone(),
                _ => paint(CARE, "unknown"),
            };
            table.row([
                format!("vCenter {name}"),
                version,
                "-".into(),
                vcenter.spec.vc_ip.0.clone(),
            ]);
        }
        for (id, workload) in &seen.workloads {
            let version = workload.version.clone().unwrap_or_else(|| paint(CARE, "unknown"));
            let style = if workload.is_healthy() { GOOD } else { CARE };
            let pods = paint(style, &format!("{}/{}", workload.available, workload.wanted));
            table.row([what(workload), version, pods, place(id, workload)]);
        }
        screen.print(&table.render(screen.width))
    }
}

fn what(workload: &DriverWorkload) -> String {
    let driver = super::plan::name(workload.driver);
    match (workload.driver, workload.role) {
        (::catalog::Driver::Cpi, _) => driver.to_owned(),
        (_, WorkloadRole::Controller) => format!("{driver} controller"),
        (_, WorkloadRole::Node) => format!("{driver} on nodes"),
        (_, WorkloadRole::Helper) => format!("{driver} helper"),
    }
}

fn place(id: &ObjectId, workload: &DriverWorkload) -> String {
    let origin = if workload.labelled { "" } else { ", not installed by VDO" };
    paint(DIM, &format!("{}/{}{origin}", id.namespace, id.name))
}

fn as_value(seen: &one_shot::Observation) -> serde_json::Value {
    let vcenters = seen.vcenters.iter().map(|((namespace, name), vcenter)| {
        let (version, build) = match &vcenter.state {
            VcenterState::Verified { version, build, .. } => (Some(version), Some(build)),
            _ => (None, None),
        };
        json!({"namespace": namespace, "name": name, "version": version, "build": build})
    });
    let workloads = seen.workloads.iter().map(|(id, workload)| {
        json!({
            "driver": workload.driver, "kind": id.kind, "namespace": id.namespace, "name": id.name,
            "version": workload.version, "managedBy": workload.labelled.then_some(names::MANAGED_BY),
            "wanted": workload.wanted, "available": workload.available,
        })
    });
    json!({
        "kubernetes": seen.around.version.text,
        "distribution": seen.around.platform.name(),
        "vcenters": vcenters.collect::<Vec<_>>(),
        "workloads": workloads.collect::<Vec<_>>(),
    })
}
