//! Checks that names exist: flags, fields, finding codes, annotations, variables and make targets.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};

use serde_json::Value;

use crate::{
    pages::{Block, Page},
    programs,
};

/// Other programs in pages that no test can run.
const OTHERS: [&str; 27] = [
    "cargo",
    "cat",
    "cd",
    "cosign",
    "cp",
    "crane",
    "curl",
    "diff",
    "do",
    "done",
    "export",
    "git",
    "grep",
    "helm",
    "kubeadm",
    "make",
    "mdbook",
    "mkdir",
    "opm",
    "openssl",
    "scp",
    "sed",
    "sha256sum",
    "skopeo",
    "sudo",
    "systemctl",
    "while",
];

/// Flags of other programs in pages.
const OTHER_FLAGS: [&str; 23] = [
    "--cloud-provider",           // kubelet, kube-controller-manager
    "--cloud-config",             // cloud controllers
    "--runtime-config",           // kube-apiserver
    "--node-ip",                  // kubelet
    "--hostname-override",        // kubelet
    "--root-dir",                 // kubelet
    "--register-with-taints",     // kubelet
    "--disable-cloud-controller", // k3s
    "--kubelet-arg",              // k3s, RKE2
    "--feature-gates",            // csi-provisioner
    "--strict-topology",          // csi-provisioner
    "--worker-threads",           // the sidecars of the storage driver, as the next five
    "--kube-api-qps",
    "--kube-api-burst",
    "--retry-interval-start",
    "--retry-interval-max",
    "--leader-election-renew-deadline",
    "--profile",              // cargo
    "--test",                 // cargo
    "--create-namespace",     // helm
    "--insecure-ignore-tlog", // cosign
    "--type",                 // cosign
    "--authfile",             // podman
];

/// Fields of other objects in pages.
const OTHER_FIELDS: [&str; 5] = [
    "spec.providerID",
    "status.nodeInfo.systemUUID",
    "status.errorMessage",
    "spec.noProxy",   // OpenShift's Proxy
    "spec.trustedCA", // OpenShift's Proxy
];

pub(crate) struct KnownNames {
    /// Every field of every kind, such as `spec.cloudProvider.mode`.
    fields: BTreeSet<String>,
    /// The enum values of a field, by its last name.
    values: BTreeMap<String, BTreeSet<String>>,
    targets: BTreeSet<String>,
    /// Our sources as one text.
    sources: String,
    /// The help of our programs.
    help: String,
}

impl KnownNames {
    pub(crate) fn gather() -> Self {
        let (mut fields, mut values) = (BTreeSet::new(), BTreeMap::new());
        for crd in api::crds() {
            let crd = serde_json::to_value(crd).unwrap();
            let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
            for part in ["spec", "status"] {
                descend(part, &schema["properties"][part], &mut fields, &mut values);
            }
        }
        let root = testkit::repository();
        let makefile = fs::read_to_string(root.join("Makefile")).unwrap();
        let targets =
            makefile.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name);
        let mut sources = makefile.clone();
        for folder in ["crates", "scripts", "peers"] {
            gather_sources(&root.join(folder), &mut sources);
        }
        let own = ["vdo", "vdoctl", "vsphere-cloud-controller-manager", "sandbox"];
        let help = own.iter().filter_map(|name| programs::path(name));
        let help = help.map(|program| everything(&program)).collect();
        let targets = targets.map(str::to_owned).collect();
        Self { fields, values, targets, sources, help }
    }

    /// The names in a page that do not exist.
    pub(crate) fn missing_in(&self, page: &Page) -> Vec<String> {
        let mut missing = BTreeSet::new();
        for code in codes(&page.text) {
            if api::finding::Definition::find(&code).is_none() {
                missing.insert(format!("finding {code}"));
            }
        }
        if page.path == "CHANGELOG.md" {
            return with_page(page, missing);
        }
        for word in page.code_words() {
            missing.extend(self.missing_word(&word));
        }
        if !page.is_generated() {
            for block in page.blocks() {
                missing.extend(self.missing_in_block(&block));
            }
        }
        for name in page.text.split(|c: char| !(c.is_ascii_alphanumeric() || "./-_".contains(c))) {
            let name = name.trim_end_matches(['.', '-']);
            let own = name.starts_with("vdo.vmware.com/") && name != "vdo.vmware.com/v1alpha1";
            if own && !self.sources.contains(name) {
                missing.insert(format!("annotation {name}"));
            }
            if ["cloudProvider.", "storageProvider."].iter().any(|start| name.starts_with(start)) {
                missing.extend(self.missing_field(name));
            }
        }
        with_page(page, missing)
    }

    /// The missing name in an inline code word.
    fn missing_word(&self, word: &str) -> Option<String> {
        let parts: Vec<&str> = word.split_whitespace().collect();
        if let ["make", target, ..] = parts[..]
            && !self.targets.contains(target)
        {
            return Some(format!("target of make {target}"));
        }
        let first = parts.first().copied().unwrap_or_default();
        if programs::path(first).is_some() {
            return self.missing_in_command(first, &parts);
        }
        if let Some(flag) = parts.iter().find_map(|part| self.missing_flag(part))
            && !OTHERS.contains(&first)
        {
            return Some(flag);
        }
        if let [name] = parts[..]
            && name.starts_with("VDO_")
            && !self.sources.contains(name.split('=').next().unwrap_or_default())
        {
            return Some(format!("variable {name}"));
        }
        if let [path] = parts[..]
            && ["crates/", "deploy/", "docs/", "peers/", "scripts/"]
                .iter()
                .any(|s| path.starts_with(s))
            && !path.contains(['*', 'N'])
            && !testkit::repository().join(path).exists()
        {
            return Some(format!("file {path}"));
        }
        self.missing_field(word)
    }

    /// A flag that no program has.
    fn missing_flag(&self, word: &str) -> Option<String> {
        let flag = word.split(['=', ',', ')']).next().unwrap_or_default().trim_end_matches('.');
        let is_flag = flag.strip_prefix("--").is_some_and(|f| f.starts_with(char::is_alphabetic));
        let known = !is_flag || OTHER_FLAGS.contains(&flag) || self.help.contains(flag);
        (!known).then(|| format!("flag {flag}"))
    }

    fn missing_field(&self, word: &str) -> Option<String> {
        let (name, value) = word.split_once(": ").map_or((word, None), |(n, v)| (n, Some(v)));
        let name = name.trim_end_matches(':').replace("[]", "");
        let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '.');
        if !plain || OTHER_FIELDS.contains(&name.as_str()) {
            return None;
        }
        let first = name.split('.').next().unwrap_or_default();
        let is_path = matches!(first, "spec" | "status")
            || name.contains('.') && self.fields.contains(&format!("spec.{first}"));
        let below = [name.clone(), format!("spec.{name}")];
        if is_path && name.contains('.') && !below.iter().any(|path| self.fields.contains(path)) {
            return Some(format!("field {name}"));
        }
        let allowed = self.values.get(name.rsplit('.').next().unwrap_or_default())?;
        let value = value.filter(|v| v.chars().all(char::is_alphanumeric))?;
        let fits = allowed.iter().any(|a| a.eq_ignore_ascii_case(value));
        // Faults in a catalog have their own severities.
        let fits = fits || name == "severity" && matches!(value, "refuse" | "warn");
        (!fits).then(|| format!("value {name}: {value}"))
    }

    fn missing_in_block(&self, block: &Block) -> Vec<String> {
        if !matches!(block.language.as_str(), "sh" | "console" | "") {
            return Vec::new();
        }
        let commands = commands_in(block);
        if block.language == "sh" {
            let checked = Command::new("bash").args(["-n", "-c", &block.text]).output().unwrap();
            let output = String::from_utf8_lossy(&checked.stderr).into_owned();
            assert!(checked.status.success(), "{}: {output}", block.place);
        }
        let split = commands.iter().flat_map(|line| commands_of(line));
        split
            .filter_map(|command| {
                let words: Vec<&str> = command.iter().map(String::as_str).collect();
                // A block that runs shows by itself whether other programs exist.
                let ours = programs::path(words[0]).is_some() || words[0] == "make";
                let looked_at = ours || block.not_run().is_some();
                looked_at.then(|| self.missing_in_command(&block.place, &words)).flatten()
            })
            .collect()
    }

    fn missing_in_command(&self, place: &str, words: &[&str]) -> Option<String> {
        let assigned = |word: &&&str| word.split_once('=').is_some_and(|(n, _)| is_variable(n));
        let words: Vec<&str> = words.iter().skip_while(assigned).copied().collect();
        let (program, rest) = words.split_first()?;
        if *program == "make" {
            let mut targets = rest.iter().filter(|w| !w.contains('=') && !w.starts_with('-'));
            let unknown = targets.find(|target| !self.targets.contains(**target))?;
            return Some(format!("target of make {unknown} ({place})"));
        }
        let Some(path) = programs::path(program) else {
            return (!OTHERS.contains(program)).then(|| format!("program {program} ({place})"));
        };
        // Our kubectl plugin is vdoctl.
        if *program == "kubectl" && rest.first() == Some(&"vdo") {
            return self.missing_in_command(place, &[&["vdoctl"], &rest[1..]].concat());
        }
        if *program == "govc" {
            let unknown = programs::unknown_to_govc(&path, rest)?;
            return Some(format!("{unknown} of govc ({place})"));
        }
        let verbs: Vec<&str> = rest.iter().copied().take_while(|w| !w.starts_with('-')).collect();
        if let Some(unknown) = programs::unknown_verb(&path, &verbs) {
            return Some(format!("command {unknown} of {program} ({place})"));
        }
        let help = programs::help(&path, &verbs);
        let flags = rest.iter().filter(|word| word.starts_with("--") && word.len() > 2);
        let mut names = flags.map(|flag| flag.split('=').next().unwrap_or_default());
        let unknown = names.find(|name| !help.contains(*name))?;
        Some(format!("flag {unknown} of {program} ({place})"))
    }
}

fn with_page(page: &Page, missing: BTreeSet<String>) -> Vec<String> {
    missing.into_iter().map(|name| format!("{}: no such {name}", page.path)).collect()
}

fn is_variable(name: &str) -> bool {
    !name.is_empty()
        && name.chars().all(|c| c.is_ascii_uppercase() || c == '_' || c.is_ascii_digit())
}

/// The commands of a block: all lines of a script, the lines after `$` of a transcript.
pub(crate) fn commands_in(block: &Block) -> Vec<String> {
    let joined = block.text.replace("\\\n", " ");
    let mut end = None;
    let mut lines = Vec::new();
    for line in joined.lines() {
        // A here-document contains no commands.
        if let Some(word) = end {
            end = Some(word).filter(|word| line != *word);
            continue;
        }
        let line = match block.language.as_str() {
            "console" => line.strip_prefix("$ "),
            _ => Some(line),
        };
        let Some(line) = line.map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'))
        else {
            continue;
        };
        end = line.split_once("<<").map(|(_, word)| word.trim_matches(['\'', ' ']));
        lines.push(line.to_owned());
    }
    lines
}

/// Splits a line into commands and words, as far as the pages need it.
fn commands_of(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut word = String::new();
    let mut quote = None;
    for c in line.chars().chain([' ']) {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => quote = Some(c),
            (None, '#') if word.is_empty() => break,
            (None, ' ' | '|' | ';' | '&') => {
                if !word.is_empty() {
                    commands.last_mut().unwrap().push(std::mem::take(&mut word));
                }
                if c != ' ' && !commands.last().unwrap().is_empty() {
                    commands.push(Vec::new());
                }
            }
            (_, c) => word.push(c),
        }
    }
    commands.last_mut().unwrap().extend((!word.is_empty()).then_some(word));
    commands.retain(|words| !words.is_empty());
    commands
}

fn codes(text: &str) -> BTreeSet<String> {
    let starts = text.match_indices("VDO-").map(|(at, _)| &text[at..]);
    let digits = |rest: &&str| rest[4..].chars().take_while(char::is_ascii_digit).count() == 4;
    starts.filter(digits).map(|rest| rest[..8].to_owned()).collect()
}

fn descend(
    path: &str,
    schema: &Value,
    fields: &mut BTreeSet<String>,
    values: &mut BTreeMap<String, BTreeSet<String>>,
) {
    fields.insert(path.to_owned());
    let variants = schema["enum"].as_array().or(schema["items"]["enum"].as_array());
    if let Some(variants) = variants {
        let last = path.rsplit('.').next().unwrap_or_default().to_owned();
        let texts = variants.iter().filter_map(Value::as_str).map(str::to_owned);
        values.entry(last).or_default().extend(texts);
    }
    for part in [schema, &schema["items"]] {
        for (name, below) in part["properties"].as_object().into_iter().flatten() {
            descend(&format!("{path}.{name}"), below, fields, values);
        }
    }
}

fn gather_sources(folder: &Path, into: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && !matches!(name.as_str(), "tests" | "snapshots" | "target") {
            gather_sources(&path, into);
        } else if path.extension().is_none_or(|e| e == "rs" || e == "yaml") && path.is_file() {
            into.push_str(&fs::read_to_string(&path).unwrap_or_default());
        }
    }
}

/// The help of a program and of all its commands, two levels deep.
fn everything(program: &Path) -> String {
    let mut all = programs::help(program, &[]);
    for verb in verbs(&all) {
        let text = programs::help(program, &[&verb]);
        for below in verbs(&text) {
            all.push_str(&programs::help(program, &[&verb, &below]));
        }
        all.push_str(&text);
    }
    all
}

/// The commands in the last help of a text.
pub(crate) fn verbs(text: &str) -> Vec<String> {
    let listed = text.rsplit_once("Commands:\n").map_or("", |(_, listed)| listed);
    let words = listed.lines().map_while(|line| line.strip_prefix("  ")?.split_whitespace().next());
    words.map(str::to_owned).collect()
}
