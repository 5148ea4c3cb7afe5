//! Errors of commands, with their exit codes and the help for the user. `report` renders them.

use std::{io, path::PathBuf};

use inquire::InquireError;
use miette::{LabeledSpan, NamedSource, SourceSpan};
use snafu::Snafu;

use crate::exit::Exit;

#[derive(Debug, Snafu)]
#[snafu(visibility(pub(crate)))]
pub(crate) enum Failure {
    #[snafu(display("no Kubernetes cluster is configured"))]
    Cluster { source: runtime::kubernetes::Error },

    #[snafu(display("{doing} failed"))]
    Api {
        doing: String,
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },

    /// One of several objects was not written. vdoctl rolled the others back, except `left`.
    #[snafu(display("writing {object} failed; {}", remains(left)))]
    Unwritten {
        object: String,
        left: Vec<String>,
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },

    /// One of several objects was not applied. The others stay, because the user can apply them again.
    #[snafu(display("applying {object} failed"))]
    Unapplied {
        object: String,
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },

    /// One of several objects was not deleted; `gone` are the deleted ones.
    #[snafu(display("deleting {object} failed; {}", is_gone(gone)))]
    Undeleted {
        object: String,
        gone: Vec<String>,
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },

    /// The user lacks a permission, and nothing was changed.
    #[snafu(display("{doing} is not allowed; nothing was changed"))]
    Forbidden {
        doing: String,
        help: String,
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },

    /// The cluster does not have the CRDs.
    #[snafu(display("VDO is not installed in this cluster"))]
    NotInstalled,

    #[snafu(display("VDO is installed but not configured"))]
    NotConfigured,

    #[snafu(display(
        "VDO is installed but not configured: it does not follow VDOConfig {namespace}/{name}, which is in \
         another namespace"
    ))]
    ConfiguredElsewhere { namespace: String, name: String },

    /// The operator runs in another namespace than the command line names.
    #[snafu(display(
        "VDO is not installed in namespace {asked}: it runs in namespace {namespace}"
    ))]
    InstalledElsewhere { asked: String, namespace: String },

    #[snafu(display("{} cannot be {deed}", path.display()))]
    File { path: PathBuf, deed: &'static str, source: io::Error },

    /// A mistake in a user's file, with its location.
    #[snafu(display("{text}"))]
    Mistake {
        text: String,
        help: String,
        #[snafu(source(false))]
        source: Box<NamedSource<String>>,
        span: SourceSpan,
        label: String,
    },

    #[snafu(display("vCenter {address} cannot be used"))]
    Vcenter {
        address: String,
        #[snafu(source(from(vsphere::Error, Box::new)))]
        source: Box<vsphere::Error>,
    },

    /// Images were not copied.
    #[snafu(display("{doing} failed"))]
    Images {
        doing: &'static str,
        #[snafu(source(from(oci::Error, Box::new)))]
        source: Box<oci::Error>,
    },

    /// A timeout expired.
    #[snafu(display("{what} within {seconds} seconds"))]
    TooLate { what: String, seconds: u64, help: String },

    /// The request is valid, but not for this cluster or not now.
    #[snafu(display("{text}"))]
    Refused { text: String, help: String },

    /// The request is invalid for every cluster.
    #[snafu(display("{text}"))]
    Request { text: String, help: String },

    #[snafu(display("{text}"))]
    Other { text: String, source: Box<dyn std::error::Error + Send + Sync> },

    /// The user declined.
    #[snafu(display("nothing was changed"))]
    Declined,

    /// The user interrupted a question.
    #[snafu(display("interrupted; nothing was changed"))]
    Interrupted,

    /// The user pressed Ctrl-C while the command ran.
    #[snafu(display("interrupted"))]
    Stopped,

    /// The reader of the output closed the pipe. This counts as success.
    #[snafu(display("the reader of the output closed the pipe"))]
    PipeClosed,

    #[snafu(display("cannot write the output"))]
    Output { source: io::Error },

    /// The command worked and has already shown a problem.
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
            | Self::Images { .. }
            | Self::Refused { .. }
            | Self::Other { .. }
            | Self::Declined
            | Self::Output { .. } => Exit::Failure,
            Self::Request { .. } => Exit::Usage,
            Self::TooLate { .. } => Exit::Progressing,
            Self::NotInstalled
            | Self::NotConfigured
            | Self::ConfiguredElsewhere { .. }
            | Self::InstalledElsewhere { .. } => Exit::Absent,
            Self::Interrupted | Self::Stopped => Exit::Interrupted,
            Self::Verdict { exit } => *exit,
        }
    }

    /// Whether vdoctl prints no error message.
    pub(crate) fn is_silent(&self) -> bool {
        matches!(self, Self::PipeClosed | Self::Verdict { .. })
    }

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
            Self::Images { source, .. } => source.help(),
            Self::NotInstalled => Some("vdoctl deploy installs it".into()),
            Self::NotConfigured => Some("vdoctl configure configures it".into()),
            Self::InstalledElsewhere { namespace, .. } => Some(format!(
                "use --namespace {namespace}, or omit the flag if that is the default"
            )),
            Self::ConfiguredElsewhere { namespace, name } => Some(format!(
                "if it is yours: vdoctl move --from {namespace} --name {name}; to write a new one: vdoctl configure"
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

fn contexts(wanted: &str, known: &[String]) -> String {
    match crate::text::nearest(wanted, known.iter().map(String::as_str)) {
        Some(near) => {
            format!("did you mean {near}? kubectl config get-contexts lists all contexts")
        }
        None if known.is_empty() => "the kubeconfig has no contexts: is it the right file?".into(),
        None => format!("the kubeconfig has the contexts {}", known.join(", ")),
    }
}

pub(crate) fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403)
}

impl Failure {
    /// Whether the API server did not answer, or answered as it does while it restarts.
    pub(crate) fn is_temporary(&self) -> bool {
        let Self::Api { source, .. } = self else { return false };
        match source.as_ref() {
            // Before it has read all roles, it denies every request with the roles that it does not find.
            kube::Error::Api(status) if status.code == 403 => status.message.contains("RBAC:"),
            kube::Error::Api(status) => status.code == 429 || status.code >= 500,
            kube::Error::HyperError(_) | kube::Error::Service(_) => true,
            _ => false,
        }
    }
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

/// Adds the failed action to an error of the API server.
pub(crate) trait Doing<T> {
    /// For example "listing nodes".
    fn doing(self, what: &str) -> Outcome<T>;
}

impl<T> Doing<T> for Result<T, kube::Error> {
    fn doing(self, what: &str) -> Outcome<T> {
        self.map_err(|source| Failure::Api { doing: what.to_owned(), source: Box::new(source) })
    }
}

pub(crate) fn refuse<T>(text: impl Into<String>, help: impl Into<String>) -> Outcome<T> {
    RefusedSnafu { text, help }.fail()
}

pub(crate) fn request<T>(text: impl Into<String>, help: impl Into<String>) -> Outcome<T> {
    RequestSnafu { text, help }.fail()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_faults_of_the_api_server_are_temporary() {
        let answer = |code: u16| {
            let status: kube::core::Status =
                serde_json::from_value(serde_json::json!({"code": code})).unwrap();
            let source = Box::new(kube::Error::Api(Box::new(status)));
            Failure::Api { doing: "reading the operator".into(), source }
        };
        for code in [429, 500, 503] {
            assert!(answer(code).is_temporary(), "{code}");
        }
        for code in [401, 403, 404] {
            assert!(!answer(code).is_temporary(), "{code}");
        }
        let failed = |source| Failure::Api { doing: String::new(), source: Box::new(source) };
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        assert!(failed(kube::Error::Service(refused.into())).is_temporary());
        assert!(!failed(kube::Error::TlsRequired).is_temporary());
    }

    fn kinds() -> Vec<Failure> {
        let (text, help) = (|| "text".to_owned(), String::new);
        let api = || Box::new(kube::Error::LinesCodecMaxLineLengthExceeded);
        let io = || io::Error::other("no");
        let unavailable = vsphere::Error::ShutDown { address: text() };
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
            Failure::Vcenter { address: text(), source: Box::new(unavailable) },
            Failure::Images {
                doing: "importing",
                source: Box::new("".parse::<oci::Digest>().unwrap_err()),
            },
            Failure::Refused { text: text(), help: help() },
            Failure::Other { text: text(), source: io().into() },
            Failure::Declined,
            Failure::Output { source: io() },
            Failure::Request { text: text(), help: help() },
            Failure::TooLate { what: text(), seconds: 1, help: help() },
            Failure::NotInstalled,
            Failure::NotConfigured,
            Failure::ConfiguredElsewhere { namespace: text(), name: text() },
            Failure::InstalledElsewhere { asked: text(), namespace: text() },
            Failure::Interrupted,
            Failure::Stopped,
            Failure::Verdict { exit: Exit::Degraded },
        ]
    }

    #[test]
    fn the_exit_code_of_every_failure_matches_the_table() {
        let (_, table) = crate::exit::TABLE.split_once("Exit codes:\n").unwrap_or_default();
        let mut kinds_seen = Vec::new();
        for failure in kinds() {
            let code = (failure.exit() as u8).to_string();
            let line = table.lines().find(|line| line.split_whitespace().next() == Some(&code));
            let line =
                line.unwrap_or_default().trim_start_matches(|c: char| c == ' ' || c.is_numeric());
            let words = match failure {
                Failure::PipeClosed => "success",
                Failure::Declined => "you declined",
                Failure::Request { .. } => "invalid command line",
                Failure::Verdict { .. } => "found a problem",
                Failure::TooLate { .. } => "timeout expired",
                Failure::NotInstalled | Failure::InstalledElsewhere { .. } => "not installed",
                Failure::NotConfigured | Failure::ConfiguredElsewhere { .. } => "not configured",
                Failure::Interrupted | Failure::Stopped => "interrupted",
                _ => "the command failed",
            };
            assert!(line.contains(words), "{failure:?} ends with {code}: {line}");
            kinds_seen.push(std::mem::discriminant(&failure));
        }
        kinds_seen.dedup();
        assert_eq!(kinds_seen.len(), kinds().len(), "one of each");
    }
}
