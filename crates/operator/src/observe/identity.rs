//! The identity of the cluster in CNS that a driver uses already.

use driver_config::csi::CsiConfig;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Client};

use crate::{facts::ClusterId, names};

/// The identity in use: from the driver's configuration, else the one it made itself. A
/// configuration that cannot be read is an error to be shown: whoever overwrites it may change the
/// identity without knowing.
pub(super) async fn in_use(
    client: &Client,
) -> Result<Result<Option<ClusterId>, String>, kube::Error> {
    for home in [names::CSI_NAMESPACE, names::KUBE_SYSTEM] {
        let secrets = Api::<Secret>::namespaced(client.clone(), home);
        let Some(secret) = secrets.get_opt(names::CSI_SECRET).await? else { continue };
        let text = secret.data.and_then(|mut data| data.remove("csi-vsphere.conf"));
        let Some(text) = text else { continue };
        match configured(&text.0) {
            Ok(Some(id)) => return Ok(Ok(Some(ClusterId { id, kept_by_driver: false }))),
            Ok(None) => {}
            Err(why) => {
                let name = names::CSI_SECRET;
                return Ok(Err(format!(
                    "Secret {home}/{name} is in use and cannot be read: {why}"
                )));
            }
        }
    }
    for home in [names::CSI_NAMESPACE, names::KUBE_SYSTEM] {
        let maps = Api::<ConfigMap>::namespaced(client.clone(), home);
        let map = maps.get_opt(names::CSI_CLUSTER_ID).await?;
        let id = map.and_then(|map| map.data?.remove("clusterID")).filter(|id| !id.is_empty());
        if let Some(id) = id {
            return Ok(Ok(Some(ClusterId { id, kept_by_driver: true })));
        }
    }
    Ok(Ok(None))
}

fn configured(text: &[u8]) -> Result<Option<String>, String> {
    let text = std::str::from_utf8(text).map_err(|error| error.to_string())?;
    let config = CsiConfig::read(text).map_err(|error| error.to_string())?;
    Ok(Some(config.config.global.cluster_id).filter(|id| !id.is_empty()))
}
