//! Options that several commands have.

use std::path::PathBuf;

use clap::{ArgAction, Args, ValueEnum};

/// Options of every command.
#[derive(Args, Debug)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// The kubeconfig to use, instead of KUBECONFIG or ~/.kube/config.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The context to use, instead of the current one.
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// The namespace of VDO and its objects.
    #[arg(long, short, global = true, value_name = "NAME", default_value = api::NAMESPACE)]
    pub(crate) namespace: String,
    /// The timeout of API requests, in seconds.
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) request_timeout: u64,
    /// Answer yes to every question.
    #[arg(long, short, global = true)]
    pub(crate) yes: bool,
    /// Print only results: no progress and no hints.
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
    /// Log more; use it twice for even more.
    #[arg(long, short, global = true, action = ArgAction::Count, value_parser = verbosity)]
    pub(crate) verbose: u8,
    /// When to use colors: auto, always or never. vdoctl honors NO_COLOR.
    #[arg(long, global = true, value_enum, default_value_t = Colour::Auto, value_name = "WHEN")]
    #[arg(hide_possible_values = true)]
    pub(crate) color: Colour,
    /// Ignored, for compatibility with earlier versions.
    #[arg(long, global = true, hide = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Colour {
    Auto,
    Always,
    Never,
}

impl From<Colour> for anstream::ColorChoice {
    fn from(colour: Colour) -> Self {
        match colour {
            Colour::Auto => Self::Auto,
            Colour::Always => Self::Always,
            Colour::Never => Self::Never,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    Json,
    Yaml,
}

/// Parses `VDOCTL_VERBOSE`.
fn verbosity(text: &str) -> Result<u8, String> {
    match text.to_lowercase().as_str() {
        "" | "false" | "no" | "off" => Ok(0),
        "true" | "yes" | "on" => Ok(1),
        number => number.parse().map_err(|_| "use a number, or true".to_owned()),
    }
}
