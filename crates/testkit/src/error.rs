//! Errors of peers.
#![allow(missing_docs, reason = "a field is named as in the text it stands in")]

use std::path::PathBuf;

use snafu::Snafu;

/// Why a peer could not be built, started or reached. Each text names the program and the fix.
#[derive(Debug, Snafu)]
#[snafu(visibility(pub(crate)))]
pub enum Error {
    /// `peers/build` failed; its text has the cause.
    #[snafu(display("{program} cannot be built:\n{text}"))]
    Build { program: String, text: String },

    /// The program file exists, but the kernel did not start it.
    #[snafu(display("{program} could not be started from {}", path.display()))]
    Spawn { program: String, path: PathBuf, source: std::io::Error },

    /// The program ended before it was ready.
    #[snafu(display("{program} ended before it was ready ({status}). {remedy}\nIts last log lines ({}):\n{tail}", log.display()))]
    Died { program: String, status: String, remedy: String, log: PathBuf, tail: String },

    /// The program runs but did not become ready in time.
    #[snafu(display("{program} was not ready within {seconds} s ({last}). If the computer is overloaded, run fewer tests at once.\nIts last log lines ({}):\n{tail}", log.display()))]
    NotReady { program: String, seconds: u64, last: String, log: PathBuf, tail: String },

    /// A file or folder of the run could not be written.
    #[snafu(display("cannot write {}: is the disk full, or VDO_CACHE not writable?", path.display()))]
    Files { path: PathBuf, source: std::io::Error },

    /// No port was free.
    #[snafu(display(
        "no free TCP port between {from} and {to} on 127.0.0.1: another program holds them; stop it and run again"
    ))]
    Ports { from: u16, to: u16 },

    /// A certificate could not be created.
    #[snafu(display("cannot create a certificate for {name}"))]
    Certificate { name: String, source: rcgen::Error },

    /// A Kubernetes client could not be created or used.
    #[snafu(display("a request to the API server failed: {what}"))]
    Kubernetes {
        what: String,
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },

    /// A tool for images failed.
    #[snafu(display("{command} failed: {text}"))]
    Image { command: String, text: String },

    /// A tool for disks failed.
    #[snafu(display("{command} failed: {text}. Disks need root and loop devices"))]
    Disks { command: String, text: String },

    /// A real node cannot run here, or did not become Ready.
    #[snafu(display("{name}: {text}"))]
    RealNode { name: String, text: String },

    /// A virtual machine cannot run here, or QEMU refused a request.
    #[snafu(display("the virtual machine: {what} failed: {text}"))]
    Guest { what: String, text: String },

    /// The simulator's control port rejected a request.
    #[snafu(display("the simulator rejected {what}: {text}"))]
    Lever { what: String, text: String },
}

impl Error {
    /// The error chain in one text.
    pub fn full_text(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text.push_str("\n  caused by: ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        text
    }
}

/// Fails the test with the error chain.
#[track_caller]
pub(crate) fn must<T>(result: Result<T, Error>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{}", error.full_text()),
    }
}
