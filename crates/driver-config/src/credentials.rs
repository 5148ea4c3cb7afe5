//! Reads the credentials of vCenters from all common Secret formats.
//!
//! | format | keys | who writes it |
//! |---|---|---|
//! | one vCenter | `username`, `password` | VDO, `kubernetes.io/basic-auth` |
//! | by address | `<server>.username`, `<server>.password` | the CPI, OpenShift, Rancher's CPI chart |
//! | numbered | `server_<id>`, `username_<id>`, `password_<id>` | the CPI, where an address is IPv6 |
//! | configuration | `csi-vsphere.conf`, `cloud.conf`, `vsphere.conf` | the CSI driver, OpenShift, Rancher's CSI chart |
//! | Rancher | `vmwarevspherecredentialConfig-…` | Rancher cloud credentials |
//!
//! One Secret can use several formats; each credential records its key.

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
    /// The vCenter; `None` means any vCenter that the Secret is used for.
    pub server: Option<String>,
    pub username: String,
    pub password: SecretText,
    pub format: Format,
    /// The key of the password.
    pub key: String,
    /// True if a line break at the end of user or password was removed, as `echo` writes it.
    pub trimmed: bool,
}

/// The credentials in a Secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// One per vCenter and format, ordered by key.
    pub all: Vec<Credential>,
    /// Keys of no known format. The CPI refuses a whole Secret because of one such key.
    pub unknown: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Snafu)]
#[snafu(visibility(pub(crate)))]
pub enum CredentialsError {
    #[snafu(display(
        "the Secret contains no vCenter credentials: add the keys `username` and `password`"
    ))]
    Nothing,
    /// One half of a pair is missing.
    #[snafu(display("the Secret has `{present}` but no `{missing}`: add the key `{missing}`"))]
    Half { present: String, missing: String },
    #[snafu(display("the key `{key}` of the Secret is empty: fill it in"))]
    EmptyValue { key: String },
    #[snafu(display(
        "the key `{key}` of the Secret is not UTF-8 text: store the text itself (base64 only once)"
    ))]
    NotText { key: String },
    #[snafu(display(
        "the key `{key}` of the Secret has a line break in the middle: it must be a single line"
    ))]
    LineBreak { key: String },
    #[snafu(display("the key `{key}` of the Secret is not a driver configuration"))]
    Configuration { key: String, source: ReadError },
    #[snafu(display(
        "the Secret has credentials for {}, none for {server}: add `{server}.username` and \
         `{server}.password`, or use a Secret with just `username` and `password`",
        known.join(", ")
    ))]
    OtherServer { server: String, known: Vec<String> },
    /// The session-manager format has no password.
    #[snafu(display(
        "the Secret specifies a session manager (`{key}`) instead of a password: add user and password, \
         which VDO needs to check the vCenter"
    ))]
    SessionManager { key: String },
}

impl Credentials {
    /// Reads all formats.
    ///
    /// Fails if there are no credentials, or if one is incomplete, even next to a complete one: the CPI would
    /// refuse such a Secret as well.
    pub fn read(data: &SecretData) -> Result<Self, CredentialsError> {
        reader::read(data)
    }

    /// Finds the credential for a vCenter address: host, `host:port` or `[v6]:port`.
    ///
    /// An entry for exactly this address takes precedence over one that differs in case or port, and both over an
    /// entry without an address.
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
