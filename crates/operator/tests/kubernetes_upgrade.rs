//! The control plane is upgraded under the operator, from one real Kubernetes to another.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use common::{NAMESPACE, Stage};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::Api;
use serde_json::json;
use testkit::{ControlPlane, FaultProxy, Process, eventually};

const CPI: &str = "vsphere-cloud-controller-manager";
const OLD: &str = "1.33";
const NEW: &str = "1.36";
/// For how many seconds every API server has to be new before that counts. The product takes ten minutes.
const SETTLED: u32 = 10;

async fn cloud_controller(stage: &Stage) -> DaemonSet {
    let sets = Api::<DaemonSet>::namespaced(stage.client(), "kube-system");
    // The API server it asks may be restarting.
    eventually("the cloud controller is there", 60, async || sets.get(CPI).await).await
}

fn image(set: &DaemonSet) -> String {
    let pod = set.spec.as_ref().unwrap().template.spec.as_ref().unwrap();
    pod.containers[0].image.clone().unwrap()
}

/// How often the operator was answered with a version that begins like this.
fn answers(operator: &Process, version: &str) -> usize {
    let log = operator.log();
    let asked = log.lines().filter(|line| line.contains("asked for the version"));
    asked.filter(|line| line.contains(&format!("\"answered\":\"v{version}."))).count()
}

/// Lets the operator look again and again until it was answered often enough by both.
async fn until_both_answered(stage: &Stage, operator: &Process, times: usize) {
    let before = (answers(operator, OLD), answers(operator, NEW));
    let mut look = 0;
    eventually("old and new API servers answer in turn", 90, async || {
        assert!(operator.ended().is_none(), "{}", operator.tail());
        look += 1;
        stage.change(json!({"metadata": {"annotations": {"test/look": look.to_string()}}})).await;
        let now = (answers(operator, OLD), answers(operator, NEW));
        let enough = now.0 >= before.0 + times && now.1 >= before.1 + times;
        if enough { Ok(()) } else { Err(format!("{before:?} to {now:?}\n{}", operator.tail())) }
    })
    .await;
}

/// The writes to the cloud controller's DaemonSet: when, and what.
fn writes_to_it(stage: &Stage) -> Vec<(Timestamp, String)> {
    let own = format!("system:serviceaccount:{NAMESPACE}:vdo");
    let events = stage.plane.audit().into_iter().filter(|event| {
        let uri = event["requestURI"].as_str().unwrap_or_default();
        event["impersonatedUser"]["username"] == own.as_str()
            && uri.contains(&format!("daemonsets/{CPI}"))
            && !["get", "list", "watch"].contains(&event["verb"].as_str().unwrap_or_default())
    });
    let mut writes: Vec<(Timestamp, String)> = events
        .map(|event| {
            let when = event["requestReceivedTimestamp"].as_str().unwrap().parse().unwrap();
            (when, event["verb"].as_str().unwrap().to_owned())
        })
        .collect();
    writes.sort();
    writes
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cloud_controller_follows_the_kubernetes_minor_after_the_last_api_server_never_before()
{
    let plane = ControlPlane::builder().kubernetes(OLD).with_controllers().with_audit();
    let mut stage = Stage::on(plane.start().await, 1, false).await;
    let balancer = FaultProxy::before(stage.plane.address()).await;
    stage.api_address = Some(balancer.address());
    let operator = stage.operator_with(&[&format!("--settled={SETTLED}")]);
    stage.configure(json!({"cloudProvider": {"vsphereCloudConfigs": ["vc"]}})).await;
    stage.ready(&operator, 90).await;
    let before = cloud_controller(&stage).await;
    assert!(image(&before).contains(&format!("v{OLD}.")), "{}", image(&before));
    assert_eq!(stage.refusals(), Vec::<String>::new());

    // One of three API servers is upgraded.
    let then = Timestamp::now();
    let first = stage.plane.api_server_beside(Some(NEW), None).await;
    let old = stage.plane.address();
    balancer.lead_to(&[old, first.address(), old]);
    until_both_answered(&stage, &operator, 6).await;
    let now = cloud_controller(&stage).await;
    assert_eq!(now.metadata.generation, before.metadata.generation, "{}", image(&now));
    let status = stage.config().await.status.unwrap();
    let believed = status.versions.unwrap().kubernetes.unwrap();
    assert!(believed.starts_with(&format!("v{OLD}.")), "{believed}");
    let writes = stage.writes_in_the_end(&operator, then).await;
    assert_eq!(writes, Vec::<String>::new(), "nothing is changed");

    // The others are, too. Nobody is answered meanwhile: an upgrade may take longer than is waited here.
    balancer.cut();
    stage.plane.upgrade_api_server(NEW).await;
    let last = Timestamp::now();
    balancer.heal();
    let asked = answers(&operator, NEW);
    stage.change(json!({"metadata": {"annotations": {"test/look": "all"}}})).await;
    stage
        .status("the cloud controller has followed", 120, |status| {
            assert!(operator.ended().is_none(), "{}", operator.tail());
            let cpi = status.cpi.clone().unwrap_or_default();
            let there = cpi.version.is_some_and(|v| v.starts_with(&format!("{NEW}.")));
            there && api::condition::is_true(&status.conditions, "Ready")
        })
        .await;
    let after = cloud_controller(&stage).await;
    assert!(image(&after).contains(&format!("v{NEW}.")), "{}", image(&after));
    assert_eq!(after.metadata.uid, before.metadata.uid, "changed, not made anew");
    assert!(answers(&operator, NEW) >= asked + 5, "it was asked for again and again");
    let writes: Vec<_> = writes_to_it(&stage).into_iter().filter(|(at, _)| *at > then).collect();
    assert!(writes.iter().all(|(at, _)| *at >= last), "{last}: {writes:?}");
    assert!(writes.iter().all(|(_, verb)| verb == "patch"), "{writes:?}");
    assert!(!writes.is_empty());
    assert_eq!(stage.forbidden_deletions(), Vec::<String>::new());
    assert_eq!(stage.refusals(), Vec::<String>::new());
}
