//! Output streams, their width and colors.
//!
//! Results go to standard output. Progress, questions and hints go to standard error, so that a pipe gets only
//! results. `anstream` removes colors without a terminal, with `NO_COLOR`, and with `--color never`.

use std::{
    io::{self, IsTerminal as _, Write as _},
    os::fd::{AsFd as _, BorrowedFd},
};

use anstream::{AutoStream, ColorChoice};
use inquire::ui::RenderConfig;

use crate::{
    failure::{Failure, Outcome},
    text::fold,
};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Screen {
    /// The width of standard output.
    pub(crate) width: usize,
    /// The width of standard error.
    pub(crate) side_width: usize,
    /// Whether vdoctl can ask questions: standard input and standard error are terminals.
    pub(crate) interactive: bool,
    /// Whether standard error accepts control sequences.
    pub(crate) animated: bool,
    pub(crate) yes: bool,
    quiet: bool,
    choice: ColorChoice,
}

const NARROWEST: usize = 40;
/// Wider lines are hard to read.
const WIDEST: usize = 120;
/// The width if it is unknown.
const DEFAULT: usize = 100;

impl Screen {
    pub(crate) fn new(choice: ColorChoice, quiet: bool, yes: bool) -> Self {
        let configured = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        let seen = |stream: BorrowedFd<'_>| {
            let size = rustix::termios::tcgetwinsize(stream).ok()?;
            Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
        };
        let width = |stream: BorrowedFd<'_>| {
            configured.or_else(|| seen(stream)).unwrap_or(DEFAULT).clamp(NARROWEST, WIDEST)
        };
        let error = io::stderr().is_terminal();
        if !passes(io::stderr(), choice) {
            inquire::set_global_render_config(RenderConfig::empty());
        }
        Self {
            width: width(io::stdout().as_fd()),
            side_width: width(io::stderr().as_fd()),
            interactive: io::stdin().is_terminal() && error,
            animated: error
                && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
                && passes(io::stderr(), choice),
            yes,
            quiet,
            choice,
        }
    }

    /// Prints a result. A closed pipe does not stop the command: the exit code still shows its success.
    pub(crate) fn print(&self, text: &str) -> Outcome {
        match self.print_while_read(text) {
            Err(Failure::PipeClosed) => Ok(()),
            other => other,
        }
    }

    /// Prints a result, and fails if the pipe is closed. For output without an end.
    pub(crate) fn print_while_read(&self, text: &str) -> Outcome {
        let mut out = AutoStream::new(io::stdout().lock(), self.choice);
        out.write_all(text.as_bytes())?;
        if !text.ends_with('\n') && !text.is_empty() {
            out.write_all(b"\n")?;
        }
        out.flush()?;
        Ok(())
    }

    /// Prints a hint to standard error.
    pub(crate) fn note(&self, text: &str) {
        if !self.quiet {
            self.complain(&fold(&format!("{text}\n"), self.side_width));
        }
    }

    /// Prints to standard error, also with `--quiet`, without folding.
    pub(crate) fn complain(&self, text: &str) {
        let mut error = AutoStream::new(io::stderr().lock(), self.choice);
        let _ = error.write_all(text.as_bytes());
        let _ = error.flush();
    }

    /// The same screen without progress and hints.
    pub(crate) fn quieter(self) -> Self {
        Self { quiet: true, animated: false, ..self }
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    pub(crate) fn colours_errors(&self) -> bool {
        passes(io::stderr(), self.choice)
    }

    /// Asks for confirmation. Without a terminal, `--yes` is required.
    pub(crate) fn confirm(&self, question: &str) -> Outcome {
        if self.yes {
            return Ok(());
        }
        if !self.interactive {
            return crate::failure::request(
                format!("{question} There is no terminal to ask on"),
                "use --yes to answer yes",
            );
        }
        match inquire::Confirm::new(question).with_default(false).prompt() {
            Ok(true) => Ok(()),
            Ok(false) => Err(Failure::Declined),
            Err(error) => Err(error.into()),
        }
    }
}

/// Whether the stream keeps colors and control sequences.
fn passes(stream: impl anstream::stream::RawStream, choice: ColorChoice) -> bool {
    AutoStream::new(stream, choice).current_choice() != ColorChoice::Never
}
