//! Commands to an operator that runs in the same container.

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
        let Some(socket) = socket else {
            let _ =
                writeln!(std::io::stderr(), "name the operator's socket: --socket or VDO_SOCKET");
            return ExitCode::from(2);
        };
        let answer = match self {
            Self::Probe { what: ProbeKind::Live } => probe::get(socket, "/livez"),
            Self::Probe { what: ProbeKind::Ready } => probe::get(socket, "/readyz"),
            Self::LogLevel { filter } => probe::set_log_level(socket, filter),
        };
        // A closed pipe is the reader's choice.
        match answer {
            Ok(Answer { ok, text }) => {
                let _ = write!(std::io::stdout(), "{text}");
                if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
            }
            Err(error) => {
                let _ = writeln!(std::io::stderr(), "{}", error_chain(&error));
                ExitCode::FAILURE
            }
        }
    }
}
