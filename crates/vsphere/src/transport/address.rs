//! The address of a vCenter.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use crate::error::{BadAddressSnafu, Error};

const HTTPS: u16 = 443;

/// Host and port of a vCenter.
///
/// Parses `vc.example.com`, `vc.example.com:8443`, `10.0.0.1`, `fd00::1`, `[fd00::1]:8443` and
/// `https://vc.example.com/sdk`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Address {
    host: String,
    port: u16,
}

impl Address {
    /// The host name or IP address, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of `path` on this host.
    pub(crate) fn url(&self, path: &str) -> String {
        if self.host.contains(':') {
            format!("https://[{}]:{}{path}", self.host, self.port)
        } else {
            format!("https://{}:{}{path}", self.host, self.port)
        }
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(given: &str) -> Result<Self, Error> {
        let invalid = |why| BadAddressSnafu { given: hide_login(given), why }.fail();
        let text = given.trim();
        if text.starts_with("http://") {
            return invalid("vCenter requires https");
        }
        let text = text.strip_prefix("https://").unwrap_or(text);
        let text = text.split('/').next().unwrap_or_default();
        if text.contains('@') {
            return invalid("it must not contain a user or password");
        }
        if text.parse::<Ipv6Addr>().is_ok() {
            return Ok(Self { host: text.to_owned(), port: HTTPS });
        }
        let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, rest)) => {
                if host.parse::<Ipv6Addr>().is_err() {
                    return invalid("the text in brackets is not an IPv6 address");
                }
                (host, rest.strip_prefix(':'))
            }
            None => match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let port = match port.map(str::parse::<u16>) {
            None => HTTPS,
            Some(Ok(port)) if port != 0 => port,
            Some(_) => return invalid("the port is not a number from 1 to 65535"),
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if host.is_empty() {
            return invalid("it has no host");
        }
        if host.parse::<IpAddr>().is_err() && !host.chars().all(is_name) {
            return invalid("it has characters that a host name cannot have");
        }
        Ok(Self { host: host.to_ascii_lowercase(), port })
    }
}

/// Hides everything before an `@`, because it may be a password.
fn hide_login(given: &str) -> String {
    match given.rsplit_once('@') {
        Some((_, rest)) => format!("***@{rest}"),
        None => given.to_owned(),
    }
}

impl fmt::Display for Address {
    /// The host, with the port unless it is 443.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.port, self.host.contains(':')) {
            (HTTPS, _) => f.write_str(&self.host),
            (port, true) => write!(f, "[{}]:{port}", self.host),
            (port, false) => write!(f, "{}:{port}", self.host),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_in_all_common_forms() {
        for (given, shown, url) in [
            ("VC.example.com", "vc.example.com", "https://vc.example.com:443/sdk"),
            ("https://vc.example.com/sdk", "vc.example.com", "https://vc.example.com:443/sdk"),
            ("vc:8443", "vc:8443", "https://vc:8443/sdk"),
            ("10.0.0.1", "10.0.0.1", "https://10.0.0.1:443/sdk"),
            ("fd00::1", "fd00::1", "https://[fd00::1]:443/sdk"),
            (" [fd00::1]:8443 ", "[fd00::1]:8443", "https://[fd00::1]:8443/sdk"),
        ] {
            let address: Address = given.parse().unwrap();
            assert_eq!((address.to_string().as_str(), address.url("/sdk").as_str()), (shown, url));
        }
    }

    #[test]
    fn an_invalid_address_is_rejected_with_a_reason() {
        for (given, why) in [
            ("", "it has no host"),
            ("http://vc", "vCenter requires https"),
            ("vc:port", "the port is not a number from 1 to 65535"),
            ("vc:0", "the port is not a number from 1 to 65535"),
            ("user:pw@vc", "it must not contain a user or password"),
            ("[fd00::zz]", "the text in brackets is not an IPv6 address"),
            ("my vcenter", "it has characters that a host name cannot have"),
        ] {
            let error = given.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(why), "{given}: {error}");
        }
    }

    #[test]
    fn a_password_in_an_address_is_not_repeated() {
        for given in [
            "user:geheim@vc",
            "https://user:geheim@vc",
            "http://user:geheim@vc/sdk",
            "https://user:ge@geheim/heim@vc:8443",
        ] {
            let error = given.parse::<Address>().unwrap_err();
            let shown = format!("{error} {error:?}");
            assert!(!shown.contains("heim") && !shown.contains("user:"), "{given}: {shown}");
            assert!(shown.contains("***@vc"), "{given}: {shown}");
        }
    }
}
