//! An error and its causes in one line.

use std::error::Error;

/// The error and its sources, separated by colons. Errors of other crates often repeat their source; the
/// repetition is removed.
pub fn error_chain(error: &dyn Error) -> String {
    let mut error_chain = tidy(&error.to_string());
    let mut next = error.source();
    while let Some(source) = next {
        let text = tidy(&source.to_string());
        if !error_chain.contains(&text) {
            error_chain.push_str(": ");
            error_chain.push_str(&text);
        }
        next = source.source();
    }
    error_chain
}

/// Removes the debug output that the Kubernetes client adds to error messages.
pub fn tidy(text: &str) -> String {
    let text = text.split(": Status {").next().unwrap_or_default();
    let text = text.split(" (Status {").next().unwrap_or_default();
    text.strip_prefix("ApiError: ").unwrap_or(text).trim().to_owned()
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
    fn every_cause_appears_once_and_in_order() {
        let lid = Lid { source: std::io::Error::other("a spoon is in the way") };
        assert_eq!(error_chain(&lid), "the lid does not close: a spoon is in the way");
        assert_eq!(error_chain(&std::io::Error::other("a spoon")), "a spoon");
    }

    #[test]
    fn an_api_error_appears_without_debug_output() {
        let refused = kube::core::Status {
            message: "field is immutable".into(),
            reason: "Invalid".into(),
            code: 422,
            ..kube::core::Status::default()
        };
        let error = kube::Error::Api(refused.boxed());
        assert_eq!(error_chain(&error), "field is immutable: Invalid");
    }
}
