//! Waiting for a condition, with a deadline and the last thing seen in the failure text.

use std::{fmt::Display, future::Future, panic::Location, time::Duration};

use tokio::time::{Instant, sleep};

/// A plain number of seconds is what an idle machine needs at most; a busy one gets this many times
/// as much. A deadline ends a test that hangs, it measures nothing.
const BUSY: u64 = 4;

/// How long [`eventually`] waits: `20` for what takes up to 20 seconds on an idle machine,
/// `Duration::from_secs(20)` for 20 seconds and no more.
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

/// Asks `probe` again and again until it answers `Ok`, and returns that answer.
///
/// An `Err` says what was seen instead of what was wanted; the last one stands in the failure text.
/// The pause between two questions grows from 10 ms to 250 ms.
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
/// When the deadline passes first.
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
                // What was seen the time before says more than that the deadline came in between.
                Err(_) if seen.is_empty() => {
                    "the question itself was not answered in time".clone_into(&mut seen);
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
    async fn the_answer_is_returned_once_it_is_there() {
        let mut asked = 0;
        let answer = eventually("asked five times", 10, async || {
            asked += 1;
            if asked < 5 { Err(format!("asked {asked} times")) } else { Ok(asked) }
        })
        .await;
        assert_eq!(answer, 5);
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "last seen: the moon")]
    async fn the_failure_text_carries_what_was_seen_last() {
        eventually("the sun is seen", 1, async || Err::<(), _>("the moon")).await;
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "not answered in time")]
    async fn a_question_that_hangs_is_cut_off_at_the_deadline() {
        eventually("an answer", 1, async || std::future::pending::<Result<(), &str>>().await).await;
    }
}
