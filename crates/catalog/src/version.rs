//! Kubernetes and vSphere versions.
//!
//! Neither platform follows semantic versioning everywhere, and text comparison makes `1.9` newer than
//! `1.30`. Both types here have one total order of numbers. Bounds keep the precision they were written
//! with: a maximum of `8.0` includes every 8.0 update, a maximum of `8.0U2` ends there.

use std::{cmp::Ordering, fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use snafu::{OptionExt, Snafu, ensure};

#[derive(Debug, Clone, PartialEq, Eq, Snafu)]
pub enum VersionError {
    #[snafu(display("{text:?} is not a {what} version; write it like {example}"))]
    NotAVersion {
        text: String,
        /// `Kubernetes` or `vSphere`.
        what: &'static str,
        example: &'static str,
    },
}

/// A Kubernetes version as `GET /version` reports it.
///
/// Vendors add suffixes (`v1.36.4+k3s1`, `v1.33.2-eks-a1b2`), and some API servers report a minor of
/// `"27+"`. Parsing accepts and drops the suffix, because releases support minors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KubernetesVersion {
    pub major: u32,
    pub minor: u32,
    /// 0 if absent.
    pub patch: u32,
}

impl KubernetesVersion {
    /// The first patch release of a minor.
    pub const fn minor(major: u32, minor: u32) -> Self {
        Self { major, minor, patch: 0 }
    }

    pub const fn as_minor(self) -> KubernetesMinor {
        KubernetesMinor { major: self.major, minor: self.minor }
    }
}

impl fmt::Display for KubernetesVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl FromStr for KubernetesVersion {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let not = || NotAVersionSnafu { text, what: "Kubernetes", example: "1.36 or v1.36.4" };
        let bare = text.trim().trim_start_matches('v');
        let bare = bare.split(['-', '+']).next().unwrap_or_default();
        let mut parts = bare.split('.').map(u32::from_str);
        let major = parts.next().and_then(Result::ok).with_context(not)?;
        let minor = parts.next().and_then(Result::ok).with_context(not)?;
        let patch = match parts.next() {
            None => 0,
            Some(patch) => patch.ok().with_context(not)?,
        };
        ensure!(parts.next().is_none(), not());
        Ok(Self { major, minor, patch })
    }
}

/// A Kubernetes minor, the unit of the support ranges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KubernetesMinor {
    pub major: u32,
    pub minor: u32,
}

impl fmt::Display for KubernetesMinor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl FromStr for KubernetesMinor {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(text.parse::<KubernetesVersion>()?.as_minor())
    }
}

/// A vCenter or ESXi version, down to the update, the express patch and the build.
///
/// Accepts `7.0U3`, `7.0.3`, `8.0 Update 2b`, `8.0.2.00300` and `8.0.3-24022515`. The build only breaks
/// ties.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VsphereVersion {
    pub major: u32,
    /// 7 in 6.7, else mostly 0.
    pub minor: u32,
    /// The 3 of 7.0U3.
    pub update: u32,
    /// Express patches within an update: `b` is 2, `00300` is 300. Only comparable within one form.
    pub patch: u32,
    /// The build number, if known.
    pub build: Option<u64>,
}

impl VsphereVersion {
    pub const fn new(major: u32, minor: u32, update: u32) -> Self {
        Self { major, minor, update, patch: 0, build: None }
    }

    /// Reads the version from vCenter's or ESXi's `AboutInfo`.
    ///
    /// A vCenter 6.7U3 reports the version `6.7.0`; only its API version, `6.7.3`, distinguishes it from 6.7.
    /// So the update level is the higher of the two.
    pub fn from_about(version: &str, api_version: &str, build: &str) -> Result<Self, VersionError> {
        let mut it: Self = version.parse()?;
        if let Ok(api) = api_version.parse::<Self>()
            && (api.major, api.minor) == (it.major, it.minor)
        {
            it.update = it.update.max(api.update);
        }
        it.build = build.trim().parse().ok().or(it.build);
        Ok(it)
    }

    fn cut_to(self, precision: Precision) -> (u32, u32, u32, u32) {
        let Self { major, minor, update, patch, build: _ } = self;
        match precision {
            Precision::Major => (major, 0, 0, 0),
            Precision::Minor => (major, minor, 0, 0),
            Precision::Update => (major, minor, update, 0),
            Precision::Patch => (major, minor, update, patch),
        }
    }
}

impl fmt::Display for VsphereVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)?;
        if self.update > 0 {
            write!(f, "U{}", self.update)?;
        }
        match u8::try_from(self.patch) {
            Ok(0) => Ok(()),
            Ok(letter @ 1..=26) => write!(f, "{}", char::from(b'a' + letter - 1)),
            _ => write!(f, ".{:05}", self.patch),
        }
    }
}

impl FromStr for VsphereVersion {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(parse_vsphere(text)?.0)
    }
}

/// The number of components that a bound specifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Precision {
    Major,
    Minor,
    Update,
    Patch,
}

fn parse_vsphere(text: &str) -> Result<(VsphereVersion, Precision), VersionError> {
    let not = || NotAVersionSnafu { text, what: "vSphere", example: "8.0U2 or 8.0.2" };
    let lower = text.trim().to_ascii_lowercase();
    let lower = lower.strip_prefix('v').unwrap_or(&lower);
    let (version, build) = match lower.split_once(['-', '+']) {
        None => (lower, None),
        Some((version, build)) => {
            (version, Some(build.trim_start_matches("build-").parse().ok().with_context(not)?))
        }
    };
    // `8.0 update 2b`, `8.0 u2b` and `8.0u2b` are equal: the word before the update becomes a dot.
    let dotted = version.replace("update", "u").replace(' ', "").replacen('u', ".", 1);
    let letter = dotted.chars().last().filter(char::is_ascii_lowercase);
    let digits = dotted.strip_suffix(|c: char| c.is_ascii_lowercase()).unwrap_or(&dotted);
    let parts = digits
        .split('.')
        .map(u32::from_str)
        .collect::<Result<Vec<_>, _>>()
        .ok()
        .with_context(not)?;
    let number = |n: usize| parts.get(n).copied().unwrap_or(0);
    let patch = match letter {
        None => number(3),
        Some(letter) => {
            ensure!(parts.len() == 3, not());
            u32::from(letter as u8 - b'a') + 1
        }
    };
    let precision = match (parts.len(), letter) {
        (1, _) => Precision::Major,
        (2, _) => Precision::Minor,
        (3, None) => Precision::Update,
        (3, Some(_)) | (4, _) => Precision::Patch,
        _ => return not().fail(),
    };
    let [major, minor, update] = [number(0), number(1), number(2)];
    Ok((VsphereVersion { major, minor, update, patch, build }, precision))
}

/// One end of a vSphere range, with the precision it was written with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VsphereBound {
    version: VsphereVersion,
    precision: Precision,
}

impl VsphereBound {
    /// Compares a version with this bound, only as precisely as the bound was written.
    pub fn compare(self, version: VsphereVersion) -> Ordering {
        version.cut_to(self.precision).cmp(&self.version.cut_to(self.precision))
    }

    /// Covers all of one major.
    pub const fn of_major(major: u32) -> Self {
        Self { version: VsphereVersion::new(major, 0, 0), precision: Precision::Major }
    }

    pub const fn version(self) -> VsphereVersion {
        self.version
    }
}

impl fmt::Display for VsphereBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.precision {
            Precision::Major => write!(f, "{}", self.version.major),
            _ => self.version.fmt(f),
        }
    }
}

impl FromStr for VsphereBound {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (version, precision) = parse_vsphere(text)?;
        Ok(Self { version, precision })
    }
}

/// Serializes the types as their text.
macro_rules! as_text {
    ($($type:ty),+) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = String::deserialize(from)?;
                text.parse().map_err(de::Error::custom)
            }
        }
    )+};
}
as_text!(KubernetesVersion, KubernetesMinor, VsphereVersion, VsphereBound);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kubernetes(text: &str) -> KubernetesVersion {
        text.parse().unwrap()
    }

    fn vsphere(text: &str) -> VsphereVersion {
        text.parse().unwrap()
    }

    #[test]
    fn kubernetes_versions_of_every_vendor_are_read() {
        for text in ["1.36.4", "v1.36.4", "v1.36.4+k3s1", "v1.36.4-eks-a1b2", " 1.36.4 "] {
            assert_eq!(kubernetes(text), KubernetesVersion { major: 1, minor: 36, patch: 4 });
        }
        assert_eq!(kubernetes("1.27+"), KubernetesVersion::minor(1, 27));
    }

    #[test]
    fn minor_nine_is_older_than_minor_thirty() {
        assert!(kubernetes("1.9.11") < kubernetes("1.30.0"));
        assert!("1.9".parse::<KubernetesMinor>().unwrap() < "1.30".parse().unwrap());
    }

    #[test]
    fn an_invalid_version_is_refused_with_an_example() {
        for text in ["", "1", "one.two", "1.36.4.5", "1.x"] {
            let error = text.parse::<KubernetesVersion>().unwrap_err().to_string();
            assert!(error.contains("write it like 1.36 or v1.36.4"), "{error}");
        }
        for text in ["", "eight", "8.0b", "8.0.0.0.0", "8.0U", "8.0.x"] {
            let error = text.parse::<VsphereVersion>().unwrap_err().to_string();
            assert!(error.contains("write it like 8.0U2"), "{text}: {error}");
        }
    }

    #[test]
    fn one_vsphere_release_has_many_spellings() {
        for text in ["7.0U3", "7.0.3", "7.0 Update 3", "7.0 u3", "v7.0.3.0"] {
            assert_eq!(vsphere(text), VsphereVersion::new(7, 0, 3), "{text}");
        }
        assert_eq!(
            vsphere("8.0 Update 2b"),
            VsphereVersion { patch: 2, ..VsphereVersion::new(8, 0, 2) }
        );
        assert_eq!(vsphere("8.0.3-24022515").build, Some(24_022_515));
    }

    #[test]
    fn vsphere_versions_sort_by_release_date() {
        let released = [
            "6.7", "6.7U3", "7.0", "7.0U1", "7.0U2", "7.0U3", "7.0U3c", "7.0U3k", "8.0", "8.0U1",
            "8.0U2", "8.0U2b", "8.0U3", "9.0", "9.0.1", "9.1", "10.0",
        ];
        assert!(released.map(vsphere).is_sorted());
    }

    #[test]
    fn the_api_version_reveals_the_update_level() {
        let it = VsphereVersion::from_about("6.7.0", "6.7.3", "14367737").unwrap();
        assert_eq!(it, VsphereVersion { build: Some(14_367_737), ..VsphereVersion::new(6, 7, 3) });
        let it = VsphereVersion::from_about("8.0.2", "8.0.2.0", "").unwrap();
        assert_eq!(it, VsphereVersion::new(8, 0, 2));
        let odd = VsphereVersion::from_about("8.0.2", "not one", "x").unwrap();
        assert_eq!(odd, VsphereVersion::new(8, 0, 2));
    }

    #[test]
    fn a_bound_compares_only_as_precisely_as_it_was_written() {
        let bound = |text: &str| text.parse::<VsphereBound>().unwrap();
        assert_eq!(bound("8.0").compare(vsphere("8.0U3")), Ordering::Equal);
        assert_eq!(bound("8.0U2").compare(vsphere("8.0U3")), Ordering::Greater);
        assert_eq!(bound("8.0U2").compare(vsphere("8.0U2b")), Ordering::Equal);
        assert_eq!(bound("8").compare(vsphere("8.0U3")), Ordering::Equal);
        assert_eq!(bound("7.0U3").compare(vsphere("7.0U2")), Ordering::Less);
    }

    proptest! {
        #[test]
        fn displayed_versions_parse_again(major in 5u32..12, minor in 0u32..8, update in 0u32..9, patch in 0u32..27) {
            // As in every real release, a patch letter requires an update.
            prop_assume!(patch == 0 || update > 0);
            let version = VsphereVersion { major, minor, update, patch, build: None };
            prop_assert_eq!(vsphere(&version.to_string()), version);
        }

        #[test]
        fn kubernetes_versions_sort_by_number(a in (0u32..3, 0u32..200, 0u32..40), b in (0u32..3, 0u32..200, 0u32..40)) {
            let text = |v: (u32, u32, u32)| format!("v{}.{}.{}", v.0, v.1, v.2);
            prop_assert_eq!(kubernetes(&text(a)).cmp(&kubernetes(&text(b))), a.cmp(&b));
        }
    }
}
