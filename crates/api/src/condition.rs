//! Conditions, as the Kubernetes API conventions want them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Everything asked for is there and healthy.
pub const READY: &str = "Ready";
/// VDO follows this VDOConfig.
pub const FOLLOWED: &str = "Followed";
/// Something is being changed.
pub const PROGRESSING: &str = "Progressing";
/// Something is wrong; it may still work.
pub const DEGRADED: &str = "Degraded";
/// Nothing stands in the way of an upgrade of cluster or drivers.
pub const UPGRADEABLE: &str = "Upgradeable";
/// The cloud provider is healthy.
pub const CLOUD_PROVIDER_READY: &str = "CloudProviderReady";
/// The storage driver is healthy.
pub const STORAGE_READY: &str = "StorageReady";
/// Every vCenter answers, and lets us in.
pub const VCENTER_READY: &str = "VcenterReady";
/// The network plugin is healthy.
pub const NETWORK_READY: &str = "NetworkReady";
/// The vCenter answers.
pub const REACHABLE: &str = "Reachable";
/// The vCenter accepts user and password.
pub const AUTHENTICATED: &str = "Authenticated";
/// The user may do what the drivers need.
pub const PRIVILEGED: &str = "Privileged";
/// The catalog's signature holds.
pub const TRUSTED: &str = "Trusted";
/// The catalog has not expired.
pub const CURRENT: &str = "Current";

/// The answer a condition gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Yes.
    True,
    /// No.
    False,
    /// Cannot tell; the message says what is missing to tell.
    Unknown,
}

impl Answer {
    /// The word that stands in `status`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for Answer {
    fn from(yes: bool) -> Self {
        if yes { Self::True } else { Self::False }
    }
}

/// Sets one condition of a list.
///
/// The transition time moves only if the answer changes, so a status that says the same is equal to
/// the one before and need not be written. The list stays sorted by type.
pub fn set(
    conditions: &mut Vec<Condition>,
    kind: &str,
    answer: impl Into<Answer>,
    reason: &str,
    message: impl Into<String>,
    generation: Option<i64>,
    now: &Time,
) {
    let status = answer.into().as_str();
    let previous = conditions.iter().position(|c| c.type_ == kind).map(|at| conditions.remove(at));
    let since = previous.filter(|c| c.status == status).map(|c| c.last_transition_time);
    let condition = Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.into(),
        observed_generation: generation,
        last_transition_time: since.unwrap_or_else(|| now.clone()),
    };
    let place = conditions.partition_point(|c| c.type_ < condition.type_);
    conditions.insert(place, condition);
}

/// Finds a condition.
pub fn get<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == kind)
}

/// Whether a condition says yes.
pub fn is_true(conditions: &[Condition], kind: &str) -> bool {
    get(conditions, kind).is_some_and(|c| c.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Time {
        Time(jiff::Timestamp::from_second(second).unwrap())
    }

    #[test]
    fn the_transition_time_moves_only_when_the_answer_does() {
        let mut conditions = Vec::new();
        set(&mut conditions, READY, true, "Healthy", "all is well", Some(1), &at(10));
        set(&mut conditions, READY, true, "Healthy", "still", Some(2), &at(20));
        let ready = get(&conditions, READY).unwrap();
        assert_eq!((ready.last_transition_time.clone(), ready.message.as_str()), (at(10), "still"));
        set(
            &mut conditions,
            READY,
            Answer::Unknown,
            "NoAnswer",
            "vCenter is away",
            Some(2),
            &at(30),
        );
        assert_eq!(get(&conditions, READY).unwrap().last_transition_time, at(30));
        assert!(!is_true(&conditions, READY));
    }

    #[test]
    fn conditions_are_unique_and_sorted() {
        let mut conditions = Vec::new();
        for kind in [UPGRADEABLE, READY, DEGRADED, READY] {
            set(&mut conditions, kind, false, "X", "", None, &at(1));
        }
        let kinds: Vec<&str> = conditions.iter().map(|c| c.type_.as_str()).collect();
        assert_eq!(kinds, [DEGRADED, READY, UPGRADEABLE]);
    }
}
