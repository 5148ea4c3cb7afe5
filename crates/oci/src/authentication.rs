//! The demands of a registry before it serves a request: HTTP Basic authentication, or a token of its token service.

use std::collections::BTreeMap;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use secrecy::{ExposeSecret as _, SecretString};

use crate::credentials::Account;

/// The content of a header `WWW-Authenticate`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Challenge {
    Basic,
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
}

impl Challenge {
    pub(crate) fn parse(header: &str) -> Option<Self> {
        let (scheme, rest) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let mut parameters = parameters(rest);
        let realm = parameters.remove("realm")?;
        let [service, scope] = ["service", "scope"].map(|name| parameters.remove(name));
        Some(Self::Bearer { realm, service, scope })
    }
}

/// `a="b",c=d`, with commas also inside quotes.
fn parameters(mut text: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    while let Some((name, rest)) = text.split_once('=') {
        let name = name.trim_matches([',', ' ']).to_ascii_lowercase();
        let (value, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => rest.split_once(',').unwrap_or((rest, "")),
        };
        found.insert(name, value.to_owned());
        text = after;
    }
    found
}

/// The value of the header `Authorization` for an account.
pub(crate) fn basic(account: &Account) -> SecretString {
    let pair = format!("{}:{}", account.user, account.password.expose_secret());
    format!("Basic {}", BASE64_STANDARD.encode(pair)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_of_known_registries_are_understood() {
        let bearer = |realm: &str, service: Option<&str>, scope: Option<&str>| {
            let [service, scope] = [service, scope].map(|text| text.map(str::to_owned));
            Some(Challenge::Bearer { realm: realm.to_owned(), service, scope })
        };
        let cases = [
            ("Basic realm=\"Registry Realm\"", Some(Challenge::Basic)),
            ("basic", Some(Challenge::Basic)),
            (
                r#"Bearer realm="https://a.b/token",service="a.b",scope="repository:x/y:pull,push""#,
                bearer("https://a.b/token", Some("a.b"), Some("repository:x/y:pull,push")),
            ),
            ("Bearer realm=https://a.b/t, service=s", bearer("https://a.b/t", Some("s"), None)),
            ("Bearer service=\"x\"", None),
            ("Negotiate", None),
            ("", None),
        ];
        for (header, expected) in cases {
            assert_eq!(Challenge::parse(header), expected, "{header}");
        }
    }
}
