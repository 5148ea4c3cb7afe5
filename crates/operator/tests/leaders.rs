//! Who leads, and who no longer does: of several instances one writes, whatever becomes of the others.
//! They are started as the Deployment in `deploy/install.yaml` starts them.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::{path::Path, time::Duration};

use api::VDOConfig;
use catalog::Driver;
use common::{NAMESPACE, Stage};
use jiff::Timestamp;
use k8s_openapi::api::{
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

/// How long one that vanished is taken to lead, in seconds. As long as an instance that gets no processor
/// may need to renew.
const LEASE: &str = "30";

/// The container of the operator as its manifest has it.
fn shipped() -> Container {
    let text = testkit::repository().join("deploy/install.yaml");
    let text = std::fs::read_to_string(text).unwrap();
    let documents = text.split("\n---\n").map(|text| serde_json::from_str(text).unwrap());
    let mut deployments = documents.filter(|one: &serde_json::Value| one["kind"] == "Deployment");
    let deployment: Deployment = serde_json::from_value(deployments.next().unwrap()).unwrap();
    deployment.spec.unwrap().template.spec.unwrap().containers.remove(0)
}

/// Starts an instance with the arguments and the environment of its manifest. Two on one machine cannot
/// listen in one place, and how long a lease lasts is the test's to say; nothing else differs.
fn instance(stage: &Stage, name: &str, kubeconfig: &Path) -> Process {
    instance_in(stage, NAMESPACE, name, kubeconfig)
}

/// The same of an installation in this namespace, without the socket: its port then answers whether it
/// leads or not.
fn listening(stage: &Stage, namespace: &str, name: &str, kubeconfig: &Path) -> Process {
    started(stage, namespace, name, kubeconfig, false)
}

/// The same of an installation in this namespace.
fn instance_in(stage: &Stage, namespace: &str, name: &str, kubeconfig: &Path) -> Process {
    started(stage, namespace, name, kubeconfig, true)
}

fn started(
    stage: &Stage,
    namespace: &str,
    name: &str,
    kubeconfig: &Path,
    has_socket: bool,
) -> Process {
    let container = shipped();
    let value = |field: &str| match field {
        "metadata.name" => name.to_owned(),
        "metadata.namespace" => namespace.to_owned(),
        other => unreachable!("{other} is not known here"),
    };
    let given = container.env.into_iter().flatten().map(|variable| {
        let from = variable.value_from.and_then(|from| from.field_ref);
        let from = from.map(|from| value(&from.field_path));
        (variable.name, variable.value.or(from).unwrap())
    });
    let given = given.filter(|(name, _)| has_socket || name != "VDO_SOCKET");
    let kubeconfig = kubeconfig.display().to_string();
    let here = [("KUBECONFIG", kubeconfig.as_str()), ("VDO_LEASE", LEASE)];
    let socket = stage.workdir.path().join(format!("{name}.sock")).display().to_string();
    let socket = has_socket.then_some(("VDO_SOCKET", socket.as_str()));
    let here = here.into_iter().chain([("VDO_LISTEN", "127.0.0.1:0")]).chain(socket);
    let here = here.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let variables: Vec<(String, String)> = given.chain(here).collect();
    let variables: Vec<(&str, &str)> =
        variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let arguments = container.args.unwrap_or_default();
    Process::spawn(&stage.program, name, arguments, &variables, &stage.workdir).unwrap()
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
    let stage = Stage::of(1, false).await;
    let proxy = FaultProxy::before(stage.plane.address()).await;
    let account = User::service_account(NAMESPACE, "vdo");
    // The same account with the same rights; a group nobody grants anything tells it in the audit log.
    let user = account.clone().in_group("first");
    let first = instance(&stage, "first", &stage.plane.kubeconfig_via(&user, proxy.address()));
    until_logged(&first, "leading").await;
    let second = instance(&stage, "second", &stage.plane.kubeconfig_as(&account));
    until_logged(&second, "starting").await;

    // What it wrote since then and was taken, by the time of the request: the log may lag behind.
    let of_first = |since: Timestamp| -> Vec<String> {
        let events = stage.plane.audit().into_iter().filter(|event| {
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
    stage.configure(json!({"storageProvider": {"vsphereCloudConfig": "vc"}})).await;
    eventually("the first one applies the driver", 90, async || {
        let written = of_first(Timestamp::MIN);
        let driver = written.iter().any(|uri| uri.contains("vmware-system-csi"));
        if driver { Ok(()) } else { Err(first.tail()) }
    })
    .await;
    proxy.black_hole();
    first.until_idle().await;
    first.signal(Signal::STOP);
    // What it asked for is answered; it wakes up with the answers, and the next writes at hand.
    proxy.heal();
    until_logged(&second, "leading").await;
    let nodes = Api::<k8s_openapi::api::apps::v1::DaemonSet>::namespaced(
        stage.client(),
        "vmware-system-csi",
    );
    let nodes = nodes.list(&ListParams::default()).await.unwrap().items;
    assert!(nodes.is_empty(), "it was met in the middle of its work");
    stage.ready(&second, 120).await;
    let leases = Api::<Lease>::namespaced(stage.client(), NAMESPACE);
    let lease = leases.get("vdo").await.unwrap().spec.unwrap();
    assert!(lease.holder_identity.as_deref().unwrap().starts_with("second_"), "{lease:?}");
    let second_leads = lease.acquire_time.unwrap().0;
    first.signal(Signal::CONT);
    let ended = first.wait(60).await;
    assert_eq!(ended.and_then(|ended| ended.code()), Some(1), "{}", first.tail());
    assert!(first.log().contains("leadership was lost"), "{}", first.tail());
    // Later writes are on record: so would its own be.
    let desired = json!({"spec": {"storageProvider": {"clusterDistribution": "after-all"}}});
    stage.change(desired).await;
    let then = Timestamp::now();
    eventually("the second one goes on", 60, async || {
        let written = stage.writes_since(then);
        if written.iter().any(|write| write.contains("secrets")) {
            Ok(())
        } else {
            Err(second.tail())
        }
    })
    .await;
    assert_eq!(of_first(second_leads), Vec::<String>::new());
    assert_eq!(stage.refusals(), Vec::<String>::new());
    an_old_record_does_not_overwrite_a_newer_one(&stage).await;
}

/// Gives the account `vdo` of another namespace all that the manifest gives the operator's.
async fn install_in(stage: &Stage, namespace: &str) {
    let own = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    let mut objects = vec![own];
    for object in operator::install::objects() {
        let mut copy = object.0.clone();
        let here = copy["metadata"]["namespace"] == NAMESPACE;
        match object.kind() {
            "Role" if here => {}
            "RoleBinding" | "ClusterRoleBinding" => {
                copy["subjects"][0]["namespace"] = namespace.into();
                if !here {
                    let name = format!("{}-of-another-installation", object.name());
                    copy["metadata"]["name"] = name.into();
                }
            }
            _ => continue,
        }
        if here {
            copy["metadata"]["namespace"] = namespace.into();
        }
        objects.push(copy);
    }
    stage.create("test", objects).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_installations_one_writes_until_an_admin_hands_over() {
    const OTHER: &str = "another-vdo";
    let stage = Stage::of(1, false).await;
    let account = User::service_account(NAMESPACE, "vdo");
    let first = instance(&stage, "first", &stage.plane.kubeconfig_as(&account));
    stage.configure(json!({"storageProvider": {"vsphereCloudConfig": "vc"}})).await;
    stage.ready(&first, 120).await;

    install_in(&stage, OTHER).await;
    let paused: VDOConfig = serde_json::from_value(json!({
        "metadata": {"name": "theirs"},
        "spec": {"storageProvider": {"vsphereCloudConfig": "vc", "mode": "Observe"}},
    }))
    .unwrap();
    let configs = Api::<VDOConfig>::namespaced(stage.client(), OTHER);
    configs.create(&PostParams::default(), &paused).await.unwrap();
    let theirs = stage.plane.kubeconfig_as(&User::service_account(OTHER, "vdo"));
    let second = listening(&stage, OTHER, "second", &theirs);
    until_logged(&second, "VDO-1011").await;
    let (code, text) = stage.served(&second, "/readyz?verbose").await;
    assert_ne!(code, 200, "{text}");
    assert!(text.contains("VDO-1011") && text.contains(NAMESPACE), "{text}");
    let shown = stage.metrics(&second).await;
    assert!(shown.contains("vdo_findings{code=\"VDO-1011\""), "{shown}");
    // The first goes on, the second changes nothing.
    stage.two_more_rounds(&first).await;
    assert_eq!(stage.changes_of(OTHER, "vdo"), Vec::<String>::new());

    let log = second.log();
    let (_, command) = log.split_once("To hand over to this one: ").unwrap();
    stage.run(command.split('"').next().unwrap()).await;
    let ended = first.wait(90).await;
    assert_eq!(ended.and_then(|ended| ended.code()), Some(1), "{}", first.tail());
    until_logged(&second, "this VDOConfig is followed").await;
    let leases = Api::<Lease>::namespaced(stage.client(), "kube-system");
    let lease = leases.get("vdo-leader").await.unwrap();
    assert_eq!(runtime::lease::owner(&lease), Some(OTHER));
    let since = lease.spec.unwrap().acquire_time.unwrap().0;
    assert_eq!(stage.writes_since(since), Vec::<String>::new(), "the first led no more");
    assert_eq!(stage.refusals(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_waits_for_one_of_an_earlier_release_that_leads() {
    let stage = Stage::of(1, false).await;
    // Earlier releases know this Lease alone.
    let terms = Terms {
        lease_duration: Duration::from_mins(5),
        renew_deadline: Duration::from_mins(4),
        retry_period: Duration::from_secs(1),
    };
    let earlier = Contender::new(stage.client(), NAMESPACE, "vdo", "earlier", terms).unwrap();
    let earlier = earlier.lead().await;
    let account = User::service_account(NAMESPACE, "vdo");
    let operator = instance(&stage, "new", &stage.plane.kubeconfig_as(&account));
    stage.configure(json!({"storageProvider": {"vsphereCloudConfig": "vc"}})).await;
    eventually("it watches the lease", 90, async || {
        let watches = |event: &serde_json::Value| {
            event["verb"] == "watch"
                && event["requestURI"].as_str().is_some_and(|uri| uri.contains("/leases"))
                && event["impersonatedUser"]["username"].to_string().contains(":vdo")
        };
        let watching = stage.plane.audit().iter().any(watches);
        if watching { Ok(()) } else { Err(operator.tail()) }
    })
    .await;
    assert_eq!(stage.changes_of(NAMESPACE, "vdo"), Vec::<String>::new());
    assert!(!operator.log().contains("leading"), "{}", operator.tail());
    earlier.release().await;
    stage.ready(&operator, 120).await;
}

/// Whatever still goes out of one that decided upon an old record is refused.
async fn an_old_record_does_not_overwrite_a_newer_one(stage: &Stage) {
    let maps = Api::<ConfigMap>::namespaced(stage.client(), NAMESPACE);
    let now = maps.get("vdo-record-csi").await.unwrap();
    let old = Record { cluster_id: Some("another".into()), ..Record::default() };
    for version in [None, Some("1")] {
        let client = stage.client();
        let written =
            operator::act::write_record(&client, NAMESPACE, Driver::Csi, &old, version).await;
        assert!(written.is_err(), "{version:?}");
        assert_eq!(maps.get("vdo-record-csi").await.unwrap().data, now.data);
    }
}
