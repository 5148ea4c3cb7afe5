//! Where output goes and how wide it is.
//!
//! Results go to standard output, everything about the way there (progress, questions, hints) to
//! standard error, so that a pipe gets results alone. Colours are taken out by `anstream` where they
//! are not wanted: no terminal, `NO_COLOR`, `--color never`.

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

/// The output of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Screen {
    /// Columns there are for results.
    pub(crate) width: usize,
    /// Columns there are for everything else: results may go elsewhere, or the other way round.
    pub(crate) side_width: usize,
    /// Whether somebody can be asked: both ends are a terminal.
    pub(crate) interactive: bool,
    /// Whether what moves may move: only where what erases it gets through.
    pub(crate) animated: bool,
    /// Answer yes to every question.
    pub(crate) yes: bool,
    /// Only results.
    quiet: bool,
    choice: ColorChoice,
}

/// Narrower than this nothing is laid out.
const NARROWEST: usize = 40;
/// Wider than this is hard to read.
const WIDEST: usize = 120;
/// Where nobody says how wide it is.
const USUAL: usize = 100;

impl Screen {
    /// As the environment and the flags say.
    pub(crate) fn new(choice: ColorChoice, quiet: bool, yes: bool) -> Self {
        let told = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        let seen = |stream: BorrowedFd<'_>| {
            let size = rustix::termios::tcgetwinsize(stream).ok()?;
            Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
        };
        let width = |stream: BorrowedFd<'_>| {
            told.or_else(|| seen(stream)).unwrap_or(USUAL).clamp(NARROWEST, WIDEST)
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

    /// A result. A reader who went away stops nothing: what was asked for is done, and the exit code
    /// tells how it went.
    pub(crate) fn print(&self, text: &str) -> Outcome {
        match self.print_while_read(text) {
            Err(Failure::PipeClosed) => Ok(()),
            other => other,
        }
    }

    /// A result that has no end but its reader's.
    pub(crate) fn print_while_read(&self, text: &str) -> Outcome {
        let mut out = AutoStream::new(io::stdout().lock(), self.choice);
        out.write_all(text.as_bytes())?;
        if !text.ends_with('\n') && !text.is_empty() {
            out.write_all(b"\n")?;
        }
        out.flush()?;
        Ok(())
    }

    /// Something beside the result. A reader who is not there does not matter.
    pub(crate) fn note(&self, text: &str) {
        if !self.quiet {
            self.complain(&fold(&format!("{text}\n"), self.side_width));
        }
    }

    /// Like `note`, also when told to be quiet, and exactly as given.
    pub(crate) fn complain(&self, text: &str) {
        let mut error = AutoStream::new(io::stderr().lock(), self.choice);
        let _ = error.write_all(text.as_bytes());
        let _ = error.flush();
    }

    /// Whether anything is told beside results.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Whether errors may be in colour.
    pub(crate) fn colours_errors(&self) -> bool {
        passes(io::stderr(), self.choice)
    }

    /// Asks for a yes. Where nobody can be asked, `--yes` has to be on the command line.
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

/// Whether colours and control sequences get through.
fn passes(stream: impl anstream::stream::RawStream, choice: ColorChoice) -> bool {
    AutoStream::new(stream, choice).current_choice() != ColorChoice::Never
}
