//! Waits for a condition with a deadline; a failure shows the last observed state.

use std::{fmt::Display, future::Future, panic::Location, time::Duration};

use tokio::time::{Instant, sleep};

/// A plain number of seconds is the maximum for an idle computer; a busy one gets this many times as much. A deadline
/// ends a test that hangs, it measures nothing.
const BUSY: u64 = 4;

/// How long [`eventually`] waits: `20` for a condition that takes up to 20 seconds on an idle computer,
/// `Duration::from_secs(20)` for exactly 20 seconds.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Duration);

impl Deadline {
    pub(crate) fn duration(self) -> Duration {
        self.0
    }
}

impl From<u64> for Deadline {
    fn from(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds * BUSY))
    }
}

impl From<Duration> for Deadline {
    fn from(duration: Duration) -> Self {
        Self(duration)
    }
}

/// Calls `probe` until it returns `Ok`, and returns that value.
///
/// An `Err` describes the observed state; the failure message contains the last one. The interval grows from 10 ms to
/// 250 ms.
///
/// ```no_run
/// # async fn doc(client: kube::Client) {
/// # use k8s_openapi::api::core::v1::Node;
/// let nodes = kube::Api::<Node>::all(client);
/// testkit::eventually("the taint is gone", 20, async || {
///     let node = nodes.get("worker-1").await.map_err(|e| e.to_string())?;
///     match node.spec.unwrap_or_default().taints {
///         None => Ok(()),
///         Some(taints) => Err(format!("{taints:?}")),
///     }
/// })
/// .await;
/// # }
/// ```
///
/// # Panics
/// If the deadline passes first.
#[track_caller]
pub fn eventually<T, E: Display>(
    what: &str,
    within: impl Into<Deadline>,
    mut probe: impl AsyncFnMut() -> Result<T, E>,
) -> impl Future<Output = T> {
    let Deadline(within) = within.into();
    let caller = Location::caller();
    async move {
        let end = Instant::now() + within;
        let mut pause = Duration::from_millis(10);
        let mut seen = String::new();
        loop {
            match tokio::time::timeout_at(end, probe()).await {
                Ok(Ok(value)) => return value,
                Ok(Err(now)) => seen = now.to_string(),
                // The previous state says more than a deadline in the middle of a call.
                Err(_) if seen.is_empty() => {
                    "the probe did not return in time".clone_into(&mut seen);
                }
                Err(_) => {}
            }
            assert!(
                Instant::now() + pause <= end,
                "{caller}: not so within {within:?}: {what}\n  last seen: {seen}"
            );
            sleep(pause).await;
            pause = (pause * 3 / 2).min(Duration::from_millis(250));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_value_is_returned_once_available() {
        let mut attempts = 0;
        let answer = eventually("five attempts", 10, async || {
            attempts += 1;
            if attempts < 5 { Err(format!("{attempts} attempts")) } else { Ok(attempts) }
        })
        .await;
        assert_eq!(answer, 5);
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "last seen: the moon")]
    async fn the_failure_message_contains_the_last_observed_state() {
        eventually("the sun is seen", 1, async || Err::<(), _>("the moon")).await;
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "did not return in time")]
    async fn a_hanging_attempt_ends_at_the_deadline() {
        eventually("an answer", 1, async || std::future::pending::<Result<(), &str>>().await).await;
    }
}
