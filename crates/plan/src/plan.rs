//! The plan: the result of `decide`, which `act` executes and `report` shows.

use api::finding::Finding;
use catalog::{Decision, Driver, Implementation, manifest::Object};
use jiff::Timestamp;

use crate::{object_id::ObjectId, record::Record};

/// The plan for the whole cluster.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// One plan for each driver that VDO manages, observes or removes.
    pub drivers: Vec<DriverPlan>,
    /// Problems and notices.
    pub findings: Vec<Finding>,
    /// Whether VDO must change nothing.
    pub paused: bool,
    pub finalizer: Finalizer,
    /// Nodes to exclude from the storage driver because they do not run on vSphere, and nodes to include
    /// again.
    pub nodes: Vec<NodeLabel>,
    /// The time to decide again even if nothing changes, because a wait ends then.
    pub wake: Option<Timestamp>,
}

/// The change of the finalizer with which VDO removes the drivers before the VDOConfig is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Finalizer {
    /// No change.
    #[default]
    Stay,
    /// Add the finalizer: VDO removes the drivers together with the VDOConfig.
    Set,
    /// Remove the finalizer: Kubernetes can delete the VDOConfig.
    Clear,
}

/// A node label that keeps the storage driver off a node, or allows it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLabel {
    pub node: String,
    /// Whether VDO excludes the node from now on.
    pub out: bool,
    pub why: String,
}

#[derive(Clone, Debug)]
pub struct DriverPlan {
    pub driver: Driver,
    /// Whether VDO manages, observes or removes the driver.
    pub mode: api::vdo_config::Mode,
    /// The version that runs, if any.
    pub installed: Option<String>,
    /// The implementation that runs.
    pub implementation: Option<Implementation>,
    /// The version that VDO works towards.
    pub target: Option<String>,
    /// The implementation that VDO works towards.
    pub target_implementation: Option<Implementation>,
    /// The reason for the choice of the release; none if VDO made no choice.
    pub decision: Option<Decision>,
    /// All steps, in order.
    pub steps: Vec<PlannedStep>,
    pub next: Next,
    /// The reason why a change to another release waits, if it waits.
    pub held: Option<String>,
    /// A driver that VDO did not install, until VDO applies its own objects.
    pub adoption: Option<AdoptionPreview>,
}

/// The title of the step that adopts a driver.
pub const ADOPT: &str = "Adopt the existing driver";

/// The effect of the adoption of a driver, before VDO changes anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdoptionPreview {
    /// Whether VDO has recorded the driver as its own. Its objects are still as they were.
    pub adopted: bool,
    /// The release that runs, by its number in the catalog; none if VDO does not know it.
    pub release: Option<String>,
    /// The workloads that VDO adopts, as text.
    pub workloads: Vec<String>,
    /// The changes that VDO makes when an admin asks for its own objects, one line each.
    pub changes: Vec<String>,
    /// The objects that VDO does not adopt and leaves as they are, one line each.
    pub left: Vec<String>,
    /// The reason why VDO cannot adopt the driver.
    pub impossible: Option<String>,
}

impl DriverPlan {
    /// Whether VDO adopted the driver and leaves its objects as they are until an admin asks for a change.
    pub fn is_untouched(&self) -> bool {
        self.adoption.as_ref().is_some_and(|adoption| adoption.adopted)
    }

    /// The current step; none if all steps are done.
    pub fn at(&self) -> Option<&PlannedStep> {
        self.steps.iter().find(|step| step.state != StepState::Done)
    }

    /// The title of a step in the status.
    pub fn title_of(&self, step: &PlannedStep) -> String {
        format!("{}: {}", self.driver, step.title)
    }

    /// The start of the current step, according to the previous status. None if there is no current step, or
    /// if the driver reached it just now.
    pub fn since(&self, before: Option<&api::VDOConfigStatus>) -> Option<Timestamp> {
        let title = self.title_of(self.at()?);
        let mut steps = before?.plan.iter().flat_map(|plan| &plan.steps);
        let same = |step: &&api::vdo_config::PlanStep| {
            step.title == title && step.state == api::vdo_config::StepState::Running
        };
        steps.find(same)?.since.as_ref().map(|since| since.0)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct PlannedStep {
    pub title: String,
    pub state: StepState,
    /// The reason why the step waits or fails.
    pub message: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepState {
    Pending,
    Running,
    Done,
    /// The step cannot continue until something changes.
    Failed,
}

/// The pods of a DaemonSet that a rollout does not wait for. Kubernetes counts them towards the limit of pods that
/// restart at a time, so VDO raises the limit by their number. The digest of the object notes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassedPods {
    /// Pods on nodes that are down, and pods that Kubernetes does not want any more.
    pub unreachable: i32,
    /// Pods on nodes that are up that were not available before the rollout. VDO counts them only then: during the
    /// rollout, a pod that restarts is not available either.
    pub unready: i32,
}

impl PassedPods {
    /// The pods to pass after nodes went down or came back during the rollout. The node of an unready pod can be one of
    /// those that are down now. So VDO counts an unready pod once more only if Kubernetes reports an error of it: with
    /// a limit that is too high, two running pods would restart at a time.
    #[must_use]
    pub fn during_rollout(self, unreachable: i32, failing: i32) -> Self {
        let unready = self.unready.min(failing.max(self.total() - unreachable));
        let now = Self { unreachable, unready };
        // Another note of the same total would lose the number of unready pods.
        if now.total() == self.total() { self } else { now }
    }

    pub fn total(self) -> i32 {
        self.unreachable.saturating_add(self.unready)
    }

    /// Splits a digest with this note: `digest+2` for unreachable pods only, else `digest+2+1`.
    pub fn split(digest: &str) -> (&str, Self) {
        let mut parts = digest.split('+');
        let digest = parts.next().unwrap_or_default();
        let mut number = || parts.next().and_then(|text| text.parse().ok()).unwrap_or(0);
        (digest, Self { unreachable: number(), unready: number() })
    }

    /// The digest with this note.
    pub fn noted(self, digest: &str) -> String {
        match self {
            Self { unreachable: 0, unready: 0 } => digest.to_owned(),
            Self { unreachable, unready: 0 } => format!("{digest}+{unreachable}"),
            Self { unreachable, unready } => format!("{digest}+{unreachable}+{unready}"),
        }
    }
}

/// The one thing to do now.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// Do nothing: the driver is as desired, or VDO must not act.
    Nothing,
    /// Write the record, then decide again.
    Record(Box<Record>),
    /// Apply these objects.
    Apply(Vec<Object>),
    /// Restart the pods of this workload, and change nothing else.
    Restart {
        workload: ObjectId,
        /// The time at which a login in the Secret changed. The new pods carry it.
        changed: String,
        /// The restart does not wait for these pods.
        passed: PassedPods,
        /// The action to take if VDO cannot restart the pods: it can remove the cause.
        otherwise: Box<Next>,
    },
    /// Let the kubelets renew the files that the pods of these workloads mount from their Secret, and change
    /// nothing else.
    RenewFiles {
        workloads: Vec<ObjectId>,
        /// The time at which a login in the Secret changed.
        changed: String,
        /// The action to take if VDO cannot change the pods.
        otherwise: Box<Next>,
    },
    /// Delete these objects. The record lists them, and the driver does not need them any more.
    Delete(Vec<ObjectId>),
    /// Wait. The steps name the reason.
    Wait,
    /// Wait for somebody to fix a problem. The findings name it.
    Blocked,
}
