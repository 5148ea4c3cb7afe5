//! `kill -9` of the operator at seeded instants of install, change, rotation and removal: it always
//! ends in the same state, and never deletes what is not its own.
//!
//! `VDO_SEEDS` says how many seeds are tried; a failure names its seed, and `VDO_SEED` tries that one.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::time::Duration;

use common::{NAMESPACE, Stage};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, ListParams},
};
use serde_json::{Value, json};
use testkit::{Process, VcenterUser, eventually};

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
const LANES: u64 = 4;

/// The seeds of one lane.
fn seeds(lane: u64) -> Vec<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let all = match number("VDO_SEED") {
        Some(seed) => seed..=seed,
        None => 1..=number("VDO_SEEDS").unwrap_or(20),
    };
    all.filter(|seed| seed % LANES == lane).collect()
}

#[tokio::test]
async fn a_crash_at_any_instant_leads_to_the_same_end_seeds_4_8_12() {
    campaign(0).await;
}

#[tokio::test]
async fn a_crash_at_any_instant_leads_to_the_same_end_seeds_1_5_9() {
    campaign(1).await;
}

#[tokio::test]
async fn a_crash_at_any_instant_leads_to_the_same_end_seeds_2_6_10() {
    campaign(2).await;
}

#[tokio::test]
async fn a_crash_at_any_instant_leads_to_the_same_end_seeds_3_7_11() {
    campaign(3).await;
}

async fn campaign(lane: u64) {
    let seeds = seeds(lane);
    if seeds.is_empty() {
        // Only when a single seed is asked for, which belongs to another lane.
        return;
    }
    let stage = Stage::of(1, false).await;
    let mut first: Option<(Vec<String>, Vec<String>)> = None;
    for seed in seeds {
        let ends = one(&stage, seed).await;
        let first = first.get_or_insert_with(|| ends.clone());
        assert_eq!(first.0, ends.0, "seed {seed}: what is installed differs");
        assert_eq!(first.1, ends.1, "seed {seed}: what is left differs");
    }
    assert_eq!(stage.forbidden_deletions(), Vec::<String>::new());
    assert_eq!(stage.refusals(), Vec::<String>::new());
}

/// Install, change of configuration, rotation and removal, with a crash or two in each. Returns what
/// was there after the rotation, and after the removal.
async fn one(stage: &Stage, seed: u64) -> (Vec<String>, Vec<String>) {
    let mut numbers = Numbers(seed);
    let (user, password) = (stage.vcenter.user(), stage.vcenter.password());
    stage.vcenter.set_user(&VcenterUser::new(user, password)).await;
    stage.configure(json!({"storageProvider": {"vsphereCloudConfig": "vc"}})).await;
    let operator = crashes(stage, &mut numbers).await;
    stage.ready(&operator, 60).await;

    let distribution = format!("seed-{seed}");
    stage.change(json!({"spec": {"storageProvider": {"clusterDistribution": distribution}}})).await;
    let password = format!("password-{seed}");
    stage.vcenter.set_user(&VcenterUser::new(user, &password)).await;
    stage.write_secret(&password).await;
    drop(operator);
    let operator = crashes(stage, &mut numbers).await;
    eventually(&format!("seed {seed}: the driver is told"), 60, async || {
        let text =
            stage.secret("vmware-system-csi", "vsphere-config-secret", "csi-vsphere.conf").await;
        if text.contains(&distribution) && text.contains(&password) {
            Ok(())
        } else {
            Err(operator.tail())
        }
    })
    .await;
    stage.ready(&operator, 60).await;
    let installed = inventory(stage).await;

    stage.change(json!({"spec": {"deletionPolicy": "Remove"}})).await;
    eventually("the finalizer is set", 30, async || {
        let config = stage.config().await;
        if config.metadata.finalizers.is_some() { Ok(()) } else { Err(operator.tail()) }
    })
    .await;
    let configs = Api::<api::VDOConfig>::namespaced(stage.client(), NAMESPACE);
    configs.delete("vdo-config", &DeleteParams::default()).await.unwrap();
    drop(operator);
    let operator = crashes(stage, &mut numbers).await;
    eventually(&format!("seed {seed}: the config is gone"), 60, async || {
        match configs.get_opt("vdo-config").await.map_err(|e| e.to_string())? {
            None => Ok(()),
            Some(_) => Err(operator.tail()),
        }
    })
    .await;
    let left = inventory(stage).await;
    let vcenters = Api::<api::VsphereCloudConfig>::namespaced(stage.client(), NAMESPACE);
    vcenters.delete("vc", &DeleteParams::default()).await.unwrap();
    (installed, left)
}

/// Starts the operator and kills it after a seeded time, once or twice; returns one that lives.
async fn crashes(stage: &Stage, numbers: &mut Numbers) -> Process {
    for _ in 0..=numbers.below(2) {
        let doomed = stage.operator();
        // Up to the moment when all is done: half a second to become the leader, then the work.
        tokio::time::sleep(Duration::from_millis(300 + numbers.below(2_500))).await;
        doomed.kill();
    }
    stage.operator()
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
