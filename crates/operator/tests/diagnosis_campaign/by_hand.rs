//! Changes that VDO does not restore: of drivers that somebody applied by hand, and of fields that VDO does not set.
//! Findings name them, and the printed commands fix them.

use k8s_openapi::api::{
    apps::v1::DaemonSet,
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;

use super::{
    Severity, VDOConfigStatus,
    common::{NAMESPACE, Testbed, upstream_cpi, upstream_csi},
};

const CSI: &str = "vmware-system-csi";
const LACKS: &str = "VDO-1623";

/// The ClusterRole of a service account, and its binding.
async fn role_of(testbed: &Testbed, account: &str) -> (String, String) {
    let bindings = Api::<ClusterRoleBinding>::all(testbed.client());
    let bindings = bindings.list(&kube::api::ListParams::default()).await.unwrap();
    let binding = bindings
        .into_iter()
        .find(|binding| binding.subjects.iter().flatten().any(|subject| subject.name == account));
    let binding = binding.unwrap();
    (binding.role_ref.name, binding.metadata.name.unwrap())
}

async fn is_complete(testbed: &Testbed, when: &str) {
    let complete = |status: &VDOConfigStatus| status.findings.iter().all(|f| f.code != LACKS);
    testbed.status(&format!("no {LACKS} {when}"), 30, complete).await;
}

/// Runs the commands of the finding, as an admin does.
async fn fix(testbed: &Testbed, texts: &[&str]) {
    let finding = testbed.finding_about(LACKS, 10, texts).await;
    assert_eq!(finding.severity, Severity::Error);
    let commands = finding.remedy.iter().filter(|step| !step.starts_with('#'));
    for command in commands {
        let answer = testbed.run(command).await;
        if command.starts_with("kubectl auth can-i") {
            assert_eq!(answer.trim(), "yes", "{command}");
        }
    }
    is_complete(testbed, &format!("after the commands of {finding:?}")).await;
}

#[tokio::test]
async fn a_driver_applied_by_hand_whose_account_lacks_permissions_is_reported_and_fixed_as_printed()
{
    let testbed = Testbed::with_nodes(1).await;
    testbed.create("kubectl-create", upstream_csi()).await;
    testbed.create("kubectl-create", upstream_cpi()).await;
    let conf = "[Global]\ncluster-id = \"10.10.10.10\"\n[VirtualCenter \"10.10.10.10\"]\n\
                user = \"k8s@vsphere.local\"\npassword = \"theirs\"\n";
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "vsphere-config-secret", "namespace": CSI},
        "stringData": {"csi-vsphere.conf": conf},
    });
    testbed.create("kubectl-create", [secret]).await;
    let operator = testbed.operator();
    testbed
        .configure(json!({
            "cloudProvider": {"vsphereCloudConfigs": ["vc"]},
            "storageProvider": {"vsphereCloudConfig": "vc"},
        }))
        .await;
    testbed.finding("VDO-1902", 60).await;
    testbed.check_now("before").await;
    is_complete(&testbed, "with the manifests of upstream").await;

    // Somebody removes a verb from the role of the storage controller.
    let roles = Api::<ClusterRole>::all(testbed.client());
    let (role, _) = role_of(&testbed, "vsphere-csi-controller").await;
    let mut granted = roles.get(&role).await.unwrap().rules.unwrap();
    let attachments = |rule: &&mut k8s_openapi::api::rbac::v1::PolicyRule| {
        rule.resources.iter().flatten().any(|resource| resource == "volumeattachments")
    };
    let changed = granted.iter_mut().find(attachments).unwrap();
    changed.verbs.retain(|verb| verb != "patch");
    let patch = Patch::Merge(json!({"rules": granted}));
    roles.patch(&role, &PatchParams::default(), &patch).await.unwrap();
    fix(&testbed, &["patch volumeattachments.storage.k8s.io", &role, "vsphere-csi-controller"])
        .await;

    // Somebody deletes a binding of the cloud controller.
    let (role, binding) = role_of(&testbed, "cloud-controller-manager").await;
    let bindings = Api::<ClusterRoleBinding>::all(testbed.client());
    bindings.delete(&binding, &DeleteParams::default()).await.unwrap();
    fix(&testbed, &["no ClusterRoleBinding gives it", &role]).await;

    // Somebody deletes the role of the node pods. No command can bring back all of its rules.
    let (role, _) = role_of(&testbed, "vsphere-csi-node").await;
    roles.delete(&role, &DeleteParams::default()).await.unwrap();
    testbed.finding_about(LACKS, 10, &[&role, "does not exist", "vsphere-csi-node"]).await;
    let own = |write: &String| write.contains(&format!("/namespaces/{NAMESPACE}/"));
    let mut writes = testbed.writes_after_two_rounds(&operator, jiff::Timestamp::MIN).await;
    writes.retain(|write| !own(write));
    assert_eq!(writes, Vec::<String>::new(), "VDO changes nothing of these drivers");
    assert_eq!(testbed.denied_requests(), Vec::<String>::new());
}

#[tokio::test]
async fn a_field_that_somebody_adds_to_a_workload_of_vdo_is_named_and_removed_as_printed() {
    let (testbed, operator) = Testbed::with_storage(&[]).await;
    let sets = Api::<DaemonSet>::namespaced(testbed.client(), CSI);
    // VDO restores a field that it applies, such as the node selector. This one it does not apply.
    let nobody = json!({"spec": {"template": {"spec": {"schedulerName": "nobody"}}}});
    let as_somebody =
        PatchParams { field_manager: Some("somebody".into()), ..PatchParams::default() };
    sets.patch("vsphere-csi-node", &as_somebody, &Patch::Merge(nobody)).await.unwrap();
    let texts = ["DaemonSet vsphere-csi-node", "somebody added", "schedulerName"];
    let finding = testbed.finding_about("VDO-1624", 10, &texts).await;
    testbed.run(&finding.remedy[0]).await;
    let gone = |status: &VDOConfigStatus| status.findings.iter().all(|f| f.code != "VDO-1624");
    testbed.status("no VDO-1624 after the printed command", 30, gone).await;
    testbed.ready(&operator, 60).await;
}
