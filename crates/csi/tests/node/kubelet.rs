//! The questions of the kubelet before it mounts anything.

use csi::proto::{
    csi::{
        GetPluginCapabilitiesRequest, GetPluginInfoRequest, NodeExpandVolumeRequest,
        NodeGetInfoRequest, NodeGetVolumeStatsRequest, NodePublishVolumeRequest,
        NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, ProbeRequest,
        identity_client::IdentityClient, volume_capability::access_mode::Mode,
    },
    registration::{InfoRequest, RegistrationStatus, registration_client::RegistrationClient},
};
use rustix::process::Signal;
use testkit::eventually;
use tonic::Code;

use crate::plugin::{TestNode, VM_UUID, Volume, channel};

/// This is the kubelet's side of the registration, in a few lines.
#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn the_kubelet_registers_the_driver() {
    let node = TestNode::start().await;
    let socket = node.path("r/csi.vsphere.vmware.com-reg.sock");
    let mut kubelet = RegistrationClient::new(channel(&socket).await);
    let info = kubelet.get_info(InfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.r#type, "CSIPlugin");
    assert_eq!(info.name, "csi.vsphere.vmware.com");
    assert_eq!(info.endpoint, "/var/lib/kubelet/plugins/csi.vsphere.vmware.com/csi.sock");
    assert_eq!(info.supported_versions, ["1.0.0"]);
    let registered = RegistrationStatus { plugin_registered: true, error: String::new() };
    kubelet.notify_registration_status(registered).await.unwrap();
    // After a failure the plugin offers a new socket: the kubelet tries again.
    let before = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&socket).unwrap());
    let failed = RegistrationStatus { plugin_registered: false, error: "collision".to_owned() };
    kubelet.notify_registration_status(failed).await.unwrap();
    eventually("a new socket", 20, async || {
        let now = std::fs::metadata(&socket).map_err(|error| error.to_string())?;
        let inode = std::os::unix::fs::MetadataExt::ino(&now);
        if inode == before { Err("the old one".to_owned()) } else { Ok(()) }
    })
    .await;
    let mut kubelet = RegistrationClient::new(channel(&socket).await);
    kubelet.get_info(InfoRequest {}).await.unwrap();
    // A cleaned-up folder gets its socket again.
    drop(kubelet);
    std::fs::remove_file(&socket).unwrap();
    eventually("the socket is back", 30, async || socket.exists().then_some(()).ok_or("gone"))
        .await;
    // A plugin that ends removes its sockets.
    node.plugin().signal(Signal::TERM);
    let status = node.plugin().wait(30).await.unwrap();
    assert!(status.success(), "{status}: {}", node.plugin().tail());
    assert!(!socket.exists() && !node.socket().exists());
}

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn the_driver_tells_who_it_is() {
    let node = TestNode::start().await;
    let mut identity = IdentityClient::new(channel(&node.socket()).await);
    let info = identity.get_plugin_info(GetPluginInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.name, "csi.vsphere.vmware.com");
    assert!(!info.vendor_version.is_empty());
    identity.get_plugin_capabilities(GetPluginCapabilitiesRequest {}).await.unwrap();
    let probe = identity.probe(ProbeRequest {}).await.unwrap().into_inner();
    assert_eq!(probe.ready, Some(true));
    let info = node.client().await.node_get_info(NodeGetInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.node_id, VM_UUID);
    assert_eq!(info.max_volumes_per_node, 59);
}

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn malformed_requests_are_invalid_arguments() {
    let node = TestNode::start().await;
    let mut client = node.client().await;
    let volume = Volume::with("ext4");
    let staging = node.staging(&volume).display().to_string();
    let good = NodeStageVolumeRequest {
        volume_id: volume.id.clone(),
        publish_context: volume.context(),
        staging_target_path: staging.clone(),
        volume_capability: Some(volume.capability.clone()),
        ..NodeStageVolumeRequest::default()
    };
    let path =
        |path: &str| NodeStageVolumeRequest { staging_target_path: path.into(), ..good.clone() };
    let capability = |volume: Volume| NodeStageVolumeRequest {
        volume_capability: Some(volume.capability),
        ..good.clone()
    };
    let disk = |uuid: &str| NodeStageVolumeRequest {
        publish_context: [("diskUUID".to_owned(), uuid.to_owned())].into(),
        ..good.clone()
    };
    let mut no_type = volume.capability.clone();
    no_type.access_type = None;
    let mut no_mode = volume.capability.clone();
    no_mode.access_mode = None;
    let file_volume = ("type".to_owned(), "vSphere CNS File Volume".to_owned());
    for request in [
        NodeStageVolumeRequest { volume_id: String::new(), ..good.clone() },
        NodeStageVolumeRequest { volume_capability: None, ..good.clone() },
        NodeStageVolumeRequest { volume_capability: Some(no_type), ..good.clone() },
        NodeStageVolumeRequest { volume_capability: Some(no_mode), ..good.clone() },
        NodeStageVolumeRequest { publish_context: [file_volume].into(), ..good.clone() },
        NodeStageVolumeRequest { publish_context: [].into(), ..good.clone() },
        path(""),
        path("/"),
        path("relative/path"),
        path("/var/lib/../../etc"),
        disk(""),
        disk("../../sda"),
        capability(Volume::with("ntfs")),
        capability(volume.clone().mode(Mode::MultiNodeMultiWriter)),
        capability(volume.clone().mode(Mode::Unknown)),
        capability(volume.clone().options(&["noatime,bind"])),
    ] {
        let error = client.node_stage_volume(request.clone()).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{request:?}: {error}");
    }
    let publish = NodePublishVolumeRequest {
        volume_id: volume.id.clone(),
        publish_context: volume.context(),
        staging_target_path: staging.clone(),
        target_path: node.target(&volume, "a").display().to_string(),
        volume_capability: Some(volume.capability.clone()),
        ..NodePublishVolumeRequest::default()
    };
    for (request, code) in [
        (
            NodePublishVolumeRequest { volume_id: String::new(), ..publish.clone() },
            Code::InvalidArgument,
        ),
        (
            NodePublishVolumeRequest { target_path: String::new(), ..publish.clone() },
            Code::InvalidArgument,
        ),
        (
            NodePublishVolumeRequest { volume_capability: None, ..publish.clone() },
            Code::InvalidArgument,
        ),
        (
            NodePublishVolumeRequest { staging_target_path: String::new(), ..publish.clone() },
            Code::FailedPrecondition,
        ),
    ] {
        let error = client.node_publish_volume(request.clone()).await.unwrap_err();
        assert_eq!(error.code(), code, "{request:?}: {error}");
    }
    let (id, text) = (volume.id.clone(), String::new);
    let invalid = |error: tonic::Status| assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    let request =
        NodeUnstageVolumeRequest { volume_id: text(), staging_target_path: staging.clone() };
    invalid(client.node_unstage_volume(request).await.unwrap_err());
    let request = NodeUnstageVolumeRequest { volume_id: id.clone(), staging_target_path: text() };
    invalid(client.node_unstage_volume(request).await.unwrap_err());
    let request = NodeUnpublishVolumeRequest { volume_id: text(), target_path: "/a".into() };
    invalid(client.node_unpublish_volume(request).await.unwrap_err());
    let request = NodeUnpublishVolumeRequest { volume_id: id.clone(), target_path: text() };
    invalid(client.node_unpublish_volume(request).await.unwrap_err());
    let request = NodeGetVolumeStatsRequest { volume_id: id.clone(), ..Default::default() };
    invalid(client.node_get_volume_stats(request).await.unwrap_err());
    let request = NodeGetVolumeStatsRequest { volume_path: "/a".into(), ..Default::default() };
    invalid(client.node_get_volume_stats(request).await.unwrap_err());
    let request = NodeExpandVolumeRequest { volume_id: id.clone(), ..Default::default() };
    invalid(client.node_expand_volume(request).await.unwrap_err());
    let request = NodeExpandVolumeRequest { volume_path: "/a".into(), ..Default::default() };
    invalid(client.node_expand_volume(request).await.unwrap_err());
    let request =
        NodeExpandVolumeRequest { volume_id: id, volume_path: "/a".into(), ..Default::default() };
    let error = client.node_expand_volume(request).await.unwrap_err();
    assert_eq!(error.code(), Code::NotFound, "{error}");
}
