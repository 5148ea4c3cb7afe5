//! Selects the VDOConfig that VDO follows, among those in the operator's namespace.
//!
//! The operator records its name and uid in a ConfigMap before it acts on it. A VDOConfig with another name
//! replaces it only when the recorded one is gone and an admin has confirmed the new one with the annotation
//! [`names::FOLLOW`]. The reasons are in `docs/adr/0005-which-vdoconfig-is-followed.md`.

use api::{VDOConfig, condition, finding::codes};
use k8s_openapi::{
    api::core::v1::ConfigMap,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use plan::names;
use serde_json::json;

/// The reasons of the `Ready` condition of a VDOConfig that VDO does not follow.
pub const NOT_FOLLOWED: &str = "NotFollowed";
/// See [`NOT_FOLLOWED`].
pub const AWAITS_CONFIRMATION: &str = "AwaitsConfirmation";

/// The VDOConfig on record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FollowedConfig {
    /// The name, in the operator's namespace.
    pub name: String,
    pub uid: String,
}

impl FollowedConfig {
    pub fn new(metadata: &ObjectMeta) -> Self {
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        Self { name: text(&metadata.name), uid: text(&metadata.uid) }
    }
}

/// The properties of a VDOConfig that the choice depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    id: FollowedConfig,
    created: Option<Time>,
    /// Whether an admin confirmed it with the annotation.
    confirmed: bool,
    /// Whether VDO has reported before that it does not follow this one.
    passed_over: bool,
}

impl Candidate {
    /// The VDOConfig with this metadata and status. `status` is `None` if it cannot be parsed.
    pub fn new(metadata: &ObjectMeta, status: Option<&api::VDOConfigStatus>) -> Self {
        let annotations = metadata.annotations.as_ref();
        let ready = status.and_then(|status| condition::get(&status.conditions, condition::READY));
        let reason = ready.map(|ready| ready.reason.as_str()).unwrap_or_default();
        // The previous installation was in another namespace, and did not choose among the VDOConfigs here.
        let elsewhere = status.is_some_and(|status| {
            status.findings.iter().any(|finding| finding.code == codes::ELSEWHERE.code)
        });
        Self {
            id: FollowedConfig::new(metadata),
            created: metadata.creation_timestamp.clone(),
            confirmed: annotations
                .and_then(|all| all.get(names::FOLLOW))
                .is_some_and(|v| v == "true"),
            passed_over: !elsewhere && [NOT_FOLLOWED, AWAITS_CONFIRMATION].contains(&reason),
        }
    }
}

/// The index of the VDOConfig to follow.
///
/// - The recorded one while it exists, or one that was re-created under its name.
/// - Else the one that an admin confirmed, if it is the only one.
/// - Without a record, the oldest one that VDO has not passed over before. VDO is new here, or an earlier
///   release wrote no record.
pub fn choose(candidates: &[Candidate], recorded: Option<&FollowedConfig>) -> Option<usize> {
    let confirmed = || {
        let mut all = candidates.iter().enumerate().filter(|(_, one)| one.confirmed);
        all.next().filter(|_| all.next().is_none()).map(|(place, _)| place)
    };
    let Some(recorded) = recorded else {
        let fresh = candidates.iter().enumerate().filter(|(_, one)| !one.passed_over);
        let oldest = fresh.min_by_key(|(_, one)| (one.created.clone(), one.id.name.clone()));
        return confirmed().or(oldest.map(|(place, _)| place));
    };
    let same_uid = candidates.iter().position(|one| one.id.uid == recorded.uid);
    let same_name = || candidates.iter().position(|one| one.id.name == recorded.name);
    same_uid.or_else(same_name).or_else(confirmed)
}

/// The VDOConfig to follow, among those in the operator's namespace.
pub fn chosen<'a>(
    configs: &'a [VDOConfig],
    recorded: Option<&FollowedConfig>,
) -> Option<&'a VDOConfig> {
    let candidates: Vec<Candidate> = configs
        .iter()
        .map(|config| Candidate::new(&config.metadata, config.status.as_ref()))
        .collect();
    choose(&candidates, recorded).map(|place| &configs[place])
}

/// The VDOConfig on record. A record without a name matches no VDOConfig: an admin must confirm one.
pub async fn recorded(
    client: &Client,
    namespace: &str,
) -> Result<Option<FollowedConfig>, kube::Error> {
    let maps = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    let map = maps.get_opt(names::FOLLOWED).await?;
    Ok(map.map(|map| {
        let mut data = map.data.unwrap_or_default();
        let mut text = |key: &str| data.remove(key).unwrap_or_default();
        FollowedConfig { name: text("name"), uid: text("uid") }
    }))
}

/// Like [`recorded`], for users who have permission to read VDOConfigs but not the operator's records. They
/// get `None`.
pub async fn recorded_if_readable(
    client: &Client,
    namespace: &str,
) -> Result<Option<FollowedConfig>, kube::Error> {
    match recorded(client, namespace).await {
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(None),
        recorded => recorded,
    }
}

/// Records the VDOConfig to follow.
pub async fn record(
    client: &Client,
    namespace: &str,
    followed: &FollowedConfig,
) -> Result<(), kube::Error> {
    let maps = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    let FollowedConfig { name, uid } = followed;
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": names::FOLLOWED},
        "data": {"name": name, "uid": uid},
    });
    let parameters = PatchParams::apply(names::FIELD_MANAGER).force();
    maps.patch(names::FOLLOWED, &parameters, &Patch::Apply(map)).await?;
    tracing::info!(name, uid, "this VDOConfig is followed");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(name: &str, uid: &str, created: &str) -> Candidate {
        Candidate {
            id: FollowedConfig { name: name.into(), uid: uid.into() },
            created: Some(Time(created.parse().unwrap())),
            confirmed: false,
            passed_over: false,
        }
    }

    const OLD: &str = "2026-01-01T00:00:00Z";
    const NEW: &str = "2026-02-01T00:00:00Z";

    #[test]
    fn the_first_vdoconfig_is_followed_without_confirmation() {
        assert_eq!(choose(&[candidate("vdo", "1", NEW)], None), Some(0));
        let two = [candidate("b", "2", NEW), candidate("a", "1", OLD)];
        assert_eq!(choose(&two, None), Some(1), "the oldest, as earlier releases did");
        assert_eq!(choose(&[], None), None);
    }

    #[test]
    fn a_vdoconfig_that_was_passed_over_is_not_followed_after_an_upgrade() {
        let mut forgotten = candidate("forgotten", "1", OLD);
        forgotten.passed_over = true;
        assert_eq!(choose(&[forgotten.clone()], None), None);
        forgotten.confirmed = true;
        assert_eq!(choose(&[forgotten], None), Some(0));
    }

    #[test]
    fn after_a_hand_over_the_vdoconfig_next_to_the_operator_is_followed() {
        let mut status = api::VDOConfigStatus::default();
        let now = Time(OLD.parse().unwrap());
        condition::set(
            &mut status.conditions,
            condition::READY,
            condition::Answer::False,
            NOT_FOLLOWED,
            "",
            None,
            &now,
        );
        let metadata = ObjectMeta::default();
        assert!(Candidate::new(&metadata, Some(&status)).passed_over);
        status.findings.push(codes::ELSEWHERE.found().build());
        assert!(!Candidate::new(&metadata, Some(&status)).passed_over);
    }

    #[test]
    fn the_recorded_one_stays_whatever_is_created_or_confirmed_next_to_it() {
        let recorded = FollowedConfig { name: "vdo".into(), uid: "1".into() };
        let mut older = candidate("other", "2", OLD);
        older.confirmed = true;
        assert_eq!(choose(&[older, candidate("vdo", "1", NEW)], Some(&recorded)), Some(1));
    }

    #[test]
    fn a_re_created_vdoconfig_is_followed_and_another_name_needs_confirmation() {
        let recorded = FollowedConfig { name: "vdo".into(), uid: "1".into() };
        let mut other = candidate("other", "2", OLD);
        assert_eq!(choose(&[other.clone()], Some(&recorded)), None);
        let again = candidate("vdo", "3", NEW);
        assert_eq!(choose(&[other.clone(), again], Some(&recorded)), Some(1));
        other.confirmed = true;
        assert_eq!(choose(&[other.clone()], Some(&recorded)), Some(0));
        let mut third = candidate("third", "4", NEW);
        third.confirmed = true;
        assert_eq!(choose(&[other.clone(), third], Some(&recorded)), None, "which of the two?");
        // A record without a name matches no VDOConfig.
        other.confirmed = false;
        assert_eq!(choose(&[other], Some(&FollowedConfig::default())), None);
    }
}
