//! A new password reaches the drivers' pods. Their kubelets have the usual settings, and by themselves would renew the
//! files of a Secret only after 60 to 90 seconds.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::{
    Api, ResourceExt,
    api::{LogParams, Patch, PatchParams},
};
use serde_json::json;
use testkit::VcenterUser;
use tokio::time::{Instant, sleep};

use crate::cluster::{CLOUD_CONTROLLER, Cluster, NAMESPACE};

/// How long a driver can take to use a password after vCenter accepts it.
const ROTATION_LIMIT: Duration = Duration::from_secs(30);

pub(super) async fn both_drivers_use_a_new_password_without_a_restart(cluster: &Cluster) {
    let drivers =
        [("vmware-system-csi", "app=vsphere-csi-controller"), ("kube-system", CLOUD_CONTROLLER)];
    let mut before = Vec::new();
    for (namespace, selector) in drivers {
        before.push(cluster.restarts(namespace, selector).await);
    }
    let new = "another \"password\"";
    cluster.vcenter.set_user(&VcenterUser::new(cluster.vcenter.user(), new)).await;
    let secrets = Api::<Secret>::namespaced(cluster.plane.client(), NAMESPACE);
    let patch = Patch::Merge(json!({"stringData": {"password": new}}));
    secrets.patch("credentials", &PatchParams::default(), &patch).await.unwrap();

    let since = Instant::now();
    for (namespace, selector) in drivers {
        while !uses_new_credentials(cluster, namespace, selector).await {
            let waited = since.elapsed();
            assert!(waited < ROTATION_LIMIT, "{selector} has the old password after {waited:.1?}");
            sleep(Duration::from_millis(200)).await;
        }
        println!("{selector} uses the new password after {:.1?}", since.elapsed());
    }
    for ((namespace, selector), before) in drivers.into_iter().zip(before) {
        assert_eq!(cluster.restarts(namespace, selector).await, before, "{selector} restarts");
    }
    let users = cluster.vcenter.users().await;
    assert!(!users.to_string().contains(r#""locked":true"#), "{users}");
}

/// Whether one of these pods has logged in to vCenter with new credentials.
async fn uses_new_credentials(cluster: &Cluster, namespace: &str, selector: &str) -> bool {
    let api = Api::<Pod>::namespaced(cluster.plane.client(), namespace);
    for pod in cluster.pods(namespace, selector).await {
        let log = api.logs(&pod.name_any(), &LogParams::default()).await.unwrap_or_default();
        if log.contains("the new credentials are in use") {
            return true;
        }
    }
    false
}
