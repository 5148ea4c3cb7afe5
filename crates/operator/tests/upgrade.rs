//! From one release to the next, and back when the next one does not run.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use common::{NAMESPACE, Testbed};
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::DaemonSet,
        core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, ServiceAccount},
        storage::v1::VolumeAttachment,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::{Value, json};
use testkit::{Fate, Process, eventually};
use tokio::task::JoinSet;

const CPI: &str = "vsphere-cloud-controller-manager";

async fn image(testbed: &Testbed) -> String {
    let sets = Api::<DaemonSet>::namespaced(testbed.client(), "kube-system");
    let set = sets.get(CPI).await.unwrap();
    set.spec.unwrap().template.spec.unwrap().containers[0].image.clone().unwrap()
}

/// Waits until a pod with this image is in CrashLoopBackOff.
async fn a_pod_crashes(testbed: &Testbed, image: &str) {
    let pods = Api::<Pod>::namespaced(testbed.client(), "kube-system");
    eventually("a pod crashes", 60, async || {
        let all = pods.list(&ListParams::default()).await.map_err(|e| e.to_string())?;
        let texts = all.iter().map(|pod| serde_json::to_string(pod).unwrap());
        let crashes = |text: &String| text.contains(image) && text.contains("CrashLoopBackOff");
        if texts.into_iter().any(|text| crashes(&text)) { Ok(()) } else { Err("none".to_owned()) }
    })
    .await;
}

#[tokio::test]
async fn a_crashing_release_is_rolled_back_and_a_running_release_stays() {
    let testbed = Testbed::with_nodes(1).await;
    let operator = testbed.operator();
    let pinned = |version: &str| json!({"cloudProvider": {"vsphereCloudConfigs": ["vc"], "version": version}});
    testbed.configure(pinned("1.35.0")).await;
    testbed.ready(&operator, 60).await;
    assert!(image(&testbed).await.contains("v1.35.0"));

    testbed.nodes.as_ref().unwrap().pods("v1.35.1", Fate::Crashes);
    testbed.change(json!({"spec": pinned("1.35.1")})).await;
    a_pod_crashes(&testbed, "v1.35.1").await;
    // Only an operator with a short timeout rolls back while the test waits. It stops before the next release, which
    // needs time to start.
    testbed.stop(operator).await;
    let hasty = testbed.operator_with(&["--patience=5"]);
    testbed.finding_about("VDO-1905", 60, &["1.35.1", "CrashLoopBackOff"]).await;
    testbed
        .status("the previous release runs again", 60, |status| {
            api::condition::is_true(&status.conditions, "CloudProviderReady")
        })
        .await;
    assert!(image(&testbed).await.contains("v1.35.0"));

    testbed.stop(hasty).await;
    let operator = testbed.operator();
    // The admin decides: VDO proposes the release and waits for an approval.
    let manual = json!({"cloudProvider": {"version": null}, "upgrades": {"policy": "Manual"}});
    testbed.change(json!({"spec": manual})).await;
    let generation = testbed.config().await.metadata.generation;
    testbed
        .status("the plan waits for an approval", 60, |status| {
            let plan = serde_json::to_string(&status.plan).unwrap();
            let seen = status.observed_generation == generation;
            seen && plan.contains("waits for") && plan.contains("approve-cpi=1.36")
        })
        .await;
    assert!(image(&testbed).await.contains("v1.35.0"), "VDO must not upgrade without approval");
    a_closed_window(&testbed).await;
    let open = json!({"policy": "Manual", "window": window(-2, "4h")});
    testbed.change(json!({"spec": {"upgrades": open}})).await;
    let approval = json!({"vdo.vmware.com/approve-cpi": "1.36.0"});
    testbed.change(json!({"metadata": {"annotations": approval}})).await;
    testbed
        .status("the approved release runs", 60, |status| {
            assert!(operator.ended().is_none(), "{}", operator.tail());
            let version = status.cpi.as_ref().and_then(|cpi| cpi.version.as_deref());
            version == Some("1.36.0") && api::condition::is_true(&status.conditions, "Ready")
        })
        .await;
    assert!(image(&testbed).await.contains("v1.36.0"));
    another_build_replaces_the_operator(&testbed, operator).await;
    assert_eq!(testbed.forbidden_deletions(), Vec::<String>::new());
    assert_eq!(testbed.denied_requests(), Vec::<String>::new());
}

/// A daily window that opens this many hours from now.
fn window(hours: i64, duration: &str) -> Value {
    let start = Timestamp::now() + jiff::SignedDuration::from_hours(hours);
    let start = start.to_zoned(jiff::tz::TimeZone::UTC).strftime("%H:%M").to_string();
    json!({"start": start, "duration": duration})
}

/// An automatic upgrade waits for its window.
async fn a_closed_window(testbed: &Testbed) {
    let closed = json!({"policy": "Stable", "window": window(6, "1h")});
    testbed.change(json!({"spec": {"upgrades": closed}})).await;
    let generation = testbed.config().await.metadata.generation;
    testbed
        .status("the plan waits for the window", 60, |status| {
            let plan = serde_json::to_string(&status.plan).unwrap();
            status.observed_generation == generation && plan.contains("maintenance window")
        })
        .await;
    assert!(image(testbed).await.contains("v1.35.0"), "VDO must not upgrade outside the window");
}

/// An upgrade of the operator itself leaves the drivers alone.
async fn another_build_replaces_the_operator(testbed: &Testbed, operator: Process) {
    testbed.stop(operator).await;
    let maps = Api::<ConfigMap>::namespaced(testbed.client(), NAMESPACE);
    let build = async || -> Value {
        let map = maps.get("vdo-record-cpi").await.unwrap();
        let record: Value = serde_json::from_str(&map.data.unwrap()["record.json"]).unwrap();
        record["origin"]["build"].clone()
    };
    let own = build().await;
    let map = maps.get("vdo-record-cpi").await.unwrap();
    let record = map.data.unwrap()["record.json"].replace(own.as_str().unwrap(), "of another day");
    let earlier = Patch::Merge(json!({"data": {"record.json": record}}));
    maps.patch("vdo-record-cpi", &PatchParams::default(), &earlier).await.unwrap();
    assert_eq!(build().await, "of another day");
    let sets = Api::<DaemonSet>::namespaced(testbed.client(), "kube-system");
    let before = sets.get(CPI).await.unwrap().metadata;
    let operator = testbed.operator();
    eventually("this build is in the record", 60, async || {
        if build().await == own { Ok(()) } else { Err(operator.tail()) }
    })
    .await;
    testbed.ready(&operator, 60).await;
    let after = sets.get(CPI).await.unwrap().metadata;
    assert_eq!(
        (after.uid, after.generation),
        (before.uid, before.generation),
        "the driver must not change"
    );
    testbed.stop(operator).await;

    // The earlier build rendered the same release differently: with another label.
    let map = maps.get("vdo-record-cpi").await.unwrap();
    let mut record: Value = serde_json::from_str(&map.data.unwrap()["record.json"]).unwrap();
    record["origin"]["build"] = json!("of another day");
    record["configuration"] = json!("as of another day");
    let earlier = Patch::Merge(json!({"data": {"record.json": record.to_string()}}));
    maps.patch("vdo-record-cpi", &PatchParams::default(), &earlier).await.unwrap();
    let other = json!({
        "metadata": {"annotations": {"vdo.vmware.com/digest": "as of another day"}},
        "spec": {"template": {"metadata": {"labels": {"of": "another-day"}}}},
    });
    let by = PatchParams { field_manager: Some("vdo".into()), ..PatchParams::default() };
    let before = sets.patch(CPI, &by, &Patch::Merge(other)).await.unwrap().metadata;
    testbed.change(json!({"spec": {"upgrades": {"window": null}}})).await;
    let operator = testbed.operator();
    testbed
        .status("the status shows that the new rendering waits", 60, |status| {
            let message = status.cpi.as_ref().and_then(|cpi| cpi.status_msg.as_deref());
            message.is_some_and(|message| {
                message.contains("renders 1.36.0 otherwise")
                    && message.contains("next release or change")
            })
        })
        .await;
    testbed.check_now("the drivers of another build of the operator").await;
    let after = sets.get(CPI).await.unwrap().metadata;
    assert_eq!(
        (after.uid, after.generation),
        (before.uid, before.generation),
        "the driver must not change"
    );
    assert!(operator.ended().is_none(), "{}", operator.tail());
}

/// The size of the cluster that is upgraded under load: a tenth of the nodes is more than one.
const NODES: usize = 20;

/// Observes every change of the node driver's status.
struct WaveWatch {
    fewest: Arc<AtomicUsize>,
    /// Each `maxUnavailable` that the DaemonSet had.
    limits: Arc<Mutex<BTreeSet<String>>>,
    changes: Arc<AtomicUsize>,
    _task: JoinSet<()>,
}

impl WaveWatch {
    async fn begin(testbed: &Testbed) -> Self {
        let sets = Api::<DaemonSet>::namespaced(testbed.client(), "vmware-system-csi");
        let only = watcher::Config::default().fields("metadata.name=vsphere-csi-node");
        let mut events = Box::pin(watcher(sets, only).default_backoff().applied_objects());
        let (fewest, changes) = (Arc::new(AtomicUsize::new(usize::MAX)), Arc::default());
        let (least, seen): (_, Arc<AtomicUsize>) = (fewest.clone(), Arc::clone(&changes));
        let limits = Arc::<Mutex<BTreeSet<String>>>::default();
        let all_limits = limits.clone();
        let mut task = JoinSet::new();
        task.spawn(async move {
            while let Some(set) = events.next().await {
                // A broken watch restarts.
                let Ok(set) = set else { continue };
                let strategy = set.spec.and_then(|spec| spec.update_strategy?.rolling_update);
                let limit = strategy.and_then(|strategy| strategy.max_unavailable);
                all_limits.lock().unwrap().insert(format!("{limit:?}"));
                let status = set.status.unwrap_or_default();
                let available = status.number_available.unwrap_or_default();
                least.fetch_min(usize::try_from(available).unwrap_or_default(), Relaxed);
                seen.fetch_add(1, Relaxed);
            }
        });
        let watch = Self { fewest, limits, changes, _task: task };
        eventually("the watch has begun", 30, async || {
            if watch.changes.load(Relaxed) > 0 { Ok(()) } else { Err("not yet") }
        })
        .await;
        watch
    }

    /// The smallest number of nodes that had a driver at any time, and every limit that Kubernetes was given.
    fn end(self) -> (usize, BTreeSet<String>) {
        assert!(self.changes.load(Relaxed) > 4, "the watch must observe the upgrade");
        let limits = self.limits.lock().unwrap().clone();
        (self.fewest.load(Relaxed), limits)
    }
}

/// A pod on every node with its own volume. No attacher runs here: the test creates the attachments.
async fn volumes_in_use(testbed: &Testbed) {
    let create = PostParams::default();
    let accounts = Api::<ServiceAccount>::namespaced(testbed.client(), "default");
    eventually("the default ServiceAccount exists", 60, async || {
        accounts.get("default").await.map(drop)
    })
    .await;
    let (volumes, claims, pods) = (
        Api::<PersistentVolume>::all(testbed.client()),
        Api::<PersistentVolumeClaim>::namespaced(testbed.client(), "default"),
        Api::<Pod>::namespaced(testbed.client(), "default"),
    );
    for number in 1..=NODES {
        let name = format!("data-{number}");
        let volume = json!({
            "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"namespace": "default", "name": name},
                "csi": {"driver": "csi.vsphere.vmware.com", "volumeHandle": format!("disk-{number}")},
            },
        });
        let claim = json!({
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": name,
                "resources": {"requests": {"storage": "1Gi"}},
            },
        });
        let pod = json!({
            "metadata": {"name": format!("user-{number}")},
            "spec": {
                "nodeName": format!("node-{number}"),
                "tolerations": [{"operator": "Exists"}],
                "containers": [{
                    "name": "user", "image": "example.com/user:1",
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                }],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": name}}],
            },
        });
        volumes.create(&create, &serde_json::from_value(volume).unwrap()).await.unwrap();
        claims.create(&create, &serde_json::from_value(claim).unwrap()).await.unwrap();
        pods.create(&create, &serde_json::from_value(pod).unwrap()).await.unwrap();
        testbed.attach(&name, &format!("node-{number}")).await;
    }
    eventually("all pods run", 120, async || {
        let running = ListParams::default().fields("status.phase=Running");
        let running = pods.list(&running).await.map_err(|e| e.to_string())?.items.len();
        if running == NODES { Ok(()) } else { Err(format!("{running} pods run")) }
    })
    .await;
}

/// A release whose node drivers crash: VDO stops after the first wave, and rolls it back.
async fn a_wave_that_crashes_is_the_last(
    testbed: &Testbed,
    operator: Process,
    spec: &Value,
    wave: usize,
) -> Process {
    let nodes = testbed.nodes.as_ref().unwrap();
    nodes.pods("v3.8.0", Fate::Crashes);
    nodes.pods("vsphere-csi-controller", Fate::Ready);
    testbed.change(json!({"spec": spec})).await;
    let updated = |set: &DaemonSet| {
        let status = set.status.clone().unwrap_or_default();
        usize::try_from(status.updated_number_scheduled.unwrap_or_default()).unwrap()
    };
    eventually("a wave of node drivers crashes", 90, async || {
        let set = testbed.node_driver().await;
        let status = set.status.clone().unwrap_or_default();
        let unavailable = status.number_unavailable.unwrap_or_default();
        let new = set.annotations().values().chain(set.labels().values());
        let new = new.into_iter().any(|value| value.contains("3.8.0"));
        let all = usize::try_from(unavailable).unwrap() == wave && updated(&set) == wave;
        if new && all { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;
    // The nodes of the wave go down too: that must not raise the number of unavailable pods.
    let max_unavailable = async || {
        let strategy = testbed.node_driver().await.spec.unwrap().update_strategy.unwrap();
        strategy.rolling_update.unwrap().max_unavailable
    };
    let before = max_unavailable().await;
    let crashed = nodes_of_release(testbed, "v3.8.0").await;
    assert_eq!(crashed.len(), wave, "{crashed:?}");
    for node in &crashed {
        nodes.set_ready(node, false).await;
    }
    eventually("the nodes are down", 60, async || {
        for node in &crashed {
            let conditions = testbed.node(node).await.status.and_then(|status| status.conditions);
            let mut conditions = conditions.into_iter().flatten();
            let down = conditions.any(|c| c.type_ == "Ready" && c.status != "True");
            down.then_some(()).ok_or(node)?;
        }
        Ok::<(), &String>(())
    })
    .await;
    testbed.two_more_rounds(&operator).await;
    assert_eq!(max_unavailable().await, before);
    assert_eq!(updated(&testbed.node_driver().await), wave, "no further wave");
    for node in &crashed {
        nodes.set_ready(node, true).await;
    }
    // A rollback ignores nodes that are down: then more of the others could lack a driver at once.
    eventually("the nodes are Ready again", 60, async || {
        for node in &crashed {
            let conditions = testbed.node(node).await.status.and_then(|status| status.conditions);
            let mut conditions = conditions.into_iter().flatten();
            let up = conditions.any(|c| c.type_ == "Ready" && c.status == "True");
            up.then_some(()).ok_or(node)?;
        }
        Ok::<(), &String>(())
    })
    .await;
    // Only an operator with a short timeout rolls back while the test waits.
    testbed.stop(operator).await;
    let hasty = testbed.operator_with(&["--patience=5"]);
    testbed.finding_about("VDO-1905", 60, &["3.8.0", "CrashLoopBackOff"]).await;
    testbed
        .status("the previous release runs again", 120, |status| {
            let version = status.csi.as_ref().and_then(|csi| csi.version.as_deref());
            version == Some("3.7.3") && api::condition::is_true(&status.conditions, "StorageReady")
        })
        .await;
    // VDO does not retry the release without a change of the spec, although it would run now.
    testbed.two_more_rounds(&hasty).await;
    let rolled_back = testbed.node_driver().await.metadata.generation;
    // All operators write to one log.
    let listens = |operator: &Process| operator.log().matches("listen\":\"").count();
    let before = listens(&hasty);
    testbed.stop(hasty).await;
    nodes.pods("v3.8.0", Fate::Ready);
    let operator = testbed.operator_with(&["--patience=3600"]);
    eventually("the next operator runs", 60, async || {
        if listens(&operator) > before { Ok(()) } else { Err(operator.tail()) }
    })
    .await;
    testbed.two_more_rounds(&operator).await;
    assert_eq!(testbed.node_driver().await.metadata.generation, rolled_back);
    operator
}

/// The nodes with a pod of the node driver of this image tag.
async fn nodes_of_release(testbed: &Testbed, tag: &str) -> Vec<String> {
    let pods = Api::<Pod>::namespaced(testbed.client(), "vmware-system-csi");
    let own = ListParams::default().labels("app=vsphere-csi-node");
    let pods = pods.list(&own).await.unwrap().items.into_iter();
    let specs = pods.filter_map(|pod| pod.spec);
    let with_tag = specs.filter(|spec| {
        spec.containers.iter().any(|c| c.image.as_deref().is_some_and(|image| image.contains(tag)))
    });
    with_tag.filter_map(|spec| spec.node_name).collect()
}

#[tokio::test]
async fn storage_goes_through_three_releases_of_a_catalog_in_the_cluster_under_load() {
    let testbed = Testbed::with_nodes(NODES - 1).await;
    let configs = testbed.use_catalog().await;
    // On a busy computer, a shorter timeout ends while a wave crashes, and VDO rolls it back too early.
    let operator = testbed.operator_with(&["--patience=3600"]);
    let pinned = |version: &str| json!({"storageProvider": {"vsphereCloudConfig": "vc", "version": version}});
    testbed.configure(pinned("3.6.3")).await;
    testbed.ready(&operator, 60).await;
    for number in 0..200 {
        testbed.attach(&format!("pv-{number}"), &format!("node-{}", number % NODES + 1)).await;
    }
    volumes_in_use(&testbed).await;
    let attachments = Api::<VolumeAttachment>::all(testbed.client());
    let attached = async || -> BTreeSet<Option<String>> {
        let all = attachments.list(&ListParams::default()).await.unwrap();
        all.iter().map(ResourceExt::uid).collect()
    };
    let pods = Api::<Pod>::namespaced(testbed.client(), "default");
    let running = async || -> BTreeSet<Option<String>> {
        let all = pods.list(&ListParams::default().fields("status.phase=Running")).await.unwrap();
        all.iter().map(ResourceExt::uid).collect()
    };
    let (before, users) = (attached().await, running().await);
    let (controller, node) = (testbed.controller().await.uid(), testbed.node_driver().await.uid());

    // VDO lets Kubernetes replace a tenth of the nodes at once.
    let watched = WaveWatch::begin(&testbed).await;
    let upgrade_to = async |version: &str| {
        testbed.change(json!({"spec": pinned(version)})).await;
        let generation = testbed.config().await.metadata.generation;
        testbed
            .status(version, 180, |status| {
                let observed = status.observed_generation == generation;
                let csi = status.csi.clone().unwrap_or_default();
                // Not `Ready`: vCenter does not know these volumes, and VDO reports that.
                let ready = api::condition::is_true(&status.conditions, "StorageReady");
                let runs = csi.version.as_deref() == Some(version) && csi.target.is_none();
                observed && ready && runs
            })
            .await;
    };
    upgrade_to("3.7.3").await;
    let wave = NODES.div_ceil(10);
    let operator =
        a_wave_that_crashes_is_the_last(&testbed, operator, &pinned("3.8.0"), wave).await;
    // Requested again, now that it runs.
    testbed.change(json!({"spec": pinned("3.7.3")})).await;
    upgrade_to("3.8.0").await;
    assert!(operator.ended().is_none(), "{}", operator.tail());
    assert_eq!(attached().await, before, "no volume was detached");
    assert_eq!(running().await, users, "every pod keeps its volume");
    let (fewest, limits) = watched.end();
    let tenth = format!("{:?}", Some(IntOrString::String("10%".into())));
    assert_eq!(limits, BTreeSet::from([tenth]), "VDO never allows more than a tenth");
    // Kubernetes counts pods from its cache, and can begin a wave before it sees the end of the last one.
    let least = NODES - 2 * wave;
    assert!(fewest >= least, "{fewest} of {NODES} nodes had a driver, at least {least} must");
    assert_eq!(testbed.controller().await.uid(), controller, "it is not re-created");
    assert_eq!(testbed.node_driver().await.uid(), node);

    // An invalid catalog changes nothing, and VDO reports it.
    let since = Timestamp::now();
    testbed.write_catalog("schema: nonsense").await;
    let message = eventually("the CompatibilityConfig is not Ready", 30, async || {
        let status = configs.get("catalog").await.unwrap().status.unwrap_or_default();
        let ready = api::condition::get(&status.conditions, "Ready").cloned();
        ready.filter(|ready| ready.status == "False").map(|ready| ready.message).ok_or("not yet")
    })
    .await;
    assert!(message.contains("vdo-catalog"), "{message}");
    testbed.finding("VDO-1102", 20).await;
    assert_eq!(testbed.writes_after_two_rounds(&operator, since).await, Vec::<String>::new());
    assert_eq!(testbed.forbidden_deletions(), Vec::<String>::new());
    assert_eq!(testbed.denied_requests(), Vec::<String>::new());
}
