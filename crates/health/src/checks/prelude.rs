//! Common imports of the checks.

pub(crate) use api::{
    Severity,
    finding::{Subject, codes},
};

#[allow(unused_imports, reason = "each check uses some of it")]
pub(crate) use crate::{
    check::{Anchor, Check, CheckScope, Hit, Part, Sink},
    facts::{Facts, Known, Node, Vcenter, Version, Volume},
    view::{
        FactsView, FoundVm, NodeVm, datastore_subject, first_names, moment, span, vcenter_subject,
    },
};

#[cfg(test)]
#[allow(unused_imports, reason = "each check's tests use some of it")]
pub(crate) use crate::{
    shortcuts::Shortcuts,
    testing::{codes_of, healthy, shows, shows_of_vms},
};

pub(crate) fn node_subject(node: &Node) -> Subject {
    Subject::kubernetes("Node", None, &node.name)
}

pub(crate) fn cluster_subject() -> Subject {
    Subject::kubernetes("Cluster", None, "this cluster")
}
