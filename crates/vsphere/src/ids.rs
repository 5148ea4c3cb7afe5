//! Ids that must not be mixed up.

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

fn show(bytes: &[u8; 16], f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
            /// Whether vCenter has not given a value, as it does for machines it has lost sight of.
            pub fn is_nil(self) -> bool {
                self.0 == [0; 16]
            }
        }

        impl FromStr for $name {
            type Err = XmlError;

            /// Reads 32 hexadecimal digits in either case, with or without hyphens.
            fn from_str(text: &str) -> Result<Self, XmlError> {
                parse(text).map(Self).ok_or_else(|| XmlError::unreadable(text, $expected))
            }
        }

        impl fmt::Display for $name {
            /// Lower case, with hyphens.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                show(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                show(&self.0, f)
            }
        }

        /// A value that is no uuid counts as none: vCenter leaves it empty for a machine that is
        /// inaccessible, and one such machine must not make all others unreadable.
        impl Decode for $name {
            fn decode(_: &Start<'_>, reader: &mut Reader<'_>) -> Result<Self, XmlError> {
                Ok(Self(parse(&reader.text()?).unwrap_or_default()))
            }
        }
    };
}

uuid!(
    /// The uuid a virtual machine's firmware shows its guest. Copies of a machine may share it.
    BiosUuid,
    "a BIOS uuid"
);
uuid!(
    /// The uuid vCenter gives a virtual machine. It tells machines apart within one vCenter.
    InstanceUuid,
    "an instance uuid"
);

impl BiosUuid {
    /// The same uuid in the other byte order: guests of older hardware versions show the first
    /// three groups reversed.
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
    fn both_byte_orders_are_two_faces_of_one_uuid() {
        let shown: BiosUuid = "56492E42-22AD-3911-6D72-59CC8F26BC90".parse().unwrap();
        assert_eq!(shown.swapped().to_string(), "422e4956-ad22-1139-6d72-59cc8f26bc90");
        assert_eq!(shown.swapped().swapped(), shown);
        assert_eq!("56492e4222ad39116d7259cc8f26bc90".parse::<BiosUuid>().unwrap(), shown);
    }

    #[test]
    fn what_is_no_uuid_is_refused() {
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
