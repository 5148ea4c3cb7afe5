//! `vdoctl test` on real nodes: the whole way, and a StorageClass that makes no volume.

use api::{Finding, VDOConfig, finding::codes};
use k8s_openapi::api::{
    core::v1::{PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use testkit::eventually;
use vsphere::{Client, Credentials, Trust, cns::QueryFilter};

use crate::cluster::{Cluster, NAMESPACE, TIMEOUT, text};

pub(super) async fn tests_pass_and_fail_as_they_should(cluster: &Cluster) {
    a_volume_goes_the_whole_way_on_both_nodes(cluster).await;
    a_missing_policy_is_the_reason_why_no_volume_is_made(cluster).await;
}

/// The steps of the report with their states.
fn states(test: &Value) -> Vec<String> {
    let steps = test["steps"].as_array().unwrap();
    let state = |step: &Value| {
        format!("{} {}", step["step"].as_str().unwrap(), step["state"].as_str().unwrap())
    };
    steps.iter().map(state).collect()
}

async fn a_volume_goes_the_whole_way_on_both_nodes(cluster: &Cluster) {
    let line = ["test", "--storage-class", "ext4", "--timeout", TIMEOUT, "-o", "json"];
    let output = cluster.vdoctl(&line).await;
    assert!(output.status.success(), "{}", text(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let test = &report["tests"][0];
    let passed = ["create", "attach", "mount", "write", "detach", "move", "read", "delete"];
    assert_eq!(states(test), passed.map(|step| format!("{step} Passed")), "{report:#}");
    assert_eq!(test["nodes"], json!(["node-2", "node-1"]), "the worker first: {report:#}");
    assert_eq!(test["steps"][5]["detail"], "node-1", "it moved: {report:#}");
    nothing_is_left(cluster).await;

    let volume = test["steps"][0]["detail"].as_str().unwrap();
    let volume = volume.strip_prefix("PersistentVolume ").unwrap();
    let in_vcenter = cns_volumes(cluster).await;
    assert!(!in_vcenter.iter().any(|name| name == volume), "{volume} in {in_vcenter:?}");
}

/// A storage policy that does not exist: the step `create` reports it.
async fn a_missing_policy_is_the_reason_why_no_volume_is_made(cluster: &Cluster) {
    let class = json!({
        "metadata": {"name": "no-policy"}, "provisioner": "csi.vsphere.vmware.com",
        "parameters": {"storagepolicyname": "No Such Policy"},
    });
    let class: StorageClass = serde_json::from_value(class).unwrap();
    let classes = Api::<StorageClass>::all(cluster.plane.client());
    classes.create(&PostParams::default(), &class).await.unwrap();
    let configs = Api::<VDOConfig>::namespaced(cluster.plane.client(), NAMESPACE);
    let check = json!({"metadata": {"annotations": {"vdo.vmware.com/check-now": "policies"}}});
    configs.patch("vdo", &PatchParams::default(), &Patch::Merge(check)).await.unwrap();
    eventually("the operator reports the class", 60, async || {
        let findings = configs.get("vdo").await.unwrap().status.unwrap_or_default().findings;
        let reported = |finding: &Finding| {
            finding.code == codes::CLASS_POLICY_UNKNOWN.code
                && finding.objects.iter().any(|about| about.name == "no-policy")
        };
        if findings.iter().any(reported) { Ok(()) } else { Err(format!("{findings:?}")) }
    })
    .await;
    let line = ["test", "--storage-class", "no-policy", "--timeout", "30", "-o", "json"];
    let output = cluster.vdoctl(&line).await;
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let test = &report["tests"][0];
    assert_eq!(states(test)[0], "create Failed", "{report:#}");
    assert_eq!(states(test)[7], "delete Passed", "{report:#}");
    // The driver reports no capacity for the class, so the scheduler does not ask for a volume.
    let reasons = test["steps"][0]["reasons"].to_string();
    assert!(reasons.contains("did not have enough free storage"), "{reasons}");
    assert!(reasons.contains("its storage policy or datastore does not exist"), "{reasons}");
    let finding = &test["findings"][0];
    assert_eq!(finding["code"], codes::CLASS_POLICY_UNKNOWN.code, "{report:#}");
    assert!(finding["text"].as_str().unwrap().contains("No Such Policy"), "{report:#}");
    nothing_is_left(cluster).await;
    classes.delete("no-policy", &DeleteParams::default()).await.unwrap();
}

/// No object of a test is left.
async fn nothing_is_left(cluster: &Cluster) {
    let every = ListParams::default().labels("vdo.vmware.com/volume-test");
    let client = || cluster.plane.client();
    let pods = Api::<Pod>::namespaced(client(), NAMESPACE).list(&every).await.unwrap();
    let claims = Api::<PersistentVolumeClaim>::namespaced(client(), NAMESPACE);
    let claims = claims.list(&every).await.unwrap();
    let classes = Api::<StorageClass>::all(client()).list(&every).await.unwrap();
    let left: Vec<String> = pods.iter().map(ResourceExt::name_any).collect();
    let left = left.into_iter().chain(claims.iter().map(ResourceExt::name_any));
    let left: Vec<String> = left.chain(classes.iter().map(ResourceExt::name_any)).collect();
    assert_eq!(left, Vec::<String>::new());
}

/// The names of the volumes in vCenter.
async fn cns_volumes(cluster: &Cluster) -> Vec<String> {
    let vcenter = &cluster.vcenter;
    let client = Client::builder(vcenter.address().to_string())
        .trust(Trust::CaBundle(vcenter.ca_pem()))
        .credentials(Credentials::new(vcenter.user().to_owned(), vcenter.password().to_owned()))
        .connect()
        .await
        .unwrap();
    let volumes = client.query_volumes(&QueryFilter::default()).await.unwrap();
    client.shut_down().await;
    volumes.into_iter().filter_map(|volume| volume.name).collect()
}
