//! The state of vSAN and its file service, which file volumes need.

use crate::client::Client;
use crate::error::Error;
use crate::moref::MoRef;
use crate::wire::{Method, Service};
use crate::xml::codec::data;

data! {
    struct VsanConfig {
        enabled: Option<bool> = "enabled",
        file_service: Option<FileServiceConfig> = "fileServiceConfig",
    }
}

data! {
    struct FileServiceConfig {
        enabled: Option<bool> = "enabled",
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VsanState {
    pub enabled: bool,
    pub file_service: bool,
}

impl Client {
    /// Needs `System.Read` on the cluster.
    pub async fn vsan_state(&self, cluster: &MoRef) -> Result<VsanState, Error> {
        let this = MoRef::new("VsanVcClusterConfigSystem", "vsan-cluster-config-system");
        let method = Method::read("VsanClusterGetConfig").on(Service::Vsan);
        let config: VsanConfig = self.call(method, &this, &[("cluster", cluster)]).await?;
        let file_service =
            config.file_service.and_then(|service| service.enabled).unwrap_or_default();
        Ok(VsanState { enabled: config.enabled.unwrap_or_default(), file_service })
    }
}
