//! The Identity service on the node's socket.

use runtime::build::BuildInfo;
use tonic::{Request, Response, Status};

use crate::{
    DRIVER_NAME,
    proto::csi::{
        GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest,
        GetPluginInfoResponse, PluginCapability, ProbeRequest, ProbeResponse,
        identity_server::Identity,
        plugin_capability::{Service, Type, VolumeExpansion, service, volume_expansion},
    },
};

#[derive(Debug)]
pub struct NodeIdentity {
    pub build: BuildInfo,
}

#[tonic::async_trait]
impl Identity for NodeIdentity {
    async fn get_plugin_info(
        &self,
        _request: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: DRIVER_NAME.to_owned(),
            vendor_version: self.build.version.to_owned(),
            manifest: [("commit".to_owned(), self.build.commit.to_owned())].into(),
        }))
    }

    /// The capabilities of the whole driver.
    async fn get_plugin_capabilities(
        &self,
        _request: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let services =
            [service::Type::ControllerService, service::Type::VolumeAccessibilityConstraints];
        let services = services.map(|kind| Type::Service(Service { r#type: kind.into() }));
        let expansion = VolumeExpansion { r#type: volume_expansion::Type::Online.into() };
        let all = services.into_iter().chain([Type::VolumeExpansion(expansion)]);
        let capabilities = all.map(|kind| PluginCapability { r#type: Some(kind) }).collect();
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(
        &self,
        _request: Request<ProbeRequest>,
    ) -> Result<Response<ProbeResponse>, Status> {
        Ok(Response::new(ProbeResponse { ready: Some(true) }))
    }
}
