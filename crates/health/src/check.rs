//! Checks and their results.

use std::{collections::BTreeMap, fmt};

use api::{
    Severity,
    finding::{Definition, Subject, codes},
};

use jiff::{SignedDuration, Timestamp};

use crate::{
    facts::{Known, Node, Vcenter, Volume},
    view::{FactsView, FoundVm, NodeVm},
};

/// A pure function from facts to hits.
///
/// [`CheckScope`] decides how often it runs: a change of one node or volume runs the checks of that object
/// again, and the cluster-wide checks that read such objects.
#[derive(Debug)]
pub struct Check {
    /// Theme and file, for example `nodes/disk_uuid`.
    pub name: &'static str,
    pub gives: &'static [&'static Definition],
    pub run: CheckScope,
}

impl Check {
    /// The last part of the name in words: `disk uuid` for `nodes/disk_uuid`.
    pub fn topic(&self) -> String {
        self.name.rsplit('/').next().unwrap_or(self.name).replace('_', " ")
    }

    /// Whether the check needs a node's VM. If the VM is unknown, `nodes/vm_found` reports that once for
    /// all these checks.
    pub fn needs_vm(&self) -> bool {
        let more = ["nodes/provider_id", "nodes/deletion_risk", "storage/attached_vm"];
        matches!(self.run, CheckScope::NodeVm(_)) || more.contains(&self.name)
    }

    /// Runs only this check.
    pub fn hits(&'static self, view: &FactsView<'_>) -> Vec<Hit> {
        let mut sink = Sink::default();
        if let CheckScope::Cluster(_, run) = self.run {
            run(view, &mut sink);
        }
        for node in view.nodes() {
            examine_node(view, node, &[self], &mut sink);
        }
        for volume in view.facts.storage.volumes.get().into_iter().flat_map(|v| v.values()) {
            examine_volume(view, volume, &[self], &mut sink);
        }
        sink.hits
    }
}

/// Runs the checks of a node and its VM; ignores other checks.
pub(crate) fn examine_node(view: &FactsView<'_>, node: &Node, checks: &[&Check], sink: &mut Sink) {
    let vm = view.node_vm(node);
    for check in checks {
        match (check.run, &vm) {
            (CheckScope::Node(run), _) => run(view, node, sink),
            (CheckScope::NodeVm(run), NodeVm::One(found)) => run(view, node, found, sink),
            _ => {}
        }
    }
}

pub(crate) fn examine_volume(
    view: &FactsView<'_>,
    volume: &Volume,
    checks: &[&Check],
    sink: &mut Sink,
) {
    for check in checks {
        if let CheckScope::Volume(run) = check.run {
            run(view, volume, sink);
        }
    }
}

/// The scope of a check.
#[derive(Clone, Copy, Debug)]
pub enum CheckScope {
    /// Runs on all facts, when one of the parts it reads has changed.
    Cluster(&'static [Part], fn(&FactsView<'_>, &mut Sink)),
    Node(fn(&FactsView<'_>, &Node, &mut Sink)),
    /// Runs on a node and its VM, and not at all if the VM is unknown or ambiguous.
    NodeVm(fn(&FactsView<'_>, &Node, &FoundVm<'_>, &mut Sink)),
    Volume(fn(&FactsView<'_>, &Volume, &mut Sink)),
}

/// A part of the facts whose objects change often and independently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Nodes,
    Vms,
    /// Includes attachments and claims.
    Volumes,
    /// Pods and workloads of the drivers.
    Pods,
}

/// An object that relates hits: a cause and its effect must share an anchor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Anchor {
    /// By the name of its VsphereCloudConfig.
    Vcenter,
    Node,
    /// By inventory path.
    Vm,
    /// `CPI` or `CSI`.
    Driver,
    /// By handle.
    Volume,
    /// A tag category.
    Category,
    /// By URL.
    Datastore,
    /// An ESXi host, by inventory path.
    Host,
}

/// One fault of one object. A finding combines many hits.
#[derive(Clone, Debug, PartialEq)]
pub struct Hit {
    pub definition: &'static Definition,
    pub subject: Subject,
    /// Template values that all objects of one finding share.
    pub shared: Vec<(&'static str, String)>,
    /// Template values of this object.
    pub own: Vec<(&'static str, String)>,
    pub anchors: Vec<(Anchor, String)>,
    /// Codes of findings that explain this hit if they are present.
    pub because: Vec<&'static str>,
    /// Overrides the severity of the definition.
    pub severity: Option<Severity>,
    /// Whether the hit has no texts, only its object: there are too many of them. See `Sink::limited`.
    pub brief: bool,
}

impl Hit {
    pub fn new(definition: &'static Definition, subject: Subject) -> Self {
        Self {
            definition,
            subject,
            shared: Vec::new(),
            own: Vec::new(),
            anchors: Vec::new(),
            because: Vec::new(),
            severity: None,
            brief: false,
        }
    }

    /// Drops the texts. The object stays, so that the hit is still counted, listed and traced to its cause.
    pub(crate) fn shorten(&mut self) {
        self.own = Vec::new();
        self.brief = true;
        self.shared.shrink_to_fit();
        self.anchors.shrink_to_fit();
        self.because.shrink_to_fit();
    }

    /// Whether the hit is about one of the objects that a cluster can have tens of thousands of.
    fn is_about_volume(&self) -> bool {
        let kinds = ["PersistentVolume", "PersistentVolumeClaim", "VolumeAttachment"];
        kinds.contains(&self.subject.kind.as_str())
    }

    pub fn for_node(definition: &'static Definition, node: &Node) -> Self {
        let subject = Subject::kubernetes("Node", None, &node.name);
        Self::new(definition, subject).with("node", &node.name).node(&node.name)
    }

    pub fn for_vm(definition: &'static Definition, node: &Node, found: &FoundVm<'_>) -> Self {
        let subject = Subject::vsphere("VirtualMachine", &found.vm.name, &found.vm.path);
        Self::new(definition, subject)
            .with("node", &node.name)
            .with("vm", &found.vm.path)
            .node(&node.name)
            .vcenter(&found.vcenter.name)
    }

    /// Sets a template value of this object.
    #[must_use]
    #[expect(clippy::needless_pass_by_value, reason = "callers pass numbers and texts alike")]
    pub fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.own.push((name, value.to_string()));
        self
    }

    /// Sets a template value that all objects of one finding share. Hits with different values become
    /// different findings.
    #[must_use]
    #[expect(clippy::needless_pass_by_value, reason = "callers pass numbers and texts alike")]
    pub fn shared(mut self, name: &'static str, value: impl ToString) -> Self {
        self.shared.push((name, value.to_string()));
        self
    }

    #[must_use]
    pub fn at(mut self, anchor: Anchor, name: &str) -> Self {
        self.anchors.push((anchor, name.to_owned()));
        self
    }

    #[must_use]
    pub fn node(self, name: &str) -> Self {
        self.at(Anchor::Node, name)
    }

    #[must_use]
    pub fn vcenter(self, name: &str) -> Self {
        self.at(Anchor::Vcenter, name)
    }

    #[must_use]
    pub fn driver(self, name: &str) -> Self {
        self.at(Anchor::Driver, name)
    }

    /// Adds codes of findings that explain this hit if they are present.
    #[must_use]
    pub fn because(mut self, codes: impl IntoIterator<Item = &'static str>) -> Self {
        self.because.extend(codes);
        self
    }

    #[must_use]
    pub fn severity(mut self, severity: Severity) -> Self {
        self.severity = Some(severity);
        self
    }
}

/// Collects the results of checks.
#[derive(Debug, Default)]
pub struct Sink {
    pub hits: Vec<Hit>,
    /// The earliest moment at which time alone changes an answer.
    pub recheck_at: Option<Timestamp>,
    /// Whether a fault can exist although no hit reports it.
    pub(crate) is_open: bool,
    /// How many hits about volumes, claims and attachments keep their texts, for each code.
    limit: Option<usize>,
    /// How many of them have their texts, by code.
    described: BTreeMap<&'static str, usize>,
}

impl Sink {
    /// A sink that keeps the texts of so many hits about volumes, claims and attachments for each code. A finding shows
    /// three texts, however many objects it has.
    pub(crate) fn limited(limit: Option<usize>) -> Self {
        Self { limit, ..Self::default() }
    }

    pub fn raise(&mut self, mut hit: Hit) {
        if let Some(limit) = self.limit.filter(|_| hit.is_about_volume()) {
            let described = self.described.entry(hit.definition.code).or_default();
            *described += 1;
            if *described > limit {
                hit.shorten();
            }
        }
        self.hits.push(hit);
    }

    /// Records that facts are missing that nobody needs to know about: the absence of a hit proves nothing.
    pub(crate) fn leave_open(&mut self) {
        self.is_open = true;
    }

    /// Schedules another run `seconds` after `moment`, if that is in the future.
    ///
    /// A check calls this for every threshold that it compares with the current time.
    pub fn recheck(&mut self, view: &FactsView<'_>, moment: Timestamp, seconds: i64) {
        // Checks compare whole seconds, some inclusively: one second later, every comparison flips.
        let at = moment.saturating_add(SignedDuration::from_secs(seconds + 1));
        if let Ok(at) = at
            && at > view.facts.now
            && self.recheck_at.is_none_or(|known| at < known)
        {
            self.recheck_at = Some(at);
        }
    }

    /// Records that a check could not answer a question, which is a finding of its own.
    ///
    /// `question` completes "Cannot tell ...", for example "whether worker-1 sees its disks' ids".
    pub fn cannot_tell(
        &mut self,
        subject: Subject,
        question: impl fmt::Display,
        reason: &str,
    ) -> &mut Hit {
        let hit = Hit::new(codes::CHECK_INCOMPLETE, subject)
            .with("question", question)
            .shared("reason", reason);
        self.hits.push(hit);
        let last = self.hits.len() - 1;
        &mut self.hits[last]
    }

    /// Returns the fact, or records that the question has no answer.
    pub fn need<'f, T>(
        &mut self,
        fact: &'f Known<T>,
        subject: impl FnOnce() -> Subject,
        question: impl fmt::Display,
    ) -> Option<&'f T> {
        match fact {
            Known::Known(value) => Some(value),
            Known::Unknown { reason } => {
                self.cannot_tell(subject(), question, reason);
                None
            }
        }
    }

    /// Like [`Sink::need_from_vcenter`], but with severity Info: the fact needs more privileges than the
    /// drivers do, so most accounts cannot read it.
    pub fn prefer_from_vcenter<'f, T>(
        &mut self,
        fact: &'f Known<T>,
        vcenter: &Vcenter,
        question: impl fmt::Display,
    ) -> Option<&'f T> {
        let found = self.need_from_vcenter(fact, vcenter, question);
        if let (None, Some(hit)) = (found, self.hits.last_mut()) {
            hit.severity = Some(Severity::Info);
        }
        found
    }

    /// Like [`Sink::need`], for a fact of a vCenter: if that vCenter is unreachable, the unknown fact
    /// becomes a consequence of that.
    pub fn need_from_vcenter<'f, T>(
        &mut self,
        fact: &'f Known<T>,
        vcenter: &Vcenter,
        question: impl fmt::Display,
    ) -> Option<&'f T> {
        match fact {
            Known::Known(value) => Some(value),
            Known::Unknown { reason } => {
                let subject = crate::view::vcenter_subject(vcenter);
                let hit = self.cannot_tell(subject, question, reason);
                hit.anchors.push((Anchor::Vcenter, vcenter.name.clone()));
                None
            }
        }
    }
}
