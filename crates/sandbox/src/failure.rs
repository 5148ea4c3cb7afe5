//! Why the sandbox could not show what it is there to show.
#![allow(missing_docs, reason = "a field is named as in the text it stands in")]

use std::path::PathBuf;

use snafu::Snafu;

/// What went wrong. Each text says what to do where there is something to do.
#[derive(Debug, Snafu)]
#[snafu(visibility(pub(crate)))]
pub(crate) enum Failure {
    /// A program of the stage could not be had; its own text says why.
    #[snafu(display("{}", source.full_text()))]
    Peer { source: testkit::Error },

    /// The API server did not do as asked.
    #[snafu(display("the cluster did not do as asked: {what}: {source}"))]
    Cluster {
        what: String,
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },

    /// A program of this workspace is missing.
    #[snafu(display(
        "{name} is not built: run it through make sandbox ({} is missing)", path.display()
    ))]
    NotBuilt { name: String, path: PathBuf },

    /// A program could not be started.
    #[snafu(display("{command} cannot be run: {source}"))]
    Run { command: String, source: std::io::Error },

    /// A command a user would type failed.
    #[snafu(display("`{command}` ended with {code}; what it said stands above"))]
    Command { command: String, code: i32 },

    /// A command whose answer is read here did not answer as it should.
    #[snafu(display("`{command}` did not answer as it should: {output}"))]
    Said { command: String, output: String },

    /// A program whose pod is simulated ends again and again.
    #[snafu(display("{name} ended {times} times. Its last words:\n{tail}"))]
    Ended { name: String, times: u32, tail: String },

    /// Something did not come in time.
    #[snafu(display("not so within {seconds} s: {what}"))]
    TooLate { what: String, seconds: u64 },
}
