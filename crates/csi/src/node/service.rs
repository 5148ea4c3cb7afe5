//! The Node service of the CSI specification.

use tonic::{Code, Request, Response, Status};

use super::{
    mounting::MountError,
    operations::Operations,
    request::{
        Expand, Publish, RequestError, Stage, measured_path, unpublished_path, unstaged_path,
    },
    topology::{Answer, NodeTopology},
    vm_uuid::vm_uuid,
    volumes::{ExpandError, PublishError, StageError, StatsError, Volumes},
};
use crate::proto::csi::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest,
    NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse,
    NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, NodePublishVolumeRequest,
    NodePublishVolumeResponse, NodeServiceCapability, NodeStageVolumeRequest,
    NodeStageVolumeResponse, NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse,
    NodeUnstageVolumeRequest, NodeUnstageVolumeResponse, Topology,
    node_server::Node,
    node_service_capability::{Rpc, Type, rpc},
};

/// The Node service.
#[derive(Debug)]
pub struct NodeService {
    pub volumes: Volumes,
    pub operations: Operations,
    pub sys: std::path::PathBuf,
    /// The configured maximum. 0: only the VM limits the number of volumes.
    pub max_volumes: i64,
    /// `None`: the controller is not asked.
    pub controller: Option<NodeTopology>,
    /// Whether the node has a topology, which the controller must know.
    pub has_topology: bool,
}

impl NodeService {
    async fn ask_controller(&self, node_id: &str) -> Result<Answer, Status> {
        let Some(controller) = &self.controller else { return Ok(Answer::default()) };
        match controller.ask(node_id).await {
            Ok(answer) if self.has_topology => Ok(answer),
            Ok(answer) => Ok(Answer { limit: answer.limit, ..Answer::default() }),
            Err(error) if self.has_topology => Err(status(Code::Unavailable, &error)),
            Err(error) => {
                // The kubelet asks again later.
                let error = runtime::error_chain::error_chain(&error);
                tracing::warn!(error, "reporting the configured number of volumes");
                Ok(Answer::default())
            }
        }
    }
}

/// The limit for the kubelet: the smaller one of the configured maximum and of the VM's room. It is never 0 if the VM has
/// no room, because 0 means no limit.
fn limit(configured: i64, room: Option<i64>) -> i64 {
    match room.map(|room| room.max(1)) {
        Some(room) if configured == 0 => room,
        Some(room) => room.min(configured),
        None => configured,
    }
}

/// The status of an error, with all its causes.
fn status(code: Code, error: &dyn std::error::Error) -> Status {
    Status::new(code, runtime::error_chain::error_chain(error))
}

/// One `From` per error, so that `?` turns each into the right code.
macro_rules! into_status {
    ($($error:ty),+) => {
        $(impl From<$error> for Status {
            fn from(error: $error) -> Self {
                status(error.code(), &error)
            }
        })+
    };
}
into_status!(RequestError, StageError, PublishError, MountError, ExpandError, StatsError);

#[tonic::async_trait]
impl Node for NodeService {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        let request = request.into_inner();
        let stage = Stage::read(&request)?;
        let volumes = self.volumes.clone();
        let operation = async move { Ok(volumes.stage(&stage).await?) };
        self.operations.run("NodeStageVolume", &request.volume_id, operation).await?;
        Ok(Response::new(NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        let request = request.into_inner();
        let path = unstaged_path(&request)?;
        let volumes = self.volumes.clone();
        let operation = async move { Ok(volumes.unstage(&path).await?) };
        self.operations.run("NodeUnstageVolume", &request.volume_id, operation).await?;
        Ok(Response::new(NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let publish = Publish::read(&request)?;
        let volumes = self.volumes.clone();
        let operation = async move { Ok(volumes.publish(&publish).await?) };
        self.operations.run("NodePublishVolume", &request.volume_id, operation).await?;
        Ok(Response::new(NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let path = unpublished_path(&request)?;
        let volumes = self.volumes.clone();
        let operation = async move { Ok(volumes.unpublish(&path).await?) };
        self.operations.run("NodeUnpublishVolume", &request.volume_id, operation).await?;
        Ok(Response::new(NodeUnpublishVolumeResponse {}))
    }

    /// Not serialised: it changes nothing, and the kubelet asks every minute.
    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        let path = measured_path(request.get_ref())?;
        Ok(Response::new(self.volumes.stats(&path).await?))
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let expand = Expand::read(&request)?;
        let volumes = self.volumes.clone();
        let operation = async move { Ok(volumes.expand(&expand).await?) };
        let size = self.operations.run("NodeExpandVolume", &request.volume_id, operation).await?;
        let capacity_bytes = i64::try_from(size).unwrap_or(i64::MAX);
        Ok(Response::new(NodeExpandVolumeResponse { capacity_bytes }))
    }

    async fn node_get_capabilities(
        &self,
        _request: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let kinds = [
            rpc::Type::StageUnstageVolume,
            rpc::Type::GetVolumeStats,
            rpc::Type::ExpandVolume,
            rpc::Type::VolumeCondition,
            rpc::Type::SingleNodeMultiWriter,
        ];
        let capability = |kind: rpc::Type| NodeServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })),
        };
        let capabilities = kinds.into_iter().map(capability).collect();
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(
        &self,
        _request: Request<NodeGetInfoRequest>,
    ) -> Result<Response<NodeGetInfoResponse>, Status> {
        let node_id = vm_uuid(&self.sys).map_err(|error| status(Code::Internal, &error))?;
        let answer = self.ask_controller(&node_id).await?;
        Ok(Response::new(NodeGetInfoResponse {
            node_id,
            max_volumes_per_node: limit(self.max_volumes, answer.limit),
            accessible_topology: Some(Topology { segments: answer.segments.into_iter().collect() }),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kubelet_learns_the_smaller_limit_and_never_none() {
        assert_eq!(limit(59, Some(44)), 44);
        assert_eq!(limit(30, Some(44)), 30);
        assert_eq!(limit(59, None), 59);
        assert_eq!(limit(0, Some(44)), 44);
        assert_eq!(limit(59, Some(0)), 1, "0 would mean no limit");
    }
}
