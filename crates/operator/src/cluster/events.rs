//! Converts events and leases into facts for the checks.

use catalog::manifest::CSI_LEASES;
use health::facts::{Event, Lease};
use jiff::Timestamp;
use k8s_openapi::api::{coordination::v1::Lease as KubeLease, core::v1::Event as KubeEvent};
use kube::{ResourceExt, runtime::watcher::Config};

use super::{pages::EVENT_PAGE, volumes::bounded};

/// The maximum length of a name in Kubernetes.
const LONGEST_NAME: usize = 253;

/// The leases that the drivers hold, each with its driver.
pub(crate) const LEASES: [(&str, &str); 6] = [
    ("cloud-controller-manager", "CPI"),
    (CSI_LEASES[0], "CSI"),
    (CSI_LEASES[1], "CSI"),
    (CSI_LEASES[2], "CSI"),
    (CSI_LEASES[3], "CSI"),
    (CSI_LEASES[4], "CSI"),
];

pub(crate) fn lease_names() -> [&'static str; 6] {
    LEASES.map(|(name, _)| name)
}

/// The Events with these fields, in small pages.
pub(crate) fn with_fields(fields: &str) -> Config {
    Config::default().fields(fields).page_size(EVENT_PAGE)
}

/// A name in an Event. The API server does not check it, so it can be no name at all.
pub(crate) fn name(text: &str) -> Option<&str> {
    (text.len() <= LONGEST_NAME).then_some(text)
}

/// A warning event about an object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Warning {
    /// `Pod`, `DaemonSet`, `PersistentVolumeClaim`, ...
    pub(crate) kind: String,
    /// `namespace/name` of the object.
    pub(crate) object: String,
    pub(crate) event: Event,
}

/// The warning in an event, without its time and count, because they change with every repetition.
pub(crate) fn warning(event: &KubeEvent) -> Option<Warning> {
    if event.type_.as_deref() != Some("Warning") {
        return None;
    }
    let object = &event.involved_object;
    Some(Warning {
        kind: name(object.kind.as_deref()?)?.to_owned(),
        object: format!(
            "{}/{}",
            object.namespace.as_deref().unwrap_or_default(),
            name(object.name.as_deref()?)?
        ),
        event: Event {
            reason: bounded(event.reason.as_deref().unwrap_or_default()),
            message: bounded(event.message.as_deref().unwrap_or_default()),
        },
    })
}

/// The facts of a driver's lease.
pub(crate) fn lease(lease: &KubeLease) -> Option<Lease> {
    let name = lease.name_any();
    let (_, driver) = LEASES.iter().find(|(known, _)| *known == name)?;
    let namespace = lease.namespace().unwrap_or_default();
    let spec = lease.spec.as_ref()?;
    // A released lease is not a fault: no leader is needed while nothing runs.
    let holder = spec.holder_identity.as_deref().filter(|holder| !holder.is_empty())?;
    Some(Lease {
        namespace,
        name,
        driver: (*driver).to_owned(),
        holder: bounded(holder),
        renewed: spec.renew_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        seconds: spec.lease_duration_seconds.and_then(|s| u32::try_from(s).ok()).unwrap_or(15),
    })
}

/// Whether a lease has a new holder, or its holder renews it again after it expired. A normal renewal is not
/// a change.
pub(crate) fn has_new_holder(before: &Lease, after: &Lease) -> bool {
    let gap = after.renewed.as_second() - before.renewed.as_second();
    before.holder != after.holder || gap > i64::from(before.seconds) + 60
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_tenants_huge_event_is_cut_or_ignored() {
        let event = |reason: &str, name: &str| -> KubeEvent {
            serde_json::from_value(json!({
                "metadata": {"name": "e", "namespace": "shop"}, "type": "Warning",
                "reason": reason, "message": "x".repeat(1_000_000),
                "involvedObject": {"kind": "Pod", "namespace": "shop", "name": name},
            }))
            .unwrap()
        };
        let huge = "x".repeat(1_000_000);
        let kept = warning(&event(&huge, "web-1")).unwrap();
        assert_eq!(kept.object, "shop/web-1");
        assert!(kept.event.reason.len() + kept.event.message.len() < 2000, "{kept:?}");
        assert_eq!(warning(&event("FailedMount", &huge)), None);
    }
}
