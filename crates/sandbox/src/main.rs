//! Runs VDO on one computer: a cluster, a vCenter, three commands, running drivers.
//!
//! ```text
//!   arguments    the command line
//!   environment  control plane, vCenter simulator, fresh nodes         (real programs, from testkit)
//!   kubelet      runs the programs of pods on simulated nodes
//!   user         types vdoctl
//!   scenario     what the user does: install; break and fix; upgrade
//!   screen       output
//! ```
//!
//! However it ends (by itself, Ctrl-C, a failure, `kill -9`), every program it started ends with it, and its folder is
//! removed.

mod arguments;
mod environment;
mod failure;
mod kubelet;
mod scenario;
mod screen;
mod user;

use std::{
    os::unix::process::CommandExt as _,
    process::{Command, ExitCode},
    time::Duration,
};

use arguments::{Arguments, Task};
use clap::Parser as _;
use environment::Environment;
use failure::Failure;
use screen::Screen;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::timeout,
};

/// Selects the Kubernetes release of the environment.
const KUBERNETES: &str = "VDO_KUBERNETES";

/// How long to wait after a failure for a signal that caused it.
const SIGNAL_DELAY: Duration = Duration::from_millis(500);

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let screen = Screen::new();
    if let Some(Task::Break(what)) = &arguments.task
        && what.list
    {
        scenario::list(&screen);
        return ExitCode::SUCCESS;
    }
    if arguments.upgrades() && std::env::var_os(KUBERNETES).is_none() {
        // Starts the same program on a Kubernetes that older drivers support.
        let restarted = std::env::current_exe().map(|program| {
            let given = std::env::args_os().skip(1);
            Command::new(program).args(given).env(KUBERNETES, scenario::OLDER_KUBERNETES).exec()
        });
        anstream::eprintln!("sandbox: it cannot restart itself: {:?}", restarted.err());
        return ExitCode::FAILURE;
    }
    match run_until_signal(&arguments, &screen) {
        Ok(end) => end.into(),
        Err(failure) => {
            anstream::eprintln!("\nsandbox: {failure}");
            ExitCode::FAILURE
        }
    }
}

enum End {
    /// The scenario is complete.
    Complete,
    /// A signal came first.
    Interrupted,
}

impl From<End> for ExitCode {
    fn from(end: End) -> Self {
        match end {
            End::Complete => Self::SUCCESS,
            End::Interrupted => Self::from(130),
        }
    }
}

#[tokio::main]
async fn run_until_signal(arguments: &Arguments, screen: &Screen) -> Result<End, Failure> {
    let mut complete = false;
    let mut end_requested = std::pin::pin!(end_signal());
    let ended = tokio::select! {
        biased;
        () = &mut end_requested => Ok(End::Interrupted),
        ended = run(arguments, screen, &mut complete) => ended.map(|()| End::Complete),
    };
    let ended = match ended {
        // Ctrl-C also reaches the programs of the sandbox: a failure because of it is not reported.
        Err(failure) => timeout(SIGNAL_DELAY, end_requested)
            .await
            .map(|()| End::Interrupted)
            .map_err(|_| failure),
        ended => ended,
    };
    ended.map(|end| if complete { End::Complete } else { end })
}

async fn run(arguments: &Arguments, screen: &Screen, complete: &mut bool) -> Result<(), Failure> {
    let environment = start(arguments, screen).await?;
    scenario::introduce(&environment, screen);
    let mut kubelet_task = std::pin::pin!(kubelet::serve(&environment));
    if arguments.options.bare {
        scenario::next(&environment, screen)?;
    } else {
        tokio::select! {
            done = scenario::run(arguments, &environment, screen) => done?,
            Err(failure) = &mut kubelet_task => return Err(failure),
        }
    }
    *complete = true;
    if !arguments.options.stays() {
        return Ok(());
    }
    screen.say("\nCtrl-C ends the sandbox and removes all its files.");
    kubelet_task.await.map(|never| match never {})
}

/// Real nodes if they are wanted and possible.
async fn start(arguments: &Arguments, screen: &Screen) -> Result<Environment, Failure> {
    if !arguments.wants_real_nodes() {
        return Environment::simulated(screen).await;
    }
    match environment::missing_for_real_nodes() {
        None => Environment::real(screen).await,
        Some(missing) => {
            screen.say(&format!("The nodes are simulated, because real nodes need {missing}."));
            Environment::simulated(screen).await
        }
    }
}

/// Ctrl-C, a closed terminal, or a plain `kill`.
async fn end_signal() {
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let signals: Vec<_> = kinds.into_iter().filter_map(|kind| signal(kind).ok()).collect();
    let waiting = signals.into_iter().map(|mut signal| {
        Box::pin(async move {
            signal.recv().await;
        })
    });
    futures::future::select_all(waiting).await;
}
