//! Validated string types. The API server checks each with a CEL rule, whose message says what to write
//! instead.
//!
//! Each is a plain string in YAML. The rule is part of the schema of the type, so it applies at the exact
//! path of every field or list item of that type. Stored objects that break a rule can still be read, and
//! updated as long as the field does not change.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};

/// Defines a string type: documentation, name (with an optional serde attribute), maximum length, CEL
/// rule, message.
macro_rules! text {
    ($(#[$doc:meta])* $name:ident $(#[$reading:meta])?, max $max:literal, $rule:expr, $message:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name($(#[$reading])? pub String);

        impl Deref for $name {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.to_owned())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl PartialEq<str> for $name {
            fn eq(&self, other: &str) -> bool {
                self.0 == other
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({
                    "type": "string",
                    "maxLength": $max,
                    "x-kubernetes-validations": [{ "rule": $rule, "message": $message }],
                })
            }
        }
    };
}

/// A regular expression for a number from 0 to 255.
macro_rules! octet {
    () => {
        "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
    };
}

/// A number of a version, without leading zeros.
macro_rules! number {
    () => {
        "(0|[1-9][0-9]*)"
    };
}

/// One identifier of a prerelease version: a number, or letters and digits.
macro_rules! prerelease {
    () => {
        "(0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
    };
}

macro_rules! v4 {
    () => {
        concat!("(", octet!(), "\\.){3}", octet!())
    };
}

/// Up to four hexadecimal digits of an IPv6 address.
macro_rules! hextet {
    () => {
        "[0-9A-Fa-f]{1,4}"
    };
}

/// An IPv6 address: eight groups, or fewer around one `::`.
macro_rules! v6 {
    () => {
        concat!(
            "((",
            hextet!(),
            ":){7}",
            hextet!(),
            "|(",
            hextet!(),
            ":){1,7}:",
            "|(",
            hextet!(),
            ":){1,6}:",
            hextet!(),
            "|(",
            hextet!(),
            ":){1,5}(:",
            hextet!(),
            "){1,2}",
            "|(",
            hextet!(),
            ":){1,4}(:",
            hextet!(),
            "){1,3}",
            "|(",
            hextet!(),
            ":){1,3}(:",
            hextet!(),
            "){1,4}",
            "|(",
            hextet!(),
            ":){1,2}(:",
            hextet!(),
            "){1,5}",
            "|",
            hextet!(),
            ":(:",
            hextet!(),
            "){1,6}",
            "|:(:",
            hextet!(),
            "){1,7}",
            "|::([Ff]{4}:)?",
            v4!(),
            "|::)"
        )
    };
}

/// The length of an IPv6 prefix.
macro_rules! v6_length {
    () => {
        "(12[0-8]|1[01][0-9]|[1-9]?[0-9])"
    };
}

text!(
    /// The name of a Kubernetes object.
    ObjectName, max 253,
    "self.matches(r'^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",
    "must be the name of an object: lower-case letters, digits, '-' and '.', for example vcenter-a"
);

text!(
    /// The version of a driver release.
    ReleaseVersion, max 64,
    concat!(
        "self.matches(r'^v?", number!(), "\\.", number!(), "\\.", number!(),
        "(-", prerelease!(), "(\\.", prerelease!(), ")*)?(\\+[0-9A-Za-z-]+(\\.[0-9A-Za-z-]+)*)?$')"
    ),
    "must be a full version such as 3.7.0"
);

text!(
    /// A subnet.
    Cidr, max 64,
    concat!(
        "self.matches(r'^(", v4!(), "/(3[0-2]|[12]?[0-9])|", v6!(), "/", v6_length!(), ")$')"
    ),
    "must be a subnet such as 10.0.0.0/16 or fd00:10::/64"
);

text!(
    /// Addresses of clients that can mount a file share.
    ClientAddresses, max 256,
    concat!(
        "self.matches(r'^(\\*|", v4!(), "(/(3[0-2]|[12]?[0-9])|-", v4!(), ")?|", v6!(), "(/", v6_length!(), ")?)$')"
    ),
    "must be *, an address, a subnet such as 10.20.0.0/16, or a range such as 10.20.0.5-10.20.0.9"
);

text!(
    /// A duration.
    Span, max 32,
    "self.matches(r'^([0-9]+(d|h|m|s))+$')",
    "must be a duration such as 30m, 6h or 1d"
);

text!(
    /// An amount of CPU or memory.
    Quantity, max 32,
    "self.matches(r'^[0-9]+(\\.[0-9]+)?(m|k|K|Ki|M|Mi|G|Gi|T|Ti)?$')",
    "must be an amount such as 100m, 2, 256Mi or 1Gi"
);

text!(
    /// The URL of a proxy. A password in it would be readable by everybody who can read the object.
    ProxyUrl, max 512,
    "self.matches(r'^https?://[^/@ ]+/?$')",
    "must be the URL of a proxy without user and password, such as http://proxy.example.com:3128"
);

text!(
    /// The value of a label.
    LabelValue, max 63,
    "self.matches(r'^([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?$')",
    "must be the value of a label: letters, digits, '-', '_' and '.', for example berlin"
);

text!(
    /// The path of an object in the vCenter inventory.
    InventoryPath, max 1024,
    "self.startsWith('/') && !self.contains(',')",
    "must be an inventory path such as /DC0/vm/k8s, without commas"
);

text!(
    /// The URL of a datastore. The vdoctl of the Go VDO stored `ds:///a, ds:///b` as
    /// `["ds:///a", " ds:///b"]`; reading trims the spaces.
    DatastoreUrl #[serde(deserialize_with = "trimmed")], max 1024,
    "self.matches(r'^ *ds:///')",
    "must be the URL of a datastore as its summary page shows it, such as ds:///vmfs/volumes/vsan:52cdfa80721ff516-ea1e993113acfc77/"
);

text!(
    /// The thumbprint of a certificate.
    Thumbprint, max 128,
    "self == '' || self.matches(r'^([0-9A-Fa-f]{2}:){19}(([0-9A-Fa-f]{2}:){12})?[0-9A-Fa-f]{2}$')",
    "must be the SHA-1 or SHA-256 thumbprint of the certificate in pairs separated by colons, such as AA:BB:CC:..."
);

text!(
    /// A tag category in vCenter.
    TagCategory, max 256,
    "size(self) > 0 && !self.contains(',')",
    "must be the name of a tag category in vCenter, such as k8s-zone, without commas"
);

text!(
    /// The address of a vCenter.
    VcenterAddress, max 262,
    concat!(
        "self.matches(r'^([A-Za-z0-9._-]+(:[0-9]{1,5})?|", v6!(), "|\\[", v6!(), "\\](:[0-9]{1,5})?)$')"
    ),
    "must be the address of the vCenter alone, such as vc.example.com or 10.0.0.1, without https:// and without a path"
);

text!(
    /// A directory on the nodes.
    NodePath, max 1024,
    "self == '' || (self.startsWith('/') && !self.contains('/../') && !self.endsWith('/..'))",
    "must be an absolute path such as /var/data/kubelet"
);

text!(
    /// A registry, with or without a path in it.
    Registry, max 255,
    "self.matches(r'^[a-zA-Z0-9][a-zA-Z0-9.-]*(:[0-9]+)?(/[a-z0-9._/-]+)?$')",
    "must be a registry without https:// in front, such as registry.example.com/vsphere"
);

text!(
    /// A time of day.
    TimeOfDay, max 5,
    "self.matches(r'^([01][0-9]|2[0-3]):[0-5][0-9]$')",
    "must be a time of day such as 02:30"
);

text!(
    /// A time zone.
    TimeZone, max 64,
    "self.matches(r'^[A-Za-z]+([/_+-][A-Za-z0-9]+)*$')",
    "must be a time zone such as Europe/Berlin or UTC"
);

text!(
    /// The URL of a catalog.
    CatalogUrl, max 2048,
    "self == '' || self.matches(r'^(https?|oci|file)://.+')",
    "must begin with https://, oci://, http:// or file://"
);

/// A file share permission. Not an enum, because the Go VDO accepted any string.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SharePermission(pub String);

impl SharePermission {
    pub const READ_WRITE: &str = "READ_WRITE";
    pub const READ_ONLY: &str = "READ_ONLY";
    pub const NO_ACCESS: &str = "NO_ACCESS";
}

impl From<&str> for SharePermission {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl JsonSchema for SharePermission {
    fn schema_name() -> Cow<'static, str> {
        "SharePermission".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": 16,
            "x-kubernetes-validations": [{
                "rule": "self in ['', 'READ_WRITE', 'READ_ONLY', 'NO_ACCESS']",
                "message": "must be READ_WRITE, READ_ONLY or NO_ACCESS",
            }],
        })
    }
}

fn trimmed<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    String::deserialize(from).map(|text| text.trim().to_owned())
}

impl Span {
    /// The duration, or `None` if the string is not valid.
    pub fn duration(&self) -> Option<std::time::Duration> {
        let mut seconds: u64 = 0;
        let mut number: Option<u64> = None;
        for c in self.0.chars() {
            if let Some(digit) = c.to_digit(10) {
                number = Some(number.unwrap_or(0).checked_mul(10)?.checked_add(digit.into())?);
                continue;
            }
            let unit = match c {
                'd' => 86_400,
                'h' => 3_600,
                'm' => 60,
                's' => 1,
                _ => return None,
            };
            seconds = seconds.checked_add(number.take()?.checked_mul(unit)?)?;
        }
        (number.is_none() && !self.0.is_empty()).then(|| std::time::Duration::from_secs(seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_days_hours_minutes_and_seconds() {
        let cases = [
            ("30m", Some(1800)),
            ("1h30m", Some(5400)),
            ("1d", Some(86_400)),
            ("90s", Some(90)),
            ("", None),
            ("5", None),
            ("h", None),
            ("5x", None),
            ("99999999999999999999h", None),
        ];
        for (text, seconds) in cases {
            assert_eq!(Span::from(text).duration().map(|d| d.as_secs()), seconds, "{text}");
        }
    }
}
