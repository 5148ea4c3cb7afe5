//! The calls to a vCenter in which nothing happens.

use std::{sync::Arc, time::Duration};

use csi::{
    DRIVER_NAME,
    loops::{CapacitySettings, Services, Settings},
    metrics::LoopMetrics,
    records::MemoryRecords,
    vcenters::Intervals,
};
use futures::{StreamExt as _, stream};
use k8s_openapi::api::{core::v1::PersistentVolume, storage::v1::CSIStorageCapacity};
use kube::{Api, api::ListParams};
use serde_json::json;
use testkit::{Inventory, Vm, eventually};

use crate::{
    common::{CLUSTER, Stage as Driver, node},
    stage::{NAMESPACE, Stage},
};

const KEY: &str = "topology.csi.vmware.com/k8s-zone";
/// An hour takes 42 seconds. vCenter waits for whole seconds: the longest wait, divided by this, is two of them.
const SCALE: u32 = 85;
const HOUR: Duration = Duration::from_secs(3600 / SCALE as u64);
/// More than the driver compares with CNS in one round, so that each round has its full size.
const VOLUMES: usize = 1_100;

async fn driver() -> Driver {
    let zones: &[(&str, &[&str])] =
        &[("zone-a", &["/DC0/host/cluster-a"]), ("zone-b", &["/DC0/host/cluster-b"])];
    let vms = [
        Vm { cluster: "cluster-a".into(), ..Vm::numbered("node", 1) },
        Vm { cluster: "cluster-b".into(), ..Vm::numbered("node", 2) },
    ];
    let inventory = Inventory::small().vms(vms).category("k8s-zone", zones);
    let intervals = Intervals::default().divided_by(SCALE);
    let records = Arc::new(MemoryRecords::default());
    Driver::with_intervals(inventory, &["k8s-zone"], records, intervals).await
}

fn settings() -> Settings {
    let usual = Stage::settings();
    let capacity = CapacitySettings {
        namespace: NAMESPACE.into(),
        owner: None,
        interval: Duration::from_mins(1) / SCALE,
    };
    Settings {
        comparison_interval: usual.comparison_interval / SCALE,
        full_sync: usual.full_sync / SCALE,
        orphan_interval: usual.orphan_interval / SCALE,
        capacity: Some(capacity),
        ..usual
    }
}

fn services(driver: &Driver) -> Services {
    let service = Arc::new(driver.service.clone());
    Services {
        controller: service.clone(),
        creations: Some(service),
        vcenters: Some(driver.vcenters.clone()),
        metrics: LoopMetrics::default(),
    }
}

async fn add_volumes(stage: &Stage, ids: &[String]) {
    let volume = |(number, id): (usize, &String)| {
        json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": format!("pv-{number}")},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "8Mi"},
                "csi": {"driver": DRIVER_NAME, "volumeHandle": id},
                "storageClassName": "none", "persistentVolumeReclaimPolicy": "Retain",
            },
        })
    };
    let creating =
        ids.iter().enumerate().map(volume).map(|volume| stage.create::<PersistentVolume>(volume));
    stream::iter(creating).buffer_unordered(32).collect::<Vec<()>>().await;
}

/// With zones, a storage policy and more volumes than the driver compares at once, whatever their number is.
#[tokio::test(flavor = "multi_thread")]
async fn a_quiet_hour_costs_at_most_sixty_calls() {
    let (stage, driver) = tokio::join!(Stage::without_nodes(), driver());
    for (name, zone, number) in [("node-1", "zone-a", 1), ("node-2", "zone-b", 2)] {
        stage.register(name, KEY, zone, &node(number)).await;
    }
    let policy = json!({
        "volumeBindingMode": "WaitForFirstConsumer",
        "parameters": {"storagepolicyname": "vSAN Default Storage Policy"},
    });
    stage.class("gold", policy).await;
    let ids = driver.vcenter.add_volumes(CLUSTER, VOLUMES, 0).await;
    add_volumes(&stage, &ids).await;
    let _run = stage.run_all(services(&driver), settings());
    eventually("CNS has the names of all volumes", 120, async || {
        let volumes = driver.volumes().await;
        let named = volumes.iter().filter(|volume| {
            volume.metadata.as_ref().is_some_and(|metadata| !metadata.entities.is_empty())
        });
        let named = named.count();
        if named == VOLUMES { Ok(()) } else { Err(named) }
    })
    .await;
    let capacities = Api::<CSIStorageCapacity>::namespaced(stage.client(), NAMESPACE);
    eventually("the capacity is published", 60, async || {
        let published = capacities.list(&ListParams::default()).await.unwrap().items.len();
        if published == 4 { Ok(()) } else { Err(published) }
    })
    .await;
    driver.vcenter.forget_calls().await;
    tokio::time::sleep(HOUR).await;
    let calls = driver.vcenter.calls().await;
    println!("{} calls in a quiet hour: {:#?}", calls.sum(), calls.total);
    assert!(calls.count("WaitForUpdatesEx") >= 10, "the inventory is watched");
    assert!(calls.sum() <= 60, "{} calls: {:#?}", calls.sum(), calls.total);
}
