//! Encodes Rust values as XML and decodes them.
//!
//! [`data!`] declares a data object: its fields in WSDL order, each with its wire name. The order
//! matters, because vCenter rejects a request with elements in another order. Inherited fields come
//! first.

use std::sync::Arc;

use jiff::Timestamp;

use super::reader::{Reader, Start, XmlError};
use super::writer::Writer;

/// A value that is decoded from one element.
pub(crate) trait Decode: Sized {
    /// Reads the element after its start tag, up to and including its end tag.
    fn decode(start: &Start<'_>, reader: &mut Reader<'_>) -> Result<Self, XmlError>;
}

/// A value that is encoded as zero or more elements.
pub(crate) trait Encode: Sync {
    fn encode(&self, name: &str, writer: &mut Writer);
}

/// A member of a data object: a value, an optional value, or a list of values.
///
/// `Partial` collects the elements of a member, because members can arrive in any order.
pub(crate) trait Field: Sized {
    type Partial: Default;
    fn take(
        partial: &mut Self::Partial,
        start: &Start<'_>,
        reader: &mut Reader<'_>,
    ) -> Result<(), XmlError>;
    /// Builds the value when the object has ended.
    fn finish(
        partial: Self::Partial,
        of: &'static str,
        field: &'static str,
    ) -> Result<Self, XmlError>;
}

impl<T: Decode> Field for T {
    type Partial = Option<T>;

    fn take(
        partial: &mut Option<T>,
        start: &Start<'_>,
        reader: &mut Reader<'_>,
    ) -> Result<(), XmlError> {
        *partial = Some(T::decode(start, reader)?);
        Ok(())
    }

    fn finish(partial: Option<T>, of: &'static str, field: &'static str) -> Result<T, XmlError> {
        partial.ok_or(XmlError::Missing { of, field })
    }
}

impl<T: Decode> Field for Option<T> {
    type Partial = Option<T>;

    fn take(
        partial: &mut Option<T>,
        start: &Start<'_>,
        reader: &mut Reader<'_>,
    ) -> Result<(), XmlError> {
        *partial = Some(T::decode(start, reader)?);
        Ok(())
    }

    fn finish(partial: Option<T>, _: &'static str, _: &'static str) -> Result<Option<T>, XmlError> {
        Ok(partial)
    }
}

impl<T: Decode> Field for Vec<T> {
    type Partial = Vec<T>;

    fn take(
        partial: &mut Vec<T>,
        start: &Start<'_>,
        reader: &mut Reader<'_>,
    ) -> Result<(), XmlError> {
        partial.push(T::decode(start, reader)?);
        Ok(())
    }

    fn finish(partial: Vec<T>, _: &'static str, _: &'static str) -> Result<Vec<T>, XmlError> {
        Ok(partial)
    }
}

/// Skips all elements.
impl Field for () {
    type Partial = ();

    fn take((): &mut (), _: &Start<'_>, reader: &mut Reader<'_>) -> Result<(), XmlError> {
        reader.skip()
    }

    fn finish((): (), _: &'static str, _: &'static str) -> Result<(), XmlError> {
        Ok(())
    }
}

impl<T: Encode + ?Sized> Encode for &T {
    fn encode(&self, name: &str, writer: &mut Writer) {
        (**self).encode(name, writer);
    }
}

impl<T: Encode> Encode for Option<T> {
    fn encode(&self, name: &str, writer: &mut Writer) {
        if let Some(value) = self {
            value.encode(name, writer);
        }
    }
}

impl<T: Encode> Encode for [T] {
    fn encode(&self, name: &str, writer: &mut Writer) {
        for value in self {
            value.encode(name, writer);
        }
    }
}

impl<T: Encode> Encode for Vec<T> {
    fn encode(&self, name: &str, writer: &mut Writer) {
        self.as_slice().encode(name, writer);
    }
}

/// A list property arrives as `ArrayOfX`. All its child elements are items, whatever their name.
impl<T: Decode> Decode for Box<[T]> {
    fn decode(_: &Start<'_>, reader: &mut Reader<'_>) -> Result<Self, XmlError> {
        let mut items = Vec::new();
        while let Some(start) = reader.next_child()? {
            items.push(T::decode(&start, reader)?);
        }
        Ok(items.into_boxed_slice())
    }
}

impl<T: Decode> Decode for Box<T> {
    fn decode(start: &Start<'_>, reader: &mut Reader<'_>) -> Result<Self, XmlError> {
        T::decode(start, reader).map(Box::new)
    }
}

impl<T: Encode> Encode for Box<T> {
    fn encode(&self, name: &str, writer: &mut Writer) {
        (**self).encode(name, writer);
    }
}

macro_rules! textual {
    ($($type:ty),*) => {$(
        impl Decode for $type {
            fn decode(_: &Start<'_>, reader: &mut Reader<'_>) -> Result<Self, XmlError> {
                Ok(reader.text()?.into_owned().into())
            }
        }

        impl Encode for $type {
            fn encode(&self, name: &str, writer: &mut Writer) {
                writer.leaf(name, self);
            }
        }
    )*};
}
textual!(String, Box<str>, Arc<str>);

impl Encode for str {
    fn encode(&self, name: &str, writer: &mut Writer) {
        writer.leaf(name, self);
    }
}

macro_rules! parsed {
    ($($type:ty: $expected:literal),*) => {$(
        impl Decode for $type {
            fn decode(_: &Start<'_>, reader: &mut Reader<'_>) -> Result<Self, XmlError> {
                let text = reader.text()?;
                text.trim().parse().map_err(|_| XmlError::unreadable(&text, $expected))
            }
        }

        impl Encode for $type {
            fn encode(&self, name: &str, writer: &mut Writer) {
                writer.leaf(name, &self.to_string());
            }
        }
    )*};
}
parsed!(i16: "a short number", i32: "a number", i64: "a long number", f64: "a number");

impl Decode for bool {
    fn decode(_: &Start<'_>, reader: &mut Reader<'_>) -> Result<Self, XmlError> {
        let text = reader.text()?;
        match text.trim() {
            "true" | "1" => Ok(true),
            "false" | "0" => Ok(false),
            _ => Err(XmlError::unreadable(&text, "true or false")),
        }
    }
}

impl Encode for bool {
    fn encode(&self, name: &str, writer: &mut Writer) {
        writer.leaf(name, if *self { "true" } else { "false" });
    }
}

/// A timestamp without a time zone is UTC. Only older releases omit the zone.
impl Decode for Timestamp {
    fn decode(_: &Start<'_>, reader: &mut Reader<'_>) -> Result<Self, XmlError> {
        let text = reader.text()?;
        let trimmed = text.trim();
        trimmed
            .parse()
            .or_else(|_| format!("{trimmed}Z").parse())
            .map_err(|_| XmlError::unreadable(&text, "a timestamp"))
    }
}

impl Encode for Timestamp {
    fn encode(&self, name: &str, writer: &mut Writer) {
        writer.leaf(name, &self.to_string());
    }
}

/// Declares a data object: `field: Type = "wireName"`, in WSDL order. Decoding skips elements that
/// are not declared. `xsi "T"` writes the type name into the element, for polymorphic fields.
macro_rules! data {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident $(xsi $xsi:literal)? {
            $($(#[$field_meta:meta])* $field:ident: $type:ty = $wire:literal,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        $vis struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        $crate::xml::codec::impl_data! { $name $(xsi $xsi)? { $($field: $type = $wire,)* } }
    };
}
pub(crate) use data;

/// Implements the codec traits of `data!` for a type that is declared elsewhere.
macro_rules! impl_data {
    ($name:ident $(xsi $xsi:literal)? { $($field:ident: $type:ty = $wire:literal,)* }) => {
        impl $crate::xml::codec::Decode for $name {
            fn decode(
                _: &$crate::xml::reader::Start<'_>,
                reader: &mut $crate::xml::reader::Reader<'_>,
            ) -> Result<Self, $crate::xml::reader::XmlError> {
                $(let mut $field = <$type as $crate::xml::codec::Field>::Partial::default();)*
                while let Some(start) = reader.next_child()? {
                    match start.name() {
                        $($wire => <$type as $crate::xml::codec::Field>::take(&mut $field, &start, reader)?,)*
                        _ => reader.skip()?,
                    }
                }
                Ok(Self {
                    $($field: <$type as $crate::xml::codec::Field>::finish($field, stringify!($name), $wire)?,)*
                })
            }
        }

        impl $crate::xml::codec::Encode for $name {
            fn encode(&self, name: &str, writer: &mut $crate::xml::writer::Writer) {
                let xsi: &[(&str, &str)] = &[$(("xsi:type", $xsi))?];
                writer.open_with(name, xsi);
                $($crate::xml::codec::Encode::encode(&self.$field, $wire, writer);)*
                writer.close(name);
            }
        }
    };
}
pub(crate) use impl_data;

/// Declares an API enumeration. `Other` holds values that this release does not know, so that a
/// newer vCenter never breaks decoding.
macro_rules! wire_enum {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $wire:literal,)* }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        $vis enum $name {
            $($(#[$variant_meta])* $variant,)*
            /// A value that this release does not know.
            Other(Box<str>),
        }

        impl $name {
            /// The wire value.
            $vis fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $wire,)*
                    Self::Other(text) => text,
                }
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                match text {
                    $($wire => Self::$variant,)*
                    other => Self::Other(other.into()),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl $crate::xml::codec::Decode for $name {
            fn decode(
                _: &$crate::xml::reader::Start<'_>,
                reader: &mut $crate::xml::reader::Reader<'_>,
            ) -> Result<Self, $crate::xml::reader::XmlError> {
                Ok(Self::from(reader.text()?.trim()))
            }
        }

        impl $crate::xml::codec::Encode for $name {
            fn encode(&self, name: &str, writer: &mut $crate::xml::writer::Writer) {
                writer.leaf(name, self.as_str());
            }
        }
    };
}
pub(crate) use wire_enum;

/// Reads `xml`, one element, as a `T`.
#[cfg(test)]
pub(crate) fn from_xml<T: Decode>(xml: &str) -> Result<T, XmlError> {
    let mut reader = Reader::new(xml);
    match reader.next_child()? {
        Some(start) => T::decode(&start, &mut reader),
        None => Err(XmlError::Ended),
    }
}

/// Writes `value` as the element `name`.
#[cfg(test)]
pub(crate) fn to_xml<T: Encode + ?Sized>(name: &str, value: &T) -> String {
    let mut writer = Writer::default();
    value.encode(name, &mut writer);
    writer.finish()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    data! {
        /// Has one field of each shape.
        struct Sample xsi "Sample" {
            text: String = "text",
            number: Option<i64> = "number",
            list: Vec<String> = "list",
            switch: bool = "switch",
            inner: Option<Inner> = "inner",
            at: Option<Timestamp> = "at",
        }
    }

    data! {
        struct Inner {
            key: i32 = "key",
            colour: Colour = "colour",
        }
    }

    wire_enum! {
        enum Colour {
            Red = "red",
        }
    }

    /// Text that XML 1.0 can represent.
    fn any_text() -> impl Strategy<Value = String> {
        proptest::collection::vec(
            any::<char>().prop_filter("not representable in XML", |c| {
                !matches!(c, '\u{0}'..'\u{20}' | '\u{FFFE}' | '\u{FFFF}')
                    || matches!(c, '\t' | '\n' | '\r')
            }),
            0..40,
        )
        .prop_map(|chars| chars.into_iter().collect())
    }

    prop_compose! {
        fn any_sample()(
            text in any_text(),
            number in any::<Option<i64>>(),
            list in proptest::collection::vec(any_text(), 0..4),
            switch in any::<bool>(),
            inner in proptest::option::of((any::<i32>(), "[a-z]{1,8}")),
            at in proptest::option::of(-10_000_000_000_i64..10_000_000_000),
        ) -> Sample {
            Sample {
                text, number, list, switch,
                inner: inner.map(|(key, colour)| Inner { key, colour: Colour::from(colour.as_str()) }),
                at: at.map(|s| Timestamp::from_second(s).unwrap()),
            }
        }
    }

    proptest! {
        #[test]
        fn encoded_values_decode_to_themselves(sample in any_sample()) {
            prop_assert_eq!(from_xml::<Sample>(&to_xml("s", &sample)).unwrap(), sample);
        }

        #[test]
        fn a_truncated_document_is_always_incomplete(sample in any_sample(), at in 0.0..1.0) {
            let xml = to_xml("s", &sample);
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
            let mut cut = (xml.len() as f64 * at) as usize;
            while !xml.is_char_boundary(cut) { cut -= 1; }
            prop_assert!(from_xml::<Sample>(&xml[..cut]).unwrap_err().is_incomplete());
        }

        #[test]
        fn no_text_makes_the_reader_panic(junk in ".{0,200}") {
            let _ = from_xml::<Sample>(&junk);
            let _ = from_xml::<Sample>(&format!("<s><text>{junk}</text></s>"));
        }
    }

    #[test]
    fn unknown_elements_are_skipped_and_unknown_values_kept() {
        let sample: Sample = from_xml(
            "<s><new><deep>1</deep></new><text>t</text><switch>1</switch>\
             <inner><key>7</key><colour>mauve</colour><more/></inner></s>",
        )
        .unwrap();
        assert_eq!(sample.inner.unwrap().colour, Colour::Other("mauve".into()));
        assert_eq!(sample.text, "t");
    }

    #[test]
    fn a_missing_element_is_named() {
        let error = from_xml::<Sample>("<s><text>t</text></s>").unwrap_err();
        assert_eq!(error.to_string(), "Sample has no switch");
    }

    #[test]
    fn elements_are_encoded_in_declaration_order() {
        let inner = Inner { key: 1, colour: Colour::Red };
        assert_eq!(to_xml("i", &inner), "<i><key>1</key><colour>red</colour></i>");
    }

    #[test]
    fn a_timestamp_without_a_zone_is_utc() {
        let at: Timestamp = from_xml("<t>2026-01-02T03:04:05.678</t>").unwrap();
        assert_eq!(at.to_string(), "2026-01-02T03:04:05.678Z");
    }
}
