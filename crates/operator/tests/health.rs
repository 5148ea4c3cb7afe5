//! Faults of the field, made for real: each is named in the status, and no longer once it is cured.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::{fmt::Write as _, time::Duration};

use api::{Severity, VDOConfigStatus};
use common::Stage;
use serde_json::json;
use testkit::{Breakage, FaultProxy, Permission, Process, Site, Vm};
use tokio::time::Instant;

const MACHINE: &str = "/DC0/vm/node-2";
const NODE: &str = "node-2";

struct Scene {
    stage: Stage,
    proxy: FaultProxy,
    operator: Process,
    asked: u32,
}

impl Scene {
    async fn set() -> Self {
        let mut stage = Stage::of(2, false).await;
        let proxy = FaultProxy::before(stage.vcenter.address()).await;
        stage.address = Some(proxy.address());
        let operator = stage.operator();
        stage
            .configure(json!({
                "cloudProvider": {
                    "vsphereCloudConfigs": ["vc"],
                    "topology": {"zone": "k8s-zone", "region": "k8s-region"},
                },
                "storageProvider": {"vsphereCloudConfig": "vc"},
            }))
            .await;
        stage.ready(&operator, 90).await;
        Self { stage, proxy, operator, asked: 0 }
    }

    /// Where things are broken. What vCenter does not tell of is asked for by annotation, as an admin
    /// would.
    fn site(&self) -> Site<'_> {
        let Self { stage, proxy, .. } = self;
        Site {
            client: stage.client(),
            vcenter: &stage.vcenter,
            proxy,
            nodes: stage.nodes.as_ref().unwrap(),
            vm: Vm::numbered("node", 2),
            permission: Permission::new(stage.vcenter.user(), "Admin", "/"),
            vcenter_config: "vc",
            secret: "vc-credentials",
        }
    }

    /// Asks for a check of everything, and waits until it was made.
    async fn ask(&mut self) {
        self.asked += 1;
        self.stage.check_now(&self.asked.to_string()).await;
    }

    async fn is_well(&self, when: &str) {
        let well = |status: &VDOConfigStatus| {
            status.findings.iter().all(|finding| finding.severity == Severity::Info)
        };
        self.stage.status(&format!("nothing is wrong {when}"), 60, well).await;
    }

    /// A finding somebody lives with is shown as such, and nothing is degraded by it.
    async fn accept_a_finding(&self) {
        let accepted = json!([{"code": "VDO-1203", "object": "node-2", "reason": "next week"}]);
        self.stage.change(json!({"spec": {"acknowledgements": accepted}})).await;
        self.site().make(Breakage::named("disk-uuid").unwrap()).await.unwrap();
        let shown = |status: &VDOConfigStatus| {
            let finding = status.findings.iter().find(|finding| finding.code == "VDO-1203");
            let reason = finding.and_then(|finding| finding.acknowledged.as_ref());
            reason.is_some_and(|accepted| accepted.reason == "next week")
                && api::condition::is_true(&status.conditions, "Ready")
                && status.health.as_ref().is_some_and(|h| (h.errors, h.acknowledged) == (0, 1))
        };
        self.stage.status("the finding is accepted", 60, shown).await;
        self.stage.change(json!({"spec": {"acknowledgements": null}})).await;
        let raised = |status: &VDOConfigStatus| {
            status.findings.iter().any(|f| f.code == "VDO-1203" && f.acknowledged.is_none())
        };
        self.stage.status("it is raised again", 60, raised).await;
    }

    /// What VDO may repair it repairs, and it says what is left to do.
    async fn let_vdo_repair(&self) {
        self.stage.change(json!({"spec": {"remediation": {"diskUuid": "Fix"}}})).await;
        let only = |code: &str, status: &VDOConfigStatus| {
            let wrong = status.findings.iter().filter(|f| f.severity > Severity::Info);
            wrong.map(|finding| finding.code.as_str()).eq([code])
        };
        let waits = |status: &VDOConfigStatus| only("VDO-1231", status);
        self.stage.status("the machine needs a power cycle", 60, waits).await;
        let truth = self.stage.vcenter.truth().await;
        let vms = truth["datacenters"][0]["vms"].as_array().unwrap();
        let vm = vms.iter().find(|vm| vm["name"] == NODE).unwrap();
        assert_eq!(vm["diskUuid"], true, "it is set in vCenter");
        self.stage.vcenter.patch_vm(MACHINE, json!({"power": "off"})).await;
        self.stage.vcenter.patch_vm(MACHINE, json!({"power": "on"})).await;
        self.is_well("after the repair and a power cycle").await;
    }

    /// Makes a fault and cures it; returns how long each took to be noticed.
    async fn play(&mut self, case: &Breakage) -> (Duration, Duration) {
        let named = |status: &VDOConfigStatus| {
            status.findings.iter().any(|finding| finding.code == case.code)
        };
        let what = format!("{} is named: {}", case.what, case.code);
        // The clock starts before the fault is made; what vCenter does not tell of is found when asked.
        let mut begin = Instant::now();
        self.site().make(case).await.unwrap();
        if case.asks {
            begin = Instant::now();
            self.ask().await;
        }
        self.stage.status(&what, 60, named).await;
        let appeared = begin.elapsed();
        let mut begin = Instant::now();
        self.site().undo(case).await.unwrap();
        if case.asks {
            begin = Instant::now();
            self.ask().await;
        }
        let cleared = format!("{} is cured: no {}", case.what, case.code);
        self.stage.status(&cleared, 60, |status| !named(status)).await;
        let cured = begin.elapsed();
        assert!(self.operator.ended().is_none(), "{}", self.operator.tail());
        (appeared, cured)
    }
}

#[tokio::test]
async fn every_fault_is_named_while_it_lasts_and_a_healthy_cluster_has_none() {
    let mut scene = Scene::set().await;
    scene.is_well("at first").await;
    let mut seconds = String::new();
    for case in Breakage::ALL {
        let (appeared, cured) = scene.play(case).await;
        scene.is_well(&format!("after {}", case.what)).await;
        let (appeared, cured) = (appeared.as_secs_f64(), cured.as_secs_f64());
        let asked = if case.asks { ", asked for" } else { "" };
        let line = format!(
            "{}\t{}{asked}\t{appeared:.1}\t{cured:.1}\t{}\t",
            case.code, case.what, case.row
        );
        writeln!(seconds, "{line}").unwrap();
    }
    scene.accept_a_finding().await;
    scene.let_vdo_repair().await;
    assert_eq!(scene.stage.refusals(), Vec::<String>::new(), "the shipped RBAC is enough");
    if let Ok(path) = std::env::var("VDO_HEALTH_SECONDS") {
        std::fs::write(path, seconds).unwrap();
    }
}
