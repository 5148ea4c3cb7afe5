//! The permissions of the account in use.

use health::facts::AccessReview;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::{Api, Client, api::PostParams};

/// Asks the API server whether the account can watch this Secret.
pub(crate) async fn can_watch_secret(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<bool, kube::Error> {
    is_granted(client, secret(namespace, name, "watch")).await
}

/// Asks the API server whether the account can read this Secret.
pub(crate) async fn can_read_secret(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<bool, kube::Error> {
    is_granted(client, secret(namespace, name, "get")).await
}

fn secret(namespace: &str, name: &str, verb: &str) -> ResourceAttributes {
    ResourceAttributes {
        resource: Some("secrets".into()),
        namespace: Some(namespace.to_owned()),
        name: Some(name.to_owned()),
        verb: Some(verb.to_owned()),
        ..ResourceAttributes::default()
    }
}

/// Asks the API server whether the account has one permission, in all namespaces.
pub(crate) async fn is_allowed(
    client: &Client,
    review: &AccessReview,
) -> Result<bool, kube::Error> {
    let (resource, part) = match review.resource.split_once('/') {
        Some((resource, part)) => (resource, Some(part.to_owned())),
        None => (review.resource.as_str(), None),
    };
    let attributes = ResourceAttributes {
        group: Some(review.group.clone()),
        resource: Some(resource.to_owned()),
        subresource: part,
        verb: Some(review.verb.clone()),
        ..ResourceAttributes::default()
    };
    is_granted(client, attributes).await
}

async fn is_granted(client: &Client, attributes: ResourceAttributes) -> Result<bool, kube::Error> {
    let spec = SelfSubjectAccessReviewSpec {
        resource_attributes: Some(attributes),
        ..SelfSubjectAccessReviewSpec::default()
    };
    let question = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
    let api = Api::<SelfSubjectAccessReview>::all(client.clone());
    let answer = api.create(&PostParams::default(), &question).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}
