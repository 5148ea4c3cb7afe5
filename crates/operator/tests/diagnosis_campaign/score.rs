//! Counts the outcomes, and writes the page about them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
};

use super::mutation::{Area, Mutation};

/// The outcome of one mutation.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    /// A finding or `restored`, and the seconds.
    Reported(String, f64),
    /// The same, after the limit.
    Late(String, f64),
    /// Nothing names it. Holds what VDO showed instead.
    Missed(String),
    /// A change that does not hurt gave no finding above Info.
    Quiet,
    /// A change that does not hurt gave these findings.
    FalseAlarm(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reported(how, seconds) => write!(f, "{how} after {seconds:.1} s"),
            Self::Late(how, seconds) => write!(f, "LATE {how} after {seconds:.1} s"),
            Self::Missed(shown) => write!(f, "MISSED, shown: {shown}"),
            Self::Quiet => write!(f, "quiet"),
            Self::FalseAlarm(findings) => write!(f, "FALSE ALARM {findings}"),
        }
    }
}

#[derive(Default)]
pub(crate) struct Score {
    outcomes: BTreeMap<Area, Vec<(String, bool, Outcome)>>,
}

#[derive(Default)]
struct Row {
    hurting: usize,
    findings: usize,
    restored: usize,
    harmless: usize,
    alarms: usize,
}

impl Row {
    fn percent(&self) -> String {
        let named = self.findings + self.restored;
        if self.hurting == 0 {
            return "-".into();
        }
        format!("{} %", named * 100 / self.hurting)
    }
}

impl Score {
    pub(crate) fn add(&mut self, mutation: &Mutation, outcome: Outcome) {
        let outcomes = self.outcomes.entry(mutation.area).or_default();
        outcomes.push((mutation.name.clone(), mutation.hurts, outcome));
    }

    fn row<'o>(outcomes: impl Iterator<Item = &'o (String, bool, Outcome)>) -> Row {
        let mut row = Row::default();
        for (_, hurts, outcome) in outcomes {
            row.hurting += usize::from(*hurts);
            row.harmless += usize::from(!hurts);
            match outcome {
                Outcome::Reported(how, _) if how == "restored" => row.restored += 1,
                Outcome::Reported(..) => row.findings += 1,
                Outcome::FalseAlarm(_) => row.alarms += 1,
                Outcome::Late(..) | Outcome::Missed(_) | Outcome::Quiet => {}
            }
        }
        row
    }

    fn all(&self) -> impl Iterator<Item = &(String, bool, Outcome)> {
        self.outcomes.values().flatten()
    }

    /// The score in one line.
    pub(crate) fn summary(&self) -> String {
        let row = Self::row(self.all());
        format!(
            "{} of {} mutations that hurt are named ({}): {} by a finding, {} restored with an event; {} false \
             alarms in {} mutations that do not hurt",
            row.findings + row.restored,
            row.hurting,
            row.percent(),
            row.findings,
            row.restored,
            row.alarms,
            row.harmless,
        )
    }

    /// Misses and false alarms that the page does not list.
    pub(crate) fn unexpected(&self, known: &BTreeSet<String>) -> Vec<String> {
        let bad =
            |outcome: &Outcome| matches!(outcome, Outcome::Missed(_) | Outcome::FalseAlarm(_));
        let new = self.all().filter(|(name, _, outcome)| bad(outcome) && !known.contains(name));
        new.map(|(name, _, outcome)| format!("{name}: {outcome}")).collect()
    }

    fn table(&self) -> String {
        let line = |name: &str, row: &Row| {
            format!(
                "| {name} | {} | {} | {} | {} | {} | {} |\n",
                row.hurting,
                row.findings,
                row.restored,
                row.percent(),
                row.harmless,
                row.alarms
            )
        };
        let mut table = String::from(
            "| area | hurt | named by a finding | restored with an event | score | do not hurt | false alarms |\n\
             |---|---|---|---|---|---|---|\n",
        );
        for (area, outcomes) in &self.outcomes {
            table += &line(area.name(), &Self::row(outcomes.iter()));
        }
        table + &line("**all**", &Self::row(self.all()))
    }

    fn misses(&self) -> String {
        let mut text = String::new();
        for (area, outcomes) in &self.outcomes {
            let bad = outcomes.iter().filter_map(|(name, _, outcome)| match outcome {
                Outcome::Missed(shown) => Some((name, format!("shown instead: {}", plain(shown)))),
                Outcome::Late(how, _) => Some((name, format!("{how}, but after the limit"))),
                Outcome::FalseAlarm(codes) => {
                    Some((name, format!("false alarm: {}", plain(codes))))
                }
                Outcome::Reported(..) | Outcome::Quiet => None,
            });
            let mut bad: Vec<String> =
                bad.map(|(name, what)| format!("- `{name}`; {what}\n")).collect();
            bad.sort();
            if !bad.is_empty() {
                text.extend(["\n### ", area.name(), "\n\n", &bad.concat()]);
            }
        }
        if text.is_empty() { "\nNone.\n".into() } else { text }
    }

    /// Writes the page.
    pub(crate) fn write(&self) {
        let text = std::fs::read_to_string(page()).expect("the page exists");
        let (before, rest) = text.split_once(BEGIN).expect("the page has the mark of the results");
        let (_, after) = rest.split_once(END).expect("the page has the end of the results");
        let results =
            format!("{}\n{}.\n\n## Misses\n{}", self.table(), self.summary(), self.misses());
        let text = format!("{before}{BEGIN}\n{results}\n{END}{after}");
        std::fs::write(page(), text).expect("the page can be written");
    }
}

const BEGIN: &str = "<!-- results: UPDATE_DOCS=1 VDO_SEEDS=1 cargo test -p operator --test diagnosis_campaign -->\n";
const END: &str = "<!-- results: end -->\n";

fn page() -> PathBuf {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/diagnosis-score.md").into()
}

/// The mutations that the page lists as missed, late or as a false alarm.
pub(crate) fn known() -> BTreeSet<String> {
    let text = std::fs::read_to_string(page()).expect("the page exists");
    let lines = text.lines().filter_map(|line| line.strip_prefix("- `"));
    lines.filter_map(|line| Some(line.split_once("`;")?.0.to_owned())).collect()
}

/// Without the values that differ from run to run: ports and generated names.
fn plain(shown: &str) -> String {
    let parts = shown.split("; ").map(|part| part.split(" (").next().unwrap_or(part));
    let parts: BTreeSet<&str> = parts.collect();
    parts.into_iter().collect::<Vec<_>>().join(", ")
}
