//! The conditions of a claim that the resize and modify loops write.

use k8s_openapi::{
    api::core::v1::PersistentVolumeClaimCondition as Condition,
    apimachinery::pkg::apis::meta::v1::Time,
};

pub const RESIZING: &str = "Resizing";
pub const FILE_SYSTEM_RESIZE_PENDING: &str = "FileSystemResizePending";
pub const CONTROLLER_RESIZE_ERROR: &str = "ControllerResizeError";
pub const NODE_RESIZE_ERROR: &str = "NodeResizeError";
pub const MODIFYING_VOLUME: &str = "ModifyingVolume";
pub const MODIFY_VOLUME_ERROR: &str = "ModifyVolumeError";

pub const OF_RESIZE: [&str; 4] =
    [RESIZING, FILE_SYSTEM_RESIZE_PENDING, CONTROLLER_RESIZE_ERROR, NODE_RESIZE_ERROR];
pub const OF_MODIFY: [&str; 2] = [MODIFYING_VOLUME, MODIFY_VOLUME_ERROR];

/// A condition that is true.
pub fn condition(kind: &str, reason: &str, message: &str, now: jiff::Timestamp) -> Condition {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Condition {
        type_: kind.into(),
        status: "True".into(),
        reason: some(reason),
        message: some(message),
        last_transition_time: Some(Time(now)),
        last_probe_time: None,
    }
}

/// The conditions without those of `dropped`, and with `new`. A condition that was already true keeps its time.
pub fn replaced(known: &[Condition], dropped: &[&str], new: Option<Condition>) -> Vec<Condition> {
    let mut new = new;
    if let Some(new) = &mut new
        && let Some(before) = known.iter().find(|c| c.type_ == new.type_ && c.status == new.status)
    {
        new.last_transition_time.clone_from(&before.last_transition_time);
    }
    let kept = known.iter().filter(|c| {
        !dropped.contains(&c.type_.as_str()) && new.as_ref().is_none_or(|new| new.type_ != c.type_)
    });
    kept.cloned().chain(new.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_with_other_managers_and_known_times_are_kept() {
        let (then, now) = (
            jiff::Timestamp::UNIX_EPOCH,
            jiff::Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_secs(60),
        );
        let known = [condition("Foreign", "", "", then), condition(RESIZING, "", "", then)];
        let changed = replaced(&known, &OF_RESIZE, Some(condition(RESIZING, "", "again", now)));
        let kinds: Vec<&str> = changed.iter().map(|c| c.type_.as_str()).collect();
        assert_eq!(kinds, ["Foreign", RESIZING]);
        assert_eq!(changed[1].last_transition_time, Some(Time(then)));
        assert_eq!(changed[1].message.as_deref(), Some("again"));
        assert_eq!(replaced(&known, &OF_RESIZE, None).len(), 1);
    }
}
