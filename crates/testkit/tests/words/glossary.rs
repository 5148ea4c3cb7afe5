//! The words to avoid, and what to write instead.

/// Words for one thing.
pub(crate) struct Entry {
    pub(crate) write: &'static str,
    /// Each is a word or a phrase. `a|b` stands for either word.
    pub(crate) avoid: &'static [&'static str],
    /// Words that give the avoided word another meaning, right before it.
    pub(crate) unless_after: &'static [&'static str],
    /// Words that give the avoided word another meaning, right after it.
    pub(crate) unless_before: &'static [&'static str],
}

const fn entry(write: &'static str, avoid: &'static [&'static str]) -> Entry {
    Entry { write, avoid, unless_after: &[], unless_before: &[] }
}

pub(crate) const GLOSSARY: &[Entry] = &[
    entry(
        "fix, remediate, remediation",
        &[
            "mend|mends|mended|mending|mender|menders",
            "cure|cures|cured|curing",
            "put|puts|putting right",
            "put|puts|putting it|them|this right",
        ],
    ),
    entry(
        "report; the status shows; the configuration names",
        &[
            "told|untold",
            "said|unsaid",
            "status|finding|vdo|operator says",
            "vdo|operator tells",
            "says so",
        ],
    ),
    entry(
        "roll back",
        &[
            "take|takes|taken|taking|took back",
            "take|takes|taken|taking|took it|them|this|that back",
        ],
    ),
    entry("desired state, spec", &["wish|wishes|wished|wishing"]),
    entry("again, re-create, re-register", &["anew"]),
    entry("not managed by VDO", &["other hands", "of others"]),
    entry(
        "adopt (a driver); replace (a leader)",
        &["take|takes|taken|taking|took over", "takeover|takeovers"],
    ),
    entry("wait up to N; timeout; grace period", &["patience|patient|patiently|impatient"]),
    Entry {
        write: "unreachable, unavailable",
        avoid: &["away"],
        unless_after: &["right", "straight", "far", "taken", "pods"],
        unless_before: &["from"],
    },
    entry("next to, alongside, compared with", &["beside"]),
    entry("allowed namespaces", &["homes"]),
    entry("health facts, collector", &["survey|surveys|surveyed|surveyor"]),
    entry("cache, store, reflector", &["shelf|shelves"]),
    entry(
        "connectivity probe, TLS probe",
        &["doorstep|doorsteps", "knock|knocks|knocked|knocking"],
    ),
    entry("error chain", &["story|stories"]),
    entry("redact, redaction", &["veil|veils|veiled|veiling"]),
    entry("uninstall, delete, deletion", &["farewell|farewells", "leaving", "bye|goodbye"]),
    entry("crash log", &["last word|words", "node word|words"]),
    entry("foreign cluster ids; a client without a session", &["stranger|strangers"]),
    entry("vCenters, vCenter pool", &["fleet|fleets", "crew|crews", "vcenter|pool member|members"]),
    Entry {
        write: "VM",
        avoid: &["machine|machines"],
        unless_after: &["virtual", "state"],
        unless_before: &["readable", "id", "ssl", "config", "configs", "configuration"],
    },
    entry(
        "has permission, lacks the privilege",
        &[
            "rights",
            "the|a|no|any right to",
            "vdo|operator|account|user|admin|drivers|provider may not",
            "may not be read|listed|seen|written|asked|deleted|changed",
        ],
    ),
    entry("a noun: the user who…, the client that…", &["whoever"]),
];

/// Identifiers to avoid in exactly this spelling.
pub(crate) const SPELLINGS: &[(&str, &str)] = &[("VCenter", "vCenter"), ("VCenters", "vCenters")];
