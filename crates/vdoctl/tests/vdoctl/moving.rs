//! `vdoctl move` for objects of the Go VDO in another namespace.

use api::{Finding, VDOConfig, VsphereCloudConfig, condition};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::json;
use testkit::eventually;

use crate::{
    stage::{NAMESPACE, PASSWORD, Stage},
    transcripts,
};

const ELSEWHERE: &str = "default";

async fn configured_as_the_go_vdo_allowed(stage: &Stage) {
    let client = stage.plane.client();
    let create = PostParams::default();
    let secret: Secret = serde_json::from_value(json!({
        "metadata": {"name": "vc-creds-csi"}, "type": "kubernetes.io/basic-auth",
        "stringData": {"username": "vdo@vsphere.local", "password": PASSWORD},
    }))
    .unwrap();
    Api::namespaced(client.clone(), "kube-system").create(&create, &secret).await.unwrap();
    let authority =
        json!({"metadata": {"name": "vc-ca"}, "data": {"ca.crt": stage.vcenter.ca_pem()}});
    let authority: ConfigMap = serde_json::from_value(authority).unwrap();
    Api::namespaced(client.clone(), ELSEWHERE).create(&create, &authority).await.unwrap();
    let vcenter: VsphereCloudConfig = serde_json::from_value(json!({
        "metadata": {"name": "vc-csi"},
        "spec": {
            "vcIp": stage.vcenter.address().to_string(), "insecure": false,
            "credentials": "vc-creds-csi", "caBundle": {"configMap": {"name": "vc-ca"}},
            "datacenters": ["DC0"],
        },
    }))
    .unwrap();
    Api::namespaced(client.clone(), ELSEWHERE).create(&create, &vcenter).await.unwrap();
    let config: VDOConfig = serde_json::from_value(json!({
        "metadata": {
            "name": "vdo-config1a2b3c4d", "finalizers": ["vdo.vmware.com/drivers"],
            "annotations": {"vdo.vmware.com/check-now": "before"},
        },
        "spec": {"storageProvider": {"vsphereCloudConfig": "vc-csi"}},
    }))
    .unwrap();
    Api::namespaced(client, ELSEWHERE).create(&create, &config).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vdoconfig_in_another_namespace_is_followed_after_the_command_that_its_status_prints() {
    let stage = Stage::set().await;
    stage.works(&["deploy", "--no-wait"]);
    configured_as_the_go_vdo_allowed(&stage).await;
    let output = stage.vdoctl(&["status"]);
    assert_eq!(output.code, 5, "{}", output.all());
    assert!(
        output.err.contains("vdoctl move --from default --name vdo-config1a2b3c4d"),
        "{}",
        output.all()
    );

    transcripts::on_cluster(&stage, "moving");
    let operator = stage.operator().await;
    let client = stage.plane.client();
    let theirs = Api::<VDOConfig>::namespaced(client.clone(), ELSEWHERE);
    let ours = Api::<VDOConfig>::namespaced(client.clone(), NAMESPACE);
    let finding: Finding = eventually("the status prints the command", 60, async || {
        let status = theirs.get("vdo-config1a2b3c4d").await.unwrap().status.unwrap_or_default();
        let finding = status.findings.iter().find(|finding| finding.code == "VDO-1009").cloned();
        finding.ok_or_else(|| format!("{status:?}"))
    })
    .await;
    let command = finding.remedy[0].split("   ").next().unwrap();
    let words: Vec<&str> = command.split(' ').skip(1).collect();
    let output = stage.vdoctl(&words);
    assert_eq!(output.code, 2, "it asks first: {}", output.all());
    assert!(
        output.out.contains("new VDOConfig vmware-system-vdo/vdo-config1a2b3c4d"),
        "{}",
        output.all()
    );
    assert!(ours.get_opt("vdo-config1a2b3c4d").await.unwrap().is_none());

    let output = stage.works(&[&words[..], &["--yes"]].concat());
    assert!(output.err.contains("Copied to namespace vmware-system-vdo"), "{}", output.all());
    eventually("VDO follows the copy, and logs in with it", 120, async || {
        let config = ours.get("vdo-config1a2b3c4d").await.unwrap();
        let status = config.status.unwrap_or_default();
        let so = |kind| condition::is_true(&status.conditions, kind);
        let good = so(condition::FOLLOWED) && so(condition::VCENTER_READY);
        if good { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;
    // The originals can be deleted without effect.
    let then = output.err.split_once("Then: kubectl ").unwrap().1;
    assert!(then.starts_with("delete vdoconfig --namespace default vdo-config1a2b3c4d"), "{then}");
    theirs.delete("vdo-config1a2b3c4d", &DeleteParams::default()).await.unwrap();
    assert!(theirs.get_opt("vdo-config1a2b3c4d").await.unwrap().is_none(), "nothing holds it");
    // The second run changes nothing.
    let output = stage.vdoctl(&[&words[..], &["--yes"]].concat());
    assert_eq!(output.code, 1, "{}", output.all());
    assert!(output.err.contains("follows VDOConfig"), "{}", output.all());
    drop(operator);
}
