//! The command line of VDO: `vdoctl`, also as `kubectl vdo`.
//!
//! It shows and asks; what there is to know and to decide is in the crates the operator uses, so that
//! the two cannot disagree.
//!
//! ```text
//!   arguments ──► commands ──► operator, health, catalog, vsphere, api   (what is true)
//!   (one           │  │
//!    definition,   │  └─ dialogue   questions on a terminal
//!    environment) │     document   the user's YAML, with places
//!                 │     cluster    the way to the API server
//!                 ▼
//!   screen, text, progress, findings   what a person sees
//!   exit                               what a script sees
//!   failure ─► report                  what went wrong, where, and what to do
//!   reference                          the page in docs, from the same definition
//! ```

mod arguments;
mod cluster;
mod commands;
mod critical;
mod diff;
mod document;
mod environment;
mod exit;
mod failure;
mod findings;
mod progress;
mod reference;
mod report;
mod rollout;
mod screen;
mod text;

use std::process::ExitCode;

use runtime::build::BuildInfo;

use crate::{arguments::Arguments, exit::Exit, screen::Screen};

const BUILD: BuildInfo = BuildInfo::of("vdoctl");

/// The reference of the command line, as it stands in the documentation.
pub fn reference() -> String {
    reference::page(&arguments::command())
}

/// Runs the command the process was started with.
pub fn main() -> ExitCode {
    let arguments = match arguments::parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help is no mistake. A reader who has seen enough is none either.
            let screen = Screen::new(arguments::colour().into(), false, false);
            let text = |width| text::fold(&error.render().ansi().to_string(), width);
            if error.use_stderr() {
                screen.complain(&text(screen.side_width));
                return Exit::Usage.into();
            }
            return match screen.print(&text(screen.width)) {
                Ok(()) => Exit::Success.into(),
                Err(failure) => report::show(&failure, &screen).into(),
            };
        }
    };
    let Arguments { global, task } = arguments;
    if global.verbose > 0 {
        let filter = match global.verbose {
            1 => "info",
            2 => "info,vsphere=debug,kube_client=debug,operator=debug",
            _ => "trace",
        };
        // Whoever asks to see more and cannot still gets the answer.
        let _ = runtime::telemetry::Logs::start(runtime::telemetry::Format::Human, filter);
    }
    let screen = Screen::new(global.color.into(), global.quiet, global.yes);
    match commands::run(&global, task, &screen) {
        Ok(()) => Exit::Success.into(),
        Err(failure) => report::show(&failure, &screen).into(),
    }
}
