//! Catalogs, adoption of existing drivers, upgrades, rollback and approval.

use std::{fs, process::Command};

use api::{CompatibilityConfig, VDOConfig, vdo_config::UpgradePolicy};
use jiff::SignedDuration;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Secret},
};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};
use testkit::{Fate, eventually};

use crate::{
    cluster::objects,
    gate::{Closing, Gate, Loss},
    halfway,
    stage::{NAMESPACE, Stage},
    terminal::Terminal,
    transcripts,
};

const CSI: &str = "vmware-system-csi";

#[tokio::test(flavor = "multi_thread")]
async fn from_an_existing_driver_through_its_releases() {
    let stage = Stage::set().await;
    halfway::deploying_without_a_permission(&stage).await;
    halfway::interrupted_while_deploying(&stage).await;
    halfway::disconnected_while_deploying(&stage).await;
    deploying_a_manifest(&stage).await;
    halfway::a_permission_is_missing(&stage).await;
    halfway::an_admission_policy_rejects(&stage).await;
    halfway::the_api_server_is_unreachable(&stage).await;
    halfway::interrupted_at_each_write(&stage).await;
    importing_catalogs(&stage).await;
    installed_by_hand(&stage).await;
    let operator = stage.operator().await;
    adopting(&stage).await;
    fixing(&stage).await;
    rolling_back(&stage).await;
    drop(operator);
    let operator = stage.operator_with(SignedDuration::from_secs(15)).await;
    a_rollback_is_reported(&stage);
    drop(operator);
    let _operator = stage.operator().await;
    approving(&stage).await;
}

/// The syntax of earlier versions: a manifest by URL.
async fn deploying_a_manifest(stage: &Stage) {
    let manifest = testkit::repository().join("deploy/install.yaml");
    let wrong = stage.vdoctl(&["deploy", "--spec", "file:///no/such/manifest.yaml"]);
    assert_eq!(wrong.code, 1, "{}", wrong.all());
    assert!(wrong.err.contains("/no/such/manifest.yaml cannot be read"), "{}", wrong.all());
    a_mistake_in_a_manifest_is_shown_at_its_place(stage);
    let spec = format!("file://{}", manifest.display());
    let output = stage.works(&["deploy", "--spec", &spec, "--image", "registry.example.com/vdo:1"]);
    assert!(output.err.contains("✔ Start the operator"), "{}", output.all());
    let deployments = Api::<Deployment>::namespaced(stage.plane.client(), NAMESPACE);
    let pod = deployments.get("vdo").await.unwrap().spec.unwrap().template.spec.unwrap();
    assert_eq!(pod.containers[0].image.as_deref(), Some("registry.example.com/vdo:1"));
}

/// vdoctl reports the location of mistakes in a manifest, and changes nothing.
fn a_mistake_in_a_manifest_is_shown_at_its_place(stage: &Stage) {
    let manifest = stage.works(&["deploy", "-o", "yaml"]).out;
    for (right, wrong, error, help) in [
        ("  replicas: 2", "  replicsa: 2", "rejects Deployment", "no such field"),
        ("  replicas: 2", "  replicas: -2", "rejects Deployment", "greater than or equal to 0"),
        (
            "kind: ClusterRoleBinding",
            "kind: ClusterRoleBidning",
            "does not know the kind of",
            "ClusterRoleBinding?",
        ),
        ("kind: ServiceAccount\n", "knid: ServiceAccount\n", "has no kind", "add kind"),
        (
            "kind: ServiceAccount\n",
            "kind: [ServiceAccount\n",
            "this is not valid YAML",
            "check indentation",
        ),
    ] {
        let text = manifest.replacen(right, wrong, 1);
        assert_ne!(text, manifest, "{right}");
        stage.workdir.write("wrong.yaml", text).unwrap();
        let output = stage.vdoctl(&["deploy", "--spec", "wrong.yaml"]);
        assert_eq!(output.code, 1, "{wrong}: {}", output.all());
        let flat = output.err.split_whitespace().collect::<Vec<_>>().join(" ");
        for words in [error, help, "[wrong.yaml:"] {
            assert!(flat.contains(words), "{wrong}: {words}: {}", output.all());
        }
    }
    let output = stage.works(&["deploy", "--dry-run"]);
    let writes = |change: &str| output.out.contains(&format!("  {change}  "));
    assert!(!writes("created") && !writes("changed"), "{}", output.all());
}

/// The built-in catalog, with two older releases of the storage driver allowed on this cluster.
fn catalog() -> String {
    let mut text = catalog::EMBEDDED.to_owned();
    let ranges = [
        (r#"{ min: "1.32", max: "1.34" }"#, r#"{ min: "1.32", max: "1.36" }"#),
        (r#"{ min: "1.33", max: "1.35", tolerates: "1.36" }"#, r#"{ min: "1.33", max: "1.36" }"#),
    ];
    for (range, wider) in ranges {
        assert!(text.contains(range), "{range}");
        text = text.replace(range, wider);
    }
    text
}

/// All three commands have the same result, also with attached volumes.
async fn importing_catalogs(stage: &Stage) {
    stage.attach_a_volume().await;

    transcripts::compatibility_matrix(stage);
    let maps = Api::<ConfigMap>::namespaced(stage.plane.client(), NAMESPACE);
    let configs = Api::<CompatibilityConfig>::namespaced(stage.plane.client(), NAMESPACE);
    let now = DeleteParams::default();
    maps.delete("vdo-catalog", &now).await.unwrap();
    configs.delete("vdo-catalog", &now).await.unwrap();
    stage.workdir.write("catalog.yaml", catalog()).unwrap();
    stage.workdir.write("wrong.yaml", "schema: \"9.0\"").unwrap();
    let lines: [&[&str]; 4] = [
        &["configure", "compatibility-matrix"],
        &["update", "compatibility-matrix"],
        &["update", "cm"],
        &["catalog", "import"],
    ];
    for line in lines {
        let output = stage.vdoctl(&[line, &["wrong.yaml"]].concat());
        assert_eq!(output.code, 1, "{line:?}: {}", output.all());
        assert!(
            output.err.contains("is not a catalog that VDO can use"),
            "{line:?}: {}",
            output.all()
        );
        assert!(maps.get_opt("vdo-catalog").await.unwrap().is_none(), "{line:?}");
    }
    let file = format!("file://{}", stage.workdir.path().join("catalog.yaml").display());
    for (line, file) in lines.iter().zip(["catalog.yaml", &file, &file, "catalog.yaml"]) {
        let output = stage.works(&[line, &[file][..]].concat());
        assert!(
            output.out.contains("To see the changes: vdoctl plan"),
            "{line:?}: {}",
            output.all()
        );
        let data = maps.get("vdo-catalog").await.unwrap().data.unwrap();
        assert_eq!(data["catalog.yaml"], catalog(), "{line:?}");
        maps.delete("vdo-catalog", &kube::api::DeleteParams::default()).await.unwrap();
    }
    // The special file names work here, too.
    for (name, input, text) in
        [("-", catalog(), catalog()), ("embedded", String::new(), catalog::EMBEDDED.to_owned())]
    {
        let output = stage.vdoctl_reading(&["catalog", "import", name], &input);
        assert_eq!(output.code, 0, "{name}: {}", output.all());
        let data = maps.get("vdo-catalog").await.unwrap().data.unwrap();
        assert_eq!(data["catalog.yaml"], text, "{name}");
        maps.delete("vdo-catalog", &kube::api::DeleteParams::default()).await.unwrap();
    }
    // After Ctrl-C at the first write, vdoctl makes both.
    configs.delete("vdo-catalog", &now).await.unwrap();
    let closing = Closing { at: 1, loss: Loss::Nothing, refused: 0 };
    let gate = Gate::before(stage, "catalog", closing).await;
    let kubeconfig = gate.kubeconfig();
    let line = ["catalog", "import", "catalog.yaml", "--kubeconfig", &kubeconfig];
    let output = halfway::interrupt(stage, &line, &gate).await;
    assert!(output.err.contains("vdoctl finishes the current change first"), "{}", output.all());
    assert!(maps.get_opt("vdo-catalog").await.unwrap().is_some(), "{}", output.all());
    assert!(configs.get_opt("vdo-catalog").await.unwrap().is_some(), "{}", output.all());
}

/// Storage 3.6.3, installed by an admin.
async fn installed_by_hand(stage: &Stage) {
    let rendered = stage.works(&[
        "catalog",
        "render",
        "catalog.yaml",
        "--driver",
        "csi",
        "--version",
        "3.6.3",
        "--kubernetes",
        "1.36",
    ]);
    // No label of VDO.
    let foreign: Vec<&str> =
        rendered.out.lines().filter(|line| !line.contains("managed-by")).collect();
    stage.workdir.write("by-hand.yaml", foreign.join("\n")).unwrap();
    let created = Command::new(testkit::peer("kubectl"))
        .args(["apply", "--server-side", "--force-conflicts", "-f", "by-hand.yaml"])
        .env("KUBECONFIG", stage.kubeconfig())
        .current_dir(stage.workdir.path())
        .output()
        .unwrap();
    assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stderr));
    let secret = json!({
        "metadata": {"name": "vsphere-config-secret", "namespace": CSI},
        "stringData": {"csi-vsphere.conf": "[Global]\ncluster-id = \"prod-7\"\n\
            [VirtualCenter \"vc.example.com\"]\nuser = \"them@vsphere.local\"\npassword = \"theirs\"\n"},
    });
    let secret: Secret = serde_json::from_value(secret).unwrap();
    let secrets = Api::<Secret>::namespaced(stage.plane.client(), CSI);
    secrets.create(&PostParams::default(), &secret).await.unwrap();
    let text = objects(stage, |all| all[2]["spec"]["upgrades"] = json!({"policy": "Manual"}));
    stage.workdir.write("vdo.yaml", text).unwrap();
    stage.works(&["configure", "drivers", "-f", "vdo.yaml"]);
}

async fn adopting(stage: &Stage) {
    let deployments = Api::<Deployment>::namespaced(stage.plane.client(), CSI);
    let before = deployments.get("vsphere-csi-controller").await.unwrap().metadata.uid;
    let output = stage.vdoctl(&["adopt"]);
    assert_eq!(output.code, 2, "without a terminal, --yes is required: {}", output.all());
    assert_eq!(config(stage).await.spec.adoption, None, "so far nothing was changed");

    interrupted_at(stage, &["adopt"], "Adopt the drivers?").await;
    assert_eq!(config(stage).await.spec.adoption, None, "nor by an answer that was not given");

    transcripts::on_cluster(stage, "adopting");
    let shown = fs::read_to_string("tests/cmd/adopting/adopting.trycmd").unwrap();
    assert!(!shown.contains("theirs"), "the password of their configuration");
    let status = config(stage).await.status.unwrap();
    assert_eq!(status.csi.unwrap().version.as_deref(), Some("3.6.3"), "as it was");
    assert_eq!(status.cluster_id.as_deref(), Some("prod-7"), "volumes are known by it");
    let after = deployments.get("vsphere-csi-controller").await.unwrap().metadata.uid;
    assert_eq!(after, before, "nothing is created again");
    let output = stage.works(&["adopt"]);
    assert!(output.out.contains("nothing to adopt"), "{}", output.all());
    // On request VDO rolls out its configuration of the same release.
    let output = stage.works(&["upgrade", "csi", "--to", "3.6.3", "--yes", "--timeout", "480"]);
    assert!(output.out.contains("3.6.3 stays, with VDO's configuration"), "{}", output.all());
}

/// Ctrl-C at the confirmation.
pub(crate) async fn interrupted_at(stage: &Stage, line: &[&str], question: &str) {
    let mut terminal = Terminal::run(&stage.command(line), 80);
    terminal.expect(question).await;
    terminal.types("\x03");
    let (status, shown) = terminal.ends().await;
    assert_eq!(status.code(), Some(130), "{line:?}: {shown}");
    assert!(shown.contains("interrupted; nothing was changed"), "{line:?}: {shown}");
}

async fn config(stage: &Stage) -> VDOConfig {
    let configs = Api::<VDOConfig>::namespaced(stage.plane.client(), NAMESPACE);
    configs.get("vdo").await.unwrap()
}

/// A stuck upgrade and its rollback.
async fn rolling_back(stage: &Stage) {
    let before = config(stage).await.spec;
    let output = stage.vdoctl(&["upgrade", "csi", "--to", "3.0.0", "--yes"]);
    assert_ne!(output.code, 0, "an older release is refused at once: {}", output.all());
    let reason = "Storage 3.0.0 cannot be installed: It supports Kubernetes";
    assert!(output.err.contains(reason), "{}", output.all());
    assert_eq!(config(stage).await.spec, before, "nothing is pinned");
    let output = stage.vdoctl(&["upgrade", "csi", "--back", "--yes"]);
    assert_eq!(output.code, 1, "{}", output.all());
    assert!(output.err.contains("no upgrade of"), "{}", output.all());

    stage.nodes.pods("v3.7.3", Fate::Crashes);
    let output = stage.works(&["upgrade", "csi", "--to", "3.7.3", "--yes", "--no-wait"]);
    assert!(output.out.contains("3.6.3 → 3.7.3"), "{}", output.all());
    eventually("the new release is on its way", 60, async || {
        let output = stage.vdoctl(&["versions"]);
        if output.out.contains("3.7.3") { Ok(()) } else { Err(output.all()) }
    })
    .await;
    let output = stage.vdoctl(&["status"]);
    assert!(matches!(output.code, 3 | 4), "{}", output.all());
    let output = stage.works(&["upgrade", "csi", "--back", "--yes", "--timeout", "480"]);
    assert!(output.out.contains("3.7.3 → 3.6.3"), "{}", output.all());
    let status = config(stage).await.status.unwrap();
    assert_eq!(status.csi.unwrap().version.as_deref(), Some("3.6.3"));
    stage.works(&["status"]);
}

/// vdoctl reports why the operator rolled a release back.
fn a_rollback_is_reported(stage: &Stage) {
    let line = ["upgrade", "csi", "--to", "3.7.3", "--yes", "--timeout", "480"];
    let output = stage.vdoctl(&line);
    assert_eq!(output.code, 3, "{}", output.all());
    assert!(output.out.contains("VDO-1905"), "{}", output.all());
    assert!(output.out.contains("CrashLoopBackOff"), "{}", output.all());
    stage.nodes.pods("v3.7.3", Fate::Ready);
}

/// With the policy Manual, a matching release waits for approval.
async fn approving(stage: &Stage) {
    let pin = async || config(stage).await.spec.storage_provider.unwrap().version;
    assert!(pin().await.is_some(), "--to pins the release");
    let line = ["upgrade", "csi", "--unpin", "--yes"];
    let output = stage.works(&line);
    assert!(output.out.contains("Storage is no longer pinned to 3.7.3"), "{}", output.all());
    assert_eq!(pin().await, None);
    let output = stage.works(&line);
    assert!(output.out.contains("Storage is not pinned"), "{}", output.all());
    stage.works(&["status", "--wait", "--timeout", "480"]);
    let spec = config(stage).await.spec;
    assert_eq!(spec.upgrade_policy(), UpgradePolicy::Manual);
    let plan = stage.works(&["plan", "-o", "json"]);
    let plan: Value = serde_json::from_str(&plan.out).unwrap();
    let waits = plan["drivers"][0]["waitsFor"].as_str().unwrap_or_default();
    let Some((newer, _)) = waits.split_once(" fits") else { panic!("nothing waits: {plan:#}") };
    let output = stage.works(&["plan"]);
    assert!(output.out.contains("waits") && output.out.contains(newer), "{}", output.all());

    let output = stage.vdoctl(&["upgrade"]);
    assert_eq!(output.code, 2, "nothing without a yes: {}", output.all());
    let before = config(stage).await;
    interrupted_at(stage, &["upgrade"], "Continue?").await;
    let after = config(stage).await;
    assert_eq!(
        (after.spec, after.metadata.annotations),
        (before.spec, before.metadata.annotations)
    );
    transcripts::on_cluster(stage, "upgrading");
    let status = config(stage).await.status.unwrap();
    assert_eq!(status.csi.unwrap().version.as_deref(), Some(newer), "followed to its end");
    let output = stage.works(&["upgrade"]);
    assert!(output.out.contains("nothing to upgrade"), "{}", output.all());
    assert!(fs::exists(stage.workdir.path().join("vdo.yaml")).unwrap());
}

/// vdoctl shows a fix, makes it after confirmation, and undoes it on request. For other findings it shows the manual
/// steps.
async fn fixing(stage: &Stage) {
    let output = stage.works(&["fix", "1203"]);
    assert!(output.out.contains("VDO-1203 was not found"), "{}", output.all());
    stage.hide_disk_ids(true).await;
    let output = stage.works(&["fix", "VDO-1203", "--dry-run"]);
    assert!(
        output.out.contains("disk.EnableUUID") && output.out.contains("node-1"),
        "{}",
        output.all()
    );
    let output = stage.vdoctl(&["fix", "1203"]);
    assert_eq!(output.code, 2, "nothing without a yes: {}", output.all());
    assert_eq!(disk_ids(stage).await, "FALSE");
    let output = stage.works(&["fix"]);
    assert!(output.out.contains("VDO-1203"), "it is listed: {}", output.all());

    interrupted_at(stage, &["fix", "1203"], "Make 1 change?").await;
    assert_eq!(disk_ids(stage).await, "FALSE");
    transcripts::on_cluster(stage, "fixing");
    assert_eq!(disk_ids(stage).await, "TRUE");
    let output = stage.works(&["fix", "--made"]);
    let name = output.out.split_whitespace().find(|word| word.starts_with("VDO-1203.")).unwrap();
    assert!(output.out.contains("fixed"), "{}", output.all());
    let wrong = stage.vdoctl(&["fix", "--undo", "VDO-1203.nobody", "--yes"]);
    assert_eq!(wrong.code, 2, "{}", wrong.all());
    interrupted_at(stage, &["fix", "--undo", name], &format!("Undo {name}?")).await;
    assert_eq!(disk_ids(stage).await, "TRUE");
    let output = stage.vdoctl_unread(&["fix", "--undo", name, "--yes"]);
    assert_eq!(output.code, 0, "{}", output.all());
    assert_eq!(disk_ids(stage).await, "FALSE");
    let output = stage.works(&["fix", "--made"]);
    assert!(output.out.contains("undone"), "{}", output.all());
    stage.hide_disk_ids(false).await;

    // VDO deletes no snapshots of VMs.
    let backed_up = json!({"snapshots": ["nightly"]});
    stage.vcenter.patch_vm("/DC0/vm/node-1", backed_up).await;
    let doctor = stage.vdoctl(&["doctor", "--only", "VDO-12", "-o", "json"]);
    let found: Value = serde_json::from_str(&doctor.out).unwrap();
    let code = found["findings"][0]["code"].as_str().unwrap();
    let output = stage.vdoctl(&["fix", code, "--yes"]);
    assert_eq!(output.code, 3, "{}", output.all());
    assert!(output.out.contains("Fix "), "{}", output.all());
    assert!(output.out.contains("VDO cannot fix this"), "{}", output.all());
    stage.vcenter.patch_vm("/DC0/vm/node-1", json!({"snapshots": []})).await;
    let output = stage.vdoctl(&["fix", "9999"]);
    assert_eq!(output.code, 2, "{}", output.all());
    stage.works(&["status", "--wait", "--timeout", "480"]);
}

/// The value of `disk.EnableUUID` in vCenter.
async fn disk_ids(stage: &Stage) -> String {
    let truth = stage.vcenter.truth().await;
    let vms = truth["datacenters"][0]["vms"].as_array().unwrap();
    let vm = vms.iter().find(|vm| vm["name"] == "node-1").unwrap();
    vm["extraConfig"]["disk.EnableUUID"].as_str().unwrap_or_default().to_uppercase()
}
