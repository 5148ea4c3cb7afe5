//! The calls of a kubelet, through a socket in the guest.

use std::collections::HashMap;

use csi::proto::csi::{
    CapacityRange, NodeExpandVolumeRequest, NodeGetInfoRequest, NodeGetVolumeStatsRequest,
    NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest, VolumeCapability,
    node_client::NodeClient,
    volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode},
};
use testkit::{Guest, eventually};
use tonic::{Status, transport::Channel};

pub(crate) struct Plugin {
    client: NodeClient<Channel>,
}

/// The id of a disk of vSphere.
pub(crate) fn disk_uuid(number: u32) -> String {
    format!("6000c29{number:025x}")
}

fn staging(uuid: &str) -> String {
    format!("/var/lib/kubelet/plugins/kubernetes.io/csi/{uuid}/globalmount")
}

fn target(uuid: &str) -> String {
    format!("/var/lib/kubelet/pods/{uuid}/volumes/mount")
}

fn context(uuid: &str) -> HashMap<String, String> {
    let kind = ("type".to_owned(), "vSphere CNS Block Volume".to_owned());
    [kind, ("diskUUID".to_owned(), uuid.to_owned())].into()
}

fn capability() -> VolumeCapability {
    let mount = MountVolume { fs_type: "ext4".to_owned(), ..MountVolume::default() };
    VolumeCapability {
        access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
        access_type: Some(AccessType::Mount(mount)),
    }
}

impl Plugin {
    /// Waits until the plugin answers. `name` is that of the socket on this computer.
    pub(crate) async fn connect(guest: &Guest, name: &str, path: &str) -> Self {
        let address = format!("unix://{}", guest.socket(name, path).display());
        let client = eventually("the plugin answers", 60, async || {
            let endpoint = tonic::transport::Endpoint::from_shared(address.clone()).unwrap();
            let channel = endpoint.connect().await.map_err(|error| format!("{error:?}"))?;
            let mut client = NodeClient::new(channel);
            let info = client.node_get_info(NodeGetInfoRequest::default()).await;
            info.map(|_| client.clone()).map_err(|error| error.to_string())
        })
        .await;
        Self { client }
    }

    /// As the kubelet does before it calls.
    pub(crate) async fn make_folders(&self, guest: &Guest, uuid: &str) {
        let target = target(uuid);
        guest.run(&format!("mkdir -p {} $(dirname {target})", staging(uuid))).await;
    }

    pub(crate) async fn node_id(&self) -> String {
        let info = self.client.clone().node_get_info(NodeGetInfoRequest::default()).await;
        info.unwrap().into_inner().node_id
    }

    pub(crate) async fn stage(&self, uuid: &str) -> Result<(), Status> {
        let request = NodeStageVolumeRequest {
            volume_id: uuid.into(),
            publish_context: context(uuid),
            staging_target_path: staging(uuid),
            volume_capability: Some(capability()),
            ..NodeStageVolumeRequest::default()
        };
        self.client.clone().node_stage_volume(request).await.map(drop)
    }

    pub(crate) async fn publish(&self, uuid: &str) -> Result<String, Status> {
        let request = NodePublishVolumeRequest {
            volume_id: uuid.into(),
            publish_context: context(uuid),
            staging_target_path: staging(uuid),
            target_path: target(uuid),
            volume_capability: Some(capability()),
            ..NodePublishVolumeRequest::default()
        };
        self.client.clone().node_publish_volume(request).await?;
        Ok(target(uuid))
    }

    pub(crate) async fn expand(&self, uuid: &str, bytes: u64) -> Result<u64, Status> {
        let range = CapacityRange { required_bytes: bytes.cast_signed(), limit_bytes: 0 };
        let request = NodeExpandVolumeRequest {
            volume_id: uuid.into(),
            volume_path: target(uuid),
            capacity_range: Some(range),
            staging_target_path: staging(uuid),
            ..NodeExpandVolumeRequest::default()
        };
        let answer = self.client.clone().node_expand_volume(request).await?;
        Ok(answer.into_inner().capacity_bytes.cast_unsigned())
    }

    /// The size of the file system in bytes.
    pub(crate) async fn total(&self, uuid: &str) -> u64 {
        let request = NodeGetVolumeStatsRequest {
            volume_id: uuid.into(),
            volume_path: target(uuid),
            ..NodeGetVolumeStatsRequest::default()
        };
        let stats = self.client.clone().node_get_volume_stats(request).await.unwrap();
        stats.into_inner().usage[0].total.cast_unsigned()
    }

    pub(crate) async fn unpublish(&self, uuid: &str) -> Result<(), Status> {
        let request =
            NodeUnpublishVolumeRequest { volume_id: uuid.into(), target_path: target(uuid) };
        self.client.clone().node_unpublish_volume(request).await.map(drop)
    }

    pub(crate) async fn unstage(&self, uuid: &str) -> Result<(), Status> {
        let request =
            NodeUnstageVolumeRequest { volume_id: uuid.into(), staging_target_path: staging(uuid) };
        self.client.clone().node_unstage_volume(request).await.map(drop)
    }
}
