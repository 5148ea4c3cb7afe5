//! The operator's status and `vdoctl doctor` report the same findings about the same cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use api::{Finding, VsphereCloudConfig};
use catalog::Driver;
use health::Examination;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use operator::health_facts::collect_once;
use runtime::build::BuildInfo;
use serde_json::{Value, json};
use testkit::eventually;

use super::{Fixture, common::NAMESPACE};

/// The severities and the objects of each finding, by code.
type Reported = BTreeMap<String, BTreeSet<String>>;

/// The operator reports missing answers only after this time, because a new operator still waits for them.
const FIRST_ANSWERS: Duration = Duration::from_mins(1);

fn reported<'f>(findings: impl IntoIterator<Item = &'f Finding>) -> Reported {
    let mut reported = Reported::new();
    for finding in findings {
        // The operator reports the others while it plans.
        let checks = health::checks::all().iter();
        if checks.flat_map(|check| check.gives).any(|given| given.code == finding.code) {
            let objects = finding.objects.iter();
            let severity = finding.severity;
            let objects =
                objects.map(|object| format!("{severity:?} {} {}", object.kind, object.name));
            reported.entry(finding.code.clone()).or_default().extend(objects);
        }
    }
    reported
}

impl Fixture {
    /// The findings of a one-shot check with the permissions of a cluster admin, as `vdoctl doctor` reports them.
    async fn doctor(&self) -> Reported {
        let client = self.testbed.client();
        let cluster = Some((&client, NAMESPACE));
        let collected = collect_once(cluster, None, BuildInfo::new("doctor")).await;
        for session in collected.sessions.values() {
            session.shut_down().await;
        }
        reported(&Examination::run(collected.facts).report().findings())
    }

    /// Waits until both report the same: after a fault, the operator updates its status several times.
    pub(crate) async fn doctor_agrees(&self, fault: &str) {
        eventually(&format!("the doctor and the status agree on {fault}"), 60, async || {
            let doctor = self.doctor().await;
            let status = self.testbed.config().await.status.unwrap_or_default();
            let status = reported(&status.findings);
            let early = self.started.elapsed() < FIRST_ANSWERS;
            let codes = doctor.keys().chain(status.keys());
            let mut codes = codes.filter(|code| !early || *code != "VDO-1801");
            let differs = |code: &&String| doctor.get(*code) != status.get(*code);
            match codes.find(differs) {
                None => Ok(()),
                Some(code) => Err(format!("{code}\ndoctor: {doctor:#?}\nstatus: {status:#?}")),
            }
        })
        .await;
    }

    /// The checks compare with the settings of the VDOConfig, not with the defaults.
    pub(crate) async fn doctor_uses_the_configured_settings(&mut self) {
        let threshold = |most: Option<i32>| {
            let tuning = json!({"listVolumeThreshold": most});
            json!({"spec": {"storageProvider": {"tuning": tuning}}})
        };
        self.testbed.change(threshold(Some(1))).await;
        let volumes = Api::<PersistentVolume>::all(self.testbed.client());
        for name in ["lost-1", "lost-2"] {
            let volume = json!({
                "metadata": {"name": name},
                "spec": {
                    "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
                    "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "none",
                    "csi": {"driver": "csi.vsphere.vmware.com", "volumeHandle": name},
                },
            });
            let volume: PersistentVolume = serde_json::from_value(volume).unwrap();
            volumes.create(&PostParams::default(), &volume).await.unwrap();
        }
        self.check_now().await;
        self.testbed.finding("VDO-1516", 60).await;
        self.doctor_agrees("a list volume threshold of 1").await;
        for name in ["lost-1", "lost-2"] {
            volumes.delete(name, &DeleteParams::default()).await.unwrap();
        }
        self.testbed.change(threshold(None)).await;
        self.check_now().await;
        self.is_healthy("after the volumes are gone").await;
    }

    /// Both report mistakes in a VsphereCloudConfig.
    pub(crate) async fn doctor_checks_the_configuration(&mut self) {
        let configs = Api::<VsphereCloudConfig>::namespaced(self.testbed.client(), NAMESPACE);
        let patch = async |spec: Value| {
            let patch = Patch::Merge(json!({"spec": spec}));
            configs.patch("vc", &PatchParams::default(), &patch).await.unwrap();
        };
        let thumbprint = self.testbed.vcenter.thumbprint_sha1();
        for (code, wrong, right) in [
            ("VDO-1003", json!({"credentials": "none"}), json!({"credentials": "vc-credentials"})),
            (
                "VDO-1008",
                json!({"insecure": true, "thumbprint": null}),
                json!({"insecure": false, "thumbprint": thumbprint}),
            ),
        ] {
            patch(wrong).await;
            self.testbed.finding(code, 60).await;
            self.doctor_agrees(code).await;
            patch(right).await;
            self.is_healthy(&format!("after {code}")).await;
        }
    }

    /// The checks judge the releases by the catalog that the CompatibilityConfig names, not by the embedded one.
    pub(crate) async fn doctor_uses_the_configured_catalog(&mut self) {
        // VDO would replace a release that does not fit.
        self.testbed.change(json!({"spec": {"paused": true}})).await;
        self.testbed.finding("VDO-1906", 60).await;
        let mut narrow = catalog::embedded().clone();
        narrow.newest_kubernetes = narrow.releases.iter().map(|r| r.kubernetes.max).max();
        for release in narrow.releases.iter_mut().filter(|release| release.driver == Driver::Csi) {
            release.kubernetes.max = release.kubernetes.min;
            release.kubernetes.tolerates = None;
        }
        self.testbed.write_catalog(&catalog::write(&narrow)).await;
        self.testbed.follow_catalog().await;
        self.testbed.finding("VDO-1620", 60).await;
        self.doctor_agrees("a catalog without a release for this cluster").await;
    }
}
