//! Commands that run instead of the operator, most of them to an operator in the same container.

mod volume;

use std::{io::Write as _, path::Path, process::ExitCode};

use clap::{Subcommand, ValueEnum};
use runtime::{
    error_chain::error_chain,
    probe::{self, Answer},
};

/// A command that runs instead of the operator.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Ask the operator in this container whether it is live or ready: the probes of its pod.
    Probe {
        /// The probe to run.
        what: ProbeKind,
    },
    /// Change what the operator in this container logs, until it restarts.
    LogLevel {
        /// A level, or levels by module as in `info,vsphere=debug`.
        filter: String,
    },
    /// Write to a volume, or read from it: the pods of `vdoctl test` run this.
    #[command(subcommand)]
    Volume(volume::VolumeCommand),
}

/// The kind of a probe.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ProbeKind {
    /// Whether the process must be restarted.
    Live,
    /// Whether it can do its work.
    Ready,
}

impl Command {
    /// Prints the answer. The exit code is that of a probe.
    pub(crate) fn run(&self, socket: Option<&Path>) -> ExitCode {
        match self {
            Self::Probe { what: ProbeKind::Live } => ask(socket, |at| probe::get(at, "/livez")),
            Self::Probe { what: ProbeKind::Ready } => ask(socket, |at| probe::get(at, "/readyz")),
            Self::LogLevel { filter } => ask(socket, |at| probe::set_log_level(at, filter)),
            Self::Volume(command) => match command.run() {
                Ok(text) => answered(true, &text),
                Err(error) => failed(&error),
            },
        }
    }
}

/// Asks the operator on its socket.
fn ask<E: std::error::Error>(
    socket: Option<&Path>,
    question: impl FnOnce(&Path) -> Result<Answer, E>,
) -> ExitCode {
    let Some(socket) = socket else {
        let _ = writeln!(std::io::stderr(), "name the operator's socket: --socket or VDO_SOCKET");
        return ExitCode::from(2);
    };
    match question(socket) {
        Ok(Answer { ok, text }) => answered(ok, &text),
        Err(error) => failed(&error),
    }
}

/// A closed pipe is the reader's choice.
fn answered(ok: bool, text: &str) -> ExitCode {
    let _ = write!(std::io::stdout(), "{text}");
    if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn failed(error: &impl std::error::Error) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "{}", error_chain(error));
    ExitCode::FAILURE
}
