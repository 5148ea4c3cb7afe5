//! The permissions of the account in use.

use health::facts::{AccessReview, Known};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::{Api, Client, api::PostParams};

use super::crash_logs;

/// The resources that the checks must be able to read: group, resource, purpose.
const READ: [(&str, &str, &str); 19] = [
    ("", "nodes", "finding the VMs of nodes"),
    ("", "pods", "seeing whether the drivers run"),
    ("", "events", "telling why something does not work"),
    ("", "persistentvolumes", "comparing volumes with vCenter"),
    ("", "persistentvolumeclaims", "seeing claims that wait"),
    ("rbac.authorization.k8s.io", "clusterroles", "telling drivers from lookalikes"),
    ("rbac.authorization.k8s.io", "clusterrolebindings", "telling drivers from lookalikes"),
    ("apps", "daemonsets", "seeing whether the drivers run"),
    ("apps", "deployments", "seeing whether the drivers run"),
    ("coordination.k8s.io", "leases", "seeing who leads"),
    ("", "namespaces", "seeing whether the drivers' pods are let in"),
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations", "checking webhooks"),
    ("discovery.k8s.io", "endpointslices", "seeing whether webhooks answer"),
    ("apiextensions.k8s.io", "customresourcedefinitions", "seeing what is defined"),
    ("snapshot.storage.k8s.io", "volumesnapshotcontents", "counting snapshots"),
    ("storage.k8s.io", "csidrivers", "seeing whether the storage driver is registered"),
    ("storage.k8s.io", "csinodes", "seeing whether the storage driver is registered"),
    ("storage.k8s.io", "storageclasses", "checking StorageClasses"),
    ("storage.k8s.io", "volumeattachments", "seeing volumes that are stuck"),
];

/// The permissions that the checks need.
fn needed() -> impl Iterator<Item = AccessReview> {
    let lists = READ
        .into_iter()
        .map(|(group, resource, purpose)| AccessReview::to_list(group, resource, purpose));
    lists.chain([crash_logs::right()])
}

/// Asks the API server which of these permissions the account has.
pub(crate) async fn access(client: &Client) -> Known<Vec<AccessReview>> {
    let mut reviews = Vec::new();
    for review in needed() {
        match is_allowed(client, &review).await {
            Err(error) => return Known::unknown(&error.to_string()),
            Ok(allowed) => reviews.push(AccessReview { allowed, ..review }),
        }
    }
    Known::Known(reviews)
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
    let spec = SelfSubjectAccessReviewSpec {
        resource_attributes: Some(attributes),
        ..SelfSubjectAccessReviewSpec::default()
    };
    let question = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
    let api = Api::<SelfSubjectAccessReview>::all(client.clone());
    let answer = api.create(&PostParams::default(), &question).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}
