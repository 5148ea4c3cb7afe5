//! Secret text.

use std::fmt;

use secrecy::{ExposeSecret, SecretString};
use zeroize::Zeroizing;

/// A password, a token, or a whole document that contains one.
///
/// `Debug` never shows the text, there is no `Display`, and the memory is wiped on drop. Only
/// [`SecretText::expose`] returns the text, so every reader can be found by that name. Equality serves to detect
/// configuration changes. It is not constant-time: do not use it to verify a password.
#[derive(Clone, Default)]
pub struct SecretText(SecretString);

impl SecretText {
    /// Returns the text. Keep the borrow short, and never format it.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }

    /// True without text, which both drivers treat as "not set".
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
        f.write_str(if self.is_empty() { "SecretText(empty)" } else { "SecretText(hidden)" })
    }
}

/// A text that leaves no copies in freed memory when it grows, and is wiped on drop.
#[derive(Default)]
pub(crate) struct WipedText(Zeroizing<String>);

impl WipedText {
    pub(crate) fn push_str(&mut self, more: &str) {
        if self.0.capacity() - self.0.len() < more.len() {
            let room = (self.0.len() + more.len()).max(256) * 2;
            let mut grown = Zeroizing::new(String::with_capacity(room));
            grown.push_str(&self.0);
            self.0 = grown;
        }
        self.0.push_str(more);
    }

    pub(crate) fn push(&mut self, c: char) {
        self.push_str(c.encode_utf8(&mut [0; 4]));
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Write for WipedText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_held_a_secret_is_wiped() {
        // Freed memory cannot be inspected. So the types must promise to wipe it, or this does not compile.
        fn is_wiped(_: &impl zeroize::ZeroizeOnDrop) {}
        is_wiped(&SecretText::from("hunter2").0);
        let mut text = WipedText::default();
        text.push_str("hunter2");
        is_wiped(&text.0);
        assert_eq!(text.as_str(), "hunter2");
    }

    #[test]
    fn debug_shows_that_there_is_a_secret_but_never_its_text() {
        assert_eq!(format!("{:?}", SecretText::from("hunter2")), "SecretText(hidden)");
        assert_eq!(format!("{:?}", SecretText::default()), "SecretText(empty)");
    }
}
