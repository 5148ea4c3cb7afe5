//! Lives of an operator in which things end badly at seeded instants: `kill -9`, the API server or
//! the vCenter cut off in the middle of install, upgrade, the way back from a release that crashes,
//! change with rotation, or removal. Every life ends in the same state, and nothing is ever deleted that
//! is not the operator's own.
//!
//! A sample of seeds is tried, or as many as `VDO_SEEDS` says; a failure names its seed, and `VDO_SEED`
//! tries that one.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::{
    cell::Cell,
    collections::BTreeSet,
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use common::{NAMESPACE, Stage};
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
use testkit::{Fate, FaultProxy, Process, VcenterUser, eventually};

/// A stream of numbers that follows from a seed (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound
    }
}

/// How many campaigns run beside each other, each on a cluster of its own. The last one is of cloud
/// controllers, the others are of storage drivers.
const LANES: usize = 3;

/// Few seeds, and yet every mishap in every phase: for lives with a storage driver, and for those with a
/// cloud controller.
const STORAGE: [u64; 13] = [1, 2, 3, 4, 5, 6, 7, 8, 13, 16, 25, 97, 156];
const CLOUD: [u64; 8] = [10, 12, 17, 20, 30, 31, 33, 226];

/// The seeds of one lane.
fn seeds(lane: usize) -> Vec<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (all, lanes) = match (number("VDO_SEED"), number("VDO_SEEDS")) {
        // One life of either kind.
        (Some(seed), _) => return if lane == 1 { Vec::new() } else { vec![seed] },
        // A life takes seconds: the longest campaign has three hundred.
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
fn the_sample_has_every_mishap_in_every_phase() {
    for sample in [&STORAGE[..], &CLOUD] {
        let troubled =
            sample.iter().flat_map(|seed| mishaps(&mut Numbers(*seed)).into_iter().enumerate());
        let all: BTreeSet<_> = troubled.filter(|(_, mishap)| *mishap != Mishap::None).collect();
        assert_eq!(all.len(), PHASES * 4, "{all:?}");
    }
    assert!(STORAGE.len() + CLOUD.len() >= 20);
}

#[tokio::test]
async fn a_crash_at_any_instant_leads_to_the_same_end_first_lane() {
    campaign(0).await;
}

#[tokio::test]
async fn a_crash_at_any_instant_leads_to_the_same_end_second_lane() {
    campaign(1).await;
}

#[tokio::test]
async fn a_crash_at_any_instant_leads_to_the_same_end_and_takes_back_what_crashes() {
    campaign(2).await;
}

async fn campaign(lane: usize) {
    let seeds = seeds(lane);
    if seeds.is_empty() {
        // Only when a single seed is asked for, which is tried in other lanes.
        return;
    }
    let mut stage = Stage::of(1, false).await;
    // One that is killed keeps the next one waiting for so long.
    stage.lease = 4;
    let vcenter = FaultProxy::before(stage.vcenter.address()).await;
    let api = FaultProxy::before(stage.plane.address()).await;
    (stage.address, stage.api_address) = (Some(vcenter.address()), Some(api.address()));
    let _configs = stage.use_catalog().await;
    stage.nodes.as_ref().unwrap().pods(CRASHING, Fate::Crashes);
    let world = World { stage, vcenter, api, timeouts: Cell::new(PATIENT), led: Cell::new(0) };
    let mut first: Option<(Vec<String>, Vec<String>)> = None;
    for seed in seeds {
        // Once everything; after that, in a sample, only what is troubled: it has to end the same way.
        let whole = first.is_none() || std::env::var_os("VDO_SEEDS").is_some();
        let ends = if is_cloud(lane) {
            world.life_of_a_cloud_controller(seed, whole).await
        } else {
            world.life_of_a_storage_driver(seed, whole).await
        };
        let first = first.get_or_insert_with(|| ends.clone());
        assert_eq!(first.0, ends.0, "seed {seed}: what is installed differs");
        assert_eq!(first.1, ends.1, "seed {seed}: what is left differs");
    }
    assert_eq!(world.stage.forbidden_deletions(), Vec::<String>::new());
    assert_eq!(world.stage.refusals(), Vec::<String>::new());
}

/// The wish for a cloud controller of this release.
fn cloud(version: &str) -> Value {
    json!({"cloudProvider": {"vsphereCloudConfigs": ["vc"], "version": version}})
}

/// A release of the cloud controller whose pods crash.
const CRASHING: &str = "v1.35.1";
/// How long a new release may take, for an operator that waits for it and for one that does not.
const PATIENT: &str = "--patience=900";
const HASTY: &str = "--patience=4";

/// How long the work of a phase takes, about, in milliseconds; and that of one in which a release has to
/// be waited for first.
const WORK: u64 = 2_000;
const WAY_BACK: u64 = 8_000;

/// What can be broken.
struct World {
    stage: Stage,
    /// Before the vCenter.
    vcenter: FaultProxy,
    /// Before the API server, as the operator reaches it.
    api: FaultProxy,
    /// What an operator that is started now is told.
    timeouts: Cell<&'static str>,
    /// How often an operator had come to lead before the present one was started.
    led: Cell<usize>,
}

/// What goes wrong in a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Mishap {
    None,
    Kill,
    KillTwice,
    CutApi,
    CutVcenter,
}

/// The phases of a life.
const PHASES: usize = 4;

/// Two phases of each life are troubled: which, and how, follows from the seed.
fn mishaps(numbers: &mut Numbers) -> [Mishap; PHASES] {
    let mut all = [Mishap::None; PHASES];
    for _ in 0..2 {
        let phase = usize::try_from(numbers.below(PHASES as u64)).unwrap();
        all[phase] = match numbers.below(5) {
            0 | 1 => Mishap::Kill,
            2 => Mishap::KillTwice,
            3 => Mishap::CutApi,
            _ => Mishap::CutVcenter,
        };
    }
    all
}

impl World {
    fn operator(&self) -> Process {
        self.led.set(self.times_led());
        self.stage.operator_with(&[self.timeouts.get()])
    }

    /// How often operators of this cluster have come to lead, by the log they share.
    fn times_led(&self) -> usize {
        let log = std::fs::read_to_string(self.stage.workdir.path().join("vdo.log"));
        log.unwrap_or_default().matches("\"leading\"").count()
    }

    /// Another operator, with other patience; the one before ends in good order.
    async fn replace(&self, operator: &mut Process, timeouts: &'static str) {
        self.timeouts.set(timeouts);
        operator.signal(Signal::TERM);
        assert!(operator.wait(60).await.is_some(), "{}", operator.tail());
        *operator = self.operator();
    }

    /// Install, upgrade, change with rotation, removal; unless it is a whole life, without what is not
    /// troubled between the first and the last. Returns what was there before the removal, and after it.
    async fn life_of_a_storage_driver(&self, seed: u64, whole: bool) -> (Vec<String>, Vec<String>) {
        let stage = &self.stage;
        let mut numbers = Numbers(seed);
        let mishaps = mishaps(&mut numbers);
        let text = |phase: &str| format!("seed {seed} {mishaps:?}: {phase}");
        let version = |version: &str| json!({"vsphereCloudConfig": "vc", "version": version});
        let (user, password) = (stage.vcenter.user(), stage.vcenter.password());
        stage.vcenter.set_user(&VcenterUser::new(user, password)).await;
        let upgraded = whole || mishaps[1] != Mishap::None;
        let begin = if upgraded { "3.6.3" } else { "3.7.3" };
        stage.configure(json!({"storageProvider": version(begin)})).await;
        let mut operator = self.operator();
        self.befalls(mishaps[0], &mut numbers, WORK, &mut operator).await;
        self.runs(&mut operator, begin, &text("install")).await;
        // From here to the removal there is something to lose.
        let volume = format!("pv-{seed}");
        stage.attach(&volume, "node-1").await;
        let uids = async || {
            [stage.controller().await.metadata.uid, stage.node_driver().await.metadata.uid]
        };
        let before = uids().await;

        if upgraded {
            stage.change(json!({"spec": {"storageProvider": version("3.7.3")}})).await;
            self.befalls(mishaps[1], &mut numbers, WORK, &mut operator).await;
            self.runs(&mut operator, "3.7.3", &text("upgrade")).await;
        }
        if whole || mishaps[2] != Mishap::None {
            let distribution = format!("seed-{seed}");
            let change = json!({"storageProvider": {"clusterDistribution": distribution}});
            stage.change(json!({"spec": change})).await;
            let password = self.rotate(seed).await;
            self.befalls(mishaps[2], &mut numbers, WORK, &mut operator).await;
            self.until(&mut operator, &text("the driver is told"), async || {
                let home = "vmware-system-csi";
                let conf = stage.secret(home, "vsphere-config-secret", "csi-vsphere.conf").await;
                conf.contains(&distribution) && conf.contains(&password)
            })
            .await;
            self.runs(&mut operator, "3.7.3", &text("change")).await;
        }
        let installed = inventory(stage).await;
        assert_eq!(uids().await, before, "{}", text("something was made anew"));
        let attachments = Api::<VolumeAttachment>::all(stage.client());
        let attachment = format!("csi-{volume}");
        attachments.get(&attachment).await.unwrap();
        attachments.delete(&attachment, &DeleteParams::default()).await.unwrap();
        (installed, self.removal(operator, mishaps[3], &mut numbers, &text).await)
    }

    /// The same of a cloud controller; instead of an upgrade it gets a release that crashes, which is
    /// taken back.
    async fn life_of_a_cloud_controller(
        &self,
        seed: u64,
        whole: bool,
    ) -> (Vec<String>, Vec<String>) {
        let stage = &self.stage;
        let mut numbers = Numbers(seed);
        let mishaps = mishaps(&mut numbers);
        let text = |phase: &str| format!("seed {seed} {mishaps:?}: {phase}");
        let (user, password) = (stage.vcenter.user(), stage.vcenter.password());
        stage.vcenter.set_user(&VcenterUser::new(user, password)).await;
        stage.configure(cloud("1.35.0")).await;
        let mut operator = self.operator();
        self.befalls(mishaps[0], &mut numbers, WORK, &mut operator).await;
        self.runs(&mut operator, "1.35.0", &text("install")).await;
        let sets = Api::<DaemonSet>::namespaced(stage.client(), "kube-system");
        let set = async || sets.get("vsphere-cloud-controller-manager").await.unwrap();
        let before = set().await.metadata.uid;

        if whole || mishaps[1] != Mishap::None {
            self.crash_and_way_back(&mut operator, mishaps[1], &mut numbers, &text).await;
            let pod = set().await.spec.unwrap().template.spec.unwrap();
            assert!(pod.containers[0].image.as_deref().unwrap().contains("v1.35.0"), "{pod:?}");
        }
        if whole || mishaps[2] != Mishap::None {
            let password = self.rotate(seed).await;
            self.befalls(mishaps[2], &mut numbers, WORK, &mut operator).await;
            self.until(&mut operator, &text("the controller is told"), async || {
                let secrets = Api::<Secret>::namespaced(stage.client(), "kube-system");
                let secret = secrets.get(plan::names::CPI_SECRET).await.unwrap();
                let mut told = secret.data.into_iter().flatten();
                told.any(|(_, value)| value.0 == password.as_bytes())
            })
            .await;
            self.runs(&mut operator, "1.35.0", &text("change")).await;
        }
        let installed = inventory(stage).await;
        assert_eq!(set().await.metadata.uid, before, "{}", text("it was made anew"));
        (installed, self.removal(operator, mishaps[3], &mut numbers, &text).await)
    }

    /// A release that crashes is asked for, taken back, and asked for no more.
    async fn crash_and_way_back(
        &self,
        operator: &mut Process,
        mishap: Mishap,
        numbers: &mut Numbers,
        text: &impl Fn(&str) -> String,
    ) {
        let stage = &self.stage;
        // One without patience, for a release that surely crashes.
        self.replace(operator, HASTY).await;
        stage.change(json!({"spec": cloud(CRASHING.trim_start_matches('v'))})).await;
        self.befalls(mishap, numbers, WAY_BACK, operator).await;
        self.until(operator, &text("it is taken back"), async || {
            let config = stage.config().await;
            let status = config.status.unwrap_or_default();
            let version = status.cpi.unwrap_or_default().version;
            status.observed_generation == config.metadata.generation
                && status.findings.iter().any(|finding| finding.code == "VDO-1905")
                && version.as_deref() == Some("1.35.0")
                && api::condition::is_true(&status.conditions, "CloudProviderReady")
        })
        .await;
        self.replace(operator, PATIENT).await;
        stage.change(json!({"spec": cloud("1.35.0")})).await;
        self.runs(operator, "1.35.0", &text("way back")).await;
    }

    /// Gives the vCenter's user another password, and tells VDO.
    async fn rotate(&self, seed: u64) -> String {
        let password = format!("password-{seed}");
        let user = VcenterUser::new(self.stage.vcenter.user(), &password);
        self.stage.vcenter.set_user(&user).await;
        self.stage.write_secret(&password).await;
        password
    }

    /// The VDOConfig goes, and the driver with it. Returns what is left.
    async fn removal(
        &self,
        mut operator: Process,
        mishap: Mishap,
        numbers: &mut Numbers,
        text: &impl Fn(&str) -> String,
    ) -> Vec<String> {
        let stage = &self.stage;
        stage.change(json!({"spec": {"deletionPolicy": "Remove"}})).await;
        self.until(&mut operator, &text("the finalizer is set"), async || {
            stage.config().await.metadata.finalizers.is_some()
        })
        .await;
        let configs = Api::<api::VDOConfig>::namespaced(stage.client(), NAMESPACE);
        configs.delete("vdo-config", &DeleteParams::default()).await.unwrap();
        self.befalls(mishap, numbers, WORK, &mut operator).await;
        self.until(&mut operator, &text("the config is gone"), async || {
            configs.get_opt("vdo-config").await.unwrap().is_none()
        })
        .await;
        let left = inventory(stage).await;
        // In good order, so that the next one finds no lease that is taken and is troubled at its work.
        operator.signal(Signal::TERM);
        assert!(operator.wait(60).await.is_some(), "{}", operator.tail());
        let vcenters = Api::<api::VsphereCloudConfig>::namespaced(stage.client(), NAMESPACE);
        vcenters.delete("vc", &DeleteParams::default()).await.unwrap();
        left
    }

    /// Lets something go wrong so many milliseconds after the operator came to lead, by the seed; the
    /// operator that lives on is in `operator`.
    async fn befalls(
        &self,
        mishap: Mishap,
        numbers: &mut Numbers,
        within: u64,
        operator: &mut Process,
    ) {
        // Any instant of the work will do; that it is another one from run to run does no harm.
        let mut pause = || Duration::from_millis(100 + numbers.below(within));
        // One that waits for its turn is at no work to be troubled in.
        let leads = async |operator: &mut Process| {
            self.until(operator, "it leads", async || self.times_led() > self.led.get()).await;
        };
        match mishap {
            Mishap::None => {}
            Mishap::Kill | Mishap::KillTwice => {
                for _ in 0..if mishap == Mishap::Kill { 1 } else { 2 } {
                    leads(operator).await;
                    tokio::time::sleep(pause()).await;
                    operator.kill();
                    *operator = self.operator();
                }
            }
            Mishap::CutApi | Mishap::CutVcenter => {
                let proxy = if mishap == Mishap::CutApi { &self.api } else { &self.vcenter };
                leads(operator).await;
                tokio::time::sleep(pause()).await;
                proxy.cut();
                tokio::time::sleep(pause()).await;
                proxy.heal();
            }
        }
    }

    /// Waits for something, and starts the operator again when it ended by itself, as a kubelet does:
    /// one that cannot renew its lease gives up.
    async fn until(&self, operator: &mut Process, what: &str, mut is: impl AsyncFnMut() -> bool) {
        let configs = Api::<api::VDOConfig>::namespaced(self.stage.client(), NAMESPACE);
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

    /// Waits until this release runs and nothing is left to do.
    async fn runs(&self, operator: &mut Process, version: &str, what: &str) {
        self.until(operator, what, async || {
            let config = self.stage.config().await;
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

/// What an object holds, but for what differs from seed to seed: what the API server gives it, passwords,
/// and the digests that follow from them.
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
    let mut held = object.data;
    strip(&mut held);
    if let Some(fields) = held.as_object_mut() {
        fields.retain(|name, _| name != "status" && !(is_secret && name == "data"));
    }
    let mut hasher = DefaultHasher::new();
    format!("{:?} {held}", object.metadata.labels).hash(&mut hasher);
    hasher.finish()
}

/// The objects of the drivers with what they hold, and what the record says of them; what differs from
/// seed to seed (passwords, times) left out.
async fn inventory(stage: &Stage) -> Vec<String> {
    let labelled = ListParams::default().labels("app.kubernetes.io/managed-by=vdo");
    let mut all = Vec::new();
    for resource in operator::kinds::all() {
        let api = Api::<DynamicObject>::all_with(stage.client(), &resource);
        for object in api.list(&labelled).await.unwrap().items {
            let home = object.metadata.namespace.clone().unwrap_or_default();
            let name = object.metadata.name.clone().unwrap_or_default();
            let types = Some(TypeMeta { kind: resource.kind.clone(), ..TypeMeta::default() });
            let held = content(DynamicObject { types, ..object });
            all.push(format!("{} {home}/{name} {held:x}", resource.kind));
        }
    }
    let secrets = Api::<Secret>::namespaced(stage.client(), "vmware-system-csi");
    if let Some(secret) = secrets.get_opt("vsphere-config-secret").await.unwrap() {
        let text = String::from_utf8(secret.data.unwrap()["csi-vsphere.conf"].0.clone()).unwrap();
        let id = text.lines().find(|line| line.starts_with("cluster-id")).unwrap_or_default();
        all.push(id.to_owned());
    }
    let maps = Api::<ConfigMap>::namespaced(stage.client(), NAMESPACE);
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
