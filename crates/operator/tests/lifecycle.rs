//! Whose drivers they are, and what becomes of them when objects come and go.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use api::{VDOConfig, VsphereCloudConfig, vdo_config::Mode};
use common::{NAMESPACE, Stage};
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
use testkit::eventually;

const CSI: &str = "vmware-system-csi";

fn storage() -> serde_json::Value {
    json!({"storageProvider": {"vsphereCloudConfig": "vc"}})
}

#[tokio::test]
async fn a_driver_by_other_hands_is_left_alone_and_a_second_config_changes_nothing() {
    let stage = Stage::of(1, false).await;
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
    let deployments = Api::<Deployment>::namespaced(stage.client(), "kube-system");
    deployments.create(&PostParams::default(), &theirs).await.unwrap();
    let operator = stage.operator();
    stage.configure(storage()).await;

    let finding = stage.finding("VDO-1902", 30).await;
    assert!(finding.seen.unwrap().contains("kube-system"));
    let writes = stage.writes_in_the_end(&operator, Timestamp::MIN).await;
    assert_eq!(writes, Vec::<String>::new(), "nothing of ours beside it, nothing of theirs");

    let rival =
        json!({"metadata": {"name": "zz-rival", "namespace": NAMESPACE}, "spec": storage()});
    let rival: VDOConfig = serde_json::from_value(rival).unwrap();
    let configs = Api::<VDOConfig>::namespaced(stage.client(), NAMESPACE);
    configs.create(&PostParams::default(), &rival).await.unwrap();
    let finding = stage.finding("VDO-1001", 20).await;
    assert!(finding.seen.unwrap().contains("zz-rival"));
    eventually("the rival is told", 20, async || {
        let status = configs.get("zz-rival").await.map_err(|e| e.to_string())?.status;
        let status = status.ok_or("no status yet")?;
        let ready = api::condition::get(&status.conditions, "Ready").ok_or("no condition")?;
        let told = ready.message.contains("vmware-system-vdo/vdo-config");
        if told { Ok(()) } else { Err(ready.message.clone()) }
    })
    .await;
    assert_eq!(stage.refusals(), Vec::<String>::new());
    // The platform itself owns the drivers: without theirs, ours is not installed either.
    stage.dismiss(operator).await;
    deployments.delete("vsphere-csi-controller", &DeleteParams::default()).await.unwrap();
    stage.openshift("VSphere").await;
    let operator = stage.operator();
    stage
        .status("the driver is only observed", 60, |status| {
            let mode = status.csi.as_ref().and_then(|csi| csi.mode);
            assert!(operator.ended().is_none(), "{}", operator.tail());
            mode == Some(Mode::Observe)
        })
        .await;
    stage.check_now("on-openshift").await;
    assert_eq!(stage.writes(), Vec::<String>::new(), "nothing is applied");
    assert_eq!(stage.refusals(), Vec::<String>::new());
}

#[tokio::test]
async fn an_object_that_cannot_be_read_does_not_stop_the_others() {
    let stage = Stage::of(1, false).await;
    // As after a change of the definition: what is stored does not fit what is expected.
    let anything = json!({"openAPIV3Schema": {
        "type": "object", "x-kubernetes-preserve-unknown-fields": true,
    }});
    let anything: CustomResourceValidation = serde_json::from_value(anything).unwrap();
    stage
        .redefine("vspherecloudconfigs.vdo.vmware.com", |definition| {
            definition.spec.versions[0].schema = Some(anything.clone());
        })
        .await;
    let resource = ApiResource::erase::<VsphereCloudConfig>(&());
    let odd = Api::<DynamicObject>::namespaced_with(stage.client(), NAMESPACE, &resource);
    eventually("the odd one is accepted", 20, async || {
        let object = DynamicObject::new("odd", &resource).data(json!({"spec": {"vcIp": 42}}));
        odd.create(&PostParams::default(), &object).await.map(drop)
    })
    .await;

    let operator = stage.operator();
    stage.configure(storage()).await;
    stage.ready(&operator, 60).await;
    eventually("it is said", 20, async || {
        if operator.log().contains("cannot be read") { Ok(()) } else { Err(operator.tail()) }
    })
    .await;

    // A second VDOConfig: it is named, and the first is followed as ever.
    stage
        .redefine("vdoconfigs.vdo.vmware.com", |definition| {
            definition.spec.versions[0].schema = Some(anything.clone());
        })
        .await;
    let resource = ApiResource::erase::<VDOConfig>(&());
    let raw = Api::<DynamicObject>::namespaced_with(stage.client(), NAMESPACE, &resource);
    eventually("the odd rival is accepted", 20, async || {
        let object = DynamicObject::new("zz-odd", &resource).data(json!({"spec": 42}));
        raw.create(&PostParams::default(), &object).await.map(drop)
    })
    .await;
    stage.finding_about("VDO-1001", 30, &["zz-odd"]).await;
    let desired = json!({"storageProvider": {"clusterDistribution": "beside-a-rival"}});
    stage.change(json!({"spec": desired})).await;
    eventually("the wish is fulfilled", 60, async || {
        let conf = stage.secret(CSI, "vsphere-config-secret", "csi-vsphere.conf").await;
        if conf.contains("beside-a-rival") { Ok(()) } else { Err(operator.tail()) }
    })
    .await;
    raw.delete("zz-odd", &DeleteParams::default()).await.unwrap();
    stage.ready(&operator, 60).await;

    // The one that is followed: it says itself what is wrong with it, and the driver stays as it is.
    let before = stage.controller().await.metadata;
    let version = |version: serde_json::Value| {
        Patch::Merge(json!({"spec": {"storageProvider": {"version": version}}}))
    };
    eventually("the spoilt one is accepted", 20, async || {
        raw.patch("vdo-config", &PatchParams::default(), &version(json!(["3.7.0"]))).await.map(drop)
    })
    .await;
    let said = stage.event("Unreadable", "spec.storageProvider.version").await;
    assert!(said.contains("stay as they are"), "{said}");
    raw.patch("vdo-config", &PatchParams::default(), &version(json!(null))).await.unwrap();
    stage.ready(&operator, 60).await;
    let after = stage.controller().await.metadata;
    assert_eq!((after.uid, after.generation), (before.uid, before.generation));
    assert_eq!(stage.refusals(), Vec::<String>::new());
}

#[tokio::test]
async fn drivers_outlive_their_config_unless_it_says_otherwise() {
    let (stage, operator) = Stage::with_storage(&[]).await;
    let configs = Api::<VDOConfig>::namespaced(stage.client(), NAMESPACE);
    let gone = async || {
        eventually("the config is gone", 30, async || {
            match configs.get_opt("vdo-config").await.map_err(|e| e.to_string())? {
                None => Ok(()),
                Some(_) => Err("still there".to_owned()),
            }
        })
        .await;
    };
    let before = stage.controller().await.metadata;
    let lines = [
        "vdo_driver_ready{driver=\"CSI\"} 1",
        "vdo_driver_version{driver=\"CSI\",version=\"",
        "vdo_driver_target{driver=\"CSI\",version=\"",
        "vdo_step{driver=\"CSI\",step=\"Controllers\",state=\"Done\"} 1",
        "vdo_vcenter_verified{vcenter=\"vc\"} 1",
        "method=\"Login\",outcome=\"Done\"} ",
    ];
    eventually("everything is shown", 30, async || {
        let shown = stage.metrics(&operator).await;
        let missing: Vec<&&str> = lines.iter().filter(|line| !shown.contains(**line)).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?}\n{shown}")) }
    })
    .await;
    configs.delete("vdo-config", &DeleteParams::default()).await.unwrap();
    gone().await;
    let events = Api::<Event>::namespaced(stage.client(), NAMESPACE);
    let said = async || -> Vec<String> {
        let all = events.list(&ListParams::default()).await.unwrap();
        let said = all.items.into_iter().filter(|e| e.reason.as_deref() == Some("DriversRetained"));
        said.filter_map(|event| event.note).collect()
    };
    let note = eventually("it is said how they are removed", 30, async || {
        said().await.pop().ok_or("not yet")
    })
    .await;
    assert!(note.contains("CSI") && note.contains("deletionPolicy: Remove"), "{note}");
    eventually("nothing is shown of what is not followed", 30, async || {
        let shown = stage.metrics(&operator).await;
        if shown.contains("vdo_driver_ready{") { Err(shown) } else { Ok(()) }
    })
    .await;

    // A wish that does not mention the driver is no request to remove it.
    let other = json!({
        "metadata": {"name": "vdo-config", "namespace": NAMESPACE},
        "spec": {"cloudProvider": {"mode": "Observe"}},
    });
    let other: VDOConfig = serde_json::from_value(other).unwrap();
    configs.create(&PostParams::default(), &other).await.unwrap();
    stage.finding("VDO-1910", 60).await;
    assert!(stage.controller().await.metadata.deletion_timestamp.is_none());

    // The same wish again, now with the drivers to go with it: what runs is taken up as it is.
    let mut spec = storage();
    spec["deletionPolicy"] = json!("Remove");
    spec["cloudProvider"] = json!(null);
    stage.change(json!({"spec": spec})).await;
    stage
        .status("the wish is taken up", 60, |status| {
            let mentioned = status.findings.iter().all(|finding| finding.code != "VDO-1910");
            mentioned && status.csi.as_ref().is_some_and(|csi| csi.mode == Some(Mode::Managed))
        })
        .await;
    stage.ready(&operator, 30).await;
    let after = stage.controller().await.metadata;
    assert_eq!((after.uid, after.generation), (before.uid, before.generation));
    assert_eq!(said().await.len(), 1, "once, and not in every round");
    a_record_that_is_spoilt_or_lost_is_named_and_made_anew(&stage, &operator).await;
    let has_finalizer = |config: &VDOConfig| config.metadata.finalizers.is_some();
    eventually("it has a finalizer", 20, async || {
        if has_finalizer(&stage.config().await) { Ok(()) } else { Err("not yet") }
    })
    .await;

    stage.attach("pv-1", "node-1").await;
    configs.delete("vdo-config", &DeleteParams::default()).await.unwrap();
    stage.finding("VDO-1904", 20).await;
    assert!(stage.controller().await.metadata.deletion_timestamp.is_none());
    let attachments = Api::<k8s_openapi::api::storage::v1::VolumeAttachment>::all(stage.client());
    attachments.delete("csi-pv-1", &DeleteParams::default()).await.unwrap();
    gone().await;
    let deployments = Api::<Deployment>::namespaced(stage.client(), CSI);
    eventually("the driver is gone", 30, async || {
        match deployments.get_opt("vsphere-csi-controller").await.map_err(|e| e.to_string())? {
            None => Ok(()),
            Some(_) => Err(operator.tail()),
        }
    })
    .await;
    assert_eq!(stage.forbidden_deletions(), Vec::<String>::new());
    assert_eq!(stage.refusals(), Vec::<String>::new());
}

async fn a_record_that_is_spoilt_or_lost_is_named_and_made_anew(
    stage: &Stage,
    operator: &testkit::Process,
) {
    let (before, driver) = (stage.controller().await.metadata, stage.config().await);
    let identity = driver.status.and_then(|status| status.cluster_id).unwrap();
    let maps = Api::<ConfigMap>::namespaced(stage.client(), NAMESPACE);
    let spoil = Patch::Merge(json!({"data": {"record.json": "{ not a record"}}));
    maps.patch("vdo-record-csi", &PatchParams::default(), &spoil).await.unwrap();
    let finding = stage.finding("VDO-1911", 60).await;
    assert!(finding.seen.unwrap().contains("vdo-record-csi"));
    maps.delete("vdo-record-csi", &DeleteParams::default()).await.unwrap();
    let record = eventually("the record is made anew", 60, async || {
        let map = maps.get_opt("vdo-record-csi").await.map_err(|e| e.to_string())?;
        let map = map.ok_or_else(|| operator.tail())?;
        let record: serde_json::Value =
            serde_json::from_str(&map.data.unwrap()["record.json"]).map_err(|e| e.to_string())?;
        if record["configuration"].is_string() { Ok(record) } else { Err(record.to_string()) }
    })
    .await;
    assert_eq!(record["clusterId"], json!(identity));
    stage.ready(operator, 60).await;
    let after = stage.controller().await.metadata;
    assert_eq!((after.uid, after.generation), (before.uid, before.generation), "not touched");
}

/// OLM's OperatorCondition, as far as an operator sees it. OLM itself is not among the programs the
/// tests have: the definition and the rights it would give are made by hand.
async fn fake_olm(stage: &Stage) -> Api<DynamicObject> {
    let names = json!({
        "kind": "OperatorCondition", "listKind": "OperatorConditionList",
        "plural": "operatorconditions", "singular": "operatorcondition",
    });
    let schema = json!({"openAPIV3Schema": {
        "type": "object", "x-kubernetes-preserve-unknown-fields": true,
    }});
    let role = json!({"name": "vdo-condition", "namespace": NAMESPACE});
    let group = "operators.coreos.com";
    let made = [
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
    stage.create("olm", made).await;
    let gvk = kube::core::GroupVersionKind::gvk(group, "v2", "OperatorCondition");
    let resource = ApiResource::from_gvk_with_plural(&gvk, "operatorconditions");
    let conditions = Api::<DynamicObject>::namespaced_with(stage.client(), NAMESPACE, &resource);
    eventually("the condition is accepted", 30, async || {
        let object = DynamicObject::new("vdo.v0", &resource);
        conditions.create(&PostParams::default(), &object).await.map(drop)
    })
    .await;
    conditions
}

#[tokio::test]
async fn an_api_server_that_restarts_is_met_again_and_olm_is_told_when_to_wait() {
    let mut stage = Stage::of(1, false).await;
    stage.variables = vec![("OPERATOR_CONDITION_NAME", "vdo.v0")];
    let conditions = fake_olm(&stage).await;
    let operator = stage.operator();
    stage.configure(storage()).await;
    stage.ready(&operator, 60).await;
    eventually("OLM may replace the operator", 30, async || {
        let condition =
            conditions.get("vdo.v0").await.unwrap().data["spec"]["conditions"][0].clone();
        let may = condition["type"] == "Upgradeable" && condition["status"] == "True";
        if may { Ok(()) } else { Err(condition.to_string()) }
    })
    .await;
    eventually("while the driver was installed OLM had to wait", 30, async || {
        let told = stage.plane.audit().into_iter().filter(|event| {
            let uri = event["requestURI"].as_str().unwrap_or_default();
            uri.contains("operatorconditions") && event["verb"] == "patch"
        });
        let told = told.count();
        if told >= 2 { Ok(()) } else { Err(format!("told {told} times")) }
    })
    .await;
    // One that starts refuses everybody until it has read who may do what.
    assert_eq!(stage.refusals(), Vec::<String>::new());
    stage.plane.kill_api_server();
    stage.plane.restart_api_server().await;
    stage.change(json!({"spec": {"storageProvider": {"clusterDistribution": "Testbed"}}})).await;
    eventually("the change arrives", 60, async || {
        assert!(operator.ended().is_none(), "{}", operator.tail());
        let text = stage.secret(CSI, "vsphere-config-secret", "csi-vsphere.conf").await;
        if text.contains("Testbed") { Ok(()) } else { Err(operator.tail()) }
    })
    .await;
}
