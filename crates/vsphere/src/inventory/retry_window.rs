//! How often vCenter is asked for objects whose fate is open.

use std::time::Duration;

use tokio::time::Instant;

/// After the first question without an answer; it doubles with every further one.
const FIRST: Duration = Duration::from_secs(1);

/// The longest pause between two questions.
const MOST: Duration = Duration::from_mins(5);

/// When to ask again for objects whose fate is open.
#[derive(Debug, Default)]
pub(super) struct RetryWindow {
    /// When, and how long was waited for it. `None` when nothing is open.
    next: Option<(Instant, Duration)>,
}

impl RetryWindow {
    /// How long until it is time; `None` when nothing is open.
    pub(super) fn left(&self, now: Instant) -> Option<Duration> {
        self.next.map(|(at, _)| at.saturating_duration_since(now))
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.left(now).is_some_and(|left| left.is_zero())
    }

    /// Says that vCenter was asked, whether something is open still, and whether those asked for
    /// before were among the questions.
    pub(super) fn asked(&mut self, now: Instant, unanswered: bool, again: bool) {
        let pause = match self.next {
            _ if !unanswered => {
                self.next = None;
                return;
            }
            Some(_) if !again => return,
            Some((_, pause)) => pause.saturating_mul(2).min(MOST),
            None => FIRST,
        };
        self.next = Some((now + pause, pause));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vcenter_that_does_not_answer_is_asked_less_and_less_often() {
        let mut now = Instant::now();
        let mut retry_window = RetryWindow::default();
        assert!(retry_window.left(now).is_none() && !retry_window.is_due(now));
        retry_window.asked(now, true, false);
        let mut pauses = Vec::new();
        for _ in 0..12 {
            let left = retry_window.left(now).unwrap();
            pauses.push(left.as_secs());
            assert!(!retry_window.is_due(now));
            // Something else leaves meanwhile: that is asked for, but does not hurry the others.
            retry_window.asked(now, true, false);
            now += left;
            assert!(retry_window.is_due(now));
            retry_window.asked(now, true, true);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
        retry_window.asked(now, false, true);
        assert!(retry_window.left(now).is_none(), "all are answered for");
    }
}
