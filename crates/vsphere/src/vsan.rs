//! vSAN, as far as volumes on file shares need it.

use crate::client::Client;
use crate::error::Error;
use crate::moref::MoRef;
use crate::wire::{Method, Service};
use crate::xml::codec::data;

data! {
    /// The vSAN configuration of a cluster.
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

/// The state of vSAN in a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VsanState {
    /// Whether vSAN is on.
    pub enabled: bool,
    /// Whether its file service is on.
    pub file_service: bool,
}

impl Client {
    /// The state of vSAN in a cluster. Needs `System.Read` on it.
    pub async fn vsan_state(&self, cluster: &MoRef) -> Result<VsanState, Error> {
        let this = MoRef::new("VsanVcClusterConfigSystem", "vsan-cluster-config-system");
        let method = Method::read("VsanClusterGetConfig").of(Service::Vsan);
        let config: VsanConfig = self.call(method, &this, &[("cluster", cluster)]).await?;
        let file_service =
            config.file_service.and_then(|service| service.enabled).unwrap_or_default();
        Ok(VsanState { enabled: config.enabled.unwrap_or_default(), file_service })
    }
}
