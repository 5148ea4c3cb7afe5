//! The command line.

use std::io::IsTerminal as _;

use clap::{Args, Parser, Subcommand, ValueEnum, builder::PossibleValuesParser};
use testkit::Breakage;

/// A cluster and a vCenter on this computer, with VDO running on them.
///
/// Without a command, it installs VDO as a user would, and stays until Ctrl-C.
#[derive(Debug, Parser)]
#[command(name = "sandbox", bin_name = "make sandbox ARGS=", max_term_width = 100)]
#[command(disable_help_subcommand = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) task: Option<Task>,
    #[command(flatten)]
    pub(crate) options: Options,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Inject a real fault, show the finding, fix the fault, and show that the finding is cleared.
    Break(Break),
    /// Start with older drivers and upgrade them live.
    Upgrade,
}

#[derive(Args, Debug)]
pub(crate) struct Break {
    /// The faults to inject, or `all`.
    #[arg(value_parser = PossibleValuesParser::new(names()), hide_possible_values = true)]
    #[arg(required_unless_present = "list", value_name = "NAME")]
    names: Vec<String>,
    /// List the faults and their findings.
    #[arg(long)]
    pub(crate) list: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// End by itself, with exit code 0 only if the drivers became Ready. This is the default without a terminal.
    #[arg(long, global = true, conflicts_with = "stay")]
    once: bool,
    /// Stay until Ctrl-C, even without a terminal.
    #[arg(long, global = true)]
    stay: bool,
    /// Start only the cluster and the vCenter, without operator and drivers.
    #[arg(long)]
    pub(crate) bare: bool,
    /// Simulate the nodes, as on a computer that cannot run real ones. Faults and upgrades always do.
    #[arg(long)]
    simulated: bool,
    /// The cloud controller to run [default: rust; upstream for upgrade].
    #[arg(long, global = true, value_enum)]
    pub(crate) cpi: Option<Cpi>,
    /// A fault to inject from the start: any name from `break --list`.
    #[arg(long, value_name = "NAME", hide_possible_values = true)]
    #[arg(value_parser = PossibleValuesParser::new(breakages().map(|b| b.name)))]
    with: Option<String>,
    /// How long the drivers can take to become Ready, in seconds [default: 600].
    #[arg(long, global = true, value_name = "SECONDS")]
    pub(crate) timeout: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Cpi {
    /// The cloud controller of this project.
    Rust,
    /// The upstream cloud controller, in Go.
    Upstream,
}

impl Cpi {
    /// The value for the VDOConfig.
    pub(crate) fn implementation(self) -> &'static str {
        match self {
            Self::Rust => "Rust",
            Self::Upstream => "Upstream",
        }
    }
}

impl Arguments {
    pub(crate) fn cpi(&self) -> Cpi {
        let default = if self.upgrades() { Cpi::Upstream } else { Cpi::Rust };
        self.options.cpi.unwrap_or(default)
    }

    /// Whether pods run on real nodes, if this computer can run them. Faults, upgrades and the upstream drivers need
    /// images that this computer does not have, or nodes that can be broken at will.
    pub(crate) fn wants_real_nodes(&self) -> bool {
        let Options { simulated, bare, cpi, with, .. } = &self.options;
        let installs_ours = self.task.is_none() && *cpi != Some(Cpi::Upstream);
        installs_ours && !simulated && !bare && with.is_none()
    }

    pub(crate) fn upgrades(&self) -> bool {
        matches!(self.task, Some(Task::Upgrade))
    }
}

impl Options {
    pub(crate) fn stays(&self) -> bool {
        self.stay || !self.once && std::io::stdout().is_terminal()
    }

    /// The fault that exists from the start.
    pub(crate) fn broken(&self) -> Option<&'static Breakage> {
        self.with.as_deref().and_then(Breakage::named)
    }
}

impl Break {
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

/// The faults that work with a running cloud controller.
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
    fn an_unknown_name_gets_a_suggestion() {
        let given = ["sandbox", "break", "disk-uid"];
        let error = Arguments::try_parse_from(given).unwrap_err().to_string();
        assert!(error.contains("'disk-uuid'"), "{error}");
    }

    #[test]
    fn only_a_plain_installation_runs_on_real_nodes() {
        for (given, real) in [
            (&["sandbox"][..], true),
            (&["sandbox", "--once"], true),
            (&["sandbox", "--cpi", "rust"], true),
            (&["sandbox", "--simulated"], false),
            (&["sandbox", "--bare"], false),
            (&["sandbox", "--with", "crash"], false),
            (&["sandbox", "--cpi", "upstream"], false),
            (&["sandbox", "break", "disk-uuid"], false),
            (&["sandbox", "upgrade"], false),
        ] {
            let arguments = Arguments::try_parse_from(given).unwrap();
            assert_eq!(arguments.wants_real_nodes(), real, "{given:?}");
        }
    }

    #[test]
    fn all_selects_every_breakage() {
        let arguments = Arguments::try_parse_from(["sandbox", "break", "all"]).unwrap();
        let Some(Task::Break(wanted)) = arguments.task else { unreachable!() };
        assert!(wanted.chosen().len() >= 15);
    }
}
