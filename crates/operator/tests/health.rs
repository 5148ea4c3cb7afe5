//! Injects faults from the field. VDO reports each in the status, and clears it once it is fixed. A one-shot check
//! reports the same meanwhile, and the printed commands fix what commands can fix.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

#[path = "health/agreement.rs"]
mod agreement;
mod common;

use std::{fmt::Write as _, time::Duration};

use api::{Severity, VDOConfigStatus};
use common::{Testbed, fixes::Fixes};
use serde_json::json;
use testkit::{
    Breakage, ControlPlane, Datacenter, FaultProxy, Inventory, Permission, Process, Site, Vm,
};
use tokio::time::Instant;

const VM_PATH: &str = "/DC0/vm/node-2";
const NODE: &str = "node-2";

struct Fixture {
    testbed: Testbed,
    proxy: FaultProxy,
    operator: Process,
    started: Instant,
    requests: u32,
    fixes: Fixes,
}

impl Fixture {
    async fn start() -> Self {
        let plane = ControlPlane::builder().with_controllers().with_audit().start().await;
        // With two datacenters, govc requires a path or a datacenter.
        let mut inventory = Inventory::with_vms(3);
        inventory.datacenters.push(Datacenter { name: "DC1".into(), ..Datacenter::default() });
        let mut testbed = Testbed::on_inventory(plane, inventory, false).await;
        let proxy = FaultProxy::before(testbed.vcenter.address()).await;
        testbed.address = Some(proxy.address());
        let (operator, started) = (testbed.operator(), Instant::now());
        testbed
            .configure(json!({
                "cloudProvider": {
                    "vsphereCloudConfigs": ["vc"],
                    "topology": {"zone": "k8s-zone", "region": "k8s-region"},
                },
                "storageProvider": {"vsphereCloudConfig": "vc"},
            }))
            .await;
        testbed.ready(&operator, 90).await;
        let fixes = Fixes::start(&testbed).await;
        Self { testbed, proxy, operator, started, requests: 0, fixes }
    }

    /// The targets of the faults.
    fn site(&self) -> Site<'_> {
        let Self { testbed, proxy, .. } = self;
        Site {
            client: testbed.client(),
            vcenter: &testbed.vcenter,
            proxy,
            nodes: testbed.nodes.as_ref().unwrap(),
            vm: Vm::numbered("node", 2),
            permission: Permission::new(testbed.vcenter.user(), "Admin", "/"),
            vcenter_config: "vc",
            secret: "vc-credentials",
        }
    }

    /// Requests a complete check, and waits for it.
    async fn check_now(&mut self) {
        self.requests += 1;
        self.testbed.check_now(&self.requests.to_string()).await;
    }

    async fn is_healthy(&self, when: &str) {
        let healthy = |status: &VDOConfigStatus| {
            status.findings.iter().all(|finding| finding.severity == Severity::Info)
        };
        self.testbed.status(&format!("no findings {when}"), 60, healthy).await;
    }

    /// An accepted finding is shown as accepted, and does not degrade VDO.
    async fn accept_a_finding(&self) {
        let accepted = json!([{"code": "VDO-1203", "object": "node-2", "reason": "next week"}]);
        self.testbed.change(json!({"spec": {"acknowledgements": accepted}})).await;
        self.site().make(Breakage::named("disk-uuid").unwrap()).await.unwrap();
        let shown = |status: &VDOConfigStatus| {
            let finding = status.findings.iter().find(|finding| finding.code == "VDO-1203");
            let reason = finding.and_then(|finding| finding.acknowledged.as_ref());
            reason.is_some_and(|accepted| accepted.reason == "next week")
                && api::condition::is_true(&status.conditions, "Ready")
                && status.health.as_ref().is_some_and(|h| (h.errors, h.acknowledged) == (0, 1))
        };
        self.testbed.status("the finding is accepted", 60, shown).await;
        self.doctor_agrees("an accepted finding").await;
        self.testbed.change(json!({"spec": {"acknowledgements": null}})).await;
        let raised = |status: &VDOConfigStatus| {
            status.findings.iter().any(|f| f.code == "VDO-1203" && f.acknowledged.is_none())
        };
        self.testbed.status("the finding is no longer accepted", 60, raised).await;
    }

    /// VDO makes the repairs that the spec allows, and reports the remaining step.
    async fn let_vdo_repair(&self) {
        self.testbed.change(json!({"spec": {"remediation": {"diskUuid": "Fix"}}})).await;
        let only = |code: &str, status: &VDOConfigStatus| {
            let wrong = status.findings.iter().filter(|f| f.severity > Severity::Info);
            wrong.map(|finding| finding.code.as_str()).eq([code])
        };
        let waits = |status: &VDOConfigStatus| only("VDO-1231", status);
        self.testbed.status("the VM needs a power cycle", 60, waits).await;
        self.doctor_agrees("a VM that needs a power cycle").await;
        let truth = self.testbed.vcenter.truth().await;
        let vms = truth["datacenters"][0]["vms"].as_array().unwrap();
        let vm = vms.iter().find(|vm| vm["name"] == NODE).unwrap();
        assert_eq!(vm["diskUuid"], true, "diskUuid is set in vCenter");
        self.testbed.vcenter.patch_vm(VM_PATH, json!({"power": "off"})).await;
        self.testbed.vcenter.patch_vm(VM_PATH, json!({"power": "on"})).await;
        self.is_healthy("after the repair and a power cycle").await;
    }

    /// VDO writes a status only if something changed.
    async fn nothing_is_written_without_a_reason(&self, state: &str) {
        let writes = self.testbed.status_writes_in_a_lasting_state(&self.operator).await;
        assert_eq!(writes, Vec::<String>::new(), "{state}");
    }

    /// vCenter becomes unreachable, next to findings that last.
    async fn lose_vcenter(&self) {
        self.proxy.cut();
        self.testbed.finding("VDO-1901", 60).await;
        self.nothing_is_written_without_a_reason("vCenter is unreachable").await;
        self.proxy.heal();
    }

    /// Injects a fault, executes its printed fix, and reverts what is left of the fault. Returns how long VDO took to
    /// report and to clear it. To measure this, nothing is executed.
    async fn measure(&mut self, case: &Breakage) -> (Duration, Duration) {
        let reported = |status: &VDOConfigStatus| {
            status.findings.iter().any(|finding| finding.code == case.code)
        };
        let what = format!("{} is reported: {}", case.what, case.code);
        // The clock starts before the fault; for a fault that needs a check on request, with the request.
        let mut begin = Instant::now();
        self.site().make(case).await.unwrap();
        if case.asks {
            begin = Instant::now();
            self.check_now().await;
        }
        self.testbed.status(&what, 60, reported).await;
        let appeared = begin.elapsed();
        self.doctor_agrees(case.name).await;
        if std::env::var_os("VDO_HEALTH_SECONDS").is_none() {
            self.fixes.execute(&self.testbed, case.what, case.code).await;
        }
        let mut begin = Instant::now();
        self.site().undo(case).await.unwrap();
        if case.asks {
            begin = Instant::now();
            self.check_now().await;
        }
        let condition = format!("{} is fixed: no {}", case.what, case.code);
        self.testbed.status(&condition, 60, |status| !reported(status)).await;
        let cleared = begin.elapsed();
        assert!(self.operator.ended().is_none(), "{}", self.operator.tail());
        (appeared, cleared)
    }
}

#[tokio::test]
async fn every_fault_is_reported_while_it_lasts_and_a_healthy_cluster_has_none() {
    let mut fixture = Fixture::start().await;
    fixture.is_healthy("at first").await;
    fixture.nothing_is_written_without_a_reason("a healthy cluster").await;
    let mut seconds = String::new();
    for case in Breakage::ALL {
        let (appeared, cleared) = fixture.measure(case).await;
        fixture.is_healthy(&format!("after {}", case.what)).await;
        let (appeared, cleared) = (appeared.as_secs_f64(), cleared.as_secs_f64());
        let suffix = if case.asks { ", asked for" } else { "" };
        let line = format!(
            "{}\t{}{suffix}\t{appeared:.1}\t{cleared:.1}\t{}\t",
            case.code, case.what, case.row
        );
        writeln!(seconds, "{line}").unwrap();
    }
    if std::env::var_os("VDO_HEALTH_SECONDS").is_none() {
        fixture.fixes.assert_complete(Breakage::ALL.len());
    }
    fixture.accept_a_finding().await;
    fixture.nothing_is_written_without_a_reason("a finding that lasts").await;
    fixture.let_vdo_repair().await;
    fixture.doctor_uses_the_configured_settings().await;
    fixture.doctor_checks_the_configuration().await;
    fixture.doctor_uses_the_configured_catalog().await;
    fixture.lose_vcenter().await;
    assert_eq!(
        fixture.testbed.denied_requests(),
        Vec::<String>::new(),
        "the shipped RBAC is enough"
    );
    if let Ok(path) = std::env::var("VDO_HEALTH_SECONDS") {
        std::fs::write(path, seconds).unwrap();
    }
}
