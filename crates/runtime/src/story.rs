//! An error and everything behind it, in one line.

use std::error::Error;

/// What failed, and why, and why that: each after a colon. Our errors do not repeat their source, so
/// nothing is said twice.
pub fn story(error: &dyn Error) -> String {
    let mut story = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        story.push_str(": ");
        story.push_str(&source.to_string());
        next = source.source();
    }
    story
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, snafu::Snafu)]
    #[snafu(display("the lid does not close"))]
    struct Lid {
        source: std::io::Error,
    }

    #[test]
    fn every_cause_is_told_once_and_in_order() {
        let lid = Lid { source: std::io::Error::other("a spoon is in the way") };
        assert_eq!(story(&lid), "the lid does not close: a spoon is in the way");
        assert_eq!(story(&std::io::Error::other("a spoon")), "a spoon");
    }
}
