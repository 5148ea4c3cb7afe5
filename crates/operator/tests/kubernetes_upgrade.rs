//! Upgrades the control plane while the operator runs, between two real Kubernetes releases.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use common::{NAMESPACE, Testbed};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::Api;
use serde_json::json;
use testkit::{ControlPlane, FaultProxy, Process, eventually};

const CPI: &str = "vsphere-cloud-controller-manager";
const OLD: &str = "1.33";
const NEW: &str = "1.36";
/// How many seconds all API servers must report the new minor. The default is ten minutes.
const SETTLED: u32 = 10;

async fn cloud_controller(testbed: &Testbed) -> DaemonSet {
    let sets = Api::<DaemonSet>::namespaced(testbed.client(), "kube-system");
    // The API server can be restarting.
    eventually("the cloud controller exists", 60, async || sets.get(CPI).await).await
}

fn image(set: &DaemonSet) -> String {
    let pod = set.spec.as_ref().unwrap().template.spec.as_ref().unwrap();
    pod.containers[0].image.clone().unwrap()
}

/// How often an API server answered the operator with this minor.
fn answers(operator: &Process, version: &str) -> usize {
    let log = operator.log();
    let answers = log.lines().filter(|line| line.contains("asked for the version"));
    answers.filter(|line| line.contains(&format!("\"answered\":\"v{version}."))).count()
}

/// Triggers reconciles until old and new API servers have each answered `times` times.
async fn until_both_answered(testbed: &Testbed, operator: &Process, times: usize) {
    let before = (answers(operator, OLD), answers(operator, NEW));
    let mut attempt = 0;
    eventually("old and new API servers answer in turn", 90, async || {
        assert!(operator.ended().is_none(), "{}", operator.tail());
        attempt += 1;
        testbed
            .change(json!({"metadata": {"annotations": {"test/look": attempt.to_string()}}}))
            .await;
        let now = (answers(operator, OLD), answers(operator, NEW));
        let enough = now.0 >= before.0 + times && now.1 >= before.1 + times;
        if enough { Ok(()) } else { Err(format!("{before:?} to {now:?}\n{}", operator.tail())) }
    })
    .await;
}

/// Time and verb of each write to the cloud controller's DaemonSet.
fn cloud_controller_writes(testbed: &Testbed) -> Vec<(Timestamp, String)> {
    let own = format!("system:serviceaccount:{NAMESPACE}:vdo");
    let events = testbed.plane.audit().into_iter().filter(|event| {
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
    let mut testbed = Testbed::on_plane(plane.start().await, 1, false).await;
    let balancer = FaultProxy::before(testbed.plane.address()).await;
    testbed.api_address = Some(balancer.address());
    let operator = testbed.operator_with(&[&format!("--settled={SETTLED}")]);
    testbed.configure(json!({"cloudProvider": {"vsphereCloudConfigs": ["vc"]}})).await;
    testbed.ready(&operator, 90).await;
    let before = cloud_controller(&testbed).await;
    assert!(image(&before).contains(&format!("v{OLD}.")), "{}", image(&before));
    assert_eq!(testbed.denied_requests(), Vec::<String>::new());

    // One of three API servers is new.
    let since = Timestamp::now();
    let first = testbed.plane.another_api_server(Some(NEW), None).await;
    let old = testbed.plane.address();
    balancer.lead_to(&[old, first.address(), old]);
    until_both_answered(&testbed, &operator, 6).await;
    let now = cloud_controller(&testbed).await;
    assert_eq!(now.metadata.generation, before.metadata.generation, "{}", image(&now));
    let status = testbed.config().await.status.unwrap();
    let reported = status.versions.unwrap().kubernetes.unwrap();
    assert!(reported.starts_with(&format!("v{OLD}.")), "{reported}");
    let writes = testbed.writes_after_two_rounds(&operator, since).await;
    assert_eq!(writes, Vec::<String>::new(), "VDO must change nothing");

    // The other API servers are upgraded. The operator reaches none meanwhile, because that can take longer than SETTLED.
    balancer.cut();
    testbed.plane.upgrade_api_server(NEW).await;
    let last = Timestamp::now();
    balancer.heal();
    let answers_before = answers(&operator, NEW);
    testbed.change(json!({"metadata": {"annotations": {"test/look": "all"}}})).await;
    testbed
        .status("the cloud controller has the new minor", 120, |status| {
            assert!(operator.ended().is_none(), "{}", operator.tail());
            let cpi = status.cpi.clone().unwrap_or_default();
            let upgraded = cpi.version.is_some_and(|v| v.starts_with(&format!("{NEW}.")));
            upgraded && api::condition::is_true(&status.conditions, "Ready")
        })
        .await;
    let after = cloud_controller(&testbed).await;
    assert!(image(&after).contains(&format!("v{NEW}.")), "{}", image(&after));
    assert_eq!(after.metadata.uid, before.metadata.uid, "patched, not re-created");
    assert!(answers(&operator, NEW) >= answers_before + 5, "the operator must check repeatedly");
    let writes: Vec<_> =
        cloud_controller_writes(&testbed).into_iter().filter(|(at, _)| *at > since).collect();
    assert!(writes.iter().all(|(at, _)| *at >= last), "{last}: {writes:?}");
    assert!(writes.iter().all(|(_, verb)| verb == "patch"), "{writes:?}");
    assert!(!writes.is_empty());
    assert_eq!(testbed.forbidden_deletions(), Vec::<String>::new());
    assert_eq!(testbed.denied_requests(), Vec::<String>::new());
}
