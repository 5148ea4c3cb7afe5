//! vCenter shows the Kubernetes objects of each volume.

use std::{sync::Arc, time::Duration};

use csi::{
    loops::{Services, Settings},
    metrics::LoopMetrics,
};
use k8s_openapi::api::core::v1::{Namespace, PersistentVolume};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;
use testkit::{Inventory, eventually};
use vsphere::cns::{
    ContainerCluster, EntityMetadata, EntityReference, KeyValue, Volume as CnsVolume, VolumeId,
    VolumeMetadata, VolumeMetadataUpdate,
};

use crate::{
    common::{CLUSTER, Stage as Driver, node},
    stage::{NAMESPACE, Run, Stage},
};

const HOST: &str = "kubernetes.io/hostname";
const UID: &str = "vdo.vmware.com/cluster-uid";

async fn start() -> (Stage, Driver) {
    let (stage, driver) =
        tokio::join!(Stage::without_nodes(), Driver::with(Inventory::with_vms(2)));
    for number in 1..=2 {
        let name = format!("node-{number}");
        stage.register(&name, HOST, &name, &node(number)).await;
    }
    (stage, driver)
}

fn run(stage: &Stage, driver: &Driver, full_sync: Duration) -> Run {
    let service = Arc::new(driver.service.clone());
    let services = Services {
        controller: service.clone(),
        creations: Some(service),
        vcenters: Some(driver.vcenters.clone()),
        metrics: LoopMetrics::default(),
    };
    let settings = Settings { topology: false, full_sync, ..Stage::settings() };
    stage.run_all(services, settings)
}

/// The entries of a volume, as `kind name label=value`.
fn entries(volume: &CnsVolume) -> Vec<String> {
    let one = |entity: &EntityMetadata| {
        let labels = entity.labels.iter().filter(|label| label.key != UID);
        let labels: Vec<String> =
            labels.map(|label| format!(" {}={}", label.key, label.value)).collect();
        format!("{} {}{}", entity.kind.as_deref().unwrap(), entity.name, labels.concat())
    };
    let mut all: Vec<String> =
        volume.metadata.iter().flat_map(|metadata| &metadata.entities).map(one).collect();
    all.sort();
    all
}

async fn until_entries(driver: &Driver, handle: &str, expected: &[String]) {
    eventually("CNS has the entries", 30, async || {
        let all = driver.volumes().await;
        let found = entries(all.iter().find(|volume| volume.id.id == handle).unwrap());
        if found == expected { Ok(()) } else { Err(format!("{found:#?}")) }
    })
    .await;
}

async fn label(stage: &Stage, claim: &str, value: &str) {
    let patch = Patch::Merge(json!({"metadata": {"labels": {"app": value}}}));
    stage.claims().patch(claim, &PatchParams::default(), &patch).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn vcenter_shows_the_claim_and_the_pods_of_a_volume() {
    let (stage, driver) = start().await;
    let leader = run(&stage, &driver, Duration::from_mins(30));
    stage.claim("data", "immediate").await;
    let volume = stage.bound("data").await;
    let pv = volume.metadata.name.unwrap();
    let handle = volume.spec.unwrap().csi.unwrap().volume_handle;
    let with = |more: &[&str]| {
        let mut all = vec![format!("PERSISTENT_VOLUME {pv}")];
        all.extend(more.iter().map(ToString::to_string));
        all
    };
    until_entries(&driver, &handle, &with(&["PERSISTENT_VOLUME_CLAIM data"])).await;
    assert_eq!(
        driver.vcenter.calls().await.count("CnsUpdateVolumeMetadata"),
        0,
        "it was created so"
    );

    label(&stage, "data", "db").await;
    until_entries(&driver, &handle, &with(&["PERSISTENT_VOLUME_CLAIM data app=db"])).await;
    stage.pod("one", "data", json!({HOST: "node-1"})).await;
    let used = with(&["PERSISTENT_VOLUME_CLAIM data app=db", "POD one"]);
    until_entries(&driver, &handle, &used).await;
    stage.delete_pod("one").await;
    until_entries(&driver, &handle, &with(&["PERSISTENT_VOLUME_CLAIM data app=db"])).await;

    // A pod comes and goes while no controller runs.
    stage.pod("two", "data", json!({HOST: "node-1"})).await;
    let used = with(&["PERSISTENT_VOLUME_CLAIM data app=db", "POD two"]);
    until_entries(&driver, &handle, &used).await;
    drop(leader);
    stage.delete_pod("two").await;
    label(&stage, "data", "web").await;
    let leader = run(&stage, &driver, Duration::from_mins(30));
    until_entries(&driver, &handle, &with(&["PERSISTENT_VOLUME_CLAIM data app=web"])).await;

    // Many changes share a call.
    let claims: Vec<String> = (0..10).map(|n| format!("many-{n}")).collect();
    for claim in &claims {
        stage.claim(claim, "immediate").await;
    }
    for claim in &claims {
        stage.bound(claim).await;
    }
    driver.vcenter.forget_calls().await;
    for claim in &claims {
        label(&stage, claim, "many").await;
    }
    eventually("all volumes have the label", 30, async || {
        let all = driver.volumes().await;
        let labelled = all.iter().flat_map(entries).filter(|entry| entry.ends_with("app=many"));
        let count = labelled.count();
        if count == claims.len() { Ok(()) } else { Err(count.to_string()) }
    })
    .await;
    let calls = driver.vcenter.calls().await.count("CnsUpdateVolumeMetadata");
    assert!(calls <= 5, "{calls} calls for 10 volumes");
    leader.stop().await;
}

fn entity(kind: &str, name: &str, refers: &str, uid: Option<&str>) -> EntityMetadata {
    let labels =
        uid.map(|uid| KeyValue { key: UID.into(), value: uid.into() }).into_iter().collect();
    let reference = EntityReference {
        kind: "PERSISTENT_VOLUME_CLAIM".into(),
        name: refers.into(),
        namespace: Some(NAMESPACE.into()),
        cluster: Some(CLUSTER.into()),
    };
    EntityMetadata {
        name: name.into(),
        labels,
        delete: None,
        cluster: Some(CLUSTER.into()),
        kind: Some(kind.into()),
        namespace: Some(NAMESPACE.into()),
        refers: vec![reference],
    }
}

/// Writes entries as another cluster with the same cluster id would.
async fn write(driver: &Driver, handle: &str, entities: Vec<EntityMetadata>) {
    let cluster = ContainerCluster {
        kind: "KUBERNETES".into(),
        id: CLUSTER.into(),
        user: driver.vcenter.user().to_owned(),
        flavor: Some("VANILLA".into()),
        distribution: None,
        delete: None,
    };
    let metadata =
        VolumeMetadata { cluster: Some(cluster.clone()), entities, clusters: vec![cluster] };
    let update = VolumeMetadataUpdate { volume: VolumeId::from(handle), metadata };
    let client = driver.observer().await;
    let task = client.update_volume_metadata(vec![update]).await.unwrap();
    let outcomes = task.wait(Duration::from_secs(30)).await.unwrap();
    assert!(outcomes.iter().all(|outcome| outcome.result.is_ok()), "{outcomes:?}");
    client.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_with_the_same_cluster_id_loses_nothing() {
    let (stage, driver) = start().await;
    stage.claim("data", "immediate").await;
    let leader = run(&stage, &driver, Duration::from_mins(30));
    let volume = stage.bound("data").await;
    let handle = volume.spec.unwrap().csi.unwrap().volume_handle;
    leader.stop().await;

    // A volume of the other cluster, and entries of the other cluster on a volume of this one.
    let foreign = driver.create("pvc-of-the-other-cluster").await.unwrap().volume_id;
    let theirs = vec![
        entity("PERSISTENT_VOLUME_CLAIM", "their-claim", "x", None),
        entity("POD", "their-pod", "their-claim", Some("uid-of-the-other-cluster")),
    ];
    write(&driver, &foreign, theirs).await;
    let namespaces = Api::<Namespace>::all(stage.client());
    let uid = namespaces.get("kube-system").await.unwrap().metadata.uid;
    let shared = vec![
        entity("POD", "their-pod", "data", Some("uid-of-the-other-cluster")),
        entity("POD", "unknown-pod", "data", None),
        entity("POD", "our-ended-pod", "data", uid.as_deref()),
    ];
    write(&driver, &handle, shared).await;
    let of = |all: Vec<CnsVolume>, id: &str| all.into_iter().find(|volume| volume.id.id == id);
    let before = of(driver.volumes().await, &foreign).unwrap();

    driver.vcenter.forget_calls().await;
    let leader = run(&stage, &driver, Duration::from_millis(500));
    eventually("there were many full syncs", 60, async || {
        let calls = driver.vcenter.calls().await.count("CnsQueryVolume");
        if calls >= 6 { Ok(()) } else { Err(calls.to_string()) }
    })
    .await;
    let all = driver.volumes().await;
    assert_eq!(of(all.clone(), &foreign), Some(before));
    let found = entries(&of(all, &handle).unwrap());
    let pods: Vec<_> = found.iter().filter(|entry| entry.starts_with("POD")).collect();
    assert_eq!(pods, ["POD their-pod", "POD unknown-pod"], "only our own entry is removed");
    let calls = driver.vcenter.calls().await;
    assert_eq!(calls.count("CnsDeleteVolume"), 0);
    assert_eq!(calls.count("CnsUpdateVolumeMetadata"), 1, "{:?}", calls.total);
    leader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_disk_of_a_static_volume_becomes_a_cns_volume() {
    let (stage, driver) = start().await;
    let handle = driver.create("by-hand").await.unwrap().volume_id;
    // The disk stays, and CNS forgets it.
    let client = driver.observer().await;
    let task = client.delete_volumes(&[VolumeId::from(handle.as_str())], false).await.unwrap();
    task.wait(Duration::from_secs(30)).await.unwrap();
    client.shut_down().await;
    assert!(driver.volumes().await.is_empty());
    let leader = run(&stage, &driver, Duration::from_mins(30));
    let volume = |name: &str, handle: &str| {
        json!({
            "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "csi": {"driver": csi::DRIVER_NAME, "volumeHandle": handle},
            },
        })
    };
    stage.create::<PersistentVolume>(volume("imported", &handle)).await;
    stage.create::<PersistentVolume>(volume("mistyped", "no-such-disk")).await;
    eventually("CNS knows the volume", 30, async || {
        let all = driver.volumes().await;
        let found: Vec<_> = all.iter().map(|volume| (&*volume.id.id, entries(volume))).collect();
        let expected = vec![(handle.as_str(), vec!["PERSISTENT_VOLUME imported".to_owned()])];
        if found == expected { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
    let text = stage.until_event("mistyped", "StaticVolumeProvisioningFailed").await;
    assert!(text.contains("no-such-disk"), "{text}");
    leader.stop().await;
}
