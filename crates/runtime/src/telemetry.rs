//! Structured logs whose level can be changed while the process runs.

use std::{io::IsTerminal, str::FromStr};

use snafu::{ResultExt, Snafu};
use tracing_subscriber::{
    EnvFilter, Registry, fmt,
    layer::{Layer, SubscriberExt},
    reload,
    util::SubscriberInitExt,
};

/// How a log line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One JSON object a line, for machines.
    Json,
    /// Text, for people; coloured on a terminal.
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

/// Why logging could not be set up or changed.
#[derive(Debug, Snafu)]
#[allow(missing_docs, reason = "a field is named as in the text it stands in")]
pub enum Error {
    #[snafu(display("`{text}` is no log format: write `json` or `human`"))]
    Format { text: String },

    #[snafu(display(
        "`{filter}` is no log level: write `info`, or levels by module as in `info,vsphere=debug`"
    ))]
    Filter { filter: String, source: tracing_subscriber::filter::ParseError },

    #[snafu(display("logging was set up already in this process"))]
    Twice { source: tracing_subscriber::util::TryInitError },
}

/// The handle that changes the level of a running process.
#[derive(Clone)]
pub struct Logs {
    handle: reload::Handle<EnvFilter, Registry>,
}

impl Logs {
    /// Sends the logs of this process to standard error, filtered by `filter` (`info`,
    /// `info,vsphere=debug`).
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

    /// Changes what is logged from now on. A filter that does not parse changes nothing.
    pub fn set(&self, filter: &str) -> Result<(), Error> {
        let parsed = parse(filter)?;
        // Fails only when the subscriber is gone, which is when nobody logs any more.
        let _ = self.handle.reload(parsed);
        tracing::info!(filter, "log level changed");
        Ok(())
    }
}

fn parse(filter: &str) -> Result<EnvFilter, Error> {
    EnvFilter::builder().parse(filter).context(FilterSnafu { filter })
}
