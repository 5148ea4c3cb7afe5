use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A version by its first three numbers: `v1.36.2+rke2r1` is 1.36.2, `8.0.3.00400` is 8.0.3.
///
/// Build and pre-release marks are dropped: no check depends on them.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(into = "String", try_from = "String")]
pub struct Version {
    pub major: u32,
    /// Second number; for Kubernetes, "the minor".
    pub minor: u32,
    /// Third number; for vSphere, the update.
    pub patch: u32,
}

impl Version {
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch }
    }
}

impl FromStr for Version {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut numbers = text
            .trim()
            .trim_start_matches('v')
            .split(['.', '-', '+'])
            .map_while(|part| part.parse::<u32>().ok());
        let major = numbers.next().ok_or_else(|| format!("{text} is not a version"))?;
        Ok(Self::new(major, numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)))
    }
}

impl TryFrom<String> for Version {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Version> for String {
    fn from(version: Version) -> Self {
        version.to_string()
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_kubernetes_vsphere_and_drivers_are_parsed() {
        for (text, expected) in [
            ("v1.36.2+rke2r1", Version::new(1, 36, 2)),
            ("8.0.3.00400", Version::new(8, 0, 3)),
            ("3.8.0-rc.1", Version::new(3, 8, 0)),
            ("6.7.3", Version::new(6, 7, 3)),
            ("7", Version::new(7, 0, 0)),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        assert!("latest".parse::<Version>().is_err());
    }
}
