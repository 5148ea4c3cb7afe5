//! Specs that the test environment cannot run, with the reasons.

/// A part of the spec's name, and the reason.
const LIMITS: [(&str, &str); 1] = [(
    "provisioning should provision storage with any volume data source",
    "it tests a volume populator, whose image cannot be pulled without a network; no driver takes part",
)];

pub(super) fn reason(spec: &str) -> Option<&'static str> {
    LIMITS.iter().find(|(part, _)| spec.contains(part)).map(|(_, reason)| *reason)
}

/// For the suite: the names of these specs.
pub(super) fn names() -> impl Iterator<Item = String> {
    LIMITS.iter().map(|(part, _)| (*part).to_owned())
}
