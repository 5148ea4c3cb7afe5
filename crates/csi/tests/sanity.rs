//! csi-sanity, the conformance tests of the CSI project, against the controller on the vCenter simulator.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod common;
#[path = "common/node_info.rs"]
mod node_info;

use std::sync::Arc;

use common::{Stage, node};
use csi::{
    identity::IdentityService,
    proto::csi::{
        controller_server::ControllerServer, identity_server::IdentityServer, node_server,
    },
    server::Socket,
};
use node_info::NodeInfo;
use runtime::build::BuildInfo;
use testkit::{Inventory, Process, peer};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// csi-sanity waits a minute for a change of its connection, and fails, if the connection is ready before it looks. With
/// one thread it looks first.
const ONE_THREAD: [(&str, &str); 1] = [("GOMAXPROCS", "1")];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_controller_passes_every_spec_of_csi_sanity() {
    let stage = Stage::with(Inventory::with_vms(3)).await;
    let socket = Socket::bind(&stage.socket()).unwrap();
    let identity = IdentityService::new(BuildInfo::new("vsphere-csi"), Arc::new(|| Ok(())));
    let router = tonic::transport::Server::builder()
        .add_service(IdentityServer::new(identity))
        .add_service(ControllerServer::new(stage.service.clone()))
        .add_service(node_server::NodeServer::new(NodeInfo(node(1))));
    let (stop, mut serving) = (CancellationToken::new(), JoinSet::new());
    serving.spawn(socket.serve(router, stop.clone()));

    let folder = stage.workdir.path().to_owned();
    let mutable =
        stage.workdir.write("mutable.yaml", "storagePolicyName: vSAN Default Storage Policy\n");
    let arguments = [
        format!("--csi.endpoint=unix://{}", stage.socket().display()),
        format!("--csi.mountdir={}/mount", folder.display()),
        format!("--csi.stagingdir={}/staging", folder.display()),
        format!("--csi.testvolumemutableparameters={}", mutable.unwrap().display()),
        "--ginkgo.no-color".to_owned(),
        "--ginkgo.skip=Node Service".to_owned(),
    ];
    let program = peer("csi-sanity");
    let run =
        Process::spawn(&program, "csi-sanity", arguments, &ONE_THREAD, &stage.workdir).unwrap();
    let status = run.wait(300).await.expect("csi-sanity ends");
    let output = run.output();
    let ran = output.lines().find(|line| line.starts_with("Ran ")).unwrap_or("no result");
    let summary = output.lines().find(|line| line.contains("Passed")).unwrap_or_default();
    eprintln!("{ran}\n{summary}");
    stop.cancel();
    assert!(status.success(), "{output}");
}
