//! `vdoctl test` never touches a volume that it did not make, and leaves nothing behind.
//!
//! Nothing provisions volumes here: the tests on real nodes show a test that passes.

use std::process::Stdio;

use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::{CSINode, StorageClass},
};
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use testkit::eventually;
use tokio::process::{Child, Command};

use crate::{
    stage::{CommandOutput, NAMESPACE, Stage},
    transcripts,
};

const DRIVER: &str = "csi.vsphere.vmware.com";
const LABEL: &str = "vdo.vmware.com/volume-test";

/// A cluster with the operator's Deployment, the driver on every node, and the StorageClass `gold`.
async fn stage() -> Stage {
    let stage = Stage::set().await;
    stage.works(&["deploy", "--no-wait"]);
    let csi_nodes = Api::<CSINode>::all(stage.plane.client());
    for node in csi_nodes.list(&ListParams::default()).await.unwrap() {
        let name = node.name_any();
        let patch =
            json!({"spec": {"drivers": [{"name": DRIVER, "nodeID": name, "topologyKeys": []}]}});
        csi_nodes.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }
    let class = json!({"metadata": {"name": "gold"}, "provisioner": DRIVER});
    let class: StorageClass = serde_json::from_value(class).unwrap();
    let classes = Api::all(stage.plane.client());
    classes.create(&PostParams::default(), &class).await.unwrap();
    stage
}

/// A volume that an admin made. It would be deleted with its claim.
async fn volume(stage: &Stage, name: &str, class: &str, claim: Value) -> PersistentVolume {
    let volume: PersistentVolume = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "storageClassName": class, "persistentVolumeReclaimPolicy": "Delete",
            "csi": {"driver": DRIVER, "volumeHandle": format!("handle-of-{name}")},
            "claimRef": claim,
        },
    }))
    .unwrap();
    let volumes = Api::<PersistentVolume>::all(stage.plane.client());
    volumes.create(&PostParams::default(), &volume).await.unwrap()
}

async fn phase(stage: &Stage, made: &PersistentVolume) -> String {
    let volumes = Api::<PersistentVolume>::all(stage.plane.client());
    let Some(now) = volumes.get_opt(&made.name_any()).await.unwrap() else {
        return "deleted".into();
    };
    assert_eq!(now.uid(), made.uid(), "it is the same volume");
    assert!(now.metadata.deletion_timestamp.is_none(), "it is being deleted");
    now.status.and_then(|status| status.phase).unwrap_or_default()
}

async fn until_phase(stage: &Stage, made: &PersistentVolume, wanted: &str) {
    eventually("the volume has the phase", 60, async || {
        let phase = phase(stage, made).await;
        if phase == wanted { Ok(()) } else { Err(phase) }
    })
    .await;
}

/// The names of the objects of tests.
async fn labelled(stage: &Stage) -> Vec<String> {
    let every = ListParams::default().labels(LABEL);
    let client = || stage.plane.client();
    let pods = Api::<Pod>::namespaced(client(), NAMESPACE).list(&every).await.unwrap();
    let claims = Api::<PersistentVolumeClaim>::namespaced(client(), NAMESPACE);
    let claims = claims.list(&every).await.unwrap();
    let classes = Api::<StorageClass>::all(client()).list(&every).await.unwrap();
    let mut names: Vec<String> = pods.iter().map(|pod| format!("pod {}", pod.name_any())).collect();
    names.extend(claims.iter().map(|claim| format!("claim {}", claim.name_any())));
    names.extend(classes.iter().map(|class| format!("class {}", class.name_any())));
    names
}

/// Starts a test that does not end by itself, and waits until all of its first objects exist.
async fn started(stage: &Stage) -> Child {
    let command = stage.command(&["test", "--timeout", "3000"]);
    let child = Command::from(command)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    eventually("the test has made its objects", 60, async || {
        let names = labelled(stage).await;
        if names.len() == 3 { Ok(()) } else { Err(names.join(", ")) }
    })
    .await;
    child
}

fn send(child: &Child, signal: Signal) {
    let pid = child.id().and_then(|pid| Pid::from_raw(pid.try_into().ok()?));
    kill_process(pid.unwrap(), signal).unwrap();
}

/// In one line, without the marks of an error.
fn flat(text: &str) -> String {
    let marks = |word: &&str| !["│", "├─▶", "╰─▶"].contains(word);
    text.split_whitespace().filter(marks).collect::<Vec<_>>().join(" ")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_existing_volume_of_the_class_is_never_bound_nor_deleted() {
    let stage = stage().await;
    transcripts::on_cluster(&stage, "testing");
    let precious = volume(&stage, "precious", "gold", Value::Null).await;
    until_phase(&stage, &precious, "Available").await;

    let output = stage.vdoctl_alongside(&["test", "--timeout", "10", "-o", "json"]).await;
    assert_eq!(output.code, 3, "{}", output.all());
    assert_eq!(phase(&stage, &precious).await, "Available", "{}", output.all());
    let report: Value = serde_json::from_str(&output.out).unwrap();
    let steps = report["tests"][0]["steps"].as_array().unwrap();
    let states: Vec<(&str, &str)> = steps
        .iter()
        .map(|step| (step["step"].as_str().unwrap(), step["state"].as_str().unwrap()))
        .collect();
    assert_eq!(states[0], ("create", "Failed"), "{report:#}");
    assert_eq!(states[1], ("attach", "Skipped"), "{report:#}");
    assert_eq!(states[7], ("delete", "Passed"), "{report:#}");
    let reasons = steps[0]["reasons"].to_string();
    assert!(reasons.contains("not done within 10 s"), "{reasons}");
    assert!(reasons.contains("ExternalProvisioning"), "what Kubernetes waits for: {reasons}");
    assert_eq!(labelled(&stage).await, Vec::<String>::new());

    a_volume_that_the_driver_did_not_make_stays(&stage).await;

    // The volume fits a claim of the class: a test with the class itself would have bound it.
    let claim = json!({
        "metadata": {"name": "of-the-admin"},
        "spec": {
            "storageClassName": "gold", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    let claims = Api::<PersistentVolumeClaim>::namespaced(stage.plane.client(), NAMESPACE);
    let claim = serde_json::from_value(claim).unwrap();
    claims.create(&PostParams::default(), &claim).await.unwrap();
    until_phase(&stage, &precious, "Bound").await;
}

/// Somebody makes a volume for the claim during the test, and Kubernetes binds it.
async fn a_volume_that_the_driver_did_not_make_stays(stage: &Stage) {
    let child = started(stage).await;
    let classes = Api::<StorageClass>::all(stage.plane.client());
    let copies = classes.list(&ListParams::default().labels(LABEL)).await.unwrap();
    let name = copies.items[0].name_any();
    let claim = json!({"namespace": NAMESPACE, "name": name});
    let foreign = volume(stage, "foreign", &name, claim).await;
    let output = CommandOutput::from(child.wait_with_output().await.unwrap());
    assert_eq!(output.code, 3, "{}", output.all());
    let text = flat(&output.out);
    assert!(text.contains("PersistentVolume foreign was not provisioned by"), "{}", output.all());
    assert!(text.contains("stays, and so does its volume"), "{}", output.all());
    assert_eq!(phase(stage, &foreign).await, "Bound", "{}", output.all());
    let left = labelled(stage).await;
    assert_eq!(left.len(), 2, "the claim and the copy of its class: {left:?}");

    let output = stage.vdoctl_alongside(&["test", "--clean", "--yes"]).await;
    assert_eq!(output.code, 3, "{}", output.all());
    assert!(flat(&output.out).contains("stays, and so does its volume"), "{}", output.all());
    assert_eq!(phase(stage, &foreign).await, "Bound", "{}", output.all());
    assert_eq!(labelled(stage).await, left);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_test_that_ends_early_leaves_nothing_behind_or_the_next_one_names_it() {
    let stage = stage().await;
    for signal in [Signal::INT, Signal::TERM] {
        let child = started(&stage).await;
        send(&child, signal);
        let output = CommandOutput::from(child.wait_with_output().await.unwrap());
        assert_eq!(output.code, 130, "{signal:?}: {}", output.all());
        assert!(output.err.ends_with("interrupted\n"), "{signal:?}: {}", output.all());
        assert!(output.out.starts_with("○ Interrupted  gold"), "{signal:?}: {}", output.all());
        assert_eq!(labelled(&stage).await, Vec::<String>::new(), "{signal:?}");
    }

    let mut child = started(&stage).await;
    send(&child, Signal::KILL);
    child.wait().await.unwrap();
    let left = labelled(&stage).await;
    assert_eq!(left.len(), 3, "{left:?}");
    let output = stage.vdoctl_alongside(&["test", "--dry-run"]).await;
    assert_eq!(output.code, 0, "{}", output.all());
    let text = flat(&output.err);
    for name in &left {
        let (_, name) = name.split_once(' ').unwrap();
        assert!(text.contains(name), "{name}: {}", output.all());
    }
    assert!(text.contains("To delete them: vdoctl test --clean"), "{}", output.all());
    assert!(
        !output.out.contains("a copy of vdo-test-"),
        "it is no class to test: {}",
        output.all()
    );

    let output = stage.vdoctl_alongside(&["test", "--clean"]).await;
    assert_eq!(output.code, 2, "it asks first: {}", output.all());
    assert_eq!(labelled(&stage).await, left);
    let output = stage.vdoctl_alongside(&["test", "--clean", "--yes"]).await;
    assert_eq!(output.code, 0, "{}", output.all());
    assert_eq!(labelled(&stage).await, Vec::<String>::new());
}
