//! How often CNS is asked the same question again while somebody waits for another answer.
//!
//! A list of all volumes is expensive for vCenter, and an admin has to act before an answer changes that
//! blocks VDO. So the pauses grow, and the question is asked at once when one of its inputs changes. An answer
//! that lets VDO take a cluster id is used for a short time only.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use api::VDOConfig;
use kube::ResourceExt;
use plan::names;
use tokio::time::Instant;

use super::Vcenters;

/// The first pause, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_secs(20), Duration::from_mins(10));

/// How long an answer is used that does not block, and one that was given for other PersistentVolumes.
const AGE: Duration = Duration::from_secs(15);

/// The last answer of CNS to a question, and when to ask again.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) pace: Pace,
    pub(crate) result: Result<Vec<String>, String>,
}

/// The inputs of a question, how often it was asked with them, and when it is asked again.
#[derive(Debug)]
pub(crate) struct Pace {
    inputs: Inputs,
    /// How often in a row the answer was one that blocks.
    asked: u32,
    /// Until then the answer is used, whatever happens to the PersistentVolumes.
    fresh: Instant,
    due: Instant,
}

impl Pace {
    /// The pace after a question with these inputs. `blocks`: the answer keeps VDO from taking a cluster id.
    pub(crate) fn after(before: Option<&Self>, inputs: Inputs, blocks: bool) -> Self {
        let now = Instant::now();
        let fresh = now + AGE;
        if !blocks {
            return Self { inputs, asked: 0, fresh, due: fresh };
        }
        let same = before.filter(|before| before.inputs == inputs);
        let asked = same.map_or(0, |before| before.asked).saturating_add(1);
        Self { inputs, asked, fresh, due: now + pause(asked, inputs.question) }
    }

    /// Whether the last answer is good enough for a question with these inputs.
    pub(crate) fn holds(&self, inputs: Inputs) -> bool {
        let until = if self.inputs.volumes == inputs.volumes { self.due } else { self.fresh };
        self.inputs.question == inputs.question && Instant::now() < until
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

/// What the answer to a question depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inputs {
    /// Changes with the question: it is then asked at once.
    pub(crate) question: u64,
    /// The revision of the PersistentVolumes that CNS's answer is compared with. In a cluster where they
    /// come and go all the time, CNS is not asked for each of them.
    pub(crate) volumes: u64,
}

/// Stands for a question: what it is about, which vCenters are asked, since when each is connected, and what
/// the admin last asked to be checked at once.
pub(crate) fn question(
    vcenters: &Vcenters,
    config: &VDOConfig,
    of: &[String],
    about: impl Hash,
) -> u64 {
    let mut hasher = DefaultHasher::new();
    (about, config.annotations().get(names::CHECK_NOW)).hash(&mut hasher);
    for name in of {
        name.hash(&mut hasher);
        vcenters.known(name).map(|known| known.since).hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn inputs(question: u64, volumes: u64) -> Inputs {
        Inputs { question, volumes }
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_is_repeated_with_growing_pauses_and_at_once_when_its_inputs_change() {
        let mut pace: Option<Pace> = None;
        let mut questions = Vec::new();
        for second in 0..3 * 3_600_u32 {
            if !pace.as_ref().is_some_and(|pace| pace.holds(inputs(7, 1))) {
                questions.push(second);
                pace = Some(Pace::after(pace.as_ref(), inputs(7, 1), true));
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        let within = |end: u32| questions.iter().filter(|second| **second < end).count();
        assert!(within(60) <= 3, "{questions:?}");
        assert!((5..=8).contains(&within(900)), "{questions:?}");
        assert!((18..=26).contains(&questions.len()), "it goes on for hours: {questions:?}");
        let longest = questions.windows(2).map(|two| two[1] - two[0]).max().unwrap();
        assert!(longest <= 751, "{questions:?}");
        assert!(!pace.as_ref().unwrap().holds(inputs(8, 1)), "another input is another question");
        let fresh = Pace::after(pace.as_ref(), inputs(8, 1), true);
        tokio::time::advance(Duration::from_secs(25)).await;
        assert!(!fresh.holds(inputs(8, 1)), "the pauses begin again");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_lets_vdo_take_a_cluster_id_is_used_for_a_short_time() {
        let (now, then) = (inputs(7, 1), inputs(7, 2));
        let mut pace = Pace::after(None, now, false);
        for _ in 0..10 {
            assert!(pace.holds(now) && !pace.holds(inputs(8, 1)));
            tokio::time::advance(AGE).await;
            assert!(!pace.holds(now), "its pauses do not grow");
            pace = Pace::after(Some(&pace), now, false);
        }
        // The pauses of an answer that blocks begin with the shortest.
        let mut pace = Pace::after(Some(&pace), now, true);
        tokio::time::advance(Duration::from_secs(26)).await;
        assert!(!pace.holds(now));
        for _ in 0..5 {
            pace = Pace::after(Some(&pace), now, true);
        }
        assert!(pace.holds(then), "CNS is not asked for every volume that comes or goes");
        tokio::time::advance(AGE).await;
        assert!(pace.holds(now) && !pace.holds(then), "other volumes may lift the block");
    }

    #[test]
    fn two_clusters_do_not_ask_together() {
        let times = |salt| (1..9).map(|asked| pause(asked, salt)).sum::<Duration>();
        assert_ne!(times(1), times(2));
    }
}
