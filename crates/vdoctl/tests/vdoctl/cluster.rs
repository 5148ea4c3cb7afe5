//! The commands on a real API server and a simulated vCenter, in the order in which a user runs them. All parts share
//! one cluster: each part prepares the next one.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use api::{VDOConfig, VsphereCloudConfig};

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Namespace, Secret},
};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use testkit::{User, eventually};

use crate::{
    bundle, dialogue, releases, screens,
    stage::{CommandOutput, NAMESPACE, PASSWORD, PASSWORD_ENCODED, Stage},
    transcripts, trouble,
};

#[tokio::test(flavor = "multi_thread")]
async fn from_an_empty_cluster_to_running_drivers_and_back() {
    let stage = Stage::set().await;
    before_the_installation(&stage);
    doctor_before_the_installation(&stage).await;
    deploying(&stage).await;
    a_wrong_configuration_leaves_nothing_behind(&stage).await;
    let other = dialogue::another_vcenter().await;
    dialogue::interrupted_without_a_dialogue(&stage).await;
    // The two do not affect each other.
    tokio::join!(
        dialogue::interrupted_anywhere(&stage, &other),
        trouble::configuring_with_a_slow_vcenter(&stage),
    );
    dialogue::no_vcenter_there(&stage).await;
    dialogue::certificate_declined(&stage).await;
    dialogue::quiet_shows_the_certificate(&stage).await;
    dialogue::corrected_and_finished(&stage).await;
    dialogue::two_vcenters(&stage, &other).await;
    drop(other);
    configuring(&stage).await;
    let operator = stage.operator().await;
    healthy(&stage);
    editing(&stage).await;
    looking(&stage);
    doctoring(&stage).await;
    transcripts::on_a_healthy_cluster(&stage).await;
    transcripts::on_a_degraded_cluster(&stage).await;
    screens::fit_sixty_columns_and_accept_a_closed_pipe(&stage);
    screens::quiet_and_verbose(&stage);
    screens::fit_a_terminal_of_sixty_columns(&stage).await;
    screens::questions_without_colours(&stage).await;
    screens::kept_current_until_interrupted(&stage).await;
    without_an_operator(&stage).await;
    bundle::bundling(&stage).await;
    trouble::a_disk_that_is_full(&stage);
    trouble::contexts_and_files(&stage);
    trouble::a_slow_vcenter(&stage).await;
    dialogue::editing_shows_changes(&stage).await;
    removing(&stage).await;
    drop(operator);
    without_permissions_and_without_a_cluster(&stage);
}

fn before_the_installation(stage: &Stage) {
    for command in ["status", "plan", "versions", "configure", "adopt"] {
        let output = stage.vdoctl(&[command]);
        assert!(matches!(output.code, 1 | 5), "{command}: {}", output.all());
        assert_eq!(output.out, "", "{command}: {}", output.all());
    }
    let output = stage.vdoctl(&["status"]);
    assert_eq!(output.code, 5, "{}", output.all());
    assert!(output.err.contains("VDO is not installed in this cluster"), "{}", output.all());
    assert!(output.err.contains("vdoctl deploy installs it"), "{}", output.all());
    the_proxy_of_the_environment_is_used(stage);
}

/// Nothing listens at the address of the proxy: vdoctl reaches the cluster only where `NO_PROXY` names it.
fn the_proxy_of_the_environment_is_used(stage: &Stage) {
    let status = |excluded: &str| -> CommandOutput {
        let mut command = stage.command(&["status"]);
        command.env("HTTPS_PROXY", "http://127.0.0.1:9").env("NO_PROXY", excluded);
        command.stdin(Stdio::null()).output().unwrap().into()
    };
    let direct = status("127.0.0.1");
    assert!(direct.err.contains("VDO is not installed in this cluster"), "{}", direct.all());
    let through_proxy = status("example.com");
    assert!(!through_proxy.err.contains("VDO is not installed"), "{}", through_proxy.all());
    assert!(!through_proxy.err.contains("disabled feature"), "{}", through_proxy.all());
}

/// Flags for the vCenter.
fn door(stage: &Stage) -> Vec<String> {
    let address = stage.vcenter.address().to_string();
    let thumbprint = stage.vcenter.thumbprint_sha256();
    let flags = ["--vcenter", &address, "--user", "vdo@vsphere.local", "--thumbprint", &thumbprint];
    let password = ["--password-file", "-"];
    flags.into_iter().chain(password).map(str::to_owned).collect()
}

async fn doctor_before_the_installation(stage: &Stage) {
    let door = door(stage);
    let door: Vec<&str> = door.iter().map(String::as_str).collect();
    let doctor = |more: &[&str]| {
        let arguments: Vec<&str> = [&["doctor"], &door[..], more].concat();
        stage.vdoctl_reading(&arguments, PASSWORD)
    };
    // Only the vCenter, without a cluster.
    let output = doctor(&["--no-cluster", "-o", "json"]);
    assert!(matches!(output.code, 0 | 3), "{}", output.all());
    let found: Value = serde_json::from_str(&output.out).unwrap();
    assert!(found["findings"].is_array(), "{}", output.all());
    // With the cluster, without an operator.
    stage.hide_disk_ids(true).await;
    let output = doctor(&["--only", "1203"]);
    assert_eq!(output.code, 3, "{}", output.all());
    assert!(output.out.starts_with("▲ 1 error"), "{}", output.all());
    assert!(output.out.contains("VDO-1203") && output.out.contains("node-1"), "{}", output.all());
    assert!(output.out.contains("Fix "), "{}", output.all());
    assert!(!output.all().contains(PASSWORD), "{}", output.all());
    stage.hide_disk_ids(false).await;
    let output = doctor(&["--only", "1203"]);
    assert_eq!(output.code, 0, "{}", output.all());
    assert!(output.out.starts_with("● No problems"), "{}", output.all());
    no_session_is_open(stage).await;
}

/// No session is left open.
async fn no_session_is_open(stage: &Stage) {
    eventually("nobody is logged in", 30, async || {
        let sessions = stage.vcenter.sessions().await.to_string();
        if sessions.contains("vdo@vsphere.local") { Err(sessions) } else { Ok(()) }
    })
    .await;
}

/// The doctor and the operator report the same findings.
async fn doctoring(stage: &Stage) {
    let elsewhere = stage.vdoctl(&["status", "--namespace", "default"]);
    assert_eq!(elsewhere.code, 5, "{}", elsewhere.all());
    assert!(
        elsewhere.err.contains("it runs in namespace vmware-system-vdo"),
        "{}",
        elsewhere.all()
    );
    assert!(!elsewhere.err.contains("vdoctl move"), "{}", elsewhere.all());
    stage.hide_disk_ids(true).await;
    let output = stage.vdoctl(&["doctor", "--only", "VDO-1203", "--explain"]);
    assert_eq!(output.code, 3, "{}", output.all());
    assert!(output.out.contains("Background"), "the explanation: {}", output.all());
    let output = eventually("the operator reports it too", 60, async || {
        let output = stage.vdoctl(&["status"]);
        if output.out.contains("VDO-1203") { Ok(output) } else { Err(output.all()) }
    })
    .await;
    assert_eq!(output.code, 3, "{}", output.all());
    assert!(output.out.starts_with("▲ Degraded"), "{}", output.all());
    assert_eq!(stage.vdoctl_unread(&["status"]).code, 3, "also where nobody reads it");
    stage.hide_disk_ids(false).await;
    stage.works(&["status", "--wait", "--timeout", "480"]);
}

async fn deploying(stage: &Stage) {
    let namespaces = Api::<Namespace>::all(stage.plane.client());
    let output = stage.works(&["deploy", "--dry-run"]);
    assert!(output.out.contains("created  Deployment vmware-system-vdo/vdo"), "{}", output.all());
    assert!(namespaces.get_opt(NAMESPACE).await.unwrap().is_none(), "a trial leaves nothing");

    let output = stage.works(&["deploy", "-o", "yaml"]);
    assert!(output.out.contains("kind: CustomResourceDefinition"), "{}", output.out);

    transcripts::on_cluster(stage, "deploying");
    let output = stage.works(&["deploy"]);
    assert_eq!(output.out, "", "progress is not a result: {}", output.all());
    assert!(output.err.contains("✔ Start the operator"), "{}", output.all());
    // Allows one more namespace. A later deploy keeps it; removing the operator removes it.
    stage.works(&["deploy", "--driver-namespace", "default"]);
    stage.works(&["deploy"]);
    assert!(stage.can_adopt_in("default").await);
    let again = stage.works(&["deploy", "--dry-run"]);
    let writes = |change: &str| again.out.contains(&format!("  {change}  "));
    assert!(!writes("created") && !writes("changed"), "{}", again.all());

    let output = stage.vdoctl(&["status"]);
    assert_eq!(output.code, 5, "{}", output.all());
    assert!(output.err.contains("vdoctl configure configures it"), "{}", output.all());
    screens::an_error_gets_its_own_line(stage).await;
    let output = stage.works(&["version"]);
    assert!(output.out.contains("operator    0.7.0"), "{}", output.all());
}

pub(crate) fn objects(stage: &Stage, change: impl Fn(&mut Value)) -> String {
    let mut all = json!([
        {
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "vc"},
            "stringData": {"username": "vdo@vsphere.local", "password": PASSWORD},
        },
        {
            "apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VsphereCloudConfig",
            "metadata": {"name": "vc"},
            "spec": {
                "vcIp": stage.vcenter.address().to_string(), "credentials": "vc",
                "thumbprint": stage.vcenter.thumbprint_sha256(), "datacenters": ["DC0"],
            },
        },
        {
            "apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VDOConfig",
            "metadata": {"name": "vdo"},
            "spec": {"storageProvider": {"vsphereCloudConfig": "vc"}},
        },
    ]);
    change(&mut all);
    let texts = all.as_array().unwrap().iter().map(|one| serde_saphyr::to_string(one).unwrap());
    texts.collect::<Vec<_>>().join("---\n")
}

pub(crate) async fn assert_nothing_written(stage: &Stage, after: &str) {
    let client = stage.plane.client();
    let all = ListParams::default();
    let configs = Api::<VDOConfig>::all(client.clone()).list(&all).await.unwrap();
    let vcenters = Api::<VsphereCloudConfig>::all(client.clone()).list(&all).await.unwrap();
    let secrets = Api::<Secret>::namespaced(client, NAMESPACE).list(&all).await.unwrap();
    let names: Vec<_> = secrets.items.iter().filter_map(|s| s.metadata.name.as_deref()).collect();
    assert!(configs.items.is_empty() && vcenters.items.is_empty(), "{after}");
    assert!(!names.iter().any(|name| name.starts_with("vc")), "{after}: {names:?}");
}

async fn a_wrong_configuration_leaves_nothing_behind(stage: &Stage) {
    let configure = |text: &str| {
        stage.workdir.write("wrong.yaml", text).unwrap();
        stage.vdoctl(&["configure", "-f", "wrong.yaml"])
    };
    // A misspelt field: its location and a suggestion.
    let text = objects(stage, |_| {}).replace("storageProvider:", "storageProvdier:");
    let output = configure(&text);
    assert_eq!(output.code, 1, "{}", output.all());
    assert!(output.err.contains("spec has no field storageProvdier"), "{}", output.all());
    assert!(output.err.contains("did you mean storageProvider?"), "{}", output.all());
    assert!(output.err.contains("[wrong.yaml:"), "{}", output.all());
    assert_nothing_written(stage, "a misspelt field").await;

    // Rejections by the API server have a location, too.
    let text = objects(stage, |all| all[2]["spec"]["upgrades"] = json!({"policy": "Pinned"}));
    let output = configure(&text);
    assert_eq!(output.code, 1, "{}", output.all());
    assert!(output.err.contains("Pinned needs the releases to stay on"), "{}", output.all());
    assert_nothing_written(stage, "a rule of the definition").await;

    // The misspelt name of a VsphereCloudConfig, and one that exists nowhere.
    for (name, help) in [
        ("vd", "did you mean vc?"),
        ("elsewhere", "put the VsphereCloudConfig into the same file, or create it first"),
    ] {
        let text = objects(stage, |all| {
            all[2]["spec"]["storageProvider"]["vsphereCloudConfig"] = name.into();
        });
        let output = configure(&text);
        assert_eq!(output.code, 1, "{name}: {}", output.all());
        let missing =
            format!("VDOConfig vdo names VsphereCloudConfig {name}, which does not exist");
        assert!(output.err.contains(&missing), "{}", output.all());
        assert!(output.err.contains(help), "{}", output.all());
        assert_nothing_written(stage, name).await;
    }

    for (change, words) in [
        (json!({"stringData": {"username": "vdo@vsphere.local", "password": "wrong"}}), "log in"),
        (json!({"spec": {"datacenters": ["DC9"]}}), "there are DC0"),
        (json!({"spec": {"thumbprint": null}}), "--thumbprint, or spec.thumbprint"),
        (json!({"spec": {"vcIp": "127.0.0.1:1"}}), "127.0.0.1:1"),
    ] {
        let number = usize::from(change.get("spec").is_some());
        let text = objects(stage, |all| merge(&mut all[number], &change));
        let output = configure(&text);
        assert_ne!(output.code, 0, "{change}: {}", output.all());
        let flat = output.err.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains(words), "{change}: {}", output.all());
        assert!(!output.all().contains(PASSWORD), "{}", output.all());
        assert_nothing_written(stage, &change.to_string()).await;
    }
}

fn merge(into: &mut Value, change: &Value) {
    match (into, change) {
        (Value::Object(into), Value::Object(change)) => {
            for (name, change) in change {
                if change.is_null() {
                    into.remove(name);
                } else {
                    merge(into.entry(name.clone()).or_insert(Value::Null), change);
                }
            }
        }
        (into, change) => *into = change.clone(),
    }
}

async fn configuring(stage: &Stage) {
    stage.workdir.write("vdo.yaml", objects(stage, |_| {})).unwrap();
    let output = stage.works(&["configure", "-f", "vdo.yaml", "--dry-run"]);
    assert!(output.out.contains("new VDOConfig vmware-system-vdo/vdo"), "{}", output.all());
    assert!(!output.all().contains(PASSWORD), "{}", output.all());
    assert_nothing_written(stage, "a trial").await;
    let output = stage.works(&["configure", "-f", "vdo.yaml", "--dry-run", "-vv"]);
    assert!(output.err.contains("DEBUG") && output.err.contains("logged in"), "{}", output.all());
    for encoded in PASSWORD_ENCODED {
        assert!(!output.all().contains(encoded), "{encoded}: {}", output.all());
    }

    transcripts::on_cluster(stage, "configuring");
    let secrets = Api::<Secret>::namespaced(stage.plane.client(), NAMESPACE);
    let secret = secrets.get("vc").await.unwrap();
    assert_eq!(secret.data.unwrap()["password"].0, PASSWORD.as_bytes(), "every character");
    let output = stage.works(&["configure", "-f", "vdo.yaml"]);
    assert!(output.out.contains("nothing to change"), "{}", output.all());

    stage.works(&["plan"]);
    no_session_is_open(stage).await;
    let output = stage.vdoctl(&["status"]);
    assert_eq!(output.code, 4, "nobody has looked at it yet: {}", output.all());
    assert!(output.out.starts_with("○ Unknown"), "{}", output.all());
}

fn healthy(stage: &Stage) {
    let output = stage.works(&["status", "--wait", "--timeout", "480"]);
    assert!(output.out.starts_with("● Healthy"), "{}", output.all());
    assert!(output.out.contains("Kubernetes 1.3"), "{}", output.all());
    assert!(output.out.contains("vCenter 8.0.3"), "{}", output.all());
    let line = output.out.lines().find(|line| line.contains("Storage")).unwrap();
    assert!(line.contains("Ready") && line.contains("3."), "{line}");
    assert!(!output.out.contains('\x1b'), "no colours in a pipe: {}", output.out);

    let output = stage.works(&["status", "-o", "json"]);
    let status: Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!(status["health"], "Healthy");
    assert_eq!(status["config"]["status"]["csi"]["phase"], "Deployed");
    stage.works(&["status", "-o", "yaml"]);
    let output = stage.works(&["status", "-o", "wide"]);
    assert!(output.out.contains("StorageReady"), "{}", output.all());

    let narrow = stage.command(&["status", "-o", "wide"]).env("COLUMNS", "60").output().unwrap();
    let narrow = String::from_utf8(narrow.stdout).unwrap();
    let long: Vec<&str> = narrow.lines().filter(|line| line.chars().count() > 60).collect();
    assert_eq!(long, Vec::<&str>::new(), "{narrow}");
    let always = stage.works(&["status", "--color", "always"]);
    assert!(always.out.contains("\x1b["), "{}", always.all());
}

async fn editing(stage: &Stage) {
    let text = objects(stage, |all| all[2]["spec"]["upgrades"] = json!({"policy": "Manual"}));
    stage.workdir.write("vdo.yaml", text).unwrap();
    let configs = Api::<VDOConfig>::namespaced(stage.plane.client(), NAMESPACE);
    let before = configs.get("vdo").await.unwrap();
    let question = "Write this to the cluster?";
    releases::interrupted_at(stage, &["configure", "-f", "vdo.yaml"], question).await;
    assert_eq!(configs.get("vdo").await.unwrap().spec, before.spec);
    let output = stage.works(&["configure", "-f", "vdo.yaml"]);
    assert!(output.out.contains("changed VDOConfig"), "{}", output.all());
    assert!(output.out.contains("+   upgrades:"), "what is new is shown: {}", output.all());
    assert!(output.out.contains("same Secret"), "{}", output.all());
    let config = configs.get("vdo").await.unwrap();
    assert_eq!(config.spec.upgrade_policy(), api::vdo_config::UpgradePolicy::Manual);

    // A closed pipe does not stop a change.
    let manual = std::fs::read_to_string(stage.workdir.path().join("vdo.yaml")).unwrap();
    stage.workdir.write("unread.yaml", manual.replace("Manual", "Stable")).unwrap();
    for (file, policy) in [
        ("unread.yaml", api::vdo_config::UpgradePolicy::Stable),
        ("vdo.yaml", api::vdo_config::UpgradePolicy::Manual),
        ("unread.yaml", api::vdo_config::UpgradePolicy::Stable),
    ] {
        let output = stage.vdoctl_unread(&["configure", "-f", file]);
        assert_eq!(output.code, 0, "{}", output.all());
        let config = configs.get("vdo").await.unwrap();
        assert_eq!(config.spec.upgrade_policy(), policy, "{}", output.all());
    }
    // The screens below show a cluster with the default policy.
    stage.workdir.write("vdo.yaml", manual.replace("Manual", "Stable")).unwrap();

    // Flags produce the same objects: a known vCenter keeps its names.
    let address = stage.vcenter.address().to_string();
    let thumbprint = stage.vcenter.thumbprint_sha1();
    let output = stage.vdoctl_reading(
        &[
            "configure",
            "--vcenter",
            &address,
            "--user",
            "vdo@vsphere.local",
            "--password-file",
            "-",
            "--thumbprint",
            &thumbprint,
            "--storage-only",
            "-o",
            "yaml",
        ],
        &format!("{PASSWORD}\n"),
    );
    assert_eq!(output.code, 0, "{}", output.all());
    assert!(output.out.contains("credentials: vc\n"), "{}", output.all());
    assert!(!output.all().contains(PASSWORD), "{}", output.all());
}

fn looking(stage: &Stage) {
    let output = stage.works(&["plan"]);
    assert!(output.out.contains("Storage         keep 3."), "{}", output.all());
    let output = stage.works(&["plan", "-o", "json"]);
    let plan: Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!(plan["drivers"][0]["driver"], "csi");
    let output = stage.works(&["versions"]);
    assert!(output.out.contains("Storage controller"), "{}", output.all());
    assert!(output.out.contains("vmware-system-csi/vsphere-csi-node"), "{}", output.all());
    let output = stage.works(&["images"]);
    assert!(output.out.contains("csi-vsphere"), "{}", output.all());
    let output = stage.works(&["upgrade"]);
    assert!(output.out.contains("nothing to upgrade"), "{}", output.all());
    let output = stage.works(&["adopt"]);
    assert!(output.out.contains("nothing to adopt"), "{}", output.all());
    as_a_plugin(stage);
}

/// kubectl finds the plugin, and passes arguments, kubeconfig and exit code.
fn as_a_plugin(stage: &Stage) {
    let plugin = Path::new(env!("CARGO_BIN_EXE_kubectl-vdo"));
    let kubectl = |words: &[&str]| {
        let mut command = Command::new(testkit::peer("kubectl"));
        command.arg("vdo").args(words).env("KUBECONFIG", stage.kubeconfig());
        command.env("PATH", plugin.parent().unwrap()).env("COLUMNS", "100");
        CommandOutput::from(command.stdin(Stdio::null()).output().unwrap())
    };
    for words in [&["version"][..], &["version", "--client"], &["explain", "1203"]] {
        let (through, own) = (kubectl(words), stage.works(words));
        // As a plugin it shows the commands of the plugin.
        let own = own.out.replace("vdoctl fix ", "kubectl vdo fix ");
        assert_eq!((through.code, &through.out), (0, &own), "{words:?}: {}", through.all());
    }
    assert!(kubectl(&["version"]).out.contains("operator"), "it asked the cluster");
    let output = kubectl(&["explain", "9999"]);
    assert_eq!(output.code, 2, "{}", output.all());
}

async fn removing(stage: &Stage) {
    stage.attach_a_volume().await;
    transcripts::on_cluster(stage, "blocked");
    stage.detach_the_volume().await;

    let output = stage.vdoctl(&["remove", "csi"]);
    assert_eq!(output.code, 2, "without a terminal, --yes is required: {}", output.all());
    releases::interrupted_at(stage, &["remove", "csi"], "Remove Storage?").await;
    let deployments = Api::<Deployment>::namespaced(stage.plane.client(), "vmware-system-csi");
    assert!(deployments.get_opt("vsphere-csi-controller").await.unwrap().is_some());
    let output = stage.vdoctl_unread(&["remove", "csi", "--yes", "--timeout", "360"]);
    assert_eq!(output.code, 0, "{}", output.all());
    eventually("the storage driver is gone", 60, async || {
        let found = deployments.get_opt("vsphere-csi-controller").await.unwrap();
        if found.is_none() { Ok(()) } else { Err("it is there") }
    })
    .await;

    // The syntax of earlier versions.
    releases::interrupted_at(stage, &["delete", "vdo"], "Remove the operator?").await;
    let operators = Api::<Deployment>::namespaced(stage.plane.client(), NAMESPACE);
    assert!(operators.get_opt("vdo").await.unwrap().is_some());
    transcripts::on_cluster(stage, "removing");
    eventually("the operator is gone", 60, async || {
        if operators.get_opt("vdo").await.unwrap().is_none() { Ok(()) } else { Err("it is there") }
    })
    .await;
    assert!(!stage.can_adopt_in("default").await);
    let output = stage.vdoctl(&["status"]);
    assert!(output.out.contains("The operator is not installed"), "{}", output.all());
    assert!(output.out.starts_with("○ Unknown"), "{}", output.all());
    assert_eq!(output.code, 5, "{}", output.all());
    // Without an operator, waiting is useless.
    let output = stage.vdoctl(&["status", "--wait", "--timeout", "100000"]);
    assert_eq!(output.code, 5, "{}", output.all());
    assert!(
        output.err.contains("the operator is not installed; vdoctl deploy"),
        "{}",
        output.all()
    );
}

/// Without a running operator, the health is unknown.
async fn without_an_operator(stage: &Stage) {
    let operators = Api::<Deployment>::namespaced(stage.plane.client(), NAMESPACE);
    let scale = async |replicas: i32| {
        let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        operators.patch("vdo", &PatchParams::default(), &patch).await.unwrap();
    };
    let before = operators.get("vdo").await.unwrap().spec.unwrap().replicas.unwrap_or(1);
    scale(0).await;
    let output = eventually("nobody runs", 60, async || {
        let output = stage.vdoctl_alongside(&["status"]).await;
        if output.out.contains("does not run") { Ok(output) } else { Err(output.all()) }
    })
    .await;
    assert!(output.out.starts_with("○ Unknown"), "{}", output.all());
    assert_eq!(output.code, 4, "{}", output.all());
    scale(before).await;
    let output = stage.vdoctl_alongside(&["status", "--wait", "--timeout", "300"]).await;
    assert_eq!(output.code, 0, "{}", output.all());
}

fn without_permissions_and_without_a_cluster(stage: &Stage) {
    let nobody = stage.plane.kubeconfig_as(&User::named("nobody"));
    let nobody = nobody.display().to_string();
    let output = stage.vdoctl(&["status", "--kubeconfig", &nobody]);
    assert_eq!(output.code, 1, "{}", output.all());
    assert!(output.err.contains("forbidden"), "{}", output.all());
    assert!(output.err.contains("ask for the permission"), "{}", output.all());
    let flags = ["support-bundle", "--output", "nothing.tar.gz", "--kubeconfig", &nobody];
    let output = stage.vdoctl(&flags);
    assert_eq!(output.code, 1, "{}", output.all());
    assert!(output.err.contains("vdoctl cannot read anything in this cluster"), "{}", output.all());
    assert!(output.err.contains("forbidden") && !output.err.contains('✔'), "{}", output.all());
    assert!(!stage.workdir.path().join("nothing.tar.gz").exists());
    let output = stage.vdoctl(&["status", "--context", "no-such-context"]);
    assert_eq!(output.code, 1, "{}", output.all());

    stage.plane.kill_api_server();
    for command in [&["status"][..], &["deploy"], &["configure", "-f", "vdo.yaml"], &["plan"]] {
        let output = stage.vdoctl(command);
        assert_eq!(output.code, 1, "{command:?}: {}", output.all());
        assert!(output.err.contains("kubectl cluster-info"), "{command:?}: {}", output.all());
    }
}
