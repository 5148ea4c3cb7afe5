use std::{io::Write as _, process::ExitCode};

use clap::{Parser, Subcommand};
use csi::{controller::command::ControllerArguments, node::command::NodeArguments};
use runtime::{
    build::BuildInfo,
    error_chain::error_chain,
    process::exit_on_panic,
    telemetry::{Format, Logs},
};

const BUILD: BuildInfo = BuildInfo::new("vsphere-csi");

/// The vSphere CSI driver.
#[derive(Debug, Parser)]
#[command(name = "vsphere-csi", version = runtime::build::VERSION)]
struct Arguments {
    /// The log level: `info`, or levels by module as in `info,vsphere=debug`.
    #[arg(long, env = "CSI_LOG", default_value = "info", global = true)]
    log: String,

    /// The log format: `json` or `human`. By default text on a terminal and JSON elsewhere.
    #[arg(long, env = "CSI_LOG_FORMAT", global = true)]
    log_format: Option<String>,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Creates, deletes, attaches and snapshots volumes, for the whole cluster.
    Controller(ControllerArguments),
    /// Finds, formats and mounts the disks of this node for its kubelet.
    Node(NodeArguments),
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Err(error) = start_logs(&arguments) {
        let _ = writeln!(std::io::stderr(), "{error}");
        return ExitCode::from(2);
    }
    exit_on_panic();
    match arguments.command {
        Command::Controller(arguments) => {
            ended(Box::pin(csi::controller::command::run(arguments, BUILD)).await)
        }
        Command::Node(arguments) => ended(csi::node::command::run(arguments, BUILD).await),
    }
}

fn ended<E: std::error::Error + 'static>(result: Result<(), E>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{}", error_chain(&error));
            ExitCode::FAILURE
        }
    }
}

fn start_logs(arguments: &Arguments) -> Result<(), runtime::telemetry::Error> {
    let format = match &arguments.log_format {
        Some(format) => format.parse()?,
        None => Format::by_terminal(),
    };
    Logs::start(format, &arguments.log).map(drop)
}
