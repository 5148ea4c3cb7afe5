//! Changes the passwords of two vCenters again and again, while nodes die, the other vCenter is unreachable, operators
//! are killed, upgrades wait and catalogs expire. Thirty seconds after vCenter accepts a new password, no driver logs in
//! with the old one, and no account is ever locked.
//!
//! The drivers' pods do not run here. The test simulates them and their kubelets, see [`Driver`]: it logs in to vCenter
//! with the credentials that the leading pod of a driver has, as often as a driver without a session does. Every other
//! pod can lead next, so each one on a node that is up must get the new password too.
//!
//! The test runs a few rotations, or as many as `VDO_SEEDS` says. A failure names its seed; `VDO_SEED` runs only that
//! one.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

mod common;
#[path = "rotation_campaign/driver.rs"]
mod driver;

use std::{collections::BTreeMap, time::Duration};

use api::{CompatibilityConfig, VDOConfig, VDOConfigStatus, VsphereCloudConfig};
use catalog::trust::{Bundle, SigningKey};
use common::{NAMESPACE, Testbed};
use driver::{DEAD, Driver, Reads, Session};
use driver_config::SecretText;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    admissionregistration::v1::{
        ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding, ValidatingWebhookConfiguration,
    },
    apps::v1::DaemonSet,
    core::v1::{Node as KubeNode, Secret},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use testkit::{
    Fault, FaultProxy, Inventory, Node, Process, SeededRandom, Vcenter, VcenterUser, Vm, eventually,
};
use tokio::time::Instant;
use vsphere::{Client, Credentials as Login, Trust};

/// How long a driver can take to use a password after vCenter accepts it.
const ROTATION_LIMIT: Duration = Duration::from_secs(30);
/// The number of failed logins in a row that lock an account, for both drivers together: vCenter's default.
const LOCKED_AFTER: u32 = 5;
/// How often the test looks which pod leads.
const POLL: Duration = Duration::from_millis(100);
/// The maximum number of rotations.
const MAX_ROTATIONS: u64 = 200;

/// The release of the storage driver that runs while a newer one waits.
const HELD_RELEASE: &str = "3.6.3";

const CPI: &str = "vsphere-cloud-controller-manager";
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";
/// The control-plane nodes that are always up.
const LIVE: [&str; 2] = ["node-1", "node-2"];
/// A node that is up and becomes a control-plane node. Its pods do not run.
const BROKEN: &str = "node-3";
/// The prefix of the names of Ready nodes without a VM.
const STRAY: &str = "stray-";

fn seeds() -> Vec<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match (number("VDO_SEED"), number("VDO_SEEDS")) {
        (Some(seed), _) => vec![seed],
        (None, Some(count)) => (1..=count.min(MAX_ROTATIONS)).collect(),
        (None, None) => (1..=8).collect(),
    }
}

/// The state of the vCenter whose password does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OtherVcenter {
    Works,
    /// It accepts no connection.
    Refuses,
    /// It accepts connections and never answers.
    Hangs,
}

/// A Node without a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WithoutVm {
    No,
    /// Its kubelet still reports.
    Ready,
    /// A control-plane node whose kubelet is down. Nothing replaces or ends the pod of the cloud controller on it.
    Dead,
}

/// The circumstances of a password change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rotation {
    /// Whether the password of the second vCenter changes, not of the first.
    second: bool,
    without_vm: WithoutVm,
    other: OtherVcenter,
    /// The operator is killed this many milliseconds after the admin writes the Secret. Its container restarts.
    killed_after: Option<u64>,
    /// The new release waits for its window, not for an approval.
    window: bool,
    /// The signed catalog in use has expired.
    catalog: bool,
    /// Milliseconds from the change in vCenter to the change of the Secret.
    pause: u64,
}

impl Rotation {
    /// Nothing else happens.
    const QUIET: Self = Self {
        second: false,
        without_vm: WithoutVm::No,
        other: OtherVcenter::Works,
        killed_after: None,
        window: false,
        catalog: false,
        pause: 0,
    };

    fn from_seed(seed: u64) -> Self {
        let mut random = SeededRandom::new(seed);
        Self {
            second: random.one_in(3),
            without_vm: match random.below(6) {
                0 | 1 => WithoutVm::Dead,
                2 => WithoutVm::Ready,
                _ => WithoutVm::No,
            },
            other: match random.below(6) {
                0 => OtherVcenter::Refuses,
                1 => OtherVcenter::Hangs,
                _ => OtherVcenter::Works,
            },
            killed_after: random.one_in(4).then(|| random.below(1_500)),
            window: random.one_in(2),
            catalog: random.one_in(5),
            pause: random.below(800),
        }
    }
}

#[test]
fn the_sample_covers_every_kind_of_fault() {
    let sample: Vec<Rotation> = (1..=8).map(Rotation::from_seed).collect();
    let some = |is: fn(&Rotation) -> bool| sample.iter().any(is);
    assert!(some(|r| r.second) && some(|r| !r.second), "{sample:?}");
    let without_vm = |kind| sample.iter().any(|r| r.without_vm == kind);
    for kind in [WithoutVm::No, WithoutVm::Ready, WithoutVm::Dead] {
        assert!(without_vm(kind), "{kind:?}: {sample:?}");
    }
    // VDO restarts the pods right after a dead Node is deleted, and Kubernetes deletes its pod later.
    let deleted = sample
        .windows(2)
        .any(|two| two[0].without_vm == WithoutVm::Dead && two[1].without_vm != WithoutVm::Dead);
    assert!(deleted, "{sample:?}");
    assert!(some(|r| r.killed_after.is_some()) && some(|r| r.catalog), "{sample:?}");
    assert!(some(|r| r.window) && some(|r| !r.window), "{sample:?}");
    let other = |state| sample.iter().any(|r| r.other == state);
    assert!(other(OtherVcenter::Refuses) && other(OtherVcenter::Hangs), "{sample:?}");
}

#[tokio::test]
async fn no_driver_logs_in_with_an_old_password_for_long_and_no_account_is_locked() {
    let mut campaign = Campaign::start().await;
    let mut slowest = Duration::ZERO;
    let began = Instant::now();
    for seed in seeds() {
        let took = campaign.rotate(seed, Rotation::from_seed(seed)).await;
        slowest = slowest.max(took);
    }
    campaign.rotate_while_repairs_hang().await;
    campaign.rotate_while_the_status_is_refused().await;
    campaign.rotate_while_a_webhook_is_down().await;
    campaign.rotate_while_paused().await;
    campaign.rotate_while_a_pod_is_broken().await;
    campaign.assert_no_account_is_locked("at the end").await;
    println!(
        "{} rotations in {:.0?}, {} of them with a node that is down and {} with an expired signed catalog: the slowest \
         reached all pods of both drivers after \
         {slowest:.1?}, {} driver logins, {} of them refused",
        seeds().len(),
        began.elapsed(),
        seeds()
            .into_iter()
            .filter(|seed| Rotation::from_seed(*seed).without_vm == WithoutVm::Dead)
            .count(),
        campaign.expired_catalogs,
        campaign.logins,
        campaign.refused,
    );
    assert_eq!(campaign.testbed.denied_requests(), Vec::<String>::new());
    assert_eq!(campaign.testbed.forbidden_deletions(), Vec::<String>::new());
}

/// A catalog with all releases of this cluster, signed.
fn signed(key: &SigningKey, serial: u64, expires: Timestamp) -> String {
    let issued = expires - SignedDuration::from_hours(1);
    let text = common::catalog().lines().fold(String::new(), |text, line| {
        text + &match line.split_once(':') {
            Some(("serial", _)) => format!("serial: {serial}\n"),
            Some(("issued", _)) => format!("issued: {issued}\n"),
            Some(("expires", _)) => format!("expires: {expires}\n"),
            _ => format!("{line}\n"),
        }
    });
    Bundle::sign(text.as_bytes(), std::slice::from_ref(key)).to_json()
}

struct VcenterConfig {
    /// The name of the VsphereCloudConfig.
    name: &'static str,
    /// The host in the configuration of the drivers.
    host: &'static str,
    /// The name of the Secret.
    credentials: &'static str,
    password: String,
}

struct Campaign {
    testbed: Testbed,
    other: Vcenter,
    /// In front of the first vCenter and of the other.
    proxies: [FaultProxy; 2],
    configs: [VcenterConfig; 2],
    drivers: [Driver; 2],
    operator: Process,
    /// Signs the catalogs.
    key: SigningKey,
    serial: u64,
    /// Whether the catalog in use has expired.
    expired: bool,
    expired_catalogs: usize,
    logins: usize,
    refused: usize,
}

impl Campaign {
    /// Starts both drivers. An upgrade waits, and both vCenters lock accounts.
    async fn start() -> Self {
        let mut testbed = Testbed::with_nodes(2).await;
        let label = json!({"metadata": {"labels": {CONTROL_PLANE: ""}}});
        let nodes = Api::<KubeNode>::all(testbed.client());
        for name in LIVE {
            nodes.patch(name, &PatchParams::default(), &Patch::Merge(&label)).await.unwrap();
        }
        // All operators run in one pod, one after the other, and each crash counts as the first one: in a cluster,
        // they are not minutes apart.
        testbed.variables = vec![("VDO_RESUME_AGAIN", "0")];
        let mut inventory = Inventory::small()
            .vms([Vm::numbered("far", 1)])
            .category("k8s-region", &[("region-1", &["/DC0"])])
            .category("k8s-zone", &[("zone-a", &["/DC0/host/cluster-a"])]);
        for datastore in inventory.datacenters.iter_mut().flat_map(|dc| &mut dc.datastores) {
            datastore.url = format!("ds:///vmfs/volumes/other-{}/", datastore.name);
        }
        let other = Vcenter::start(inventory).await;
        let proxies = [
            FaultProxy::before(testbed.vcenter.address()).await,
            FaultProxy::before(other.address()).await,
        ];
        testbed.address = Some(proxies[0].address());
        let config = |name, host, credentials, vcenter: &Vcenter| VcenterConfig {
            name,
            host,
            credentials,
            password: vcenter.password().to_owned(),
        };
        let configs = [
            config("vc", "127.0.0.1", "vc-credentials", &testbed.vcenter),
            config("other", "localhost", "other-credentials", &other),
        ];
        let (key, _) = SigningKey::generate().unwrap();
        let serial = 1_000;
        let valid = Timestamp::now() + SignedDuration::from_hours(24);
        testbed.write_catalog(&signed(&key, serial, valid)).await;
        let config = json!({
            "metadata": {"name": "catalog", "namespace": NAMESPACE},
            "spec": {"bundle": {"configMap": "vdo-catalog"}, "publicKey": key.public().to_string()},
        });
        let config: CompatibilityConfig = serde_json::from_value(config).unwrap();
        let catalogs = Api::<CompatibilityConfig>::namespaced(testbed.client(), NAMESPACE);
        catalogs.create(&PostParams::default(), &config).await.unwrap();
        let client = testbed.client();
        let cpi = ("kube-system", plan::names::CPI_SECRET);
        let csi = ("vmware-system-csi", plan::names::CSI_SECRET);
        let drivers = [
            Driver::watch(&client, cpi, &format!("name={CPI}"), Reads::AtStart, &LIVE),
            Driver::watch(&client, csi, "app=vsphere-csi-controller", Reads::File, &[]),
        ];
        let operator = start_operator(&testbed);
        let mut campaign = Self {
            testbed,
            other,
            proxies,
            configs,
            drivers,
            operator,
            key,
            serial,
            expired: false,
            expired_catalogs: 0,
            logins: 0,
            refused: 0,
        };
        campaign.install().await;
        campaign
    }

    async fn install(&mut self) {
        let testbed = &self.testbed;
        self.write_secret(1, self.other.password()).await;
        let port = self.proxies[1].address().port();
        let config = json!({
            "metadata": {"name": self.configs[1].name},
            "spec": {
                "vcIp": format!("{}:{port}", self.configs[1].host), "insecure": false,
                "thumbprint": self.other.thumbprint_sha1(),
                "credentials": self.configs[1].credentials, "datacenters": ["DC0"],
            },
        });
        let config: VsphereCloudConfig = serde_json::from_value(config).unwrap();
        let vcenters = Api::<VsphereCloudConfig>::namespaced(testbed.client(), NAMESPACE);
        vcenters.create(&PostParams::default(), &config).await.unwrap();
        testbed
            .configure(json!({
                "cloudProvider": {
                    "vsphereCloudConfigs": ["vc", "other"],
                    "topology": {"zone": "k8s-zone", "region": "k8s-region"},
                },
                "storageProvider": {"vsphereCloudConfigs": ["vc", "other"], "version": HELD_RELEASE},
            }))
            .await;
        testbed.ready(&self.operator, 120).await;
        for window in [true, false] {
            self.hold_the_upgrade(window).await;
            self.upgrade_is_held(window).await;
        }
    }

    /// A newer release of the storage driver exists, and waits for a window or an approval. A rotation does not check
    /// the status: the API server can refuse it, and a fault of the rotation before can hide the newer release.
    async fn hold_the_upgrade(&self, window: bool) {
        let later = Timestamp::now() + SignedDuration::from_hours(6);
        let window =
            window.then(|| json!({"start": later.strftime("%H:00").to_string(), "duration": "1h"}));
        let policy = if window.is_some() { "Stable" } else { "Manual" };
        let upgrades = json!({"policy": policy, "window": window});
        let change = json!({"upgrades": upgrades, "storageProvider": {"version": null}});
        self.testbed.change(json!({"spec": change})).await;
    }

    /// The status shows the newer release and the reason why it waits. Otherwise the rotations would not show that a new
    /// password does not wait for an upgrade.
    async fn upgrade_is_held(&self, window: bool) {
        let reason = if window { "waits for the maintenance window" } else { "approve-csi=" };
        let generation = self.testbed.config().await.metadata.generation;
        let held = |status: &VDOConfigStatus| {
            let csi = status.csi.clone().unwrap_or_default();
            let newer = csi.target.is_some_and(|target| target != HELD_RELEASE);
            let plan = serde_json::to_string(&status.plan).unwrap();
            let observed = status.observed_generation == generation;
            observed
                && newer
                && csi.version.as_deref() == Some(HELD_RELEASE)
                && plan.contains(reason)
        };
        self.testbed.status(&format!("an upgrade is held: {reason}"), 60, held).await;
        self.assert_the_held_release_runs(reason).await;
    }

    /// Reads the workloads, not the status: a rotation can end before VDO has written it.
    async fn assert_the_held_release_runs(&self, what: &str) {
        let controller = self.testbed.controller().await.spec.unwrap().template;
        let node = self.testbed.node_driver().await.spec.unwrap().template;
        let held = format!("/driver:v{HELD_RELEASE}");
        for template in [controller, node] {
            let containers = template.spec.unwrap().containers.into_iter();
            let images: Vec<String> = containers.filter_map(|container| container.image).collect();
            let runs = images.iter().any(|image| image.contains(&held));
            assert!(runs, "{what}: the storage driver was upgraded: {images:?}");
        }
    }

    /// Writes a signed catalog that expires after a few seconds and waits until it is in use and expired, or replaces an
    /// expired catalog with a valid one.
    async fn write_signed_catalog(&mut self, expired: bool) {
        if !expired && !self.expired {
            return;
        }
        self.expired = expired;
        self.serial += 1;
        let valid =
            if expired { SignedDuration::from_secs(10) } else { SignedDuration::from_hours(24) };
        let until = Timestamp::now() + valid;
        self.testbed.write_catalog(&signed(&self.key, self.serial, until)).await;
        let catalogs = Api::<CompatibilityConfig>::namespaced(self.testbed.client(), NAMESPACE);
        eventually("the catalog is in use", 60, async || {
            let status = catalogs.get("catalog").await.unwrap().status.unwrap_or_default();
            if status.serial == i64::try_from(self.serial).ok() {
                Ok(())
            } else {
                Err(format!("{status:?}"))
            }
        })
        .await;
        if expired {
            self.testbed.finding("VDO-1105", 60).await;
            self.expired_catalogs += 1;
        }
    }

    /// Adds a Node without a VM, and deletes those of another kind. Each has a new name, because parts of a Node remain for
    /// a while.
    async fn node_without_vm(&self, seed: u64, kind: WithoutVm) {
        let prefix = match kind {
            WithoutVm::No => None,
            WithoutVm::Ready => Some(STRAY),
            WithoutVm::Dead => Some(DEAD),
        };
        let nodes = Api::<KubeNode>::all(self.testbed.client());
        let all = nodes.list(&ListParams::default()).await.unwrap().items;
        let names = all.iter().map(ResourceExt::name_any);
        let names = names.filter(|name| name.starts_with(DEAD) || name.starts_with(STRAY));
        let (kept, others): (Vec<String>, Vec<String>) =
            names.partition(|name| prefix.is_some_and(|prefix| name.starts_with(prefix)));
        for name in others {
            nodes.delete(&name, &DeleteParams::default()).await.unwrap();
        }
        let Some(prefix) = prefix.filter(|_| kept.is_empty()) else { return };
        let uuid = format!("42100000-dead-dead-dead-{seed:012}");
        let name = format!("{prefix}{seed}");
        let node = Node::named(&name).system_uuid(&uuid);
        let node = node.provider_id(&format!("vsphere://{uuid}"));
        let simulated = self.testbed.nodes.as_ref().unwrap();
        if kind == WithoutVm::Ready {
            simulated.add(node).await;
            return;
        }
        simulated.add(node.control_plane()).await;
        eventually("the cloud controller runs on the node", 60, async || {
            let runs = self.drivers[0].pods_on(&name).iter().any(|pod| pod.runs);
            if runs { Ok(()) } else { Err(self.drivers[0].describe()) }
        })
        .await;
        simulated.stop_kubelet(&name).await;
        let sets = Api::<DaemonSet>::namespaced(self.testbed.client(), "kube-system");
        // Kubernetes counts a pod on a tainted node as misscheduled.
        eventually("Kubernetes has noticed that the node is down", 60, async || {
            let status = sets.get(CPI).await.unwrap().status.unwrap();
            let lost = status.number_unavailable.unwrap_or(0) + status.number_misscheduled;
            if lost > 0 { Ok(()) } else { Err(format!("{status:?}")) }
        })
        .await;
    }

    /// The pod of the cloud controller on a node that is down is as it was, or Terminating.
    fn assert_dead_pod_remains(&self, what: &str) {
        let dead = self.drivers[0].pods_on(DEAD);
        assert!(!dead.is_empty() && dead.iter().all(|pod| !pod.runs), "{what}: {dead:?}");
    }

    async fn write_secret(&self, number: usize, password: &str) {
        let name = self.configs[number].credentials;
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/basic-auth",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "stringData": {"username": self.vcenter(number).user(), "password": password},
        });
        let secrets = Api::<Secret>::namespaced(self.testbed.client(), NAMESPACE);
        let apply = PatchParams::apply("test").force();
        secrets.patch(name, &apply, &Patch::Apply(secret)).await.unwrap();
    }

    fn vcenter(&self, number: usize) -> &Vcenter {
        if number == 0 { &self.testbed.vcenter } else { &self.other }
    }

    async fn assert_no_account_is_locked(&self, when: &str) {
        for number in 0..2 {
            let users = self.vcenter(number).users().await;
            let locked = |user: &serde_json::Value| user["locked"] == true;
            assert!(!users.as_array().unwrap().iter().any(locked), "{when}: {users}");
        }
    }

    /// Changes the password of one account. Returns how long both drivers took to use it after vCenter accepts it.
    async fn rotate(&mut self, seed: u64, rotation: Rotation) -> Duration {
        let what = format!("seed {seed} {rotation:?}");
        let number = usize::from(rotation.second);
        self.assert_no_account_is_locked(&what).await;
        self.hold_the_upgrade(rotation.window).await;
        self.node_without_vm(seed, rotation.without_vm).await;
        self.write_signed_catalog(rotation.catalog).await;
        let other_proxy = &self.proxies[1 - number];
        match rotation.other {
            OtherVcenter::Works => other_proxy.heal(),
            OtherVcenter::Refuses => other_proxy.cut(),
            OtherVcenter::Hangs => other_proxy.black_hole(),
        }
        self.proxies[number].heal();

        let old = self.configs[number].password.clone();
        let new = format!("p#{seed}\"\\ä;{}", Timestamp::now().as_nanosecond());
        self.configs[number].password.clone_from(&new);
        let mut user = VcenterUser::new(self.vcenter(number).user(), &new);
        user.lock_after = LOCKED_AFTER;
        self.vcenter(number).set_user(&user).await;
        let since = Instant::now();
        tokio::time::sleep(Duration::from_millis(rotation.pause)).await;
        self.write_secret(number, &new).await;
        let kill_at =
            rotation.killed_after.map(|millis| Instant::now() + Duration::from_millis(millis));
        let took = self.drivers_log_in(number, since, kill_at, &what).await;
        self.assert_the_held_release_runs(&what).await;
        if rotation.without_vm == WithoutVm::Dead {
            self.assert_dead_pod_remains(&what);
        }
        for driver in &self.drivers {
            let secrets = Api::<Secret>::namespaced(self.testbed.client(), driver.namespace);
            let data = secrets.get(driver.secret).await.unwrap().data.unwrap();
            let has = |text: &str| data.values().any(|value| contains(&value.0, text.as_bytes()));
            // The storage driver's file escapes some characters.
            let part = |text: &str| text.rsplit(';').next().unwrap_or_default().to_owned();
            assert!(has(&part(&new)), "{what}: {}", driver.secret);
            // Before the first change both vCenters have the same password.
            let shared = self.configs[1 - number].password == old;
            assert!(
                shared || !has(&part(&old)),
                "{what}: {} still has the old password",
                driver.secret
            );
        }
        took
    }

    /// VDO repairs VMs in a vCenter that takes minutes for each. The password of the other vCenter does not wait.
    async fn rotate_while_repairs_hang(&mut self) {
        // The last rotation can have left the first vCenter unreachable.
        self.proxies[0].heal();
        let slow = Fault::on("ReconfigVM_Task").task_never_ends();
        self.testbed.vcenter.fault(slow).await;
        for vm in ["/DC0/vm/node-1", "/DC0/vm/node-2"] {
            self.testbed.vcenter.patch_vm(vm, json!({"diskUuid": false})).await;
        }
        self.testbed.change(json!({"spec": {"remediation": {"diskUuid": "Fix"}}})).await;
        eventually("a repair is in progress", 60, async || {
            match self.testbed.vcenter.calls().await.count("ReconfigVM_Task") {
                0 => Err(self.operator.tail()),
                _ => Ok(()),
            }
        })
        .await;
        self.rotate(1_001, Rotation { second: true, ..Rotation::QUIET }).await;
        self.testbed.vcenter.clear_faults().await;
        self.testbed.change(json!({"spec": {"remediation": null}})).await;
    }

    /// The API server refuses the status of the VDOConfig. The drivers still get the password.
    async fn rotate_while_the_status_is_refused(&mut self) {
        const NAME: &str = "no-status";
        let group = "admissionregistration.k8s.io/v1";
        let policy = json!({
            "apiVersion": group, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": NAME},
            "spec": {
                "matchConstraints": {"resourceRules": [{
                    "apiGroups": [api::GROUP], "apiVersions": ["*"], "operations": ["UPDATE"],
                    "resources": ["vdoconfigs/status"],
                }]},
                "validations": [{"expression": "false"}],
            },
        });
        let binding = json!({
            "apiVersion": group, "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": NAME},
            "spec": {"policyName": NAME, "validationActions": ["Deny"]},
        });
        let policy: ValidatingAdmissionPolicy = serde_json::from_value(policy).unwrap();
        let policies = Api::<ValidatingAdmissionPolicy>::all(self.testbed.client());
        policies.create(&PostParams::default(), &policy).await.unwrap();
        let binding: ValidatingAdmissionPolicyBinding = serde_json::from_value(binding).unwrap();
        let bindings = Api::<ValidatingAdmissionPolicyBinding>::all(self.testbed.client());
        bindings.create(&PostParams::default(), &binding).await.unwrap();
        self.rotate(1_002, Rotation::QUIET).await;
        bindings.delete(NAME, &DeleteParams::default()).await.unwrap();
        policies.delete(NAME, &DeleteParams::default()).await.unwrap();
    }

    /// The admission webhook for every status is down, so the API server answers with an error of its own. The drivers
    /// still get the password.
    async fn rotate_while_a_webhook_is_down(&mut self) {
        const NAME: &str = "no-answer";
        let hook = json!({
            "metadata": {"name": NAME},
            "webhooks": [{
                "name": "no-answer.example.com", "failurePolicy": "Fail", "sideEffects": "None",
                "admissionReviewVersions": ["v1"], "timeoutSeconds": 5,
                // Nothing listens there.
                "clientConfig": {"url": "https://127.0.0.1:1/"},
                "rules": [{
                    "apiGroups": [api::GROUP], "apiVersions": ["*"], "operations": ["UPDATE"],
                    "resources": ["vdoconfigs/status", "vspherecloudconfigs/status"],
                }],
            }],
        });
        let hook: ValidatingWebhookConfiguration = serde_json::from_value(hook).unwrap();
        let hooks = Api::<ValidatingWebhookConfiguration>::all(self.testbed.client());
        hooks.create(&PostParams::default(), &hook).await.unwrap();
        self.status_is_refused(true).await;
        // Both statuses have news that the operator tries to write.
        let vcenters = Api::<VsphereCloudConfig>::namespaced(self.testbed.client(), NAMESPACE);
        let same = Patch::Merge(json!({"spec": {"insecure": null}}));
        let other = self.configs[1].name;
        vcenters.patch(other, &PatchParams::default(), &same).await.unwrap();
        self.testbed.change(json!({"spec": {"remediation": {"diskUuid": "Propose"}}})).await;
        self.rotate(1_003, Rotation::QUIET).await;
        let log = self.operator.log();
        assert!(log.contains("failed calling webhook"), "{}", self.operator.tail());
        hooks.delete(NAME, &DeleteParams::default()).await.unwrap();
        self.status_is_refused(false).await;
        self.testbed.change(json!({"spec": {"remediation": null}})).await;
    }

    /// Waits until a webhook refuses the status of the VDOConfig, or no longer does.
    async fn status_is_refused(&self, refused: bool) {
        let configs = Api::<VDOConfig>::namespaced(self.testbed.client(), NAMESPACE);
        let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
        let patch = Patch::Merge(json!({"status": {"observedGeneration": 0}}));
        eventually("the API server has noticed the webhook", 30, async || {
            match configs.patch_status("vdo-config", &dry_run, &patch).await {
                Err(kube::Error::Api(status)) if status.code == 500 && refused => Ok(()),
                Ok(_) if !refused => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }

    /// A paused VDO passes no password on, and reports that one waits.
    async fn rotate_while_paused(&mut self) {
        for proxy in &self.proxies {
            proxy.heal();
        }
        self.testbed.change(json!({"spec": {"paused": true}})).await;
        self.testbed.finding("VDO-1906", 30).await;
        let new = format!("paused-{}", Timestamp::now().as_nanosecond());
        let mut user = VcenterUser::new(self.vcenter(0).user(), &new);
        user.lock_after = LOCKED_AFTER;
        self.vcenter(0).set_user(&user).await;
        self.write_secret(0, &new).await;
        let waits = self.testbed.finding_about("VDO-1316", 30, &["vc", "paused"]).await;
        let text = serde_json::to_string(&waits).unwrap();
        assert!(!text.contains(&new), "a finding shows no password: {text}");
        for driver in &self.drivers {
            let same = driver.all_have(self.configs[0].host, &self.configs[0].password);
            assert!(same, "VDO must change nothing: {}", driver.describe());
        }
        self.configs[0].password = new;
        self.testbed.change(json!({"spec": {"paused": null}})).await;
        self.drivers_log_in(0, Instant::now(), None, "after the pause").await;
    }

    /// The kubelet of a third control-plane node is up and evicts every pod of the cloud controller. The pods on the
    /// other nodes restart nevertheless, although Kubernetes restarts one pod at a time and counts the evicted one.
    async fn rotate_while_a_pod_is_broken(&mut self) {
        for proxy in &self.proxies {
            proxy.heal();
        }
        self.node_without_vm(1_003, WithoutVm::No).await;
        let label = json!({"metadata": {"labels": {CONTROL_PLANE: ""}}});
        let nodes = Api::<KubeNode>::all(self.testbed.client());
        nodes.patch(BROKEN, &PatchParams::default(), &Patch::Merge(&label)).await.unwrap();
        let on_node = |runs: bool| {
            let pods = self.drivers[0].pods_on(BROKEN);
            if !pods.is_empty() && pods.iter().all(|pod| pod.runs == runs) {
                Ok(())
            } else {
                Err(self.drivers[0].describe())
            }
        };
        eventually("the cloud controller runs on the third node", 60, async || on_node(true)).await;
        let sets = Api::<DaemonSet>::namespaced(self.testbed.client(), "kube-system");
        let unavailable = async |number: i32| {
            let status = sets.get(CPI).await.unwrap().status.unwrap();
            let desired = status.desired_number_scheduled;
            let is_so = desired == 3 && status.number_unavailable.unwrap_or(0) == number;
            if is_so { Ok(()) } else { Err(format!("{status:?}")) }
        };
        eventually("three pods are available", 60, async || unavailable(0).await).await;
        self.testbed.nodes.as_ref().unwrap().fill_disk(BROKEN, true).await;
        eventually("the pod is evicted", 60, async || on_node(false)).await;
        eventually("one pod is unavailable", 60, async || unavailable(1).await).await;
        self.rotate(1_003, Rotation::QUIET).await;
        let node = nodes.get(BROKEN).await.unwrap();
        let conditions = node.status.unwrap().conditions.unwrap_or_default();
        let ready = conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True");
        assert!(ready, "the node itself is up: {conditions:?}");
        let broken = self.drivers[0].pods_on(BROKEN);
        assert!(broken.iter().all(|pod| !pod.runs), "{broken:?}");
    }

    /// Each driver has lost its session. Its leader logs in until it has one, and no pod keeps the old password. The
    /// drivers also log in while the operator is dead. Returns the time that they took after `since`.
    async fn drivers_log_in(
        &mut self,
        number: usize,
        since: Instant,
        mut kill_at: Option<Instant>,
        what: &str,
    ) -> Duration {
        let (host, new) = (self.configs[number].host, self.configs[number].password.clone());
        let mut waiting: BTreeMap<usize, Session> =
            (0..self.drivers.len()).map(|driver| (driver, Session::default())).collect();
        let mut took = Duration::ZERO;
        while !waiting.is_empty() || kill_at.is_some() {
            if kill_at.is_some_and(|at| at <= Instant::now()) {
                kill_at = None;
                self.operator.kill();
                self.operator = start_operator(&self.testbed);
            }
            let waited = !waiting.is_empty();
            for (driver, session) in &mut waiting {
                if let Some((leader, (user, password))) = self.drivers[*driver].leader(host)
                    && session.is_due(&leader)
                {
                    let accepted = self.log_in(number, &user, &password).await;
                    self.logins += 1;
                    self.refused += usize::from(!accepted);
                    session.note(leader, accepted);
                    if !accepted {
                        self.assert_no_account_is_locked(what).await;
                    }
                }
            }
            waiting.retain(|driver, session| {
                !session.accepted || !self.drivers[*driver].all_have(host, &new)
            });
            if waited {
                took = since.elapsed();
            }
            let late = waiting.keys().filter(|_| since.elapsed() > ROTATION_LIMIT);
            let late: Vec<String> = late.map(|driver| self.drivers[*driver].describe()).collect();
            assert!(
                late.is_empty(),
                "{what}: pods with an old password after {:.1?}: {late:?}\n{}",
                since.elapsed(),
                self.operator.tail()
            );
            if self.operator.ended().is_some() {
                // As a kubelet does.
                self.operator = start_operator(&self.testbed);
            }
            let next = Instant::now() + POLL;
            tokio::time::sleep_until(kill_at.map_or(next, |at| at.min(next))).await;
        }
        took
    }

    async fn log_in(&self, number: usize, user: &str, password: &SecretText) -> bool {
        let vcenter = self.vcenter(number);
        let login = Login::new(user, password.expose().to_owned());
        let builder = Client::builder(vcenter.address().to_string());
        let client = builder.trust(Trust::Insecure).credentials(login).connect().await;
        match client {
            Ok(client) => {
                client.shut_down().await;
                true
            }
            Err(vsphere::Error::LoginRefused { .. }) => false,
            Err(error) => panic!("the simulator does not answer: {error}"),
        }
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Starts the operator as its container does.
fn start_operator(testbed: &Testbed) -> Process {
    let socket = testbed.workdir.path().join("vdo.sock");
    testbed.operator_with(&["--grace=5", &format!("--socket={}", socket.display())])
}
