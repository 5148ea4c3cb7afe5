//! A configuration that can change while the process runs.

use std::error::Error;

use crate::error_chain::error_chain;

/// The configuration in use. The caller reads the new one now and then.
#[derive(Debug)]
pub struct Followed<T> {
    current: T,
    last_error: String,
}

/// The meaning of the latest reading.
#[derive(Debug, PartialEq, Eq)]
pub enum Reading<T> {
    Same,
    Changed {
        before: T,
        now: T,
    },
    /// It cannot be used, for this reason. The configuration in use stays.
    Unusable(String),
}

impl<T: Clone + PartialEq> Followed<T> {
    pub fn new(current: T) -> Self {
        Self { current, last_error: String::new() }
    }

    /// Compares a reading with the configuration in use. Logs a change, and each new error once.
    pub fn read<E: Error + 'static>(&mut self, loaded: Result<T, E>) -> Reading<T> {
        match loaded {
            Ok(now) => {
                self.last_error.clear();
                if now == self.current {
                    return Reading::Same;
                }
                tracing::info!("the configuration changed");
                let before = std::mem::replace(&mut self.current, now.clone());
                Reading::Changed { before, now }
            }
            Err(error) => {
                let error = error_chain(&error);
                if error != self.last_error {
                    tracing::error!(
                        error,
                        "the changed configuration cannot be used; the old one stays in use"
                    );
                    self.last_error.clone_from(&error);
                }
                Reading::Unusable(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unusable_configuration_does_not_replace_the_one_in_use() {
        let mut followed = Followed::new(1);
        let unusable = followed.read::<std::fmt::Error>(Err(std::fmt::Error));
        assert!(matches!(unusable, Reading::Unusable(_)), "{unusable:?}");
        assert_eq!(followed.read::<std::fmt::Error>(Ok(1)), Reading::Same);
        let changed = followed.read::<std::fmt::Error>(Ok(2));
        assert_eq!(changed, Reading::Changed { before: 1, now: 2 });
        assert_eq!(followed.read::<std::fmt::Error>(Ok(2)), Reading::Same);
    }
}
