//! Asks the API server for the platform. Only their nodes identify some platforms.

use std::collections::BTreeMap;

use health::facts::Platform;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams},
};

/// The platform, if the API server identifies it, and whether the platform itself installs the vSphere
/// drivers.
pub(crate) async fn from_api_server(
    client: &Client,
    version: &str,
) -> Result<(Platform, bool), kube::Error> {
    let groups = client.list_api_groups().await?.groups;
    let groups: Vec<&str> = groups.iter().map(|group| group.name.as_str()).collect();
    let platform = Platform::detect(version, &groups, "", &BTreeMap::new()).unwrap_or_default();
    let owns_drivers = platform == Platform::OpenShift && is_openshift_on_vsphere(client).await?;
    Ok((platform, owns_drivers))
}

async fn is_openshift_on_vsphere(client: &Client) -> Result<bool, kube::Error> {
    let gvk = GroupVersionKind::gvk("config.openshift.io", "v1", "Infrastructure");
    let resource = ApiResource::from_gvk_with_plural(&gvk, "infrastructures");
    let api = Api::<DynamicObject>::all_with(client.clone(), &resource);
    let all = api.list(&ListParams::default()).await?;
    Ok(all.items.iter().any(|object| {
        let kind = object.data.pointer("/status/platformStatus/type");
        kind.and_then(|kind| kind.as_str()) == Some("VSphere")
    }))
}
