//! The modify loop: a claim with another VolumeAttributesClass gets a volume with the parameters of that class.

use serde_json::{Value, json};
use tonic::{Code, Request, Status};

use super::{
    attempts::{self, Attempts},
    attributes_class::{self, AttributesClass},
    conditions::{MODIFY_VOLUME_ERROR, MODIFYING_VOLUME, OF_MODIFY, condition, replaced},
    context::Shared,
    events::{ObjectReference, Source},
    model::{Claim, Metadata as _, ModifyStatus, Volume},
    queue::Next,
    rpc::is_final,
    writer::after_failure,
};
use crate::proto::csi::{
    ControllerModifyVolumeRequest, controller_service_capability::rpc::Type as Rpc,
};

const PENDING: &str = "Pending";
const IN_PROGRESS: &str = "InProgress";
const INFEASIBLE: &str = "Infeasible";

/// The next step for a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Nothing,
    /// The claim does not ask for another class any more.
    Cancel,
    /// Give the volume the parameters of this class.
    Modify(String),
}

/// Decides the next step. `had_final_error` says that the last attempt certainly ended, so that another class can be
/// tried.
pub fn step(claim: &Claim, volume: &Volume, had_final_error: bool) -> Step {
    if claim.status.phase != "Bound" || !volume.is_bound_to(claim) || claim.is_deleting() {
        return Step::Nothing;
    }
    let filled = |name: &Option<String>| name.clone().filter(|name| !name.is_empty());
    let wanted = filled(&claim.spec.volume_attributes_class_name);
    let current = filled(&claim.status.current_volume_attributes_class_name);
    let status = claim.status.modify_volume_status.as_ref();
    let pinned = status
        .filter(|status| status.status == IN_PROGRESS && !had_final_error)
        .and_then(|status| filled(&status.target_volume_attributes_class_name));
    match (pinned, wanted) {
        (Some(target), _) => Step::Modify(target),
        (None, Some(wanted)) if Some(&wanted) != current.as_ref() => Step::Modify(wanted),
        (None, _) if status.is_some() => Step::Cancel,
        (None, _) => Step::Nothing,
    }
}

/// The status of the claim in a state. `None` if the claim shows it already.
pub fn state(
    claim: &Claim,
    state: &str,
    target: &str,
    error: Option<(&str, &str)>,
) -> Option<Value> {
    let now = jiff::Timestamp::now();
    let wanted = ModifyStatus {
        status: state.into(),
        target_volume_attributes_class_name: Some(target.into()),
    };
    let known = &claim.status.conditions;
    let conditions = match error {
        Some((reason, text)) => {
            replaced(known, &[], Some(condition(MODIFY_VOLUME_ERROR, reason, text, now)))
        }
        None if state == IN_PROGRESS => {
            replaced(known, &OF_MODIFY, Some(condition(MODIFYING_VOLUME, "", "", now)))
        }
        None => known.clone(),
    };
    if claim.status.modify_volume_status.as_ref() == Some(&wanted) && conditions == *known {
        return None;
    }
    Some(json!({"status": {
        "conditions": conditions,
        "modifyVolumeStatus": {"status": state, "targetVolumeAttributesClassName": target},
    }}))
}

/// The status without a modification; with the class of the volume if it has changed.
pub fn ended(claim: &Claim, class: Option<&str>) -> Value {
    let mut patch = json!({"status": {
        "conditions": replaced(&claim.status.conditions, &OF_MODIFY, None),
        "modifyVolumeStatus": null,
    }});
    if let Some(class) = class {
        patch["status"]["currentVolumeAttributesClassName"] = class.into();
    }
    patch
}

pub struct Modifier {
    context: Shared,
    attempts: Attempts<String>,
}

impl Modifier {
    pub fn new(context: Shared) -> Self {
        Self { context, attempts: Attempts::default() }
    }

    /// Forgets a claim that is gone.
    pub fn forget(&self, uid: &str) {
        self.attempts.forget(uid);
    }

    pub async fn modify(&self, claim: &Claim, volume: &Volume) -> Next {
        if !self.context.capabilities.has(Rpc::ModifyVolume) {
            return Next::OnChange;
        }
        let had_final_error = self.attempts.had_final_error(claim.uid());
        let target = match step(claim, volume, had_final_error) {
            Step::Nothing => return Next::OnChange,
            Step::Cancel => return self.cancel(claim).await,
            Step::Modify(target) => target,
        };
        if let Some(pause) = self.attempts.pause(claim.uid(), &target) {
            return Next::After(pause);
        }
        let class = match attributes_class::get(self.context.writer.client(), &target).await {
            Ok(Some(class)) if class.driver_name == self.context.settings.driver => class,
            Ok(Some(class)) => {
                let text = format!(
                    "the VolumeAttributesClass {target} belongs to the driver {}: use one of this driver",
                    class.driver_name
                );
                // The driver of a class never changes.
                return self.report(claim, &target, &Status::invalid_argument(text)).await;
            }
            Ok(None) => {
                let text = format!("the VolumeAttributesClass {target} does not exist");
                return self.wait(claim, &target, text).await;
            }
            Err(error) => {
                tracing::warn!(%error, target, "a VolumeAttributesClass cannot be read");
                return Next::Retry;
            }
        };
        self.apply(claim, volume, &target, class).await
    }

    async fn cancel(&self, claim: &Claim) -> Next {
        self.forget(claim.uid());
        if let Err(error) = self.context.writer.replace_status(claim, ended(claim, None)).await {
            return after_failure(&error);
        }
        let text = "the modification of the volume is canceled".to_owned();
        self.event(claim, false, "VolumeModifyCanceled", text);
        Next::OnChange
    }

    /// The class cannot be used yet.
    async fn wait(&self, claim: &Claim, target: &str, text: String) -> Next {
        self.event(claim, true, "VolumeModifyFailed", text);
        if let Some(patch) = state(claim, PENDING, target, None)
            && let Err(error) = self.context.writer.replace_status(claim, patch).await
        {
            return after_failure(&error);
        }
        Next::Retry
    }

    async fn apply(
        &self,
        claim: &Claim,
        volume: &Volume,
        target: &str,
        class: AttributesClass,
    ) -> Next {
        let writer = &self.context.writer;
        let mut claim = claim.clone();
        if let Some(patch) = state(&claim, IN_PROGRESS, target, None) {
            claim = match writer.replace_status(&claim, patch).await {
                Ok(claim) => claim,
                Err(error) => return after_failure(&error),
            };
        }
        let text =
            format!("external resizer is modifying volume {} with vac {target}", claim.name());
        self.event(&claim, false, "VolumeModify", text);
        let Some(source) = volume.source_of(&self.context.settings.driver) else {
            return Next::OnChange;
        };
        let request = ControllerModifyVolumeRequest {
            volume_id: source.volume_handle.clone(),
            mutable_parameters: class.parameters,
            ..ControllerModifyVolumeRequest::default()
        };
        let calls = &self.context.calls;
        let call = calls.service().controller_modify_volume(Request::new(request));
        match calls.send(call).await {
            Ok(_) => self.finish(&claim, volume, target).await,
            Err(status) => self.report(&claim, target, &status).await,
        }
    }

    async fn finish(&self, claim: &Claim, volume: &Volume, target: &str) -> Next {
        self.forget(claim.uid());
        let writer = &self.context.writer;
        if volume.spec.volume_attributes_class_name.as_deref() != Some(target) {
            let patch = json!({"spec": {"volumeAttributesClassName": target}});
            if let Err(error) = writer.patch(volume, patch).await {
                return after_failure(&error);
            }
        }
        if let Err(error) = writer.replace_status(claim, ended(claim, Some(target))).await {
            return after_failure(&error);
        }
        let text = format!(
            "external resizer modified volume {} with vac {target} successfully",
            claim.name()
        );
        self.event(claim, false, "VolumeModifySuccessful", text);
        Next::OnChange
    }

    async fn report(&self, claim: &Claim, target: &str, status: &Status) -> Next {
        let code = status.code();
        self.event(claim, true, "VolumeModifyFailed", status.message().to_owned());
        let infeasible = code == Code::InvalidArgument;
        if is_final(code) {
            self.attempts.failed(claim.uid(), infeasible.then(|| target.to_owned()));
        }
        let reached = if infeasible { INFEASIBLE } else { IN_PROGRESS };
        let error = (format!("{code:?}"), status.message());
        if let Some(patch) = state(claim, reached, target, Some((&error.0, error.1)))
            && let Err(error) = self.context.writer.replace_status(claim, patch).await
        {
            return after_failure(&error);
        }
        attempts::next(infeasible)
    }

    fn event(&self, claim: &Claim, is_warning: bool, reason: &'static str, text: String) {
        let (events, object) = (&self.context.events, ObjectReference::to(claim));
        if is_warning {
            events.warning(object, Source::Resizer, reason, text);
        } else {
            events.normal(object, Source::Resizer, reason, text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(wanted: Option<&str>, current: Option<&str>, status: Option<(&str, &str)>) -> Claim {
        let status = status.map(
            |(status, target)| json!({"status": status, "targetVolumeAttributesClassName": target}),
        );
        serde_json::from_value(json!({
            "metadata": {"namespace": "shop", "name": "data", "uid": "u-1"},
            "spec": {"volumeAttributesClassName": wanted},
            "status": {
                "phase": "Bound", "currentVolumeAttributesClassName": current, "modifyVolumeStatus": status,
            },
        }))
        .unwrap()
    }

    fn volume() -> Volume {
        serde_json::from_value(json!({
            "metadata": {"name": "pv"},
            "spec": {"claimRef": {"namespace": "shop", "name": "data", "uid": "u-1"}},
        }))
        .unwrap()
    }

    #[test]
    fn the_volume_gets_the_class_that_the_claim_wants() {
        let modify = |class: &str| Step::Modify(class.into());
        let (gold, silver) = (Some("gold"), Some("silver"));
        let cases = [
            (None, None, None, false, Step::Nothing),
            (gold, gold, None, false, Step::Nothing),
            (gold, None, None, false, modify("gold")),
            (gold, silver, None, false, modify("gold")),
            (gold, silver, Some((PENDING, "gold")), false, modify("gold")),
            // A class that may still be in progress is finished before another one begins.
            (gold, silver, Some((IN_PROGRESS, "bronze")), false, modify("bronze")),
            (gold, silver, Some((IN_PROGRESS, "bronze")), true, modify("gold")),
            (None, silver, Some((IN_PROGRESS, "bronze")), false, modify("bronze")),
            (silver, silver, Some((INFEASIBLE, "gold")), false, Step::Cancel),
            (None, None, Some((INFEASIBLE, "gold")), false, Step::Cancel),
            (gold, silver, Some((INFEASIBLE, "gold")), false, modify("gold")),
        ];
        for (wanted, current, status, had_final_error, expected) in cases {
            let decided = step(&claim(wanted, current, status), &volume(), had_final_error);
            assert_eq!(decided, expected, "{wanted:?} {current:?} {status:?} {had_final_error}");
        }
    }

    #[test]
    fn a_repeated_attempt_writes_nothing() {
        let mut claim = claim(Some("gold"), None, None);
        let patch = state(&claim, IN_PROGRESS, "gold", None).unwrap();
        claim.status.conditions =
            serde_json::from_value(patch["status"]["conditions"].clone()).unwrap();
        claim.status.modify_volume_status =
            serde_json::from_value(patch["status"]["modifyVolumeStatus"].clone()).unwrap();
        assert_eq!(state(&claim, IN_PROGRESS, "gold", None), None);
        assert!(state(&claim, INFEASIBLE, "gold", Some(("InvalidArgument", "no"))).is_some());
    }
}
