//! The command line of VDO: `vdoctl`, also as `kubectl vdo`.
//!
//! It only shows and asks. All rules are in the crates that the operator uses, so the two cannot disagree.
//!
//! ```text
//!   dispatch ──► commands ──► operator, health, catalog, vsphere, api   (the rules)
//!   arguments      │  │
//!                   │  ├─ document   the user's YAML, with locations
//!                   │  ├─ cluster    the connection to the API server
//!                   │  └─ critical   changes that Ctrl-C must not interrupt
//!                   ▼
//!   progress, findings ──► screen, text   output for people
//!   exit                                  exit codes for scripts
//!   failure ──► report                    errors
//!   reference                             docs/reference/cli.md
//! ```

mod arguments;
mod cluster;
mod commands;
mod critical;
mod diff;
mod dispatch;
mod document;
mod environment;
mod exit;
mod failure;
mod findings;
mod options;
mod progress;
mod reference;
mod report;
mod rollout;
mod screen;
mod text;

use std::process::ExitCode;

use runtime::build::BuildInfo;

use crate::{arguments::Arguments, exit::Exit, screen::Screen};

const BUILD: BuildInfo = BuildInfo::new("vdoctl");

/// The page `docs/reference/cli.md`.
pub fn reference() -> String {
    reference::page(&arguments::command())
}

pub fn main() -> ExitCode {
    if arguments::is_plugin() {
        text::name_as_plugin(arguments::command().get_subcommands());
    }
    let arguments = match arguments::parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // clap returns the text of --help as an error.
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
        // A command works without its log.
        let _ = runtime::telemetry::Logs::start(runtime::telemetry::Format::Human, filter);
    }
    let screen = Screen::new(global.color.into(), global.quiet, global.yes);
    match dispatch::run(&global, task, &screen) {
        Ok(()) => Exit::Success.into(),
        Err(failure) => report::show(&failure, &screen).into(),
    }
}
