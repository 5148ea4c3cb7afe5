//! Lives of an operator in which things end badly at seeded instants: `kill -9`, the API server or
//! the vCenter cut off in the middle of install, upgrade, change with rotation, or removal. Every life
//! ends in the same state, and nothing is ever deleted that is not the operator's own.
//!
//! A sample of seeds is tried, or as many as `VDO_SEEDS` says; a failure names its seed, and `VDO_SEED`
//! tries that one.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::{collections::BTreeSet, time::Duration};

use common::{NAMESPACE, Stage};
use k8s_openapi::api::{
    core::v1::{ConfigMap, Secret},
    storage::v1::VolumeAttachment,
};
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, ListParams},
};
use serde_json::{Value, json};
use testkit::{FaultProxy, Process, VcenterUser, eventually};

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

/// How many campaigns run beside each other, each on a cluster of its own.
const LANES: usize = 3;

/// Few seeds, and yet every mishap in every phase.
const SAMPLE: [u64; 9] = [1, 4, 6, 8, 13, 16, 25, 31, 97];

/// The seeds of one lane.
fn seeds(lane: usize) -> Vec<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let all = match (number("VDO_SEED"), number("VDO_SEEDS")) {
        (Some(seed), _) => vec![seed],
        // A life takes seconds: the longest campaign has three hundred.
        (None, Some(count)) => (1..=count.min(300)).collect(),
        (None, None) => SAMPLE.to_vec(),
    };
    all.into_iter().skip(lane).step_by(LANES).collect()
}

#[test]
fn the_sample_has_every_mishap_in_every_phase() {
    let troubled =
        SAMPLE.iter().flat_map(|seed| mishaps(&mut Numbers(*seed)).into_iter().enumerate());
    let all: BTreeSet<_> = troubled.filter(|(_, mishap)| *mishap != Mishap::None).collect();
    assert_eq!(all.len(), PHASES * 4, "{all:?}");
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
async fn a_crash_at_any_instant_leads_to_the_same_end_third_lane() {
    campaign(2).await;
}

async fn campaign(lane: usize) {
    let seeds = seeds(lane);
    if seeds.is_empty() {
        // Only when a single seed is asked for, which belongs to another lane.
        return;
    }
    let mut stage = Stage::of(1, false).await;
    // One that is killed keeps the next one waiting for so long.
    stage.lease = 4;
    let vcenter = FaultProxy::before(stage.vcenter.address()).await;
    let api = FaultProxy::before(stage.plane.address()).await;
    (stage.address, stage.api_address) = (Some(vcenter.address()), Some(api.address()));
    let _configs = stage.use_catalog().await;
    let world = World { stage, vcenter, api };
    let mut first: Option<(Vec<String>, Vec<String>)> = None;
    for seed in seeds {
        let ends = world.life(seed).await;
        let first = first.get_or_insert_with(|| ends.clone());
        assert_eq!(first.0, ends.0, "seed {seed}: what is installed differs");
        assert_eq!(first.1, ends.1, "seed {seed}: what is left differs");
    }
    assert_eq!(world.stage.forbidden_deletions(), Vec::<String>::new());
    assert_eq!(world.stage.refusals(), Vec::<String>::new());
}

/// What can be broken.
struct World {
    stage: Stage,
    /// Before the vCenter.
    vcenter: FaultProxy,
    /// Before the API server, as the operator reaches it.
    api: FaultProxy,
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
    /// Install, upgrade, change with rotation, removal. Returns what was there before the removal, and
    /// after it.
    async fn life(&self, seed: u64) -> (Vec<String>, Vec<String>) {
        let stage = &self.stage;
        let mut numbers = Numbers(seed);
        let mishaps = mishaps(&mut numbers);
        let text = |phase: &str| format!("seed {seed} {mishaps:?}: {phase}");
        let (user, password) = (stage.vcenter.user(), stage.vcenter.password());
        stage.vcenter.set_user(&VcenterUser::new(user, password)).await;
        let version = |version: &str| json!({"vsphereCloudConfig": "vc", "version": version});
        stage.configure(json!({"storageProvider": version("3.6.3")})).await;
        let mut operator = stage.operator();
        self.befalls(mishaps[0], &mut numbers, &mut operator).await;
        self.runs(&mut operator, "3.6.3", &text("install")).await;
        // From here to the removal there is something to lose.
        let volume = format!("pv-{seed}");
        stage.attach(&volume, "node-1").await;
        let uids = self.uids().await;

        stage.change(json!({"spec": {"storageProvider": version("3.7.3")}})).await;
        self.befalls(mishaps[1], &mut numbers, &mut operator).await;
        self.runs(&mut operator, "3.7.3", &text("upgrade")).await;

        let distribution = format!("seed-{seed}");
        let change = json!({"spec": {"storageProvider": {"clusterDistribution": distribution}}});
        stage.change(change).await;
        let password = format!("password-{seed}");
        stage.vcenter.set_user(&VcenterUser::new(user, &password)).await;
        stage.write_secret(&password).await;
        self.befalls(mishaps[2], &mut numbers, &mut operator).await;
        self.until(&mut operator, &text("the driver is told"), async || {
            let home = "vmware-system-csi";
            let conf = stage.secret(home, "vsphere-config-secret", "csi-vsphere.conf").await;
            conf.contains(&distribution) && conf.contains(&password)
        })
        .await;
        self.runs(&mut operator, "3.7.3", &text("change")).await;
        let installed = inventory(stage).await;
        assert_eq!(self.uids().await, uids, "{}", text("something was made anew"));
        let attachments = Api::<VolumeAttachment>::all(stage.client());
        let attachment = format!("csi-{volume}");
        attachments.get(&attachment).await.unwrap();
        attachments.delete(&attachment, &DeleteParams::default()).await.unwrap();

        stage.change(json!({"spec": {"deletionPolicy": "Remove"}})).await;
        self.until(&mut operator, &text("the finalizer is set"), async || {
            stage.config().await.metadata.finalizers.is_some()
        })
        .await;
        let configs = Api::<api::VDOConfig>::namespaced(stage.client(), NAMESPACE);
        configs.delete("vdo-config", &DeleteParams::default()).await.unwrap();
        self.befalls(mishaps[3], &mut numbers, &mut operator).await;
        self.until(&mut operator, &text("the config is gone"), async || {
            configs.get_opt("vdo-config").await.unwrap().is_none()
        })
        .await;
        let left = inventory(stage).await;
        let vcenters = Api::<api::VsphereCloudConfig>::namespaced(stage.client(), NAMESPACE);
        vcenters.delete("vc", &DeleteParams::default()).await.unwrap();
        (installed, left)
    }

    /// Which objects the driver's workloads are: changed is not the same as made anew.
    async fn uids(&self) -> [Option<String>; 2] {
        let stage = &self.stage;
        [stage.controller().await.metadata.uid, stage.node_driver().await.metadata.uid]
    }

    /// Lets something go wrong after a seeded time; the operator that lives on is in `operator`.
    async fn befalls(&self, mishap: Mishap, numbers: &mut Numbers, operator: &mut Process) {
        // Any instant of the work will do; that it is another one from run to run does no harm.
        let pause = |numbers: &mut Numbers| Duration::from_millis(100 + numbers.below(2_000));
        match mishap {
            Mishap::None => {}
            Mishap::Kill | Mishap::KillTwice => {
                for _ in 0..if mishap == Mishap::Kill { 1 } else { 2 } {
                    tokio::time::sleep(pause(numbers)).await;
                    operator.kill();
                    *operator = self.stage.operator();
                }
            }
            Mishap::CutApi | Mishap::CutVcenter => {
                let proxy = if mishap == Mishap::CutApi { &self.api } else { &self.vcenter };
                tokio::time::sleep(pause(numbers)).await;
                proxy.cut();
                tokio::time::sleep(pause(numbers)).await;
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
                *operator = self.stage.operator();
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
            let csi = status.csi.unwrap_or_default();
            api::condition::is_true(&status.conditions, "Ready")
                && status.observed_generation == config.metadata.generation
                && csi.version.as_deref() == Some(version)
                && csi.target.is_none()
        })
        .await;
    }
}

/// The objects of the drivers, what the record says of them, and their digests; what differs from
/// seed to seed (passwords, times) left out.
async fn inventory(stage: &Stage) -> Vec<String> {
    let labelled = ListParams::default().labels("app.kubernetes.io/managed-by=vdo");
    let mut all = Vec::new();
    for resource in operator::act::kinds() {
        let api = Api::<DynamicObject>::all_with(stage.client(), &resource);
        for object in api.list(&labelled).await.unwrap().items {
            let home = object.metadata.namespace.unwrap_or_default();
            all.push(format!(
                "{} {home}/{}",
                resource.kind,
                object.metadata.name.unwrap_or_default()
            ));
        }
    }
    let secrets = Api::<Secret>::namespaced(stage.client(), "vmware-system-csi");
    if let Some(secret) = secrets.get_opt("vsphere-config-secret").await.unwrap() {
        let text = String::from_utf8(secret.data.unwrap()["csi-vsphere.conf"].0.clone()).unwrap();
        let id = text.lines().find(|line| line.starts_with("cluster-id")).unwrap_or_default();
        all.push(id.to_owned());
    }
    let maps = Api::<ConfigMap>::namespaced(stage.client(), NAMESPACE);
    if let Some(map) = maps.get_opt("vdo-record-csi").await.unwrap() {
        let record: Value = serde_json::from_str(&map.data.unwrap()["record.json"]).unwrap();
        all.push(format!(
            "record {} {} {}",
            record["version"], record["healthy"], record["clusterId"]
        ));
        all.extend(record["objects"].as_array().unwrap().iter().map(|id| format!("recorded {id}")));
    }
    all.sort();
    all
}
