//! Credentials for a vCenter.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use secrecy::{ExposeSecret, SecretString};
use zeroize::Zeroizing;

use crate::error::LoginRefusal;

/// A user and the proof of its identity.
#[derive(Clone)]
pub struct Credentials {
    user: Arc<str>,
    proof: Proof,
}

/// How the user proves its identity. Another kind, such as an SSO token, is another variant. The
/// compiler then demands its SOAP login ([`Credentials::login`]) and its REST header
/// ([`Credentials::authorization`]).
#[derive(Clone)]
enum Proof {
    Password(Arc<SecretString>),
}

/// A SOAP login call.
pub(crate) struct Login<'a> {
    pub(crate) method: &'static str,
    pub(crate) args: Vec<(&'static str, &'a str)>,
}

impl Credentials {
    /// The user name usually includes the domain: `vdo@vsphere.local`.
    pub fn new(user: impl Into<Arc<str>>, password: impl Into<SecretString>) -> Self {
        Self { user: user.into(), proof: Proof::Password(Arc::new(password.into())) }
    }

    pub fn user(&self) -> &str {
        &self.user
    }

    /// Why a login with these credentials cannot succeed. Trying it would only help to lock the
    /// account.
    pub(crate) fn problem(&self) -> Option<LoginRefusal> {
        let has_line_break = |text: &str| text.contains(['\n', '\r']);
        let Proof::Password(password) = &self.proof;
        let password = password.expose_secret();
        if self.user.is_empty() || password.is_empty() {
            Some(LoginRefusal::Missing)
        } else if has_line_break(&self.user) || has_line_break(password) {
            Some(LoginRefusal::LineBreak)
        } else {
            None
        }
    }

    /// The SOAP method to log in with, and its arguments.
    pub(crate) fn login(&self) -> Login<'_> {
        match &self.proof {
            Proof::Password(password) => Login {
                method: "Login",
                args: vec![("userName", &self.user), ("password", password.expose_secret())],
            },
        }
    }

    /// The `Authorization` header for a REST login.
    pub(crate) fn authorization(&self) -> Zeroizing<String> {
        match &self.proof {
            Proof::Password(password) => {
                let pair = Zeroizing::new(format!("{}:{}", self.user, password.expose_secret()));
                let encoded = Zeroizing::new(STANDARD.encode(&*pair));
                Zeroizing::new(format!("Basic {}", &*encoded))
            }
        }
    }
}

impl PartialEq for Proof {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Password(one), Self::Password(other)) => {
                one.expose_secret() == other.expose_secret()
            }
        }
    }
}

impl PartialEq for Credentials {
    fn eq(&self, other: &Self) -> bool {
        self.user == other.user && self.proof == other.proof
    }
}

impl Eq for Credentials {}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { user, proof: Proof::Password(_) } = self;
        f.debug_struct("Credentials").field("user", user).field("password", &"***").finish()
    }
}
