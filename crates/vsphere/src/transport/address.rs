//! Where a vCenter is.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use crate::error::{BadAddressSnafu, Error};

const HTTPS: u16 = 443;

/// Host and port of a vCenter.
///
/// Reads what people write: `vc.example.com`, `vc.example.com:8443`, `10.0.0.1`, `fd00::1`,
/// `[fd00::1]:8443`, `https://vc.example.com/sdk`.
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

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of `path` there.
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
        let bad = |why| BadAddressSnafu { given: without_login(given), why }.fail();
        let text = given.trim();
        if text.starts_with("http://") {
            return bad("vCenter is only spoken to over https");
        }
        let text = text.strip_prefix("https://").unwrap_or(text);
        let text = text.split('/').next().unwrap_or_default();
        if text.contains('@') {
            return bad("user and password do not belong into it");
        }
        if text.parse::<Ipv6Addr>().is_ok() {
            return Ok(Self { host: text.to_owned(), port: HTTPS });
        }
        let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, rest)) => {
                if host.parse::<Ipv6Addr>().is_err() {
                    return bad("what stands in brackets is not an IPv6 address");
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
            Some(_) => return bad("the port is not a number from 1 to 65535"),
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if host.is_empty() {
            return bad("there is no host in it");
        }
        if host.parse::<IpAddr>().is_err() && !host.chars().all(is_name) {
            return bad("it has characters that no host name has");
        }
        Ok(Self { host: host.to_ascii_lowercase(), port })
    }
}

/// What was given, as it may be shown: whatever stands before an `@` may be a password.
fn without_login(given: &str) -> String {
    match given.rsplit_once('@') {
        Some((_, rest)) => format!("***@{rest}"),
        None => given.to_owned(),
    }
}

impl fmt::Display for Address {
    /// The host, with the port only where it is not the usual one.
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
    fn addresses_are_read_as_people_write_them() {
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
    fn what_is_not_an_address_is_refused_with_a_reason() {
        for (given, why) in [
            ("", "there is no host in it"),
            ("http://vc", "vCenter is only spoken to over https"),
            ("vc:port", "the port is not a number from 1 to 65535"),
            ("vc:0", "the port is not a number from 1 to 65535"),
            ("user:pw@vc", "user and password do not belong into it"),
            ("[fd00::zz]", "what stands in brackets is not an IPv6 address"),
            ("my vcenter", "it has characters that no host name has"),
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
