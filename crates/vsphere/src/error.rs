//! Everything that can go wrong, in words an administrator can act on.

use std::sync::Arc;
use std::time::Duration;

use snafu::Snafu;

use crate::moref::MoRef;
use crate::soap::{Fault, FaultKind};
use crate::tls::{CertificateRefused, Refusal};
use crate::xml::XmlError;

/// Why a call, or the whole conversation with a vCenter, failed.
///
/// `Display` says what failed and what to do; the source chain says why, without repeating it.
#[derive(Debug, Clone, Snafu)]
#[snafu(visibility(pub(crate)))]
pub enum Error {
    /// The address cannot be understood.
    #[snafu(display(
        "\"{given}\" is not the address of a vCenter: {why}; give a host name or IP address, with a port if it is not 443"
    ))]
    BadAddress {
        /// What was given.
        given: String,
        /// What is wrong with it.
        why: &'static str,
    },

    /// A CA bundle or thumbprint cannot be understood, or TLS cannot be set up.
    #[snafu(display("the trust settings for {address} cannot be used: {why}"))]
    BadTrust {
        /// The vCenter.
        address: String,
        /// What is wrong with them.
        why: String,
    },

    /// The host name is not known.
    #[snafu(display(
        "the name of {address} cannot be resolved; check the name and the DNS servers of this machine"
    ))]
    Unresolvable {
        /// The vCenter.
        address: String,
        /// What the resolver said.
        source: Arc<reqwest::Error>,
    },

    /// Nobody listens there.
    #[snafu(display(
        "nothing answers at {address}; check address and port, and that no firewall stands between"
    ))]
    Unreachable {
        /// The vCenter.
        address: String,
        /// What the network said.
        source: Arc<reqwest::Error>,
    },

    /// The proxy between us and the vCenter did not let us through. vCenter never saw the call.
    #[snafu(display("the proxy on the way to {address} {refusal}"))]
    Proxy {
        /// The vCenter.
        address: String,
        /// What it said.
        refusal: ProxyRefusal,
        /// What the network said.
        source: Arc<reqwest::Error>,
    },

    /// Somebody listens, but does not speak TLS.
    #[snafu(display("{address} does not speak TLS; vCenter's HTTPS port is usually 443"))]
    NotTls {
        /// The vCenter.
        address: String,
        /// What the TLS library said.
        source: Arc<reqwest::Error>,
    },

    /// The certificate is not accepted.
    #[snafu(display("the certificate of {address} is not accepted: {refused}"))]
    Certificate {
        /// The vCenter.
        address: String,
        /// Why not, with the thumbprint that was seen.
        refused: CertificateRefused,
    },

    /// Something answers that is not a vCenter.
    #[snafu(display(
        "{address} is not a vCenter: {what}; check the address, and that no proxy or load balancer answers in its place"
    ))]
    NotVcenter {
        /// The address.
        address: String,
        /// What was found there.
        what: String,
    },

    /// An ESXi host answers.
    #[snafu(display(
        "{address} is the ESXi host {product}, not a vCenter; give the address of the vCenter that manages it"
    ))]
    Esxi {
        /// The address.
        address: String,
        /// The product's full name.
        product: String,
    },

    /// vCenter is older than this client can serve.
    #[snafu(display("{address} runs vSphere API {found}, older than {needed}; upgrade vCenter"))]
    TooOld {
        /// The vCenter.
        address: String,
        /// Its version.
        found: String,
        /// The oldest supported.
        needed: &'static str,
    },

    /// Another vCenter answers than the one this client first met there: reinstalled, or the name
    /// leads elsewhere. Nothing it says is about the objects known so far.
    #[snafu(display(
        "{address} is now another vCenter (instance {found}) than the one first met there (instance {expected}); no password was sent to it: check where the name leads, or, if the vCenter was replaced on purpose, restart this program"
    ))]
    OtherVcenter {
        /// The address.
        address: String,
        /// The instance uuid of the vCenter first met.
        expected: String,
        /// The instance uuid of the one that answers now.
        found: String,
    },

    /// vCenter, or the proxy in front of it, says that the service is not there at present.
    #[snafu(display(
        "{address} is not available (HTTP {status}); it may be starting: this passes by itself, or look at the vCenter service state"
    ))]
    Unavailable {
        /// The vCenter.
        address: String,
        /// The HTTP status.
        status: u16,
        /// How long it asks to be left alone.
        retry_after: Option<Duration>,
    },

    /// No reply in time.
    #[snafu(display("{address} did not answer {method} within {after:?}"))]
    Timeout {
        /// The vCenter.
        address: String,
        /// The call.
        method: String,
        /// How long was waited.
        after: Duration,
    },

    /// The connection broke during the call.
    #[snafu(display("the connection to {address} broke during {method}"))]
    Dropped {
        /// The vCenter.
        address: String,
        /// The call.
        method: String,
        /// What the network said.
        source: Arc<reqwest::Error>,
    },

    /// The reply is larger than anything vCenter sends.
    #[snafu(display(
        "the reply of {address} to {method} is larger than {limit} bytes and was not read"
    ))]
    TooLarge {
        /// The vCenter.
        address: String,
        /// The call.
        method: String,
        /// The limit.
        limit: usize,
    },

    /// The reply cannot be read.
    #[snafu(display("the reply of {address} to {method} cannot be read"))]
    Unreadable {
        /// The vCenter.
        address: String,
        /// The call.
        method: String,
        /// What is wrong with it.
        source: XmlError,
    },

    /// vCenter refused the call.
    #[snafu(display("{address} refused {method}"))]
    Fault {
        /// The vCenter.
        address: String,
        /// The call.
        method: String,
        /// What it said.
        #[snafu(source(from(Fault, Box::new)))]
        source: Box<Fault>,
    },

    /// A REST call was refused.
    #[snafu(display("{address} refused {method} (HTTP {status}): {message}"))]
    Rest {
        /// The vCenter.
        address: String,
        /// The call.
        method: String,
        /// The HTTP status.
        status: u16,
        /// What it said.
        message: String,
    },

    /// The user name or password is not accepted. No further attempt is made with them.
    #[snafu(display("{address} does not let {user} log in: {reason}"))]
    LoginRefused {
        /// The vCenter.
        address: String,
        /// The user.
        user: String,
        /// Why.
        reason: LoginRefusal,
    },

    /// The client was shut down.
    #[snafu(display("the connection to {address} was closed by this program"))]
    ShutDown {
        /// The vCenter.
        address: String,
    },

    /// A datacenter that was named does not exist, or is not visible.
    #[snafu(display("{address} has no datacenter {wanted}; this user sees {}", list(existing)))]
    NoSuchDatacenter {
        /// The vCenter.
        address: String,
        /// The one asked for.
        wanted: String,
        /// Those that are there.
        existing: Vec<String>,
    },

    /// A task ended badly.
    #[snafu(display("the task {method} on {address} failed"))]
    TaskFailed {
        /// The vCenter.
        address: String,
        /// What was started.
        method: String,
        /// Why it failed.
        #[snafu(source(from(Fault, Box::new)))]
        source: Box<Fault>,
    },

    /// A task does not end. It goes on in vCenter.
    #[snafu(display(
        "the task {method} ({task}) on {address} has not ended after {after:?} and goes on there, at {progress}%; look at it in the vCenter task list"
    ))]
    TaskUnfinished {
        /// The vCenter.
        address: String,
        /// What was started.
        method: String,
        /// The task.
        task: MoRef,
        /// How long was waited.
        after: Duration,
        /// The progress vCenter last reported.
        progress: u8,
    },

    /// vCenter no longer knows a task: whether it succeeded must be found out by looking at the
    /// object.
    #[snafu(display(
        "{address} no longer knows the task {method} ({task}); whether it was done can only be seen on the object itself"
    ))]
    TaskLost {
        /// The vCenter.
        address: String,
        /// What was started.
        method: String,
        /// The task.
        task: MoRef,
    },

    /// The vCenter cannot do this.
    #[snafu(display("{address} cannot {what}: that needs vSphere {needed}, and it runs {found}"))]
    Unsupported {
        /// The vCenter.
        address: String,
        /// What was wanted.
        what: &'static str,
        /// The version that can.
        needed: &'static str,
        /// Its version.
        found: String,
    },
}

/// Why a proxy did not let us through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProxyRefusal {
    /// It wants a user and a password (HTTP 407).
    Authentication,
    /// It does not lead to this address.
    Forbidden,
    /// It does not answer, or not as a proxy.
    Unreachable,
}

impl std::fmt::Display for ProxyRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Authentication => {
                "wants a user and a password; put them into HTTPS_PROXY (http://user:password@proxy:port), or name the vCenter in NO_PROXY to go without the proxy"
            }
            Self::Forbidden => {
                "refuses to lead there; allow the address and port in the proxy, or name the vCenter in NO_PROXY to go without it"
            }
            Self::Unreachable => {
                "does not answer; check HTTPS_PROXY, or name the vCenter in NO_PROXY to go without the proxy"
            }
        })
    }
}

/// Why a login was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LoginRefusal {
    /// User name or password are wrong. vCenter gives the same answer for an account it has locked.
    Credentials,
    /// vCenter says that the account is locked.
    Locked,
    /// vCenter says that the password has expired.
    PasswordExpired,
    /// The user is known but may not log in: no role on any object.
    NoPermission,
    /// There is no user name or no password. Nothing was sent.
    Missing,
    /// User name or password contain a line break, as a file often ends with. Nothing was sent.
    LineBreak,
}

impl std::fmt::Display for LoginRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Credentials => {
                "user name or password are wrong, or the account is locked; it was tried once and is not tried again until they change"
            }
            Self::Locked => "the account is locked; unlock it in vCenter, then set the credentials again",
            Self::PasswordExpired => "the password has expired; set a new one in vCenter, then here",
            Self::Missing => "user name or password are empty",
            Self::LineBreak => "user name or password contain a line break; remove it where they are stored",
            Self::NoPermission => "the user has no role on any object; grant at least Read-only on one",
        })
    }
}

impl Error {
    /// The fault behind the error, where vCenter gave one.
    pub fn fault(&self) -> Option<&Fault> {
        match self {
            Self::Fault { source, .. } | Self::TaskFailed { source, .. } => Some(source),
            _ => None,
        }
    }

    /// Whether the session was lost. A call that failed so was not carried out.
    pub(crate) fn is_not_authenticated(&self) -> bool {
        match self {
            Self::Rest { status, .. } => *status == 401,
            _ => matches!(self.fault().map(|f| &f.kind), Some(FaultKind::NotAuthenticated)),
        }
    }

    /// Whether the same call may succeed later without anybody doing anything.
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

    /// Whether the failure proves that vCenter never saw the call, so that even a change may be
    /// tried again.
    pub fn never_reached(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. }
                | Self::Unresolvable { .. }
                | Self::Proxy { .. }
                | Self::Certificate { .. }
        )
    }

    /// How long vCenter, or what stands in front of it, asks to be left alone.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Unavailable { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Whether a password was sent and vCenter's answer to it did not arrive.
    pub(crate) fn is_login_in_doubt(&self) -> bool {
        match self {
            Self::Timeout { method, .. }
            | Self::Dropped { method, .. }
            | Self::TooLarge { method, .. }
            | Self::Unreadable { method, .. } => method == "Login" || method.starts_with("POST "),
            _ => false,
        }
    }

    /// A short name of the kind of failure, for metrics.
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

    /// The whole story in one line: this error and everything behind it.
    pub fn error_chain(&self) -> String {
        let mut error_chain = self.to_string();
        let mut next = std::error::Error::source(self);
        while let Some(error) = next {
            error_chain.push_str(": ");
            error_chain.push_str(&error.to_string());
            next = error.source();
        }
        error_chain
    }
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
