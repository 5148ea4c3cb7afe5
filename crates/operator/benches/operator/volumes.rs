//! The operator's memory in a cluster with many volumes: PersistentVolumes, claims and attachments.

use std::time::Duration;

use futures::{StreamExt as _, stream};
use k8s_openapi::api::{
    core::v1::{Event, Namespace, PersistentVolume, PersistentVolumeClaim},
    storage::v1::{StorageClass, VolumeAttachment},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use testkit::{MemoryGroup, Vm, eventually};
use tokio::time::Instant;

use super::{common::Testbed, mebibytes, run_storage};

const CLASS: &str = "vsphere";
const DRIVER: &str = "csi.vsphere.vmware.com";
/// How long the operator runs after it has observed everything.
const REST: Duration = Duration::from_mins(1);
/// The finding about failing attachments.
const ATTACH_FAILS: &str = "VDO-1520";

/// The memory limit of the operator's Deployment, in bytes.
fn limit() -> u64 {
    let objects = operator::install::objects();
    let deployment = objects.iter().find(|object| object.kind() == "Deployment").unwrap();
    let limit = "/spec/template/spec/containers/0/resources/limits/memory";
    let limit = deployment.0.pointer(limit).and_then(Value::as_str).unwrap();
    limit.strip_suffix("Mi").unwrap().parse::<u64>().unwrap() * 1_048_576
}

/// A claim, its volume and its attachment. If faulty: the claim waits with a warning, CNS lacks the volume, and the
/// attachment fails.
async fn add(client: &Client, number: usize, node: &str, handle: &str, faulty: bool) {
    let (name, namespace) = (format!("pvc-8d8a8e2c-6b0f-4b6e-9d07-{number:012}"), "shop");
    let claim_name = format!("data-shop-database-{number}");
    let create = PostParams::default();
    let volume = json!({
        "metadata": {
            "name": name,
            "annotations": {"pv.kubernetes.io/provisioned-by": DRIVER},
            "finalizers": ["kubernetes.io/pv-protection", "external-attacher/csi-vsphere-vmware-com"],
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "10Gi"},
            "persistentVolumeReclaimPolicy": "Delete", "storageClassName": CLASS,
            "claimRef": {"namespace": namespace, "name": claim_name, "kind": "PersistentVolumeClaim"},
            "csi": {
                "driver": DRIVER, "fsType": "ext4",
                "volumeHandle": handle,
                "volumeAttributes": {"type": "vSphere CNS Block Volume"},
            },
        },
    });
    let volume: PersistentVolume = serde_json::from_value(volume).unwrap();
    Api::all(client.clone()).create(&create, &volume).await.unwrap();
    let claim = json!({
        "metadata": {"name": claim_name, "namespace": namespace},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": CLASS,
            "resources": {"requests": {"storage": "10Gi"}}, "volumeName": name,
        },
    });
    let claim: PersistentVolumeClaim = serde_json::from_value(claim).unwrap();
    let claims = Api::<PersistentVolumeClaim>::namespaced(client.clone(), namespace);
    claims.create(&create, &claim).await.unwrap();
    if faulty {
        let warning = json!({
            "metadata": {"name": format!("{claim_name}.17f3"), "namespace": namespace},
            "type": "Warning", "reason": "ProvisioningFailed", "count": 7,
            "involvedObject": {
                "kind": "PersistentVolumeClaim", "namespace": namespace, "name": claim_name,
            },
            "message": message("provision", &name),
        });
        let warning: Event = serde_json::from_value(warning).unwrap();
        Api::namespaced(client.clone(), namespace).create(&create, &warning).await.unwrap();
    } else {
        let bound = json!({"status": {"phase": "Bound", "capacity": {"storage": "10Gi"}}});
        let patch = Patch::Merge(bound);
        claims.patch_status(&claim_name, &PatchParams::default(), &patch).await.unwrap();
    }
    let attachment = json!({
        "metadata": {"name": format!("csi-3c1f2d6a5b7e4f8091a2b3c4d5e6f708192a3b4c5d6e7f80{number:012}")},
        "spec": {
            "attacher": DRIVER, "nodeName": node, "source": {"persistentVolumeName": name},
        },
    });
    let attachment: VolumeAttachment = serde_json::from_value(attachment).unwrap();
    let attachments = Api::<VolumeAttachment>::all(client.clone());
    attachments.create(&create, &attachment).await.unwrap();
    let status = if faulty {
        let error = json!({"time": "2026-01-01T00:00:00Z", "message": message("attach", &name)});
        json!({"status": {"attached": false, "attachError": error}})
    } else {
        json!({"status": {"attached": true}})
    };
    let patch = Patch::Merge(status);
    let attachment = attachment.metadata.name.unwrap();
    attachments.patch_status(&attachment, &PatchParams::default(), &patch).await.unwrap();
}

/// As long as the driver's messages, and different for each volume.
fn message(what: &str, volume: &str) -> String {
    format!(
        "rpc error: code = Internal desc = failed to {what} volume {volume}: fault: \
         (*types.LocalizedMethodFault)(0xc000a1b2c0)({{ DynamicData: {{}}, Fault: (types.CnsFault) \
         {{ BaseMethodFault: nil, Reason: (string) (len=16) \"VSLM task failed\" }}, LocalizedMessage: \
         \"CnsFault error: The object or item referred to could not be found. {volume}\" }}). \
         opId: \"{volume}\""
    )
}

/// The ids of the volumes. CNS has them, attached to the VMs in the order of their names, unless they are faulty.
async fn handles(testbed: &Testbed, count: usize, nodes: usize, faulty: bool) -> Vec<String> {
    if faulty {
        return (0..count).map(|number| format!("0f6b1c7e-52a5-4a0d-8d3b-{number:012}")).collect();
    }
    testbed.vcenter.add_volumes("the-cluster-of-the-volumes", count, count.div_ceil(nodes)).await
}

async fn fill(client: &Client, vms: &[Vm], handles: &[String], faulty: bool) {
    let create = PostParams::default();
    let class = json!({"metadata": {"name": CLASS}, "provisioner": DRIVER});
    let class: StorageClass = serde_json::from_value(class).unwrap();
    Api::all(client.clone()).create(&create, &class).await.unwrap();
    let namespace: Namespace =
        serde_json::from_value(json!({"metadata": {"name": "shop"}})).unwrap();
    Api::all(client.clone()).create(&create, &namespace).await.unwrap();
    let mut names: Vec<&str> = vms.iter().map(|vm| vm.name.as_str()).collect();
    names.sort_unstable();
    let each = handles.len().div_ceil(names.len());
    let adding = handles
        .iter()
        .enumerate()
        .map(|(number, handle)| add(client, number, names[number / each], handle, faulty));
    stream::iter(adding).buffer_unordered(48).collect::<Vec<()>>().await;
}

/// Measures the working set under the operator's memory limit.
pub(super) async fn measure(nodes: usize, count: usize, faulty: bool) {
    let what =
        format!("{nodes} nodes, {count} {}", if faulty { "faulty volumes" } else { "volumes" });
    let vms: Vec<Vm> = (1..=nodes).map(|number| Vm::numbered("node", number)).collect();
    let mut testbed = Testbed::without_nodes_with_vms(vms.clone()).await;
    let limit = limit();
    let group = match MemoryGroup::new(&testkit::shipped("operator", "vdo"), limit) {
        Ok(group) => group,
        Err(error) => {
            return println!("| {what}: not measured, needs root | {} |", error.full_text());
        }
    };
    testbed.program = group.program();
    testbed.variables = vec![("VDO_GRACE", "1")];
    let client = testbed.client();
    testkit::add_bare_nodes(&client, &vms).await;
    run_storage(&client, &vms).await;
    let handles = handles(&testbed, count, nodes, faulty).await;
    assert_eq!(handles.len(), count);
    fill(&client, &vms, &handles, faulty).await;
    // With a storage provider, VDO compares the volumes with CNS.
    testbed
        .configure(json!({
            "cloudProvider": {"vsphereCloudConfigs": ["vc"]},
            "storageProvider": {"vsphereCloudConfig": "vc"},
        }))
        .await;

    let begin = Instant::now();
    let operator = testbed.operator();
    eventually("all nodes and volumes are seen", 600, async || {
        if let Some(ended) = operator.ended() {
            println!(
                "| {what}: the operator ended | {ended}, out of memory: {} |",
                group.exhausted()
            );
            std::process::exit(1);
        }
        let status = testbed.config().await.status.unwrap_or_default();
        let seen = status.cpi.and_then(|cpi| cpi.nodes_ready) == i32::try_from(nodes).ok();
        let failing = status.findings.iter().filter(|finding| finding.code == ATTACH_FAILS);
        let failing: i32 = failing.map(|finding| finding.count).sum();
        let expected = if faulty { i32::try_from(count).unwrap() } else { 0 };
        if seen && failing == expected {
            return Ok(());
        }
        let codes: Vec<_> =
            status.findings.iter().map(|f| format!("{} {}", f.code, f.count)).collect();
        Err(format!("{seen} {failing} {codes:?}"))
    })
    .await;
    println!("| {what}: all seen after the start | {:.1} s |", begin.elapsed().as_secs_f64());
    tokio::time::sleep(REST).await;
    let pages = testbed.vcenter.calls().await.count("CnsQueryVolume");
    assert!(pages > 0, "{what}: VDO does not compare the volumes with CNS");
    println!("| {what}: requests to CNS | {pages} |");
    let (now, peak) = (mebibytes(group.working_set()), mebibytes(group.peak()));
    println!("| {what}: working set, now and at most | {now}, {peak} |");
    let (resident, most) = operator.memory();
    println!(
        "| {what}: resident, now and at most | {}, {} |",
        mebibytes(resident),
        mebibytes(most)
    );
    println!(
        "| {what}: limit, times out of memory | {}, {} |",
        mebibytes(limit),
        group.exhausted()
    );
    assert!(operator.ended().is_none(), "{}", operator.tail());
    assert_eq!(group.exhausted(), 0, "{what}: the memory limit was reached");
    let peak = group.peak();
    assert!(peak * 2 < limit, "{what}: {} is more than half of the memory limit", mebibytes(peak));
}
