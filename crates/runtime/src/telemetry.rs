//! Structured logs with a level that can change while the process runs.

use std::{io::IsTerminal, str::FromStr};

use snafu::{ResultExt, Snafu};
use tracing_subscriber::{
    EnvFilter, Registry, fmt,
    layer::{Layer, SubscriberExt},
    reload,
    util::SubscriberInitExt,
};

/// The format of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One JSON object per line.
    Json,
    /// Text; coloured on a terminal.
    Human,
}

impl Format {
    /// Text on a terminal, JSON otherwise.
    pub fn by_terminal() -> Self {
        if std::io::stderr().is_terminal() { Self::Human } else { Self::Json }
    }
}

impl FromStr for Format {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "json" => Ok(Self::Json),
            "human" | "text" => Ok(Self::Human),
            _ => FormatSnafu { text }.fail(),
        }
    }
}

#[derive(Debug, Snafu)]
pub enum Error {
    #[snafu(display("`{text}` is not a log format: write `json` or `human`"))]
    Format { text: String },

    #[snafu(display(
        "`{filter}` is not a log level: write `info`, or levels by module as in `info,vsphere=debug`"
    ))]
    Filter { filter: String, source: tracing_subscriber::filter::ParseError },

    #[snafu(display("logging is already set up in this process"))]
    Twice { source: tracing_subscriber::util::TryInitError },
}

/// Changes the log level of a running process.
#[derive(Clone)]
pub struct Logs {
    handle: reload::Handle<EnvFilter, Registry>,
}

impl Logs {
    /// Logs to standard error, filtered by `filter` (`info`, `info,vsphere=debug`).
    pub fn start(format: Format, filter: &str) -> Result<Self, Error> {
        let (filter, handle) = reload::Layer::new(parse(filter)?);
        let lines = match format {
            Format::Json => {
                fmt::layer().json().flatten_event(true).with_writer(std::io::stderr).boxed()
            }
            Format::Human => fmt::layer()
                .with_ansi(
                    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
                )
                .with_writer(std::io::stderr)
                .boxed(),
        };
        tracing_subscriber::registry().with(filter).with(lines).try_init().context(TwiceSnafu)?;
        Ok(Self { handle })
    }

    /// Changes the filter. An invalid filter changes nothing.
    pub fn set(&self, filter: &str) -> Result<(), Error> {
        let parsed = parse(filter)?;
        // Fails only if the subscriber is gone; then nothing logs any more.
        let _ = self.handle.reload(parsed);
        tracing::info!(filter, "log level changed");
        Ok(())
    }
}

fn parse(filter: &str) -> Result<EnvFilter, Error> {
    EnvFilter::builder().parse(filter).context(FilterSnafu { filter })
}
