//! Determines the version of the cluster while its API servers disagree.
//!
//! An upgrade of a control plane replaces one API server after the other, and any of them may answer. A cloud
//! controller of a newer minor version must not run before all of them have that version. So VDO accepts a
//! newer minor version only after repeated answers, over a time in which an older API server would have
//! answered too.
//!
//! VDO uses a new connection for each request. A connection that stays open leads to the same API server for
//! hours, whatever others are behind the same address.
//!
//! VDO does not return to an older version after it accepted a newer one. Clusters are not downgraded: an old
//! API server that answers once more is about to be replaced.

use catalog::version::KubernetesVersion;
use jiff::{SignedDuration, Timestamp};

/// The number of consecutive answers with the newer minor version that VDO requires.
const ANSWERS: u32 = 5;
/// The default for the minimum time between the first and the last of these answers.
pub const SETTLED: SignedDuration = SignedDuration::from_mins(10);

/// The accepted version of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Believed {
    pub version: KubernetesVersion,
    /// The version as the API server reports it.
    pub text: String,
    /// A newer minor version that API servers have reported since.
    newer: Option<Newer>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Newer {
    minor: (u32, u32),
    answers: u32,
    since: Timestamp,
}

impl Believed {
    /// The first answer, which there is nothing to compare with.
    pub fn first(version: KubernetesVersion, text: String) -> Self {
        Self { version, text, newer: None }
    }

    /// The first answer of this operator, after the version that the previous operator accepted. The previous
    /// pod may be the first to have stopped in an upgrade of the control plane.
    #[must_use]
    pub fn after(self, before: &str, now: Timestamp) -> Self {
        match before.parse::<KubernetesVersion>() {
            Ok(version) if version < self.version => {
                Self::first(version, before.to_owned()).answered(&self, now, SETTLED)
            }
            // A new operator accepts an older version if the cluster was restored to it: it has not seen the
            // newer one.
            _ => self,
        }
    }

    /// The accepted version after one more answer. VDO accepts a newer minor version after the time
    /// `settled`.
    #[must_use]
    pub fn answered(mut self, answer: &Self, now: Timestamp, settled: SignedDuration) -> Self {
        let minor = |version: &KubernetesVersion| (version.major, version.minor);
        let (old, new) = (minor(&self.version), minor(&answer.version));
        if new <= old {
            self.newer = None;
            let later = new == old && answer.version >= self.version;
            return if later { answer.clone() } else { self };
        }
        let before = self.newer.take().filter(|newer| newer.minor == new);
        let mut newer = before.unwrap_or(Newer { minor: new, answers: 0, since: now });
        newer.answers += 1;
        if newer.answers >= ANSWERS && now.duration_since(newer.since) >= settled {
            return answer.clone();
        }
        self.newer = Some(newer);
        self
    }

    /// Whether an API server reported a newer version that VDO has not accepted yet. VDO must ask again soon.
    pub fn is_in_doubt(&self) -> bool {
        self.newer.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_operator_keeps_the_version_that_its_predecessor_accepted() {
        let answer_of = |text: &str| Believed::first(text.parse().unwrap(), text.to_owned());
        let now = Timestamp::UNIX_EPOCH;
        for (before, answer, believed) in [
            ("v1.35.2", "v1.36.0", "v1.35.2"),
            ("v1.35.2", "v1.35.3", "v1.35.3"),
            ("v1.36.0", "v1.35.2", "v1.35.2"),
            ("no version", "v1.36.0", "v1.36.0"),
        ] {
            assert_eq!(answer_of(answer).after(before, now).text, believed, "{before}, {answer}");
        }
        assert!(answer_of("v1.36.0").after("v1.35.2", now).is_in_doubt(), "it is asked again soon");
    }

    #[test]
    fn a_newer_minor_is_believed_once_no_older_one_answers_and_then_stays() {
        // The minute of each answer, the answer, and the accepted version after it.
        type Answers = &'static [(i64, &'static str, &'static str)];
        let table: [(&str, Answers); 6] = [
            ("a patch is taken at once", &[(1, "v1.35.3", "v1.35.3")]),
            ("an older patch is not", &[(1, "v1.35.0", "v1.35.2")]),
            (
                "a minor after enough answers and enough time",
                &[
                    (0, "v1.36.0", "v1.35.2"),
                    (3, "v1.36.0", "v1.35.2"),
                    (6, "v1.36.0", "v1.35.2"),
                    (8, "v1.36.1", "v1.35.2"),
                    (10, "v1.36.1", "v1.36.1"),
                ],
            ),
            (
                "many answers at once are not enough",
                &[
                    (0, "v1.36.0", "v1.35.2"),
                    (1, "v1.36.0", "v1.35.2"),
                    (2, "v1.36.0", "v1.35.2"),
                    (3, "v1.36.0", "v1.35.2"),
                    (4, "v1.36.0", "v1.35.2"),
                    (5, "v1.36.0", "v1.35.2"),
                ],
            ),
            (
                "one older answer and it begins again",
                &[
                    (0, "v1.36.0", "v1.35.2"),
                    (4, "v1.36.0", "v1.35.2"),
                    (8, "v1.36.0", "v1.35.2"),
                    (12, "v1.35.2", "v1.35.2"),
                    (13, "v1.36.0", "v1.35.2"),
                    (14, "v1.36.0", "v1.35.2"),
                    (15, "v1.36.0", "v1.35.2"),
                    (16, "v1.36.0", "v1.35.2"),
                    (22, "v1.36.0", "v1.35.2"),
                    (23, "v1.36.0", "v1.36.0"),
                ],
            ),
            ("an older minor is not believed", &[(1, "v1.34.9", "v1.35.2")]),
        ];
        let answer_of = |text: &str| Believed::first(text.parse().unwrap(), text.to_owned());
        for (what, answers) in table {
            let mut believed = answer_of("v1.35.2");
            for (minute, answer, expected) in answers {
                let now = Timestamp::UNIX_EPOCH + SignedDuration::from_mins(*minute);
                believed = believed.answered(&answer_of(answer), now, SETTLED);
                assert_eq!(believed.text, *expected, "{what}: {answer} after {minute} minutes");
                let doubt = believed.is_in_doubt();
                assert!(!doubt || answer.starts_with("v1.36"), "{what}: {answer}");
            }
        }
    }
}
