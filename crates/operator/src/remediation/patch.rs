//! Changes objects that VDO does not manage, and only if they have not changed since VDO read them.

use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams},
};
use plan::names;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use snafu::ResultExt;

use super::{Error, KubernetesSnafu};

/// The number of attempts on an object that changes concurrently.
const TRIES: usize = 5;

/// Reads an object, gets a JSON patch for it from `change`, and applies the patch only if the object has not
/// changed meanwhile. An empty patch does nothing.
pub(super) async fn change<K>(
    api: &Api<K>,
    name: &str,
    change: impl Fn(&K) -> Result<Vec<Value>, Error>,
) -> Result<(), Error>
where
    K: Resource + Clone + Serialize + DeserializeOwned + std::fmt::Debug,
{
    let parameters =
        PatchParams { field_manager: Some(names::FIELD_MANAGER.into()), ..PatchParams::default() };
    let mut last = Ok(());
    for _ in 0..TRIES {
        let seen = api.get(name).await.context(KubernetesSnafu)?;
        let mut operations = change(&seen)?;
        if operations.is_empty() {
            return Ok(());
        }
        let version = seen.resource_version();
        operations.insert(
            0,
            json!({"op": "test", "path": "/metadata/resourceVersion", "value": version}),
        );
        let patch = serde_json::from_value(Value::Array(operations));
        let patch = patch.map_err(kube::Error::SerdeError).context(KubernetesSnafu)?;
        match api.patch(name, &parameters, &Patch::Json::<()>(patch)).await {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if matches!(status.code, 409 | 422) => {
                last = Err(kube::Error::Api(status));
            }
            other => return other.map(drop).context(KubernetesSnafu),
        }
    }
    last.context(KubernetesSnafu)
}
