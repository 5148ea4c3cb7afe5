//! Acquiring and renewing a Lease.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{api::PostParams, runtime::watcher};
use rand::RngExt;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{Contender, record};
use crate::error_chain::error_chain;

/// A Lease as the contender last saw it. The time is the contender's own monotonic clock, never the times in the
/// Lease, which come from the clock of another node.
#[derive(Clone, Debug)]
struct Observed {
    lease: Lease,
    /// When this state was first seen.
    since: Instant,
}

/// The next step of a contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextStep {
    Create,
    /// The Lease is free, expired or ours: write our identity.
    Take,
    /// Another contender holds it: wait until then, or until it changes.
    WaitUntil(Instant),
}

/// How often a contender checks a Lease that its installation does not own, even if the Lease does not change.
const NOT_OWNED: Duration = Duration::from_mins(1);

/// Decides the next step. Pure. `identities` are the contender's own and that of a leader that is proven dead.
/// `installation`: see [`Contender::for_installation`].
fn decide(
    observed: Option<&Observed>,
    identities: &[&str],
    installation: Option<&str>,
    now: Instant,
) -> NextStep {
    let Some(Observed { lease, since }) = observed else {
        return NextStep::Create;
    };
    let spec = lease.spec.as_ref();
    let holder = spec.and_then(|s| s.holder_identity.as_deref()).unwrap_or("");
    if let Some(installation) = installation {
        if is_owned_by_another(lease, installation) {
            return NextStep::WaitUntil(now + NOT_OWNED);
        }
        if holder.strip_prefix(installation).is_some_and(|pod| pod.starts_with('/')) {
            return NextStep::Take;
        }
    }
    // A Lease under our own identity is ours: the response to an earlier write got lost.
    if holder.is_empty() || identities.contains(&holder) {
        return NextStep::Take;
    }
    let expires = *since + duration(lease);
    if now >= expires { NextStep::Take } else { NextStep::WaitUntil(expires) }
}

/// How long a Lease belongs to its holder after a renewal.
fn duration(lease: &Lease) -> Duration {
    let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds).unwrap_or(0);
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

fn is_owned_by_another(lease: &Lease, installation: &str) -> bool {
    super::owner(lease).is_some_and(|owner| owner != installation)
}

/// The earliest time to re-create a deleted Lease. If the Lease was held, its holder writes until
/// `renew_deadline` and re-creates the Lease when it renews, so this leaves it the time for that.
fn create_at(
    before: Option<&Observed>,
    identities: &[&str],
    installation: Option<&str>,
    lease_duration: Duration,
    now: Instant,
) -> Instant {
    let Some(before) = before else { return now };
    match decide(Some(before), identities, installation, now) {
        NextStep::WaitUntil(_) => now + lease_duration.max(duration(&before.lease)),
        NextStep::Create | NextStep::Take => now,
    }
}

/// Waits until the contender has won. Returns the Lease as written and the end of its validity.
pub(super) async fn win(contender: &Contender) -> (Lease, Instant) {
    let installation = contender.installation.as_deref();
    let identities: Vec<&str> =
        std::iter::once(contender.identity.as_str()).chain(contender.crashed.as_deref()).collect();
    let mut observed = None;
    let mut not_before = Instant::now();
    loop {
        let watching = watcher::watch_object(contender.leases.clone(), &contender.name);
        let mut changes = std::pin::pin!(watching.boxed());
        let mut known = false;
        loop {
            let step = if known {
                let now = Instant::now();
                match decide(observed.as_ref(), &identities, installation, now) {
                    NextStep::Create if now < not_before => NextStep::WaitUntil(not_before),
                    step => step,
                }
            } else {
                // Before the first response nothing is known, not even that there is no Lease.
                NextStep::WaitUntil(Instant::now() + contender.terms.lease_duration)
            };
            match step {
                NextStep::Create | NextStep::Take => {
                    let before = observed.as_ref().map(|o: &Observed| &o.lease);
                    if let Some(won) = write(contender, before).await {
                        return won;
                    }
                    pause(contender).await;
                    // The next decision needs a fresh view, whatever the reason for the failure.
                    break;
                }
                NextStep::WaitUntil(until) => match timeout_at(until, changes.try_next()).await {
                    Ok(Ok(Some(lease))) => {
                        contender.works();
                        known = true;
                        if lease.is_none() {
                            let (before, now) = (observed.as_ref(), Instant::now());
                            let lease_duration = contender.terms.lease_duration;
                            let at =
                                create_at(before, &identities, installation, lease_duration, now);
                            not_before = not_before.max(at);
                        }
                        observed = observe(observed, lease);
                    }
                    Ok(Err(error)) => {
                        tracing::warn!(lease = contender.name, %error, "cannot watch the lease");
                        contender.fails(format!("cannot watch the lease: {}", error_chain(&error)));
                        pause(contender).await;
                        if !known {
                            break;
                        }
                    }
                    Err(_) if known => {}
                    Ok(Ok(None)) => break,
                    Err(_) => {
                        contender.fails("the API server does not answer");
                        break;
                    }
                },
            }
        }
    }
}

/// Updates the observation. The time of first sight stays unless the Lease really changed: a restarted watch
/// shows the same state again, which does not prove that the holder is alive.
fn observe(before: Option<Observed>, lease: Option<Lease>) -> Option<Observed> {
    let lease = lease?;
    let same = before
        .as_ref()
        .is_some_and(|b| b.lease.metadata.resource_version == lease.metadata.resource_version);
    let since = match before {
        Some(before) if same => before.since,
        _ => Instant::now(),
    };
    Some(Observed { lease, since })
}

async fn pause(contender: &Contender) {
    let factor = rand::rng().random_range(0.5..=1.0);
    sleep(contender.terms.retry_period.mul_f64(factor)).await;
}

/// Writes the contender into the Lease. `None` if another contender was faster or the API server did not
/// answer. In the latter case the write may have happened; the next read shows it.
async fn write(contender: &Contender, before: Option<&Lease>) -> Option<(Lease, Instant)> {
    let Contender { leases, name, terms, .. } = contender;
    let lease = record::held_by(contender, before);
    let until = Instant::now() + terms.renew_deadline;
    let parameters = PostParams::default();
    let request = async {
        match before {
            None => leases.create(&parameters, &lease).await,
            Some(_) => leases.replace(name, &parameters, &lease).await,
        }
    };
    match timeout_at(until, request).await {
        Ok(Ok(lease)) => {
            contender.works();
            Some((lease, until))
        }
        Ok(Err(kube::Error::Api(status))) if status.code == 409 => {
            contender.works();
            None
        }
        Ok(Err(error)) => {
            tracing::warn!(lease = name, %error, "cannot write the lease");
            contender.fails(format!("cannot write the lease: {}", error_chain(&error)));
            None
        }
        Err(_) => {
            tracing::warn!(lease = name, "the API server did not answer a write of the lease");
            contender.fails("the API server does not answer");
            None
        }
    }
}

/// Renews the Lease until the leadership is lost, then cancels the token.
pub(super) async fn renew(
    contender: Contender,
    latest: watch::Sender<Arc<Lease>>,
    valid_until: watch::Sender<Instant>,
    token: CancellationToken,
) {
    let Contender { name, terms, .. } = &contender;
    let mut deleted = false;
    loop {
        sleep(terms.retry_period).await;
        let before = latest.borrow().clone();
        let before = (!deleted).then_some(&*before);
        let until = *valid_until.borrow();
        // In this order: a response at the deadline is too late.
        tokio::select! {
            biased;
            () = token.cancelled() => return,
            () = sleep_until(until) => return expire(name, &token),
            written = write(&contender, before) => match written {
                Some((lease, until)) => {
                    deleted = false;
                    latest.send_replace(Arc::new(lease));
                    valid_until.send_replace(until);
                }
                None => match read_current(&contender).await {
                    CurrentLease::Ours(lease) => {
                        deleted = false;
                        latest.send_replace(Arc::from(lease));
                    }
                    CurrentLease::HeldBy(holder) => {
                        tracing::warn!(lease = name, holder, "another instance leads");
                        return token.cancel();
                    }
                    CurrentLease::Deleted => {
                        tracing::warn!(lease = name, "the lease was deleted: creating it again");
                        deleted = true;
                    }
                    CurrentLease::Unknown => {}
                },
            },
        }
    }
}

/// Cancels the token of a leadership that expired. The log names the reason once.
pub(super) fn expire(lease: &str, token: &CancellationToken) {
    if !token.is_cancelled() {
        tracing::warn!(
            lease,
            "leadership lost: the lease could not be renewed in time, because the API server did not answer or this \
             process did not run"
        );
    }
    token.cancel();
}

/// Writes the Lease without a holder, and retries until that succeeds. False if another contender holds it.
///
/// A renewal in progress may have been written without a response. Then the API server refuses the first write,
/// and the next one starts from the current Lease.
pub(super) async fn release(contender: &Contender, latest: &Lease) -> bool {
    let Contender { leases, name, .. } = contender;
    let mut lease = latest.clone();
    loop {
        let released = record::released(&lease);
        match leases.replace(name, &PostParams::default(), &released).await {
            Ok(_) => return true,
            Err(error) => {
                tracing::debug!(lease = name, %error, "reading the lease again before the release");
            }
        }
        match read_current(contender).await {
            CurrentLease::Ours(now) => lease = *now,
            CurrentLease::HeldBy(_) | CurrentLease::Deleted => return false,
            CurrentLease::Unknown => pause(contender).await,
        }
    }
}

enum CurrentLease {
    Ours(Box<Lease>),
    HeldBy(String),
    Deleted,
    Unknown,
}

/// Reads the Lease after a failed write. The cause can be harmless, for example a new label.
async fn read_current(contender: &Contender) -> CurrentLease {
    let read = contender.leases.get_opt(&contender.name);
    let lease = match timeout(contender.terms.renew_deadline, read).await {
        Ok(Ok(Some(lease))) => lease,
        Ok(Ok(None)) => return CurrentLease::Deleted,
        Ok(Err(_)) | Err(_) => return CurrentLease::Unknown,
    };
    let installation = contender.installation.as_deref();
    if installation.is_some_and(|installation| is_owned_by_another(&lease, installation)) {
        return CurrentLease::HeldBy(super::owner(&lease).unwrap_or_default().to_owned());
    }
    match lease.spec.as_ref().and_then(|s| s.holder_identity.clone()) {
        Some(holder) if holder == contender.identity => CurrentLease::Ours(Box::new(lease)),
        Some(holder) => CurrentLease::HeldBy(holder),
        None => CurrentLease::HeldBy(String::new()),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::coordination::v1::LeaseSpec;
    use proptest::prelude::*;

    use super::*;

    fn observed_lease(holder: &str, seconds: i32, since: Instant) -> Observed {
        let spec = LeaseSpec {
            holder_identity: Some(holder.into()),
            lease_duration_seconds: Some(seconds),
            ..LeaseSpec::default()
        };
        Observed { lease: Lease { spec: Some(spec), ..Lease::default() }, since }
    }

    #[test]
    fn a_missing_lease_is_created_and_a_released_one_is_taken() {
        let now = Instant::now();
        assert_eq!(decide(None, &["me"], None, now), NextStep::Create);
        let step = |holder: &str, identities: &[&str]| {
            decide(Some(&observed_lease(holder, 15, now)), identities, None, now)
        };
        assert_eq!(step("", &["me"]), NextStep::Take);
        assert_eq!(step("me", &["me"]), NextStep::Take);
        assert_eq!(step("dead", &["me", "dead"]), NextStep::Take);
        assert_ne!(step("other", &["me", "dead"]), NextStep::Take);
    }

    #[test]
    fn a_lease_of_another_installation_is_not_taken_even_when_it_has_expired() {
        let since = Instant::now();
        let later = since + Duration::from_hours(1);
        let step = |holder: &str, owner: Option<&str>, now| {
            let mut lease = observed_lease(holder, 15, since);
            let owner = owner.map(|owner| (super::super::OWNER.to_owned(), owner.to_owned()));
            lease.lease.metadata.annotations = Some(owner.into_iter().collect());
            decide(Some(&lease), &["a/pod-1"], Some("a"), now)
        };
        for holder in ["", "b/pod-1", "a/pod-2", "a/pod-1"] {
            assert_eq!(step(holder, Some("b"), later), NextStep::WaitUntil(later + NOT_OWNED));
        }
        // Handed over: the pod that led may write until its lease ends.
        let until = NextStep::WaitUntil(since + Duration::from_secs(15));
        assert_eq!(step("b/pod-1", Some("a"), since), until);
        assert_eq!(step("b/pod-1", Some("a"), later), NextStep::Take);
        // Pods of one installation have already elected their leader; a similar name proves nothing.
        assert_eq!(step("a/pod-2", Some("a"), since), NextStep::Take);
        assert_eq!(step("ab/pod-2", Some("a"), since), until);
        assert_eq!(step("b/pod-1", None, since), until);
    }

    #[test]
    fn a_deleted_lease_is_left_to_its_holder_for_one_lease_duration() {
        let now = Instant::now();
        let (own, longer) = (Duration::from_secs(15), Duration::from_mins(1));
        let at = |before: Option<&Observed>| create_at(before, &["a/pod-1"], Some("a"), own, now);
        let mut released = observed_lease("", 1, now);
        assert_eq!(at(None), now, "no lease was ever seen");
        assert_eq!(at(Some(&released)), now);
        assert_eq!(at(Some(&observed_lease("a/pod-2", 15, now))), now);
        assert_eq!(at(Some(&observed_lease("b/pod-1", 15, now))), now + own);
        assert_eq!(at(Some(&observed_lease("b/pod-1", 60, now))), now + longer);
        // The next pod of the owner gets time to start.
        let owner = (super::super::OWNER.to_owned(), "b".to_owned());
        released.lease.metadata.annotations = Some([owner].into_iter().collect());
        assert_eq!(at(Some(&released)), now + own);
    }

    #[test]
    fn an_unchanged_lease_does_not_prove_that_its_holder_is_alive() {
        let since = Instant::now();
        let mut first = observed_lease("other", 15, since);
        first.lease.metadata.resource_version = Some("7".into());
        let again = observe(Some(first.clone()), Some(first.lease.clone())).map(|o| o.since);
        assert_eq!(again, Some(since));
    }

    proptest! {
        /// A lease is never taken from a live holder, and always from one that was silent for the whole
        /// duration.
        #[test]
        fn a_lease_is_taken_only_after_its_whole_duration(
            seconds in 0..=3600_i32,
            waited_ms in 0..=4_000_000_u64,
        ) {
            let since = Instant::now();
            let now = since + Duration::from_millis(waited_ms);
            let lease = observed_lease("other", seconds, since);
            let expires = since + Duration::from_secs(u64::try_from(seconds).unwrap());
            let expected = if now >= expires { NextStep::Take } else { NextStep::WaitUntil(expires) };
            prop_assert_eq!(decide(Some(&lease), &["me"], None, now), expected);
        }
    }
}
