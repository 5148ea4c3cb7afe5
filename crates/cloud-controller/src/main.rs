mod process;

use std::{io::Write as _, process::ExitCode};

use cloud_controller::settings::{Settings, SettingsError};
use runtime::{
    build::BuildInfo,
    error_chain::error_chain,
    process::exit_on_panic,
    telemetry::{Format, Logs},
};

const BUILD: BuildInfo = BuildInfo::new("vsphere-cloud-controller-manager");

#[tokio::main]
async fn main() -> ExitCode {
    let settings =
        match Settings::read(std::env::args_os().map(|text| text.to_string_lossy().into_owned())) {
            Ok(settings) => settings,
            Err(SettingsError::Flags { source }) => source.exit(),
            Err(error) => {
                let _ = writeln!(std::io::stderr(), "{error}");
                return ExitCode::from(2);
            }
        };
    if settings.flags.version {
        // A closed pipe is not an error.
        let _ = writeln!(std::io::stdout(), "{BUILD}");
        return ExitCode::SUCCESS;
    }
    if let Err(error) = start_logs(&settings) {
        let _ = writeln!(std::io::stderr(), "{error}");
        return ExitCode::from(2);
    }
    exit_on_panic();
    match process::run(settings, BUILD).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{}", error_chain(&error));
            ExitCode::FAILURE
        }
    }
}

fn start_logs(settings: &Settings) -> Result<(), runtime::telemetry::Error> {
    let format = match (&settings.flags.log_format, &settings.flags.explain_node) {
        (Some(format), _) => format.parse()?,
        (None, Some(_)) => Format::Human,
        (None, None) => Format::by_terminal(),
    };
    let filter = match &settings.flags.explain_node {
        Some(_) if settings.flags.log.is_none() => "error".to_owned(),
        _ => settings.log_filter(),
    };
    Logs::start(format, &filter).map(drop)
}
