//! Errors of the sandbox.
#![allow(missing_docs, reason = "a field is named as in the text it stands in")]

use std::path::PathBuf;

use snafu::Snafu;

/// Each text names the fix if there is one.
#[derive(Debug, Snafu)]
#[snafu(visibility(pub(crate)))]
pub(crate) enum Failure {
    /// A program could not be built or started; its text has the cause.
    #[snafu(display("{}", source.full_text()))]
    Peer { source: testkit::Error },

    /// A request to the API server failed.
    #[snafu(display("a request to the cluster failed: {what}: {source}"))]
    Cluster {
        what: String,
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },

    /// A program of this workspace is missing.
    #[snafu(display(
        "{name} is not built: start the sandbox with make sandbox ({} is missing)", path.display()
    ))]
    NotBuilt { name: String, path: PathBuf },

    /// A fault was to be injected into real nodes.
    #[snafu(display("faults are only injected with simulated nodes: add --simulated"))]
    SimulatedOnly,

    /// The programs or the images of real nodes could not be built.
    #[snafu(display("{command} failed: {output}"))]
    Build { command: String, output: String },

    /// A program could not be started.
    #[snafu(display("{command} cannot be run: {source}"))]
    Run { command: String, source: std::io::Error },

    /// A command of the user failed.
    #[snafu(display("`{command}` ended with {code}; see its output above"))]
    Command { command: String, code: i32 },

    /// The output of a command is not as expected.
    #[snafu(display("`{command}` has unexpected output: {output}"))]
    Output { command: String, output: String },

    /// A program of a simulated pod ends again and again.
    #[snafu(display("{name} ended {times} times. Its last log lines:\n{tail}"))]
    Ended { name: String, times: u32, tail: String },

    /// A condition was not met in time.
    #[snafu(display("not within {seconds} s: {what}"))]
    TooLate { what: String, seconds: u64 },
}
