//! Keeps the last good signed catalog in the cluster. After a restart, VDO uses it at once, without a network
//! and even if it has expired. No older catalog of the same key replaces it.

use std::collections::BTreeMap;

use catalog::trust::KeyId;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use plan::names;
use serde_json::json;

/// The ConfigMap in the operator's namespace.
const NAME: &str = "vdo-kept-catalog";
/// The largest bundle to store: it fits into a ConfigMap with room to spare. VDO stores only the serials of a
/// larger one.
const LIMIT: usize = 900_000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StoredCatalog {
    /// The highest accepted serial by signing key.
    pub(super) floors: BTreeMap<KeyId, u64>,
    /// The source of the catalog.
    pub(super) source: String,
    /// The signed catalog as VDO read it. VDO verifies the signature again.
    pub(super) bundle: String,
}

/// Reads the stored catalog. Returns an empty [`StoredCatalog`] if there is none.
pub(super) async fn read(client: &Client, namespace: &str) -> Result<StoredCatalog, kube::Error> {
    let maps = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    let map = maps.get_opt(NAME).await?;
    Ok(from(map.and_then(|map| map.data).unwrap_or_default()))
}

fn from(mut data: BTreeMap<String, String>) -> StoredCatalog {
    let mut take = |key: &str| data.remove(key).unwrap_or_default();
    StoredCatalog {
        floors: serde_json::from_str(&take("floors")).unwrap_or_default(),
        source: take("source"),
        bundle: take("bundle"),
    }
}

pub(super) async fn write(
    client: &Client,
    namespace: &str,
    stored: &StoredCatalog,
) -> Result<(), kube::Error> {
    let bundle = if stored.bundle.len() <= LIMIT { stored.bundle.as_str() } else { "" };
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": NAME, "namespace": namespace},
        "data": {
            "floors": json!(stored.floors).to_string(), "source": stored.source, "bundle": bundle,
        },
    });
    let maps = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    let parameters = PatchParams::apply(names::FIELD_MANAGER).force();
    maps.patch(NAME, &parameters, &Patch::Apply(map)).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_catalog_is_read_and_damage_is_no_floor() {
        let data = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        assert_eq!(from(data(&[("floors", "scribble")])), StoredCatalog::default());
        let stored = from(data(&[("floors", r#"{"0011223344556677": 18446744073709551615}"#)]));
        assert_eq!(stored.floors.into_values().collect::<Vec<_>>(), [u64::MAX]);
    }
}
