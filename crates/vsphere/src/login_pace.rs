//! When a program repeats a login that vCenter refused.
//!
//! Frequent attempts would lock the account. Without any attempt, a program would not notice that a
//! lockout has ended or that vCenter has the new password by now.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use rand::RngExt as _;
use tokio::sync::watch;

use crate::credentials::Credentials;
use crate::error::{Error, LoginRefusal};
use crate::transport::address::Address;

/// The longest pause before a program repeats a refused login; the shortest is 25 minutes. Hardened
/// vCenters count the failures within 15 minutes, so the attempts of one program at one vCenter
/// alone lock no account.
pub const REPEAT_AFTER: Duration = Duration::from_mins(30);

/// How many refused credentials of one account are known at the same time.
const KNOWN_PER_ACCOUNT: usize = 8;

/// An account of a vCenter: its address and user name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Account {
    address: String,
    user: String,
}

impl Account {
    /// The address in any form that [`Address`] reads. Upper and lower case are equal.
    pub fn new(address: &str, user: &str) -> Self {
        let parsed = address.parse::<Address>().map(|address| address.to_string());
        let address = parsed.unwrap_or_else(|_| address.to_owned());
        Self { address: address.to_lowercase(), user: user.to_lowercase() }
    }
}

/// An attempt to log in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    at: Timestamp,
    /// The random part of the pause after it, from 0 to 1. Programs that lost the same account do
    /// not all try at the same time.
    jitter: f64,
}

impl Attempt {
    fn new(at: Timestamp) -> Self {
        Self { at, jitter: rand::rng().random_range(0.0..1.0) }
    }

    /// The time until the next attempt: five sixths of `repeat_after` or more. `None` if it is due.
    fn left(&mut self, repeat_after: Duration, now: Timestamp) -> Option<Duration> {
        // The clock of an earlier leader can have been ahead.
        self.at = now.min(self.at);
        let pause = repeat_after / 6 * 5 + (repeat_after / 6).mul_f64(self.jitter);
        let since = Duration::try_from(now.duration_since(self.at)).unwrap_or_default();
        Some(pause.saturating_sub(since)).filter(|left| !left.is_zero())
    }
}

/// The last refused attempt to log in with each account, whichever connection made it.
#[derive(Debug, Default)]
pub struct Attempts(Mutex<BTreeMap<Account, Attempt>>);

impl Attempts {
    /// Records a refused attempt.
    pub fn note(&self, account: &Account, at: Timestamp) {
        let mut attempts = self.lock();
        if attempts.get(account).is_none_or(|last| last.at < at) {
            attempts.insert(account.clone(), Attempt::new(at));
        }
    }

    /// Forgets the attempts with an account, because vCenter accepted a login.
    pub fn forget(&self, account: &Account) {
        self.lock().remove(account);
    }

    /// Waits for the time of the next attempt with an account: at once if none is recorded. No
    /// other caller gets that time.
    pub async fn turn(&self, account: &Account, repeat_after: Duration) {
        while let Err(left) = self.claim(account, repeat_after, Timestamp::now()) {
            tokio::time::sleep(left).await;
        }
    }

    /// Claims the next attempt and returns the one before, or fails with the time until it is due.
    fn claim(
        &self,
        account: &Account,
        repeat_after: Duration,
        now: Timestamp,
    ) -> Result<Option<Attempt>, Duration> {
        let mut attempts = self.lock();
        let left = attempts.get_mut(account).and_then(|last| last.left(repeat_after, now));
        match left {
            Some(left) => Err(left),
            None => Ok(attempts.insert(account.clone(), Attempt::new(now))),
        }
    }

    fn left(&self, account: &Account, repeat_after: Duration, now: Timestamp) -> Option<Duration> {
        self.lock().get_mut(account)?.left(repeat_after, now)
    }

    /// Undoes a claim: vCenter did not get the attempt.
    fn restore(&self, account: &Account, earlier: Attempt) {
        self.lock().insert(account.clone(), earlier);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Account, Attempt>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Credentials that vCenter refused.
#[derive(Clone, Debug)]
struct Refused {
    account: Account,
    credentials: Credentials,
    reason: LoginRefusal,
}

impl Refused {
    fn is(&self, account: &Account, credentials: &Credentials) -> bool {
        self.account == *account && self.credentials == *credentials
    }
}

/// The pace at which one program repeats refused logins, over all its connections. Clones share the
/// attempts.
///
/// # Guarantees
/// - Clients with this pace ([`ClientBuilder::login_pace`]) send credentials that vCenter refused at
///   most once within 25 to 30 minutes for each account, whichever of them asks.
/// - They send other credentials at once, and the same ones after [`LoginPace::allow`].
/// - An attempt that vCenter did not answer counts. An attempt that it did not get does not.
///
/// A client does not repeat a login by itself: the program does, with the credentials that are
/// valid then, when [`LoginPace::repeat`] returns.
///
/// [`ClientBuilder::login_pace`]: crate::ClientBuilder::login_pace
#[derive(Clone, Debug)]
pub struct LoginPace {
    repeat_after: Duration,
    attempts: Arc<Attempts>,
    refused: Arc<watch::Sender<Vec<Refused>>>,
}

impl Default for LoginPace {
    /// With [`REPEAT_AFTER`].
    fn default() -> Self {
        Self::new(REPEAT_AFTER)
    }
}

impl LoginPace {
    /// `repeat_after` is the longest pause. The shortest is five sixths of it.
    pub fn new(repeat_after: Duration) -> Self {
        Self { repeat_after, attempts: Arc::default(), refused: Arc::default() }
    }

    /// Waits until a login with these credentials is allowed: at once unless vCenter refused them.
    pub async fn turn(&self, address: &str, credentials: &Credentials) {
        let account = Account::new(address, credentials.user());
        let mut refused = self.refused.subscribe();
        while contains(&refused.borrow_and_update(), &account, credentials) {
            let left = self.attempts.left(&account, self.repeat_after, Timestamp::now());
            let Some(left) = left else { return };
            tokio::select! {
                _ = refused.changed() => {}
                () = tokio::time::sleep(left) => {}
            }
        }
    }

    /// Waits until vCenter has refused these credentials and the next login with them is allowed.
    pub async fn repeat(&self, address: &str, credentials: &Credentials) {
        let account = Account::new(address, credentials.user());
        let mut refused = self.refused.subscribe();
        loop {
            if refused.wait_for(|all| contains(all, &account, credentials)).await.is_err() {
                std::future::pending::<()>().await;
            }
            self.turn(address, credentials).await;
            if self.has_refused(&account, credentials) {
                return;
            }
        }
    }

    /// Allows a login with these credentials at once, because somebody has set them again.
    pub fn allow(&self, address: &str, credentials: &Credentials) {
        self.remove(&Account::new(address, credentials.user()), credentials);
    }

    /// The error and its sources in one line. For a refused login, the line contains the time of
    /// the next attempt.
    pub fn error_chain(error: &Error) -> String {
        let chain = error.error_chain();
        match error {
            Error::LoginRefused { .. } if !error.is_unsent_login() => format!(
                "{chain}; the next attempt is within 30 minutes, or at once when the credentials change"
            ),
            _ => chain,
        }
    }

    /// The error of the last login with these credentials, if vCenter refused it.
    pub fn refusal(&self, address: &str, credentials: &Credentials) -> Option<Error> {
        let account = Account::new(address, credentials.user());
        let known = self.refused.borrow();
        let refused = known.iter().find(|known| known.is(&account, credentials))?;
        let (address, user) = (address.to_owned(), credentials.user().to_owned());
        Some(Error::LoginRefused { address, user, reason: refused.reason })
    }

    /// Whether vCenter refused these credentials and has not accepted them since.
    pub(crate) fn has_refused(&self, account: &Account, credentials: &Credentials) -> bool {
        contains(&self.refused.borrow(), account, credentials)
    }

    /// Claims a login right before it. Returns the attempt before a repeated one, or fails with the
    /// reason of the refusal while the login is not allowed.
    pub(crate) fn claim(
        &self,
        account: &Account,
        credentials: &Credentials,
    ) -> Result<Option<Attempt>, LoginRefusal> {
        let known = self.refused.borrow();
        let Some(refused) = known.iter().find(|known| known.is(account, credentials)) else {
            return Ok(None);
        };
        let claimed = self.attempts.claim(account, self.repeat_after, Timestamp::now());
        claimed.map_err(|_| refused.reason)
    }

    /// Records the outcome of a login. `earlier` is the result of [`LoginPace::claim`].
    pub(crate) fn finish(
        &self,
        account: &Account,
        credentials: &Credentials,
        earlier: Option<Attempt>,
        failure: Option<&Error>,
    ) {
        match failure {
            None => self.remove(account, credentials),
            Some(Error::LoginRefused { reason, .. }) => {
                self.attempts.note(account, Timestamp::now());
                self.add(account, credentials, *reason);
            }
            // vCenter can have counted it.
            Some(error) if error.is_unanswered_login() => {
                if self.refused.borrow().iter().any(|known| known.account == *account) {
                    self.attempts.note(account, Timestamp::now());
                }
            }
            Some(error) if error.is_transient() => {
                if let Some(earlier) = earlier {
                    self.attempts.restore(account, earlier);
                }
            }
            Some(_) => {}
        }
    }

    fn add(&self, account: &Account, credentials: &Credentials, reason: LoginRefusal) {
        let (account, credentials) = (account.clone(), credentials.clone());
        self.refused.send_modify(|all| {
            all.retain(|known| !known.is(&account, &credentials));
            if all.iter().filter(|known| known.account == account).count() >= KNOWN_PER_ACCOUNT
                && let Some(oldest) = all.iter().position(|known| known.account == account)
            {
                all.remove(oldest);
            }
            all.push(Refused { account, credentials, reason });
        });
    }

    fn remove(&self, account: &Account, credentials: &Credentials) {
        self.refused.send_if_modified(|all| {
            let before = all.len();
            all.retain(|known| !known.is(account, credentials));
            all.len() < before
        });
        if !self.refused.borrow().iter().any(|known| known.account == *account) {
            self.attempts.forget(account);
        }
    }
}

fn contains(all: &[Refused], account: &Account, credentials: &Credentials) -> bool {
    all.iter().any(|known| known.is(account, credentials))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(address: &str) -> Account {
        Account::new(address, "vdo@vsphere.local")
    }

    fn minutes(count: i64) -> Timestamp {
        Timestamp::from_second(60 * count).unwrap()
    }

    /// A wrong password for a day. The program restarts again and again and finds the last attempt
    /// in its records, and three connections use the account.
    #[test]
    fn repeated_logins_are_too_rare_to_lock_an_account_whatever_restarts_and_asks() {
        let account = account("vc.example.com");
        let (mut attempts, mut made) = (Attempts::default(), vec![Timestamp::UNIX_EPOCH]);
        attempts.note(&account, made[0]);
        for minute in 0..24 * 60_i64 {
            let now = minutes(minute);
            if minute % 7 == 0 {
                attempts = Attempts::default();
                attempts.note(&account, *made.last().unwrap());
            }
            for _ in 0..3 {
                let claimed = attempts.claim(&account, REPEAT_AFTER, now);
                made.extend(claimed.ok().map(|_| now));
            }
        }
        let pauses: Vec<i64> =
            made.windows(2).map(|two| two[1].duration_since(two[0]).as_mins()).collect();
        assert!(pauses.len() >= 40, "it goes on: {pauses:?}");
        assert!(pauses.iter().all(|minutes| (25..=31).contains(minutes)), "{pauses:?}");
    }

    #[test]
    fn an_account_that_another_connection_can_use_and_another_account_do_not_wait() {
        let (now, soon) = (Timestamp::UNIX_EPOCH, minutes(24));
        let (one, other) = (account("a.example.com"), account("b.example.com"));
        let attempts = Attempts::default();
        let claims = |account: &Account, now| attempts.claim(account, REPEAT_AFTER, now).is_ok();
        attempts.note(&one, now);
        assert!(!claims(&one, soon));
        assert!(!claims(&account("https://A.example.com:443/sdk"), soon), "it is the same account");
        assert!(claims(&other, soon));
        attempts.forget(&one);
        assert!(claims(&one, soon));
        assert!(!claims(&one, soon), "each claim is one attempt");
    }

    #[test]
    fn a_clock_that_was_ahead_does_not_stop_the_attempts() {
        let account = account("vc.example.com");
        let attempts = Attempts::default();
        attempts.note(&account, minutes(48 * 60));
        let left = attempts.claim(&account, REPEAT_AFTER, minutes(60)).unwrap_err();
        assert!(left <= REPEAT_AFTER, "{left:?}");
        assert!(attempts.claim(&account, REPEAT_AFTER, minutes(91)).is_ok());
    }

    fn refusal(reason: LoginRefusal) -> Error {
        let (address, user) = ("vc.example.com".to_owned(), "vdo@vsphere.local".to_owned());
        Error::LoginRefused { address, user, reason }
    }

    #[test]
    fn only_credentials_that_vcenter_refused_wait_until_somebody_sets_them_again() {
        let (pace, account) = (LoginPace::default(), account("vc.example.com"));
        let password = |text: &str| Credentials::new("vdo@vsphere.local", text);
        let (old, new) = (password("old"), password("new"));
        let refused = refusal(LoginRefusal::Credentials);
        for credentials in [&new, &old] {
            let earlier = pace.claim(&account, credentials).unwrap();
            pace.finish(&account, credentials, earlier, Some(&refused));
        }
        for credentials in [&old, &new] {
            assert_eq!(pace.claim(&account, credentials).unwrap_err(), LoginRefusal::Credentials);
        }
        assert!(pace.claim(&account, &password("another")).is_ok());
        // vCenter accepts one; the attempts with the other one stay rare.
        pace.finish(&account, &old, None, None);
        assert!(pace.claim(&account, &old).is_ok());
        assert!(pace.claim(&account, &new).is_err());
        pace.allow("vc.example.com", &new);
        assert!(pace.claim(&account, &new).is_ok());
    }

    #[tokio::test]
    async fn an_attempt_that_vcenter_did_not_get_does_not_count_and_an_unanswered_one_does() {
        let pace = LoginPace::new(Duration::from_millis(600));
        let account = account("vc.example.com");
        let credentials = Credentials::new("vdo@vsphere.local", "new");
        let address = || "vc.example.com".to_owned();
        pace.finish(&account, &credentials, None, Some(&refusal(LoginRefusal::Locked)));
        pace.repeat("vc.example.com", &credentials).await;
        let earlier = pace.claim(&account, &credentials).unwrap();
        assert!(pace.claim(&account, &credentials).is_err());
        let unavailable = Error::Unavailable { address: address(), status: 503, retry_after: None };
        pace.finish(&account, &credentials, earlier, Some(&unavailable));
        let earlier = pace.claim(&account, &credentials).unwrap();
        let unanswered =
            Error::Timeout { address: address(), method: "Login".into(), after: REPEAT_AFTER };
        pace.finish(&account, &credentials, earlier, Some(&unanswered));
        assert_eq!(pace.claim(&account, &credentials).unwrap_err(), LoginRefusal::Locked);
    }
}
