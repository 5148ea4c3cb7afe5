//! The schedule for repeated existence checks.

use std::time::Duration;

use tokio::time::Instant;

/// The pause after the first unanswered check. It doubles after each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// The maximum pause between checks.
const MAX_PAUSE: Duration = Duration::from_mins(5);

/// When to repeat the existence check of objects with an unknown reason of absence.
#[derive(Debug, Default)]
pub(super) struct RetryWindow {
    /// The time of the next check and the pause before it. `None` if no check is open.
    next: Option<(Instant, Duration)>,
}

impl RetryWindow {
    /// The time until the next check. `None` if no check is open.
    pub(super) fn left(&self, now: Instant) -> Option<Duration> {
        self.next.map(|(at, _)| at.saturating_duration_since(now))
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.left(now).is_some_and(|left| left.is_zero())
    }

    /// Records a check. `unanswered` says whether any object is still without an answer. `again`
    /// says whether the check included earlier unanswered objects.
    pub(super) fn record_check(&mut self, now: Instant, unanswered: bool, again: bool) {
        let pause = match self.next {
            _ if !unanswered => {
                self.next = None;
                return;
            }
            Some(_) if !again => return,
            Some((_, pause)) => pause.saturating_mul(2).min(MAX_PAUSE),
            None => FIRST_PAUSE,
        };
        self.next = Some((now + pause, pause));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_of_a_silent_vcenter_become_rarer() {
        let mut now = Instant::now();
        let mut retry_window = RetryWindow::default();
        assert!(retry_window.left(now).is_none() && !retry_window.is_due(now));
        retry_window.record_check(now, true, false);
        let mut pauses = Vec::new();
        for _ in 0..12 {
            let left = retry_window.left(now).unwrap();
            pauses.push(left.as_secs());
            assert!(!retry_window.is_due(now));
            // Another object leaves in the meantime. Its check does not advance the schedule.
            retry_window.record_check(now, true, false);
            now += left;
            assert!(retry_window.is_due(now));
            retry_window.record_check(now, true, true);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
        retry_window.record_check(now, false, true);
        assert!(retry_window.left(now).is_none(), "all checks have answers");
    }
}
