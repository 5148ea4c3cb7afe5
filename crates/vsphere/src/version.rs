//! Versions of the vSphere API.

use std::fmt;
use std::str::FromStr;

use crate::xml::XmlError;
use crate::xml::reader::Reader;

/// A version of the vSphere API, such as `6.7.3` or `8.0.3.0`. Missing numbers count as 0 in
/// comparisons.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ApiVersion([u16; 4]);

impl ApiVersion {
    /// vSphere 6.7 Update 3: the oldest supported version.
    pub const V6_7U3: Self = Self([6, 7, 3, 0]);
    pub const V7_0: Self = Self([7, 0, 0, 0]);
    /// vSphere 7.0 Update 2: the first with `/api`.
    pub const V7_0U2: Self = Self([7, 0, 2, 0]);
    /// vSphere 7.0 Update 3: the first with snapshots of container volumes.
    pub const V7_0U3: Self = Self([7, 0, 3, 0]);
    /// The newest version that this crate knows. The client uses it with newer servers.
    pub(crate) const NEWEST: Self = Self([9, 1, 0, 0]);

    pub fn major(self) -> u16 {
        self.0[0]
    }
}

impl FromStr for ApiVersion {
    type Err = XmlError;

    fn from_str(text: &str) -> Result<Self, XmlError> {
        let mut numbers = [0; 4];
        let parts: Vec<&str> = text.trim().split('.').collect();
        if parts.len() > numbers.len() {
            return Err(XmlError::unreadable(text, "an API version"));
        }
        for (number, part) in numbers.iter_mut().zip(parts) {
            *number = part.parse().map_err(|_| XmlError::unreadable(text, "an API version"))?;
        }
        Ok(Self(numbers))
    }
}

impl fmt::Display for ApiVersion {
    /// In vSphere's format: three numbers up to 6.7, four from 7.0 on.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, update, patch] = self.0;
        match (major, update, patch) {
            (..7, 0, 0) => write!(f, "{major}.{minor}"),
            (..7, _, 0) => write!(f, "{major}.{minor}.{update}"),
            _ => write!(f, "{major}.{minor}.{update}.{patch}"),
        }
    }
}

impl fmt::Debug for ApiVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Reads the versions of a service from its `…ServiceVersions.xml`, the current version first.
pub(crate) fn service_versions(document: &str, namespace: &str) -> Result<Vec<String>, XmlError> {
    let mut reader = Reader::new(document);
    match reader.next_child()? {
        Some(root) if root.name() == "namespaces" => {}
        Some(root) => {
            return Err(XmlError::Unexpected {
                found: root.name().chars().take(60).collect(),
                expected: "namespaces",
            });
        }
        None => return Err(XmlError::Ended),
    }
    while reader.next_child()?.is_some() {
        let (mut name, mut versions) = (String::new(), Vec::new());
        while let Some(part) = reader.next_child()? {
            match part.name() {
                "name" => reader.text()?.trim().clone_into(&mut name),
                "version" => versions.insert(0, reader.text()?.trim().to_owned()),
                "priorVersions" => {
                    while reader.next_child()?.is_some() {
                        versions.push(reader.text()?.trim().to_owned());
                    }
                }
                _ => reader.skip()?,
            }
        }
        if name == namespace {
            return Ok(versions);
        }
    }
    Ok(Vec::new())
}

/// The newest version that both client and server support.
pub(crate) fn negotiate(offered: &[String]) -> ApiVersion {
    let known = offered.iter().filter_map(|text| text.parse::<ApiVersion>().ok());
    known.filter(|version| *version <= ApiVersion::NEWEST).max().unwrap_or(ApiVersion::V6_7U3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> ApiVersion {
        text.parse().unwrap()
    }

    #[test]
    fn versions_are_ordered_by_number_and_not_alphabetically() {
        let ordered = [
            "6.5", "6.7", "6.7.1", "6.7.3", "7.0.0.0", "7.0.3.2", "8.0.0.0", "8.0.3.0", "9.0.0.0",
            "10.0.0.0",
        ];
        for pair in ordered.windows(2) {
            assert!(version(pair[0]) < version(pair[1]), "{pair:?}");
        }
        assert_eq!(version("6.7.3"), ApiVersion::V6_7U3);
        assert!(version("6.7.2") < ApiVersion::V6_7U3);
        assert_eq!(version("8.0"), version("8.0.0.0"));
    }

    #[test]
    fn versions_display_in_vspheres_format() {
        for text in ["6.5", "6.7", "6.7.3", "7.0.0.0", "7.0.3.2", "8.0.3.0"] {
            assert_eq!(version(text).to_string(), text);
        }
        for text in ["", "8", "8.0.x", "8..0", "1.2.3.4.5", "8.0.3-beta"] {
            assert_eq!(text.parse::<ApiVersion>().is_ok(), text == "8", "{text}");
        }
    }

    #[test]
    fn a_newer_server_gets_the_newest_version_we_know() {
        let offered = ["10.1.0.0", "10.0.0.0", "9.0.0.0", "8.0.3.0", "6.7.3"].map(str::to_owned);
        assert_eq!(negotiate(&offered).to_string(), "9.0.0.0");
        assert_eq!(negotiate(&["6.7.3".to_owned(), "6.7.2".to_owned()]).to_string(), "6.7.3");
        assert_eq!(negotiate(&[]).to_string(), "6.7.3");
    }

    /// Hand-made document: the simulator lists no prior versions.
    #[test]
    fn the_list_of_versions_is_parsed() {
        let document = r#"<?xml version="1.0"?><namespaces version="1.0"><namespace><name>urn:vim25</name>
            <version>8.0.3.0</version><priorVersions><version>8.0.2.0</version><version>7.0</version></priorVersions>
            </namespace><namespace><name>urn:vim</name><version>2.0</version></namespace></namespaces>"#;
        assert_eq!(service_versions(document, "urn:vim25").unwrap(), ["8.0.3.0", "8.0.2.0", "7.0"]);
        assert!(service_versions("<html/>", "urn:vim25").is_err());
    }
}
