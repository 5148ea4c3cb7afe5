//! Conditions that follow the Kubernetes API conventions.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

// On every kind.

/// The object has the desired state, and no finding of severity Error or worse is open.
pub const READY: &str = "Ready";

// On the VDOConfig.

/// VDO follows this VDOConfig.
pub const FOLLOWED: &str = "Followed";
/// A step of the plan is running.
pub const PROGRESSING: &str = "Progressing";
/// A finding of severity Error or worse is open. The drivers can still work.
pub const DEGRADED: &str = "Degraded";
/// No step is running and no release is half installed, so the cluster can be upgraded.
pub const UPGRADEABLE: &str = "Upgradeable";
/// The cloud provider is healthy.
pub const CLOUD_PROVIDER_READY: &str = "CloudProviderReady";
/// The storage driver is healthy.
pub const STORAGE_READY: &str = "StorageReady";
/// VDO verified every vCenter.
pub const VCENTER_READY: &str = "VcenterReady";
/// The network plugin runs on every node.
pub const NETWORK_READY: &str = "NetworkReady";

// On the VsphereCloudConfig.

/// The last connection reached the vCenter.
pub const REACHABLE: &str = "Reachable";
/// The vCenter accepted the credentials in the Secret.
pub const AUTHENTICATED: &str = "Authenticated";
/// The user has every privilege that the drivers need.
pub const PRIVILEGED: &str = "Privileged";

// On the CompatibilityConfig.

/// The signature of the catalog is valid, or its origin needs none.
pub const TRUSTED: &str = "Trusted";
/// The catalog in use has not expired.
pub const CURRENT: &str = "Current";

/// The status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    True,
    False,
    /// VDO cannot tell; the message of the condition gives the reason.
    Unknown,
}

impl Answer {
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
/// The transition time changes only with the answer, so an unchanged status compares equal and need not
/// be written. The list stays sorted by type.
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

pub fn get<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == kind)
}

pub fn is_true(conditions: &[Condition], kind: &str) -> bool {
    get(conditions, kind).is_some_and(|c| c.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(second: i64) -> Time {
        Time(jiff::Timestamp::from_second(second).unwrap())
    }

    #[test]
    fn the_transition_time_changes_only_with_the_answer() {
        let mut conditions = Vec::new();
        set(&mut conditions, READY, true, "Healthy", "all is well", Some(1), &time(10));
        set(&mut conditions, READY, true, "Healthy", "still", Some(2), &time(20));
        let ready = get(&conditions, READY).unwrap();
        assert_eq!(
            (ready.last_transition_time.clone(), ready.message.as_str()),
            (time(10), "still")
        );
        set(
            &mut conditions,
            READY,
            Answer::Unknown,
            "NoAnswer",
            "vCenter is unreachable",
            Some(2),
            &time(30),
        );
        assert_eq!(get(&conditions, READY).unwrap().last_transition_time, time(30));
        assert!(!is_true(&conditions, READY));
    }

    #[test]
    fn conditions_are_unique_and_sorted() {
        let mut conditions = Vec::new();
        for kind in [UPGRADEABLE, READY, DEGRADED, READY] {
            set(&mut conditions, kind, false, "X", "", None, &time(1));
        }
        let kinds: Vec<&str> = conditions.iter().map(|c| c.type_.as_str()).collect();
        assert_eq!(kinds, [DEGRADED, READY, UPGRADEABLE]);
    }
}
