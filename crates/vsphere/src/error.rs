//! Errors, in messages that an administrator can act on.

use std::sync::Arc;
use std::time::Duration;

use snafu::Snafu;

use crate::moref::MoRef;
use crate::soap::{Fault, FaultKind};
use crate::tls::{CertificateRefused, Refusal};
use crate::xml::XmlError;

/// Why a call or a connection to a vCenter failed.
///
/// `Display` says what failed and how to fix it. The source chain says why, without repeating it.
#[derive(Debug, Clone, Snafu)]
#[snafu(visibility(pub(crate)))]
pub enum Error {
    /// The address is invalid.
    #[snafu(display(
        "\"{given}\" is not a valid vCenter address: {why}; use a host name or IP address, with a port if it is not 443"
    ))]
    BadAddress { given: String, why: &'static str },

    /// A CA bundle or thumbprint is invalid, or TLS setup failed.
    #[snafu(display("the trust settings for {address} are invalid: {why}"))]
    BadTrust { address: String, why: String },

    /// The host name does not resolve.
    #[snafu(display(
        "the name of {address} cannot be resolved; check the name and the DNS servers of this host"
    ))]
    Unresolvable { address: String, source: Arc<reqwest::Error> },

    /// No connection to this address is possible.
    #[snafu(display(
        "nothing answers at {address}; check address and port, and that no firewall blocks the connection"
    ))]
    Unreachable { address: String, source: Arc<reqwest::Error> },

    /// The proxy did not open the connection. vCenter never received the call.
    #[snafu(display("the proxy for {address} {refusal}"))]
    Proxy { address: String, refusal: ProxyRefusal, source: Arc<reqwest::Error> },

    /// The server does not speak TLS.
    #[snafu(display("{address} does not speak TLS; vCenter's HTTPS port is usually 443"))]
    NotTls { address: String, source: Arc<reqwest::Error> },

    /// The vCenter's certificate is not trusted.
    #[snafu(display("the certificate of {address} is not accepted: {refused}"))]
    Certificate {
        address: String,
        /// The reason, with the thumbprint of the certificate.
        refused: CertificateRefused,
    },

    /// The server is not a vCenter.
    #[snafu(display(
        "{address} is not a vCenter: {what}; check the address, and that no proxy or load balancer answers in its place"
    ))]
    NotVcenter { address: String, what: String },

    /// The server is an ESXi host.
    #[snafu(display(
        "{address} is the ESXi host {product}, not a vCenter; use the address of the vCenter that manages it"
    ))]
    Esxi { address: String, product: String },

    /// This client does not support such an old vCenter.
    #[snafu(display("{address} runs vSphere API {found}, older than {needed}; upgrade vCenter"))]
    TooOld { address: String, found: String, needed: &'static str },

    /// A different vCenter answers at this address: it was reinstalled, or the name points
    /// elsewhere. Its answers are not about the objects known so far.
    #[snafu(display(
        "{address} is now a different vCenter (instance {found}, before: {expected}) and received no password; check where the name points or, if you replaced the vCenter on purpose, restart this program"
    ))]
    OtherVcenter {
        address: String,
        /// The instance uuid of the first vCenter at this address.
        expected: String,
        /// The instance uuid of the vCenter that answers now.
        found: String,
    },

    /// vCenter, or a proxy in front of it, reports that the service is unavailable.
    #[snafu(display(
        "{address} is unavailable (HTTP {status}); wait if it is starting, otherwise check the state of the vCenter services"
    ))]
    Unavailable {
        address: String,
        status: u16,
        /// The `Retry-After` of the reply.
        retry_after: Option<Duration>,
    },

    /// vCenter did not reply in time.
    #[snafu(display("{address} did not answer {method} within {after:?}"))]
    Timeout {
        address: String,
        method: String,
        /// The time waited.
        after: Duration,
    },

    /// The connection failed during the call.
    #[snafu(display("the connection to {address} broke during {method}"))]
    Dropped { address: String, method: String, source: Arc<reqwest::Error> },

    /// The reply exceeds the size limit.
    #[snafu(display(
        "the reply of {address} to {method} is larger than the limit of {limit} bytes"
    ))]
    TooLarge { address: String, method: String, limit: usize },

    /// The reply is not valid.
    #[snafu(display("the reply of {address} to {method} cannot be read"))]
    Unreadable { address: String, method: String, source: XmlError },

    /// vCenter returned a fault.
    #[snafu(display("{address} refused {method}"))]
    Fault {
        address: String,
        method: String,
        #[snafu(source(from(Fault, Box::new)))]
        source: Box<Fault>,
    },

    /// A REST call returned an error status.
    #[snafu(display("{address} refused {method} (HTTP {status}): {message}"))]
    Rest { address: String, method: String, status: u16, message: String },

    /// vCenter rejected the credentials. The client does not try them again by itself.
    #[snafu(display("{address} does not let {user} log in: {reason}"))]
    LoginRefused { address: String, user: String, reason: LoginRefusal },

    /// The client was shut down.
    #[snafu(display("the connection to {address} was closed by this program"))]
    ShutDown { address: String },

    /// A requested datacenter does not exist, or the user cannot see it.
    #[snafu(display("{address} has no datacenter {wanted}; this user sees {}", list(existing)))]
    NoSuchDatacenter {
        address: String,
        wanted: String,
        /// The datacenters that the user sees.
        existing: Vec<String>,
    },

    /// The task ended with a fault.
    #[snafu(display("the task {method} on {address} failed"))]
    TaskFailed {
        address: String,
        method: String,
        #[snafu(source(from(Fault, Box::new)))]
        source: Box<Fault>,
    },

    /// The task did not end in time. It continues in vCenter.
    #[snafu(display(
        "the task {method} ({task}) on {address} still runs after {after:?}, at {progress}%; check it in the vCenter task list"
    ))]
    TaskUnfinished {
        address: String,
        method: String,
        task: MoRef,
        /// The time waited.
        after: Duration,
        /// The percentage that vCenter last reported.
        progress: u8,
    },

    /// vCenter no longer knows the task. Only the object itself shows whether the task succeeded.
    #[snafu(display(
        "{address} no longer knows the task {method} ({task}); check on the object whether it succeeded"
    ))]
    TaskLost { address: String, method: String, task: MoRef },

    /// This vCenter is too old for the operation.
    #[snafu(display("{address} cannot {what}: this needs vSphere {needed}, but it runs {found}"))]
    Unsupported { address: String, what: &'static str, needed: &'static str, found: String },
}

/// Why a proxy did not open the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProxyRefusal {
    /// The proxy requires a user and password (HTTP 407).
    Authentication,
    /// The proxy does not allow this address.
    Forbidden,
    /// The proxy does not answer, or is not a proxy.
    Unreachable,
}

impl std::fmt::Display for ProxyRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Authentication => {
                "requires a user and a password; set them in HTTPS_PROXY (http://user:password@proxy:port), or list the vCenter in NO_PROXY to bypass the proxy"
            }
            Self::Forbidden => {
                "does not allow the connection; allow the address and port in the proxy, or list the vCenter in NO_PROXY to bypass it"
            }
            Self::Unreachable => {
                "does not answer; check HTTPS_PROXY, or list the vCenter in NO_PROXY to bypass the proxy"
            }
        })
    }
}

/// Why a login failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LoginRefusal {
    /// The user name or password is wrong. vCenter gives the same answer for a locked account.
    Credentials,
    /// vCenter reports that the account is locked.
    Locked,
    /// vCenter reports that the password has expired.
    PasswordExpired,
    /// The user has no role on any object and so lacks the permission to log in.
    NoPermission,
    /// The user name or password is empty. The client sent nothing.
    Missing,
    /// The user name or password contains a line break, as text files often do. The client sent
    /// nothing.
    LineBreak,
}

impl std::fmt::Display for LoginRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Credentials => "the user name or password is wrong, or the account is locked",
            Self::Locked => {
                "the account is locked; unlock it in vCenter, or wait until the lockout ends"
            }
            Self::PasswordExpired => {
                "the password has expired; set a new one in vCenter, then here"
            }
            Self::Missing => "the user name or password is empty",
            Self::LineBreak => {
                "the user name or password contains a line break; remove it from the stored value"
            }
            Self::NoPermission => {
                "the user has no role on any object; grant at least Read-only on one"
            }
        })
    }
}

impl Error {
    /// The vCenter fault behind the error, if any.
    pub fn fault(&self) -> Option<&Fault> {
        match self {
            Self::Fault { source, .. } | Self::TaskFailed { source, .. } => Some(source),
            _ => None,
        }
    }

    /// Whether the session has ended. vCenter did not execute the call.
    pub(crate) fn is_not_authenticated(&self) -> bool {
        match self {
            Self::Rest { status, .. } => *status == 401,
            _ => matches!(self.fault().map(|f| &f.kind), Some(FaultKind::NotAuthenticated)),
        }
    }

    /// Whether the same call may succeed later without intervention.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. }
                | Self::Unresolvable { .. }
                | Self::Proxy { refusal: ProxyRefusal::Unreachable, .. }
                | Self::Unavailable { .. }
                | Self::Timeout { .. }
                | Self::Dropped { .. }
        ) || matches!(self, Self::Unreadable { source, .. } if source.is_incomplete())
    }

    /// Whether vCenter certainly never received the call, so that even a change can be retried.
    pub fn never_reached(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. }
                | Self::Unresolvable { .. }
                | Self::Proxy { .. }
                | Self::Certificate { .. }
        )
    }

    /// The `Retry-After` that vCenter, or a proxy in front of it, sent.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Unavailable { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Whether the client sent nothing, because no login with these credentials can succeed.
    pub fn is_unsent_login(&self) -> bool {
        use LoginRefusal::{LineBreak, Missing};
        matches!(self, Self::LoginRefused { reason: Missing | LineBreak, .. })
    }

    /// Whether the client sent a password and received no answer.
    pub fn is_unanswered_login(&self) -> bool {
        match self {
            Self::Timeout { method, .. }
            | Self::Dropped { method, .. }
            | Self::TooLarge { method, .. }
            | Self::Unreadable { method, .. } => method == "Login" || method.starts_with("POST "),
            _ => false,
        }
    }

    /// A short name of the failure, for metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::BadAddress { .. } => "bad_address",
            Self::BadTrust { .. } => "bad_trust",
            Self::Unresolvable { .. } => "unresolvable",
            Self::Unreachable { .. } => "unreachable",
            Self::Proxy { .. } => "proxy",
            Self::NotTls { .. } => "not_tls",
            Self::Certificate { refused, .. } => match refused.reason {
                Refusal::Thumbprint { .. } => "thumbprint",
                Refusal::Expired => "certificate_expired",
                Refusal::NotYetValid => "certificate_not_yet_valid",
                Refusal::Name { .. } => "certificate_name",
                Refusal::Untrusted => "certificate_untrusted",
                Refusal::Other(_) => "certificate",
            },
            Self::NotVcenter { .. } => "not_vcenter",
            Self::Esxi { .. } => "esxi",
            Self::TooOld { .. } => "too_old",
            Self::OtherVcenter { .. } => "other_vcenter",
            Self::Unavailable { .. } => "unavailable",
            Self::Timeout { .. } => "timeout",
            Self::Dropped { .. } => "dropped",
            Self::TooLarge { .. } => "too_large",
            Self::Unreadable { .. } => "unreadable",
            Self::Fault { .. } => "fault",
            Self::Rest { .. } => "rest",
            Self::LoginRefused { .. } => "login_refused",
            Self::ShutDown { .. } => "shut_down",
            Self::NoSuchDatacenter { .. } => "no_such_datacenter",
            Self::TaskFailed { .. } => "task_failed",
            Self::TaskUnfinished { .. } => "task_unfinished",
            Self::TaskLost { .. } => "task_lost",
            Self::Unsupported { .. } => "unsupported",
        }
    }

    /// The error and its sources in one line.
    pub fn error_chain(&self) -> String {
        let mut chain = self.to_string();
        let mut next = std::error::Error::source(self);
        while let Some(error) = next {
            chain.push_str(": ");
            chain.push_str(&error.to_string());
            next = error.source();
        }
        chain
    }
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
