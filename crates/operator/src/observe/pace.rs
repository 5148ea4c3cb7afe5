//! How often CNS is asked the same question again while somebody waits for another answer.
//!
//! A list of all volumes is expensive for vCenter, and an admin has to act before the answer changes. So
//! the pauses grow, and the question is asked at once when one of its inputs changes.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use api::VDOConfig;
use kube::ResourceExt;
use tokio::time::Instant;

use crate::{names, vcenters::Vcenters};

/// The first pause, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_secs(20), Duration::from_mins(10));

/// The inputs of a question, how often it was asked with them, and when it is asked again.
#[derive(Debug)]
pub(crate) struct Pace {
    inputs: u64,
    asked: u32,
    due: Instant,
}

impl Pace {
    /// The pace after a question with these inputs.
    pub(super) fn after(before: Option<&Self>, inputs: u64) -> Self {
        let same = before.filter(|before| before.inputs == inputs);
        let asked = same.map_or(1, |before| before.asked.saturating_add(1));
        Self { inputs, asked, due: Instant::now() + pause(asked, inputs) }
    }

    /// Whether the last answer is good enough for a question with these inputs.
    pub(super) fn holds(&self, inputs: u64) -> bool {
        self.inputs == inputs && Instant::now() < self.due
    }
}

/// The pause after so many questions: twice the one before, and up to a quarter more, by which clusters
/// that began to wait together do not ask together.
fn pause(asked: u32, salt: u64) -> Duration {
    let (first, longest) = PAUSES;
    let pause = first.saturating_mul(1 << asked.saturating_sub(1).min(16)).min(longest);
    let mut hasher = DefaultHasher::new();
    (asked, salt).hash(&mut hasher);
    pause + pause / 400 * u32::try_from(hasher.finish() % 100).unwrap_or_default()
}

/// The inputs of a question about an identity: which vCenters are asked, since when each is connected, and
/// what the admin last asked to be checked at once.
pub(super) fn inputs(vcenters: &Vcenters, config: &VDOConfig, of: &[String], id: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (id, config.annotations().get(names::CHECK_NOW)).hash(&mut hasher);
    for name in of {
        name.hash(&mut hasher);
        vcenters.known(name).map(|known| known.since).hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_question_is_repeated_with_growing_pauses_and_at_once_when_its_inputs_change() {
        let mut pace: Option<Pace> = None;
        let mut questions = Vec::new();
        for second in 0..3 * 3_600_u32 {
            if !pace.as_ref().is_some_and(|pace| pace.holds(7)) {
                questions.push(second);
                pace = Some(Pace::after(pace.as_ref(), 7));
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        let within = |end: u32| questions.iter().filter(|second| **second < end).count();
        assert!(within(60) <= 3, "{questions:?}");
        assert!((5..=8).contains(&within(900)), "{questions:?}");
        assert!((18..=26).contains(&questions.len()), "it goes on for hours: {questions:?}");
        let longest = questions.windows(2).map(|two| two[1] - two[0]).max().unwrap();
        assert!(longest <= 751, "{questions:?}");
        assert!(!pace.as_ref().unwrap().holds(8), "another input is another question");
        let fresh = Pace::after(pace.as_ref(), 8);
        tokio::time::advance(Duration::from_secs(25)).await;
        assert!(!fresh.holds(8), "the pauses begin again");
    }

    #[test]
    fn two_clusters_do_not_ask_together() {
        let times = |salt| (1..9).map(|asked| pause(asked, salt)).sum::<Duration>();
        assert_ne!(times(1), times(2));
    }
}
