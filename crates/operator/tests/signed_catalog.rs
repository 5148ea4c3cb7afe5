//! A driver whose release only a signed catalog lists, after that catalog has expired, is gone, and the
//! operator was restarted.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use api::CompatibilityConfig;
use catalog::{
    Driver, Implementation,
    trust::{Bundle, SigningKey},
};
use common::{NAMESPACE, Testbed};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams},
};
use serde_json::json;
use testkit::{Process, VcenterUser, eventually};

const CSI: &str = "vmware-system-csi";
/// A release that the embedded catalog lacks.
const RELEASE: &str = "3.7.99";

/// The embedded catalog with another release, signed.
fn signed(key: &SigningKey, expires: Timestamp) -> String {
    let mut catalog = catalog::embedded().clone();
    let model = "3.7.3".parse().unwrap();
    let mut release = catalog.find(Driver::Csi, Implementation::Upstream, &model).unwrap().clone();
    release.version = RELEASE.parse().unwrap();
    release.kubernetes.max = "1.36".parse().unwrap();
    catalog.releases.push(release);
    (catalog.serial, catalog.expires) = (7, Some(expires));
    catalog.issued = expires - SignedDuration::from_hours(1);
    Bundle::sign(catalog::write(&catalog).as_bytes(), std::slice::from_ref(key)).to_json()
}

/// An admin deletes the driver's Deployment; the operator re-creates it with the same release.
async fn is_recreated(testbed: &Testbed, operator: &Process) {
    let deployments = Api::<Deployment>::namespaced(testbed.client(), CSI);
    let before = deployments.get("vsphere-csi-controller").await.unwrap().uid();
    deployments.delete("vsphere-csi-controller", &DeleteParams::background()).await.unwrap();
    let restored = eventually("the Deployment is restored", 60, async || {
        assert!(operator.ended().is_none(), "{}", operator.tail());
        let found = deployments.get_opt("vsphere-csi-controller").await.unwrap();
        found.filter(|found| found.uid() != before).ok_or_else(|| operator.tail())
    })
    .await;
    assert_eq!(restored.labels()["app.kubernetes.io/version"], RELEASE);
}

/// Changes the password in vCenter and in the Secret, and waits until the driver has it.
async fn rotate_password(testbed: &Testbed, operator: &Process, password: &str) {
    testbed.vcenter.set_user(&VcenterUser::new(testbed.vcenter.user(), password)).await;
    testbed.write_secret(password).await;
    eventually("the driver has the new password", 60, async || {
        let conf = testbed.secret(CSI, "vsphere-config-secret", "csi-vsphere.conf").await;
        if conf.contains(password) { Ok(()) } else { Err(operator.tail()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_outlives_the_signed_catalog_it_came_from() {
    let testbed = Testbed::with_nodes(1).await;
    let (key, _) = SigningKey::generate().unwrap();
    let expires = Timestamp::now() + SignedDuration::from_secs(90);
    testbed.write_catalog(&signed(&key, expires)).await;
    let config = json!({
        "metadata": {"name": "catalog"},
        "spec": {"bundle": {"configMap": "vdo-catalog"}, "publicKey": key.public().to_string()},
    });
    let config: CompatibilityConfig = serde_json::from_value(config).unwrap();
    let configs = Api::<CompatibilityConfig>::namespaced(testbed.client(), NAMESPACE);
    configs.create(&PostParams::default(), &config).await.unwrap();
    let operator = testbed.operator();
    testbed.configure(json!({"storageProvider": {"vsphereCloudConfig": "vc"}})).await;
    testbed.ready(&operator, 120).await;
    let version = async || testbed.config().await.status.unwrap().csi.unwrap().version.unwrap();
    assert_eq!(version().await, RELEASE);

    // The catalog expires, and then the operator restarts.
    let left = Timestamp::now().duration_until(expires);
    tokio::time::sleep(left.try_into().unwrap_or_default()).await;
    testbed.stop(operator).await;
    let operator = testbed.operator();
    testbed.finding("VDO-1105", 60).await;
    testbed.ready(&operator, 60).await;
    let status = configs.get("catalog").await.unwrap().status.unwrap();
    assert_eq!(status.serial, Some(7), "the last good catalog is in use");
    assert!(api::condition::is_true(&status.conditions, "Trusted"), "{status:?}");
    assert!(!api::condition::is_true(&status.conditions, "Current"), "{status:?}");
    is_recreated(&testbed, &operator).await;
    rotate_password(&testbed, &operator, "after-the-expiry").await;

    // The catalog is deleted: VDO uses the embedded one, which lacks the release.
    testbed.stop(operator).await;
    configs.delete("catalog", &DeleteParams::default()).await.unwrap();
    let operator = testbed.operator();
    testbed.finding_about("VDO-1116", 60, &[RELEASE]).await;
    is_recreated(&testbed, &operator).await;
    rotate_password(&testbed, &operator, "after-the-catalog").await;
    testbed.ready(&operator, 60).await;
    assert_eq!(version().await, RELEASE, "the release must not change");
}
