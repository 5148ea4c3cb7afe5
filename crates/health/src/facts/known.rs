use serde::{Deserialize, Serialize};

/// A fact that may not be known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Known<T> {
    /// It is this.
    Known(T),
    /// It could not be observed.
    Unknown {
        /// Why not, as a sentence an admin understands.
        reason: String,
    },
}

impl<T> Default for Known<T> {
    fn default() -> Self {
        Self::unknown("it has not been looked at yet")
    }
}

impl<T> From<T> for Known<T> {
    fn from(value: T) -> Self {
        Self::Known(value)
    }
}

impl<T> Known<T> {
    /// Not known, for this reason.
    pub fn unknown(reason: &str) -> Self {
        Self::Unknown { reason: reason.to_owned() }
    }

    /// The fact, if it is known.
    pub fn get(&self) -> Option<&T> {
        match self {
            Self::Known(value) => Some(value),
            Self::Unknown { .. } => None,
        }
    }

    /// The fact to change, if it is known.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        match self {
            Self::Known(value) => Some(value),
            Self::Unknown { .. } => None,
        }
    }

    /// Why it is not known, if so.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Known(_) => None,
            Self::Unknown { reason } => Some(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_known_by_default_and_a_reason_is_always_there() {
        let fact = Known::<u8>::default();
        assert_eq!(fact.get(), None);
        assert!(fact.reason().is_some());
    }
}
