//! Runs external tools: mkfs, fsck, blkid, mount. Each has a timeout.

use std::{ffi::OsString, process::Stdio, sync::Arc, time::Duration};

use rustix::process::{Pid, Signal, kill_process_group};
use snafu::{ResultExt as _, Snafu};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    process::{Child, Command},
    time::timeout,
};

use super::metrics::Metrics;

/// The part of a tool's output that an error shows.
const SHOWN: usize = 2000;
/// The most output that is kept.
const KEPT: usize = 64 << 10;
/// How long a killed tool can take to end. A tool that waits for a dead disk does not end at all.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, Snafu)]
pub enum ToolError {
    #[snafu(display(
        "{tool} is missing on this node: the image of the driver contains it, a driver outside of the image needs it \
         in its PATH"
    ))]
    Missing { tool: String, source: std::io::Error },
    #[snafu(display("{tool} cannot be started"))]
    Start { tool: String, source: std::io::Error },
    #[snafu(display(
        "`{command}` did not end within {} s and was killed: the disk or the file system does not answer{}",
        limit.as_secs(),
        shown(output)
    ))]
    Timeout { command: String, limit: Duration, output: String },
    #[snafu(display("`{command}` failed with {status}{}", shown(output)))]
    Failed { command: String, status: String, code: Option<i32>, output: String },
}

impl ToolError {
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Timeout { .. })
    }

    /// The exit code of a tool that failed.
    pub fn code(&self) -> Option<i32> {
        match self {
            Self::Failed { code, .. } => *code,
            _ => None,
        }
    }
}

fn shown(output: &str) -> String {
    let output = output.trim();
    if output.is_empty() {
        return String::new();
    }
    let mut start = output.len().saturating_sub(SHOWN);
    while !output.is_char_boundary(start) {
        start += 1;
    }
    format!(": {}", output[start..].split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Starts tools. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Tools {
    limit: Duration,
    metrics: Arc<Metrics>,
}

/// A tool with its arguments.
#[derive(Debug)]
pub struct Tool<'a> {
    tools: &'a Tools,
    name: &'static str,
    arguments: Vec<OsString>,
    limit: Duration,
}

impl Tools {
    /// `limit` is the timeout of a tool without its own.
    pub fn new(limit: Duration, metrics: Arc<Metrics>) -> Self {
        Self { limit, metrics }
    }

    pub fn tool(&self, name: &'static str) -> Tool<'_> {
        Tool { tools: self, name, arguments: Vec::new(), limit: self.limit }
    }
}

impl Tool<'_> {
    #[must_use]
    pub fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    #[must_use]
    pub fn args<A: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Replaces the usual timeout.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Runs the tool and returns its standard output. Any exit code but 0 is an error.
    pub async fn run(self) -> Result<String, ToolError> {
        let (name, metrics) = (self.name, self.tools.metrics.clone());
        let outcome = self.execute().await;
        metrics.tool_ended(name, outcome.as_ref().err());
        outcome
    }

    async fn execute(self) -> Result<String, ToolError> {
        let tool = self.name;
        let command = self.text();
        tracing::debug!(command, "running a tool");
        let mut child = match self.spawn() {
            Ok(child) => child,
            Err(source) if source.kind() == std::io::ErrorKind::NotFound => {
                return Err(source).context(MissingSnafu { tool });
            }
            Err(source) => return Err(source).context(StartSnafu { tool }),
        };
        let (mut output, mut errors) = (Vec::new(), Vec::new());
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let ended = timeout(self.limit, async {
            let reading =
                async { tokio::join!(read(stdout, &mut output), read(stderr, &mut errors)) };
            tokio::join!(child.wait(), reading).0
        })
        .await;
        let Ok(status) = ended else {
            kill(&mut child).await;
            let output = merged(&output, &errors);
            return TimeoutSnafu { command, limit: self.limit, output }.fail();
        };
        let status = status.context(StartSnafu { tool })?;
        if status.success() {
            return Ok(String::from_utf8_lossy(&output).into_owned());
        }
        let output = merged(&output, &errors);
        FailedSnafu { command, status: status.to_string(), code: status.code(), output }.fail()
    }

    fn spawn(&self) -> std::io::Result<Child> {
        Command::new(self.name)
            .args(&self.arguments)
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // So that the timeout also kills the programs that the tool starts.
            .process_group(0)
            .spawn()
    }

    fn text(&self) -> String {
        let words = self.arguments.iter().map(|argument| argument.to_string_lossy());
        std::iter::once(self.name.into()).chain(words).collect::<Vec<_>>().join(" ")
    }
}

async fn read(from: Option<impl AsyncRead + Unpin>, into: &mut Vec<u8>) {
    let Some(mut from) = from else { return };
    let mut buffer = vec![0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        // The rest is read too: a tool must not block on a full pipe.
        if into.len() < KEPT {
            into.extend_from_slice(&buffer[..count]);
        }
    }
}

/// A process that the kernel cannot kill yet is left to itself: it ends when the disk answers or is removed.
async fn kill(child: &mut Child) {
    let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    if let Some(group) = group {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = timeout(KILL_TIMEOUT, child.wait()).await;
}

fn merged(output: &[u8], errors: &[u8]) -> String {
    format!("{}\n{}", String::from_utf8_lossy(output), String::from_utf8_lossy(errors))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools(limit: Duration) -> Tools {
        Tools::new(limit, Arc::default())
    }

    #[tokio::test]
    async fn the_error_has_the_command_the_exit_code_and_the_output() {
        let tools = tools(Duration::from_mins(1));
        let error = tools.tool("sh").arg("-c").arg("echo bad superblock >&2; exit 4").run().await;
        let error = error.unwrap_err();
        assert_eq!(error.code(), Some(4));
        assert!(error.to_string().ends_with("exit status: 4: bad superblock"), "{error}");
    }

    #[tokio::test]
    async fn a_tool_that_hangs_is_killed_with_its_children() {
        let tools = tools(Duration::from_millis(300));
        let marker = format!("{}", 86_000 + std::process::id() % 1000);
        let script = format!("sleep {marker} & echo started; wait");
        let error = tools.tool("sh").arg("-c").arg(script).run().await.unwrap_err();
        assert!(error.is_timeout(), "{error}");
        assert!(error.to_string().ends_with(": started"), "{error}");
        let running = || {
            std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
                let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
                line == format!("sleep\0{marker}\0").into_bytes()
            })
        };
        // A killed process ends as soon as the kernel schedules it once more.
        let ended = async {
            while running() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(20), ended).await.expect("the child of the tool is killed too");
    }

    #[tokio::test]
    async fn a_missing_tool_is_named() {
        let error = tools(Duration::from_secs(5)).tool("mkfs.no-such").run().await.unwrap_err();
        assert!(error.to_string().starts_with("mkfs.no-such is missing on this node"), "{error}");
    }
}
