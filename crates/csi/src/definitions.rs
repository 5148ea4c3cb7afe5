//! The definitions of the custom resources that the driver shares with upstream's.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client, ResourceExt as _, api::PostParams};

/// Creates the definition in `json` unless one of its name exists: an existing one may be upstream's, which has the
/// same fields.
pub(crate) async fn install(client: &Client, json: &str) -> Result<(), kube::Error> {
    let definition: CustomResourceDefinition =
        serde_json::from_str(json).map_err(kube::Error::SerdeError)?;
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    if api.get_opt(&definition.name_any()).await?.is_some() {
        return Ok(());
    }
    match api.create(&PostParams::default(), &definition).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        other => other.map(drop),
    }
}
