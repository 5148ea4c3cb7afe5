//! A node service for csi-sanity where no node plugin runs.

use csi::proto::csi::{
    NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse, NodeGetInfoRequest,
    NodeGetInfoResponse, node_server,
};
use tonic::{Request, Response, Status};

/// The part of a node plugin that the controller's specs ask: which VM is the node.
#[derive(Debug)]
pub(crate) struct NodeInfo(pub(crate) String);

macro_rules! not_here {
    ($($method:ident: $request:ident => $response:ident;)*) => {
        #[tonic::async_trait]
        impl node_server::Node for NodeInfo {
            async fn node_get_info(
                &self,
                _: Request<NodeGetInfoRequest>,
            ) -> Result<Response<NodeGetInfoResponse>, Status> {
                let node_id = self.0.clone();
                Ok(Response::new(NodeGetInfoResponse { node_id, ..Default::default() }))
            }

            async fn node_get_capabilities(
                &self,
                _: Request<NodeGetCapabilitiesRequest>,
            ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
                Ok(Response::new(NodeGetCapabilitiesResponse::default()))
            }

            async fn node_unpublish_volume(
                &self,
                _: Request<csi::proto::csi::NodeUnpublishVolumeRequest>,
            ) -> Result<Response<csi::proto::csi::NodeUnpublishVolumeResponse>, Status> {
                // The specs of the controller clean up on the node too, where nothing happened.
                Ok(Response::new(csi::proto::csi::NodeUnpublishVolumeResponse {}))
            }

            $(async fn $method(
                &self,
                _: Request<csi::proto::csi::$request>,
            ) -> Result<Response<csi::proto::csi::$response>, Status> {
                Err(Status::unimplemented("a test of the controller"))
            })*
        }
    };
}
not_here! {
    node_stage_volume: NodeStageVolumeRequest => NodeStageVolumeResponse;
    node_unstage_volume: NodeUnstageVolumeRequest => NodeUnstageVolumeResponse;
    node_publish_volume: NodePublishVolumeRequest => NodePublishVolumeResponse;
    node_get_volume_stats: NodeGetVolumeStatsRequest => NodeGetVolumeStatsResponse;
    node_expand_volume: NodeExpandVolumeRequest => NodeExpandVolumeResponse;
}
