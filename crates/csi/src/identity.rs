//! The Identity service.

use std::{collections::HashMap, sync::Arc};

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

/// Says whether the process can work; an error is the reason why it cannot.
pub type Readiness = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// The Identity service, of the controller or of a node.
#[derive(Clone)]
pub struct IdentityService {
    build: BuildInfo,
    readiness: Readiness,
}

impl std::fmt::Debug for IdentityService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IdentityService").field("build", &self.build).finish_non_exhaustive()
    }
}

impl IdentityService {
    pub fn new(build: BuildInfo, readiness: Readiness) -> Self {
        Self { build, readiness }
    }
}

#[tonic::async_trait]
impl Identity for IdentityService {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: DRIVER_NAME.to_owned(),
            vendor_version: self.build.version.to_owned(),
            manifest: HashMap::from([("commit".to_owned(), self.build.commit.to_owned())]),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let service = |kind: service::Type| Type::Service(Service { r#type: kind.into() });
        let expansion = |kind: volume_expansion::Type| {
            Type::VolumeExpansion(VolumeExpansion { r#type: kind.into() })
        };
        let capabilities = [
            service(service::Type::ControllerService),
            service(service::Type::VolumeAccessibilityConstraints),
            expansion(volume_expansion::Type::Online),
            expansion(volume_expansion::Type::Offline),
        ];
        let capabilities = capabilities.map(|kind| PluginCapability { r#type: Some(kind) });
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities: capabilities.into() }))
    }

    /// Ready once the process can work. A vCenter that is unreachable does not make it unready: a restart would not
    /// help.
    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        let ready = (self.readiness)();
        if let Err(reason) = &ready {
            tracing::debug!(reason, "not ready yet");
        }
        Ok(Response::new(ProbeResponse { ready: Some(ready.is_ok()) }))
    }
}
