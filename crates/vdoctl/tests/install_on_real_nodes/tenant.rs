//! A tenant who tries every trick of `adversary` where real controllers and kubelets act on the tenant's objects.

use api::VDOConfig;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use testkit::eventually;

use crate::{
    adversary::{self, Adversary, admin_objects_at_rest},
    cluster::{Cluster, NAMESPACE},
    is_ready,
};

/// The tenant attacks a running installation, and the next leader starts among the tenant's objects.
pub(crate) async fn changes_nothing(cluster: &Cluster) {
    let client = cluster.plane.client();
    let tenant = Adversary::settle(&cluster.plane).await;
    let before = admin_objects_at_rest(&client).await;
    tenant.attack(&cluster.plane).await;
    tenant.until_reported(&client).await;

    let old = cluster.operators().await;
    let pods = Api::<Pod>::namespaced(client.clone(), NAMESPACE);
    for pod in &old {
        let name = pod.metadata.name.as_deref().unwrap();
        pods.delete(name, &DeleteParams::default()).await.unwrap();
    }
    eventually("new pods of the operator are ready", 120, async || {
        let new = cluster.operators().await;
        let is_old = |pod: &Pod| old.iter().any(|old| old.metadata.uid == pod.metadata.uid);
        let ready = new.len() == 2 && new.iter().all(|pod| is_ready(pod) && !is_old(pod));
        if ready { Ok(()) } else { Err(format!("{new:?}")) }
    })
    .await;
    tenant.attack_again(&cluster.plane).await;
    tenant.until_reported(&client).await;

    let after = admin_objects_at_rest(&client).await;
    for (id, object) in &before {
        assert_eq!(Some(object), after.get(id), "{id} has changed");
    }
    let new: Vec<&String> = after.keys().filter(|id| !before.contains_key(*id)).collect();
    assert_eq!(new, Vec::<&String>::new());
    tenant.assert_held(&client).await;
    let configs = Api::<VDOConfig>::namespaced(client, NAMESPACE);
    for config in configs.list(&ListParams::default()).await.unwrap() {
        adversary::assert_ignored(&config);
    }
}
