//! Kubernetes clients on a real API server.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, api::ListParams};
use runtime::{
    build::BuildInfo,
    kubernetes::{ClusterOptions, client},
};
use testkit::{ControlPlane, User, Workdir, eventually};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    task::JoinSet,
};

const BUILD: BuildInfo = BuildInfo::new("tested");

#[tokio::test]
async fn requests_carry_the_name_and_version_of_the_binary() {
    let plane = ControlPlane::builder().with_audit().start().await;
    let kubeconfig = Some(plane.kubeconfig_as(&User::named("viewer").in_group("system:masters")));
    let client =
        client(&ClusterOptions { kubeconfig, ..ClusterOptions::default() }, BUILD).await.unwrap();
    Api::<Namespace>::all(client).list(&ListParams::default()).await.unwrap();
    eventually("our name is in the audit log", 10, async || {
        let events = plane.audit();
        let agents = events.iter().filter_map(|event| event["userAgent"].as_str());
        let ours = agents.filter(|agent| *agent == BUILD.user_agent()).count();
        if ours > 0 { Ok(()) } else { Err(format!("{} events, none with our name", events.len())) }
    })
    .await;
}

#[tokio::test]
async fn a_missing_kubeconfig_is_named() {
    let kubeconfig = Some("/nonexistent/kubeconfig".into());
    let options = ClusterOptions { kubeconfig, ..ClusterOptions::default() };
    let error = client(&options, BUILD).await.map(drop).unwrap_err().to_string();
    assert!(error.contains("/nonexistent/kubeconfig cannot be used"), "{error}");
}

/// The connection is never silent, so only the request itself can detect that no response comes.
#[tokio::test]
async fn a_request_without_a_response_times_out() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut dripping = JoinSet::new();
    dripping.spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let asked = stream.read(&mut [0; 4096]).await.unwrap();
        assert!(asked > 0, "it asks first");
        stream.write_all(b"HTTP/1.1 200 OK\r\nx-slow: ").await.unwrap();
        let mut drops = tokio::time::interval(Duration::from_millis(100));
        while stream.write_all(b"1").await.is_ok() {
            drops.tick().await;
        }
    });
    let kubeconfig = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "slow",
        "clusters": [{"name": "slow", "cluster": {"server": format!("http://{address}")}}],
        "users": [{"name": "slow", "user": {}}],
        "contexts": [{"name": "slow", "context": {"cluster": "slow", "user": "slow"}}],
    });
    let workdir = Workdir::new("slow").unwrap();
    let kubeconfig = Some(workdir.write("kubeconfig", kubeconfig.to_string()).unwrap());
    let request_timeout = Some(Duration::from_secs(1));
    let options = ClusterOptions { kubeconfig, request_timeout, ..ClusterOptions::default() };
    let namespaces = Api::<Namespace>::all(client(&options, BUILD).await.unwrap());
    let answer = tokio::time::timeout(Duration::from_mins(2), namespaces.get("default")).await;
    let error = answer.expect("it ends by itself").unwrap_err();
    assert!(runtime::error_chain::error_chain(&error).contains("request timed out"), "{error:?}");
}
