//! What is to be done: the outcome of `decide`, which `act` executes and `report` shows.

use api::finding::Finding;
use catalog::{Decision, Driver, Implementation, manifest::Object};
use jiff::Timestamp;

use crate::{object_id::ObjectId, record::Record};

/// The plan for the whole cluster.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// For each driver that is wanted, observed or removed.
    pub drivers: Vec<DriverPlan>,
    /// What is wrong, or worth knowing.
    pub findings: Vec<Finding>,
    /// Whether nothing may be changed.
    pub paused: bool,
    /// What to do about the finalizer of the VDOConfig.
    pub finalizer: Finalizer,
    /// What is to be said of nodes that are no machines of vSphere, or are after all.
    pub nodes: Vec<NodeWord>,
    /// When to look again even if nothing changes: a wait ends then.
    pub wake: Option<Timestamp>,
}

/// What to do about the finalizer that lets VDO take the drivers away before the VDOConfig goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Finalizer {
    /// It is as it should be.
    #[default]
    Stay,
    /// Set it: the drivers go with the object.
    Set,
    /// Take it off: the object may go.
    Clear,
}

/// A word about a node, in its labels, by which the storage driver is kept away from it or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeWord {
    /// Which node.
    pub node: String,
    /// Whether it is left out from now on.
    pub out: bool,
    /// Why.
    pub why: String,
}

/// The plan for one driver.
#[derive(Clone, Debug)]
pub struct DriverPlan {
    /// Which.
    pub driver: Driver,
    /// Whether VDO acts on it.
    pub mode: api::vdo_config::Mode,
    /// What runs, if anything does.
    pub installed: Option<String>,
    /// Whose that is.
    pub implementation: Option<Implementation>,
    /// What is to run.
    pub target: Option<String>,
    /// Whose that is.
    pub target_implementation: Option<Implementation>,
    /// Why that release and no other; none where no choice was made.
    pub decision: Option<Decision>,
    /// All steps, in order.
    pub steps: Vec<Step>,
    /// The one thing to do now.
    pub next: Next,
    /// What it waits for before it may change to another release, if it waits.
    pub held: Option<String>,
}

impl DriverPlan {
    /// The step it is at; none if all are done.
    pub fn at(&self) -> Option<&Step> {
        self.steps.iter().find(|step| step.state != StepState::Done)
    }

    /// What the status calls a step of this driver.
    pub fn title_of(&self, step: &Step) -> String {
        format!("{}: {}", self.driver, step.title)
    }

    /// Since when it is at the step it is at, by the status before; none if it is at none, or came to it
    /// just now.
    pub fn since(&self, before: Option<&api::VDOConfigStatus>) -> Option<Timestamp> {
        let title = self.title_of(self.at()?);
        let mut steps = before?.plan.iter().flat_map(|plan| &plan.steps);
        let same = |step: &&api::vdo_config::PlanStep| {
            step.title == title && step.state == api::vdo_config::StepState::Running
        };
        steps.find(same)?.since.as_ref().map(|since| since.0)
    }
}

/// A step of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// What it does.
    pub title: String,
    /// How far it is.
    pub state: StepState,
    /// What it waits for, or what is wrong.
    pub message: Option<String>,
}

/// How far a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepState {
    /// Not begun.
    Pending,
    /// Under way.
    Running,
    /// Done.
    Done,
    /// It cannot go on as things are.
    Failed,
}

/// The one thing to do now.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// Nothing: all is as it should be, or it is not ours to act.
    Nothing,
    /// Write the record, then look again.
    Record(Box<Record>),
    /// Apply these objects.
    Apply(Vec<Object>),
    /// Let the pods of this workload start again, and change nothing else of it.
    Restart {
        /// Which.
        workload: ObjectId,
        /// When a login in its Secret changed: the pods carry it from then on.
        changed: String,
        /// How many of its pods are on nodes that are down: the restart does not wait for them.
        unreachable: i32,
        /// The step to do if the pods cannot be restarted: it may remove the cause.
        otherwise: Box<Next>,
    },
    /// Delete these objects, which stand in the record and are wanted no more.
    Delete(Vec<ObjectId>),
    /// Wait: the steps say for what.
    Wait,
    /// Nothing can be done until somebody mends something: the findings say what.
    Blocked,
}
