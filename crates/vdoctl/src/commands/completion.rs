//! `vdoctl completion`.

use clap::{Args, Command};
use clap_complete::Shell;

use crate::{failure::Outcome, screen::Screen};

/// Print a completion script for a shell.
///
/// For bash: `source <(vdoctl completion bash)`.
#[derive(Args, Debug)]
pub(crate) struct Completion {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

impl Completion {
    pub(crate) fn run(&self, mut command: Command, screen: &Screen) -> Outcome {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, "vdoctl", &mut script);
        screen.print(&String::from_utf8_lossy(&script))
    }
}
