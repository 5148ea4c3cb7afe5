//! Removes secrets from texts before VDO shows or logs them.
//!
//! ```text
//!   names ──► text       log lines, messages, configuration files
//!     │  ├──► document   a user's YAML, masked so that every byte keeps its place
//!     │  ├──► xml        SOAP bodies
//!     └──────► values    the values of known Secrets, in every usual encoding (feature `values`)
//! ```
//!
//! [`is_secret_name`] is the only list of names. Every function prefers to redact too much.

mod document;
mod names;
mod text;
#[cfg(feature = "values")]
mod values;
mod xml;

pub use document::{mask_document, redact_message};
pub use names::{is_guest_variable, is_secret_name};
pub use text::{redact_line, redact_text};
#[cfg(feature = "values")]
pub use values::{SecretValue, SecretValues};
pub use xml::redact_xml;

/// Replaces a secret.
pub const REDACTED: &str = "(redacted)";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NAMES: [&str; 12] = [
        "password",
        "Passwd",
        "pwd",
        "VC_PASSPHRASE",
        "client-secret",
        "secretKey",
        "id_token",
        "private-key",
        "api_key",
        "sessionId",
        "vcSessionCookie",
        "Authorization",
    ];

    proptest! {
        #[test]
        fn no_secret_survives(
            before in "\\PC{0,20}",
            name in prop::sample::select(&NAMES[..]),
            sign in prop::sample::select(&["=", ":", " = ", ": ", "\": \"", "\\\":\\\""][..]),
            secret in "[A-Za-z0-9]{21,30}",
            after in "\\PC{0,20}",
        ) {
            let line = format!("{before} {name}{sign}{secret} {after}");
            for shown in [redact_line(&line), redact_text(&line), mask_document(&line)] {
                prop_assert!(!shown.contains(&secret), "{shown}");
            }
            let shown = redact_xml(&format!("<a><{name}>{secret}</{name}></a>{after}"));
            prop_assert!(!shown.contains(&secret), "{shown}");
        }

        #[test]
        fn every_text_is_accepted(text in "[\\PC\n\t]{0,80}") {
            prop_assert!(!redact_line(&text).contains('\n'));
            prop_assert_eq!(redact_text(&text).lines().count(), text.lines().count());
            prop_assert_eq!(mask_document(&text).len(), text.len());
            redact_xml(&text);
        }
    }
}
