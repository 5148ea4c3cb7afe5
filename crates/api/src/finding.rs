//! Findings: problems with their cause and fix. Status, events, metrics, alerts, `vdoctl` and the
//! documentation show the same texts.
//!
//! ```text
//!   Definition (one per code, in `catalogue`)          observed by a check
//!        code, title, severity, why, remedy      +      values, objects
//!                            └──────────► Finding ◄──────────┘
//! ```
//!
//! The texts `seen` and `remedy` of a definition are templates: `{name}` stands for a value. A finding
//! contains the filled-in texts, so its readers need no table. `why` has no placeholder, because alerts
//! and documentation show it without values.

mod catalogue;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use catalogue::{CATALOGUE, codes};

/// The base URL of the published documentation. A release sets `VDO_DOCS_URL` when it builds the binaries
/// and the generated files.
const DOCS_URL: Option<&str> = option_env!("VDO_DOCS_URL");

/// How many objects a finding names; it counts the rest.
pub const NAMED_OBJECTS: usize = 10;

/// The severity of a finding. The most severe is the greatest.
#[derive(
    JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum Severity {
    /// Good to know.
    Info,
    /// It works now and can fail later.
    Warning,
    /// Something does not work.
    Error,
    /// To continue would make it worse; the next step waits until this is fixed.
    Blocker,
}

/// An object that a finding is about.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Subject {
    /// The kind, for example `Node`, `Secret`, `VirtualMachine`, `Datastore`.
    pub kind: String,
    /// The name, with the namespace if it has one: `kube-system/vcenter-a`.
    pub name: String,
    /// The inventory path of a vSphere object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

impl Subject {
    pub fn kubernetes(kind: &str, namespace: Option<&str>, name: &str) -> Self {
        let name = namespace.map_or_else(|| name.to_owned(), |ns| format!("{ns}/{name}"));
        Self { kind: kind.to_owned(), name, path: None }
    }

    pub fn vsphere(kind: &str, name: &str, path: &str) -> Self {
        Self { kind: kind.to_owned(), name: name.to_owned(), path: Some(path.to_owned()) }
    }
}

/// A problem with its cause and its fix.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// The stable code, for example `VDO-1203`; `vdoctl explain VDO-1203` explains it.
    pub code: String,
    /// The severity.
    pub severity: Severity,
    /// The problem in one line.
    pub title: String,
    /// The observation, with names and values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<String>,
    /// Why it matters.
    pub why: String,
    /// The fix, step by step. A step is a command for a shell, or a sentence that begins with `#`.
    #[schemars(length(max = 16))]
    pub remedy: Vec<String>,
    /// The first objects that the finding is about; `count` is the number of all objects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub objects: Vec<Subject>,
    /// The number of objects that the finding is about.
    #[serde(default)]
    pub count: i32,
    /// Whether VDO can fix it, if `remediation` allows it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fixable: bool,
    /// The code of the finding that causes this one. Fix that one, and this one clears.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consequence_of: Option<String>,
    /// When VDO first observed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// The acknowledgement in the spec that covers the finding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acknowledged: Option<Acknowledgement>,
    /// The documentation page: a URL, or a path in the source tree if the build has no documentation URL.
    pub link: String,
}

/// The acknowledgement of a finding.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Acknowledgement {
    /// The reason that the spec gives.
    pub reason: String,
    /// When the acknowledgement ends and VDO raises the finding again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
}

impl Finding {
    /// `None` if another release of VDO wrote this finding and this one does not know its code.
    pub fn definition(&self) -> Option<&'static Definition> {
        Definition::find(&self.code)
    }
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

/// The fixed texts of one code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Definition {
    /// A code is never reused for another problem.
    pub code: &'static str,
    pub theme: Theme,
    pub concerns: Concerns,
    /// The problem in one line, without values.
    pub title: &'static str,
    /// The usual severity; a check can override it.
    pub severity: Severity,
    /// A template.
    pub seen: &'static str,
    /// Why it matters, without values: the effect that an admin notices.
    pub why: &'static str,
    /// Templates, one per step. Three blanks separate a command from its explanation.
    pub remedy: &'static [&'static str],
    /// Whether VDO can fix it.
    pub fixable: bool,
}

impl Definition {
    pub fn find(code: &str) -> Option<&'static Self> {
        CATALOGUE.iter().copied().find(|definition| definition.code == code)
    }

    /// Starts a finding with this code.
    pub fn found(&'static self) -> Builder {
        Builder { definition: self, values: BTreeMap::new(), objects: Vec::new(), severity: None }
    }

    /// The URL of its page in the published documentation, if the build knows where that is.
    pub fn url(&self) -> Option<String> {
        DOCS_URL.map(|base| format!("{}/findings/{}.html", base.trim_end_matches('/'), self.code))
    }

    /// Its page: the URL, else the path in the source tree.
    pub fn link(&self) -> String {
        self.url().unwrap_or_else(|| format!("docs/findings/{}.md", self.code))
    }

    /// The values that its texts need.
    pub fn placeholders(&self) -> Vec<&'static str> {
        let texts = self.remedy.iter().copied().chain([self.seen, self.why]);
        let mut names: Vec<&str> = texts.flat_map(placeholders).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// Builds a finding.
#[derive(Debug, Clone)]
pub struct Builder {
    definition: &'static Definition,
    values: BTreeMap<&'static str, String>,
    objects: Vec<Subject>,
    severity: Option<Severity>,
}

impl Builder {
    /// Sets a value that the texts need. Never pass a secret: findings are public.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.values.insert(name, value.into());
        self
    }

    #[must_use]
    pub fn about(mut self, object: Subject) -> Self {
        self.objects.push(object);
        self
    }

    #[must_use]
    pub fn about_all(mut self, objects: impl IntoIterator<Item = Subject>) -> Self {
        self.objects.extend(objects);
        self
    }

    #[must_use]
    pub fn severity(mut self, severity: Severity) -> Self {
        self.severity = Some(severity);
        self
    }

    /// Sorts the objects, so that the same problem gives the same finding. A missing value shows as its
    /// name in angle brackets.
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
            remedy: definition
                .remedy
                .iter()
                .map(|step| fill_step(step, &self.values))
                .filter(|step| !step.is_empty())
                .collect(),
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

/// Quotes an argument for a shell, if it needs quotes.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "_@%+=:,./-[]".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Programs of the steps.
pub const PROGRAMS: [&str; 15] = [
    "chronyc",
    "crictl",
    "curl",
    "dir-cli",
    "govc",
    "helm",
    "hostnamectl",
    "kubectl",
    "multipath",
    "oc",
    "openssl",
    "service-control",
    "ss",
    "systemctl",
    "vdoctl",
];

/// Words in commands that only an admin can replace.
pub const BLANKS: [&str; 14] = [
    "DATASTORE",
    "FILE",
    "HOST",
    "ID",
    "NAME",
    "NODE",
    "OTHER",
    "PASSWORD",
    "PATH",
    "POD",
    "ROLE",
    "SNAPSHOT",
    "THE_OTHER",
    "USER@DOMAIN",
];

/// Values that are a list of arguments, separated by blanks.
const LISTS: [&str; 4] = ["list", "others", "scope", "where"];

/// Separates a command from its explanation in a template.
const GAP: &str = "   ";

/// Splits a step that begins with a command into the command and its explanation.
pub fn command(step: &str) -> Option<(&str, Option<&str>)> {
    let first = step.split(' ').next().unwrap_or_default();
    PROGRAMS.contains(&first).then(|| match step.split_once(GAP) {
        Some((command, words)) => (command, Some(words.trim_start_matches("# "))),
        None => (step, None),
    })
}

/// Where the first command in a sentence begins.
fn embedded(sentence: &str) -> Option<usize> {
    let starts = PROGRAMS.iter().filter_map(|program| {
        let mut places = sentence.match_indices(program).map(|(at, _)| at);
        places.find(|at| {
            let rest = &sentence[at + program.len()..];
            sentence[..*at].ends_with(' ') && rest.starts_with(' ')
        })
    });
    starts.min()
}

/// Fills in a step: a command, with its explanation as a comment, or a sentence, as a comment. So it is safe to
/// paste all steps into a shell. A step that is only a placeholder is a step that the check has written.
fn fill_step(template: &str, values: &BTreeMap<&'static str, String>) -> String {
    let plain = |(name, value): (&&'static str, &String)| (*name, value.replace(['\n', '\r'], " "));
    let plain: BTreeMap<&str, String> = values.iter().map(plain).collect();
    let argument = |(name, value): (&&'static str, &String)| {
        let text = if LISTS.contains(name) {
            let gap = if value.ends_with(' ') { " " } else { "" };
            value.split_whitespace().map(quoted).collect::<Vec<_>>().join(" ") + gap
        } else {
            quoted(value)
        };
        (*name, text)
    };
    let arguments: BTreeMap<&str, String> = plain.iter().map(argument).collect();
    let whole = template.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    if whole.is_some_and(|name| !name.contains('{')) {
        return formatted(&fill(template, &plain));
    }
    let is_command = self::command(template).is_some();
    let mut text = String::with_capacity(template.len() + 32);
    for (number, part) in template.split(GAP).enumerate() {
        if number > 0 {
            text.push_str(GAP);
        }
        // A command in a sentence lasts until the gap.
        let at = if is_command && number == 0 { Some(0) } else { embedded(part) };
        let (sentence, command) = part.split_at(at.unwrap_or(part.len()));
        text.push_str(&fill(sentence, &plain));
        text.push_str(&fill_arguments(command, &arguments));
    }
    formatted(&text)
}

/// Formats a filled step: comments begin with `# `. A command that an admin must complete first is a comment too.
fn formatted(step: &str) -> String {
    match command(step) {
        Some((command, _)) if has_blank(command) => format!("# {step}"),
        Some((command, Some(words))) => format!("{command}{GAP}# {words}"),
        Some((command, None)) => command.to_owned(),
        None if step.is_empty() || step.starts_with("# ") => step.to_owned(),
        None => format!("# {step}"),
    }
}

fn has_blank(command: &str) -> bool {
    command.split([' ', '=', '\'', '"']).any(|word| BLANKS.contains(&word))
}

/// Fills in a command. A missing value is an argument too.
fn fill_arguments(command: &str, values: &BTreeMap<&'static str, String>) -> String {
    fill_with(command, values, |name| quoted(&format!("<{name}>")))
}

fn fill(template: &str, values: &BTreeMap<&'static str, String>) -> String {
    fill_with(template, values, |name| format!("<{name}>"))
}

fn fill_with(
    template: &str,
    values: &BTreeMap<&'static str, String>,
    missing: impl Fn(&str) -> String,
) -> String {
    let mut text = String::with_capacity(template.len() + 32);
    let mut parts = template.split('{');
    text.push_str(parts.next().unwrap_or_default());
    for part in parts {
        if let Some((name, rest)) = part.split_once('}') {
            match values.get(name) {
                Some(value) => text.push_str(value),
                None => text.push_str(&missing(name)),
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
    fn arguments_are_quoted_where_a_shell_needs_it() {
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

    /// The words of a command, as a shell reads them; `None` for an unfinished quote. A redirection, a pipe or a
    /// comment is a word of its own.
    fn words(line: &str) -> Option<Vec<String>> {
        let (mut words, mut word) = (Vec::new(), None::<String>);
        let mut rest = line.chars().peekable();
        while let Some(c) = rest.next() {
            match c {
                ' ' => words.extend(word.take()),
                '#' if word.is_none() => {
                    words.push(rest.by_ref().fold("#".to_owned(), |text, c| text + &c.to_string()));
                }
                '\'' => {
                    let word = word.get_or_insert_default();
                    loop {
                        match rest.next()? {
                            '\'' => break,
                            c => word.push(c),
                        }
                    }
                }
                '"' => {
                    let word = word.get_or_insert_default();
                    loop {
                        match rest.next()? {
                            '"' => break,
                            c => word.push(c),
                        }
                    }
                }
                '\\' => word.get_or_insert_default().push(rest.next()?),
                // The next command runs only if this one succeeds.
                '&' if word.is_none() && rest.peek() == Some(&'&') => {
                    rest.next();
                    words.push("&&".to_owned());
                }
                '&' | ';' | '`' => return None,
                '$' if rest.peek() != Some(&'(') => return None,
                c => word.get_or_insert_default().push(c),
            }
        }
        words.extend(word);
        Some(words)
    }

    /// Words of sentences that are no arguments of a command.
    const PROSE: [&str; 14] = [
        "a", "and", "if", "is", "it", "or", "shows", "that", "the", "then", "to", "which", "with",
        "you",
    ];

    /// Programs that are meant for a node or for the console of a vCenter.
    const ELSEWHERE: [&str; 10] = [
        "chronyc ",
        "crictl ",
        "curl ",
        "dir-cli ",
        "hostnamectl ",
        "multipath ",
        "openssl ",
        "service-control ",
        "ss ",
        "systemctl ",
    ];

    #[test]
    fn a_command_that_an_admin_must_complete_is_a_comment() {
        for (step, expected) in [
            ("govc tags.create -c zone NAME", "# govc tags.create -c zone NAME"),
            ("kubectl set image web=HOST   first", "# kubectl set image web=HOST   first"),
            ("govc vm.power -on /DC/vm/NODE-1", "govc vm.power -on /DC/vm/NODE-1"),
            ("govc vm.power -on a   on its HOST", "govc vm.power -on a   # on its HOST"),
        ] {
            assert_eq!(formatted(step), expected);
        }
    }

    #[test]
    fn every_fix_is_safe_to_paste_into_a_shell() {
        let hostile = r#"it's $(reboot) & "x"; `id` > y"#;
        for definition in CATALOGUE {
            let names = definition.placeholders();
            let with = |value: &str| {
                let builder = definition.found();
                names.iter().fold(builder, |builder, name| builder.with(name, value)).build()
            };
            for finding in [with(hostile), with("plain"), definition.found().build()] {
                for step in &finding.remedy {
                    let code = definition.code;
                    assert!(!step.contains('\n'), "{code}: {step}");
                    if step.starts_with("# ") {
                        continue;
                    }
                    let (command, _) = command(step).unwrap_or_default();
                    assert!(!has_blank(command), "{code}: only an admin can complete it: {step}");
                    let elsewhere = ELSEWHERE.iter().any(|program| command.starts_with(program));
                    assert!(!elsewhere, "{code}: it is meant for another computer: {step}");
                    let words = words(step).unwrap_or_else(|| panic!("{code}: {step}"));
                    for command in words.split(|word| word == "&&") {
                        let program = command.first().map_or("", String::as_str);
                        assert!(PROGRAMS.contains(&program), "{code}: {step}");
                    }
                    let prose = words.iter().find(|word| PROSE.contains(&word.as_str()));
                    assert_eq!(prose, None, "{code}: a comment begins with #: {step}");
                    let comments = words.iter().filter(|word| word.starts_with('#')).count();
                    assert!(comments <= 1, "{code}: {step}");
                }
            }
        }
    }

    #[test]
    fn a_sentence_is_a_comment_and_a_command_in_it_can_be_copied() {
        let finding = codes::VM_NOT_FOUND.found().with("node", "a b").with("uuid", "4").build();
        assert!(
            finding.remedy[0].starts_with("govc find / -type m -config.uuid 4   # with an admin")
        );
        assert!(
            finding.remedy[4].starts_with("# If the VM was deleted: kubectl delete node 'a b'")
        );
    }

    #[test]
    fn a_finding_contains_the_given_values() {
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
        assert!(finding.link.ends_with("VDO-1003.md") || finding.link.ends_with("VDO-1003.html"));
    }

    #[test]
    fn a_finding_names_the_first_objects_and_counts_all() {
        let nodes =
            (0..400).rev().map(|n| Subject::kubernetes("Node", None, &format!("node-{n:03}")));
        let finding = CATALOGUE[0].found().about_all(nodes).build();
        assert_eq!((finding.count, finding.objects.len()), (400, NAMED_OBJECTS));
        assert_eq!(finding.objects[0].name, "node-000");
    }

    #[test]
    fn a_missing_value_shows_as_its_name() {
        let finding = codes::CREDENTIALS_MISSING.found().build();
        assert!(finding.seen.unwrap().contains("<secret>"));
    }

    #[test]
    fn severities_are_ordered() {
        assert!(Severity::Blocker > Severity::Error && Severity::Warning > Severity::Info);
    }
}
