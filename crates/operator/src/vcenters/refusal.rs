//! Logins that were refused for what was sent: sent again and again, it would lock the account.

use vsphere::{Error, LoginRefusal};

use super::Wanted;

/// Those that are remembered. What was never sent, or may be granted later, may be tried again.
const REMEMBERED: [LoginRefusal; 3] =
    [LoginRefusal::Credentials, LoginRefusal::Locked, LoginRefusal::PasswordExpired];

/// Why, if an error is such a refusal.
pub(super) fn of(error: &Error) -> Option<LoginRefusal> {
    match error {
        Error::LoginRefused { reason, .. } => Some(*reason).filter(|r| REMEMBERED.contains(r)),
        _ => None,
    }
}

/// The one that a status names.
pub(crate) fn named(text: &str) -> Option<LoginRefusal> {
    REMEMBERED.into_iter().find(|reason| format!("{reason:?}") == text)
}

/// The error as it was when it was tried.
pub(super) fn error(wanted: &Wanted, reason: LoginRefusal) -> Error {
    Error::LoginRefused {
        address: wanted.spec.vc_ip.0.clone(),
        user: wanted.credential.username.clone(),
        reason,
    }
}
