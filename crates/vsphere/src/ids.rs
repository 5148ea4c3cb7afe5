//! The two uuids of a VM, as distinct types.

use std::fmt;
use std::str::FromStr;

use crate::xml::XmlError;
use crate::xml::codec::Decode;
use crate::xml::reader::{Reader, Start};

fn parse(text: &str) -> Option<[u8; 16]> {
    let mut bytes = [0; 16];
    let mut digits = text.trim().chars().filter(|c| *c != '-').map(|c| c.to_digit(16));
    for byte in &mut bytes {
        *byte = u8::try_from(digits.next()?? << 4 | digits.next()??).ok()?;
    }
    digits.next().is_none().then_some(bytes)
}

fn format(bytes: &[u8; 16], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (i, byte) in bytes.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            f.write_str("-")?;
        }
        write!(f, "{byte:02x}")?;
    }
    Ok(())
}

macro_rules! uuid {
    ($(#[$meta:meta])* $name:ident, $expected:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name([u8; 16]);

        impl $name {
            /// Whether the uuid is unset. vCenter sends no uuid for a VM it cannot access.
            pub fn is_nil(self) -> bool {
                self.0 == [0; 16]
            }
        }

        impl FromStr for $name {
            type Err = XmlError;

            /// Parses 32 hexadecimal digits in either case, with or without hyphens.
            fn from_str(text: &str) -> Result<Self, XmlError> {
                parse(text).map(Self).ok_or_else(|| XmlError::unreadable(text, $expected))
            }
        }

        impl fmt::Display for $name {
            /// Lower case, with hyphens.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                format(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                format(&self.0, f)
            }
        }

        /// Decodes an invalid uuid as nil. vCenter sends an empty uuid for an inaccessible VM,
        /// which must not break the decoding of all other VMs.
        impl Decode for $name {
            fn decode(_: &Start<'_>, reader: &mut Reader<'_>) -> Result<Self, XmlError> {
                Ok(Self(parse(&reader.text()?).unwrap_or_default()))
            }
        }
    };
}

uuid!(
    /// The uuid that a VM's firmware shows to its guest. Copies of a VM may share it.
    BiosUuid,
    "a BIOS uuid"
);
uuid!(
    /// The uuid that vCenter assigns to a VM. It is unique within one vCenter.
    InstanceUuid,
    "an instance uuid"
);

impl BiosUuid {
    /// The uuid in the other byte order. Guests of older hardware versions see the first three
    /// groups reversed.
    #[must_use]
    pub fn swapped(self) -> Self {
        let mut bytes = self.0;
        bytes[..4].reverse();
        bytes[4..6].reverse();
        bytes[6..8].reverse();
        Self(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swapping_the_byte_order_twice_restores_the_uuid() {
        let shown: BiosUuid = "56492E42-22AD-3911-6D72-59CC8F26BC90".parse().unwrap();
        assert_eq!(shown.swapped().to_string(), "422e4956-ad22-1139-6d72-59cc8f26bc90");
        assert_eq!(shown.swapped().swapped(), shown);
        assert_eq!("56492e4222ad39116d7259cc8f26bc90".parse::<BiosUuid>().unwrap(), shown);
    }

    #[test]
    fn an_invalid_uuid_is_rejected() {
        for text in [
            "",
            "56492e42",
            "56492e42-22ad-3911-6d72-59cc8f26bc9g",
            "56492e42-22ad-3911-6d72-59cc8f26bc9000",
        ] {
            assert!(text.parse::<BiosUuid>().is_err(), "{text}");
        }
    }
}
