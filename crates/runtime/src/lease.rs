//! Leader election on a `coordination.k8s.io` Lease.
//!
//! # Flow
//! A contender watches the Lease. When the Lease is free, released, or has not been renewed for its
//! whole duration, the contender writes itself into it and becomes the leader. The leader renews the Lease;
//! if it cannot, its [`Leadership`] ends before another contender can lead.
//!
//! # Guarantees
//! - **At most one leader at any instant**, if all clocks *tick* at about the same rate; the time they *show*
//!   does not matter. Every write is a replace with the `resourceVersion` of the decision, so of two contenders
//!   one fails. A leader counts its time from *before* it sent the renewal, a contender from *after* it saw it.
//!   The leader's time ([`Terms::renew_deadline`]) is the shorter one.
//! - **A released Lease is taken at once**: contenders watch, they do not poll.
//! - **A container that restarts after a crash resumes its Lease at once**, with [`Contender::after_crash_of`].
//! - **One installation per Lease**, with [`Contender::for_installation`]: the Lease names the installation
//!   that owns it, and pods of another installation wait until somebody changes that name.
//! - **A deleted Lease stays with its holder**, which creates it again when it renews. A contender that saw
//!   the Lease held, or owned by another installation, waits one lease duration before it creates the Lease.
//! - The format is client-go's: a rolling change from or to a Go program never has two leaders.
//!
//! # The caller's obligations
//! Every external write happens under the token of the [`Leadership`] and stops when the token is cancelled.
//! A process that was frozen can resume with writes ready to send before the token is cancelled. A writer that
//! checks the [`Mandate`] right before each write sends none of them. A process that lost its leadership
//! should exit: another instance can lead.

mod contest;
mod leader_file;
mod record;

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use snafu::Snafu;
use tokio::{
    sync::watch,
    task::{AbortHandle, JoinSet},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

pub use self::leader_file::{LeaderFile, RESUME_AGAIN};
use crate::checks::Check;

#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// How long a Lease without renewal belongs to its holder. Whole seconds.
    pub lease_duration: Duration,
    /// How long a leader leads without a successful renewal. Shorter than `lease_duration`.
    pub renew_deadline: Duration,
    /// The pause between two renewals or attempts.
    pub retry_period: Duration,
}

#[derive(Debug, Snafu)]
pub enum Error {
    #[snafu(display(
        "the election's times do not fit: the retry period ({retry:?}) must be shorter than the renew \
         deadline ({renew:?}), and that shorter than the lease duration ({lease:?}), which is in whole seconds"
    ))]
    Terms { lease: Duration, renew: Duration, retry: Duration },
}

/// Why a process ends that led until now. The holder of the Lease can be this process still, if the API server does
/// not answer, so the text claims nothing about other instances.
pub const LEADERSHIP_LOST: &str = "the leadership was lost: the log above names the reason";

/// The annotation of a Lease with the installation that owns it: a namespace.
pub const OWNER: &str = "vdo.vmware.com/owner";

/// The installation that owns a Lease, if the Lease names one.
pub fn owner(lease: &Lease) -> Option<&str> {
    let owner = lease.metadata.annotations.as_ref()?.get(OWNER)?;
    Some(owner.as_str()).filter(|owner| !owner.is_empty())
}

/// A candidate for the leadership.
#[derive(Clone, Debug)]
pub struct Contender {
    leases: Api<Lease>,
    namespace: String,
    name: String,
    identity: String,
    /// A former leader that is proven dead.
    crashed: Option<String>,
    /// The namespace of this contender's installation, for a Lease that several installations share.
    installation: Option<String>,
    terms: Terms,
    /// Passes while the API server answers and grants permission.
    check: Option<Check>,
}

/// The leadership, until [`Leadership::lost`]. Renewed in the background until this value is dropped.
#[derive(Debug)]
pub struct Leadership {
    contender: Contender,
    /// When it ends without another renewal.
    valid_until: watch::Receiver<Instant>,
    /// The Lease as last written, for the release.
    latest: watch::Receiver<Arc<Lease>>,
    token: CancellationToken,
    renewal: AbortHandle,
    _tasks: JoinSet<()>,
}

/// Permission to write. It checks the clock, so it needs no background task to run first. Clones share state.
#[derive(Clone, Debug, Default)]
pub struct Mandate(Vec<(CancellationToken, watch::Receiver<Instant>)>);

impl Mandate {
    /// For a process that leads without an election.
    pub fn unlimited() -> Self {
        Self(Vec::new())
    }

    /// A mandate that has ended.
    pub fn ended() -> Self {
        let token = CancellationToken::new();
        token.cancel();
        Self::until(token)
    }

    /// A mandate without a term that ends with the token.
    pub fn until(token: CancellationToken) -> Self {
        const LONG: Duration = Duration::from_hours(24 * 365);
        Self(vec![(token, watch::channel(Instant::now() + LONG).1)])
    }

    /// Holds only while both hold.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    pub fn holds(&self) -> bool {
        self.0.iter().all(|(token, valid_until)| {
            !token.is_cancelled() && Instant::now() < *valid_until.borrow()
        })
    }

    /// Polls a future only while the mandate holds; `None` once it has ended. A request can wait a long time for
    /// a connection, so a check at its start is not enough.
    pub async fn while_it_holds<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut future = std::pin::pin!(future);
        let mut ended = std::pin::pin!(self.ends());
        std::future::poll_fn(|context| {
            if ended.as_mut().poll(context).is_ready() || !self.holds() {
                return std::task::Poll::Ready(None);
            }
            future.as_mut().poll(context).map(Some)
        })
        .await
    }

    async fn ends(&self) {
        if self.0.is_empty() {
            return std::future::pending().await;
        }
        let tokens = self.0.iter().map(|(token, _)| Box::pin(token.cancelled()));
        futures::future::select_all(tokens).await;
    }
}

impl Contender {
    /// Creates a contender for the Lease `name`.
    ///
    /// `identity` must be unique to this run of the process (pod name and a random part): after a restart, a
    /// Lease under the old identity belongs to another contender.
    pub fn new(
        client: Client,
        namespace: &str,
        name: &str,
        identity: &str,
        terms: Terms,
    ) -> Result<Self, Error> {
        let Terms { lease_duration: lease, renew_deadline: renew, retry_period: retry } = terms;
        if !(retry < renew && renew < lease && lease.subsec_nanos() == 0) {
            return TermsSnafu { lease, renew, retry }.fail();
        }
        Ok(Self {
            leases: Api::namespaced(client, namespace),
            namespace: namespace.into(),
            name: name.into(),
            identity: identity.into(),
            crashed: None,
            installation: None,
            terms,
            check: None,
        })
    }

    /// Reports to `check` whether the election works. It passes while another instance leads, and fails if the
    /// API server does not answer or refuses.
    #[must_use]
    pub fn reporting_to(self, check: Check) -> Self {
        Self { check: Some(check), ..self }
    }

    /// Reports an answer of the API server. The next one is due when the lease expires.
    fn works(&self) {
        if let Some(check) = &self.check {
            let limit = self.terms.lease_duration * 2;
            let reason = format!("no news of the lease for {} seconds", limit.as_secs());
            check.pass_for(limit, reason);
        }
    }

    /// Reports that the API server did not answer, or refused.
    fn fails(&self, reason: impl Into<String>) {
        if let Some(check) = &self.check {
            check.fail(reason);
        }
    }

    /// Contends for a Lease that several installations share, for the installation in this namespace.
    ///
    /// The Lease names its owner. The contender never takes a Lease of another owner, even if it has expired. It
    /// takes a Lease of another pod of the same installation at once.
    ///
    /// # Assumptions
    /// The pods of an installation first elect their leader on a Lease of their own, and write only while they
    /// hold both Leases. That makes it safe to take the shared Lease at once.
    #[must_use]
    pub fn for_installation(mut self, namespace: &str) -> Self {
        self.identity = format!("{namespace}/{}", self.identity);
        self.installation = Some(namespace.into());
        self
    }

    /// Takes the Lease at once if this leader still holds it. The caller has proven that it is dead: see [`LeaderFile`].
    #[must_use]
    pub fn after_crash_of(self, leader: Option<&str>) -> Self {
        Self { crashed: leader.map(str::to_owned), ..self }
    }

    /// A unique identity: the host name and a random part.
    pub fn unique_identity() -> String {
        let host = std::env::var("POD_NAME").or_else(|_| std::env::var("HOSTNAME"));
        let host = host.unwrap_or_else(|_| "vdo".into());
        format!("{host}_{:016x}", rand::random::<u64>())
    }

    /// Waits until this contender leads. Logs and retries errors.
    pub async fn lead(&self) -> Leadership {
        let (lease, valid_until) = contest::win(self).await;
        tracing::info!(lease = self.name, identity = self.identity, "leading");
        let (valid_sender, valid_until) = watch::channel(valid_until);
        let (lease_sender, latest) = watch::channel(Arc::new(lease));
        let token = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let renewal =
            tasks.spawn(contest::renew(self.clone(), lease_sender, valid_sender, token.clone()));
        tasks.spawn(end_in_time(self.name.clone(), valid_until.clone(), token.clone()));
        Leadership { contender: self.clone(), valid_until, latest, token, renewal, _tasks: tasks }
    }
}

/// Cancels the token when the leadership expires, even while a request is in progress.
async fn end_in_time(
    lease: String,
    mut valid_until: watch::Receiver<Instant>,
    token: CancellationToken,
) {
    loop {
        let until = *valid_until.borrow_and_update();
        tokio::select! {
            () = tokio::time::sleep_until(until) => break,
            changed = valid_until.changed() => if changed.is_err() {
                tokio::time::sleep_until(until).await;
                break;
            },
        }
    }
    contest::expire(&lease, &token);
}

impl Leadership {
    /// The token for all writers: cancelled when the leadership is lost.
    pub fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// Writers check it right before each write.
    pub fn mandate(&self) -> Mandate {
        Mandate(vec![(self.token.clone(), self.valid_until.clone())])
    }

    pub fn is_held(&self) -> bool {
        self.mandate().holds()
    }

    pub async fn lost(&self) {
        self.token.cancelled().await;
    }

    /// Releases the Lease, so that another instance leads at once. Call it after the last write; it cancels the
    /// token first.
    pub async fn release(self) {
        self.token.cancel();
        self.renewal.abort();
        let Contender { name, terms, .. } = &self.contender;
        match timeout(
            terms.renew_deadline,
            contest::release(&self.contender, &self.latest.borrow().clone()),
        )
        .await
        {
            Ok(true) => tracing::info!(lease = name, "leadership released"),
            Ok(false) => tracing::warn!(lease = name, "another instance already holds the lease"),
            Err(_) => tracing::warn!(
                lease = name,
                "the lease could not be released in time; it will expire"
            ),
        }
    }
}

impl Drop for Leadership {
    /// Dropping the leadership ends it, released or not, because nothing renews the Lease any more.
    fn drop(&mut self) {
        self.token.cancel();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Mutex, MutexGuard},
    };

    use super::*;

    /// Lines of the log.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Log {
        fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
            self.0.lock().unwrap()
        }
    }

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.lock().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_log_names_the_reason_of_a_leadership_that_expires() {
        let log = Log::default();
        let writer = log.clone();
        let logs = tracing_subscriber::fmt().with_ansi(false);
        let subscriber = logs.with_writer(move || writer.clone()).finish();
        let _logging = tracing::subscriber::set_default(subscriber);
        let token = CancellationToken::new();
        let (_renewed, valid_until) = watch::channel(Instant::now() + Duration::from_secs(10));
        end_in_time("vdo".into(), valid_until.clone(), token.clone()).await;
        assert!(token.is_cancelled());
        let text = String::from_utf8(log.lock().clone()).unwrap();
        assert!(text.contains("WARN") && text.contains("could not be renewed in time"), "{text}");
        assert!(text.contains("lease=\"vdo\""), "{text}");
        // The other task ended the leadership, and has logged the reason.
        log.lock().clear();
        end_in_time("vdo".into(), valid_until, token).await;
        assert_eq!(*log.lock(), b"");
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_future_continues_only_while_the_mandate_holds() {
        let until = Instant::now() + Duration::from_secs(10);
        let (_renewed, valid_until) = watch::channel(until);
        let mandate = Mandate(vec![(CancellationToken::new(), valid_until)]);
        let after = |seconds| async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            seconds
        };
        assert_eq!(mandate.while_it_holds(after(5)).await, Some(5));
        // It resumes too late, like a frozen process.
        let mut went_on = false;
        let waiting = async {
            after(20).await;
            went_on = true;
        };
        assert_eq!(mandate.while_it_holds(waiting).await, None);
        assert!(!went_on);
        // It never becomes ready.
        let token = CancellationToken::new();
        let (_renewed, valid_until) = watch::channel(until + Duration::from_hours(1));
        let ending = Mandate(vec![(token.clone(), valid_until)]);
        let never = std::future::pending::<()>();
        let end = async { token.cancel() };
        assert_eq!(tokio::join!(ending.while_it_holds(never), end).0, None);
        assert_eq!(mandate.while_it_holds(after(0)).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_mandate_of_two_leases_ends_with_the_first_of_them() {
        let (_renewed, valid_until) = watch::channel(Instant::now() + Duration::from_hours(1));
        let of = |token: &CancellationToken| Mandate(vec![(token.clone(), valid_until.clone())]);
        let (first, second) = (CancellationToken::new(), CancellationToken::new());
        let both = of(&first).and(of(&second));
        assert!(both.holds());
        let never = std::future::pending::<()>();
        let end = async { second.cancel() };
        assert_eq!(tokio::join!(both.while_it_holds(never), end).0, None);
        assert!(!both.holds() && of(&first).holds());
    }
}
