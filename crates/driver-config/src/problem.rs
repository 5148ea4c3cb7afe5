//! What a driver would object to in a configuration that reads well.

use std::fmt;

/// When the driver notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// The driver exits when it starts.
    Refused,
    /// The driver starts, and fails or misbehaves later.
    Later,
}

/// One objection: where, what, and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The key, as an admin would point at it.
    pub path: String,
    /// A sentence that says what is wrong and what to write.
    pub text: String,
    /// When the driver notices.
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
