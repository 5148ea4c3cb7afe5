//! Remembers logins that vCenter refused because of their credential. [`vsphere::login_pace`] decides when VDO repeats one:
//! without any attempt, the drivers would keep the old password.

use std::time::Duration;

use jiff::Timestamp;
use vsphere::{Error, LoginRefusal, login_pace::Account};

use super::ConnectionInputs;

/// How long VDO waits between the announcement of an attempt and the attempt. The status records it meanwhile, so that a
/// crash leads to no additional attempt.
pub(super) const ANNOUNCED: Duration = Duration::from_secs(2);

/// The refusals that VDO remembers across restarts. Of the others, vCenter knew the password, or the credential was never
/// sent.
const REMEMBERED: [LoginRefusal; 3] =
    [LoginRefusal::Credentials, LoginRefusal::Locked, LoginRefusal::PasswordExpired];

/// A login that vCenter refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    pub reason: LoginRefusal,
    /// The time of the last attempt.
    pub at: Timestamp,
}

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

/// The error chain of a failed connection, with the time of the next attempt.
pub(super) fn error_chain(error: &Error) -> String {
    match error {
        Error::LoginRefused { address, user, reason } if remembered(error).is_some() => format!(
            "{address} does not let {user} log in: {}; VDO tries again within 30 minutes, or at once when the Secret \
             changes",
            text(*reason)
        ),
        _ => error.error_chain(),
    }
}

/// The reason of a refusal, for findings.
pub(crate) fn text(reason: LoginRefusal) -> String {
    match reason {
        LoginRefusal::Credentials => {
            "the user name or password is wrong, or the account is locked".into()
        }
        LoginRefusal::Locked => "the account is locked".into(),
        LoginRefusal::PasswordExpired => "the password has expired".into(),
        _ => reason.to_string(),
    }
}

/// The account that a connection logs in with.
pub(super) fn account(inputs: &ConnectionInputs) -> Account {
    Account::new(&inputs.spec.vc_ip.0, &inputs.credential.username)
}
