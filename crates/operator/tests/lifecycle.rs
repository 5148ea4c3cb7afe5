//! The drivers that VDO manages, and the effect of creating and deleting objects on them.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use api::{VDOConfig, VsphereCloudConfig, vdo_config::Mode};
use common::{NAMESPACE, Testbed};
use jiff::Timestamp;
use k8s_openapi::{
    api::{apps::v1::Deployment, core::v1::ConfigMap, events::v1::Event},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceValidation,
};
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use testkit::{ControlPlane, Inventory, eventually};

const CSI: &str = "vmware-system-csi";

fn storage() -> serde_json::Value {
    json!({"storageProvider": {"vsphereCloudConfig": "vc"}})
}

#[tokio::test]
async fn a_driver_not_managed_by_vdo_is_left_alone_and_a_second_config_changes_nothing() {
    let testbed = Testbed::with_nodes(1).await;
    let labels = json!({"app": "theirs"});
    let theirs = json!({
        "metadata": {"name": "vsphere-csi-controller", "namespace": "kube-system"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "driver", "image": "example.com/vsphere-csi/driver:v2.7.0"}]},
            },
        },
    });
    let theirs: Deployment = serde_json::from_value(theirs).unwrap();
    let deployments = Api::<Deployment>::namespaced(testbed.client(), "kube-system");
    deployments.create(&PostParams::default(), &theirs).await.unwrap();
    let operator = testbed.operator();
    testbed.configure(storage()).await;

    let finding = testbed.finding("VDO-1902", 30).await;
    assert!(finding.seen.unwrap().contains("kube-system"));
    let writes = testbed.writes_after_two_rounds(&operator, Timestamp::MIN).await;
    assert_eq!(writes, Vec::<String>::new(), "VDO must install and change nothing");

    let rival =
        json!({"metadata": {"name": "zz-rival", "namespace": NAMESPACE}, "spec": storage()});
    let rival: VDOConfig = serde_json::from_value(rival).unwrap();
    let configs = Api::<VDOConfig>::namespaced(testbed.client(), NAMESPACE);
    configs.create(&PostParams::default(), &rival).await.unwrap();
    let finding = testbed.finding("VDO-1001", 20).await;
    assert!(finding.seen.unwrap().contains("zz-rival"));
    eventually("the status of the rival names the followed VDOConfig", 20, async || {
        let status = configs.get("zz-rival").await.map_err(|e| e.to_string())?.status;
        let status = status.ok_or("no status yet")?;
        let ready = api::condition::get(&status.conditions, "Ready").ok_or("no condition")?;
        let explained = ready.message.contains("vmware-system-vdo/vdo-config");
        if explained { Ok(()) } else { Err(ready.message.clone()) }
    })
    .await;
    assert_eq!(testbed.denied_requests(), Vec::<String>::new());
    // On OpenShift the platform owns the drivers: VDO does not install one even if none exists.
    testbed.stop(operator).await;
    deployments.delete("vsphere-csi-controller", &DeleteParams::default()).await.unwrap();
    testbed.openshift("VSphere").await;
    let operator = testbed.operator();
    testbed
        .status("the driver is only observed", 60, |status| {
            let mode = status.csi.as_ref().and_then(|csi| csi.mode);
            assert!(operator.ended().is_none(), "{}", operator.tail());
            mode == Some(Mode::Observe)
        })
        .await;
    testbed.check_now("on-openshift").await;
    assert_eq!(testbed.writes(), Vec::<String>::new(), "nothing is applied");
    assert_eq!(testbed.denied_requests(), Vec::<String>::new());
}

#[tokio::test]
async fn a_driver_that_fails_with_older_hosts_is_reported_until_the_hosts_are_upgraded() {
    let plane = ControlPlane::builder().with_controllers().with_audit().start().await;
    let inventory = Inventory::with_vms(2).version("9.1.0");
    let testbed = Testbed::on_inventory(plane, inventory, false).await;
    let truth = testbed.vcenter.truth().await;
    let vm = &truth["datacenters"][0]["vms"][0];
    let text = |key: &str| vm[key].as_str().unwrap();
    let host = format!("/DC0/host/{}/{}", text("cluster"), text("host"));
    testbed.vcenter.patch_host(&host, json!({"version": "9.0.0"})).await;
    let theirs = json!({
        "metadata": {"name": "vsphere-csi-controller", "namespace": "kube-system"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "theirs"}},
            "template": {
                "metadata": {"labels": {"app": "theirs"}},
                "spec": {"containers": [{"name": "driver", "image": "example.com/vsphere-csi/driver:v3.7.3"}]},
            },
        },
    });
    let theirs: Deployment = serde_json::from_value(theirs).unwrap();
    let deployments = Api::<Deployment>::namespaced(testbed.client(), "kube-system");
    deployments.create(&PostParams::default(), &theirs).await.unwrap();
    let operator = testbed.operator();
    testbed.configure(storage()).await;
    let finding = testbed.finding("VDO-1113", 30).await;
    let seen = finding.seen.unwrap();
    assert!(seen.contains("CSI 3.7.3") && seen.contains("older than 9.1"), "{seen}");
    assert!(finding.remedy[0].contains("Upgrade the ESXi hosts to 9.1"), "{:?}", finding.remedy);
    testbed.vcenter.patch_host(&host, json!({"version": "9.1.0"})).await;
    testbed
        .status("the fault is gone with the old host", 30, |status| {
            assert!(operator.ended().is_none(), "{}", operator.tail());
            !status.findings.iter().any(|finding| finding.code == "VDO-1113")
        })
        .await;
    assert_eq!(testbed.writes(), Vec::<String>::new(), "VDO changes nothing");
}

#[tokio::test]
async fn an_object_that_cannot_be_read_does_not_stop_the_others() {
    let testbed = Testbed::with_nodes(1).await;
    // As after a change of the CRD: a stored object does not match the expected schema.
    let any_schema = json!({"openAPIV3Schema": {
        "type": "object", "x-kubernetes-preserve-unknown-fields": true,
    }});
    let any_schema: CustomResourceValidation = serde_json::from_value(any_schema).unwrap();
    testbed
        .change_crd("vspherecloudconfigs.vdo.vmware.com", |definition| {
            definition.spec.versions[0].schema = Some(any_schema.clone());
        })
        .await;
    let resource = ApiResource::erase::<VsphereCloudConfig>(&());
    let odd = Api::<DynamicObject>::namespaced_with(testbed.client(), NAMESPACE, &resource);
    eventually("the API server accepts the invalid object", 20, async || {
        let object = DynamicObject::new("odd", &resource).data(json!({"spec": {"vcIp": 42}}));
        odd.create(&PostParams::default(), &object).await.map(drop)
    })
    .await;

    let operator = testbed.operator();
    testbed.configure(storage()).await;
    testbed.ready(&operator, 60).await;
    eventually("the operator logs it", 20, async || {
        if operator.log().contains("cannot be read") { Ok(()) } else { Err(operator.tail()) }
    })
    .await;

    // An unreadable second VDOConfig is reported, and the first one stays in effect.
    testbed
        .change_crd("vdoconfigs.vdo.vmware.com", |definition| {
            definition.spec.versions[0].schema = Some(any_schema.clone());
        })
        .await;
    let resource = ApiResource::erase::<VDOConfig>(&());
    let raw = Api::<DynamicObject>::namespaced_with(testbed.client(), NAMESPACE, &resource);
    eventually("the API server accepts the invalid VDOConfig", 20, async || {
        let object = DynamicObject::new("zz-odd", &resource).data(json!({"spec": 42}));
        raw.create(&PostParams::default(), &object).await.map(drop)
    })
    .await;
    testbed.finding_about("VDO-1001", 30, &["zz-odd"]).await;
    let spec = json!({"storageProvider": {"clusterDistribution": "next-to-a-rival"}});
    testbed.change(json!({"spec": spec})).await;
    eventually("the driver has the change", 60, async || {
        let conf = testbed.secret(CSI, "vsphere-config-secret", "csi-vsphere.conf").await;
        if conf.contains("next-to-a-rival") { Ok(()) } else { Err(operator.tail()) }
    })
    .await;
    raw.delete("zz-odd", &DeleteParams::default()).await.unwrap();
    testbed.ready(&operator, 60).await;

    // The followed VDOConfig becomes unreadable: an event names the field, and the driver stays.
    let before = testbed.controller().await.metadata;
    let version = |version: serde_json::Value| {
        Patch::Merge(json!({"spec": {"storageProvider": {"version": version}}}))
    };
    eventually("the API server accepts the invalid field", 20, async || {
        raw.patch("vdo-config", &PatchParams::default(), &version(json!(["3.7.0"]))).await.map(drop)
    })
    .await;
    let event = testbed.event("Unreadable", "spec.storageProvider.version").await;
    assert!(event.contains("stay as they are"), "{event}");
    raw.patch("vdo-config", &PatchParams::default(), &version(json!(null))).await.unwrap();
    testbed.ready(&operator, 60).await;
    let after = testbed.controller().await.metadata;
    assert_eq!((after.uid, after.generation), (before.uid, before.generation));
    assert_eq!(testbed.denied_requests(), Vec::<String>::new());
}

#[tokio::test]
async fn drivers_outlive_their_config_unless_its_policy_is_to_remove_them() {
    let (testbed, operator) = Testbed::with_storage(&[]).await;
    let configs = Api::<VDOConfig>::namespaced(testbed.client(), NAMESPACE);
    let gone = async || {
        eventually("the config is gone", 30, async || {
            match configs.get_opt("vdo-config").await.map_err(|e| e.to_string())? {
                None => Ok(()),
                Some(_) => Err("it still exists".to_owned()),
            }
        })
        .await;
    };
    let before = testbed.controller().await.metadata;
    let lines = [
        "vdo_driver_ready{driver=\"CSI\"} 1",
        "vdo_driver_version{driver=\"CSI\",version=\"",
        "vdo_driver_target{driver=\"CSI\",version=\"",
        "vdo_step{driver=\"CSI\",step=\"Controllers\",state=\"Done\"} 1",
        "vdo_vcenter_verified{vcenter=\"vc\"} 1",
        "method=\"Login\",outcome=\"Done\"} ",
    ];
    eventually("the metrics are complete", 30, async || {
        let metrics = testbed.metrics(&operator).await;
        let missing: Vec<&&str> = lines.iter().filter(|line| !metrics.contains(**line)).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?}\n{metrics}")) }
    })
    .await;
    configs.delete("vdo-config", &DeleteParams::default()).await.unwrap();
    gone().await;
    let events = Api::<Event>::namespaced(testbed.client(), NAMESPACE);
    let retained_notes = async || -> Vec<String> {
        let all = events.list(&ListParams::default()).await.unwrap();
        let events =
            all.items.into_iter().filter(|e| e.reason.as_deref() == Some("DriversRetained"));
        events.filter_map(|event| event.note).collect()
    };
    let note = eventually("an event explains how to remove the drivers", 30, async || {
        retained_notes().await.pop().ok_or("not yet")
    })
    .await;
    assert!(note.contains("CSI") && note.contains("deletionPolicy: Remove"), "{note}");
    eventually("the metrics of the driver are gone", 30, async || {
        let metrics = testbed.metrics(&operator).await;
        if metrics.contains("vdo_driver_ready{") { Err(metrics) } else { Ok(()) }
    })
    .await;

    // A spec without the driver is no request to remove it.
    let other = json!({
        "metadata": {"name": "vdo-config", "namespace": NAMESPACE},
        "spec": {"cloudProvider": {"mode": "Observe"}},
    });
    let other: VDOConfig = serde_json::from_value(other).unwrap();
    configs.create(&PostParams::default(), &other).await.unwrap();
    testbed.finding("VDO-1910", 60).await;
    assert!(testbed.controller().await.metadata.deletion_timestamp.is_none());

    // The same spec again, with removal: VDO adopts the running driver unchanged.
    let mut spec = storage();
    spec["deletionPolicy"] = json!("Remove");
    spec["cloudProvider"] = json!(null);
    testbed.change(json!({"spec": spec})).await;
    testbed
        .status("the spec is in effect", 60, |status| {
            let mentioned = status.findings.iter().all(|finding| finding.code != "VDO-1910");
            mentioned && status.csi.as_ref().is_some_and(|csi| csi.mode == Some(Mode::Managed))
        })
        .await;
    testbed.ready(&operator, 30).await;
    let after = testbed.controller().await.metadata;
    assert_eq!((after.uid, after.generation), (before.uid, before.generation));
    assert_eq!(retained_notes().await.len(), 1, "one event, not one for each round");
    a_broken_or_lost_record_is_reported_and_recreated(&testbed, &operator).await;
    let has_finalizer = |config: &VDOConfig| config.metadata.finalizers.is_some();
    eventually("the VDOConfig has a finalizer", 20, async || {
        if has_finalizer(&testbed.config().await) { Ok(()) } else { Err("not yet") }
    })
    .await;

    testbed.attach("pv-1", "node-1").await;
    configs.delete("vdo-config", &DeleteParams::default()).await.unwrap();
    testbed.finding("VDO-1904", 20).await;
    assert!(testbed.controller().await.metadata.deletion_timestamp.is_none());
    let attachments = Api::<k8s_openapi::api::storage::v1::VolumeAttachment>::all(testbed.client());
    attachments.delete("csi-pv-1", &DeleteParams::default()).await.unwrap();
    gone().await;
    let deployments = Api::<Deployment>::namespaced(testbed.client(), CSI);
    eventually("the driver is gone", 30, async || {
        match deployments.get_opt("vsphere-csi-controller").await.map_err(|e| e.to_string())? {
            None => Ok(()),
            Some(_) => Err(operator.tail()),
        }
    })
    .await;
    assert_eq!(testbed.forbidden_deletions(), Vec::<String>::new());
    assert_eq!(testbed.denied_requests(), Vec::<String>::new());
}

async fn a_broken_or_lost_record_is_reported_and_recreated(
    testbed: &Testbed,
    operator: &testkit::Process,
) {
    let (before, config) = (testbed.controller().await.metadata, testbed.config().await);
    let cluster_id = config.status.and_then(|status| status.cluster_id).unwrap();
    let maps = Api::<ConfigMap>::namespaced(testbed.client(), NAMESPACE);
    let broken = Patch::Merge(json!({"data": {"record.json": "{ not a record"}}));
    maps.patch("vdo-record-csi", &PatchParams::default(), &broken).await.unwrap();
    let finding = testbed.finding("VDO-1911", 60).await;
    assert!(finding.seen.unwrap().contains("vdo-record-csi"));
    maps.delete("vdo-record-csi", &DeleteParams::default()).await.unwrap();
    let record = eventually("the record is re-created", 60, async || {
        let map = maps.get_opt("vdo-record-csi").await.map_err(|e| e.to_string())?;
        let map = map.ok_or_else(|| operator.tail())?;
        let record: serde_json::Value =
            serde_json::from_str(&map.data.unwrap()["record.json"]).map_err(|e| e.to_string())?;
        if record["configuration"].is_string() { Ok(record) } else { Err(record.to_string()) }
    })
    .await;
    assert_eq!(record["clusterId"], json!(cluster_id));
    testbed.ready(operator, 60).await;
    let after = testbed.controller().await.metadata;
    assert_eq!(
        (after.uid, after.generation),
        (before.uid, before.generation),
        "the driver must not change"
    );
}

/// OLM's OperatorCondition, as far as an operator uses it. The tests have no OLM: this creates the CRD and the
/// permissions.
async fn fake_olm(testbed: &Testbed) -> Api<DynamicObject> {
    let names = json!({
        "kind": "OperatorCondition", "listKind": "OperatorConditionList",
        "plural": "operatorconditions", "singular": "operatorcondition",
    });
    let schema = json!({"openAPIV3Schema": {
        "type": "object", "x-kubernetes-preserve-unknown-fields": true,
    }});
    let role = json!({"name": "vdo-condition", "namespace": NAMESPACE});
    let group = "operators.coreos.com";
    let objects = [
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {
                "name": "operatorconditions.operators.coreos.com",
            },
            "spec": {
                "group": group, "names": names, "scope": "Namespaced",
                "versions": [{"name": "v2", "served": true, "storage": true, "schema": schema}],
            },
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": role,
            "rules": [{
                "apiGroups": [group], "resources": ["operatorconditions"],
                "resourceNames": ["vdo.v0"], "verbs": ["get", "update", "patch"],
            }],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": role,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "vdo-condition"},
            "subjects": [{"kind": "ServiceAccount", "name": "vdo", "namespace": NAMESPACE}],
        }),
    ];
    testbed.create("olm", objects).await;
    let gvk = kube::core::GroupVersionKind::gvk(group, "v2", "OperatorCondition");
    let resource = ApiResource::from_gvk_with_plural(&gvk, "operatorconditions");
    let conditions = Api::<DynamicObject>::namespaced_with(testbed.client(), NAMESPACE, &resource);
    eventually("the condition is accepted", 30, async || {
        let object = DynamicObject::new("vdo.v0", &resource);
        conditions.create(&PostParams::default(), &object).await.map(drop)
    })
    .await;
    conditions
}

#[tokio::test]
async fn the_operator_reconnects_to_a_restarted_api_server_and_tells_olm_when_to_wait() {
    let mut testbed = Testbed::with_nodes(1).await;
    testbed.variables = vec![("OPERATOR_CONDITION_NAME", "vdo.v0")];
    let conditions = fake_olm(&testbed).await;
    let operator = testbed.operator();
    testbed.configure(storage()).await;
    testbed.ready(&operator, 60).await;
    eventually("OLM is allowed to replace the operator", 30, async || {
        let condition =
            conditions.get("vdo.v0").await.unwrap().data["spec"]["conditions"][0].clone();
        let upgradeable = condition["type"] == "Upgradeable" && condition["status"] == "True";
        if upgradeable { Ok(()) } else { Err(condition.to_string()) }
    })
    .await;
    eventually("the condition was set before and after the installation", 30, async || {
        let patches = testbed.plane.audit().into_iter().filter(|event| {
            let uri = event["requestURI"].as_str().unwrap_or_default();
            uri.contains("operatorconditions") && event["verb"] == "patch"
        });
        let patches = patches.count();
        if patches >= 2 { Ok(()) } else { Err(format!("{patches} patches")) }
    })
    .await;
    // A starting API server denies everything until it has read the roles, so this comes first.
    assert_eq!(testbed.denied_requests(), Vec::<String>::new());
    testbed.plane.kill_api_server();
    testbed.plane.restart_api_server().await;
    testbed.change(json!({"spec": {"storageProvider": {"clusterDistribution": "Testbed"}}})).await;
    eventually("the change arrives", 60, async || {
        assert!(operator.ended().is_none(), "{}", operator.tail());
        let text = testbed.secret(CSI, "vsphere-config-secret", "csi-vsphere.conf").await;
        if text.contains("Testbed") { Ok(()) } else { Err(operator.tail()) }
    })
    .await;
}
