//! Days on which everything around the operator goes wrong, one after the other on one cluster: each
//! trouble is said, nothing is lost, and when it is over the operator goes on by itself.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::process::Command;

use common::{NAMESPACE, Stage};
use jiff::Timestamp;
use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    apps::v1::Deployment,
    core::v1::{ConfigMap, Namespace, Secret, Service},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use testkit::{FaultProxy, Process, eventually};

const CSI: &str = "vmware-system-csi";
const CONTROLLER: &str = "vsphere-csi-controller";

#[tokio::test]
async fn troubles_around_the_operator_are_said_and_pass_without_a_trace() {
    let mut stage = Stage::of(1, false).await;
    let api = FaultProxy::before(stage.plane.address()).await;
    stage.api_address = Some(api.address());
    let operator = a_secret_in_the_wrong_namespace(&stage).await;
    stage.ready(&operator, 120).await;
    somebody_prunes_with_kubectl(&stage).await;
    a_pause(&stage, &operator).await;
    stage.ready(&operator, 120).await;
    a_driver_that_is_only_observed(&stage, &operator).await;
    stage.ready(&operator, 120).await;
    a_policy_that_refuses(&stage).await;
    stage.ready(&operator, 120).await;
    somebody_writes_at_the_same_time(&stage).await;
    stage.ready(&operator, 120).await;
    a_gap_in_every_watch(&stage, &api, &operator).await;
    stage.ready(&operator, 120).await;
    assert_eq!(stage.deletions(), Vec::<String>::new());
    assert_eq!(stage.refusals(), Vec::<String>::new());
    a_namespace_that_does_not_end(&stage).await;
    stage.ready(&operator, 180).await;
    assert_eq!(stage.deletions(), Vec::<String>::new());
}

fn services(stage: &Stage) -> Api<Service> {
    Api::namespaced(stage.client(), CSI)
}

/// What the operator wrote where the storage driver is since then.
async fn writes_to_the_driver(stage: &Stage, operator: &Process, since: Timestamp) -> Vec<String> {
    let all = stage.writes_in_the_end(operator, since).await;
    all.into_iter().filter(|write| write.contains(CSI)).collect()
}

/// Changes something of the wish that the driver would be told, and waits until it was looked at.
async fn a_wish_is_seen(stage: &Stage, distribution: &str) {
    let desired = json!({"spec": {"storageProvider": {"clusterDistribution": distribution}}});
    stage.change(desired).await;
    let generation = stage.config().await.metadata.generation;
    stage.status("it was looked at", 60, |status| status.observed_generation == generation).await;
}

async fn the_driver_is_told(stage: &Stage, desired: &str) {
    eventually("the wish is fulfilled", 60, async || {
        let conf = stage.secret(CSI, "vsphere-config-secret", "csi-vsphere.conf").await;
        if conf.contains(desired) { Ok(()) } else { Err("not yet") }
    })
    .await;
}

async fn the_service_is_back(stage: &Stage) {
    let services = services(stage);
    eventually("the Service is there again", 120, async || {
        services.get(CONTROLLER).await.map(drop)
    })
    .await;
}

/// The Secret is there, but not where credentials are looked for.
async fn a_secret_in_the_wrong_namespace(stage: &Stage) -> Process {
    stage.configure(json!({"storageProvider": {"vsphereCloudConfig": "vc"}})).await;
    let right = Api::<Secret>::namespaced(stage.client(), "kube-system");
    let mut secret = right.get("vc-credentials").await.unwrap();
    right.delete("vc-credentials", &DeleteParams::default()).await.unwrap();
    secret.metadata = kube::api::ObjectMeta {
        name: Some("vc-credentials".into()),
        ..kube::api::ObjectMeta::default()
    };
    let wrong = Api::<Secret>::namespaced(stage.client(), NAMESPACE);
    wrong.create(&PostParams::default(), &secret).await.unwrap();
    let operator = stage.operator();
    stage.finding_about("VDO-1901", 60, &["vc-credentials", "kube-system"]).await;
    assert_eq!(writes_to_the_driver(stage, &operator, Timestamp::MIN).await, Vec::<String>::new());
    stage.write_secret(stage.vcenter.password()).await;
    operator
}

/// The objects of a driver are a set other tools know; kubectl, told to make it its own, keeps off.
async fn somebody_prunes_with_kubectl(stage: &Stage) {
    let id = plan::apply_set::id("vdo-record-csi", NAMESPACE);
    let members = ListParams::default().labels(&format!("{}={id}", plan::apply_set::PART_OF));
    let deployments = Api::<Deployment>::namespaced(stage.client(), CSI);
    let found = deployments.list(&members).await.unwrap();
    assert!(found.iter().any(|one| one.name_any() == CONTROLLER), "{}", found.items.len());
    let maps = Api::<ConfigMap>::namespaced(stage.client(), NAMESPACE);
    let parent = maps.get("vdo-record-csi").await.unwrap();
    assert_eq!(parent.labels()[plan::apply_set::ID], id);
    let nothing = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "mine", "namespace": NAMESPACE}, "data": {},
    });
    let file = stage.workdir.write("mine.json", nothing.to_string()).unwrap();
    let pruned = Command::new(testkit::peer("kubectl"))
        .arg(format!("--kubeconfig={}", stage.plane.kubeconfig().display()))
        .args(["apply", "--prune", "--applyset=configmap/vdo-record-csi", "--namespace", NAMESPACE])
        .arg("--filename")
        .arg(file)
        .env("KUBECTL_APPLYSET", "true")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&pruned.stderr).into_owned();
    assert!(!pruned.status.success() && said.contains("managed by tooling"), "{said}");
    deployments.get(CONTROLLER).await.unwrap();
}

/// While it is paused nothing is repaired and no wish fulfilled.
async fn a_pause(stage: &Stage, operator: &Process) {
    let pause =
        |value: Value| json!({"metadata": {"annotations": {"vdo.vmware.com/paused": value}}});
    stage.change(pause(json!("true"))).await;
    stage.finding("VDO-1906", 60).await;
    let then = Timestamp::now();
    services(stage).delete(CONTROLLER, &DeleteParams::default()).await.unwrap();
    a_wish_is_seen(stage, "while-paused").await;
    assert_eq!(writes_to_the_driver(stage, operator, then).await, Vec::<String>::new());
    stage.change(pause(Value::Null)).await;
    the_service_is_back(stage).await;
    the_driver_is_told(stage, "while-paused").await;
}

/// A driver that is only observed is neither repaired nor changed.
async fn a_driver_that_is_only_observed(stage: &Stage, operator: &Process) {
    let mode = |mode: &str| json!({"spec": {"storageProvider": {"mode": mode}}});
    stage.change(mode("Observe")).await;
    stage
        .status("it is observed", 60, |status| {
            let mode = status.csi.as_ref().and_then(|csi| csi.mode);
            mode == Some(api::vdo_config::Mode::Observe)
        })
        .await;
    let then = Timestamp::now();
    services(stage).delete(CONTROLLER, &DeleteParams::default()).await.unwrap();
    a_wish_is_seen(stage, "while-observed").await;
    assert_eq!(writes_to_the_driver(stage, operator, then).await, Vec::<String>::new());
    stage.change(mode("Managed")).await;
    the_service_is_back(stage).await;
}

/// A backup program writes to the record all the time: what is refused for that is written again, and the
/// last wish is the one that holds.
async fn somebody_writes_at_the_same_time(stage: &Stage) {
    let maps = Api::<ConfigMap>::namespaced(stage.client(), NAMESPACE);
    let backup = async {
        for time in 0.. {
            let mark =
                json!({"metadata": {"annotations": {"example.com/saved": time.to_string()}}});
            let parameters = PatchParams::default();
            maps.patch("vdo-record-csi", &parameters, &Patch::Merge(mark)).await.unwrap();
        }
    };
    let wishes = async {
        let mut wishes = 0..100;
        while stage.conflicts().is_empty() {
            let desired = wishes.next().expect("no write was refused for another one");
            a_wish_is_seen(stage, &format!("wish-{desired}")).await;
        }
    };
    tokio::select! {
        () = backup => {}
        () = wishes => {}
    }
    a_wish_is_seen(stage, "the-last-wish").await;
    the_driver_is_told(stage, "the-last-wish").await;
    let conflicts = stage.conflicts();
    assert!(conflicts.iter().all(|uri| uri.contains("vdo-record-csi")), "{conflicts:?}");
    let kept = maps.get("vdo-record-csi").await.unwrap();
    assert!(kept.annotations().contains_key("example.com/saved"), "theirs is kept: {kept:?}");
}

/// A policy of the cluster refuses an object of the driver.
async fn a_policy_that_refuses(stage: &Stage) {
    let policies = Api::<ValidatingAdmissionPolicy>::all(stage.client());
    let bindings = Api::<ValidatingAdmissionPolicyBinding>::all(stage.client());
    let policy = json!({
        "metadata": {"name": "no-services"},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"],
                "operations": ["CREATE"], "resources": ["services"],
            }]},
            "validations": [{"expression": "false", "message": "no service is wanted here"}],
        },
    });
    let binding = json!({
        "metadata": {"name": "no-services"},
        "spec": {"policyName": "no-services", "validationActions": ["Deny"]},
    });
    let create = PostParams::default();
    policies.create(&create, &serde_json::from_value(policy).unwrap()).await.unwrap();
    bindings.create(&create, &serde_json::from_value(binding).unwrap()).await.unwrap();
    let try_out = PostParams { dry_run: true, ..PostParams::default() };
    let service = json!({"metadata": {"name": "tried"}, "spec": {"ports": [{"port": 80}]}});
    let service: Service = serde_json::from_value(service).unwrap();
    eventually("the policy holds", 60, async || {
        match services(stage).create(&try_out, &service).await {
            Err(kube::Error::Api(status)) if status.message.contains("no service is wanted") => {
                Ok(())
            }
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    services(stage).delete(CONTROLLER, &DeleteParams::default()).await.unwrap();
    stage.finding_about("VDO-1909", 90, &["no service is wanted here"]).await;
    bindings.delete("no-services", &DeleteParams::default()).await.unwrap();
    policies.delete("no-services", &DeleteParams::default()).await.unwrap();
    the_service_is_back(stage).await;
}

/// The operator sees nothing for a while; when it looks again, what happened meanwhile is compacted away
/// in etcd, and no watch can go on where it was.
async fn a_gap_in_every_watch(stage: &Stage, api: &FaultProxy, operator: &Process) {
    api.cut();
    let desired = json!({"spec": {"storageProvider": {"clusterDistribution": "in-the-gap"}}});
    stage.change(desired).await;
    let etcd = etcd_of(stage);
    let ask = async |path: &str, body: Value| -> Value {
        let client = reqwest::Client::new();
        let sent = client.post(format!("{etcd}/v3/kv/{path}")).body(body.to_string()).send().await;
        let text = sent.unwrap().error_for_status().unwrap().text().await.unwrap();
        serde_json::from_str(&text).unwrap()
    };
    let head = ask("range", json!({"key": "AA=="})).await;
    let revision = head["header"]["revision"].as_str().unwrap().to_owned();
    ask("compaction", json!({"revision": revision, "physical": true})).await;
    // What the API server remembers of its own goes with it.
    stage.plane.restart_api_server().await;
    api.heal();
    eventually("what happened in the gap arrives", 120, async || {
        assert!(operator.ended().is_none(), "{}", operator.tail());
        let conf = stage.secret(CSI, "vsphere-config-secret", "csi-vsphere.conf").await;
        if conf.contains("in-the-gap") { Ok(()) } else { Err(operator.tail()) }
    })
    .await;
    eventually("the gap was one", 20, async || {
        let log = operator.log();
        if log.contains("too old resource version") { Ok(()) } else { Err(operator.tail()) }
    })
    .await;
}

/// The address of etcd, as the API server was told it.
fn etcd_of(stage: &Stage) -> String {
    let processes = stage.plane.processes();
    let (_, server) = processes.iter().find(|(name, _)| *name == "kube-apiserver").unwrap();
    let arguments = std::fs::read_to_string(format!("/proc/{server}/cmdline")).unwrap();
    let told = arguments.split('\0').find_map(|one| one.strip_prefix("--etcd-servers="));
    told.unwrap().to_owned()
}

/// Somebody deletes the namespace of the driver, and something in it has a finalizer nobody serves.
async fn a_namespace_that_does_not_end(stage: &Stage) {
    let maps = Api::<ConfigMap>::namespaced(stage.client(), CSI);
    let held = json!({"metadata": {"name": "held", "finalizers": ["example.com/hold"]}});
    maps.create(&PostParams::default(), &serde_json::from_value(held).unwrap()).await.unwrap();
    let namespaces = Api::<Namespace>::all(stage.client());
    let uid = namespaces.get(CSI).await.unwrap().metadata.uid;
    namespaces.delete(CSI, &DeleteParams::background()).await.unwrap();
    stage
        .status("what holds the namespace is said", 120, |status| {
            let refused = status.findings.iter().find(|finding| finding.code == "VDO-1909");
            let seen = refused.and_then(|finding| finding.seen.as_deref()).unwrap_or_default();
            seen.contains("is being deleted") && seen.contains("example.com/hold")
        })
        .await;
    let free = json!({"metadata": {"finalizers": null}});
    maps.patch("held", &PatchParams::default(), &Patch::Merge(free)).await.unwrap();
    eventually("the namespace is another one", 120, async || {
        let now = namespaces.get_opt(CSI).await.unwrap();
        let now = now.and_then(|namespace| namespace.metadata.uid);
        if now.is_some() && now != uid { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await;
    // The operator's own rights in that namespace went with it: it says so, and how they come back.
    stage.finding_about("VDO-1909", 120, &["cannot", "vdoctl deploy"]).await;
    stage.install().await;
}
