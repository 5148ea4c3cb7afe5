//! Remembers logins that vCenter refused because of their credential: repeated attempts would lock the
//! account.

use vsphere::{Error, LoginRefusal};

use super::ConnectionInputs;

/// The refusals that VDO remembers. It retries the others: the credential was never sent, or an admin can
/// grant the missing privilege later.
const REMEMBERED: [LoginRefusal; 3] =
    [LoginRefusal::Credentials, LoginRefusal::Locked, LoginRefusal::PasswordExpired];

/// The reason, if an error is such a refusal.
pub(super) fn remembered(error: &Error) -> Option<LoginRefusal> {
    match error {
        Error::LoginRefused { reason, .. } => Some(*reason).filter(|r| REMEMBERED.contains(r)),
        _ => None,
    }
}

/// The refusal with this name in a status.
pub(crate) fn named(text: &str) -> Option<LoginRefusal> {
    REMEMBERED.into_iter().find(|reason| format!("{reason:?}") == text)
}

/// Reconstructs the original error of the login.
pub(super) fn error(inputs: &ConnectionInputs, reason: LoginRefusal) -> Error {
    Error::LoginRefused {
        address: inputs.spec.vc_ip.0.clone(),
        user: inputs.credential.username.clone(),
        reason,
    }
}
