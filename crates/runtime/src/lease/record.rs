//! The content of a Lease, in client-go's format.

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};

use super::Contender;

/// The Lease with `contender` as holder, based on the Lease of the decision, if there is one. Its
/// `resourceVersion` makes the write a compare-and-swap.
pub(super) fn held_by(contender: &Contender, before: Option<&Lease>) -> Lease {
    let now = MicroTime(Timestamp::now());
    let spec = before.and_then(|lease| lease.spec.as_ref());
    let was_mine = spec.and_then(|s| s.holder_identity.as_deref()) == Some(&contender.identity);
    let transitions = spec.and_then(|s| s.lease_transitions).unwrap_or(0);
    let duration = contender.terms.lease_duration.as_secs();
    let mut metadata = before.map_or_else(
        || ObjectMeta {
            name: Some(contender.name.clone()),
            namespace: Some(contender.namespace.clone()),
            ..ObjectMeta::default()
        },
        |lease| lease.metadata.clone(),
    );
    if let Some(installation) = &contender.installation {
        let annotations = metadata.annotations.get_or_insert_default();
        annotations.insert(super::OWNER.into(), installation.clone());
    }
    Lease {
        metadata,
        spec: Some(LeaseSpec {
            holder_identity: Some(contender.identity.clone()),
            lease_duration_seconds: i32::try_from(duration).ok(),
            acquire_time: spec
                .filter(|_| was_mine)
                .and_then(|s| s.acquire_time.clone())
                .or_else(|| Some(now.clone())),
            renew_time: Some(now),
            lease_transitions: Some(if before.is_none() || was_mine {
                transitions
            } else {
                transitions.saturating_add(1)
            }),
            ..LeaseSpec::default()
        }),
    }
}

/// The Lease without a holder. A duration of one second is client-go's marker for a release.
pub(super) fn released(lease: &Lease) -> Lease {
    let mut released = lease.clone();
    if let Some(spec) = &mut released.spec {
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        spec.renew_time = Some(MicroTime(Timestamp::now()));
    }
    released
}
