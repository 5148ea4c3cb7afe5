//! Events, leases and rights, as the checks see them.

use health::facts::{AccessReview, Event, Known, Lease, Platform, Version, Wanted};
use jiff::Timestamp;
use k8s_openapi::api::{
    authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
    coordination::v1::Lease as SeenLease,
    core::v1::Event as SeenEvent,
};
use kube::{Api, Client, ResourceExt, api::PostParams};

use super::{crash_logs, volumes::bounded};
use crate::facts;

/// The leases the drivers hold, and whose they are.
pub(super) const LEASES: [(&str, &str); 6] = [
    ("cloud-controller-manager", "CPI"),
    ("vsphere-syncer", "CSI"),
    ("csi-vsphere-vmware-com", "CSI"),
    ("external-attacher-leader-csi-vsphere-vmware-com", "CSI"),
    ("external-resizer-csi-vsphere-vmware-com", "CSI"),
    ("external-snapshotter-leader-csi-vsphere-vmware-com", "CSI"),
];

/// Their names.
pub(crate) fn lease_names() -> [&'static str; 6] {
    LEASES.map(|(name, _)| name)
}

/// A warning about an object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Warning {
    /// `Pod`, `DaemonSet`, `PersistentVolumeClaim`, ...
    pub(crate) kind: String,
    /// `namespace/name` of the object.
    pub(crate) object: String,
    pub(crate) event: Event,
}

/// What a warning says; the time and the count are left out, for they change with every repetition.
pub(crate) fn warning(event: &SeenEvent) -> Option<Warning> {
    if event.type_.as_deref() != Some("Warning") {
        return None;
    }
    let object = &event.involved_object;
    Some(Warning {
        kind: object.kind.clone()?,
        object: format!(
            "{}/{}",
            object.namespace.as_deref().unwrap_or_default(),
            object.name.as_ref()?
        ),
        event: Event {
            reason: event.reason.clone().unwrap_or_default(),
            message: bounded(event.message.as_deref().unwrap_or_default()),
        },
    })
}

/// A lease of a driver.
pub(crate) fn lease(lease: &SeenLease) -> Option<Lease> {
    let name = lease.name_any();
    let (_, driver) = LEASES.iter().find(|(known, _)| *known == name)?;
    let namespace = lease.namespace().unwrap_or_default();
    let spec = lease.spec.as_ref()?;
    // A holder that let go is no fault: nobody needs to lead while nothing runs.
    let holder = spec.holder_identity.clone().filter(|holder| !holder.is_empty())?;
    Some(Lease {
        namespace,
        name,
        driver: (*driver).to_owned(),
        holder,
        renewed: spec.renew_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        seconds: spec.lease_duration_seconds.and_then(|s| u32::try_from(s).ok()).unwrap_or(15),
    })
}

/// Whether a lease changed hands or came back to life; that it is renewed is not news.
pub(crate) fn is_taken_up(before: &Lease, after: &Lease) -> bool {
    let gap = after.renewed.as_second() - before.renewed.as_second();
    before.holder != after.holder || gap > i64::from(before.seconds) + 60
}

/// The platform in the words of the checks.
pub(super) fn platform(platform: facts::Platform) -> Platform {
    match platform {
        facts::Platform::OpenShift { .. } => Platform::OpenShift,
        facts::Platform::Rke2 => Platform::Rke2,
        facts::Platform::K3s => Platform::K3s,
        facts::Platform::K0s => Platform::K0s,
        facts::Platform::MicroK8s => Platform::MicroK8s,
        facts::Platform::Talos => Platform::Talos,
        facts::Platform::Vanilla | facts::Platform::EksAnywhere | facts::Platform::Tkg => {
            Platform::Kubernetes
        }
    }
}

/// Where kubelet keeps its files. Some platforms have their own place; elsewhere it is where the admin
/// says, and nobody but kubelet could say otherwise. What the driver's pods have is another matter.
pub(super) fn kubelet_path(platform: facts::Platform, wanted: &Wanted) -> String {
    let usual = platform.kubelet_path();
    let fixed = matches!(platform, facts::Platform::K0s | facts::Platform::MicroK8s);
    match &wanted.storage {
        Some(storage) if !fixed => storage.kubelet_path.clone(),
        _ => usual.to_owned(),
    }
}

/// A version of Kubernetes in the words of the checks.
pub(super) fn version(text: &str) -> Known<Version> {
    match text.parse() {
        Ok(version) => Known::Known(version),
        Err(reason) => Known::Unknown { reason },
    }
}

/// What must be readable for the checks, and for what: group, resource, purpose.
const READ: [(&str, &str, &str); 19] = [
    ("", "nodes", "finding the machines of nodes"),
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

/// What the checks need to be allowed to do.
fn needed() -> impl Iterator<Item = AccessReview> {
    let lists = READ
        .into_iter()
        .map(|(group, resource, purpose)| AccessReview::to_list(group, resource, purpose));
    lists.chain([crash_logs::right()])
}

/// Asks the API server what the account may read.
pub(super) async fn access(client: &Client) -> Known<Vec<AccessReview>> {
    let mut reviews = Vec::new();
    for review in needed() {
        match is_allowed(client, &review).await {
            Err(error) => return Known::unknown(&error.to_string()),
            Ok(allowed) => reviews.push(AccessReview { allowed, ..review }),
        }
    }
    Known::Known(reviews)
}

/// Asks the API server whether the account has one right, in all namespaces.
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
