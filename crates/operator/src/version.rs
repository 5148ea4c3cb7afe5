//! Which version the cluster is, while its API servers do not agree.
//!
//! A control plane is upgraded one API server after the other, and any of them may answer. A cloud
//! controller of a newer minor must not run before all of them are of it: so a newer minor is believed
//! only when it was answered time after time, for long enough that an older one would have answered
//! too. Each time on a connection of its own: one that is kept leads to the same API server for hours,
//! whichever others there are behind the same address. What was believed once is not taken back: a
//! cluster does not go back, an old API server that answers once more is one that is about to go.

use catalog::version::KubernetesVersion;
use jiff::{SignedDuration, Timestamp};

/// So many answers in a row have to be of the newer minor.
const ANSWERS: u32 = 5;
/// And between the first of them and the last there has to be this time, where nobody says another.
pub const SETTLED: SignedDuration = SignedDuration::from_mins(10);

/// The version the cluster is taken to be of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Believed {
    /// The version.
    pub version: KubernetesVersion,
    /// As the API server says it.
    pub text: String,
    /// A newer minor that was answered since.
    newer: Option<Newer>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Newer {
    minor: (u32, u32),
    answers: u32,
    since: Timestamp,
}

impl Believed {
    /// What the first answer said: there is nothing to compare it with.
    pub fn first(version: KubernetesVersion, text: String) -> Self {
        Self { version, text, newer: None }
    }

    /// What the first answer said, after what an operator before this one believed: that one may be the
    /// first to have ended in an upgrade of the control plane.
    #[must_use]
    pub fn after(self, before: &str, now: Timestamp) -> Self {
        match before.parse::<KubernetesVersion>() {
            Ok(version) if version < self.version => {
                Self::first(version, before.to_owned()).answered(&self, now, SETTLED)
            }
            // A cluster that was put back to an older one is believed to whom has not seen it newer.
            _ => self,
        }
    }

    /// What is believed after one more answer, where a newer minor counts after the time `settled`.
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

    /// Whether a newer one was answered and is not believed yet: it has to be asked again soon.
    pub fn is_in_doubt(&self) -> bool {
        self.newer.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_that_is_new_goes_on_believing_what_the_one_before_it_did() {
        let said = |text: &str| Believed::first(text.parse().unwrap(), text.to_owned());
        let now = Timestamp::UNIX_EPOCH;
        for (before, answer, believed) in [
            ("v1.35.2", "v1.36.0", "v1.35.2"),
            ("v1.35.2", "v1.35.3", "v1.35.3"),
            ("v1.36.0", "v1.35.2", "v1.35.2"),
            ("no version", "v1.36.0", "v1.36.0"),
        ] {
            assert_eq!(said(answer).after(before, now).text, believed, "{before}, {answer}");
        }
        assert!(said("v1.36.0").after("v1.35.2", now).is_in_doubt(), "it is asked again soon");
    }

    #[test]
    fn a_newer_minor_is_believed_when_no_older_one_answers_for_long_and_never_taken_back() {
        // Minutes, answers, and what is believed after each.
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
                "one older answer and it begins anew",
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
        let said = |text: &str| Believed::first(text.parse().unwrap(), text.to_owned());
        for (what, answers) in table {
            let mut believed = said("v1.35.2");
            for (minute, answer, expected) in answers {
                let now = Timestamp::UNIX_EPOCH + SignedDuration::from_mins(*minute);
                believed = believed.answered(&said(answer), now, SETTLED);
                assert_eq!(believed.text, *expected, "{what}: {answer} after {minute} minutes");
                let doubt = believed.is_in_doubt();
                assert!(!doubt || answer.starts_with("v1.36"), "{what}: {answer}");
            }
        }
    }
}
