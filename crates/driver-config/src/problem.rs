//! A valid configuration that the driver would still refuse or fail on.

use std::fmt;

/// When the driver fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// The driver exits at startup.
    Refused,
    /// The driver starts, and fails or misbehaves later.
    Later,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The key as an admin would write it.
    pub path: String,
    /// The problem and the fix, in one sentence.
    pub text: String,
    pub effect: Effect,
}

impl Problem {
    pub(crate) fn refused(path: impl Into<String>, text: impl Into<String>) -> Self {
        Self { path: path.into(), text: text.into(), effect: Effect::Refused }
    }

    pub(crate) fn later(path: impl Into<String>, text: impl Into<String>) -> Self {
        Self { path: path.into(), text: text.into(), effect: Effect::Later }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {}", self.path, self.text)
    }
}
