//! From one release to the next, and back when the next one does not run.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use common::{NAMESPACE, Stage};
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, ServiceAccount},
    storage::v1::VolumeAttachment,
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

async fn image(stage: &Stage) -> String {
    let sets = Api::<DaemonSet>::namespaced(stage.client(), "kube-system");
    let set = sets.get(CPI).await.unwrap();
    set.spec.unwrap().template.spec.unwrap().containers[0].image.clone().unwrap()
}

/// Waits until a pod of this image crashes again and again.
async fn a_pod_crashes(stage: &Stage, image: &str) {
    let pods = Api::<Pod>::namespaced(stage.client(), "kube-system");
    eventually("a pod of it crashes", 60, async || {
        let all = pods.list(&ListParams::default()).await.map_err(|e| e.to_string())?;
        let texts = all.iter().map(|pod| serde_json::to_string(pod).unwrap());
        let crashes = |text: &String| text.contains(image) && text.contains("CrashLoopBackOff");
        if texts.into_iter().any(|text| crashes(&text)) { Ok(()) } else { Err("none".to_owned()) }
    })
    .await;
}

#[tokio::test]
async fn a_release_that_crashes_is_taken_back_and_one_that_runs_stays() {
    let stage = Stage::of(1, false).await;
    let operator = stage.operator();
    let pinned = |version: &str| json!({"cloudProvider": {"vsphereCloudConfigs": ["vc"], "version": version}});
    stage.configure(pinned("1.35.0")).await;
    stage.ready(&operator, 60).await;
    assert!(image(&stage).await.contains("v1.35.0"));

    stage.nodes.as_ref().unwrap().pods("v1.35.1", Fate::Crashes);
    stage.change(json!({"spec": pinned("1.35.1")})).await;
    a_pod_crashes(&stage, "v1.35.1").await;
    // Only one that has no patience takes it back while somebody looks; it gets a release that surely
    // crashes, and is gone before one comes that only needs its time.
    stage.dismiss(operator).await;
    let hasty = stage.operator_with(&["--patience=5"]);
    stage.finding_about("VDO-1905", 60, &["1.35.1", "CrashLoopBackOff"]).await;
    stage
        .status("the one before runs again", 60, |status| {
            api::condition::is_true(&status.conditions, "CloudProviderReady")
        })
        .await;
    assert!(image(&stage).await.contains("v1.35.0"));

    stage.dismiss(hasty).await;
    let operator = stage.operator();
    // Left to the admin: what fits is said, and waits for a word.
    let manual = json!({"cloudProvider": {"version": null}, "upgrades": {"policy": "Manual"}});
    stage.change(json!({"spec": manual})).await;
    let generation = stage.config().await.metadata.generation;
    stage
        .status("the plan waits for an approval", 60, |status| {
            let plan = serde_json::to_string(&status.plan).unwrap();
            let seen = status.observed_generation == generation;
            seen && plan.contains("waits for") && plan.contains("approve-cpi=1.36")
        })
        .await;
    assert!(image(&stage).await.contains("v1.35.0"), "nothing is changed unasked");
    a_closed_window(&stage).await;
    let open = json!({"policy": "Manual", "window": window(-2, "4h")});
    stage.change(json!({"spec": {"upgrades": open}})).await;
    let approval = json!({"vdo.vmware.com/approve-cpi": "1.36.0"});
    stage.change(json!({"metadata": {"annotations": approval}})).await;
    stage
        .status("the one that runs stays", 60, |status| {
            assert!(operator.ended().is_none(), "{}", operator.tail());
            let version = status.cpi.as_ref().and_then(|cpi| cpi.version.as_deref());
            version == Some("1.36.0") && api::condition::is_true(&status.conditions, "Ready")
        })
        .await;
    assert!(image(&stage).await.contains("v1.36.0"));
    another_build_takes_over(&stage, operator).await;
    assert_eq!(stage.forbidden_deletions(), Vec::<String>::new());
    assert_eq!(stage.refusals(), Vec::<String>::new());
}

/// A window that opens so many hours from now, every day.
fn window(hours: i64, duration: &str) -> Value {
    let start = Timestamp::now() + jiff::SignedDuration::from_hours(hours);
    let start = start.to_zoned(jiff::tz::TimeZone::UTC).strftime("%H:%M").to_string();
    json!({"start": start, "duration": duration})
}

/// What may be done without a word waits for its time.
async fn a_closed_window(stage: &Stage) {
    let closed = json!({"policy": "Stable", "window": window(6, "1h")});
    stage.change(json!({"spec": {"upgrades": closed}})).await;
    let generation = stage.config().await.metadata.generation;
    stage
        .status("the plan waits for the window", 60, |status| {
            let plan = serde_json::to_string(&status.plan).unwrap();
            status.observed_generation == generation && plan.contains("maintenance window")
        })
        .await;
    assert!(image(stage).await.contains("v1.35.0"), "nothing is changed outside of it");
}

/// The operator itself is upgraded: the drivers are left as they are.
async fn another_build_takes_over(stage: &Stage, operator: Process) {
    stage.dismiss(operator).await;
    let maps = Api::<ConfigMap>::namespaced(stage.client(), NAMESPACE);
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
    let sets = Api::<DaemonSet>::namespaced(stage.client(), "kube-system");
    let before = sets.get(CPI).await.unwrap().metadata;
    let operator = stage.operator();
    eventually("this build writes down that it looks after the driver", 60, async || {
        if build().await == own { Ok(()) } else { Err(operator.tail()) }
    })
    .await;
    stage.ready(&operator, 60).await;
    let after = sets.get(CPI).await.unwrap().metadata;
    assert_eq!((after.uid, after.generation), (before.uid, before.generation), "it is untouched");
    stage.dismiss(operator).await;

    // One that rendered the same release otherwise: with a label more.
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
    stage.change(json!({"spec": {"upgrades": {"window": null}}})).await;
    let operator = stage.operator();
    stage
        .status("it says that the new rendering waits", 60, |status| {
            let said = status.cpi.as_ref().and_then(|cpi| cpi.status_msg.as_deref());
            said.is_some_and(|said| {
                said.contains("renders 1.36.0 otherwise") && said.contains("next release or change")
            })
        })
        .await;
    stage.check_now("the drivers after another build took over").await;
    let after = sets.get(CPI).await.unwrap().metadata;
    assert_eq!((after.uid, after.generation), (before.uid, before.generation), "it is untouched");
    assert!(operator.ended().is_none(), "{}", operator.tail());
}

/// Nodes of the cluster that is upgraded under load: enough for a tenth of them to be more than one.
const NODES: usize = 20;

/// Sees every change of the node driver's status.
struct WaveWatch {
    fewest: Arc<AtomicUsize>,
    changes: Arc<AtomicUsize>,
    _task: JoinSet<()>,
}

impl WaveWatch {
    async fn begin(stage: &Stage) -> Self {
        let sets = Api::<DaemonSet>::namespaced(stage.client(), "vmware-system-csi");
        let only = watcher::Config::default().fields("metadata.name=vsphere-csi-node");
        let mut events = Box::pin(watcher(sets, only).default_backoff().applied_objects());
        let (fewest, changes) = (Arc::new(AtomicUsize::new(usize::MAX)), Arc::default());
        let (least, seen): (_, Arc<AtomicUsize>) = (fewest.clone(), Arc::clone(&changes));
        let mut task = JoinSet::new();
        task.spawn(async move {
            while let Some(set) = events.next().await {
                // A watch that breaks begins anew and says nothing about nodes.
                let Ok(set) = set else { continue };
                let status = set.status.unwrap_or_default();
                let available = status.number_available.unwrap_or_default();
                least.fetch_min(usize::try_from(available).unwrap_or_default(), Relaxed);
                seen.fetch_add(1, Relaxed);
            }
        });
        let watch = Self { fewest, changes, _task: task };
        eventually("the watch has begun", 30, async || {
            if watch.changes.load(Relaxed) > 0 { Ok(()) } else { Err("not yet") }
        })
        .await;
        watch
    }

    /// The fewest nodes that had a driver at any time.
    fn end(self) -> usize {
        assert!(self.changes.load(Relaxed) > 4, "the upgrade was seen");
        self.fewest.load(Relaxed)
    }
}

/// A pod on every node that uses a volume of its own. Nobody attaches volumes here: the test does.
async fn volumes_in_use(stage: &Stage) {
    let create = PostParams::default();
    let accounts = Api::<ServiceAccount>::namespaced(stage.client(), "default");
    eventually("pods may be made", 60, async || accounts.get("default").await.map(drop)).await;
    let (volumes, claims, pods) = (
        Api::<PersistentVolume>::all(stage.client()),
        Api::<PersistentVolumeClaim>::namespaced(stage.client(), "default"),
        Api::<Pod>::namespaced(stage.client(), "default"),
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
        stage.attach(&name, &format!("node-{number}")).await;
    }
    eventually("all of them run", 120, async || {
        let running = ListParams::default().fields("status.phase=Running");
        let running = pods.list(&running).await.map_err(|e| e.to_string())?.items.len();
        if running == NODES { Ok(()) } else { Err(format!("{running} pods run")) }
    })
    .await;
}

/// A release whose node drivers crash: the first wave of them is the last, and it is taken back.
async fn a_wave_that_crashes_is_the_last(
    stage: &Stage,
    operator: Process,
    desired: &Value,
    wave: usize,
) -> Process {
    let nodes = stage.nodes.as_ref().unwrap();
    nodes.pods("v3.8.0", Fate::Crashes);
    nodes.pods("vsphere-csi-controller", Fate::Ready);
    stage.change(json!({"spec": desired})).await;
    let begun = |set: &DaemonSet| {
        let status = set.status.clone().unwrap_or_default();
        usize::try_from(status.updated_number_scheduled.unwrap_or_default()).unwrap()
    };
    eventually("a wave of node drivers crashes", 90, async || {
        let set = stage.node_driver().await;
        let status = set.status.clone().unwrap_or_default();
        let missing_privileges = status.number_unavailable.unwrap_or_default();
        let new = set.annotations().values().chain(set.labels().values());
        let new = new.into_iter().any(|value| value.contains("3.8.0"));
        let all = usize::try_from(missing_privileges).unwrap() == wave && begun(&set) == wave;
        if new && all { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;
    // It takes its nodes with it: no more may be unavailable for that.
    let at_once = async || {
        let strategy = stage.node_driver().await.spec.unwrap().update_strategy.unwrap();
        strategy.rolling_update.unwrap().max_unavailable
    };
    let before = at_once().await;
    let crashed = nodes_of_release(stage, "v3.8.0").await;
    assert_eq!(crashed.len(), wave, "{crashed:?}");
    for node in &crashed {
        nodes.set_ready(node, false).await;
    }
    eventually("they are down", 60, async || {
        for node in &crashed {
            let conditions = stage.node(node).await.status.and_then(|status| status.conditions);
            let mut conditions = conditions.into_iter().flatten();
            let down = conditions.any(|c| c.type_ == "Ready" && c.status != "True");
            down.then_some(()).ok_or(node)?;
        }
        Ok::<(), &String>(())
    })
    .await;
    stage.two_more_rounds(&operator).await;
    assert_eq!(at_once().await, before);
    assert_eq!(begun(&stage.node_driver().await), wave, "no further wave");
    for node in &crashed {
        nodes.set_ready(node, true).await;
    }
    // A rollback passes nodes that are down: then more of the others may lack a driver at once.
    eventually("they are up again", 60, async || {
        for node in &crashed {
            let conditions = stage.node(node).await.status.and_then(|status| status.conditions);
            let mut conditions = conditions.into_iter().flatten();
            let up = conditions.any(|c| c.type_ == "Ready" && c.status == "True");
            up.then_some(()).ok_or(node)?;
        }
        Ok::<(), &String>(())
    })
    .await;
    // Only one that has no patience takes it back while somebody looks.
    stage.dismiss(operator).await;
    let hasty = stage.operator_with(&["--patience=5"]);
    stage.finding_about("VDO-1905", 60, &["3.8.0", "CrashLoopBackOff"]).await;
    stage
        .status("the one before runs again", 120, |status| {
            let version = status.csi.as_ref().and_then(|csi| csi.version.as_deref());
            version == Some("3.7.3") && api::condition::is_true(&status.conditions, "StorageReady")
        })
        .await;
    // It is not tried again, by nobody, though it would run now: nothing was changed.
    stage.two_more_rounds(&hasty).await;
    let back = stage.node_driver().await.metadata.generation;
    // All of them write to one log.
    let listens = |operator: &Process| operator.log().matches("listen\":\"").count();
    let before = listens(&hasty);
    stage.dismiss(hasty).await;
    nodes.pods("v3.8.0", Fate::Ready);
    let operator = stage.operator_with(&["--patience=60"]);
    eventually("the next one is there", 60, async || {
        if listens(&operator) > before { Ok(()) } else { Err(operator.tail()) }
    })
    .await;
    stage.two_more_rounds(&operator).await;
    assert_eq!(stage.node_driver().await.metadata.generation, back);
    operator
}

/// The nodes that have a pod of the node driver with an image of this tag.
async fn nodes_of_release(stage: &Stage, tag: &str) -> Vec<String> {
    let pods = Api::<Pod>::namespaced(stage.client(), "vmware-system-csi");
    let own = ListParams::default().labels("app=vsphere-csi-node");
    let pods = pods.list(&own).await.unwrap().items.into_iter();
    let specs = pods.filter_map(|pod| pod.spec);
    let of_it = specs.filter(|spec| {
        spec.containers.iter().any(|c| c.image.as_deref().is_some_and(|image| image.contains(tag)))
    });
    of_it.filter_map(|spec| spec.node_name).collect()
}

#[tokio::test]
async fn storage_goes_through_three_releases_of_a_catalog_in_the_cluster_under_load() {
    let stage = Stage::of(NODES - 1, false).await;
    let configs = stage.use_catalog().await;
    let operator = stage.operator_with(&["--patience=60"]);
    let pinned = |version: &str| json!({"storageProvider": {"vsphereCloudConfig": "vc", "version": version}});
    stage.configure(pinned("3.6.3")).await;
    stage.ready(&operator, 60).await;
    for number in 0..200 {
        stage.attach(&format!("pv-{number}"), &format!("node-{}", number % NODES + 1)).await;
    }
    volumes_in_use(&stage).await;
    let attachments = Api::<VolumeAttachment>::all(stage.client());
    let attached = async || -> BTreeSet<Option<String>> {
        let all = attachments.list(&ListParams::default()).await.unwrap();
        all.iter().map(ResourceExt::uid).collect()
    };
    let pods = Api::<Pod>::namespaced(stage.client(), "default");
    let running = async || -> BTreeSet<Option<String>> {
        let all = pods.list(&ListParams::default().fields("status.phase=Running")).await.unwrap();
        all.iter().map(ResourceExt::uid).collect()
    };
    let (before, users) = (attached().await, running().await);
    let (controller, node) = (stage.controller().await.uid(), stage.node_driver().await.uid());

    // A tenth of the nodes is replaced at once, and never more are without a driver.
    let watched = WaveWatch::begin(&stage).await;
    let arrives = async |version: &str| {
        stage.change(json!({"spec": pinned(version)})).await;
        let generation = stage.config().await.metadata.generation;
        stage
            .status(version, 180, |status| {
                let seen = status.observed_generation == generation;
                let csi = status.csi.clone().unwrap_or_default();
                // Not `Ready` itself: vCenter does not know these volumes, which is said.
                let ready = api::condition::is_true(&status.conditions, "StorageReady");
                let runs = csi.version.as_deref() == Some(version) && csi.target.is_none();
                seen && ready && runs
            })
            .await;
    };
    arrives("3.7.3").await;
    let wave = NODES.div_ceil(10);
    let operator = a_wave_that_crashes_is_the_last(&stage, operator, &pinned("3.8.0"), wave).await;
    // Asked for anew, now that it runs.
    stage.change(json!({"spec": pinned("3.7.3")})).await;
    arrives("3.8.0").await;
    assert!(operator.ended().is_none(), "{}", operator.tail());
    assert_eq!(attached().await, before, "no volume was detached");
    assert_eq!(running().await, users, "whoever used one still does");
    let fewest = watched.end();
    assert!(fewest >= NODES - wave, "{fewest} of {NODES} nodes had a driver, {wave} may lack one");
    assert_eq!(stage.controller().await.uid(), controller, "changed, not made anew");
    assert_eq!(stage.node_driver().await.uid(), node);

    // A catalog that makes no sense changes nothing, and is named.
    let then = Timestamp::now();
    stage.write_catalog("schema: nonsense").await;
    let message = eventually("the CompatibilityConfig says so", 30, async || {
        let status = configs.get("catalog").await.unwrap().status.unwrap_or_default();
        let ready = api::condition::get(&status.conditions, "Ready").cloned();
        ready.filter(|ready| ready.status == "False").map(|ready| ready.message).ok_or("not yet")
    })
    .await;
    assert!(message.contains("vdo-catalog"), "{message}");
    stage.finding("VDO-1102", 20).await;
    assert_eq!(stage.writes_in_the_end(&operator, then).await, Vec::<String>::new());
    assert_eq!(stage.forbidden_deletions(), Vec::<String>::new());
    assert_eq!(stage.refusals(), Vec::<String>::new());
}
