//! A blocking finding stops an installation and an upgrade until it is fixed or accepted.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use api::{Finding, VDOConfigStatus, vdo_config::PlanState};
use common::{NAMESPACE, Testbed};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Node as KubeNode, Secret},
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use testkit::{Node, Permission, Process, VcenterUser};

const CODE: &str = "VDO-1307";

/// The image of the installed cloud controller.
async fn installed(testbed: &Testbed) -> Option<String> {
    let sets = Api::<DaemonSet>::namespaced(testbed.client(), "kube-system");
    let set = sets.get_opt("vsphere-cloud-controller-manager").await.unwrap()?;
    let pod = set.spec.unwrap().template.spec.unwrap();
    pod.containers[0].image.clone()
}

async fn log_in_as(testbed: &Testbed, user: &str, password: &str) {
    let patch = json!({"stringData": {"username": user, "password": password}});
    let secrets = Api::<Secret>::namespaced(testbed.client(), NAMESPACE);
    secrets.patch("vc-credentials", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

fn spec(version: &str) -> Value {
    json!({
        "cloudProvider": {"vsphereCloudConfigs": ["vc"], "version": version},
        "storageProvider": {"vsphereCloudConfig": "vc"},
    })
}

fn blocker(status: &VDOConfigStatus) -> Option<&Finding> {
    status.findings.iter().find(|finding| finding.code == CODE)
}

async fn accept(testbed: &Testbed, until: Timestamp) {
    let accepted =
        json!([{"code": CODE, "reason": "renamed next week", "until": until.to_string()}]);
    testbed.change(json!({"spec": {"acknowledgements": accepted}})).await;
}

/// The status shows the block, and the operator changes nothing in the next two rounds.
async fn is_blocked(testbed: &Testbed, operator: &Process) {
    let generation = testbed.config().await.metadata.generation;
    let blocked = |status: &VDOConfigStatus| {
        let now = status.plan.as_ref().and_then(|plan| plan.state);
        let open = blocker(status).is_some_and(|finding| finding.acknowledged.is_none());
        let plan = serde_json::to_string(&status.plan).unwrap();
        let explained = plan.contains("waits for VDO-1307 to be fixed");
        now == Some(PlanState::Blocked)
            && open
            && explained
            && status.observed_generation == generation
    };
    testbed.status("the plan waits for the fix", 60, blocked).await;
    testbed.two_more_rounds(operator).await;
}

#[tokio::test]
async fn a_blocker_stops_an_installation_and_an_upgrade_until_it_is_accepted_or_fixed() {
    let testbed = Testbed::with_nodes(1).await;
    testbed.vcenter.set_user(&VcenterUser::new("plain", "pass")).await;
    testbed.vcenter.permit(&Permission::new("plain", "Admin", "/")).await;
    testbed.configure(spec("1.35.0")).await;
    log_in_as(&testbed, "plain", "pass").await;
    let operator = testbed.operator();
    is_blocked(&testbed, &operator).await;
    assert_eq!(installed(&testbed).await, None, "nothing is installed");

    // VDO's cloud controller would delete a node that belongs to another cloud controller.
    let other = Node::named("other").provider_id("k3s://other");
    let other = other.label("vdo.vmware.com/vsphere", "false");
    testbed.nodes.as_ref().unwrap().add(other).await;
    accept(&testbed, Timestamp::now() + SignedDuration::from_hours(24)).await;
    testbed
        .status("the cloud controller waits because of the node of another one", 60, |status| {
            serde_json::to_string(&status.plan).unwrap().contains("other (k3s://other)")
        })
        .await;
    testbed.two_more_rounds(&operator).await;
    assert_eq!(installed(&testbed).await, None);
    let nodes = Api::<KubeNode>::all(testbed.client());
    nodes.delete("other", &DeleteParams::default()).await.unwrap();
    let config = testbed.ready(&operator, 90).await;
    assert!(installed(&testbed).await.unwrap().contains("v1.35.0"));
    let status = config.status.unwrap();
    let accepted = blocker(&status).unwrap().acknowledged.clone().unwrap();
    assert_eq!(accepted.reason, "renamed next week");
    assert!(accepted.until.is_some(), "the status shows the expiry");

    // It blocks again when the acceptance expires; the running driver stays.
    accept(&testbed, Timestamp::now() + SignedDuration::from_secs(2)).await;
    let raised =
        |status: &VDOConfigStatus| blocker(status).is_some_and(|f| f.acknowledged.is_none());
    testbed.status("the acceptance expires", 60, raised).await;
    assert!(installed(&testbed).await.unwrap().contains("v1.35.0"));

    testbed.change(json!({"spec": spec("1.36.0")})).await;
    is_blocked(&testbed, &operator).await;
    assert!(installed(&testbed).await.unwrap().contains("v1.35.0"), "no upgrade while blocked");
    log_in_as(&testbed, testbed.vcenter.user(), testbed.vcenter.password()).await;
    testbed
        .status("the upgrade continues once it is fixed", 90, |status| {
            let cpi = status.cpi.clone().unwrap_or_default();
            let ready = api::condition::is_true(&status.conditions, "Ready");
            ready && cpi.version.as_deref() == Some("1.36.0") && blocker(status).is_none()
        })
        .await;
    assert!(installed(&testbed).await.unwrap().contains("v1.36.0"));
    zones_wait_for_their_tags(&testbed, &operator).await;
    assert_eq!(testbed.denied_requests(), Vec::<String>::new());
}

/// Zones are enabled while a node has no tag above it: nothing changes. VDO notices by itself when the tag is
/// attached.
async fn zones_wait_for_their_tags(testbed: &Testbed, operator: &Process) {
    let clusters = ["/DC0/host/cluster-a", "/DC0/host/cluster-b"];
    testbed.vcenter.detach_tag("k8s-zone", "zone-a", &clusters).await;
    testbed.vcenter.detach_tag("k8s-zone", "zone-b", &clusters).await;
    let settings = async || {
        testbed.secret("vmware-system-csi", "vsphere-config-secret", "csi-vsphere.conf").await
    };
    let before = (settings().await, testbed.node_driver().await.metadata.generation);
    let topology = json!({"region": "k8s-region", "zone": "k8s-zone"});
    testbed.change(json!({"spec": {"cloudProvider": {"topology": topology}}})).await;
    let finding = testbed.finding("VDO-1702", 60).await;
    assert!(finding.seen.as_deref().unwrap().contains("k8s-zone"), "{finding:?}");
    testbed
        .status("both plans name their blocker", 60, |status| {
            let plan = serde_json::to_string(&status.plan).unwrap();
            plan.matches("VDO-1702: ").count() == 2 && plan.contains("Find the zone of every node")
        })
        .await;
    testbed.two_more_rounds(operator).await;
    assert_eq!((settings().await, testbed.node_driver().await.metadata.generation), before);

    testbed.vcenter.attach_tag("k8s-zone", "zone-a", &clusters[..1]).await;
    testbed.vcenter.attach_tag("k8s-zone", "zone-b", &clusters[1..]).await;
    testbed
        .status("every node has a zone", 180, |status| {
            status.findings.iter().all(|finding| finding.code != "VDO-1702")
        })
        .await;
    testkit::eventually("the driver is configured for zones and rolled out", 60, async || {
        let (settings, set) = (settings().await, testbed.node_driver().await);
        let (seen, ready) = (set.metadata.generation, testbed.config().await.status.unwrap());
        let ready = api::condition::is_true(&ready.conditions, "Ready");
        let done = settings.contains("k8s-zone") && seen > before.1 && ready;
        done.then_some(()).ok_or(format!("{seen:?} {settings}"))
    })
    .await;
}
