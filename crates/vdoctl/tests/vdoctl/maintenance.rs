//! `vdoctl fix` for VMs that must be off: one node at a time, within the disruption budget, and continued after a kill.

use std::{
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use api::{VDOConfig, VsphereCloudConfig};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Node, Pod, Secret},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, PostParams},
};
use plan::names::MAINTENANCE;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use testkit::{Fault, eventually};

use crate::stage::{NAMESPACE, PASSWORD, Stage};

const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];

pub(crate) async fn create<K>(client: &Client, namespace: &str, object: Value)
where
    K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::Serialize
        + serde::de::DeserializeOwned,
{
    let object: K = serde_json::from_value(object).unwrap();
    Api::<K>::namespaced(client.clone(), namespace)
        .create(&PostParams::default(), &object)
        .await
        .unwrap();
}

/// VDO's objects. No operator runs.
pub(crate) async fn configure(stage: &Stage) {
    let client = stage.plane.client();
    stage.works(&["deploy", "--no-wait"]);
    let secret = json!({
        "metadata": {"name": "vc"}, "type": "kubernetes.io/basic-auth",
        "stringData": {"username": "vdo@vsphere.local", "password": PASSWORD},
    });
    create::<Secret>(&client, NAMESPACE, secret).await;
    let vcenter = json!({
        "metadata": {"name": "vc"},
        "spec": {
            "vcIp": stage.vcenter.address().to_string(), "insecure": false, "credentials": "vc",
            "thumbprint": stage.vcenter.thumbprint_sha1(), "datacenters": ["DC0"],
        },
    });
    create::<VsphereCloudConfig>(&client, NAMESPACE, vcenter).await;
    let config = json!({
        "metadata": {"name": "vdo-config"},
        "spec": {"storageProvider": {"vsphereCloudConfig": "vc"}},
    });
    create::<VDOConfig>(&client, NAMESPACE, config).await;
}

/// A workload of which one pod can be unavailable.
async fn workload(client: &Client) {
    let labels = json!({"app": "shop"});
    let deployment = json!({
        "metadata": {"name": "shop"},
        "spec": {
            "replicas": 3, "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "tolerations": [{"operator": "Exists", "effect": "NoSchedule",
                                     "key": "node-role.kubernetes.io/control-plane"}],
                    "containers": [{"name": "shop", "image": "registry.example.com/shop:1"}],
                },
            },
        },
    });
    create::<Deployment>(client, "default", deployment).await;
    let budget = json!({
        "metadata": {"name": "shop"},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": labels}},
    });
    create::<PodDisruptionBudget>(client, "default", budget).await;
    let deployments = Api::<Deployment>::namespaced(client.clone(), "default");
    eventually("the workload runs", 60, async || {
        let ready = deployments.get("shop").await.unwrap().status.and_then(|s| s.ready_replicas);
        if ready == Some(3) { Ok(()) } else { Err(format!("{ready:?}")) }
    })
    .await;
}

/// The VMs of the nodes, as vCenter knows them.
async fn vms(stage: &Stage) -> Vec<Value> {
    let truth = stage.vcenter.truth().await;
    let all = truth["datacenters"][0]["vms"].as_array().unwrap().clone();
    all.into_iter().filter(|vm| NODES.contains(&vm["name"].as_str().unwrap())).collect()
}

async fn nodes(stage: &Stage) -> Vec<Node> {
    Api::<Node>::all(stage.plane.client()).list(&ListParams::default()).await.unwrap().items
}

fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true)
}

/// Watches that never more than one node is out of service, and that the budget holds.
async fn watch(stage: &Stage, stop: &AtomicBool) -> usize {
    let pods = Api::<Pod>::namespaced(stage.plane.client(), "default");
    let mut seen_off = 0;
    while !stop.load(Ordering::SeqCst) {
        let off: Vec<Value> =
            vms(stage).await.into_iter().filter(|vm| vm["power"] == "off").collect();
        assert!(off.len() <= 1, "{off:?}");
        seen_off += off.len();
        let cordoned: Vec<String> = nodes(stage)
            .await
            .iter()
            .filter(|n| is_cordoned(n))
            .map(ResourceExt::name_any)
            .collect();
        assert!(cordoned.len() <= 1, "{cordoned:?}");
        for vm in off {
            assert_eq!(cordoned, [vm["name"].as_str().unwrap()], "its node is drained");
        }
        let ready = |pod: &Pod| {
            let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
            let mut conditions = conditions.into_iter().flatten();
            pod.metadata.deletion_timestamp.is_none()
                && conditions.any(|c| c.type_ == "Ready" && c.status == "True")
        };
        let workload = ListParams::default().labels("app=shop");
        let ready = pods.list(&workload).await.unwrap().iter().filter(|pod| ready(pod)).count();
        assert!(ready >= 2, "the budget allows one pod less");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    seen_off
}

async fn assert_back_in_service(stage: &Stage) {
    for vm in vms(stage).await {
        assert_eq!(vm["power"], "on", "{vm}");
    }
    for node in nodes(stage).await {
        assert!(!is_cordoned(&node), "{}", node.name_any());
        assert!(!node.annotations().contains_key(MAINTENANCE), "{}", node.name_any());
    }
}

/// A text without its line breaks.
fn joined(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Runs vdoctl, and kills it as soon as it has powered off a VM.
async fn killed_with_a_vm_off(stage: &Stage, arguments: &[&str]) {
    let mut command = stage.command(arguments);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    eventually("a VM is off", 120, async || {
        if let Some(status) = child.try_wait().unwrap() {
            panic!("vdoctl ended: {status}");
        }
        let all = vms(stage).await;
        if all.iter().any(|vm| vm["power"] == "off") { Ok(()) } else { Err(json!(all).to_string()) }
    })
    .await;
    kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
    child.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn node_vms_are_changed_one_at_a_time_and_a_killed_run_is_continued() {
    let stage = Arc::new(Stage::set().await);
    configure(&stage).await;
    workload(&stage.plane.client()).await;
    for node in NODES {
        let change = json!({"version": "vmx-13", "scsi": ["pvscsi", "lsilogic"]});
        stage.vcenter.patch_vm(&format!("/DC0/vm/{node}"), change).await;
    }

    let output = stage.vdoctl_alongside(&["fix", "1204", "--dry-run"]).await;
    assert_eq!(output.code, 0, "{}", output.all());
    assert!(joined(&output.out).contains("one node at a time"), "{}", output.all());
    for node in NODES {
        let change = format!("Upgrades the VM of {node} to");
        assert!(joined(&output.out).contains(&change), "{}", output.all());
    }
    assert_back_in_service(&stage).await;

    // vCenter takes a moment to power a VM on: the VM is off while vdoctl is killed.
    let slow = Fault::on("PowerOnVM_Task").task_takes(Duration::from_secs(2));
    stage.vcenter.fault(slow).await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut watcher = tokio::task::JoinSet::new();
    watcher.spawn({
        let (stage, stop) = (stage.clone(), stop.clone());
        async move { watch(&stage, &stop).await }
    });
    killed_with_a_vm_off(&stage, &["fix", "1204", "--yes"]).await;
    let marked = nodes(&stage).await;
    let marked = marked.iter().filter(|node| node.annotations().contains_key(MAINTENANCE));
    assert_eq!(marked.count(), 1, "the node remembers the work");
    let output = stage.vdoctl_alongside(&["fix"]).await;
    assert!(
        joined(&output.out).contains("is not finished: vdoctl fix VDO-1204"),
        "{}",
        output.all()
    );

    let output = stage.vdoctl_alongside(&["fix", "1204", "--yes"]).await;
    assert_eq!(output.code, 0, "{}", output.all());
    assert!(joined(&output.out).contains("did not finish its work"), "{}", output.all());
    for vm in vms(&stage).await {
        assert_eq!(vm["version"], "vmx-15", "{vm}");
    }
    assert_back_in_service(&stage).await;

    // The admin keeps one node cordoned.
    let cordon = json!({"spec": {"unschedulable": true}});
    let all = Api::<Node>::all(stage.plane.client());
    let merge = kube::api::Patch::Merge(cordon);
    stop.store(true, Ordering::SeqCst);
    assert!(watcher.join_next().await.unwrap().unwrap() > 0, "the watch saw VMs that were off");
    all.patch("node-2", &kube::api::PatchParams::default(), &merge).await.unwrap();
    let output = stage.vdoctl_alongside(&["fix", "1206", "--yes"]).await;
    assert_eq!(output.code, 0, "{}", output.all());
    for vm in vms(&stage).await {
        assert_eq!(vm["scsi"], json!(["pvscsi", "pvscsi"]), "{vm}");
        assert_eq!(vm["power"], "on", "{vm}");
    }
    let cordoned: Vec<String> =
        nodes(&stage).await.iter().filter(|n| is_cordoned(n)).map(ResourceExt::name_any).collect();
    assert_eq!(cordoned, ["node-2"], "it was cordoned before");
    let output = stage.vdoctl_alongside(&["fix", "1206"]).await;
    assert!(joined(&output.out).contains("nothing to fix"), "{}", output.all());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_that_would_harm_a_pod_and_a_missing_privilege_stop_before_any_change() {
    let stage = Stage::set().await;
    configure(&stage).await;
    let client = stage.plane.client();
    stage.vcenter.patch_vm("/DC0/vm/node-3", json!({"version": "vmx-13"})).await;
    let lone = json!({
        "metadata": {"name": "lone"},
        "spec": {"nodeName": "node-3", "containers": [{"name": "a", "image": "registry.example.com/a:1"}]},
    });
    create::<Pod>(&client, "default", lone).await;
    let output = stage.vdoctl_alongside(&["fix", "1204", "--yes"]).await;
    assert_eq!(output.code, 2, "{}", output.all());
    assert!(
        joined(&output.err).contains("pod default/lone on node-3 has no controller"),
        "{}",
        output.all()
    );
    assert!(output.err.contains("--force"), "{}", output.all());
    assert_back_in_service(&stage).await;

    // vCenter rejects the change: the VM runs again.
    stage.vcenter.fault(Fault::on("UpgradeVM_Task").task_fails("InvalidState")).await;
    let output = stage.vdoctl_alongside(&["fix", "1204", "--yes", "--force"]).await;
    assert_eq!(output.code, 1, "{}", output.all());
    assert!(joined(&output.err).contains("it runs again as before"), "{}", output.all());
    assert_back_in_service(&stage).await;
    assert!(stage.vcenter.calls().await.count("PowerOnVM_Task") > 0);
    stage.vcenter.clear_faults().await;
    // Somebody records the VM of another node.
    let other = |vm: &Value| vm["name"] == "node-2";
    let other = vms(&stage).await.into_iter().find(other).unwrap();
    let work = json!({
        "code": "VDO-1204", "started": "2026-01-01T00:00:00Z",
        "repair": {"powerCycle": {"vcenter": "vc", "vm": other["moref"], "node": "node-1"}},
    });
    let work = json!({"metadata": {"annotations": {MAINTENANCE: work.to_string()}}});
    let all = Api::<Node>::all(client.clone());
    let forged = kube::api::Patch::Merge(&work);
    all.patch("node-1", &kube::api::PatchParams::default(), &forged).await.unwrap();
    let output = stage.vdoctl_alongside(&["fix"]).await;
    assert!(joined(&output.err).contains("does not name its VM"), "{}", output.all());
    let clean = json!({"metadata": {"annotations": {MAINTENANCE: null}}});
    let clean = kube::api::Patch::Merge(&clean);
    all.patch("node-1", &kube::api::PatchParams::default(), &clean).await.unwrap();

    let upgrade = "VirtualMachine.Config.UpgradeVirtualHardware";
    let role = testkit::Role::new("no-power", &["System.Read", "System.View", upgrade]);
    stage.vcenter.set_role(&role).await;
    stage.vcenter.permit(&testkit::Permission::new("vdo@vsphere.local", "no-power", "/")).await;
    let output = stage.vdoctl_alongside(&["fix", "1204", "--yes", "--force"]).await;
    assert_eq!(output.code, 3, "{}", output.all());
    assert!(
        joined(&output.out).contains("lacks VirtualMachine.Interact.PowerOff"),
        "{}",
        output.all()
    );
    assert_back_in_service(&stage).await;
    for vm in vms(&stage).await {
        let expected = if vm["name"] == "node-3" { "vmx-13" } else { "vmx-19" };
        assert_eq!(vm["version"], expected, "{vm}");
    }
}
