//! Installs, upgrades, changes and removes drivers while faults occur at seeded times: `kill -9` of the operator,
//! or a lost connection to the API server or to vCenter. Every lifecycle ends in the same state, and the operator
//! deletes only its own objects.
//!
//! The test runs a sample of seeds, or as many as `VDO_SEEDS` says. A failure names its seed; `VDO_SEED` runs only
//! that one.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::{
    cell::Cell,
    collections::BTreeSet,
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use common::{NAMESPACE, Testbed};
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{ConfigMap, Secret},
    storage::v1::VolumeAttachment,
};
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, ListParams, TypeMeta},
};
use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::{Fate, FaultProxy, Process, SeededRandom, VcenterUser, eventually};

/// How many campaigns run in parallel, each on its own cluster. The last one has cloud controllers, the others have
/// storage drivers.
const LANES: usize = 3;

/// Small samples with every fault in every phase: for storage drivers and for cloud controllers.
const STORAGE: [u64; 13] = [1, 2, 3, 4, 5, 6, 7, 8, 13, 16, 25, 97, 156];
const CLOUD: [u64; 8] = [10, 12, 17, 20, 30, 31, 33, 226];

fn seeds(lane: usize) -> Vec<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (all, lanes) = match (number("VDO_SEED"), number("VDO_SEEDS")) {
        // One lifecycle of either driver.
        (Some(seed), _) => return if lane == 1 { Vec::new() } else { vec![seed] },
        // A lifecycle takes seconds: the longest campaign has three hundred.
        (None, Some(count)) => ((1..=count.min(300)).collect(), LANES),
        (None, None) if is_cloud(lane) => return CLOUD.to_vec(),
        (None, None) => (STORAGE.to_vec(), LANES - 1),
    };
    all.into_iter().skip(lane).step_by(lanes).collect()
}

fn is_cloud(lane: usize) -> bool {
    lane == LANES - 1
}

#[test]
fn the_sample_covers_every_fault_in_every_phase() {
    for sample in [&STORAGE[..], &CLOUD] {
        let faulty = sample
            .iter()
            .flat_map(|seed| faults(&mut SeededRandom::new(*seed)).into_iter().enumerate());
        let all: BTreeSet<_> = faulty.filter(|(_, fault)| *fault != Fault::None).collect();
        assert_eq!(all.len(), PHASES * 4, "{all:?}");
    }
    assert!(STORAGE.len() + CLOUD.len() >= 20);
}

#[tokio::test]
async fn a_crash_at_any_time_leads_to_the_same_state_first_lane() {
    run_lane(0).await;
}

#[tokio::test]
async fn a_crash_at_any_time_leads_to_the_same_state_second_lane() {
    run_lane(1).await;
}

#[tokio::test]
async fn a_crash_at_any_time_leads_to_the_same_state_and_a_crashing_release_is_rolled_back() {
    run_lane(2).await;
}

async fn run_lane(lane: usize) {
    let seeds = seeds(lane);
    if seeds.is_empty() {
        // This happens only with `VDO_SEED`, which runs in the other lanes.
        return;
    }
    let mut testbed = Testbed::with_nodes(1).await;
    // The next operator waits this long after a kill.
    testbed.lease = 4;
    let vcenter = FaultProxy::before(testbed.vcenter.address()).await;
    let api = FaultProxy::before(testbed.plane.address()).await;
    (testbed.address, testbed.api_address) = (Some(vcenter.address()), Some(api.address()));
    let _configs = testbed.use_catalog().await;
    testbed.nodes.as_ref().unwrap().pods(CRASHING, Fate::Crashes);
    let campaign =
        Campaign { testbed, vcenter, api, timeouts: Cell::new(LONG_TIMEOUT), led: Cell::new(0) };
    let mut first: Option<(Vec<String>, Vec<String>)> = None;
    for seed in seeds {
        // One complete lifecycle; the others of a sample skip phases without a fault, and must end the same way.
        let complete = first.is_none() || std::env::var_os("VDO_SEEDS").is_some();
        let ends = if is_cloud(lane) {
            campaign.cloud_controller_lifecycle(seed, complete).await
        } else {
            campaign.storage_driver_lifecycle(seed, complete).await
        };
        let first = first.get_or_insert_with(|| ends.clone());
        assert_eq!(first.0, ends.0, "seed {seed}: the installed objects differ");
        assert_eq!(first.1, ends.1, "seed {seed}: the remaining objects differ");
    }
    assert_eq!(campaign.testbed.forbidden_deletions(), Vec::<String>::new());
    assert_eq!(campaign.testbed.denied_requests(), Vec::<String>::new());
}

fn cloud(version: &str) -> Value {
    json!({"cloudProvider": {"vsphereCloudConfigs": ["vc"], "version": version}})
}

/// A release of the cloud controller whose pods crash.
const CRASHING: &str = "v1.35.1";
/// The rollout timeouts: long, and short for a release that crashes.
const LONG_TIMEOUT: &str = "--patience=900";
const SHORT_TIMEOUT: &str = "--patience=4";

/// About how many milliseconds the work of a phase takes, and how many a rollback takes.
const WORK: u64 = 2_000;
const ROLLBACK: u64 = 8_000;

struct Campaign {
    testbed: Testbed,
    vcenter: FaultProxy,
    api: FaultProxy,
    /// The timeout flag for the next operator.
    timeouts: Cell<&'static str>,
    /// How often an operator had become leader before the current one started.
    led: Cell<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    None,
    Kill,
    KillTwice,
    CutApi,
    CutVcenter,
}

const PHASES: usize = 4;

/// Each lifecycle has faults in two phases; the seed decides which.
fn faults(random: &mut SeededRandom) -> [Fault; PHASES] {
    let mut all = [Fault::None; PHASES];
    for _ in 0..2 {
        let phase = usize::try_from(random.below(PHASES as u64)).unwrap();
        all[phase] = match random.below(5) {
            0 | 1 => Fault::Kill,
            2 => Fault::KillTwice,
            3 => Fault::CutApi,
            _ => Fault::CutVcenter,
        };
    }
    all
}

impl Campaign {
    fn operator(&self) -> Process {
        self.led.set(self.times_led());
        self.testbed.operator_with(&[self.timeouts.get()])
    }

    /// How often operators of this cluster have become leader, from their shared log.
    fn times_led(&self) -> usize {
        let log = std::fs::read_to_string(self.testbed.workdir.path().join("vdo.log"));
        log.unwrap_or_default().matches("\"leading\"").count()
    }

    /// Replaces the operator by one with another timeout. The old one stops gracefully.
    async fn replace(&self, operator: &mut Process, timeouts: &'static str) {
        self.timeouts.set(timeouts);
        operator.signal(Signal::TERM);
        assert!(operator.wait(60).await.is_some(), "{}", operator.tail());
        *operator = self.operator();
    }

    /// Install, upgrade, change with password rotation, removal. Unless `complete`, the middle phases run only if they
    /// have a fault. Returns the objects before and after the removal.
    async fn storage_driver_lifecycle(
        &self,
        seed: u64,
        complete: bool,
    ) -> (Vec<String>, Vec<String>) {
        let testbed = &self.testbed;
        let mut random = SeededRandom::new(seed);
        let faults = faults(&mut random);
        let text = |phase: &str| format!("seed {seed} {faults:?}: {phase}");
        let version = |version: &str| json!({"vsphereCloudConfig": "vc", "version": version});
        let (user, password) = (testbed.vcenter.user(), testbed.vcenter.password());
        testbed.vcenter.set_user(&VcenterUser::new(user, password)).await;
        let upgraded = complete || faults[1] != Fault::None;
        let begin = if upgraded { "3.6.3" } else { "3.7.3" };
        testbed.configure(json!({"storageProvider": version(begin)})).await;
        let mut operator = self.operator();
        self.inject(faults[0], &mut random, WORK, &mut operator).await;
        self.runs(&mut operator, begin, &text("install")).await;
        // From here on a volume is attached.
        let volume = format!("pv-{seed}");
        testbed.attach(&volume, "node-1").await;
        let uids = async || {
            [testbed.controller().await.metadata.uid, testbed.node_driver().await.metadata.uid]
        };
        let before = uids().await;

        if upgraded {
            testbed.change(json!({"spec": {"storageProvider": version("3.7.3")}})).await;
            self.inject(faults[1], &mut random, WORK, &mut operator).await;
            self.runs(&mut operator, "3.7.3", &text("upgrade")).await;
        }
        if complete || faults[2] != Fault::None {
            let distribution = format!("seed-{seed}");
            let change = json!({"storageProvider": {"clusterDistribution": distribution}});
            testbed.change(json!({"spec": change})).await;
            let password = self.rotate(seed).await;
            self.inject(faults[2], &mut random, WORK, &mut operator).await;
            self.until(&mut operator, &text("the driver has the change"), async || {
                let namespace = "vmware-system-csi";
                let conf =
                    testbed.secret(namespace, "vsphere-config-secret", "csi-vsphere.conf").await;
                conf.contains(&distribution) && conf.contains(&password)
            })
            .await;
            self.runs(&mut operator, "3.7.3", &text("change")).await;
        }
        let installed = inventory(testbed).await;
        assert_eq!(uids().await, before, "{}", text("a workload was re-created"));
        let attachments = Api::<VolumeAttachment>::all(testbed.client());
        let attachment = format!("csi-{volume}");
        attachments.get(&attachment).await.unwrap();
        attachments.delete(&attachment, &DeleteParams::default()).await.unwrap();
        (installed, self.removal(operator, faults[3], &mut random, &text).await)
    }

    /// The same for a cloud controller. Instead of an upgrade it gets a crashing release, which VDO rolls back.
    async fn cloud_controller_lifecycle(
        &self,
        seed: u64,
        complete: bool,
    ) -> (Vec<String>, Vec<String>) {
        let testbed = &self.testbed;
        let mut random = SeededRandom::new(seed);
        let faults = faults(&mut random);
        let text = |phase: &str| format!("seed {seed} {faults:?}: {phase}");
        let (user, password) = (testbed.vcenter.user(), testbed.vcenter.password());
        testbed.vcenter.set_user(&VcenterUser::new(user, password)).await;
        testbed.configure(cloud("1.35.0")).await;
        let mut operator = self.operator();
        self.inject(faults[0], &mut random, WORK, &mut operator).await;
        self.runs(&mut operator, "1.35.0", &text("install")).await;
        let sets = Api::<DaemonSet>::namespaced(testbed.client(), "kube-system");
        let set = async || sets.get("vsphere-cloud-controller-manager").await.unwrap();
        let before = set().await.metadata.uid;

        if complete || faults[1] != Fault::None {
            self.crash_and_rollback(&mut operator, faults[1], &mut random, &text).await;
            let pod = set().await.spec.unwrap().template.spec.unwrap();
            assert!(pod.containers[0].image.as_deref().unwrap().contains("v1.35.0"), "{pod:?}");
        }
        if complete || faults[2] != Fault::None {
            let password = self.rotate(seed).await;
            self.inject(faults[2], &mut random, WORK, &mut operator).await;
            self.until(&mut operator, &text("the controller has the password"), async || {
                let secrets = Api::<Secret>::namespaced(testbed.client(), "kube-system");
                let secret = secrets.get(plan::names::CPI_SECRET).await.unwrap();
                let mut entries = secret.data.into_iter().flatten();
                entries.any(|(_, value)| value.0 == password.as_bytes())
            })
            .await;
            self.runs(&mut operator, "1.35.0", &text("change")).await;
        }
        let installed = inventory(testbed).await;
        assert_eq!(set().await.metadata.uid, before, "{}", text("it was re-created"));
        (installed, self.removal(operator, faults[3], &mut random, &text).await)
    }

    /// Requests a crashing release, waits for the rollback, and requests the old release again.
    async fn crash_and_rollback(
        &self,
        operator: &mut Process,
        fault: Fault,
        random: &mut SeededRandom,
        text: &impl Fn(&str) -> String,
    ) {
        let testbed = &self.testbed;
        // A short timeout, for a release that certainly crashes.
        self.replace(operator, SHORT_TIMEOUT).await;
        testbed.change(json!({"spec": cloud(CRASHING.trim_start_matches('v'))})).await;
        self.inject(fault, random, ROLLBACK, operator).await;
        self.until(operator, &text("it is rolled back"), async || {
            let config = testbed.config().await;
            let status = config.status.unwrap_or_default();
            let version = status.cpi.unwrap_or_default().version;
            status.observed_generation == config.metadata.generation
                && status.findings.iter().any(|finding| finding.code == "VDO-1905")
                && version.as_deref() == Some("1.35.0")
                && api::condition::is_true(&status.conditions, "CloudProviderReady")
        })
        .await;
        self.replace(operator, LONG_TIMEOUT).await;
        testbed.change(json!({"spec": cloud("1.35.0")})).await;
        self.runs(operator, "1.35.0", &text("rollback")).await;
    }

    /// Changes the password in vCenter and in VDO's Secret.
    async fn rotate(&self, seed: u64) -> String {
        let password = format!("password-{seed}");
        let user = VcenterUser::new(self.testbed.vcenter.user(), &password);
        self.testbed.vcenter.set_user(&user).await;
        self.testbed.write_secret(&password).await;
        password
    }

    /// Deletes the VDOConfig together with the driver. Returns the remaining objects.
    async fn removal(
        &self,
        mut operator: Process,
        fault: Fault,
        random: &mut SeededRandom,
        text: &impl Fn(&str) -> String,
    ) -> Vec<String> {
        let testbed = &self.testbed;
        testbed.change(json!({"spec": {"deletionPolicy": "Remove"}})).await;
        self.until(&mut operator, &text("the finalizer is set"), async || {
            testbed.config().await.metadata.finalizers.is_some()
        })
        .await;
        let configs = Api::<api::VDOConfig>::namespaced(testbed.client(), NAMESPACE);
        configs.delete("vdo-config", &DeleteParams::default()).await.unwrap();
        self.inject(fault, random, WORK, &mut operator).await;
        self.until(&mut operator, &text("the config is gone"), async || {
            configs.get_opt("vdo-config").await.unwrap().is_none()
        })
        .await;
        let left = inventory(testbed).await;
        // Gracefully, so that the next operator leads at once.
        operator.signal(Signal::TERM);
        assert!(operator.wait(60).await.is_some(), "{}", operator.tail());
        let vcenters = Api::<api::VsphereCloudConfig>::namespaced(testbed.client(), NAMESPACE);
        vcenters.delete("vc", &DeleteParams::default()).await.unwrap();
        left
    }

    /// Injects a fault at a seeded time after the operator became leader. `operator` is the operator that runs
    /// afterwards.
    async fn inject(
        &self,
        fault: Fault,
        random: &mut SeededRandom,
        within: u64,
        operator: &mut Process,
    ) {
        // Any time during the work is good, even if it differs between runs.
        let mut pause = || Duration::from_millis(100 + random.below(within));
        // A fault needs an operator that works, not one that waits for the lease.
        let leads = async |operator: &mut Process| {
            self.until(operator, "the operator leads", async || self.times_led() > self.led.get())
                .await;
        };
        match fault {
            Fault::None => {}
            Fault::Kill | Fault::KillTwice => {
                for _ in 0..if fault == Fault::Kill { 1 } else { 2 } {
                    leads(operator).await;
                    tokio::time::sleep(pause()).await;
                    operator.kill();
                    *operator = self.operator();
                }
            }
            Fault::CutApi | Fault::CutVcenter => {
                let proxy = if fault == Fault::CutApi { &self.api } else { &self.vcenter };
                leads(operator).await;
                tokio::time::sleep(pause()).await;
                proxy.cut();
                tokio::time::sleep(pause()).await;
                proxy.heal();
            }
        }
    }

    /// Waits for a condition. If the operator ends by itself, because it cannot renew its lease, this starts it again
    /// as a kubelet does.
    async fn until(&self, operator: &mut Process, what: &str, mut is: impl AsyncFnMut() -> bool) {
        let configs = Api::<api::VDOConfig>::namespaced(self.testbed.client(), NAMESPACE);
        eventually(what, 90, async || {
            if is().await {
                return Ok(());
            }
            if operator.ended().is_some() {
                *operator = self.operator();
            }
            let status = configs.get_opt("vdo-config").await.unwrap().map(|config| config.status);
            Err(format!("{status:?}\n{}", operator.tail()))
        })
        .await;
    }

    /// Waits until this release runs and the status has no target.
    async fn runs(&self, operator: &mut Process, version: &str, what: &str) {
        self.until(operator, what, async || {
            let config = self.testbed.config().await;
            let status = config.status.unwrap_or_default();
            let (cpi, csi) = (status.cpi.unwrap_or_default(), status.csi.unwrap_or_default());
            let is = |running: Option<String>, target: Option<String>| {
                running.as_deref() == Some(version) && target.is_none()
            };
            api::condition::is_true(&status.conditions, "Ready")
                && status.observed_generation == config.metadata.generation
                && (is(cpi.version, cpi.target) || is(csi.version, csi.target))
        })
        .await;
    }
}

/// A hash of an object without the fields that differ between seeds: metadata from the API server, passwords, and
/// digests of them.
fn content(object: DynamicObject) -> u64 {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                let given = ["annotations", "caBundle", "clusterIP", "clusterIPs"];
                fields.retain(|name, _| !given.contains(&name.as_str()));
                fields.values_mut().for_each(strip);
            }
            Value::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    let is_secret = object.types.is_some_and(|types| types.kind == "Secret");
    let mut data = object.data;
    strip(&mut data);
    if let Some(fields) = data.as_object_mut() {
        fields.retain(|name, _| name != "status" && !(is_secret && name == "data"));
    }
    let mut hasher = DefaultHasher::new();
    format!("{:?} {data}", object.metadata.labels).hash(&mut hasher);
    hasher.finish()
}

/// The objects of the drivers with hashes of their content, and their records, without the values that differ
/// between seeds.
async fn inventory(testbed: &Testbed) -> Vec<String> {
    let labelled = ListParams::default().labels("app.kubernetes.io/managed-by=vdo");
    let mut all = Vec::new();
    for resource in operator::kinds::all() {
        let api = Api::<DynamicObject>::all_with(testbed.client(), &resource);
        for object in api.list(&labelled).await.unwrap().items {
            let namespace = object.metadata.namespace.clone().unwrap_or_default();
            let name = object.metadata.name.clone().unwrap_or_default();
            let types = Some(TypeMeta { kind: resource.kind.clone(), ..TypeMeta::default() });
            let hash = content(DynamicObject { types, ..object });
            all.push(format!("{} {namespace}/{name} {hash:x}", resource.kind));
        }
    }
    let secrets = Api::<Secret>::namespaced(testbed.client(), "vmware-system-csi");
    if let Some(secret) = secrets.get_opt("vsphere-config-secret").await.unwrap() {
        let text = String::from_utf8(secret.data.unwrap()["csi-vsphere.conf"].0.clone()).unwrap();
        let id = text.lines().find(|line| line.starts_with("cluster-id")).unwrap_or_default();
        all.push(id.to_owned());
    }
    let maps = Api::<ConfigMap>::namespaced(testbed.client(), NAMESPACE);
    for name in ["vdo-record-cpi", "vdo-record-csi"] {
        let Some(map) = maps.get_opt(name).await.unwrap() else { continue };
        let record: Value = serde_json::from_str(&map.data.unwrap()["record.json"]).unwrap();
        all.push(format!(
            "{name} {} {} {}",
            record["version"], record["healthy"], record["clusterId"]
        ));
        all.extend(record["objects"].as_array().unwrap().iter().map(|id| format!("recorded {id}")));
    }
    all.sort();
    all
}
