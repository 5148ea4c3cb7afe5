//! The product's main job on one machine: a cluster, a vCenter, three commands, running drivers.
//!
//! ```text
//!   arguments   what is asked for
//!   stage       control plane, vCenter simulator, fresh nodes          (real programs, from testkit)
//!   kubelet     runs the programs whose pods are simulated
//!   user        types vdoctl
//!   play        what a user does: install; break and mend; upgrade
//!   screen      what is shown while it goes on
//! ```
//!
//! Whatever ends it (the end of the play, Ctrl-C, a failure, `kill -9`), every program it started ends
//! with it and its folder goes.

mod arguments;
mod failure;
mod kubelet;
mod play;
mod screen;
mod stage;
mod user;

use std::{
    os::unix::process::CommandExt as _,
    process::{Command, ExitCode},
    time::Duration,
};

use arguments::{Arguments, Task};
use clap::Parser as _;
use failure::Failure;
use screen::Screen;
use stage::Stage;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::timeout,
};

/// The variable that says which Kubernetes the stage has.
const KUBERNETES: &str = "VDO_KUBERNETES";

/// How long after a failure it is asked whether somebody wanted the end.
const HEARING: Duration = Duration::from_millis(500);

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let screen = Screen::new();
    if let Some(Task::Break(what)) = &arguments.task
        && what.list
    {
        play::list(&screen);
        return ExitCode::SUCCESS;
    }
    if arguments.upgrades() && std::env::var_os(KUBERNETES).is_none() {
        // The same program again, on a stage where older drivers fit.
        let again = std::env::current_exe().map(|program| {
            let given = std::env::args_os().skip(1);
            Command::new(program).args(given).env(KUBERNETES, play::OLDER_KUBERNETES).exec()
        });
        anstream::eprintln!("sandbox: it cannot be started again: {:?}", again.err());
        return ExitCode::FAILURE;
    }
    match perform(&arguments, &screen) {
        Ok(end) => end.into(),
        Err(failure) => {
            anstream::eprintln!("\nsandbox: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// How it ended, where nothing failed.
enum End {
    /// What was asked for was shown.
    Shown,
    /// Somebody had enough before that.
    Interrupted,
}

impl From<End> for ExitCode {
    fn from(end: End) -> Self {
        match end {
            End::Shown => Self::SUCCESS,
            End::Interrupted => Self::from(130),
        }
    }
}

#[tokio::main]
async fn perform(arguments: &Arguments, screen: &Screen) -> Result<End, Failure> {
    let mut shown = false;
    let mut told = std::pin::pin!(told_to_end());
    let ended = tokio::select! {
        biased;
        () = &mut told => Ok(End::Interrupted),
        ended = whole(arguments, screen, &mut shown) => ended.map(|()| End::Shown),
    };
    let ended = match ended {
        // A Ctrl-C reaches what was started here as well; that it failed for it is no news.
        Err(failure) => {
            timeout(HEARING, told).await.map(|()| End::Interrupted).map_err(|_| failure)
        }
        ended => ended,
    };
    ended.map(|end| if shown { End::Shown } else { end })
}

async fn whole(arguments: &Arguments, screen: &Screen, shown: &mut bool) -> Result<(), Failure> {
    let stage = Stage::set(screen).await?;
    play::introduce(&stage, screen);
    let mut hand = std::pin::pin!(kubelet::serve(&stage));
    if arguments.manner.bare {
        play::next(&stage, screen)?;
    } else {
        tokio::select! {
            played = play::run(arguments, &stage, screen) => played?,
            Err(failure) = &mut hand => return Err(failure),
        }
    }
    *shown = true;
    if !arguments.manner.stays() {
        return Ok(());
    }
    screen.say("\nCtrl-C ends the sandbox and removes all of it.");
    hand.await.map(|never| match never {})
}

/// Ctrl-C, a terminal that is closed, or a polite `kill`.
async fn told_to_end() {
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let signals: Vec<_> = kinds.into_iter().filter_map(|kind| signal(kind).ok()).collect();
    let waiting = signals.into_iter().map(|mut signal| {
        Box::pin(async move {
            signal.recv().await;
        })
    });
    futures::future::select_all(waiting).await;
}
