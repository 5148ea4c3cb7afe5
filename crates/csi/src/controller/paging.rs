//! Pages of sorted lists. A token names the last entry of the page before, so entries that come and go in between
//! neither repeat nor hide others.

use snafu::Snafu;

const PREFIX: &str = "after:";

#[derive(Debug, Snafu)]
pub(super) enum PageError {
    #[snafu(display("max_entries is negative: {max_entries}"))]
    Negative { max_entries: i32 },
    #[snafu(display(
        "the starting token \"{token}\" is not one of this driver; start again without a token"
    ))]
    Token { token: String },
}

impl From<PageError> for tonic::Status {
    fn from(error: PageError) -> Self {
        match &error {
            PageError::Negative { .. } => Self::invalid_argument(error.to_string()),
            PageError::Token { .. } => Self::aborted(error.to_string()),
        }
    }
}

/// One page of `all`, which is sorted by `key`, and the token of the next page.
pub(super) fn page<T>(
    all: Vec<T>,
    key: impl Fn(&T) -> &str,
    starting_token: &str,
    max_entries: i32,
) -> Result<(Vec<T>, String), PageError> {
    let Ok(most) = usize::try_from(max_entries) else {
        return NegativeSnafu { max_entries }.fail();
    };
    let start = match starting_token {
        "" => 0,
        token => {
            let Some(last) = token.strip_prefix(PREFIX) else {
                return TokenSnafu { token }.fail();
            };
            all.partition_point(|entry| key(entry) <= last)
        }
    };
    let rest = all.len() - start;
    let take = if most == 0 { rest } else { most.min(rest) };
    let page: Vec<T> = all.into_iter().skip(start).take(take).collect();
    let next = match page.last() {
        Some(last) if take < rest => format!("{PREFIX}{}", key(last)),
        _ => String::new(),
    };
    Ok((page, next))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(token: &str, most: i32) -> (Vec<&'static str>, String) {
        page(vec!["a", "b", "c", "d"], |entry| entry, token, most).unwrap()
    }

    #[test]
    fn pages_follow_each_other_without_gaps() {
        let (first, token) = list("", 3);
        assert_eq!(first, ["a", "b", "c"]);
        let (second, end) = list(&token, 3);
        assert_eq!((second, end.as_str()), (vec!["d"], ""));
        assert_eq!(list("", 0).0.len(), 4);
        assert_eq!(list("", 4).1, "", "an exact page is the last one");
    }

    #[test]
    fn an_entry_that_vanished_does_not_break_the_list() {
        assert_eq!(list("after:bb", 0).0, ["c", "d"]);
        assert_eq!(list("after:zz", 0).0.len(), 0);
    }

    #[test]
    fn a_foreign_token_is_aborted() {
        let error = page(vec!["a"], |entry| entry, "invalid-token", 0).unwrap_err();
        assert_eq!(tonic::Status::from(error).code(), tonic::Code::Aborted);
        let error = page(vec!["a"], |entry| entry, "", -1).unwrap_err();
        assert_eq!(tonic::Status::from(error).code(), tonic::Code::InvalidArgument);
    }
}
