//! What the sandbox is told.

use std::io::IsTerminal;

use api::vdo_config::Implementation;

/// The arguments.
pub(crate) struct Arguments {
    /// End once everything is up: on by default where there is no terminal to press Ctrl-C on.
    pub(crate) once: bool,
    /// Only the stage: no operator, no drivers.
    pub(crate) bare: bool,
    /// How many nodes.
    pub(crate) nodes: usize,
    /// Whose cloud controller runs.
    pub(crate) cpi: Cpi,
}

/// Whose cloud controller runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cpi {
    /// This project's.
    Rust,
    /// Upstream's, in Go.
    Upstream,
}

impl Cpi {
    /// As the VDOConfig calls it.
    pub(crate) fn implementation(self) -> Implementation {
        match self {
            Self::Rust => Implementation::Rust,
            Self::Upstream => Implementation::Upstream,
        }
    }
}

impl Arguments {
    pub(crate) fn parse(mut given: impl Iterator<Item = String>) -> Result<Self, String> {
        let once = !std::io::stdout().is_terminal();
        let mut parsed = Self { once, bare: false, nodes: 5, cpi: Cpi::Rust };
        while let Some(argument) = given.next() {
            match argument.as_str() {
                "--once" => parsed.once = true,
                "--stay" => parsed.once = false,
                "--bare" => parsed.bare = true,
                "--nodes" => {
                    let number = given.next().and_then(|n| n.parse().ok()).filter(|n| *n > 0);
                    parsed.nodes = number.ok_or("--nodes wants a number, as in `--nodes 5`")?;
                }
                "--cpi" => {
                    parsed.cpi = match given.next().as_deref() {
                        Some("rust") => Cpi::Rust,
                        Some("upstream") => Cpi::Upstream,
                        _ => return Err("--cpi wants `rust` or `upstream`".into()),
                    };
                }
                other => {
                    return Err(format!(
                        "`{other}` is unknown here: there are --once (end when all is up), --stay \
                         (until Ctrl-C), --bare (no operator), --nodes N and --cpi rust|upstream \
                         (whose cloud controller runs)"
                    ));
                }
            }
        }
        Ok(parsed)
    }
}
