//! User and password of each vCenter, from any Secret format people already have.
//!
//! | format | keys | who writes it |
//! |---|---|---|
//! | one vCenter | `username`, `password` | VDO, `kubernetes.io/basic-auth` |
//! | by address | `<server>.username`, `<server>.password` | the CPI, OpenShift, Rancher's CPI chart |
//! | numbered | `server_<id>`, `username_<id>`, `password_<id>` | the CPI, where an address is IPv6 |
//! | configuration | `csi-vsphere.conf`, `cloud.conf`, `vsphere.conf` | the CSI driver, OpenShift, Rancher's CSI chart |
//! | Rancher | `vmwarevspherecredentialConfig-…` | Rancher cloud credentials |
//!
//! Formats can stand side by side in one Secret; each credential says which key it came from.

mod cpi_secret;
mod reader;
mod replace;

use std::collections::BTreeMap;

use snafu::Snafu;

pub use self::cpi_secret::render as render_cpi_secret;
pub use self::replace::{ReplaceError, Replaced, SecretTexts, replace_password};
use crate::keys::ReadError;
use crate::secret::SecretText;

/// The data of a Secret, decoded from base64.
pub type SecretData = BTreeMap<String, Vec<u8>>;

/// Which of the formats a credential was read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// `username` and `password`.
    BasicAuth,
    /// `<server>.username` and `<server>.password`.
    ByAddress,
    /// `server_<id>`, `username_<id>` and `password_<id>`.
    Numbered,
    /// A driver configuration under a file name.
    Configuration,
    /// Rancher's cloud credential.
    Rancher,
}

/// User and password of one vCenter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credential {
    /// Which vCenter it is for; `None` means whichever the Secret is used for.
    pub server: Option<String>,
    /// The user.
    pub username: String,
    /// The password.
    pub password: SecretText,
    /// The format it was found in.
    pub format: Format,
    /// The key the password was found under.
    pub key: String,
    /// Whether a line break at the end of user or password was cut off, as `echo` leaves it.
    pub trimmed: bool,
}

/// Everything a Secret holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// One per vCenter and format, ordered by key.
    pub all: Vec<Credential>,
    /// Keys that belong to no format. The CPI rejects a whole Secret for one such key.
    pub unknown: Vec<String>,
}

/// Why a Secret gives no credentials.
#[derive(Debug, Clone, PartialEq, Eq, Snafu)]
#[snafu(visibility(pub(crate)))]
pub enum CredentialsError {
    /// No key of any format.
    #[snafu(display(
        "the Secret holds no vCenter credentials: give it the keys `username` and `password`"
    ))]
    Nothing,
    /// One half of a pair.
    #[snafu(display("the Secret has `{present}` but no `{missing}`: add the key `{missing}`"))]
    Half {
        /// The key that is there.
        present: String,
        /// The key that is not.
        missing: String,
    },
    /// A key without content.
    #[snafu(display("the key `{key}` of the Secret is empty: fill it in"))]
    EmptyValue {
        /// The key.
        key: String,
    },
    /// Bytes that are no text.
    #[snafu(display(
        "the key `{key}` of the Secret is not UTF-8 text: store the text itself (base64 only once)"
    ))]
    NotText {
        /// The key.
        key: String,
    },
    /// A line break inside.
    #[snafu(display(
        "the key `{key}` of the Secret has a line break in the middle: it must be a single line"
    ))]
    LineBreak {
        /// The key.
        key: String,
    },
    /// A configuration that cannot be read.
    #[snafu(display("the key `{key}` of the Secret is no driver configuration"))]
    Configuration {
        /// The key.
        key: String,
        /// Why.
        source: ReadError,
    },
    /// Credentials, but for other vCenters.
    #[snafu(display(
        "the Secret has credentials for {}, none for {server}: add `{server}.username` and \
         `{server}.password`, or use a Secret with just `username` and `password`",
        known.join(", ")
    ))]
    OtherServer {
        /// The vCenter asked for.
        server: String,
        /// The vCenters that are there.
        known: Vec<String>,
    },
    /// The session-manager form, which carries no password.
    #[snafu(display(
        "the Secret names a session manager (`{key}`) instead of a password: add user and password, \
         which VDO needs to check the vCenter"
    ))]
    SessionManager {
        /// The key.
        key: String,
    },
}

impl Credentials {
    /// Reads whatever is there.
    ///
    /// Fails if nothing is, or if what is there is incomplete; a Secret with one good and one
    /// broken credential fails too, because the CPI would refuse it as well.
    pub fn read(data: &SecretData) -> Result<Self, CredentialsError> {
        reader::read(data)
    }

    /// The credential for one vCenter address, given as host, `host:port` or `[v6]:port`.
    ///
    /// An entry for exactly this address wins over one that differs in case or port, and any of
    /// them over one for no address in particular.
    pub fn for_server(&self, server: &str) -> Result<&Credential, CredentialsError> {
        let exact = |c: &&Credential| c.server.as_deref() == Some(server);
        let alike = |c: &&Credential| {
            c.server.as_deref().is_some_and(|s| host(s).eq_ignore_ascii_case(host(server)))
        };
        let any = |c: &&Credential| c.server.is_none();
        let find = |wanted: &dyn Fn(&&Credential) -> bool| self.all.iter().find(|c| wanted(c));
        find(&exact).or_else(|| find(&alike)).or_else(|| find(&any)).ok_or_else(|| {
            let known = self.all.iter().filter_map(|c| c.server.clone()).collect();
            CredentialsError::OtherServer { server: server.to_owned(), known }
        })
    }
}

/// The host of `host`, `host:port`, `[v6]`, `[v6]:port` or a bare IPv6 address.
fn host(server: &str) -> &str {
    if let Some(bracketed) = server.strip_prefix('[') {
        return bracketed.split(']').next().unwrap_or(bracketed);
    }
    match server.split_once(':') {
        Some((host, port)) if !port.contains(':') => host,
        _ => server,
    }
}
