//! The last good signed catalog, kept in the cluster: after a restart it is in use at once, network or
//! not, expired or not, and no older one of the same key takes its place.

use std::collections::BTreeMap;

use catalog::trust::KeyId;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use plan::names;
use serde_json::json;

/// The ConfigMap beside the operator.
const NAME: &str = "vdo-kept-catalog";
/// What fits into a ConfigMap with room to spare. Of a larger one only the serials are kept.
const LIMIT: usize = 900_000;

/// What was kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Kept {
    /// By key, the highest serial of a catalog ever taken that it signed.
    pub(super) floors: BTreeMap<KeyId, u64>,
    /// The highest serial ever taken, whoever signed it: what early releases kept instead.
    pub(super) early_floor: Option<u64>,
    /// Where the catalog came from.
    pub(super) source: String,
    /// The signed catalog as it was read; its signature is checked again.
    pub(super) bundle: String,
}

/// What was kept, or nothing.
pub(super) async fn read(client: &Client, namespace: &str) -> Result<Kept, kube::Error> {
    let maps = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    let map = maps.get_opt(NAME).await?;
    Ok(from(map.and_then(|map| map.data).unwrap_or_default()))
}

fn from(mut data: BTreeMap<String, String>) -> Kept {
    let mut take = |key: &str| data.remove(key).unwrap_or_default();
    Kept {
        floors: serde_json::from_str(&take("floors")).unwrap_or_default(),
        early_floor: take("floor").parse().ok(),
        source: take("source"),
        bundle: take("bundle"),
    }
}

/// Keeps it.
pub(super) async fn write(
    client: &Client,
    namespace: &str,
    kept: &Kept,
) -> Result<(), kube::Error> {
    let bundle = if kept.bundle.len() <= LIMIT { kept.bundle.as_str() } else { "" };
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": NAME, "namespace": namespace},
        "data": {
            "floors": json!(kept.floors).to_string(), "source": kept.source, "bundle": bundle,
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
    fn what_an_early_release_kept_is_understood_and_damage_is_no_floor() {
        let data = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let early = from(data(&[("floor", "7"), ("source", "https://x"), ("bundle", "{}")]));
        assert_eq!((early.early_floor, early.floors.len()), (Some(7), 0));
        assert_eq!(from(data(&[("floors", "scribble")])), Kept::default());
        let kept = from(data(&[("floors", r#"{"0011223344556677": 18446744073709551615}"#)]));
        assert_eq!(kept.floors.into_values().collect::<Vec<_>>(), [u64::MAX]);
    }
}
