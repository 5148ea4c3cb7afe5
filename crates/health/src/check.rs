//! What a check is, and where its results go.

use std::fmt;

use api::{
    Severity,
    finding::{Definition, Subject, codes},
};

use crate::{
    examination::{examine_node, examine_volume},
    facts::{Known, Node, Volume},
    view::{Found, View},
};

/// A check: a pure function from facts to hits.
///
/// Its scope decides how often it runs: a change of one node or volume runs the checks of that one
/// object again, and those of the cluster that look at such objects.
#[derive(Debug)]
pub struct Check {
    /// Its name: theme and file, for example `nodes/disk_uuid`.
    pub name: &'static str,
    /// The findings it can give.
    pub gives: &'static [&'static Definition],
    /// What it runs over.
    pub run: Run,
}

impl Check {
    /// What it is about, in words: `disk uuid` of `nodes/disk_uuid`.
    pub fn matter(&self) -> String {
        self.name.rsplit('/').next().unwrap_or(self.name).replace('_', " ")
    }

    /// Whether it asks of a node's VM alone: then it is said once, for all of them, that a VM is not seen.
    pub fn is_of_vms(&self) -> bool {
        let more = ["nodes/provider_id", "nodes/deletion_risk", "storage/holders"];
        matches!(self.run, Run::NodeVm(_)) || more.contains(&self.name)
    }

    /// What it alone finds.
    pub fn alone(&'static self, view: &View<'_>) -> Vec<Hit> {
        let mut sink = Sink::default();
        if let Run::Cluster(_, run) = self.run {
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

/// What a check runs over.
#[derive(Clone, Copy, Debug)]
pub enum Run {
    /// Everything, when one of the parts it reads has changed.
    Cluster(&'static [Part], fn(&View<'_>, &mut Sink)),
    /// One node.
    Node(fn(&View<'_>, &Node, &mut Sink)),
    /// One node and the one VM it runs on. Not run where the VM is not known.
    NodeVm(fn(&View<'_>, &Node, &Found<'_>, &mut Sink)),
    /// One volume.
    Volume(fn(&View<'_>, &Volume, &mut Sink)),
}

/// A part of the facts that changes often and one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Nodes.
    Nodes,
    /// VMs.
    Vms,
    /// Volumes, attachments and claims.
    Volumes,
    /// Pods and workloads of the drivers.
    Pods,
}

/// What a hit stands in relation to; a cause and its effect are matched by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Anchor {
    /// A vCenter, by the name of its object.
    Vcenter,
    /// A node.
    Node,
    /// A driver, `CPI` or `CSI`.
    Driver,
    /// A volume, by handle.
    Volume,
    /// A tag category.
    Category,
    /// A datastore, by URL.
    Datastore,
    /// An ESXi host, by inventory path.
    Host,
}

/// One object with one fault. Many of them become one finding.
#[derive(Clone, Debug, PartialEq)]
pub struct Hit {
    /// What is wrong.
    pub definition: &'static Definition,
    /// With what.
    pub subject: Subject,
    /// Values all objects of one finding have in common.
    pub shared: Vec<(&'static str, String)>,
    /// Values of this object.
    pub own: Vec<(&'static str, String)>,
    /// Where it belongs.
    pub anchors: Vec<(Anchor, String)>,
    /// Codes of findings that would explain it.
    pub because: Vec<&'static str>,
    /// How bad it is, if not as bad as its definition says.
    pub severity: Option<Severity>,
}

impl Hit {
    /// A fault of one object.
    pub fn new(definition: &'static Definition, subject: Subject) -> Self {
        Self {
            definition,
            subject,
            shared: Vec::new(),
            own: Vec::new(),
            anchors: Vec::new(),
            because: Vec::new(),
            severity: None,
        }
    }

    /// A fault of a node.
    pub fn of_node(definition: &'static Definition, node: &Node) -> Self {
        let subject = Subject::kubernetes("Node", None, &node.name);
        Self::new(definition, subject).with("node", &node.name).node(&node.name)
    }

    /// A fault of a node's VM.
    pub fn of_vm(definition: &'static Definition, node: &Node, found: &Found<'_>) -> Self {
        let subject = Subject::vsphere("VirtualMachine", &found.vm.name, &found.vm.path);
        Self::new(definition, subject)
            .with("node", &node.name)
            .with("vm", &found.vm.path)
            .node(&node.name)
            .vcenter(&found.vcenter.name)
    }

    /// Gives a value of this object.
    #[must_use]
    #[expect(clippy::needless_pass_by_value, reason = "callers pass numbers and texts alike")]
    pub fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.own.push((name, value.to_string()));
        self
    }

    /// Gives a value all objects of one finding have in common. Different values make different
    /// findings.
    #[must_use]
    #[expect(clippy::needless_pass_by_value, reason = "callers pass numbers and texts alike")]
    pub fn shared(mut self, name: &'static str, value: impl ToString) -> Self {
        self.shared.push((name, value.to_string()));
        self
    }

    /// Says where it belongs.
    #[must_use]
    pub fn at(mut self, anchor: Anchor, name: &str) -> Self {
        self.anchors.push((anchor, name.to_owned()));
        self
    }

    /// It belongs to a node.
    #[must_use]
    pub fn node(self, name: &str) -> Self {
        self.at(Anchor::Node, name)
    }

    /// It belongs to a vCenter.
    #[must_use]
    pub fn vcenter(self, name: &str) -> Self {
        self.at(Anchor::Vcenter, name)
    }

    /// It belongs to a driver.
    #[must_use]
    pub fn driver(self, name: &str) -> Self {
        self.at(Anchor::Driver, name)
    }

    /// Names findings that, where they are present, explain this one.
    #[must_use]
    pub fn because(mut self, codes: impl IntoIterator<Item = &'static str>) -> Self {
        self.because.extend(codes);
        self
    }

    /// Overrides how bad it is.
    #[must_use]
    pub fn severity(mut self, severity: Severity) -> Self {
        self.severity = Some(severity);
        self
    }
}

/// Where checks put what they find.
#[derive(Debug, Default)]
pub struct Sink {
    /// What was found so far.
    pub hits: Vec<Hit>,
}

impl Sink {
    /// Adds a hit.
    pub fn raise(&mut self, hit: Hit) {
        self.hits.push(hit);
    }

    /// Records that a question could not be answered. Never silent: a check that cannot run is a
    /// finding itself.
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

    /// The fact, or a record that the question could not be answered.
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

    /// As [`Sink::need_of`], for what is good to know and takes more rights than the drivers need: that
    /// it is unknown is said, and nobody is alarmed.
    pub fn would_like<'f, T>(
        &mut self,
        fact: &'f Known<T>,
        vcenter: &crate::facts::Vcenter,
        question: impl fmt::Display,
    ) -> Option<&'f T> {
        let found = self.need_of(fact, vcenter, question);
        if let (None, Some(hit)) = (found, self.hits.last_mut()) {
            hit.severity = Some(Severity::Info);
        }
        found
    }

    /// As [`Sink::need`], for a fact of a vCenter: what is unknown because that vCenter is away is
    /// then shown as a consequence of it.
    pub fn need_of<'f, T>(
        &mut self,
        fact: &'f Known<T>,
        vcenter: &crate::facts::Vcenter,
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
