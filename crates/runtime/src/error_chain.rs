//! An error and everything behind it, in one line.

use std::error::Error;

/// What failed, and why, and why that: each after a colon. Our errors do not repeat their source; what
/// those of others repeat is said once.
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

/// The words of an error without the debug form the Kubernetes client adds to them.
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
    fn every_cause_is_told_once_and_in_order() {
        let lid = Lid { source: std::io::Error::other("a spoon is in the way") };
        assert_eq!(error_chain(&lid), "the lid does not close: a spoon is in the way");
        assert_eq!(error_chain(&std::io::Error::other("a spoon")), "a spoon");
    }

    #[test]
    fn what_an_api_server_refused_is_told_in_its_words_alone() {
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
