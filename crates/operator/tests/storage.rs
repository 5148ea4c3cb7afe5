//! A storage driver that runs, and what days bring: rotation, outages, human hands.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use api::VsphereCloudConfig;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use common::{NAMESPACE, Stage};
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment},
    core::v1::Secret,
};
use kube::{
    Api,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
        PostParams,
    },
};
use serde_json::json;
use testkit::{FaultProxy, Inventory, Node, Permission, Process, VcenterUser, Vm, eventually};

const CSI: &str = "vmware-system-csi";

#[tokio::test]
async fn new_credentials_are_proven_before_a_driver_sees_them() {
    let (stage, operator) = Stage::with_storage(&[]).await;
    let before = stage.controller().await;
    let conf = async || stage.secret(CSI, "vsphere-config-secret", "csi-vsphere.conf").await;
    let good = conf().await;
    stage.vcenter.forget_calls().await;

    stage.write_secret("not-the-password").await;
    let finding = stage.finding("VDO-1901", 30).await;
    assert!(finding.seen.unwrap().contains("vc"));
    assert_eq!(conf().await, good, "the driver keeps what works");
    // Anything that makes the operator look again must not make it try again.
    looks_again(&stage).await;
    assert_eq!(stage.vcenter.calls().await.of("Login"), 1, "a wrong password is tried once");
    let vcenters = Api::<VsphereCloudConfig>::namespaced(stage.client(), NAMESPACE);
    for datacenter in ["/DC0", "DC0"] {
        let edit = Patch::Merge(json!({"spec": {"datacenters": [datacenter]}}));
        let edited = vcenters.patch("vc", &PatchParams::default(), &edit).await.unwrap();
        eventually("the edit was looked at", 30, async || {
            let status = vcenters.get("vc").await.unwrap().status.unwrap_or_default();
            let seen = status.observed_generation == edited.metadata.generation;
            if seen { Ok(()) } else { Err(format!("{status:?}")) }
        })
        .await;
    }
    stage.dismiss(operator).await;
    let operator = stage.operator();
    looks_again(&stage).await;
    let refused = vcenters.get("vc").await.unwrap().status.unwrap();
    assert!(refused.message.unwrap().contains("not tried again"), "what was wrong is still said");
    assert_eq!(conf().await, good, "the driver keeps what works");
    assert_eq!(stage.vcenter.calls().await.of("Login"), 1, "nor by the next operator");

    let new = VcenterUser::new(stage.vcenter.user(), "brand-new");
    stage.vcenter.set_user(&new).await;
    stage.write_secret("brand-new").await;
    stage.ready(&operator, 30).await;
    eventually("the driver has the new password", 20, async || {
        let text = conf().await;
        if text.contains("brand-new") { Ok(()) } else { Err("not yet") }
    })
    .await;
    let after = stage.controller().await;
    assert_eq!(
        after.metadata.generation, before.metadata.generation,
        "the storage driver reads a new password without a restart"
    );
    a_user_who_may_too_little(&stage, &operator).await;
    no_secret_shows(&stage, &operator, &["not-the-password", "brand-new", "weak-password"]).await;
    no_certificate_is_trusted_unasked(&stage).await;
    assert_eq!(stage.refusals(), Vec::<String>::new());
}

/// A user who logs in is not handed to the driver before it may do what the driver does, and sees every
/// machine.
async fn a_user_who_may_too_little(stage: &Stage, operator: &Process) {
    let user = "weak@vsphere.local";
    let conf = async || stage.secret(CSI, "vsphere-config-secret", "csi-vsphere.conf").await;
    stage.vcenter.set_user(&VcenterUser::new(user, "weak-password")).await;
    stage.vcenter.permit(&Permission::new(user, "ReadOnly", "/")).await;
    let secrets = Api::<Secret>::namespaced(stage.client(), "kube-system");
    let login =
        Patch::Merge(json!({"stringData": {"username": user, "password": "weak-password"}}));
    secrets.patch("vc-credentials", &PatchParams::default(), &login).await.unwrap();
    let waits = async |what: &str, words: &[&str]| {
        stage
            .status(what, 120, |status| {
                let plan = serde_json::to_string(&status.plan).unwrap();
                assert!(operator.ended().is_none(), "{}", operator.tail());
                words.iter().all(|word| plan.contains(word))
            })
            .await;
        stage.two_more_rounds(operator).await;
        assert!(!conf().await.contains(user), "the user before stays in use");
    };
    let words = ["Check what the new vCenter user may do", "VDO-14", "the user before stays"];
    waits("it lacks privileges", &words).await;

    stage.vcenter.permit(&Permission::new(user, "Admin", "/")).await;
    stage.vcenter.permit(&Permission::new(user, "NoAccess", "/DC0/vm/node-2")).await;
    stage.check_now("a machine is hidden").await;
    waits("it does not see a machine", &["Find the virtual machine of every node", "node-2"]).await;

    stage.vcenter.forbid("/DC0/vm/node-2", user).await;
    stage.check_now("it may do everything").await;
    eventually("the driver has the new user", 60, async || {
        let text = conf().await;
        if text.contains(user) { Ok(()) } else { Err(operator.tail()) }
    })
    .await;
    stage.ready(operator, 60).await;
}

/// Gives the operator a reason to look again, and waits until it did, with a login that is refused.
async fn looks_again(stage: &Stage) {
    let reason = format!("something to look at since {}", Timestamp::now());
    let accepted = json!([{"code": "VDO-9999", "reason": reason}]);
    stage.change(json!({"spec": {"acknowledgements": accepted}})).await;
    let generation = stage.config().await.metadata.generation;
    stage
        .status("it looked again", 30, |status| {
            let refused = status.findings.iter().any(|finding| finding.code == "VDO-1901");
            status.observed_generation == generation && refused
        })
        .await;
}

/// Secrets are never logged, never in status, never in events, and in no object but Secrets.
async fn no_secret_shows(stage: &Stage, operator: &Process, secrets: &[&str]) {
    let mut shown = vec![
        ("the log", operator.log() + &operator.output()),
        ("the metrics", stage.metrics(operator).await),
    ];
    let kinds = [
        ("vdo.vmware.com", "v1alpha1", "VDOConfig", "vdoconfigs"),
        ("vdo.vmware.com", "v1alpha1", "VsphereCloudConfig", "vspherecloudconfigs"),
        ("events.k8s.io", "v1", "Event", "events"),
        ("", "v1", "ConfigMap", "configmaps"),
        ("", "v1", "Pod", "pods"),
        ("apps", "v1", "Deployment", "deployments"),
        ("apps", "v1", "DaemonSet", "daemonsets"),
        ("apps", "v1", "ReplicaSet", "replicasets"),
        ("apps", "v1", "ControllerRevision", "controllerrevisions"),
    ];
    for (group, version, kind, plural) in kinds {
        let gvk = GroupVersionKind::gvk(group, version, kind);
        let resource = ApiResource::from_gvk_with_plural(&gvk, plural);
        let api = Api::<DynamicObject>::all_with(stage.client(), &resource);
        let all = api.list(&ListParams::default()).await.unwrap();
        assert!(!all.items.is_empty(), "there is a {kind} to look at");
        shown.push((kind, serde_json::to_string(&all.items).unwrap()));
    }
    for secret in secrets {
        for (place, text) in &shown {
            for shape in shapes(secret) {
                assert!(!text.contains(&shape), "{place} shows {secret} as {shape}");
            }
        }
    }
}

/// A secret as it may show: as it is, and inside of base64, wherever in the text it begins.
fn shapes(secret: &str) -> Vec<String> {
    let encoded = (0..3).map(|ahead| {
        let text = BASE64_STANDARD.encode(format!("{}{secret}", "x".repeat(ahead)));
        // Without the letters that what is around it has a part in.
        let first = (ahead * 8).div_ceil(6);
        let last = (ahead + secret.len()) * 8 / 6;
        text[first..last].to_owned()
    });
    encoded.chain([secret.to_owned()]).collect()
}

/// Without `insecure: true`, a thumbprint or an authority, a certificate nobody vouches for ends it
/// before any password is sent.
async fn no_certificate_is_trusted_unasked(stage: &Stage) {
    stage.vcenter.forget_calls().await;
    let vcenter = json!({
        "metadata": {"name": "untrusted", "namespace": NAMESPACE},
        "spec": {
            "vcIp": stage.vcenter.address().to_string(), "insecure": false,
            "credentials": "vc-credentials", "datacenters": ["DC0"],
        },
    });
    let vcenter: VsphereCloudConfig = serde_json::from_value(vcenter).unwrap();
    let vcenters = Api::<VsphereCloudConfig>::namespaced(stage.client(), NAMESPACE);
    vcenters.create(&PostParams::default(), &vcenter).await.unwrap();
    eventually("it is refused for its certificate", 30, async || {
        let status = vcenters.get("untrusted").await.unwrap().status.unwrap_or_default();
        let text = serde_json::to_string(&status).unwrap();
        if text.contains("failed") && text.contains("ertificate") { Ok(()) } else { Err(text) }
    })
    .await;
    assert_eq!(stage.vcenter.calls().await.of("Login"), 0, "no password was sent");
    vcenters.delete("untrusted", &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn a_vcenter_that_goes_away_changes_nothing_and_is_met_again_when_it_is_back() {
    let mut stage = Stage::of(1, false).await;
    let proxy = FaultProxy::before(stage.vcenter.address()).await;
    stage.address = Some(proxy.address());
    let operator = stage.operator();
    // Of two, one goes.
    let _other = stage.another_vcenter(Inventory::small()).await;
    stage
        .configure(json!({
            "cloudProvider": {"vsphereCloudConfigs": ["vc", "other"]},
            "storageProvider": {"vsphereCloudConfig": "vc"},
        }))
        .await;
    stage.ready(&operator, 90).await;
    let then = Timestamp::now();
    let vcenters = Api::<VsphereCloudConfig>::namespaced(stage.client(), NAMESPACE);

    proxy.cut();
    let finding = stage.finding("VDO-1901", 60).await;
    assert_eq!(finding.severity, api::Severity::Warning, "it may pass by itself");
    let away: Vec<String> = finding.objects.iter().map(|object| object.name.clone()).collect();
    assert_eq!(away, [format!("{NAMESPACE}/vc")], "the other one is there");
    let there = vcenters.get("other").await.unwrap().status.unwrap_or_default();
    assert!(api::condition::is_true(&there.conditions, "Ready"), "{there:?}");
    eventually("the VsphereCloudConfig shows that only the connection fails", 30, async || {
        let lost = vcenters.get("vc").await.unwrap().status.unwrap_or_default();
        let is_true = |kind| api::condition::is_true(&lost.conditions, kind);
        let fails = !is_true(api::condition::REACHABLE) && is_true(api::condition::AUTHENTICATED);
        if fails { Ok(()) } else { Err(format!("{lost:?}")) }
    })
    .await;
    let status = stage.config().await.status.unwrap();
    assert!(api::condition::is_true(&status.conditions, "Ready"), "{status:?}");
    assert!(!api::condition::is_true(&status.conditions, "Progressing"), "{status:?}");
    assert!(api::condition::get(&status.conditions, "NetworkReady").is_some(), "{status:?}");
    let writes = stage.writes_in_the_end(&operator, then).await;
    assert_eq!(writes, Vec::<String>::new(), "nothing is changed");

    // What a human does meanwhile is put right all the same: that needs no vCenter.
    let deployments = Api::<Deployment>::namespaced(stage.client(), CSI);
    let none = Patch::Merge(json!({"spec": {"replicas": 0}}));
    deployments.patch("vsphere-csi-controller", &PatchParams::default(), &none).await.unwrap();
    eventually("the controller is scaled up again", 60, async || {
        let running = stage.controller().await.status.unwrap_or_default().available_replicas;
        if running == Some(1) { Ok(()) } else { Err(operator.tail()) }
    })
    .await;
    stage.two_more_rounds(&operator).await;
    let then = Timestamp::now();

    let generations = async || {
        let (controller, nodes) = (stage.controller().await, stage.node_driver().await);
        [controller.metadata.generation, nodes.metadata.generation]
    };
    let before = generations().await;
    // It stays away, for longer than the one who asks now is patient; that one has never met it.
    stage.dismiss(operator).await;
    let operator = stage.operator_with(&["--grace=2"]);
    let told = |status: &api::VDOConfigStatus| {
        let mut said = status.findings.iter().filter(|finding| finding.code == "VDO-1901");
        said.any(|finding| finding.severity == api::Severity::Error)
            && api::condition::is_true(&status.conditions, "Degraded")
    };
    stage.status("it is a trouble by now", 90, told).await;
    let there = vcenters.get("other").await.unwrap().status.unwrap_or_default();
    assert!(api::condition::is_true(&there.conditions, "Ready"), "{there:?}");
    let running = stage.controller().await.status.unwrap();
    assert_eq!(running.available_replicas, running.replicas, "the driver runs on");
    let writes = stage.writes_in_the_end(&operator, then).await;
    assert_eq!(writes, Vec::<String>::new(), "and is left as it is");

    proxy.heal();
    let well = |status: &api::VDOConfigStatus| {
        status.findings.iter().all(|finding| finding.severity == api::Severity::Info)
    };
    stage.status("the finding is gone", 60, well).await;
    stage.ready(&operator, 60).await;
    assert_eq!(generations().await, before, "nothing had to be changed");
    assert_eq!(stage.deletions(), Vec::<String>::new());
    assert_eq!(stage.refusals(), Vec::<String>::new());
}

#[tokio::test]
async fn what_a_human_changes_in_a_driver_is_put_right() {
    let (stage, operator) = Stage::with_storage(&[]).await;
    let merge = PatchParams::default();
    let deployments = Api::<Deployment>::namespaced(stage.client(), CSI);
    let wanted = stage.controller().await.spec.unwrap().replicas;
    let to_zero = json!({"spec": {"replicas": 0}});
    deployments.patch("vsphere-csi-controller", &merge, &Patch::Merge(to_zero)).await.unwrap();
    eventually("the controller is scaled back", 20, async || {
        let now = stage.controller().await.spec.unwrap().replicas;
        if now == wanted { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await;

    let sets = Api::<DaemonSet>::namespaced(stage.client(), CSI);
    sets.delete("vsphere-csi-node", &DeleteParams::background()).await.unwrap();
    let secrets = Api::<Secret>::namespaced(stage.client(), CSI);
    secrets.delete("vsphere-config-secret", &DeleteParams::default()).await.unwrap();
    eventually("both are there again", 30, async || {
        secrets.get("vsphere-config-secret").await.map_err(|e| e.to_string())?;
        let set = sets.get("vsphere-csi-node").await.map_err(|e| e.to_string())?;
        let ready = set.status.and_then(|status| status.number_available);
        if set.metadata.deletion_timestamp.is_none() && ready == Some(2) {
            Ok(())
        } else {
            Err(format!("{ready:?}"))
        }
    })
    .await;
    stage.ready(&operator, 30).await;
    a_windows_node_gets_its_driver(&stage).await;
    stage.ready(&operator, 60).await;
    assert_eq!(stage.refusals(), Vec::<String>::new());
}

/// A node that runs Windows joins: the driver for it is there then, and nowhere else.
async fn a_windows_node_gets_its_driver(stage: &Stage) {
    let sets = Api::<DaemonSet>::namespaced(stage.client(), CSI);
    let name = "vsphere-csi-node-windows";
    assert!(sets.get_opt(name).await.unwrap().is_none(), "there is nobody to run it");
    let vm = Vm::named("windows-1");
    stage.vcenter.add_vms("DC0", [vm.clone()]).await;
    let node = Node::named(&vm.name).windows().system_uuid(&vm.uuid);
    let node = node.provider_id(&format!("vsphere://{}", vm.uuid));
    stage.nodes.as_ref().unwrap().add(node).await;
    eventually("the driver for Windows runs there", 90, async || {
        let set = sets.get_opt(name).await.map_err(|e| e.to_string())?.ok_or("none yet")?;
        let ready = set.status.and_then(|status| status.number_available);
        if ready == Some(1) { Ok(()) } else { Err(format!("{ready:?}")) }
    })
    .await;
    let linux = stage.node_driver().await.status.unwrap();
    assert_eq!(linux.desired_number_scheduled, 2, "and the one for Linux does not");
}

#[tokio::test]
async fn storage_is_not_removed_while_a_volume_is_attached_and_what_holds_volumes_stays() {
    let (stage, operator) = Stage::with_storage(&[]).await;
    stage.attach("pv-1", "node-1").await;
    stage.change(json!({"spec": {"storageProvider": {"mode": "Removed"}}})).await;
    let finding = stage.finding("VDO-1904", 20).await;
    assert!(finding.seen.unwrap().contains("pv-1 on node-1"));
    assert!(stage.controller().await.metadata.deletion_timestamp.is_none());

    let attachments = Api::<k8s_openapi::api::storage::v1::VolumeAttachment>::all(stage.client());
    attachments.delete("csi-pv-1", &DeleteParams::default()).await.unwrap();
    let deployments = Api::<Deployment>::namespaced(stage.client(), CSI);
    eventually("the driver is gone", 30, async || {
        match deployments.get_opt("vsphere-csi-controller").await.map_err(|e| e.to_string())? {
            None => Ok(()),
            Some(_) => Err(operator.tail()),
        }
    })
    .await;
    stage
        .status("all of it is gone", 20, |status| {
            status
                .plan
                .as_ref()
                .is_some_and(|plan| plan.state == Some(api::vdo_config::PlanState::Done))
        })
        .await;
    let namespaces = Api::<k8s_openapi::api::core::v1::Namespace>::all(stage.client());
    let namespace = namespaces.get(CSI).await.unwrap();
    assert!(namespace.metadata.deletion_timestamp.is_none());
    assert_eq!(stage.forbidden_deletions(), Vec::<String>::new());
    assert_eq!(stage.refusals(), Vec::<String>::new());
}
