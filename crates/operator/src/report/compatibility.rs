//! The status of the CompatibilityConfig that VDO follows.

use api::{
    CompatibilityConfig,
    condition::{self, Answer},
};
use health::facts::{CatalogTrouble, CatalogTroubleKind};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use plan::names;
use serde_json::json;

use super::written::is_same;
use crate::catalogs::{self, Catalogs};

/// Writes which catalog is in use, and why a catalog on offer is not.
pub async fn report(
    client: &Client,
    catalogs: &Catalogs,
    config: Option<&CompatibilityConfig>,
    statuses: &mut super::Statuses,
) -> Result<(), kube::Error> {
    let Some(config) = config else { return Ok(()) };
    let (uid, observed) =
        (config.uid().unwrap_or_default(), config.status.clone().unwrap_or_default());
    let before = statuses.catalog.complete(&uid, &observed);
    let generation = config.metadata.generation;
    let mut after = catalogs.status();
    after.observed_generation = generation;
    after.conditions.clone_from(&before.conditions);
    let current = format!(
        "serial {} from {}",
        catalogs.current().serial,
        after.source.as_deref().unwrap_or_default()
    );
    let (reason, message) = match catalogs.trouble() {
        None => {
            let left_out = match catalogs.left_out() {
                [] => String::new(),
                left => format!(
                    "; not used, because VDO does not carry them or their images were deleted: {}",
                    left.join(", ")
                ),
            };
            ("InUse", format!("the catalog in use has {current}{left_out}"))
        }
        Some(trouble) => {
            let message =
                format!("{}: {}; VDO goes on with {current}", trouble.source, trouble.reason);
            (trouble.kind.name(), message)
        }
    };
    let ready = catalogs.trouble().is_none();
    let now = Timestamp::now();
    let origin = Origin {
        trouble: catalogs.trouble(),
        named: catalogs::source_of(config).is_some(),
        read: after.fetched_at.is_some(),
        signed: catalogs.is_signed(),
    };
    let (trusted, trust_reason, trust_message) = origin.trusted();
    let (is_current, age_reason, age_message) = current_at(catalogs.current().expires, now);
    for (kind, answer, reason, message) in [
        (condition::READY, ready.into(), reason, message),
        (condition::TRUSTED, trusted, trust_reason, trust_message),
        (condition::CURRENT, is_current.into(), age_reason, age_message),
    ] {
        let conditions = &mut after.conditions;
        condition::set(conditions, kind, answer, reason, message, generation, &Time(now));
    }
    if is_same(&before, &after) {
        return Ok(());
    }
    let namespace = config.namespace().unwrap_or_default();
    let configs = Api::<CompatibilityConfig>::namespaced(client.clone(), &namespace);
    let body = json!({
        "apiVersion": "vdo.vmware.com/v1alpha1", "kind": "CompatibilityConfig", "status": after,
    });
    let parameters = PatchParams::apply(names::FIELD_MANAGER).force();
    let name = config.name_any();
    let stored = configs.patch_status(&name, &parameters, &Patch::Apply(body)).await;
    if let Some(stored) = super::unless_refused(stored, &namespace, &name)? {
        statuses.catalog.note(&uid, &observed, stored.status.unwrap_or_default(), after);
    }
    Ok(())
}

/// Where the catalog in use comes from, compared with the catalog that the object names.
struct Origin<'a> {
    trouble: Option<&'a CatalogTrouble>,
    /// Whether the object names a catalog at all.
    named: bool,
    /// Whether VDO has read the named catalog at least once.
    read: bool,
    /// Whether a trusted key signed the catalog in use.
    signed: bool,
}

impl Origin<'_> {
    fn trusted(&self) -> (Answer, &'static str, String) {
        match self.trouble {
            Some(CatalogTrouble { kind: kind @ CatalogTroubleKind::Untrusted, source, reason }) => {
                (Answer::False, kind.name(), format!("{source}: {reason}"))
            }
            Some(CatalogTrouble { kind: CatalogTroubleKind::RolledBack, source, .. }) => {
                let message =
                    format!("{source}: VDO accepts the origin of the catalog, not its age");
                (Answer::True, "OriginAccepted", message)
            }
            Some(CatalogTrouble { kind, source, reason }) if !self.read => {
                (Answer::Unknown, kind.name(), format!("{source}: {reason}"))
            }
            None if self.named && !self.read => {
                (Answer::Unknown, "NotRead", "VDO has not read the catalog yet".to_owned())
            }
            _ if self.signed => {
                (Answer::True, "Signed", "a trusted key signed the catalog in use".to_owned())
            }
            _ if self.named => {
                let message = "the catalog in use comes from a ConfigMap, which needs no signature";
                (Answer::True, "FromConfigMap", message.to_owned())
            }
            _ => {
                let message = "the catalog in use is part of the operator".to_owned();
                (Answer::True, "Embedded", message)
            }
        }
    }
}

fn current_at(expires: Option<Timestamp>, now: Timestamp) -> (bool, &'static str, String) {
    match expires {
        Some(end) if end <= now => {
            let message = format!("the catalog in use expired on {end}; VDO still uses it");
            (false, "Expired", message)
        }
        Some(end) => (true, "NotExpired", format!("the catalog in use expires on {end}")),
        None => (true, "NoExpiry", "the catalog in use does not expire".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trouble(kind: CatalogTroubleKind) -> CatalogTrouble {
        CatalogTrouble {
            source: "https://example.com/catalog".into(),
            kind,
            reason: "because".into(),
        }
    }

    #[test]
    fn trusted_follows_the_signature_and_the_origin() {
        use CatalogTroubleKind::{RolledBack, Unreachable, Unreadable, Untrusted};
        for (kind, named, read, signed, expected) in [
            (None, false, false, false, (Answer::True, "Embedded")),
            (None, true, false, false, (Answer::Unknown, "NotRead")),
            (None, true, true, true, (Answer::True, "Signed")),
            (None, true, true, false, (Answer::True, "FromConfigMap")),
            (Some(Untrusted), true, true, true, (Answer::False, "Untrusted")),
            (Some(RolledBack), true, true, true, (Answer::True, "OriginAccepted")),
            (Some(Unreachable), true, false, false, (Answer::Unknown, "Unreachable")),
            (Some(Unreadable), true, false, false, (Answer::Unknown, "Unreadable")),
            // The catalog that VDO fetched before stays in use.
            (Some(Unreachable), true, true, true, (Answer::True, "Signed")),
        ] {
            let trouble = kind.map(trouble);
            let origin = Origin { trouble: trouble.as_ref(), named, read, signed };
            let (answer, reason, message) = origin.trusted();
            assert_eq!((answer, reason), expected, "{message}");
        }
    }

    #[test]
    fn a_catalog_is_current_until_it_expires() {
        let now = Timestamp::UNIX_EPOCH;
        let later = now + jiff::SignedDuration::from_secs(1);
        assert_eq!(current_at(None, now).1, "NoExpiry");
        assert_eq!(current_at(Some(later), now).1, "NotExpired");
        let (current, reason, message) = current_at(Some(now), now);
        assert_eq!((current, reason), (false, "Expired"));
        assert!(message.contains("1970-01-01"), "{message}");
    }
}
