//! The id of this cluster in CNS: from the configuration, or generated once and kept in a ConfigMap as upstream does.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, api::PostParams};
use rand::RngExt as _;
use snafu::{ResultExt as _, Snafu};

/// Upstream's name.
const CONFIG_MAP: &str = "vsphere-csi-cluster-id";
const KEY: &str = "clusterID";

#[derive(Debug, Snafu)]
pub enum ClusterIdError {
    #[snafu(display(
        "cannot read the ConfigMap {namespace}/{CONFIG_MAP} with the id of the cluster"
    ))]
    Read {
        namespace: String,
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },
    #[snafu(display(
        "cannot create the ConfigMap {namespace}/{CONFIG_MAP} with the id of the cluster"
    ))]
    Create {
        namespace: String,
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },
    #[snafu(display(
        "the cluster has two ids: {configured} in csi-vsphere.conf and {generated} in the ConfigMap {namespace}/{CONFIG_MAP}. CNS stores volumes under one of them: keep the id under which vCenter shows this cluster's volumes, and remove the other"
    ))]
    Two { namespace: String, configured: String, generated: String },
}

/// The configured id; else the kept one; else a new one, which is kept.
pub async fn determine(
    client: &Client,
    namespace: &str,
    configured: &str,
) -> Result<String, ClusterIdError> {
    let api = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    let kept = kept(&api, namespace).await?;
    match (configured, kept) {
        ("", Some(kept)) => Ok(kept),
        ("", None) => generate(&api, namespace).await,
        (configured, Some(kept)) if kept != configured => {
            TwoSnafu { namespace, configured, generated: kept }.fail()
        }
        (configured, _) => Ok(configured.to_owned()),
    }
}

async fn kept(api: &Api<ConfigMap>, namespace: &str) -> Result<Option<String>, ClusterIdError> {
    let map = api.get_opt(CONFIG_MAP).await.context(ReadSnafu { namespace })?;
    Ok(map.and_then(|map| map.data?.remove(KEY)).filter(|id| !id.is_empty()))
}

async fn generate(api: &Api<ConfigMap>, namespace: &str) -> Result<String, ClusterIdError> {
    let id = uuid();
    let map = ConfigMap {
        metadata: kube::api::ObjectMeta { name: Some(CONFIG_MAP.into()), ..Default::default() },
        data: Some(BTreeMap::from([(KEY.to_owned(), id.clone())])),
        immutable: Some(true),
        ..ConfigMap::default()
    };
    match api.create(&PostParams::default(), &map).await {
        Ok(_) => Ok(id),
        // Another replica was faster.
        Err(kube::Error::Api(status)) if status.code == 409 => {
            Ok(kept(api, namespace).await?.unwrap_or(id))
        }
        Err(source) => Err(source).context(CreateSnafu { namespace }),
    }
}

/// A random uuid, version 4.
fn uuid() -> String {
    let mut bytes: [u8; 16] = rand::rng().random();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    parts.join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_ids_are_uuids() {
        let id = uuid();
        assert_eq!(id.len(), 36);
        assert!(id.as_bytes()[14] == b'4' && id != uuid(), "{id}");
    }
}
