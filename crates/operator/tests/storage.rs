//! A running storage driver during password rotation, outages and manual changes.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use api::VsphereCloudConfig;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use common::{NAMESPACE, Testbed};
use health::Examination;
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
use operator::health_facts::collect_once;
use runtime::build::BuildInfo;
use serde_json::json;
use testkit::{FaultProxy, Inventory, Node, Permission, Process, VcenterUser, Vm, eventually};
use vsphere::{Client, Credentials, Trust};

const CSI: &str = "vmware-system-csi";

#[tokio::test]
async fn new_credentials_are_verified_before_a_driver_gets_them() {
    let (testbed, operator) = Testbed::with_storage(&[]).await;
    let before = testbed.controller().await;
    let conf = async || testbed.secret(CSI, "vsphere-config-secret", "csi-vsphere.conf").await;
    let good = conf().await;
    testbed.vcenter.forget_calls().await;

    testbed.write_secret("not-the-password").await;
    let finding = testbed.finding("VDO-1901", 30).await;
    assert!(finding.seen.unwrap().contains("vc"));
    assert_eq!(conf().await, good, "the driver keeps the working password");
    // Another reconcile must not cause another login.
    reconcile_again(&testbed).await;
    assert_eq!(testbed.vcenter.calls().await.count("Login"), 1, "one login with a wrong password");
    let vcenters = Api::<VsphereCloudConfig>::namespaced(testbed.client(), NAMESPACE);
    for datacenter in ["/DC0", "DC0"] {
        let edit = Patch::Merge(json!({"spec": {"datacenters": [datacenter]}}));
        let edited = vcenters.patch("vc", &PatchParams::default(), &edit).await.unwrap();
        eventually("the operator observed the edit", 30, async || {
            let status = vcenters.get("vc").await.unwrap().status.unwrap_or_default();
            let observed = status.observed_generation == edited.metadata.generation;
            if observed { Ok(()) } else { Err(format!("{status:?}")) }
        })
        .await;
    }
    testbed.stop(operator).await;
    let operator = testbed.operator();
    reconcile_again(&testbed).await;
    let refused = vcenters.get("vc").await.unwrap().status.unwrap();
    assert!(
        refused.message.unwrap().contains("tries again within 30 minutes"),
        "the status still shows the cause"
    );
    assert_eq!(conf().await, good, "the driver keeps the working password");
    assert_eq!(
        testbed.vcenter.calls().await.count("Login"),
        1,
        "the next operator does not retry at once either"
    );
    the_doctor_does_not_retry_a_refused_login(&testbed).await;

    let new = VcenterUser::new(testbed.vcenter.user(), "brand-new");
    testbed.vcenter.set_user(&new).await;
    testbed.write_secret("brand-new").await;
    testbed.ready(&operator, 30).await;
    eventually("the driver has the new password", 20, async || {
        let text = conf().await;
        if text.contains("brand-new") { Ok(()) } else { Err("not yet") }
    })
    .await;
    let after = testbed.controller().await;
    assert_eq!(
        after.metadata.generation, before.metadata.generation,
        "the storage driver reads a new password without a restart"
    );
    a_user_without_privileges(&testbed, &operator).await;
    no_secret_shows(&testbed, &operator, &["not-the-password", "brand-new", "weak-password"]).await;
    no_certificate_is_trusted_unasked(&testbed).await;
    assert_eq!(testbed.denied_requests(), Vec::<String>::new());
}

/// The drivers lock the account with the old password, so vCenter refuses the new one too; or the Secret is written before
/// vCenter has the password, as GitOps does. Nobody writes the Secret again.
#[tokio::test]
async fn a_refused_password_reaches_the_driver_once_vcenter_accepts_it() {
    let mut testbed = Testbed::with_nodes(1).await;
    testbed.variables = vec![("VDO_LOGIN_AGAIN", "12")];
    let operator = testbed.operator();
    testbed.configure(json!({"storageProvider": {"vsphereCloudConfig": "vc"}})).await;
    testbed.ready(&operator, 60).await;
    let conf = async || testbed.secret(CSI, "vsphere-config-secret", "csi-vsphere.conf").await;
    let driver_has = async |password: &str| {
        eventually("the driver has the new password", 60, async || {
            let text = conf().await;
            if text.contains(password) { Ok(()) } else { Err(operator.tail()) }
        })
        .await;
        testbed.ready(&operator, 30).await;
    };
    let status = async || {
        let vcenters = Api::<VsphereCloudConfig>::namespaced(testbed.client(), NAMESPACE);
        vcenters.get("vc").await.unwrap().status.unwrap_or_default()
    };
    let refused = async || {
        eventually("vCenter has refused the login", 30, async || {
            let refused = status().await.refused;
            if refused.is_some() { Ok(()) } else { Err(operator.tail()) }
        })
        .await;
    };
    let user = |password: &str| {
        let user = VcenterUser::new(testbed.vcenter.user(), password);
        VcenterUser { lock_after: 3, ..user }
    };

    testbed.vcenter.set_user(&user("new-password-2")).await;
    testbed.vcenter.expire_sessions(testbed.vcenter.user()).await;
    let old = Credentials::new(testbed.vcenter.user(), testbed.vcenter.password());
    for _ in 0..3 {
        let driver = Client::builder(testbed.vcenter.address().to_string());
        let driver = driver.trust(Trust::Insecure).credentials(old.clone()).connect().await;
        assert!(matches!(driver, Err(vsphere::Error::LoginRefused { .. })), "{driver:?}");
    }
    testbed.write_secret("new-password-2").await;
    refused().await;
    testbed.vcenter.set_user(&user("new-password-2")).await;
    driver_has("new-password-2").await;

    testbed.write_secret("new-password-3").await;
    refused().await;
    testbed.vcenter.set_user(&user("new-password-3")).await;
    driver_has("new-password-3").await;
    assert_eq!(status().await.refused, None);
    no_secret_shows(&testbed, &operator, &["new-password-2", "new-password-3"]).await;
    assert_eq!(testbed.denied_requests(), Vec::<String>::new());
}

/// vdoctl knows only the status of the VsphereCloudConfig, not the memory of an operator.
async fn the_doctor_does_not_retry_a_refused_login(testbed: &Testbed) {
    let before = testbed.vcenter.calls().await.count("Login");
    let client = testbed.client();
    for _ in 0..2 {
        let cluster = Some((&client, NAMESPACE));
        let collected = collect_once(cluster, None, BuildInfo::new("doctor")).await;
        assert!(collected.sessions.is_empty(), "no vCenter accepted a login");
        let findings = Examination::run(collected.facts).report().all();
        let codes: Vec<&str> = findings.iter().map(|finding| finding.code.as_str()).collect();
        assert!(codes.contains(&"VDO-1305"), "{codes:?}");
    }
    let logins = testbed.vcenter.calls().await.count("Login");
    assert_eq!(logins, before, "a repeated wrong password locks the account");
}

/// VDO does not give a new user to the driver before the user has the required privileges and sees every VM.
async fn a_user_without_privileges(testbed: &Testbed, operator: &Process) {
    let user = "weak@vsphere.local";
    let conf = async || testbed.secret(CSI, "vsphere-config-secret", "csi-vsphere.conf").await;
    testbed.vcenter.set_user(&VcenterUser::new(user, "weak-password")).await;
    testbed.vcenter.permit(&Permission::new(user, "ReadOnly", "/")).await;
    let secrets = Api::<Secret>::namespaced(testbed.client(), NAMESPACE);
    let login =
        Patch::Merge(json!({"stringData": {"username": user, "password": "weak-password"}}));
    secrets.patch("vc-credentials", &PatchParams::default(), &login).await.unwrap();
    let waits = async |what: &str, texts: &[&str]| {
        testbed
            .status(what, 120, |status| {
                let plan = serde_json::to_string(&status.plan).unwrap();
                assert!(operator.ended().is_none(), "{}", operator.tail());
                texts.iter().all(|text| plan.contains(text))
            })
            .await;
        testbed.two_more_rounds(operator).await;
        assert!(!conf().await.contains(user), "the previous user stays in use");
    };
    let texts = ["Check the privileges of the new vCenter user", "VDO-14", "the user before stays"];
    waits("the user lacks privileges", &texts).await;

    testbed.vcenter.permit(&Permission::new(user, "Admin", "/")).await;
    testbed.vcenter.permit(&Permission::new(user, "NoAccess", "/DC0/vm/node-2")).await;
    testbed.check_now("a VM is hidden").await;
    waits("the user does not see a VM", &["Find the virtual machine of every node", "node-2"])
        .await;

    testbed.vcenter.forbid("/DC0/vm/node-2", user).await;
    testbed.check_now("the user has all privileges").await;
    eventually("the driver has the new user", 60, async || {
        let text = conf().await;
        if text.contains(user) { Ok(()) } else { Err(operator.tail()) }
    })
    .await;
    testbed.ready(operator, 60).await;
}

/// Triggers a reconcile and waits for it, while the login fails.
async fn reconcile_again(testbed: &Testbed) {
    let reason = format!("a reconcile at {}", Timestamp::now());
    let accepted = json!([{"code": "VDO-9999", "reason": reason}]);
    testbed.change(json!({"spec": {"acknowledgements": accepted}})).await;
    let generation = testbed.config().await.metadata.generation;
    testbed
        .status("the operator reconciled again", 30, |status| {
            let refused = status.findings.iter().any(|finding| finding.code == "VDO-1901");
            status.observed_generation == generation && refused
        })
        .await;
}

/// Secrets never appear in logs, metrics, status or events, nor in any object but Secrets.
async fn no_secret_shows(testbed: &Testbed, operator: &Process, secrets: &[&str]) {
    let mut shown = vec![
        ("the log", operator.log() + &operator.output()),
        ("the metrics", testbed.metrics(operator).await),
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
        let api = Api::<DynamicObject>::all_with(testbed.client(), &resource);
        let all = api.list(&ListParams::default()).await.unwrap();
        assert!(!all.items.is_empty(), "there must be a {kind}");
        shown.push((kind, serde_json::to_string(&all.items).unwrap()));
    }
    for secret in secrets {
        for (place, text) in &shown {
            for form in forms(secret) {
                assert!(!text.contains(&form), "{place} shows {secret} as {form}");
            }
        }
    }
}

/// The forms of a secret in a text: plain, and in base64 at any offset.
fn forms(secret: &str) -> Vec<String> {
    let encoded = (0..3).map(|ahead| {
        let text = BASE64_STANDARD.encode(format!("{}{secret}", "x".repeat(ahead)));
        // Without the characters that also encode neighboring bytes.
        let first = (ahead * 8).div_ceil(6);
        let last = (ahead + secret.len()) * 8 / 6;
        text[first..last].to_owned()
    });
    encoded.chain([secret.to_owned()]).collect()
}

/// Without `insecure: true`, a thumbprint or a CA, an untrusted certificate ends the connection before any password is
/// sent.
async fn no_certificate_is_trusted_unasked(testbed: &Testbed) {
    testbed.vcenter.forget_calls().await;
    let vcenter = json!({
        "metadata": {"name": "untrusted", "namespace": NAMESPACE},
        "spec": {
            "vcIp": testbed.vcenter.address().to_string(), "insecure": false,
            "credentials": "vc-credentials", "datacenters": ["DC0"],
        },
    });
    let vcenter: VsphereCloudConfig = serde_json::from_value(vcenter).unwrap();
    let vcenters = Api::<VsphereCloudConfig>::namespaced(testbed.client(), NAMESPACE);
    vcenters.create(&PostParams::default(), &vcenter).await.unwrap();
    eventually("the status shows the untrusted certificate", 30, async || {
        let status = vcenters.get("untrusted").await.unwrap().status.unwrap_or_default();
        let text = serde_json::to_string(&status).unwrap();
        if text.contains("failed") && text.contains("ertificate") { Ok(()) } else { Err(text) }
    })
    .await;
    assert_eq!(testbed.vcenter.calls().await.count("Login"), 0, "no password was sent");
    vcenters.delete("untrusted", &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn an_unreachable_vcenter_changes_nothing_and_the_operator_reconnects() {
    let mut testbed = Testbed::with_nodes(1).await;
    let proxy = FaultProxy::before(testbed.vcenter.address()).await;
    testbed.address = Some(proxy.address());
    let operator = testbed.operator();
    // One of two vCenters becomes unreachable.
    let _other = testbed.another_vcenter(Inventory::small()).await;
    testbed
        .configure(json!({
            "cloudProvider": {"vsphereCloudConfigs": ["vc", "other"]},
            "storageProvider": {"vsphereCloudConfig": "vc"},
        }))
        .await;
    testbed.ready(&operator, 90).await;
    let since = Timestamp::now();
    let vcenters = Api::<VsphereCloudConfig>::namespaced(testbed.client(), NAMESPACE);

    proxy.cut();
    let finding = testbed.finding("VDO-1901", 60).await;
    assert_eq!(finding.severity, api::Severity::Warning, "it can pass by itself");
    let unreachable: Vec<String> =
        finding.objects.iter().map(|object| object.name.clone()).collect();
    assert_eq!(unreachable, [format!("{NAMESPACE}/vc")], "the other one is reachable");
    let other = vcenters.get("other").await.unwrap().status.unwrap_or_default();
    assert!(api::condition::is_true(&other.conditions, "Ready"), "{other:?}");
    eventually("the VsphereCloudConfig shows that only the connection fails", 30, async || {
        let lost = vcenters.get("vc").await.unwrap().status.unwrap_or_default();
        let is_true = |kind| api::condition::is_true(&lost.conditions, kind);
        let fails = !is_true(api::condition::REACHABLE) && is_true(api::condition::AUTHENTICATED);
        if fails { Ok(()) } else { Err(format!("{lost:?}")) }
    })
    .await;
    let status = testbed.config().await.status.unwrap();
    assert!(api::condition::is_true(&status.conditions, "Ready"), "{status:?}");
    assert!(!api::condition::is_true(&status.conditions, "Progressing"), "{status:?}");
    assert!(api::condition::get(&status.conditions, "NetworkReady").is_some(), "{status:?}");
    let writes = testbed.writes_after_two_rounds(&operator, since).await;
    assert_eq!(writes, Vec::<String>::new(), "VDO must change nothing");

    // VDO still reverts manual changes: that needs no vCenter.
    let deployments = Api::<Deployment>::namespaced(testbed.client(), CSI);
    let none = Patch::Merge(json!({"spec": {"replicas": 0}}));
    deployments.patch("vsphere-csi-controller", &PatchParams::default(), &none).await.unwrap();
    eventually("the controller is scaled up again", 60, async || {
        let running = testbed.controller().await.status.unwrap_or_default().available_replicas;
        if running == Some(1) { Ok(()) } else { Err(operator.tail()) }
    })
    .await;
    testbed.two_more_rounds(&operator).await;
    let since = Timestamp::now();

    let generations = async || {
        let (controller, nodes) = (testbed.controller().await, testbed.node_driver().await);
        [controller.metadata.generation, nodes.metadata.generation]
    };
    let before = generations().await;
    // vCenter stays unreachable for longer than the grace period of a new operator, which has never reached it.
    testbed.stop(operator).await;
    let operator = testbed.operator_with(&["--grace=2"]);
    let degraded = |status: &api::VDOConfigStatus| {
        let mut findings = status.findings.iter().filter(|finding| finding.code == "VDO-1901");
        findings.any(|finding| finding.severity == api::Severity::Error)
            && api::condition::is_true(&status.conditions, "Degraded")
    };
    testbed.status("the finding is an Error", 90, degraded).await;
    let other = vcenters.get("other").await.unwrap().status.unwrap_or_default();
    assert!(api::condition::is_true(&other.conditions, "Ready"), "{other:?}");
    let running = testbed.controller().await.status.unwrap();
    assert_eq!(running.available_replicas, running.replicas, "the driver keeps running");
    let writes = testbed.writes_after_two_rounds(&operator, since).await;
    assert_eq!(writes, Vec::<String>::new(), "VDO must change nothing");

    proxy.heal();
    let healthy = |status: &api::VDOConfigStatus| {
        status.findings.iter().all(|finding| finding.severity == api::Severity::Info)
    };
    testbed.status("the finding is gone", 60, healthy).await;
    testbed.ready(&operator, 60).await;
    assert_eq!(generations().await, before, "the workloads must not change");
    assert_eq!(testbed.deletions(), Vec::<String>::new());
    assert_eq!(testbed.denied_requests(), Vec::<String>::new());
}

#[tokio::test]
async fn manual_changes_to_a_driver_are_reverted() {
    let (testbed, operator) = Testbed::with_storage(&[]).await;
    let merge = PatchParams::default();
    let deployments = Api::<Deployment>::namespaced(testbed.client(), CSI);
    let wanted = testbed.controller().await.spec.unwrap().replicas;
    let to_zero = json!({"spec": {"replicas": 0}});
    deployments.patch("vsphere-csi-controller", &merge, &Patch::Merge(to_zero)).await.unwrap();
    eventually("the controller is scaled back", 20, async || {
        let now = testbed.controller().await.spec.unwrap().replicas;
        if now == wanted { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await;

    let sets = Api::<DaemonSet>::namespaced(testbed.client(), CSI);
    sets.delete("vsphere-csi-node", &DeleteParams::background()).await.unwrap();
    let secrets = Api::<Secret>::namespaced(testbed.client(), CSI);
    secrets.delete("vsphere-config-secret", &DeleteParams::default()).await.unwrap();
    eventually("both exist again", 30, async || {
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
    testbed.ready(&operator, 30).await;
    a_windows_node_gets_its_driver(&testbed).await;
    testbed.ready(&operator, 60).await;
    assert_eq!(testbed.denied_requests(), Vec::<String>::new());
}

/// A Windows node joins: VDO installs the Windows driver only then.
async fn a_windows_node_gets_its_driver(testbed: &Testbed) {
    let sets = Api::<DaemonSet>::namespaced(testbed.client(), CSI);
    let name = "vsphere-csi-node-windows";
    assert!(sets.get_opt(name).await.unwrap().is_none(), "there is no Windows node");
    let vm = Vm::named("windows-1");
    testbed.vcenter.add_vms("DC0", [vm.clone()]).await;
    let node = Node::named(&vm.name).windows().system_uuid(&vm.uuid);
    let node = node.provider_id(&format!("vsphere://{}", vm.uuid));
    testbed.nodes.as_ref().unwrap().add(node).await;
    eventually("the driver for Windows runs there", 90, async || {
        let set = sets.get_opt(name).await.map_err(|e| e.to_string())?.ok_or("none yet")?;
        let ready = set.status.and_then(|status| status.number_available);
        if ready == Some(1) { Ok(()) } else { Err(format!("{ready:?}")) }
    })
    .await;
    let linux = testbed.node_driver().await.status.unwrap();
    assert_eq!(linux.desired_number_scheduled, 2, "the Linux driver must not run there");
}

#[tokio::test]
async fn storage_is_not_removed_while_a_volume_is_attached_and_objects_with_volumes_stay() {
    let (testbed, operator) = Testbed::with_storage(&[]).await;
    testbed.attach("pv-1", "node-1").await;
    testbed.change(json!({"spec": {"storageProvider": {"mode": "Removed"}}})).await;
    let finding = testbed.finding("VDO-1904", 20).await;
    assert!(finding.seen.unwrap().contains("pv-1 on node-1"));
    assert!(testbed.controller().await.metadata.deletion_timestamp.is_none());

    let attachments = Api::<k8s_openapi::api::storage::v1::VolumeAttachment>::all(testbed.client());
    attachments.delete("csi-pv-1", &DeleteParams::default()).await.unwrap();
    let deployments = Api::<Deployment>::namespaced(testbed.client(), CSI);
    eventually("the driver is gone", 30, async || {
        match deployments.get_opt("vsphere-csi-controller").await.map_err(|e| e.to_string())? {
            None => Ok(()),
            Some(_) => Err(operator.tail()),
        }
    })
    .await;
    testbed
        .status("the removal is done", 20, |status| {
            status
                .plan
                .as_ref()
                .is_some_and(|plan| plan.state == Some(api::vdo_config::PlanState::Done))
        })
        .await;
    let namespaces = Api::<k8s_openapi::api::core::v1::Namespace>::all(testbed.client());
    let namespace = namespaces.get(CSI).await.unwrap();
    assert!(namespace.metadata.deletion_timestamp.is_none());
    assert_eq!(testbed.forbidden_deletions(), Vec::<String>::new());
    assert_eq!(testbed.denied_requests(), Vec::<String>::new());
}
