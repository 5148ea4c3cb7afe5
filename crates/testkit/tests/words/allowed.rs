//! Exceptions from the glossary.

/// Where (the beginning of a path), the words, and the reason.
pub(crate) const ALLOWED: &[(&str, &str, &str)] = &[
    ("", "--patience", "a flag of the operator"),
    ("", "VDO_PATIENCE", "its environment variable"),
    ("crates/operator/src/main.rs", "\"patience\"", "the flag"),
    ("", "NodeTakenBack", "the reason of an event; users filter by it"),
    ("", "RightsMissing", "the reason of a condition and of an event"),
    ("crates/cloud-controller/", "machines_gone", "the name of a metric"),
    ("docs/cloud-controller.md", "machines_gone", "the name of a metric"),
    ("crates/cloud-controller/", "\"machine\"", "a key in an annotation of existing Nodes"),
    ("crates/plan/src/record.rs", "\"wish\"", "a key in the records of existing installations"),
    ("crates/vdoctl/tests/cmd/prepare.trycmd", "VSphereMachineTemplate", "a kind of Cluster API"),
    ("crates/testkit/src/real_node.rs", "machine", "the computer that runs the tests"),
    ("crates/testkit/src/guest.rs", "-machine", "an option of QEMU"),
    ("docs/testing.md", "this machine", "the computer that runs the tests"),
    ("peers/vcsim/sim.go", "m.Machine", "a field of govmomi"),
    ("deploy/olm/bundle/", "Bye", "part of the encoded icon"),
    ("crates/health/src/document.rs", "\"VCenter \"", "a test against this spelling"),
];
