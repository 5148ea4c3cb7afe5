//! Decides how often VDO repeats a question to CNS while it waits for a different answer.
//!
//! A list of all volumes is expensive for vCenter, and an answer that blocks VDO changes only after an admin
//! acts. So the pauses grow, and VDO asks at once when an input of the question changes. VDO reuses an answer
//! that lets it take a cluster id for a short time only. While VDO proposes an adoption, it takes no cluster id, and
//! reuses such an answer for the longest pause.

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

/// How long VDO uses an answer that lets it take a cluster id, and an answer for an earlier set of PersistentVolumes.
const AGE: Duration = Duration::from_secs(15);

/// The last answer of CNS to a question, and the time of the next query.
#[derive(Debug)]
pub(crate) struct CnsAnswer {
    pub(crate) pace: Pace,
    pub(crate) result: Result<Vec<String>, String>,
}

/// The effect of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It prevents VDO from taking a cluster id.
    Blocks,
    /// It lets VDO take a cluster id.
    Allows,
    /// It would let VDO take a cluster id, but VDO only proposes an adoption. An admin who accepts it changes the
    /// question.
    AllowsProposal,
}

/// The inputs of a question, the number of queries with them, and the time of the next query.
#[derive(Debug)]
pub(crate) struct Pace {
    inputs: Inputs,
    /// The number of blocking answers in a row.
    asked: u32,
    /// VDO uses the answer until this time, even if the PersistentVolumes change.
    fresh: Instant,
    due: Instant,
}

impl Pace {
    /// The pace after a query with these inputs.
    pub(crate) fn after(before: Option<&Self>, inputs: Inputs, effect: Effect) -> Self {
        let now = Instant::now();
        let fresh = now + AGE;
        let used_until = |time| Self { inputs, asked: 0, fresh: time, due: time };
        match effect {
            Effect::Allows => return used_until(fresh),
            Effect::AllowsProposal => return used_until(now + PAUSES.1),
            Effect::Blocks => {}
        }
        let same = before.filter(|before| before.inputs == inputs);
        let asked = same.map_or(0, |before| before.asked).saturating_add(1);
        Self { inputs, asked, fresh, due: now + pause(asked, inputs.question) }
    }

    /// Whether the last answer is still valid for a question with these inputs.
    pub(crate) fn holds(&self, inputs: Inputs) -> bool {
        let until = if self.inputs.volumes == inputs.volumes { self.due } else { self.fresh };
        self.inputs.question == inputs.question && Instant::now() < until
    }
}

/// The pause after this number of queries: twice the previous one, plus up to a quarter. The extra spreads
/// the queries of clusters that started to wait at the same time.
fn pause(asked: u32, salt: u64) -> Duration {
    let pause = runtime::backoff::step(PAUSES.0, PAUSES.1, asked.saturating_sub(1));
    let mut hasher = DefaultHasher::new();
    (asked, salt).hash(&mut hasher);
    pause + pause / 400 * u32::try_from(hasher.finish() % 100).unwrap_or_default()
}

/// The inputs that the answer to a question depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inputs {
    /// Changes with the question; VDO then asks at once.
    pub(crate) question: u64,
    /// The revision of the PersistentVolumes that VDO compares the answer with. In a cluster where they come
    /// and go all the time, VDO does not query CNS for each change.
    pub(crate) volumes: u64,
}

/// Identifies a question: its subject, the vCenters that VDO asks, the start of each connection, and the
/// admin's last request for an immediate check.
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
                pace = Some(Pace::after(pace.as_ref(), inputs(7, 1), Effect::Blocks));
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
        let fresh = Pace::after(pace.as_ref(), inputs(8, 1), Effect::Blocks);
        tokio::time::advance(Duration::from_secs(25)).await;
        assert!(!fresh.holds(inputs(8, 1)), "the pauses begin again");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_lets_vdo_take_a_cluster_id_is_used_for_a_short_time() {
        let (now, then) = (inputs(7, 1), inputs(7, 2));
        let mut pace = Pace::after(None, now, Effect::Allows);
        for _ in 0..10 {
            assert!(pace.holds(now) && !pace.holds(inputs(8, 1)));
            tokio::time::advance(AGE).await;
            assert!(!pace.holds(now), "its pauses do not grow");
            pace = Pace::after(Some(&pace), now, Effect::Allows);
        }
        // The pauses after a blocking answer begin with the shortest.
        let mut pace = Pace::after(Some(&pace), now, Effect::Blocks);
        tokio::time::advance(Duration::from_secs(26)).await;
        assert!(!pace.holds(now));
        for _ in 0..5 {
            pace = Pace::after(Some(&pace), now, Effect::Blocks);
        }
        assert!(pace.holds(then), "CNS is not asked for every volume that comes or goes");
        tokio::time::advance(AGE).await;
        assert!(pace.holds(now) && !pace.holds(then), "other volumes may lift the block");
    }

    #[tokio::test(start_paused = true)]
    async fn while_vdo_proposes_an_adoption_it_asks_rarely() {
        let pace = Pace::after(None, inputs(7, 1), Effect::AllowsProposal);
        assert!(
            !pace.holds(inputs(8, 1)),
            "an admin who accepts the proposal changes the question"
        );
        tokio::time::advance(PAUSES.1 / 2).await;
        assert!(pace.holds(inputs(7, 1)) && pace.holds(inputs(7, 2)), "volumes come and go");
        tokio::time::advance(PAUSES.1 / 2).await;
        assert!(!pace.holds(inputs(7, 1)));
    }

    #[test]
    fn two_clusters_do_not_ask_together() {
        let times = |salt| (1..9).map(|asked| pause(asked, salt)).sum::<Duration>();
        assert_ne!(times(1), times(2));
    }
}
