//! The product's main job on one machine: a cluster, a vCenter, one object, running drivers.
//!
//! ```text
//!   stage    control plane, vCenter simulator, fresh nodes
//!   user     what a user does: install the operator, write three objects
//!   screen   what is shown while it goes on, and at the end
//! ```
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it talks to a person")]

mod arguments;
mod screen;
mod stage;
mod user;

use std::process::ExitCode;

use arguments::Arguments;
use screen::Screen;
use stage::Stage;
use tokio::signal;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = match Arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(text) => {
            eprintln!("sandbox: {text}");
            return ExitCode::from(2);
        }
    };
    let outcome = tokio::select! {
        outcome = run(&arguments) => outcome,
        _ = signal::ctrl_c() => Ok(()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("sandbox: {text}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &Arguments) -> Result<(), String> {
    let screen = Screen::new();
    let stage = Stage::set(arguments.nodes, &screen).await.map_err(|e| e.full_text())?;
    screen.reach(&stage);
    if arguments.bare {
        return stay(arguments).await;
    }
    let operator = user::install(&stage, &screen).await?;
    user::configure(&stage, arguments.cpi, &screen).await?;
    let _cloud_controller = user::run_cloud_controller(&stage, arguments.cpi, &screen).await?;
    let config = user::wait_until_ready(&stage, &screen, &operator).await?;
    screen.status(&config);
    screen.next_steps();
    stay(arguments).await
}

async fn stay(arguments: &Arguments) -> Result<(), String> {
    if arguments.once {
        return Ok(());
    }
    println!("Ctrl-C ends the sandbox and removes all of it.");
    std::future::pending().await
}
