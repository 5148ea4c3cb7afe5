use serde::{Deserialize, Serialize};

/// A fact, or the reason why it is unknown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Known<T> {
    Known(T),
    Unknown {
        /// A sentence for admins.
        reason: String,
    },
}

impl<T> Default for Known<T> {
    fn default() -> Self {
        Self::unknown("VDO has not checked it yet")
    }
}

impl<T> From<T> for Known<T> {
    fn from(value: T) -> Self {
        Self::Known(value)
    }
}

impl<T> Known<T> {
    pub fn unknown(reason: &str) -> Self {
        Self::Unknown { reason: reason.to_owned() }
    }

    pub fn get(&self) -> Option<&T> {
        match self {
            Self::Known(value) => Some(value),
            Self::Unknown { .. } => None,
        }
    }

    pub fn get_mut(&mut self) -> Option<&mut T> {
        match self {
            Self::Known(value) => Some(value),
            Self::Unknown { .. } => None,
        }
    }

    /// The value, if it is known.
    pub fn ok(self) -> Option<T> {
        match self {
            Self::Known(value) => Some(value),
            Self::Unknown { .. } => None,
        }
    }

    pub fn as_ref(&self) -> Known<&T> {
        match self {
            Self::Known(value) => Known::Known(value),
            Self::Unknown { reason } => Known::unknown(reason),
        }
    }

    /// Applies `make` to a known value.
    pub fn map<R>(self, make: impl FnOnce(T) -> R) -> Known<R> {
        self.and_then(|value| Known::Known(make(value)))
    }

    pub fn and_then<R>(self, make: impl FnOnce(T) -> Known<R>) -> Known<R> {
        match self {
            Self::Known(value) => make(value),
            Self::Unknown { reason } => Known::Unknown { reason },
        }
    }

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
