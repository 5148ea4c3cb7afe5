//! What the sandbox is told.

use std::io::IsTerminal as _;

use clap::{Args, Parser, Subcommand, ValueEnum, builder::PossibleValuesParser};
use testkit::Breakage;

/// A cluster and a vCenter on this machine, and VDO at work on them.
///
/// Without a command it installs VDO as a user would, and stays until Ctrl-C.
#[derive(Debug, Parser)]
#[command(name = "sandbox", bin_name = "make sandbox ARGS=", max_term_width = 100)]
#[command(disable_help_subcommand = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) task: Option<Task>,
    #[command(flatten)]
    pub(crate) manner: Manner,
}

/// What to do once the drivers run.
#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Break something for real, show the finding that names it, mend it, see the finding go.
    Break(Break),
    /// Begin with older drivers and upgrade them live.
    Upgrade,
}

#[derive(Args, Debug)]
pub(crate) struct Break {
    /// What to break, or `all`.
    #[arg(value_parser = PossibleValuesParser::new(names()), hide_possible_values = true)]
    #[arg(required_unless_present = "list", value_name = "NAME")]
    names: Vec<String>,
    /// List what can be broken, and the finding that names it.
    #[arg(long)]
    pub(crate) list: bool,
}

/// How it is done.
#[derive(Args, Debug)]
pub(crate) struct Manner {
    /// End by itself, with 0 only if the drivers became Ready. So it is where there is no terminal.
    #[arg(long, global = true, conflicts_with = "stay")]
    once: bool,
    /// Stay until Ctrl-C, also where there is no terminal.
    #[arg(long, global = true)]
    stay: bool,
    /// Only the cluster and the vCenter: neither operator nor drivers.
    #[arg(long)]
    pub(crate) bare: bool,
    /// Whose cloud controller runs [default: rust; upstream for upgrade].
    #[arg(long, global = true, value_enum)]
    pub(crate) cpi: Option<Cpi>,
    /// Something that is broken from the start: any name `break --list` knows.
    #[arg(long, value_name = "NAME", hide_possible_values = true)]
    #[arg(value_parser = PossibleValuesParser::new(breakages().map(|b| b.name)))]
    with: Option<String>,
    /// How long the drivers may take to become Ready, in seconds [default: 600].
    #[arg(long, global = true, value_name = "SECONDS")]
    pub(crate) timeout: Option<u64>,
}

/// Whose cloud controller runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Cpi {
    /// This project's.
    Rust,
    /// Upstream's, in Go.
    Upstream,
}

impl Cpi {
    /// As the VDOConfig calls it.
    pub(crate) fn implementation(self) -> &'static str {
        match self {
            Self::Rust => "Rust",
            Self::Upstream => "Upstream",
        }
    }
}

impl Arguments {
    pub(crate) fn cpi(&self) -> Cpi {
        let usual = if self.upgrades() { Cpi::Upstream } else { Cpi::Rust };
        self.manner.cpi.unwrap_or(usual)
    }

    pub(crate) fn upgrades(&self) -> bool {
        matches!(self.task, Some(Task::Upgrade))
    }
}

impl Manner {
    /// Whether it stays until Ctrl-C.
    pub(crate) fn stays(&self) -> bool {
        self.stay || !self.once && std::io::stdout().is_terminal()
    }

    /// What is broken from the start.
    pub(crate) fn broken(&self) -> Option<&'static Breakage> {
        self.with.as_deref().and_then(Breakage::named)
    }
}

impl Break {
    /// What is to be broken, one after the other.
    pub(crate) fn chosen(&self) -> Vec<&'static Breakage> {
        if self.names.iter().any(|name| name == "all") {
            return breakages().collect();
        }
        self.names.iter().filter_map(|name| Breakage::named(name)).collect()
    }
}

fn names() -> impl Iterator<Item = &'static str> {
    breakages().map(|breakage| breakage.name).chain(["all"])
}

/// What can be broken here, where a cloud controller runs.
pub(crate) fn breakages() -> impl Iterator<Item = &'static Breakage> {
    Breakage::ALL.iter().filter(|breakage| !breakage.settles)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_makes_sense() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_name_nobody_knows_is_answered_with_the_nearest_that_is_known() {
        let given = ["sandbox", "break", "disk-uid"];
        let error = Arguments::try_parse_from(given).unwrap_err().to_string();
        assert!(error.contains("'disk-uuid'"), "{error}");
    }

    #[test]
    fn all_stands_for_everything() {
        let arguments = Arguments::try_parse_from(["sandbox", "break", "all"]).unwrap();
        let Some(Task::Break(wanted)) = arguments.task else { unreachable!() };
        assert!(wanted.chosen().len() >= 15);
    }
}
