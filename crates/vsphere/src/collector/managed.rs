//! Types that hold properties of managed objects.

use crate::moref::MoRef;
use crate::xml::XmlError;
use crate::xml::reader::{Reader, Start};

/// A set of properties, one bit each.
pub(crate) type Mask = u64;

/// A value that properties are decoded into.
///
/// A change is decoded into a separate value that holds only the changed properties, with a mask
/// that names them. Decoding thus never touches the value that the change applies to.
pub(crate) trait Managed: Sized {
    /// Creates an empty value. Returns `None` for objects of other types.
    fn empty(reference: MoRef) -> Option<Self>;
    /// Decodes a property. Skips properties that the type does not have and returns no bit.
    fn assign(
        &mut self,
        path: &str,
        start: &Start<'_>,
        reader: &mut Reader<'_>,
    ) -> Result<Mask, XmlError>;
    /// Clears the property and all properties below it.
    fn clear(&mut self, path: &str) -> Mask;
}

/// Declares a type that holds properties of a managed object, in groups that a watch can select:
///
/// ```text
/// managed! {
///     pub struct Vm of VirtualMachine {
///         IDENTITY { name: Box<str> = "name", }
///     }
/// }
/// ```
///
/// Every property is an `Option`. `None` means that the property was not selected, is unset, or
/// that the user lacks the permission to read it.
macro_rules! managed {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident of $($kind:ident)|+ {
            $(
                $(#[$group_meta:meta])*
                $group:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty = $path:literal,)* }
            )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        $vis struct $name {
            pub reference: $crate::moref::MoRef,
            $($($(#[$field_meta])* pub $field: Option<$type>,)*)*
        }

        impl $name {
            $($(#[$group_meta])* $vis const $group: &'static [&'static str] = &[$($path),*];)*

            /// Creates a value with no properties.
            $vis fn new(reference: $crate::moref::MoRef) -> Self {
                Self { reference, $($($field: None,)*)* }
            }

            #[allow(dead_code, reason = "types that are only read once are never merged")]
            /// Copies the properties in `mask`.
            pub(crate) fn merge(&mut self, from: Self, mask: $crate::collector::managed::Mask) {
                let mut bit: $crate::collector::managed::Mask = 1;
                $($(
                    if mask & bit != 0 {
                        self.$field = from.$field;
                    }
                    bit <<= 1;
                )*)*
                let _ = bit;
            }
        }

        impl $crate::collector::managed::Managed for $name {
            fn empty(reference: $crate::moref::MoRef) -> Option<Self> {
                matches!(reference.kind, $($crate::moref::Kind::$kind)|+).then(|| Self::new(reference))
            }

            fn assign(
                &mut self,
                path: &str,
                start: &$crate::xml::reader::Start<'_>,
                reader: &mut $crate::xml::reader::Reader<'_>,
            ) -> Result<$crate::collector::managed::Mask, $crate::xml::XmlError> {
                let mut bit = 1;
                $($(
                    if path == $path {
                        self.$field = Some(<$type as $crate::xml::codec::Decode>::decode(start, reader)?);
                        return Ok(bit);
                    }
                    bit <<= 1;
                )*)*
                let _ = bit;
                reader.skip()?;
                Ok(0)
            }

            fn clear(&mut self, path: &str) -> $crate::collector::managed::Mask {
                let below = |of: &str| of == path || of.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'));
                let (mut bit, mut mask) = (1, 0);
                $($(
                    if below($path) {
                        self.$field = None;
                        mask |= bit;
                    }
                    bit <<= 1;
                )*)*
                let _ = bit;
                mask
            }
        }
    };
}
pub(crate) use managed;
