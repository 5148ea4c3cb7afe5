//! Remembers logins that vCenter refused because of their credential, and decides when VDO repeats one.
//!
//! Frequent attempts would lock the account. Without any attempt, VDO would not notice that a lockout has ended or that
//! vCenter has the new password by now, and the drivers would keep the old one.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use vsphere::{Error, LoginRefusal};

use super::ConnectionInputs;

/// The longest pause before VDO repeats a refused login; the shortest is 25 minutes. Hardened vCenters count the failures
/// within 15 minutes, so the attempts of VDO at one vCenter alone lock no account.
pub const REPEAT_AFTER: Duration = Duration::from_mins(30);

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

/// The error chain of a failed connection. The texts of `vsphere` suit the drivers, which do not repeat a refused
/// login.
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

/// An account of a vCenter: its address and user name.
type Account = (String, String);

/// The last refused attempt to log in with each account, whichever connection made it.
#[derive(Debug, Default)]
pub(super) struct Attempts(Mutex<BTreeMap<Account, Timestamp>>);

impl Attempts {
    /// Records a refused attempt.
    pub(super) fn note(&self, inputs: &ConnectionInputs, at: Timestamp) {
        let mut attempts = self.lock();
        let last = attempts.entry(account(inputs)).or_insert(at);
        *last = at.max(*last);
    }

    /// Forgets the attempts with an account, because vCenter accepted a login.
    pub(super) fn forget(&self, inputs: &ConnectionInputs) {
        self.lock().remove(&account(inputs));
    }

    /// Waits for the time of the next attempt with an account. No other connection makes one at that time.
    pub(super) async fn turn(&self, inputs: &ConnectionInputs, repeat_after: Duration) {
        let pause = pause(repeat_after);
        while let Err(left) = self.claim(inputs, pause, Timestamp::now()) {
            tokio::time::sleep(left).await;
        }
    }

    /// Claims the next attempt, or returns the time until it is due.
    fn claim(
        &self,
        inputs: &ConnectionInputs,
        pause: Duration,
        now: Timestamp,
    ) -> Result<(), Duration> {
        let mut attempts = self.lock();
        // Without an attempt, vCenter has accepted another connection with this account.
        if let Some(last) = attempts.get_mut(&account(inputs)) {
            // The clock of an earlier leader can have been ahead.
            *last = now.min(*last);
            let since = Duration::try_from(now.duration_since(*last)).unwrap_or_default();
            let left = pause.saturating_sub(since);
            if !left.is_zero() {
                return Err(left);
            }
        }
        attempts.insert(account(inputs), now);
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Account, Timestamp>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A random pause of five sixths of this time or more. Operators that lost the same vCenter account do not all try at the
/// same time.
fn pause(repeat_after: Duration) -> Duration {
    repeat_after / 6 * 5 + super::random(repeat_after / 6)
}

fn account(inputs: &ConnectionInputs) -> Account {
    let user = inputs.credential.username.to_lowercase();
    (inputs.spec.vc_ip.0.to_lowercase(), user)
}

#[cfg(test)]
mod tests {
    use super::{super::tests::inputs, *};

    /// A wrong password for a day. The operator restarts again and again and finds the last attempt in the status, and
    /// three connections use the account.
    #[test]
    fn repeated_logins_are_too_rare_to_lock_an_account_whatever_restarts_and_asks() {
        let account = inputs("vc.example.com", "uid/1");
        let (mut attempts, mut made) = (Attempts::default(), vec![Timestamp::UNIX_EPOCH]);
        attempts.note(&account, made[0]);
        for minute in 0..24 * 60_i64 {
            let now = Timestamp::from_second(60 * minute).unwrap();
            if minute % 7 == 0 {
                attempts = Attempts::default();
                attempts.note(&account, *made.last().unwrap());
            }
            for _ in 0..3 {
                let claimed = attempts.claim(&account, pause(REPEAT_AFTER), now);
                made.extend(claimed.ok().map(|()| now));
            }
        }
        let pauses: Vec<i64> =
            made.windows(2).map(|two| two[1].duration_since(two[0]).as_mins()).collect();
        assert!(pauses.len() >= 40, "VDO goes on: {pauses:?}");
        assert!(pauses.iter().all(|minutes| (25..=31).contains(minutes)), "{pauses:?}");
    }

    #[test]
    fn an_account_that_another_connection_can_use_and_another_account_do_not_wait() {
        let (now, pause) = (Timestamp::UNIX_EPOCH, REPEAT_AFTER);
        let (one, other) = (inputs("a.example.com", "uid/1"), inputs("b.example.com", "uid/1"));
        let attempts = Attempts::default();
        attempts.note(&one, now);
        assert_eq!(attempts.claim(&one, pause, now), Err(pause));
        assert_eq!(attempts.claim(&other, pause, now), Ok(()));
        attempts.forget(&one);
        assert_eq!(attempts.claim(&one, pause, now), Ok(()));
        assert_eq!(attempts.claim(&one, pause, now), Err(pause), "each claim is one attempt");
    }

    #[test]
    fn a_clock_that_was_ahead_does_not_stop_the_attempts() {
        let account = inputs("vc.example.com", "uid/1");
        let at = |hours: u64| Timestamp::UNIX_EPOCH + Duration::from_hours(hours);
        let attempts = Attempts::default();
        attempts.note(&account, at(48));
        assert_eq!(attempts.claim(&account, REPEAT_AFTER, at(1)), Err(REPEAT_AFTER));
        assert_eq!(attempts.claim(&account, REPEAT_AFTER, at(2)), Ok(()));
    }
}
