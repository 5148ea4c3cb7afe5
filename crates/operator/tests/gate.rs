//! What stands in the way holds back an installation and an upgrade, until it is cured or accepted.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use api::{Finding, VDOConfigStatus, vdo_config::PlanState};
use common::Stage;
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

/// The release of the cloud provider that is installed, if one is.
async fn installed(stage: &Stage) -> Option<String> {
    let sets = Api::<DaemonSet>::namespaced(stage.client(), "kube-system");
    let set = sets.get_opt("vsphere-cloud-controller-manager").await.unwrap()?;
    let pod = set.spec.unwrap().template.spec.unwrap();
    pod.containers[0].image.clone()
}

async fn log_in_as(stage: &Stage, user: &str, password: &str) {
    let patch = json!({"stringData": {"username": user, "password": password}});
    let secrets = Api::<Secret>::namespaced(stage.client(), "kube-system");
    secrets.patch("vc-credentials", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

fn of(version: &str) -> Value {
    json!({
        "cloudProvider": {"vsphereCloudConfigs": ["vc"], "version": version},
        "storageProvider": {"vsphereCloudConfig": "vc"},
    })
}

/// The finding that blocks, as it stands in a status.
fn named(status: &VDOConfigStatus) -> Option<&Finding> {
    status.findings.iter().find(|finding| finding.code == CODE)
}

async fn accept(stage: &Stage, until: Timestamp) {
    let accepted =
        json!([{"code": CODE, "reason": "renamed next week", "until": until.to_string()}]);
    stage.change(json!({"spec": {"acknowledgements": accepted}})).await;
}

/// It is said, and stays so: nothing is done in that round nor in the next.
async fn is_blocked(stage: &Stage, operator: &Process) {
    let generation = stage.config().await.metadata.generation;
    let blocked = |status: &VDOConfigStatus| {
        let now = status.plan.as_ref().and_then(|plan| plan.state);
        let open = named(status).is_some_and(|finding| finding.acknowledged.is_none());
        let plan = serde_json::to_string(&status.plan).unwrap();
        let told = plan.contains("waits for VDO-1307 to be cured");
        now == Some(PlanState::Blocked) && open && told && status.observed_generation == generation
    };
    stage.status("the plan waits for the cure", 60, blocked).await;
    stage.two_more_rounds(operator).await;
}

#[tokio::test]
async fn a_blocker_holds_back_an_installation_and_an_upgrade_until_it_is_accepted_or_cured() {
    let stage = Stage::of(1, false).await;
    stage.vcenter.set_user(&VcenterUser::new("plain", "pass")).await;
    stage.vcenter.permit(&Permission::new("plain", "Admin", "/")).await;
    stage.configure(of("1.35.0")).await;
    log_in_as(&stage, "plain", "pass").await;
    let operator = stage.operator();
    is_blocked(&stage, &operator).await;
    assert_eq!(installed(&stage).await, None, "nothing is installed");

    // A node that another cloud controller has taken for its own would be deleted by this one.
    let other = Node::named("other").provider_id("k3s://other");
    let other = other.label("vdo.vmware.com/vsphere", "false");
    stage.nodes.as_ref().unwrap().add(other).await;
    accept(&stage, Timestamp::now() + SignedDuration::from_hours(24)).await;
    stage
        .status("the cloud controller does not come to nodes of another one", 60, |status| {
            serde_json::to_string(&status.plan).unwrap().contains("other (k3s://other)")
        })
        .await;
    stage.two_more_rounds(&operator).await;
    assert_eq!(installed(&stage).await, None);
    let nodes = Api::<KubeNode>::all(stage.client());
    nodes.delete("other", &DeleteParams::default()).await.unwrap();
    let config = stage.ready(&operator, 90).await;
    assert!(installed(&stage).await.unwrap().contains("v1.35.0"));
    let status = config.status.unwrap();
    let accepted = named(&status).unwrap().acknowledged.clone().unwrap();
    assert_eq!(accepted.reason, "renamed next week");
    assert!(accepted.until.is_some(), "it is shown until when");

    // Time alone raises it again; what runs goes on running.
    accept(&stage, Timestamp::now() + SignedDuration::from_secs(2)).await;
    let raised = |status: &VDOConfigStatus| named(status).is_some_and(|f| f.acknowledged.is_none());
    stage.status("it is raised again when its time is over", 60, raised).await;
    assert!(installed(&stage).await.unwrap().contains("v1.35.0"));

    stage.change(json!({"spec": of("1.36.0")})).await;
    is_blocked(&stage, &operator).await;
    assert!(installed(&stage).await.unwrap().contains("v1.35.0"), "no upgrade meanwhile");
    log_in_as(&stage, stage.vcenter.user(), stage.vcenter.password()).await;
    stage
        .status("the upgrade goes on once it is cured", 90, |status| {
            let cpi = status.cpi.clone().unwrap_or_default();
            let ready = api::condition::is_true(&status.conditions, "Ready");
            ready && cpi.version.as_deref() == Some("1.36.0") && named(status).is_none()
        })
        .await;
    assert!(installed(&stage).await.unwrap().contains("v1.36.0"));
    zones_wait_for_their_tags(&stage, &operator).await;
    assert_eq!(stage.refusals(), Vec::<String>::new());
}

/// Zones are switched on where a node has no tag above it: nothing changes. When the tag is there, VDO
/// finds out by itself.
async fn zones_wait_for_their_tags(stage: &Stage, operator: &Process) {
    let clusters = ["/DC0/host/cluster-a", "/DC0/host/cluster-b"];
    stage.vcenter.detach_tag("k8s-zone", "zone-a", &clusters).await;
    stage.vcenter.detach_tag("k8s-zone", "zone-b", &clusters).await;
    let settings = async || {
        stage.secret("vmware-system-csi", "vsphere-config-secret", "csi-vsphere.conf").await
    };
    let before = (settings().await, stage.node_driver().await.metadata.generation);
    let topology = json!({"region": "k8s-region", "zone": "k8s-zone"});
    stage.change(json!({"spec": {"cloudProvider": {"topology": topology}}})).await;
    let finding = stage.finding("VDO-1702", 60).await;
    assert!(finding.seen.as_deref().unwrap().contains("k8s-zone"), "{finding:?}");
    stage
        .status("both plans say what they wait for", 60, |status| {
            let plan = serde_json::to_string(&status.plan).unwrap();
            plan.matches("VDO-1702: ").count() == 2 && plan.contains("Find the zone of every node")
        })
        .await;
    stage.two_more_rounds(operator).await;
    assert_eq!((settings().await, stage.node_driver().await.metadata.generation), before);

    stage.vcenter.attach_tag("k8s-zone", "zone-a", &clusters[..1]).await;
    stage.vcenter.attach_tag("k8s-zone", "zone-b", &clusters[1..]).await;
    stage
        .status("every node has a zone", 180, |status| {
            status.findings.iter().all(|finding| finding.code != "VDO-1702")
        })
        .await;
    testkit::eventually("the driver is told of zones and rolled out", 60, async || {
        let (settings, set) = (settings().await, stage.node_driver().await);
        let (seen, ready) = (set.metadata.generation, stage.config().await.status.unwrap());
        let ready = api::condition::is_true(&ready.conditions, "Ready");
        let done = settings.contains("k8s-zone") && seen > before.1 && ready;
        done.then_some(()).ok_or(format!("{seen:?} {settings}"))
    })
    .await;
}
