//! Leader election: of several instances only the leader writes. The instances start as the Deployment in
//! `deploy/install.yaml` starts them.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::{path::Path, time::Duration};

use api::VDOConfig;
use catalog::Driver;
use common::{NAMESPACE, Testbed};
use jiff::Timestamp;
use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    apps::v1::Deployment,
    coordination::v1::Lease,
    core::v1::{ConfigMap, Container},
};
use kube::{
    Api,
    api::{ListParams, PostParams},
};
use plan::record::Record;
use runtime::lease::{Contender, Terms};
use rustix::process::Signal;
use serde_json::json;
use testkit::{FaultProxy, Process, User, eventually};

/// The lease duration in seconds, long enough for an instance that gets little CPU.
const LEASE: &str = "30";

/// The operator's container in the manifest.
fn operator_container() -> Container {
    let text = testkit::repository().join("deploy/install.yaml");
    let text = std::fs::read_to_string(text).unwrap();
    let documents: Vec<serde_json::Value> = serde_saphyr::from_multiple(&text).unwrap();
    let mut deployments = documents.into_iter().filter(|one| one["kind"] == "Deployment");
    let deployment: Deployment = serde_json::from_value(deployments.next().unwrap()).unwrap();
    deployment.spec.unwrap().template.spec.unwrap().containers.remove(0)
}

/// Starts an instance with the arguments and the environment of the manifest. Only the addresses and the lease
/// duration differ.
fn instance(testbed: &Testbed, name: &str, kubeconfig: &Path) -> Process {
    instance_in(testbed, NAMESPACE, name, kubeconfig)
}

/// Without the Unix socket: the port then answers whether the instance leads or not.
fn instance_with_port(
    testbed: &Testbed,
    namespace: &str,
    name: &str,
    kubeconfig: &Path,
) -> Process {
    start(testbed, namespace, name, kubeconfig, false, &[])
}

fn instance_in(testbed: &Testbed, namespace: &str, name: &str, kubeconfig: &Path) -> Process {
    start(testbed, namespace, name, kubeconfig, true, &[])
}

fn start(
    testbed: &Testbed,
    namespace: &str,
    name: &str,
    kubeconfig: &Path,
    has_socket: bool,
    more: &[(&str, &str)],
) -> Process {
    let container = operator_container();
    let value = |field: &str| match field {
        "metadata.name" => name.to_owned(),
        "metadata.namespace" => namespace.to_owned(),
        other => unreachable!("unknown field {other}"),
    };
    let from_manifest = container.env.into_iter().flatten().map(|variable| {
        let from = variable.value_from.and_then(|from| from.field_ref);
        let from = from.map(|from| value(&from.field_path));
        (variable.name, variable.value.or(from).unwrap())
    });
    let from_manifest = from_manifest.filter(|(name, _)| has_socket || name != "VDO_SOCKET");
    let kubeconfig = kubeconfig.display().to_string();
    let overrides = [("KUBECONFIG", kubeconfig.as_str()), ("VDO_LEASE", LEASE)];
    let socket = testbed.workdir.path().join(format!("{name}.sock")).display().to_string();
    let socket = has_socket.then_some(("VDO_SOCKET", socket.as_str()));
    let overrides = overrides.into_iter().chain([("VDO_LISTEN", "127.0.0.1:0")]).chain(socket);
    let overrides = overrides.chain(more.iter().copied());
    let overrides = overrides.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let variables: Vec<(String, String)> = from_manifest.chain(overrides).collect();
    let variables: Vec<(&str, &str)> =
        variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let arguments = container.args.unwrap_or_default();
    Process::spawn(&testbed.program, name, arguments, &variables, &testbed.workdir).unwrap()
}

async fn until_logged(process: &Process, text: &str) {
    eventually(text, 90, async || {
        assert!(process.ended().is_none(), "{}", process.tail());
        if process.log().contains(text) { Ok(()) } else { Err(process.tail()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_frozen_in_mid_install_writes_nothing_once_another_leads() {
    let testbed = Testbed::with_nodes(1).await;
    let proxy = FaultProxy::before(testbed.plane.address()).await;
    let account = User::service_account(NAMESPACE, "vdo");
    // The same account; an extra group without permissions identifies it in the audit log.
    let user = account.clone().in_group("first");
    let first = instance(&testbed, "first", &testbed.plane.kubeconfig_via(&user, proxy.address()));
    until_logged(&first, "leading").await;
    let second = instance(&testbed, "second", &testbed.plane.kubeconfig_as(&account));
    until_logged(&second, "starting").await;

    // Its successful writes since this time. The audit log can lag, so this compares the times of requests.
    let writes_of_first = |since: Timestamp| -> Vec<String> {
        let events = testbed.plane.audit().into_iter().filter(|event| {
            let received = event["requestReceivedTimestamp"].as_str().unwrap_or_default();
            let verb = event["verb"].as_str().unwrap_or_default();
            event["impersonatedUser"]["groups"].to_string().contains("\"first\"")
                && !matches!(verb, "get" | "list" | "watch")
                && event["responseStatus"]["code"].as_u64().is_some_and(|code| code < 300)
                && received.parse::<Timestamp>().is_ok_and(|received| received >= since)
        });
        events.map(|event| event["requestURI"].as_str().unwrap_or_default().to_owned()).collect()
    };
    proxy.delay(Duration::from_millis(200));
    testbed.configure(json!({"storageProvider": {"vsphereCloudConfig": "vc"}})).await;
    eventually("the first instance applies the driver", 90, async || {
        let written = writes_of_first(Timestamp::MIN);
        let driver = written.iter().any(|uri| uri.contains("vmware-system-csi"));
        if driver { Ok(()) } else { Err(first.tail()) }
    })
    .await;
    proxy.black_hole();
    first.until_idle().await;
    first.signal(Signal::STOP);
    // The API server answers the requests of the stopped instance, which wakes up with the answers and
    // pending writes.
    proxy.heal();
    until_logged(&second, "leading").await;
    let nodes = Api::<k8s_openapi::api::apps::v1::DaemonSet>::namespaced(
        testbed.client(),
        "vmware-system-csi",
    );
    let nodes = nodes.list(&ListParams::default()).await.unwrap().items;
    assert!(nodes.is_empty(), "it must be frozen in the middle of the installation");
    testbed.ready(&second, 120).await;
    let leases = Api::<Lease>::namespaced(testbed.client(), NAMESPACE);
    let lease = leases.get("vdo").await.unwrap().spec.unwrap();
    assert!(lease.holder_identity.as_deref().unwrap().starts_with("second_"), "{lease:?}");
    let second_leads = lease.acquire_time.unwrap().0;
    first.signal(Signal::CONT);
    let ended = first.wait(60).await;
    assert_eq!(ended.and_then(|ended| ended.code()), Some(1), "{}", first.tail());
    assert!(first.log().contains("leadership was lost"), "{}", first.tail());
    // The audit log contains later writes, so it would contain its writes too.
    let change = json!({"spec": {"storageProvider": {"clusterDistribution": "after-all"}}});
    testbed.change(change).await;
    let since = Timestamp::now();
    eventually("the second instance applies the change", 60, async || {
        let written = testbed.writes_since(since);
        if written.iter().any(|write| write.contains("secrets")) {
            Ok(())
        } else {
            Err(second.tail())
        }
    })
    .await;
    assert_eq!(writes_of_first(second_leads), Vec::<String>::new());
    assert_eq!(testbed.denied_requests(), Vec::<String>::new());
    an_old_record_does_not_overwrite_a_newer_one(&testbed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_api_server_freezes_does_not_claim_that_another_instance_leads() {
    let testbed = Testbed::with_nodes(1).await;
    let proxy = FaultProxy::before(testbed.plane.address()).await;
    let account = User::service_account(NAMESPACE, "vdo");
    let only = instance(&testbed, "only", &testbed.plane.kubeconfig_via(&account, proxy.address()));
    testbed.configure(json!({"storageProvider": {"vsphereCloudConfig": "vc"}})).await;
    testbed.ready(&only, 120).await;
    proxy.black_hole();
    let ended = only.wait(120).await;
    assert_eq!(ended.and_then(|ended| ended.code()), Some(1), "{}", only.tail());
    let log = only.log();
    assert!(log.contains("the lease could not be renewed in time"), "{}", only.tail());
    assert!(log.contains("the log above names the reason"), "{}", only.tail());
    assert!(!log.contains("another instance leads"), "{}", only.tail());
}

/// An admission policy that refuses every status that the group "first" writes.
async fn refuse_status_of_first(testbed: &Testbed) {
    let group = "admissionregistration.k8s.io/v1";
    let policy = json!({
        "apiVersion": group, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "no-status"},
        "spec": {
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [api::GROUP], "apiVersions": ["*"], "operations": ["UPDATE"],
                "resources": ["vdoconfigs/status", "vspherecloudconfigs/status"],
            }]},
            "validations": [{"expression": "!('first' in request.userInfo.groups)"}],
        },
    });
    let binding = json!({
        "apiVersion": group, "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "no-status"},
        "spec": {"policyName": "no-status", "validationActions": ["Deny"]},
    });
    let policy: ValidatingAdmissionPolicy = serde_json::from_value(policy).unwrap();
    let policies = Api::<ValidatingAdmissionPolicy>::all(testbed.client());
    policies.create(&PostParams::default(), &policy).await.unwrap();
    let binding: ValidatingAdmissionPolicyBinding = serde_json::from_value(binding).unwrap();
    let bindings = Api::<ValidatingAdmissionPolicyBinding>::all(testbed.client());
    bindings.create(&PostParams::default(), &binding).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_rounds_keep_failing_lets_another_instance_lead() {
    let testbed = Testbed::with_nodes(1).await;
    let account = User::service_account(NAMESPACE, "vdo");
    let user = account.clone().in_group("first");
    let kubeconfig = testbed.plane.kubeconfig_as(&user);
    let soon = [("VDO_FAILING_AFTER", "5")];
    let first = start(&testbed, NAMESPACE, "first", &kubeconfig, true, &soon);
    until_logged(&first, "leading").await;
    let second = instance(&testbed, "second", &testbed.plane.kubeconfig_as(&account));
    until_logged(&second, "starting").await;
    refuse_status_of_first(&testbed).await;
    testbed.configure(json!({"storageProvider": {"vsphereCloudConfig": "vc"}})).await;
    until_logged(&second, "leading").await;
    eventually("the first instance ends", 30, async || {
        first.ended().map(drop).ok_or_else(|| first.tail())
    })
    .await;
    assert!(first.log().contains("every round failed"), "{}", first.tail());
    eventually("the second instance reports", 90, async || {
        let status = testbed.config().await.status.unwrap_or_default();
        if status.conditions.is_empty() { Err(second.tail()) } else { Ok(()) }
    })
    .await;
}

/// Longer than any test waits.
const LONG: &[(&str, &str)] = &[("VDO_LEASE", "3600")];

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_container_crashes_leads_again_at_once() {
    let testbed = Testbed::with_nodes(1).await;
    let kubeconfig = testbed.plane.kubeconfig_as(&User::service_account(NAMESPACE, "vdo"));
    let pod = |name| start(&testbed, NAMESPACE, name, &kubeconfig, true, LONG);
    let first = pod("first");
    until_logged(&first, "leading").await;
    let second = pod("second");
    until_logged(&second, "starting").await;
    // It leads before it leaves its identity. After a crash in between, the pods wait until the lease expires.
    let file = testbed.workdir.path().join("first.leader");
    eventually("the leader leaves its identity", 60, async || {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        if text.is_empty() { Err("not yet") } else { Ok(()) }
    })
    .await;
    first.kill();
    let restarted = pod("first");
    testbed.configure(json!({"storageProvider": {"vsphereCloudConfig": "vc"}})).await;
    testbed.ready(&restarted, 120).await;
    assert!(!second.log().contains("leading"), "{}", second.tail());

    let third = pod("first");
    let ended = third.wait(60).await;
    assert_eq!(ended.and_then(|ended| ended.code()), Some(1), "{}", third.tail());
    assert!(third.log().contains("another vdo runs in this pod"), "{}", third.tail());
    testbed.two_more_rounds(&restarted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_hangs_and_is_restarted_lets_another_instance_lead() {
    let testbed = Testbed::with_nodes(1).await;
    let account = User::service_account(NAMESPACE, "vdo");
    let proxy = FaultProxy::before(testbed.plane.address()).await;
    let through = testbed.plane.kubeconfig_via(&account, proxy.address());
    let first = instance(&testbed, "first", &through);
    until_logged(&first, "leading").await;
    testbed.configure(json!({"storageProvider": {"vsphereCloudConfig": "vc"}})).await;
    testbed.ready(&first, 120).await;
    let direct = testbed.plane.kubeconfig_as(&account);
    let second = instance(&testbed, "second", &direct);
    until_logged(&second, "starting").await;
    // As the kubelet does when /livez fails.
    proxy.black_hole();
    first.signal(Signal::TERM);
    first.wait(60).await;
    // The log of a pod contains the lines of all its processes.
    let led = |process: &Process| process.log().matches("\"leading\"").count();
    let before = led(&first);
    let restarted = instance(&testbed, "first", &direct);
    until_logged(&second, "leading").await;
    assert!(before > 0);
    assert_eq!(led(&restarted), before, "{}", restarted.tail());
}

/// Gives the account `vdo` of another namespace the operator's permissions.
async fn install_in(testbed: &Testbed, namespace: &str) {
    let own = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    let mut objects = vec![own];
    for object in operator::install::objects() {
        let mut copy = object.0.clone();
        let in_own_namespace = copy["metadata"]["namespace"] == NAMESPACE;
        match object.kind() {
            "Role" if in_own_namespace => {}
            "RoleBinding" | "ClusterRoleBinding" => {
                copy["subjects"][0]["namespace"] = namespace.into();
                if !in_own_namespace {
                    let name = format!("{}-of-another-installation", object.name());
                    copy["metadata"]["name"] = name.into();
                }
            }
            _ => continue,
        }
        if in_own_namespace {
            copy["metadata"]["namespace"] = namespace.into();
        }
        objects.push(copy);
    }
    testbed.create("test", objects).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_installations_one_writes_until_an_admin_hands_over() {
    const OTHER: &str = "another-vdo";
    let testbed = Testbed::with_nodes(1).await;
    let account = User::service_account(NAMESPACE, "vdo");
    let first = instance(&testbed, "first", &testbed.plane.kubeconfig_as(&account));
    testbed.configure(json!({"storageProvider": {"vsphereCloudConfig": "vc"}})).await;
    testbed.ready(&first, 120).await;

    install_in(&testbed, OTHER).await;
    let observing: VDOConfig = serde_json::from_value(json!({
        "metadata": {"name": "theirs"},
        "spec": {"storageProvider": {"vsphereCloudConfig": "vc", "mode": "Observe"}},
    }))
    .unwrap();
    let configs = Api::<VDOConfig>::namespaced(testbed.client(), OTHER);
    configs.create(&PostParams::default(), &observing).await.unwrap();
    let theirs = testbed.plane.kubeconfig_as(&User::service_account(OTHER, "vdo"));
    let second = instance_with_port(&testbed, OTHER, "second", &theirs);
    until_logged(&second, "VDO-1011").await;
    let (code, text) = testbed.http_get(&second, "/readyz?verbose").await;
    assert_ne!(code, 200, "{text}");
    assert!(text.contains("VDO-1011") && text.contains(NAMESPACE), "{text}");
    let shown = testbed.metrics(&second).await;
    assert!(shown.contains("vdo_findings{code=\"VDO-1011\""), "{shown}");
    // The first instance keeps working, the second changes nothing.
    testbed.two_more_rounds(&first).await;
    assert_eq!(testbed.changes_of(OTHER, "vdo"), Vec::<String>::new());

    let log = second.log();
    let (_, command) = log.split_once("To hand over to this one: ").unwrap();
    testbed.run(command.split('"').next().unwrap()).await;
    let ended = first.wait(90).await;
    assert_eq!(ended.and_then(|ended| ended.code()), Some(1), "{}", first.tail());
    until_logged(&second, "this VDOConfig is followed").await;
    let leases = Api::<Lease>::namespaced(testbed.client(), "kube-system");
    let lease = leases.get("vdo-leader").await.unwrap();
    assert_eq!(runtime::lease::owner(&lease), Some(OTHER));
    let since = lease.spec.unwrap().acquire_time.unwrap().0;
    assert_eq!(
        testbed.writes_since(since),
        Vec::<String>::new(),
        "the first instance no longer leads"
    );
    assert_eq!(testbed.denied_requests(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_waits_while_an_earlier_release_leads() {
    let testbed = Testbed::with_nodes(1).await;
    // Earlier releases use only this Lease.
    let terms = Terms {
        lease_duration: Duration::from_mins(5),
        renew_deadline: Duration::from_mins(4),
        retry_period: Duration::from_secs(1),
    };
    let earlier = Contender::new(testbed.client(), NAMESPACE, "vdo", "earlier", terms).unwrap();
    let earlier = earlier.lead().await;
    let account = User::service_account(NAMESPACE, "vdo");
    let operator = instance(&testbed, "new", &testbed.plane.kubeconfig_as(&account));
    testbed.configure(json!({"storageProvider": {"vsphereCloudConfig": "vc"}})).await;
    eventually("the operator watches the lease", 90, async || {
        let watches = |event: &serde_json::Value| {
            event["verb"] == "watch"
                && event["requestURI"].as_str().is_some_and(|uri| uri.contains("/leases"))
                && event["impersonatedUser"]["username"].to_string().contains(":vdo")
        };
        let watching = testbed.plane.audit().iter().any(watches);
        if watching { Ok(()) } else { Err(operator.tail()) }
    })
    .await;
    assert_eq!(testbed.changes_of(NAMESPACE, "vdo"), Vec::<String>::new());
    assert!(!operator.log().contains("leading"), "{}", operator.tail());
    earlier.release().await;
    testbed.ready(&operator, 120).await;
}

/// The API server rejects writes of an operator that decided on an old record.
async fn an_old_record_does_not_overwrite_a_newer_one(testbed: &Testbed) {
    let maps = Api::<ConfigMap>::namespaced(testbed.client(), NAMESPACE);
    let now = maps.get("vdo-record-csi").await.unwrap();
    let old = Record { cluster_id: Some("another".into()), ..Record::default() };
    for version in [None, Some("1")] {
        let client = testbed.client();
        let written =
            operator::act::write_record(&client, NAMESPACE, Driver::Csi, &old, version).await;
        assert!(written.is_err(), "{version:?}");
        assert_eq!(maps.get("vdo-record-csi").await.unwrap().data, now.data);
    }
}
