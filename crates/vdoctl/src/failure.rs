//! Why a command ends without having done what it was asked, and what the user can do about it.
//!
//! Each kind knows its exit code and its help; a mistake in a file knows its place. How it looks on a
//! screen is `report`'s matter.

use std::{io, path::PathBuf};

use inquire::InquireError;
use miette::{LabeledSpan, NamedSource, SourceSpan};
use snafu::Snafu;

use crate::exit::Exit;

/// Why a command failed.
#[derive(Debug, Snafu)]
#[snafu(visibility(pub(crate)))]
pub(crate) enum Failure {
    /// No cluster could be found in flags, environment and files.
    #[snafu(display("no Kubernetes cluster is configured"))]
    Cluster { source: runtime::kubernetes::Error },

    /// The API server refused or did not answer.
    #[snafu(display("{doing} failed"))]
    Api {
        doing: String,
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },

    /// Of several objects that belong together one was not written.
    #[snafu(display("writing {object} failed; {}", remains(left)))]
    Unwritten {
        object: String,
        /// What was written before and is still there.
        left: Vec<String>,
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },

    /// Of several objects that can be applied again one was not.
    #[snafu(display("applying {object} failed"))]
    Unapplied {
        object: String,
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },

    /// Of several objects that belong together one was not deleted.
    #[snafu(display("deleting {object} failed; {}", is_gone(gone)))]
    Undeleted {
        object: String,
        /// What was deleted before.
        gone: Vec<String>,
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },

    /// The user may not do this, and was told so before anything was done.
    #[snafu(display("{doing} is not allowed; nothing was changed"))]
    Forbidden {
        doing: String,
        help: String,
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },

    /// The definitions are not there.
    #[snafu(display("VDO is not installed in this cluster"))]
    NotInstalled,

    /// There is no VDOConfig.
    #[snafu(display("VDO is installed but not configured"))]
    NotConfigured,

    /// There is no VDOConfig where VDO looks for it.
    #[snafu(display(
        "VDO is installed but not configured: it does not follow VDOConfig {namespace}/{name}, which is in \
         another namespace"
    ))]
    ConfiguredElsewhere { namespace: String, name: String },

    /// A file of the user's.
    #[snafu(display("{} cannot be {deed}", path.display()))]
    File { path: PathBuf, deed: &'static str, source: io::Error },

    /// A file of the user's says something that makes no sense.
    #[snafu(display("{text}"))]
    Mistake {
        text: String,
        help: String,
        #[snafu(source(false))]
        source: Box<NamedSource<String>>,
        span: SourceSpan,
        label: String,
    },

    /// A vCenter cannot be used.
    #[snafu(display("vCenter {address} cannot be used"))]
    Vcenter {
        address: String,
        #[snafu(source(from(vsphere::Error, Box::new)))]
        source: Box<vsphere::Error>,
    },

    /// Something was waited for that did not come.
    #[snafu(display("{what} within {seconds} seconds"))]
    TooLate { what: String, seconds: u64, help: String },

    /// It makes sense, but not here or not now.
    #[snafu(display("{text}"))]
    Refused { text: String, help: String },

    /// Asked for nothing sensible, or something that does not exist.
    #[snafu(display("{text}"))]
    Request { text: String, help: String },

    /// Whatever a library of ours says.
    #[snafu(display("{text}"))]
    Other { text: String, source: Box<dyn std::error::Error + Send + Sync> },

    /// The user said no.
    #[snafu(display("nothing was changed"))]
    Declined,

    /// The user left a question unanswered.
    #[snafu(display("interrupted; nothing was changed"))]
    Interrupted,

    /// The user pressed Ctrl-C while something went on.
    #[snafu(display("interrupted"))]
    Stopped,

    /// Whoever reads the output went away: no failure at all.
    #[snafu(display("the reader of the output went away"))]
    PipeClosed,

    /// The output could not be written.
    #[snafu(display("cannot write the output"))]
    Output { source: io::Error },

    /// It worked, and what it found is not well.
    #[snafu(display("{exit:?}"))]
    Verdict { exit: Exit },
}

fn remains(left: &[String]) -> String {
    match left {
        [] => "nothing was changed".into(),
        left => format!("{} could not be rolled back", left.join(", ")),
    }
}

fn is_gone(gone: &[String]) -> String {
    match gone {
        [] => "nothing was changed".into(),
        [one] => format!("{one} is gone"),
        gone => format!("{} are gone", gone.join(", ")),
    }
}

impl Failure {
    /// The exit code of the process.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::PipeClosed => Exit::Success,
            Self::Cluster { .. }
            | Self::Api { .. }
            | Self::Unwritten { .. }
            | Self::Unapplied { .. }
            | Self::Undeleted { .. }
            | Self::Forbidden { .. }
            | Self::File { .. }
            | Self::Mistake { .. }
            | Self::Vcenter { .. }
            | Self::Refused { .. }
            | Self::Other { .. }
            | Self::Declined
            | Self::Output { .. } => Exit::Failure,
            Self::Request { .. } => Exit::Usage,
            Self::TooLate { .. } => Exit::Progressing,
            Self::NotInstalled | Self::NotConfigured | Self::ConfiguredElsewhere { .. } => {
                Exit::Absent
            }
            Self::Interrupted | Self::Stopped => Exit::Interrupted,
            Self::Verdict { exit } => *exit,
        }
    }

    /// Whether there is anything to say beside what was printed already.
    pub(crate) fn is_silent(&self) -> bool {
        matches!(self, Self::PipeClosed | Self::Verdict { .. })
    }

    /// What the user can do.
    fn advice(&self) -> Option<String> {
        match self {
            Self::Cluster { source: runtime::kubernetes::Error::NoContext { context, known } } => {
                Some(contexts(context, known))
            }
            Self::Cluster { .. } => Some(
                "set --kubeconfig or KUBECONFIG, and --context if it is not the current context"
                    .into(),
            ),
            Self::Unwritten { left, .. } if !left.is_empty() => Some(
                "run the command again when the cluster responds; vdoctl continues from there"
                    .into(),
            ),
            Self::Undeleted { gone, .. } if !gone.is_empty() => {
                Some("run the command again; vdoctl continues from there".into())
            }
            Self::Api { source, .. }
            | Self::Unwritten { source, .. }
            | Self::Undeleted { source, .. } => api_advice(source),
            Self::Unapplied { .. } => {
                Some("the objects that were applied stay; run the command again to continue".into())
            }
            Self::NotInstalled => Some("vdoctl deploy installs it".into()),
            Self::NotConfigured => Some("vdoctl configure configures it".into()),
            Self::ConfiguredElsewhere { namespace, name } => Some(format!(
                "to use it: vdoctl move --from {namespace} --name {name}; to write a new one: vdoctl configure"
            )),
            Self::Mistake { help, .. }
            | Self::Request { help, .. }
            | Self::Refused { help, .. }
            | Self::Forbidden { help, .. }
            | Self::TooLate { help, .. } => Some(help.clone()).filter(|help| !help.is_empty()),
            _ => None,
        }
    }
}

/// The contexts there are instead.
fn contexts(wanted: &str, known: &[String]) -> String {
    match crate::text::nearest(wanted, known.iter().map(String::as_str)) {
        Some(near) => {
            format!("did you mean {near}? kubectl config get-contexts lists all contexts")
        }
        None if known.is_empty() => "the kubeconfig has no contexts: is it the right file?".into(),
        None => format!("the kubeconfig has the contexts {}", known.join(", ")),
    }
}

/// Whether the API server says that the user may not.
pub(crate) fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403)
}

fn api_advice(error: &kube::Error) -> Option<String> {
    match error {
        error if is_forbidden(error) => Some(
            "ask for the permission in the message, or use another context: kubectl config get-contexts"
                .into(),
        ),
        kube::Error::Api(status) if status.code == 401 => {
            Some("the cluster rejects the credentials of this context: log in again".into())
        }
        kube::Error::Api(_) => None,
        _ => Some(
            "check that the cluster is up and that the kubeconfig is correct: kubectl cluster-info".into(),
        ),
    }
}

impl miette::Diagnostic for Failure {
    fn help<'a>(&'a self) -> Option<Box<dyn std::fmt::Display + 'a>> {
        self.advice().map(|text| Box::new(text) as Box<dyn std::fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn miette::SourceCode> {
        match self {
            Self::Mistake { source, .. } => Some(source.as_ref()),
            _ => None,
        }
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        match self {
            Self::Mistake { span, label, .. } => {
                let label = LabeledSpan::new_with_span(Some(label.clone()), *span);
                Some(Box::new(std::iter::once(label)))
            }
            _ => None,
        }
    }
}

impl From<io::Error> for Failure {
    fn from(source: io::Error) -> Self {
        if source.kind() == io::ErrorKind::BrokenPipe {
            Self::PipeClosed
        } else {
            Self::Output { source }
        }
    }
}

impl From<InquireError> for Failure {
    fn from(error: InquireError) -> Self {
        match error {
            InquireError::OperationCanceled | InquireError::OperationInterrupted => {
                Self::Interrupted
            }
            InquireError::IO(source) => Self::Output { source },
            other => {
                Self::Other { text: "the question could not be asked".into(), source: other.into() }
            }
        }
    }
}

pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// Says what was being done when the API server failed us.
pub(crate) trait Doing<T> {
    /// As in "listing nodes".
    fn doing(self, what: &str) -> Outcome<T>;
}

impl<T> Doing<T> for Result<T, kube::Error> {
    fn doing(self, what: &str) -> Outcome<T> {
        self.map_err(|source| Failure::Api { doing: what.to_owned(), source: Box::new(source) })
    }
}

/// A request that makes sense, only not here or not now, and what would help.
pub(crate) fn refuse<T>(text: impl Into<String>, help: impl Into<String>) -> Outcome<T> {
    RefusedSnafu { text, help }.fail()
}

/// A request that makes no sense, and what would.
pub(crate) fn request<T>(text: impl Into<String>, help: impl Into<String>) -> Outcome<T> {
    RequestSnafu { text, help }.fail()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One failure of each kind.
    fn kinds() -> Vec<Failure> {
        let (text, help) = (|| "text".to_owned(), String::new);
        let api = || Box::new(kube::Error::LinesCodecMaxLineLengthExceeded);
        let io = || io::Error::other("no");
        let away = vsphere::Error::ShutDown { address: text() };
        vec![
            Failure::PipeClosed,
            Failure::Cluster {
                source: runtime::kubernetes::Error::NoContext { context: text(), known: vec![] },
            },
            Failure::Api { doing: text(), source: api() },
            Failure::Unwritten { object: text(), left: vec![], source: api() },
            Failure::Unapplied { object: text(), source: api() },
            Failure::Undeleted { object: text(), gone: vec![], source: api() },
            Failure::Forbidden { doing: text(), help: help(), source: api() },
            Failure::File { path: text().into(), deed: "read", source: io() },
            Failure::Mistake {
                text: text(),
                help: help(),
                source: Box::new(NamedSource::new("file", text())),
                span: SourceSpan::new(0.into(), 1),
                label: text(),
            },
            Failure::Vcenter { address: text(), source: Box::new(away) },
            Failure::Refused { text: text(), help: help() },
            Failure::Other { text: text(), source: io().into() },
            Failure::Declined,
            Failure::Output { source: io() },
            Failure::Request { text: text(), help: help() },
            Failure::TooLate { what: text(), seconds: 1, help: help() },
            Failure::NotInstalled,
            Failure::NotConfigured,
            Failure::ConfiguredElsewhere { namespace: text(), name: text() },
            Failure::Interrupted,
            Failure::Stopped,
            Failure::Verdict { exit: Exit::Degraded },
        ]
    }

    #[test]
    fn every_kind_of_failure_ends_with_the_code_the_table_says() {
        let (_, table) = crate::exit::TABLE.split_once("Exit codes:\n").unwrap_or_default();
        let mut told = Vec::new();
        for failure in kinds() {
            let code = (failure.exit() as u8).to_string();
            let line = table.lines().find(|line| line.split_whitespace().next() == Some(&code));
            let line =
                line.unwrap_or_default().trim_start_matches(|c: char| c == ' ' || c.is_numeric());
            // What the table says of a code is what the kinds with that code are about.
            let words = match failure {
                Failure::PipeClosed => "success",
                Failure::Declined => "you declined",
                Failure::Request { .. } => "invalid command line",
                Failure::Verdict { .. } => "found a problem",
                Failure::TooLate { .. } => "timeout expired",
                Failure::NotInstalled => "not installed",
                Failure::NotConfigured | Failure::ConfiguredElsewhere { .. } => "not configured",
                Failure::Interrupted | Failure::Stopped => "interrupted",
                _ => "the command failed",
            };
            assert!(line.contains(words), "{failure:?} ends with {code}: {line}");
            told.push(std::mem::discriminant(&failure));
        }
        told.dedup();
        assert_eq!(told.len(), kinds().len(), "one of each");
    }
}
