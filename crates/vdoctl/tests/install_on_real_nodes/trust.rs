//! The programs in the images trust the certificate authorities in the images, and no others.

use serde_json::json;
use testkit::eventually;

use crate::cluster::{Cluster, TIMEOUT, cloud_provider, text, unwrapped};

const VERSION: &str = env!("CARGO_PKG_VERSION");

#[tokio::test]
#[ignore = "needs root, namespaces and cgroup v1: make test-nodes"]
async fn operator_and_cloud_controller_trust_the_authorities_in_their_images() {
    let cluster = Cluster::with_nodes(1).await;
    let image = cluster.registry.push_own("vdo");
    cluster.registry.push_own("vdo-cloud-controller");
    let authority = cluster.vcenter.ca_pem();
    // A site that adds its authority to the images.
    cluster.registry.push_with_authorities("vdo-cloud-controller", VERSION, &authority);
    let trusting = cluster.registry.push_with_authorities("vdo", "trusting", &authority);

    cluster.does(&["deploy", "--image", &image, "--timeout", TIMEOUT]).await;
    // The computer of the user trusts the authority.
    let file = cluster.workdir.write("authority.pem", &authority).unwrap();
    let trust = [("SSL_CERT_FILE", file.to_str().unwrap())];
    cluster.write_objects(json!({"cloudProvider": cloud_provider()}), None);
    let output = cluster.vdoctl_with(&["configure", "-f", "vdo.yaml"], &trust).await;
    assert!(output.status.success(), "{}", text(&output));
    eventually("VDO does not trust the vCenter", 60, async || {
        let shown = unwrapped(&text(&cluster.vdoctl(&["status"]).await));
        if shown.contains("VDO-1302") { Ok(()) } else { Err(shown) }
    })
    .await;
    assert!(cluster.cloud_controllers().await.is_empty(), "nothing is installed before");

    cluster.does(&["deploy", "--image", &trusting, "--timeout", TIMEOUT]).await;
    let shown = cluster.does(&["status", "--wait", "--timeout", TIMEOUT]).await;
    assert!(shown.contains("● Healthy"), "{shown}");
    assert!(!cluster.cloud_controllers().await.is_empty());
}
