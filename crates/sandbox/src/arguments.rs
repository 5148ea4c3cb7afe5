//! What the sandbox is told.

use std::io::IsTerminal;

/// The arguments.
pub(crate) struct Arguments {
    /// End once everything is up: on by default where there is no terminal to press Ctrl-C on.
    pub(crate) once: bool,
    /// Only the stage: no operator, no drivers.
    pub(crate) bare: bool,
    /// How many nodes.
    pub(crate) nodes: usize,
}

impl Arguments {
    pub(crate) fn parse(mut given: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut parsed = Self { once: !std::io::stdout().is_terminal(), bare: false, nodes: 5 };
        while let Some(argument) = given.next() {
            match argument.as_str() {
                "--once" => parsed.once = true,
                "--stay" => parsed.once = false,
                "--bare" => parsed.bare = true,
                "--nodes" => {
                    let number = given.next().and_then(|n| n.parse().ok()).filter(|n| *n > 0);
                    parsed.nodes = number.ok_or("--nodes wants a number, as in `--nodes 5`")?;
                }
                other => {
                    return Err(format!(
                        "`{other}` is unknown here: there are --once (end when all is up), --stay \
                         (until Ctrl-C), --bare (no operator) and --nodes N"
                    ));
                }
            }
        }
        Ok(parsed)
    }
}
