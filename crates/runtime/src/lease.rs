//! Leader election on a `coordination.k8s.io` Lease.
//!
//! # Flow
//! A contender watches the Lease. When the Lease is free, released, or has not been renewed for its
//! whole duration, the contender writes itself into it and is the leader. The leader renews; when it
//! cannot, its [`Leadership`] ends by itself before anybody else can take over.
//!
//! # Guarantees
//! - **At most one leader at any instant**, provided clocks *tick* at about the same rate; what the
//!   clocks *show* does not matter. Every write is a replace that carries the `resourceVersion` it
//!   was decided on, so of two contenders one fails. A leader counts its time from *before* it sent
//!   the renewal, a contender from *after* it saw it, and the leader's time
//!   ([`Terms::renew_deadline`]) is the shorter one.
//! - **A released Lease is taken at once**: contenders watch, they do not poll.
//! - **One installation per Lease**, where [`Contender::for_installation`] asks for it: the Lease names the
//!   installation that owns it, and pods of another one wait until somebody changes that name.
//! - **A deleted Lease stays with its holder**, which creates it again when it renews. A contender that saw
//!   the Lease held, or owned by another installation, waits one lease duration before it creates the Lease.
//! - A Lease written by client-go is understood, and the other way round: a rolling swap with a Go
//!   program never has two leaders.
//!
//! # What the caller owes
//! Every write to the outside happens under the token of the [`Leadership`] and stops when it is
//! cancelled. A process that was frozen wakes up with its writes ready to go out before anything
//! has cancelled the token: who looks at the [`Mandate`] right before each write sends none of them.
//! A process that lost its leadership should exit: another instance leads.

mod contest;
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

use crate::checks::Check;

pub use self::contest::{Observed, Step, decide};

/// The times of an election.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// How long a Lease that is not renewed still belongs to its holder. Whole seconds.
    pub lease_duration: Duration,
    /// How long a leader leads without a successful renewal. Shorter than `lease_duration`.
    pub renew_deadline: Duration,
    /// The pause between two renewals, or two tries.
    pub retry_period: Duration,
}

impl Default for Terms {
    /// The times client-go uses.
    fn default() -> Self {
        Self {
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

/// Why an election cannot be held.
#[derive(Debug, Snafu)]
#[allow(missing_docs, reason = "a field is named as in the text it stands in")]
pub enum Error {
    #[snafu(display(
        "the election's times do not fit: the retry period ({retry:?}) must be shorter than the renew \
         deadline ({renew:?}), and that shorter than the lease duration ({lease:?}), which is in whole seconds"
    ))]
    Terms { lease: Duration, renew: Duration, retry: Duration },
}

/// The annotation of a Lease that names the installation that owns it: a namespace.
pub const OWNER: &str = "vdo.vmware.com/owner";

/// The installation that owns a Lease, if one is recorded.
pub fn owner(lease: &Lease) -> Option<&str> {
    let owner = lease.metadata.annotations.as_ref()?.get(OWNER)?;
    Some(owner.as_str()).filter(|owner| !owner.is_empty())
}

/// One who wants to lead.
#[derive(Clone, Debug)]
pub struct Contender {
    leases: Api<Lease>,
    namespace: String,
    name: String,
    identity: String,
    /// The namespace of the installation this contender belongs to, for a Lease that several share.
    installation: Option<String>,
    terms: Terms,
    /// Whether the election works: the API server answers, and grants what it takes.
    check: Option<Check>,
}

/// The right to act, until [`Leadership::lost`]. Renewed in the background while this value lives.
#[derive(Debug)]
pub struct Leadership {
    contender: Contender,
    /// Until when it holds without another renewal.
    valid_until: watch::Receiver<Instant>,
    /// The Lease as we last wrote it; what a release is decided on.
    latest: watch::Receiver<Arc<Lease>>,
    token: CancellationToken,
    renewal: AbortHandle,
    _tasks: JoinSet<()>,
}

/// Whether one may write, for whoever is about to: it goes by the clock, not by a task that must run
/// first. Clones are one.
#[derive(Clone, Debug, Default)]
pub struct Mandate(Vec<(CancellationToken, watch::Receiver<Instant>)>);

impl Mandate {
    /// That of one who leads without an election.
    pub fn unlimited() -> Self {
        Self(Vec::new())
    }

    /// One that holds no more.
    pub fn ended() -> Self {
        let token = CancellationToken::new();
        token.cancel();
        Self(vec![(token, watch::channel(Instant::now()).1)])
    }

    /// One that holds only while both do.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// Whether it holds at this instant.
    pub fn holds(&self) -> bool {
        self.0.iter().all(|(token, valid_until)| {
            !token.is_cancelled() && Instant::now() < *valid_until.borrow()
        })
    }

    /// What a future gives, which goes on only while the mandate holds; `None` as soon as it ended. A
    /// request that waits for a connection is sent by whoever wakes up with one: that is no use for
    /// the right to have begun it.
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

    /// Waits until it ends.
    async fn ends(&self) {
        if self.0.is_empty() {
            return std::future::pending().await;
        }
        let tokens = self.0.iter().map(|(token, _)| Box::pin(token.cancelled()));
        futures::future::select_all(tokens).await;
    }
}

impl Contender {
    /// A contender for the Lease `name`.
    ///
    /// `identity` must be unique to this run of the process (pod name and a random part): after a
    /// restart, a Lease held under the old identity belongs to somebody else.
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
            installation: None,
            terms,
            check: None,
        })
    }

    /// Reports to `check` whether the election works. It passes for a contender that waits while another
    /// instance leads, and fails when the API server does not answer or refuses.
    #[must_use]
    pub fn reporting_to(self, check: Check) -> Self {
        Self { check: Some(check), ..self }
    }

    /// The API server answered. The next answer is due when the lease expires, at the latest.
    fn works(&self) {
        if let Some(check) = &self.check {
            let limit = self.terms.lease_duration * 2;
            let reason = format!("no news of the lease for {} seconds", limit.as_secs());
            check.pass_for(limit, reason);
        }
    }

    /// The API server did not answer, or refused.
    fn fails(&self, reason: impl Into<String>) {
        if let Some(check) = &self.check {
            check.fail(reason);
        }
    }

    /// Contends for a Lease that several installations share, on behalf of the one in this namespace.
    ///
    /// The Lease then names its owner. A Lease of another owner is never taken, not even when it has
    /// expired. A Lease that another pod of the same installation holds is taken at once.
    ///
    /// # Assumptions
    /// Pods of one installation elect their leader among themselves first, on a Lease of their own, and
    /// write only while they hold both. That is what makes taking it at once safe.
    #[must_use]
    pub fn for_installation(mut self, namespace: &str) -> Self {
        self.identity = format!("{namespace}/{}", self.identity);
        self.installation = Some(namespace.into());
        self
    }

    /// An identity nobody else has: the host name and a random part.
    pub fn unique_identity() -> String {
        let host = std::env::var("POD_NAME").or_else(|_| std::env::var("HOSTNAME"));
        let host = host.unwrap_or_else(|_| "vdo".into());
        format!("{host}_{:016x}", rand::random::<u64>())
    }

    /// Waits until this contender leads. Troubles on the way are logged and retried.
    pub async fn lead(&self) -> Leadership {
        let (lease, valid_until) = contest::win(self).await;
        tracing::info!(lease = self.name, identity = self.identity, "leading");
        let (valid_sender, valid_until) = watch::channel(valid_until);
        let (lease_sender, latest) = watch::channel(Arc::new(lease));
        let token = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let renewal =
            tasks.spawn(contest::renew(self.clone(), lease_sender, valid_sender, token.clone()));
        tasks.spawn(end_in_time(valid_until.clone(), token.clone()));
        Leadership { contender: self.clone(), valid_until, latest, token, renewal, _tasks: tasks }
    }
}

/// Cancels the token at the very moment the leadership runs out, whatever a request under way does.
async fn end_in_time(mut valid_until: watch::Receiver<Instant>, token: CancellationToken) {
    loop {
        let until = *valid_until.borrow_and_update();
        tokio::select! {
            () = tokio::time::sleep_until(until) => return token.cancel(),
            changed = valid_until.changed() => if changed.is_err() {
                tokio::time::sleep_until(until).await;
                return token.cancel();
            },
        }
    }
}

impl Leadership {
    /// The token under which every writer works: cancelled when the leadership is lost.
    pub fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// What a writer looks at right before it writes.
    pub fn mandate(&self) -> Mandate {
        Mandate(vec![(self.token.clone(), self.valid_until.clone())])
    }

    /// Whether this instance leads at this instant.
    pub fn is_held(&self) -> bool {
        self.mandate().holds()
    }

    /// Waits until the leadership is lost.
    pub async fn lost(&self) {
        self.token.cancelled().await;
    }

    /// Gives the leadership up, so that another instance leads at once. Call it after the last
    /// write; the token is cancelled first.
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
            Ok(false) => tracing::warn!(lease = name, "the lease is not ours any more"),
            Err(_) => tracing::warn!(lease = name, "could not release in time; it will expire"),
        }
    }
}

impl Drop for Leadership {
    /// Whoever lets go of the leadership leads no more, whether or not it was released: nobody
    /// renews it from here on.
    fn drop(&mut self) {
        self.token.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_waits_goes_on_only_while_the_mandate_holds() {
        let until = Instant::now() + Duration::from_secs(10);
        let (_renewed, valid_until) = watch::channel(until);
        let mandate = Mandate(vec![(CancellationToken::new(), valid_until)]);
        let after = |seconds| async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            seconds
        };
        assert_eq!(mandate.while_it_holds(after(5)).await, Some(5));
        // It wakes up too late, as one that was frozen.
        let mut went_on = false;
        let waiting = async {
            after(20).await;
            went_on = true;
        };
        assert_eq!(mandate.while_it_holds(waiting).await, None);
        assert!(!went_on);
        // It waits for nothing that will ever come.
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
