//! Commands that fail between writes: rejected, disconnected or interrupted. vdoctl writes all objects or none, and
//! tells the user what to do.

use std::{process::Stdio, time::Duration};

use api::{VDOConfig, VsphereCloudConfig};
use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    core::v1::{Namespace, Secret},
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::{Value, json};
use testkit::{User, eventually};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    time,
};

use crate::{
    cluster::objects,
    gate::{Closing, Gate, Loss},
    stage::{CommandOutput, NAMESPACE, PASSWORD, Stage},
};

/// Longer than any timeout.
const FOR_EVER: usize = usize::MAX;

/// Three objects with this name.
fn written_for(stage: &Stage, name: &str) -> String {
    let text = objects(stage, |all| {
        for object in all.as_array_mut().into_iter().flatten() {
            object["metadata"]["name"] = name.into();
        }
        all[1]["spec"]["credentials"] = name.into();
        all[2]["spec"]["storageProvider"]["vsphereCloudConfig"] = name.into();
    });
    let file = format!("{name}.yaml");
    stage.workdir.write(&file, text).unwrap();
    file
}

/// Which of the three objects exist.
async fn there(stage: &Stage, name: &str) -> Vec<&'static str> {
    let client = stage.plane.client();
    let secrets = Api::<Secret>::namespaced(client.clone(), NAMESPACE);
    let vcenters = Api::<VsphereCloudConfig>::namespaced(client.clone(), NAMESPACE);
    let configs = Api::<VDOConfig>::namespaced(client, NAMESPACE);
    let found = [
        ("Secret", secrets.get_opt(name).await.unwrap().is_some()),
        ("VsphereCloudConfig", vcenters.get_opt(name).await.unwrap().is_some()),
        ("VDOConfig", configs.get_opt(name).await.unwrap().is_some()),
    ];
    found.into_iter().filter(|(_, is)| *is).map(|(kind, _)| kind).collect()
}

async fn delete_objects(stage: &Stage, name: &str) {
    let (client, now) = (stage.plane.client(), DeleteParams::default());
    let secrets = Api::<Secret>::namespaced(client.clone(), NAMESPACE);
    secrets.delete(name, &now).await.unwrap();
    let vcenters = Api::<VsphereCloudConfig>::namespaced(client.clone(), NAMESPACE);
    vcenters.delete(name, &now).await.unwrap();
    Api::<VDOConfig>::namespaced(client, NAMESPACE).delete(name, &now).await.unwrap();
}

/// The output without line breaks.
fn flat(output: &CommandOutput) -> String {
    let marks = |word: &&str| !["│", "├─▶", "╰─▶"].contains(word);
    output.err.split_whitespace().filter(marks).collect::<Vec<_>>().join(" ")
}

/// The API server becomes unreachable at each write in turn.
pub(crate) async fn the_api_server_is_unreachable(stage: &Stage) {
    tokio::join!(returns_in_time(stage), stays_unreachable(stage));
}

/// The API server returns in time: vdoctl rolls everything back.
async fn returns_in_time(stage: &Stage) {
    let file = written_for(stage, "soon");
    for (at, kind) in [(1, "Secret"), (2, "VsphereCloudConfig"), (3, "VDOConfig")] {
        for loss in [Loss::OfRequest, Loss::OfAnswer] {
            let gate = Gate::before(stage, "soon", Closing { at, loss, refused: 2 }).await;
            let kubeconfig = gate.kubeconfig();
            let line = ["configure", "-f", file.as_str(), "--kubeconfig", &kubeconfig];
            let output = stage.vdoctl_alongside(&line).await;
            let text = flat(&output);
            assert_eq!(output.code, 1, "{kind} {loss:?}: {}", output.all());
            let sentence = format!("writing {kind} ");
            assert!(text.contains(&sentence), "{kind} {loss:?}: {}", output.all());
            assert!(text.contains("/soon failed; nothing was changed"), "{}", output.all());
            assert!(text.contains("help: check that the cluster is up"), "{}", output.all());
            assert!(!output.all().contains(PASSWORD), "{}", output.all());
            assert_eq!(there(stage, "soon").await, Vec::<&str>::new(), "{kind} {loss:?}");
        }
    }
}

/// The API server stays unreachable: vdoctl names the objects that it could not roll back, and the same command
/// completes later.
async fn stays_unreachable(stage: &Stage) {
    let file = written_for(stage, "late");
    let closing = Closing { at: 2, loss: Loss::OfRequest, refused: FOR_EVER };
    let gate = Gate::before(stage, "late", closing).await;
    let kubeconfig = gate.kubeconfig();
    let output =
        stage.vdoctl_alongside(&["configure", "-f", &file, "--kubeconfig", &kubeconfig]).await;
    let text = flat(&output);
    assert_eq!(output.code, 1, "{}", output.all());
    assert!(text.contains("writing VsphereCloudConfig "), "{}", output.all());
    assert!(
        text.contains("Secret vmware-system-vdo/late could not be rolled back"),
        "{}",
        output.all()
    );
    assert!(
        text.contains("help: run the command again when the cluster responds"),
        "{}",
        output.all()
    );
    assert_eq!(there(stage, "late").await, ["Secret"], "the report is right");

    let output = stage.vdoctl_alongside(&["configure", "-f", &file]).await;
    assert_eq!(output.code, 0, "{}", output.all());
    assert_eq!(there(stage, "late").await, ["Secret", "VsphereCloudConfig", "VDOConfig"]);
    delete_objects(stage, "late").await;
}

/// Ctrl-C at each write in turn: vdoctl writes all three objects and then stops.
pub(crate) async fn interrupted_at_each_write(stage: &Stage) {
    let file = written_for(stage, "cut");
    for (at, then, code) in [(1, None, 0), (2, None, 0), (3, None, 0), (3, Some("--wait"), 130)] {
        let closing = Closing { at, loss: Loss::Nothing, refused: 0 };
        let gate = Gate::before(stage, "cut", closing).await;
        let kubeconfig = gate.kubeconfig();
        let line = ["configure", "-f", file.as_str(), "--kubeconfig", &kubeconfig];
        let line: Vec<&str> = line.into_iter().chain(then).collect();
        let output = time::timeout(Duration::from_mins(4), interrupt(stage, &line, &gate)).await;
        let output = output.unwrap_or_else(|_| panic!("{line:?} does not end"));
        assert_eq!(output.code, code, "{at} {then:?}: {}", output.all());
        assert!(flat(&output).contains("Configured."), "{at} {then:?}: {}", output.all());
        assert_eq!(output.err.ends_with("interrupted\n"), code == 130, "{}", output.all());
        assert_eq!(there(stage, "cut").await, ["Secret", "VsphereCloudConfig", "VDOConfig"]);
        delete_objects(stage, "cut").await;
    }
}

/// A user lacks the permission to create one kind of object: `deploy` changes nothing.
pub(crate) async fn deploying_without_a_permission(stage: &Stage) {
    let free = [
        "clusterrolebindings",
        "clusterroles",
        "customresourcedefinitions",
        "namespaces",
        "poddisruptionbudgets",
        "rolebindings",
        "roles",
        "serviceaccounts",
    ];
    let rules = json!([
        {"apiGroups": ["*"], "resources": free, "verbs": ["*"]},
        {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get", "list", "patch"]},
    ]);
    let kubeconfig = user(stage, "deployer", rules).await;
    let output = eventually("the binding holds", 30, async || {
        let output = stage.vdoctl_alongside(&["deploy", "--kubeconfig", &kubeconfig]).await;
        if flat(&output).contains("\"deployments\"") { Ok(output) } else { Err(output.all()) }
    })
    .await;
    assert_eq!(output.code, 1, "{}", output.all());
    let text = flat(&output);
    assert!(text.contains("vmware-system-vdo/vdo is not allowed; nothing was changed"), "{text}");
    assert!(text.contains("cannot create resource \"deployments\""), "{text}");
    assert!(
        text.contains("help: the installation needs the permissions of a cluster-admin"),
        "{text}"
    );
    let client = stage.plane.client();
    assert!(Api::<Namespace>::all(client.clone()).get_opt(NAMESPACE).await.unwrap().is_none());
    let definitions = Api::<CustomResourceDefinition>::all(client);
    let definitions = definitions.list(&ListParams::default()).await.unwrap();
    assert!(definitions.items.is_empty(), "{:?}", definitions.items);
}

/// The API server becomes unreachable during `deploy`. vdoctl reports it, and the same command completes later.
pub(crate) async fn disconnected_while_deploying(stage: &Stage) {
    stage.works(&["remove", "vdo", "--yes"]);
    for (at, loss) in [(4, Loss::OfRequest), (9, Loss::OfAnswer)] {
        let gate = Gate::before(stage, "left", Closing { at, loss, refused: FOR_EVER }).await;
        let kubeconfig = gate.kubeconfig();
        let output = stage.vdoctl_alongside(&["deploy", "--kubeconfig", &kubeconfig]).await;
        let text = flat(&output);
        assert_eq!((output.code, output.out.as_str()), (1, ""), "{loss:?}: {}", output.all());
        assert!(text.contains("✖ applying ") && text.contains(" failed"), "{}", output.all());
        assert!(text.contains("the objects that were applied stay"), "{}", output.all());
        assert!(text.contains("run the command again"), "{}", output.all());
        assert!(!output.err.contains('✔'), "{}", output.all());
        let rest = stage.works(&["deploy", "--dry-run"]).out;
        assert!(rest.contains("unchanged ") && rest.contains("created "), "{loss:?}: {rest}");
    }
    let output = stage.vdoctl_alongside(&["deploy"]).await;
    assert_eq!(output.code, 0, "{}", output.all());
    assert!(output.err.contains("✔ Start the operator"), "{}", output.all());
    let output = stage.works(&["deploy", "--dry-run"]);
    let writes = |change: &str| output.out.contains(&format!("  {change}  "));
    assert!(!writes("created") && !writes("changed"), "{}", output.all());
}

/// Ctrl-C during `deploy`: vdoctl applies all objects and then stops.
pub(crate) async fn interrupted_while_deploying(stage: &Stage) {
    let gate =
        Gate::before(stage, "deploy", Closing { at: 2, loss: Loss::Nothing, refused: 0 }).await;
    let kubeconfig = gate.kubeconfig();
    let output = interrupt(stage, &["deploy", "--kubeconfig", &kubeconfig], &gate).await;
    assert_eq!(output.code, 130, "{}", output.all());
    assert!(output.err.ends_with("interrupted\n"), "{}", output.all());
    let output = stage.works(&["deploy", "--dry-run"]);
    assert!(output.out.contains("  unchanged  "), "{}", output.all());
    let writes = |change: &str| output.out.contains(&format!("  {change}  "));
    assert!(!writes("created") && !writes("changed"), "{}", output.all());
}

/// The output of a command that is interrupted while a write waits at the gate.
pub(crate) async fn interrupt(stage: &Stage, line: &[&str], gate: &Gate) -> CommandOutput {
    let mut child = tokio::process::Command::from(stage.command(line))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    gate.write_arrives().await;
    let pid = child.id().and_then(|pid| rustix::process::Pid::from_raw(pid.try_into().ok()?));
    rustix::process::kill_process(pid.unwrap(), rustix::process::Signal::INT).unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut err = String::new();
    while let Some(line) = lines.next_line().await.unwrap() {
        // vdoctl received the signal and continues.
        if line == "Interrupted: vdoctl finishes the current change first." {
            gate.let_through();
        }
        err.extend([line.as_str(), "\n"]);
    }
    let code = child.wait().await.unwrap().code().unwrap_or(-1);
    CommandOutput { code, out: String::new(), err }
}

/// The kubeconfig of a user with these permissions.
async fn user(stage: &Stage, name: &str, rules: Value) -> String {
    let client = stage.plane.client();
    let role = json!({"metadata": {"name": name}, "rules": rules});
    let role: ClusterRole = serde_json::from_value(role).unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &role).await.unwrap();
    let group = "rbac.authorization.k8s.io";
    let binding = json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": group, "kind": "User", "name": name}],
    });
    let binding: ClusterRoleBinding = serde_json::from_value(binding).unwrap();
    Api::all(client).create(&PostParams::default(), &binding).await.unwrap();
    stage.plane.kubeconfig_as(&User::named(name)).display().to_string()
}

/// A user who can write only two of the three objects writes none.
pub(crate) async fn a_permission_is_missing(stage: &Stage) {
    let all = ["get", "list", "watch", "create", "patch", "update", "delete"];
    let rules = json!([
        {"apiGroups": [""], "resources": ["secrets"], "verbs": all},
        {"apiGroups": [api::GROUP], "resources": ["vspherecloudconfigs"], "verbs": all},
        {"apiGroups": [api::GROUP], "resources": ["vdoconfigs"], "verbs": ["get", "list"]},
    ]);
    let kubeconfig = user(stage, "almost", rules).await;

    let file = written_for(stage, "refused");
    let line = ["configure", "-f", file.as_str(), "--kubeconfig", &kubeconfig];
    let output = eventually("the binding holds", 30, async || {
        let output = stage.vdoctl_alongside(&line).await;
        if flat(&output).contains("cannot list") { Err(output.all()) } else { Ok(output) }
    })
    .await;
    assert_eq!(output.code, 1, "{}", output.all());
    let text = flat(&output);
    assert!(text.contains("cannot patch resource \"vdoconfigs\""), "{}", output.all());
    assert!(text.contains("help: ask for the permission in the message"), "{}", output.all());
    assert_eq!(there(stage, "refused").await, Vec::<&str>::new());
}

/// An admission policy rejects the last object: in the dry run, or only in the real write.
pub(crate) async fn an_admission_policy_rejects(stage: &Stage) {
    let file = written_for(stage, "refused");
    for (rule, meant) in [("false", false), ("request.dryRun", true)] {
        let policy = Policy::hold(stage, rule).await;
        let output = stage.vdoctl_alongside(&["configure", "-f", &file]).await;
        assert_eq!(output.code, 1, "{rule}: {}", output.all());
        let text = flat(&output);
        assert!(text.contains("only the platform team writes VDOConfigs"), "{}", output.all());
        assert_eq!(text.contains("nothing was changed"), meant, "{rule}: {}", output.all());
        assert!(!output.all().contains(PASSWORD), "{}", output.all());
        assert_eq!(there(stage, "refused").await, Vec::<&str>::new(), "{rule}");
        policy.goes().await;
    }
}

/// An admission policy for VDOConfigs named `refused` or `probe`.
struct Policy(Client);

impl Policy {
    async fn hold(stage: &Stage, rule: &str) -> Self {
        let client = stage.plane.client();
        let expression = format!("!(object.metadata.name in ['refused', 'probe']) || {rule}");
        let policy = json!({
            "metadata": {"name": "vdoconfigs"},
            "spec": {
                "matchConstraints": {"resourceRules": [{
                    "apiGroups": [api::GROUP], "apiVersions": ["*"],
                    "resources": ["vdoconfigs"], "operations": ["CREATE"],
                }]},
                "validations": [{
                    "expression": expression,
                    "message": "only the platform team writes VDOConfigs",
                }],
            },
        });
        let policy: ValidatingAdmissionPolicy = serde_json::from_value(policy).unwrap();
        Api::all(client.clone()).create(&PostParams::default(), &policy).await.unwrap();
        let binding = json!({
            "metadata": {"name": "vdoconfigs"},
            "spec": {"policyName": "vdoconfigs", "validationActions": ["Deny"]},
        });
        let binding: ValidatingAdmissionPolicyBinding = serde_json::from_value(binding).unwrap();
        Api::all(client.clone()).create(&PostParams::default(), &binding).await.unwrap();
        let held = Self(client);
        eventually("the policy holds", 60, async || {
            if held.accepts().await { Err("it does not") } else { Ok(()) }
        })
        .await;
        held
    }

    /// Whether the policy accepts a VDOConfig. Deletes it again.
    async fn accepts(&self) -> bool {
        let probe: VDOConfig = serde_json::from_value(json!({
            "apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VDOConfig",
            "metadata": {"name": "probe"},
            "spec": {"storageProvider": {"vsphereCloudConfig": "probe"}},
        }))
        .unwrap();
        let configs = Api::<VDOConfig>::namespaced(self.0.clone(), NAMESPACE);
        let created = configs.create(&PostParams::default(), &probe).await.is_ok();
        if created {
            configs.delete("probe", &DeleteParams::default()).await.unwrap();
        }
        created
    }

    async fn goes(self) {
        let now = DeleteParams::default();
        let bindings = Api::<ValidatingAdmissionPolicyBinding>::all(self.0.clone());
        bindings.delete("vdoconfigs", &now).await.unwrap();
        let policies = Api::<ValidatingAdmissionPolicy>::all(self.0.clone());
        policies.delete("vdoconfigs", &now).await.unwrap();
        eventually("the policy is gone", 60, async || {
            if self.accepts().await { Ok(()) } else { Err("it holds") }
        })
        .await;
    }
}
