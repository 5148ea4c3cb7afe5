//! Text that must not be seen.

use std::fmt;

use secrecy::{ExposeSecret, SecretString};

/// A password, a token, or a whole document that contains one.
///
/// `Debug` never shows the text, there is no `Display`, and the memory is wiped on drop. The only
/// way to the text is [`SecretText::expose`], so every place that reads it can be found by name.
/// Equality is offered because configurations are compared to see whether anything changed; it is
/// not constant-time and must not be used to check a password someone presents.
#[derive(Clone, Default)]
pub struct SecretText(SecretString);

impl SecretText {
    /// The text itself. Keep the borrow short, and never format it.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }

    /// Whether there is no text at all, which both drivers take for "not set".
    pub fn is_empty(&self) -> bool {
        self.expose().is_empty()
    }
}

impl From<String> for SecretText {
    fn from(text: String) -> Self {
        Self(SecretString::from(text))
    }
}

impl From<&str> for SecretText {
    fn from(text: &str) -> Self {
        Self(SecretString::from(text))
    }
}

impl From<SecretString> for SecretText {
    fn from(text: SecretString) -> Self {
        Self(text)
    }
}

impl PartialEq for SecretText {
    fn eq(&self, other: &Self) -> bool {
        self.expose() == other.expose()
    }
}

impl Eq for SecretText {}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() {
            "SecretText(empty)"
        } else {
            "SecretText(hidden)"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_says_whether_there_is_a_secret_but_never_which() {
        assert_eq!(
            format!("{:?}", SecretText::from("hunter2")),
            "SecretText(hidden)"
        );
        assert_eq!(format!("{:?}", SecretText::default()), "SecretText(empty)");
    }
}
