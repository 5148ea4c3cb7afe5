//! csi-sanity, the conformance tests of the CSI project, against controller and node plugin with real disks: every spec
//! for the capabilities that they report, for file systems and for raw block volumes. It needs root and loop devices.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)]

mod common;
#[path = "node/plugin.rs"]
mod plugin;

use std::{path::Path, sync::Arc};

use common::{Stage, node};
use csi::{
    identity::IdentityService,
    proto::csi::{controller_server::ControllerServer, identity_server::IdentityServer},
    server::Socket,
};
use plugin::TestNode;
use runtime::build::BuildInfo;
use serde_json::json;
use testkit::{Disks, Inventory, Process, peer};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// csi-sanity waits a minute for a change of its connection, and fails, if the connection is ready before it looks. With
/// one thread it looks first.
const ONE_THREAD: [(&str, &str); 1] = [("GOMAXPROCS", "1")];

/// The specs for capabilities that the driver does not report: it offers neither.
const NOT_REPORTED: [&str; 2] = [
    "GroupControllerService not supported",
    "ControllerPublishVolume.readonly field not supported",
];

/// Runs csi-sanity where the node plugin runs.
async fn passes(access_type: &str) {
    let stage = Stage::with(Inventory::with_vms(1)).await;
    // On such a host, as many disks fit on the VM as the plugin reports: 59.
    for host in ["a1", "a2", "a3", "b1", "b2", "b3"] {
        let path = format!("/DC0/host/cluster-{}/esx-{host}", &host[..1]);
        stage.vcenter.patch_host(&path, json!({"version": "7.0.3"})).await;
    }
    let socket = Socket::bind(&stage.socket()).unwrap();
    let identity = IdentityService::new(BuildInfo::new("vsphere-csi"), Arc::new(|| Ok(())));
    let router = tonic::transport::Server::builder()
        .add_service(IdentityServer::new(identity))
        .add_service(ControllerServer::new(stage.service.clone()));
    let (stop, mut serving) = (CancellationToken::new(), JoinSet::new());
    serving.spawn(socket.serve(router, stop.clone()));
    let disks = Arc::new(Disks::start());
    disks.follow(&stage.vcenter).await;
    let plugin = TestNode::of_vm(disks, "node-1", &node(1), &[]).await;

    let policy = "storagePolicyName: vSAN Default Storage Policy\n";
    let mutable = stage.workdir.write("mutable.yaml", policy).unwrap();
    let arguments = [
        peer("csi-sanity").display().to_string(),
        format!("--csi.controllerendpoint=unix://{}", stage.socket().display()),
        format!("--csi.endpoint=unix://{}", plugin.socket().display()),
        format!("--csi.mountdir={}", plugin.path("mount").display()),
        format!("--csi.stagingdir={}", plugin.path("staging").display()),
        format!("--csi.testvolumeaccesstype={access_type}"),
        format!("--csi.testvolumemutableparameters={}", mutable.display()),
        "--csi.testvolumesize=1073741824".to_owned(),
        "--csi.testvolumeexpandsize=2147483648".to_owned(),
        "--csi.testnodevolumeattachlimit".to_owned(),
        "--ginkgo.no-color".to_owned(),
        "--ginkgo.v".to_owned(),
    ];
    let arguments = plugin.enter().into_iter().chain(arguments);
    let nsenter = Path::new("nsenter");
    let run =
        Process::spawn(nsenter, "csi-sanity", arguments, &ONE_THREAD, &stage.workdir).unwrap();
    let status = run.wait(600).await.expect("csi-sanity ends");
    let output = run.output();
    stop.cancel();
    let line = |part: &str| output.lines().find(|line| line.contains(part)).unwrap_or_default();
    eprintln!("{access_type}: {} {}", line("Ran "), line("Passed"));
    assert!(status.success(), "{output}\n{}", plugin.plugin().tail());
    let reasons = output.lines().filter_map(|line| line.trim().strip_prefix("[SKIPPED] "));
    let skipped: Vec<&str> = reasons
        .filter(|reason| !reason.starts_with("in ") && !NOT_REPORTED.contains(reason))
        .collect();
    assert!(skipped.is_empty(), "skipped: {skipped:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn volumes_with_a_file_system_pass_every_spec_of_csi_sanity() {
    passes("mount").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn raw_block_volumes_pass_every_spec_of_csi_sanity() {
    passes("block").await;
}
