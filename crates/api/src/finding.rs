//! Findings: what is wrong, why it matters and what to do, in one shape for status, events, metrics,
//! alerts, command line and documentation.
//!
//! ```text
//!   Definition (one per code, in `catalogue`)          what a check saw
//!        code, title, severity, why, remedy      +      values, objects
//!                            └──────────► Finding ◄──────────┘
//! ```
//!
//! A definition's texts are templates: `{name}` stands for a value of the case at hand. A finding
//! carries them filled in, so whoever shows it needs no table.

mod catalogue;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use catalogue::{CATALOGUE, codes};

/// How many objects a finding names; the rest are counted.
pub const NAMED_OBJECTS: usize = 10;

/// How bad a finding is. Ordered: the worst is the greatest.
#[derive(
    JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum Severity {
    /// Good to know.
    Info,
    /// Works now, may not later.
    Warning,
    /// Something does not work.
    Error,
    /// Going on would make it worse; the next step waits until this is cured.
    Blocker,
}

/// The class of an object a finding is about.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Subject {
    /// Kind, for example `Node`, `Secret`, `VirtualMachine`, `Datastore`.
    pub kind: String,
    /// Name; with its namespace in front (`kube-system/vcenter-a`) where it has one.
    pub name: String,
    /// Inventory path in vCenter, for objects there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

impl Subject {
    /// An object of Kubernetes.
    pub fn kubernetes(kind: &str, namespace: Option<&str>, name: &str) -> Self {
        let name = namespace.map_or_else(|| name.to_owned(), |ns| format!("{ns}/{name}"));
        Self { kind: kind.to_owned(), name, path: None }
    }

    /// An object of vSphere.
    pub fn vsphere(kind: &str, name: &str, path: &str) -> Self {
        Self { kind: kind.to_owned(), name: name.to_owned(), path: Some(path.to_owned()) }
    }
}

/// Something an admin should know, with its cause and its cure.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Stable code, for example `VDO-1203`; `vdoctl explain VDO-1203` says more.
    pub code: String,
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong, in one line.
    pub title: String,
    /// What was seen, with the names and values of this case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<String>,
    /// Why it matters.
    pub why: String,
    /// What to do, step by step.
    #[schemars(length(max = 16))]
    pub remedy: Vec<String>,
    /// What it is about: the first of them, `count` says how many there are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub objects: Vec<Subject>,
    /// How many objects it is about.
    #[serde(default)]
    pub count: i32,
    /// Whether VDO can repair it, if `remediation` lets it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fixable: bool,
    /// Code of the finding this one follows from; cure that and this goes away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consequence_of: Option<String>,
    /// When it was first seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Who accepted it for now, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acknowledged: Option<Acknowledgement>,
    /// A page about it.
    pub link: String,
}

impl Finding {
    /// `None` if another release of VDO wrote this finding and this one does not know its code.
    pub fn definition(&self) -> Option<&'static Definition> {
        Definition::of(&self.code)
    }
}

/// A finding somebody decided to live with for a while.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Acknowledgement {
    /// Why.
    pub reason: String,
    /// Until when; afterwards it is raised again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
}

/// The subject area of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Theme {
    Configuration,
    Releases,
    Nodes,
    Vcenters,
    Privileges,
    Storage,
    Drivers,
    Zones,
    Checks,
    Operator,
}

impl Theme {
    pub const ALL: [Self; 10] = [
        Self::Configuration,
        Self::Releases,
        Self::Nodes,
        Self::Vcenters,
        Self::Privileges,
        Self::Storage,
        Self::Drivers,
        Self::Zones,
        Self::Checks,
        Self::Operator,
    ];

    /// Its heading in the documentation.
    pub fn title(self) -> &'static str {
        match self {
            Self::Configuration => "Your configuration",
            Self::Releases => "Catalog and choice of releases",
            Self::Nodes => "Nodes and their VMs",
            Self::Vcenters => "vCenters",
            Self::Privileges => "Privileges of the vCenter account",
            Self::Storage => "Storage",
            Self::Drivers => "Drivers",
            Self::Zones => "Zones and regions",
            Self::Checks => "Checks and VDO's permissions",
            Self::Operator => "The operator",
        }
    }

    /// Whether the health checks report findings of this theme. The operator reports the others
    /// while it plans.
    pub fn is_checked(self) -> bool {
        (Self::Nodes..=Self::Checks).contains(&self)
    }
}

/// The drivers that a finding concerns: as a [`Severity::Blocker`], it blocks their installation and
/// upgrade.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Concerns {
    NoDriver,
    CloudProvider,
    StorageDriver,
    BothDrivers,
}

/// What is always true of one kind of finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Definition {
    /// Stable code; never used again for something else.
    pub code: &'static str,
    pub theme: Theme,
    pub concerns: Concerns,
    /// What is wrong, in one line, without values.
    pub title: &'static str,
    /// How bad it is, unless the case at hand says otherwise.
    pub severity: Severity,
    /// What was seen, as a template.
    pub seen: &'static str,
    /// Why it matters; what an admin notices if nothing is done.
    pub why: &'static str,
    /// What to do, step by step, as templates.
    pub remedy: &'static [&'static str],
    /// Whether VDO can repair it.
    pub fixable: bool,
}

impl Definition {
    /// The definition of a code.
    pub fn of(code: &str) -> Option<&'static Self> {
        CATALOGUE.iter().copied().find(|definition| definition.code == code)
    }

    /// Starts a finding of this kind.
    pub fn found(&'static self) -> Builder {
        Builder { definition: self, values: BTreeMap::new(), objects: Vec::new(), severity: None }
    }

    /// The page about it.
    pub fn link(&self) -> String {
        format!("{}/blob/main/docs/findings/{}.md", env!("CARGO_PKG_REPOSITORY"), self.code)
    }

    /// The values its texts need.
    pub fn placeholders(&self) -> Vec<&'static str> {
        let texts = self.remedy.iter().copied().chain([self.seen, self.why]);
        let mut names: Vec<&str> = texts.flat_map(placeholders).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// A finding in the making.
#[derive(Debug, Clone)]
pub struct Builder {
    definition: &'static Definition,
    values: BTreeMap<&'static str, String>,
    objects: Vec<Subject>,
    severity: Option<Severity>,
}

impl Builder {
    /// Gives a value its texts need. Never a secret: findings are shown everywhere.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.values.insert(name, value.into());
        self
    }

    /// Names an object it is about.
    #[must_use]
    pub fn about(mut self, object: Subject) -> Self {
        self.objects.push(object);
        self
    }

    /// Names all objects it is about.
    #[must_use]
    pub fn about_all(mut self, objects: impl IntoIterator<Item = Subject>) -> Self {
        self.objects.extend(objects);
        self
    }

    /// Overrides how bad it is.
    #[must_use]
    pub fn severity(mut self, severity: Severity) -> Self {
        self.severity = Some(severity);
        self
    }

    /// The finding. Objects are sorted, so that the same fault gives the same finding; a value that
    /// was not given shows as its name in angle brackets.
    pub fn build(mut self) -> Finding {
        self.objects.sort();
        self.objects.dedup();
        let count = i32::try_from(self.objects.len()).unwrap_or(i32::MAX);
        self.objects.truncate(NAMED_OBJECTS);
        let definition = self.definition;
        let seen = fill(definition.seen, &self.values);
        Finding {
            code: definition.code.to_owned(),
            severity: self.severity.unwrap_or(definition.severity),
            title: definition.title.to_owned(),
            seen: (!seen.is_empty()).then_some(seen),
            why: fill(definition.why, &self.values),
            remedy: definition.remedy.iter().map(|step| fill_step(step, &self.values)).collect(),
            objects: self.objects,
            count,
            fixable: definition.fixable,
            consequence_of: None,
            since: None,
            acknowledged: None,
            link: definition.link(),
        }
    }
}

/// The names between braces.
fn placeholders(template: &'static str) -> impl Iterator<Item = &'static str> {
    template.split('{').skip(1).filter_map(|part| Some(part.split_once('}')?.0))
}

/// Values that stand as one word in commands. Others are whole steps, lists of words, or names that can
/// only be plain ones.
const WORDS: [&str; 12] = [
    "address",
    "category",
    "configmap",
    "datastore",
    "host",
    "image",
    "name",
    "pair",
    "path",
    "tag",
    "user",
    "vm",
];

/// A word as a shell takes it: in quotes, if it would otherwise be read as something else.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "_@%+=:,./-[]".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A step with its values: those that may stand in a command are quoted where they have to be.
fn fill_step(template: &str, values: &BTreeMap<&'static str, String>) -> String {
    let word = |(name, value): (&&'static str, &String)| {
        let value = if WORDS.contains(name) { quoted(value) } else { value.clone() };
        (*name, value)
    };
    fill(template, &values.iter().map(word).collect())
}

fn fill(template: &str, values: &BTreeMap<&'static str, String>) -> String {
    let mut text = String::with_capacity(template.len() + 32);
    let mut parts = template.split('{');
    text.push_str(parts.next().unwrap_or_default());
    for part in parts {
        if let Some((name, rest)) = part.split_once('}') {
            match values.get(name) {
                Some(value) => text.push_str(value),
                None => text.extend(["<", name, ">"]),
            }
            text.push_str(rest);
        } else {
            text.extend(["{", part]);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_word_a_shell_would_split_or_eat_is_quoted() {
        for (word, safe) in [
            ("/DC0/vm/node-1", "/DC0/vm/node-1"),
            ("k8s@vsphere.local", "k8s@vsphere.local"),
            (r"VSPHERE.LOCAL\k8s", r"'VSPHERE.LOCAL\k8s'"),
            ("it's here", r"'it'\''s here'"),
            ("", "''"),
        ] {
            assert_eq!(super::quoted(word), safe);
        }
    }

    use super::*;

    #[test]
    fn a_finding_carries_the_names_of_the_case_at_hand() {
        let finding = codes::CREDENTIALS_MISSING
            .found()
            .with("config", "vmware-system-vdo/vcenter-a")
            .with("secret", "vcenter-a")
            .about(Subject::kubernetes(
                "VsphereCloudConfig",
                Some("vmware-system-vdo"),
                "vcenter-a",
            ))
            .build();
        assert_eq!(finding.count, 1);
        assert!(finding.remedy[0].contains("create secret generic vcenter-a"), "{finding:#?}");
        assert!(finding.link.ends_with("/docs/findings/VDO-1003.md"));
    }

    #[test]
    fn four_hundred_objects_are_one_finding_that_names_the_first() {
        let nodes =
            (0..400).rev().map(|n| Subject::kubernetes("Node", None, &format!("node-{n:03}")));
        let finding = CATALOGUE[0].found().about_all(nodes).build();
        assert_eq!((finding.count, finding.objects.len()), (400, NAMED_OBJECTS));
        assert_eq!(finding.objects[0].name, "node-000");
    }

    #[test]
    fn a_value_that_is_missing_is_seen_not_hidden() {
        let finding = codes::CREDENTIALS_MISSING.found().build();
        assert!(finding.seen.unwrap().contains("<secret>"));
    }

    #[test]
    fn severities_are_ordered_by_how_bad_they_are() {
        assert!(Severity::Blocker > Severity::Error && Severity::Warning > Severity::Info);
    }
}
