//! Keeps the last good signed catalog in the cluster. After a restart, VDO uses it at once, without a network
//! and even if it has expired. No older catalog of the same key replaces it.

use std::{
    collections::BTreeMap,
    io::{self, Read as _, Write as _},
};

use catalog::trust::{KeyId, MAX_BUNDLE_BYTES};
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use health::facts::CatalogTroubleKind;
use k8s_openapi::{ByteString, api::core::v1::ConfigMap};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use plan::names;
use serde_json::json;

/// The ConfigMap in the operator's namespace.
const NAME: &str = "vdo-kept-catalog";
/// The key of the bundle.
const BUNDLE: &str = "bundle";
/// The key of a bundle that is too large as text.
const COMPRESSED: &str = "bundle.gz";
/// The size up to which VDO stores a bundle as text. The API server accepts ConfigMaps of 1 MiB, and counts
/// binary data in base64.
const MAX_TEXT: usize = 600_000;
/// The same for a compressed bundle.
const MAX_COMPRESSED: usize = 600_000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StoredCatalog {
    /// The highest accepted serial by signing key.
    pub(super) floors: BTreeMap<KeyId, u64>,
    /// The source of the catalog.
    pub(super) source: String,
    /// The signed catalog as VDO read it. VDO verifies the signature again.
    pub(super) bundle: String,
}

/// Whether VDO can store this bundle. VDO uses no other one: a restart would forget it.
pub(super) fn fits(bundle: &[u8]) -> bool {
    bundle.len() <= MAX_TEXT
        || compressed(bundle).is_ok_and(|packed| packed.len() <= MAX_COMPRESSED)
}

/// The reason why VDO refuses a bundle that it cannot store.
pub(super) fn does_not_fit() -> (CatalogTroubleKind, String) {
    let limit = format!("{} kB after compression", MAX_COMPRESSED / 1_000);
    let reason =
        format!("the catalog is larger than {limit}, and VDO could not store it for a restart");
    (CatalogTroubleKind::TooLarge { limit }, reason)
}

fn compressed(bundle: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bundle)?;
    encoder.finish()
}

/// The text of a compressed bundle; empty if it is damaged. Somebody else may have written it, so its size is
/// limited.
fn uncompressed(packed: &[u8]) -> String {
    let mut text = String::new();
    let mut decoder = GzDecoder::new(packed).take(MAX_BUNDLE_BYTES as u64);
    match decoder.read_to_string(&mut text) {
        Ok(_) => text,
        Err(_) => String::new(),
    }
}

/// Reads the stored catalog. Returns an empty [`StoredCatalog`] if there is none.
pub(super) async fn read(client: &Client, namespace: &str) -> Result<StoredCatalog, kube::Error> {
    let maps = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    Ok(from(maps.get_opt(NAME).await?.unwrap_or_default()))
}

fn from(map: ConfigMap) -> StoredCatalog {
    let mut data = map.data.unwrap_or_default();
    let mut take = |key: &str| data.remove(key).unwrap_or_default();
    let packed = map.binary_data.and_then(|mut all| all.remove(COMPRESSED));
    StoredCatalog {
        floors: serde_json::from_str(&take("floors")).unwrap_or_default(),
        source: take("source"),
        bundle: packed.map_or_else(|| take(BUNDLE), |ByteString(packed)| uncompressed(&packed)),
    }
}

fn map_of(stored: &StoredCatalog, namespace: &str) -> io::Result<serde_json::Value> {
    let mut map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": NAME, "namespace": namespace},
        "data": {"floors": json!(stored.floors).to_string(), "source": stored.source},
    });
    if stored.bundle.len() <= MAX_TEXT {
        map["data"][BUNDLE] = json!(stored.bundle);
    } else {
        let packed = ByteString(compressed(stored.bundle.as_bytes())?);
        map["binaryData"] = json!({COMPRESSED: packed});
    }
    Ok(map)
}

pub(super) async fn write(
    client: &Client,
    namespace: &str,
    stored: &StoredCatalog,
) -> Result<(), kube::Error> {
    let map = map_of(stored, namespace).map_err(|error| kube::Error::Service(error.into()))?;
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
        let map = |pairs: &[(&str, &str)]| {
            let data = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            ConfigMap { data: Some(data.collect()), ..ConfigMap::default() }
        };
        assert_eq!(from(map(&[("floors", "scribble")])), StoredCatalog::default());
        let stored = from(map(&[("floors", r#"{"0011223344556677": 18446744073709551615}"#)]));
        assert_eq!(stored.floors.into_values().collect::<Vec<_>>(), [u64::MAX]);
    }

    #[test]
    fn a_large_bundle_is_stored_compressed_and_read_again() {
        let written = |bundle: String| {
            let stored = StoredCatalog { bundle, source: "s".into(), ..StoredCatalog::default() };
            let map = map_of(&stored, "vdo").unwrap();
            assert!(map.to_string().len() < 1_000_000, "the API server refuses it");
            assert_eq!(from(serde_json::from_value(map).unwrap()), stored);
        };
        let release =
            |number: usize| format!("- version: 3.{number}.0\n  images: [driver@{number}]\n");
        written((0..10).map(release).collect());
        let large: String = (0..100_000).map(release).collect();
        assert!(large.len() > 3_000_000 && fits(large.as_bytes()), "{}", large.len());
        written(large);
        let map = ConfigMap {
            binary_data: Some([(COMPRESSED.to_owned(), ByteString(b"damaged".into()))].into()),
            ..ConfigMap::default()
        };
        assert_eq!(from(map), StoredCatalog::default());
    }
}
