//! User and password.

use std::fmt;
use std::sync::Arc;

use secrecy::{ExposeSecret, SecretString};

use crate::error::LoginRefusal;

/// What a vCenter knows us by. Another way to prove who we are (a token) would be another variant
/// in here; nothing outside this folder would notice.
#[derive(Clone)]
pub struct Credentials {
    user: Arc<str>,
    password: Arc<SecretString>,
}

impl Credentials {
    /// A user, usually with domain (`vdo@vsphere.local`), and password.
    pub fn new(user: impl Into<Arc<str>>, password: impl Into<SecretString>) -> Self {
        Self { user: user.into(), password: Arc::new(password.into()) }
    }

    /// The user.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// What makes a login pointless: the attempt would only count towards locking the account.
    pub(crate) fn flaw(&self) -> Option<LoginRefusal> {
        let has_line_break = |text: &str| text.contains(['\n', '\r']);
        if self.user.is_empty() || self.password().is_empty() {
            Some(LoginRefusal::Missing)
        } else if has_line_break(&self.user) || has_line_break(self.password()) {
            Some(LoginRefusal::LineBreak)
        } else {
            None
        }
    }

    pub(crate) fn password(&self) -> &str {
        self.password.expose_secret()
    }
}

impl PartialEq for Credentials {
    fn eq(&self, other: &Self) -> bool {
        self.user == other.user && self.password() == other.password()
    }
}

impl Eq for Credentials {}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).field("password", &"***").finish()
    }
}
