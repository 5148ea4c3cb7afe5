//! Failures around the operator, one after the other on one cluster. The operator reports each of them, loses
//! nothing, and recovers by itself.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::process::Command;

use common::{NAMESPACE, Testbed};
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
async fn the_operator_reports_failures_around_it_and_recovers() {
    let mut testbed = Testbed::with_nodes(1).await;
    let api = FaultProxy::before(testbed.plane.address()).await;
    testbed.api_address = Some(api.address());
    let operator = a_secret_in_the_wrong_namespace(&testbed).await;
    testbed.ready(&operator, 120).await;
    an_admin_prunes_with_kubectl(&testbed).await;
    a_pause(&testbed, &operator).await;
    testbed.ready(&operator, 120).await;
    a_driver_that_is_only_observed(&testbed, &operator).await;
    testbed.ready(&operator, 120).await;
    a_policy_that_denies(&testbed).await;
    testbed.ready(&operator, 120).await;
    a_concurrent_writer(&testbed).await;
    testbed.ready(&operator, 120).await;
    a_gap_in_every_watch(&testbed, &api, &operator).await;
    testbed.ready(&operator, 120).await;
    assert_eq!(testbed.deletions(), Vec::<String>::new());
    assert_eq!(testbed.denied_requests(), Vec::<String>::new());
    a_namespace_stuck_in_deletion(&testbed).await;
    testbed.ready(&operator, 180).await;
    assert_eq!(testbed.deletions(), Vec::<String>::new());
}

fn services(testbed: &Testbed) -> Api<Service> {
    Api::namespaced(testbed.client(), CSI)
}

/// The operator's writes to the storage driver's namespace since `since`.
async fn writes_to_the_driver(
    testbed: &Testbed,
    operator: &Process,
    since: Timestamp,
) -> Vec<String> {
    let all = testbed.writes_after_two_rounds(operator, since).await;
    all.into_iter().filter(|write| write.contains(CSI)).collect()
}

/// Changes a driver setting in the VDOConfig, and waits until the operator has observed it.
async fn change_setting(testbed: &Testbed, distribution: &str) {
    let spec = json!({"spec": {"storageProvider": {"clusterDistribution": distribution}}});
    testbed.change(spec).await;
    let generation = testbed.config().await.metadata.generation;
    testbed
        .status("the operator observed the change", 60, |status| {
            status.observed_generation == generation
        })
        .await;
}

async fn driver_has_setting(testbed: &Testbed, setting: &str) {
    eventually("the driver has the setting", 60, async || {
        let conf = testbed.secret(CSI, "vsphere-config-secret", "csi-vsphere.conf").await;
        if conf.contains(setting) { Ok(()) } else { Err("not yet") }
    })
    .await;
}

async fn the_service_is_back(testbed: &Testbed) {
    let services = services(testbed);
    eventually("the Service exists again", 120, async || services.get(CONTROLLER).await.map(drop))
        .await;
}

/// The Secret exists, but where VDO has no permission to read it.
async fn a_secret_in_the_wrong_namespace(testbed: &Testbed) -> Process {
    testbed.configure(json!({"storageProvider": {"vsphereCloudConfig": "vc"}})).await;
    let right = Api::<Secret>::namespaced(testbed.client(), NAMESPACE);
    let mut secret = right.get("vc-credentials").await.unwrap();
    right.delete("vc-credentials", &DeleteParams::default()).await.unwrap();
    secret.metadata = kube::api::ObjectMeta {
        name: Some("vc-credentials".into()),
        ..kube::api::ObjectMeta::default()
    };
    let wrong = Api::<Secret>::namespaced(testbed.client(), "kube-system");
    wrong.create(&PostParams::default(), &secret).await.unwrap();
    let operator = testbed.operator();
    testbed.finding_about("VDO-1901", 60, &["vc-credentials", NAMESPACE, "vdoctl deploy"]).await;
    assert_eq!(
        writes_to_the_driver(testbed, &operator, Timestamp::MIN).await,
        Vec::<String>::new()
    );
    testbed.write_secret(testbed.vcenter.password()).await;
    operator
}

/// The objects of a driver are an ApplySet of VDO: kubectl refuses to prune it as its own.
async fn an_admin_prunes_with_kubectl(testbed: &Testbed) {
    let id = plan::apply_set::id("vdo-record-csi", NAMESPACE);
    let members = ListParams::default().labels(&format!("{}={id}", plan::apply_set::PART_OF));
    let deployments = Api::<Deployment>::namespaced(testbed.client(), CSI);
    let found = deployments.list(&members).await.unwrap();
    assert!(found.iter().any(|one| one.name_any() == CONTROLLER), "{}", found.items.len());
    let maps = Api::<ConfigMap>::namespaced(testbed.client(), NAMESPACE);
    let parent = maps.get("vdo-record-csi").await.unwrap();
    assert_eq!(parent.labels()[plan::apply_set::ID], id);
    let nothing = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "mine", "namespace": NAMESPACE}, "data": {},
    });
    let file = testbed.workdir.write("mine.json", nothing.to_string()).unwrap();
    let pruned = Command::new(testkit::peer("kubectl"))
        .arg(format!("--kubeconfig={}", testbed.plane.kubeconfig().display()))
        .args(["apply", "--prune", "--applyset=configmap/vdo-record-csi", "--namespace", NAMESPACE])
        .arg("--filename")
        .arg(file)
        .env("KUBECTL_APPLYSET", "true")
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&pruned.stderr).into_owned();
    assert!(!pruned.status.success() && stderr.contains("managed by tooling"), "{stderr}");
    deployments.get(CONTROLLER).await.unwrap();
}

/// While VDO is paused, it repairs nothing and applies no change.
async fn a_pause(testbed: &Testbed, operator: &Process) {
    let pause =
        |value: Value| json!({"metadata": {"annotations": {"vdo.vmware.com/paused": value}}});
    testbed.change(pause(json!("true"))).await;
    testbed.finding("VDO-1906", 60).await;
    let before = Timestamp::now();
    services(testbed).delete(CONTROLLER, &DeleteParams::default()).await.unwrap();
    change_setting(testbed, "while-paused").await;
    assert_eq!(writes_to_the_driver(testbed, operator, before).await, Vec::<String>::new());
    testbed.change(pause(Value::Null)).await;
    the_service_is_back(testbed).await;
    driver_has_setting(testbed, "while-paused").await;
}

/// A driver that is only observed is neither repaired nor changed.
async fn a_driver_that_is_only_observed(testbed: &Testbed, operator: &Process) {
    let mode = |mode: &str| json!({"spec": {"storageProvider": {"mode": mode}}});
    testbed.change(mode("Observe")).await;
    testbed
        .status("it is observed", 60, |status| {
            let mode = status.csi.as_ref().and_then(|csi| csi.mode);
            mode == Some(api::vdo_config::Mode::Observe)
        })
        .await;
    let before = Timestamp::now();
    services(testbed).delete(CONTROLLER, &DeleteParams::default()).await.unwrap();
    change_setting(testbed, "while-observed").await;
    assert_eq!(writes_to_the_driver(testbed, operator, before).await, Vec::<String>::new());
    testbed.change(mode("Managed")).await;
    the_service_is_back(testbed).await;
}

/// A backup program writes to the record all the time. The operator retries writes that fail with a conflict,
/// and the last spec wins.
async fn a_concurrent_writer(testbed: &Testbed) {
    let maps = Api::<ConfigMap>::namespaced(testbed.client(), NAMESPACE);
    let backup = async {
        for time in 0.. {
            let mark =
                json!({"metadata": {"annotations": {"example.com/saved": time.to_string()}}});
            let parameters = PatchParams::default();
            maps.patch("vdo-record-csi", &parameters, &Patch::Merge(mark)).await.unwrap();
        }
    };
    let changes = async {
        let mut numbers = 0..100;
        while testbed.conflicts().is_empty() {
            let number = numbers.next().expect("no write failed with a conflict");
            change_setting(testbed, &format!("setting-{number}")).await;
        }
    };
    tokio::select! {
        () = backup => {}
        () = changes => {}
    }
    change_setting(testbed, "the-last-setting").await;
    driver_has_setting(testbed, "the-last-setting").await;
    let conflicts = testbed.conflicts();
    assert!(conflicts.iter().all(|uri| uri.contains("vdo-record-csi")), "{conflicts:?}");
    let kept = maps.get("vdo-record-csi").await.unwrap();
    assert!(
        kept.annotations().contains_key("example.com/saved"),
        "the annotation of the backup program is gone: {kept:?}"
    );
}

/// An admission policy denies an object of the driver.
async fn a_policy_that_denies(testbed: &Testbed) {
    let policies = Api::<ValidatingAdmissionPolicy>::all(testbed.client());
    let bindings = Api::<ValidatingAdmissionPolicyBinding>::all(testbed.client());
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
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let service = json!({"metadata": {"name": "tried"}, "spec": {"ports": [{"port": 80}]}});
    let service: Service = serde_json::from_value(service).unwrap();
    eventually("the policy is in effect", 60, async || {
        match services(testbed).create(&dry_run, &service).await {
            Err(kube::Error::Api(status)) if status.message.contains("no service is wanted") => {
                Ok(())
            }
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    services(testbed).delete(CONTROLLER, &DeleteParams::default()).await.unwrap();
    testbed.finding_about("VDO-1909", 90, &["no service is wanted here"]).await;
    bindings.delete("no-services", &DeleteParams::default()).await.unwrap();
    policies.delete("no-services", &DeleteParams::default()).await.unwrap();
    the_service_is_back(testbed).await;
}

/// The operator loses its connection. Meanwhile etcd compacts its history, so that no watch can resume.
async fn a_gap_in_every_watch(testbed: &Testbed, api: &FaultProxy, operator: &Process) {
    api.cut();
    let change = json!({"spec": {"storageProvider": {"clusterDistribution": "in-the-gap"}}});
    testbed.change(change).await;
    let etcd = etcd_address(testbed);
    let ask = async |path: &str, body: Value| -> Value {
        let client = reqwest::Client::new();
        let sent = client.post(format!("{etcd}/v3/kv/{path}")).body(body.to_string()).send().await;
        let text = sent.unwrap().error_for_status().unwrap().text().await.unwrap();
        serde_json::from_str(&text).unwrap()
    };
    let head = ask("range", json!({"key": "AA=="})).await;
    let revision = head["header"]["revision"].as_str().unwrap().to_owned();
    ask("compaction", json!({"revision": revision, "physical": true})).await;
    // The restart clears the watch cache of the API server.
    testbed.plane.restart_api_server().await;
    api.heal();
    eventually("the driver has the change", 120, async || {
        assert!(operator.ended().is_none(), "{}", operator.tail());
        let conf = testbed.secret(CSI, "vsphere-config-secret", "csi-vsphere.conf").await;
        if conf.contains("in-the-gap") { Ok(()) } else { Err(operator.tail()) }
    })
    .await;
    eventually("the watch could not resume", 20, async || {
        let log = operator.log();
        if log.contains("too old resource version") { Ok(()) } else { Err(operator.tail()) }
    })
    .await;
}

/// The address of etcd, from the arguments of the API server.
fn etcd_address(testbed: &Testbed) -> String {
    let processes = testbed.plane.processes();
    let (_, server) = processes.iter().find(|(name, _)| *name == "kube-apiserver").unwrap();
    let arguments = std::fs::read_to_string(format!("/proc/{server}/cmdline")).unwrap();
    let address = arguments.split('\0').find_map(|one| one.strip_prefix("--etcd-servers="));
    address.unwrap().to_owned()
}

/// An admin deletes the namespace of the driver, and an object in it has a finalizer that nothing removes.
async fn a_namespace_stuck_in_deletion(testbed: &Testbed) {
    let maps = Api::<ConfigMap>::namespaced(testbed.client(), CSI);
    let held = json!({"metadata": {"name": "held", "finalizers": ["example.com/hold"]}});
    maps.create(&PostParams::default(), &serde_json::from_value(held).unwrap()).await.unwrap();
    let namespaces = Api::<Namespace>::all(testbed.client());
    let uid = namespaces.get(CSI).await.unwrap().metadata.uid;
    namespaces.delete(CSI, &DeleteParams::background()).await.unwrap();
    testbed
        .status("the finding names the finalizer", 120, |status| {
            let refused = status.findings.iter().find(|finding| finding.code == "VDO-1909");
            let seen = refused.and_then(|finding| finding.seen.as_deref()).unwrap_or_default();
            seen.contains("is being deleted") && seen.contains("example.com/hold")
        })
        .await;
    let free = json!({"metadata": {"finalizers": null}});
    maps.patch("held", &PatchParams::default(), &Patch::Merge(free)).await.unwrap();
    eventually("the namespace is re-created", 120, async || {
        let now = namespaces.get_opt(CSI).await.unwrap();
        let now = now.and_then(|namespace| namespace.metadata.uid);
        if now.is_some() && now != uid { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await;
    // The operator's permissions in that namespace are gone too: it reports this with the fix.
    testbed.finding_about("VDO-1909", 120, &["cannot", "vdoctl deploy"]).await;
    testbed.install().await;
}
