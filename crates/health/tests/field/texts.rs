//! The texts of every finding, with the names of an example.

use std::collections::{BTreeMap, BTreeSet};

use api::{
    Finding,
    finding::{BLANKS, CATALOGUE, Definition},
};
use health::facts::Facts;

use crate::{
    faults::{FAULTS, with},
    found, healthy,
    rows::rows,
    shortcuts::Shortcuts,
};

/// One finding for each code, from the faults and the rows.
fn examples() -> BTreeMap<String, Finding> {
    let mut examples = BTreeMap::new();
    for (code, fault) in FAULTS {
        let mut found = found(with(*fault));
        let finding = found.remove(*code).unwrap_or_else(|| panic!("{code}: given are {found:#?}"));
        examples.insert((*code).to_owned(), finding[0].clone());
    }
    for row in rows() {
        let mut facts = healthy();
        (row.inject)(&mut facts);
        for (code, findings) in found(facts) {
            examples.entry(code).or_insert_with(|| findings[0].clone());
        }
    }
    examples
}

#[test]
fn every_finding_of_health_has_a_fault_that_gives_it() {
    let examples = examples();
    let ours = CATALOGUE.iter().filter(|definition| definition.theme.is_checked());
    let ours: BTreeSet<&str> = ours.map(|definition| definition.code).collect();
    // Only the report and the operator's plan produce these two findings.
    let elsewhere = ["VDO-1802", "VDO-1316"];
    let ours = ours.iter().filter(|code| !elsewhere.contains(code));
    let missing: Vec<&&str> = ours.filter(|code| !examples.contains_key(**code)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn no_text_has_a_hole() {
    for (code, finding) in examples() {
        let definition = Definition::find(&code).unwrap();
        let seen = finding.seen.iter();
        let texts: Vec<&String> = seen.chain(&finding.remedy).chain([&finding.why]).collect();
        for name in definition.placeholders() {
            let hole = format!("<{name}>");
            for text in &texts {
                assert!(!text.contains(&hole), "{code}: {text}");
            }
        }
        assert!(!finding.objects.is_empty() && finding.count > 0, "{code} is about nothing");
    }
}

/// Something changes all the time in a large cluster. With ages in the texts, VDO would write its status in every round.
#[test]
fn time_alone_changes_no_text() {
    let texts = |facts: Facts| {
        let text = |f: Finding| ((f.code, f.objects), (f.title, f.seen, f.why, f.remedy));
        found(facts).into_values().flatten().map(text).collect::<Vec<_>>()
    };
    let faults = FAULTS.iter().map(|(_, fault)| with(*fault));
    let rows = rows().iter().map(|row| {
        let mut facts = healthy();
        (row.inject)(&mut facts);
        facts
    });
    for facts in faults.chain(rows) {
        let now = texts(facts.clone());
        for seconds in [1, 61, 3 * 3600] {
            let mut later = facts.clone();
            later.now += jiff::SignedDuration::from_secs(seconds);
            for (finding, text) in texts(later) {
                for (_, before) in now.iter().filter(|(same, _)| *same == finding) {
                    assert_eq!(text, *before, "{}", finding.0);
                }
            }
        }
    }
}

#[test]
fn names_with_spaces_and_backslashes_are_one_word_in_commands() {
    let mut facts = healthy();
    facts.vcenter().user = r"VSPHERE.LOCAL\k8s".into();
    facts.vm("worker-1").path = "/DC 1/vm/k8s node 1".into();
    facts.vm("worker-1").disk_uuid = false.into();
    facts.vm("worker-1").disk_uuid_set = false;
    for entity in &mut facts.vcenter().grants.get_mut().unwrap().entities {
        if let Some(held) = entity.privileges.get_mut() {
            held.remove("StorageProfile.View");
        }
    }
    let found = found(facts);
    let steps = |code: &str| found[code][0].remedy.join("\n");
    let off = steps("VDO-1203");
    assert!(off.contains("govc vm.power -off '/DC 1/vm/k8s node 1'"), "{off}");
    let commands = steps("VDO-1401");
    assert!(commands.contains(r"-principal 'VSPHERE.LOCAL\k8s' -role"), "{commands}");
    let seen = found["VDO-1203"][0].seen.as_deref().unwrap();
    assert!(seen.contains("its VM /DC 1/vm/k8s node 1"), "a sentence is no command: {seen}");
}

#[test]
fn a_remedy_leaves_no_blank_that_vdo_could_fill_in() {
    for (code, finding) in examples() {
        for step in &finding.remedy {
            let words = step.split(|c: char| !(c.is_ascii_uppercase() || c == '_'));
            for word in words.filter(|word| word.len() > 3 && word.contains('_')) {
                assert!(BLANKS.contains(&word) || KNOWN_WORDS.contains(&word), "{code}: {step}");
            }
        }
    }
}

/// Uppercase words that are not placeholders.
const KNOWN_WORDS: &[&str] =
    &["GOVC_URL", "GOVC_USERNAME", "GOVC_PASSWORD", "SKIP_NODE_DELETION", "MAX_VOLUMES_PER_NODE"];

#[test]
fn the_texts_read_as_they_should() {
    let mut themes: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (code, finding) in examples() {
        themes.entry(code[..6].to_owned()).or_default().push(screen(&finding));
    }
    for (theme, screens) in themes {
        insta::assert_snapshot!(theme, screens.join("\n"));
    }
}

/// The finding as a screen shows it.
fn screen(finding: &Finding) -> String {
    let objects: Vec<String> = finding
        .objects
        .iter()
        .take(3)
        .map(|object| match &object.path {
            Some(path) => format!("{} {} ({path})", object.kind, object.name),
            None => format!("{} {}", object.kind, object.name),
        })
        .collect();
    let steps: Vec<String> = finding.remedy.iter().map(|step| format!("      {step}")).collect();
    format!(
        "{}  {:?}  {}\n  about {} of {}\n  seen  {}\n  why   {}\n  fix\n{}\n",
        finding.code,
        finding.severity,
        finding.title,
        objects.join(", "),
        finding.count,
        finding.seen.as_deref().unwrap_or_default(),
        finding.why,
        steps.join("\n"),
    )
}
