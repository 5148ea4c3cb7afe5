//! The credentials of the registry with the catalog, from the Secret that the CompatibilityConfig names.

use std::path::Path;

use api::CompatibilityConfig;
use health::facts::CatalogTroubleKind;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, ResourceExt as _};
use oci::Credentials;
use runtime::error_chain::error_chain;

use super::Reason;

/// The key of an image pull Secret.
const KEY: &str = ".dockerconfigjson";

/// How VDO logs in to the registry.
#[derive(Debug, Default)]
pub(super) struct RegistryAccess {
    pub(super) credentials: Credentials,
    /// The version of the Secret, if there is one.
    pub(super) version: String,
}

/// Reads the Secret. Without one, VDO connects without credentials.
pub(super) async fn access(
    client: &Client,
    config: &CompatibilityConfig,
) -> Result<Result<RegistryAccess, Reason>, kube::Error> {
    let Some(name) = &config.spec.pull_secret else { return Ok(Ok(RegistryAccess::default())) };
    let namespace = config.namespace().unwrap_or_default();
    let secrets = Api::<Secret>::namespaced(client.clone(), &namespace);
    let secret = match secrets.get_opt(&name.0).await {
        // A user of vdoctl can lack this permission.
        Err(kube::Error::Api(status)) if status.code == 403 => {
            return Ok(Err(unusable(format!(
                "the Secret {namespace}/{} cannot be read: {}",
                name.0, status.message
            ))));
        }
        secret => secret?,
    };
    Ok(parsed(&format!("Secret {namespace}/{}", name.0), secret))
}

fn parsed(origin: &str, secret: Option<Secret>) -> Result<RegistryAccess, Reason> {
    let Some(secret) = secret else { return Err(unusable(format!("the {origin} does not exist"))) };
    let version = [secret.uid(), secret.resource_version()].map(Option::unwrap_or_default);
    let text = secret.data.and_then(|mut data| data.remove(KEY));
    let text = text.ok_or_else(|| {
        unusable(format!(
            "the {origin} has no key {KEY}: its type must be kubernetes.io/dockerconfigjson"
        ))
    })?;
    let credentials = Credentials::parse(Path::new(&format!("the {origin}")), &text.0);
    let credentials = credentials.map_err(|error| unusable(error_chain(&error)))?;
    Ok(RegistryAccess { credentials, version: version.join("/") })
}

fn unusable(reason: String) -> Reason {
    (CatalogTroubleKind::Unreachable, reason)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(data: &serde_json::Value) -> Result<RegistryAccess, Reason> {
        let metadata = json!({"name": "registry", "uid": "u", "resourceVersion": "7"});
        let secret = json!({"metadata": metadata, "stringData": null, "data": data});
        parsed("Secret vdo/registry", Some(serde_json::from_value(secret).unwrap()))
    }

    #[test]
    fn an_unusable_secret_is_named_without_its_content() {
        // {"auths": {"a.b": {"auth": "c2VjcmV0"}}}, which is "secret" without a user.
        let no_user = "eyJhdXRocyI6IHsiYS5iIjogeyJhdXRoIjogImMyVmpjbVYwIn19fQ==";
        let cases = [
            (read(&json!({"password": "c2VjcmV0"})), "no key .dockerconfigjson"),
            (read(&json!({KEY: "c2VjcmV0"})), "is not JSON with auths"),
            (read(&json!({KEY: no_user})), "a.b: auth is not USER:PASSWORD"),
            (parsed("Secret vdo/registry", None), "does not exist"),
        ];
        for (read, expected) in cases {
            let (kind, reason) = read.unwrap_err();
            assert_eq!(kind, CatalogTroubleKind::Unreachable);
            assert!(reason.contains("the Secret vdo/registry"), "{reason}");
            assert!(reason.contains(expected) && !reason.contains("c2VjcmV0"), "{reason}");
        }
        // {"auths": {}}
        assert_eq!(read(&json!({KEY: "eyJhdXRocyI6IHt9fQ=="})).unwrap().version, "u/7");
    }
}
