//! The one way a Kubernetes client is made.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, api::ListParams};
use runtime::{
    build::BuildInfo,
    kubernetes::{ClusterOptions, client},
};
use testkit::{ControlPlane, User, eventually};

const BUILD: BuildInfo = BuildInfo::of("tested");

#[tokio::test]
async fn the_api_server_sees_who_we_are_and_in_which_version() {
    let plane = ControlPlane::builder().with_audit().start().await;
    let kubeconfig = Some(plane.kubeconfig_as(&User::named("viewer").in_group("system:masters")));
    let client =
        client(&ClusterOptions { kubeconfig, ..ClusterOptions::default() }, BUILD).await.unwrap();
    Api::<Namespace>::all(client).list(&ListParams::default()).await.unwrap();
    eventually("our name stands in the audit log", 10, async || {
        let events = plane.audit();
        let agents = events.iter().filter_map(|event| event["userAgent"].as_str());
        let ours = agents.filter(|agent| *agent == BUILD.user_agent()).count();
        if ours > 0 { Ok(()) } else { Err(format!("{} events of others", events.len())) }
    })
    .await;
}

#[tokio::test]
async fn a_kubeconfig_that_is_not_there_is_named() {
    let kubeconfig = Some("/nonexistent/kubeconfig".into());
    let options = ClusterOptions { kubeconfig, ..ClusterOptions::default() };
    let error = client(&options, BUILD).await.map(drop).unwrap_err().to_string();
    assert!(error.contains("/nonexistent/kubeconfig cannot be used"), "{error}");
}
