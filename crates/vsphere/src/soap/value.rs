//! Values whose type is only known at run time.

use jiff::Timestamp;

use crate::moref::MoRef;
use crate::xml::codec::{Decode, Encode};
use crate::xml::reader::{Reader, Start, XmlError};
use crate::xml::writer::Writer;

/// A value of any type: an advanced option, or the result of a task.
///
/// Simple types are decoded at once. [`Value::Object`] holds the XML of any other type until the
/// caller decodes it.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `xsd:string`
    Text(Box<str>),
    /// `xsd:boolean`
    Bool(bool),
    /// `xsd:byte`, `xsd:short`, `xsd:int`
    Int(i32),
    /// `xsd:long`
    Long(i64),
    /// `xsd:float`, `xsd:double`
    Double(f64),
    /// `xsd:dateTime`
    Time(Timestamp),
    /// A reference to a managed object.
    Reference(MoRef),
    /// Any other type, not decoded.
    Object { type_name: Box<str>, xml: Box<str> },
}

impl Value {
    /// The value as an administrator would type it. Returns `None` for objects.
    pub fn to_text(&self) -> Option<String> {
        Some(match self {
            Self::Text(text) => text.to_string(),
            Self::Bool(value) => value.to_string(),
            Self::Int(value) => value.to_string(),
            Self::Long(value) => value.to_string(),
            Self::Double(value) => value.to_string(),
            Self::Time(value) => value.to_string(),
            Self::Reference(value) => value.to_string(),
            Self::Object { .. } => return None,
        })
    }

    /// Decodes an object as a `T`. Does not check the type name.
    pub(crate) fn read<T: Decode>(&self) -> Result<T, XmlError> {
        let Self::Object { type_name, xml } = self else {
            return Err(XmlError::unreadable(&self.to_text().unwrap_or_default(), "an object"));
        };
        let document = format!("<value xsi:type=\"{type_name}\">{xml}</value>");
        let mut reader = Reader::new(&document);
        match reader.next_child()? {
            Some(start) => T::decode(&start, &mut reader),
            None => Err(XmlError::Ended),
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl Decode for Value {
    fn decode(start: &Start<'_>, reader: &mut Reader<'_>) -> Result<Self, XmlError> {
        let type_name = start.xsi_type();
        Ok(match type_name.as_deref() {
            None | Some("string" | "anyURI") => Self::Text(Box::decode(start, reader)?),
            Some("boolean") => Self::Bool(bool::decode(start, reader)?),
            Some("byte" | "short" | "int") => Self::Int(i32::decode(start, reader)?),
            Some("long") => Self::Long(i64::decode(start, reader)?),
            Some("float" | "double") => Self::Double(f64::decode(start, reader)?),
            Some("dateTime") => Self::Time(Timestamp::decode(start, reader)?),
            Some("ManagedObjectReference") => Self::Reference(MoRef::decode(start, reader)?),
            Some(name) => Self::Object { type_name: name.into(), xml: reader.raw()?.into() },
        })
    }
}

impl Encode for Value {
    fn encode(&self, name: &str, writer: &mut Writer) {
        let (type_name, text) = match self {
            Self::Text(text) => ("xsd:string", text.to_string()),
            Self::Bool(value) => ("xsd:boolean", value.to_string()),
            Self::Int(value) => ("xsd:int", value.to_string()),
            Self::Long(value) => ("xsd:long", value.to_string()),
            Self::Double(value) => ("xsd:double", value.to_string()),
            Self::Time(value) => ("xsd:dateTime", value.to_string()),
            Self::Reference(value) => {
                let attributes =
                    [("xsi:type", "ManagedObjectReference"), ("type", value.kind.as_str())];
                writer.open_with(name, &attributes);
                writer.text(&value.id);
                writer.close(name);
                return;
            }
            Self::Object { type_name, xml } => {
                writer.open_with(name, &[("xsi:type", type_name)]);
                writer.raw(xml);
                writer.close(name);
                return;
            }
        };
        writer.open_with(name, &[("xsi:type", type_name)]);
        writer.text(&text);
        writer.close(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xml::codec::{from_xml, to_xml};

    #[test]
    fn values_of_every_type_decode_to_themselves() {
        for value in [
            Value::Text("a & b".into()),
            Value::Bool(true),
            Value::Int(-5),
            Value::Long(1 << 40),
            Value::Double(1.5),
            Value::Time("2026-01-01T00:00:00Z".parse().unwrap()),
            Value::Reference(MoRef::new("VirtualMachine", "vm-1")),
            Value::Object { type_name: "CnsVolumeId".into(), xml: "<id>x</id>".into() },
        ] {
            assert_eq!(from_xml::<Value>(&to_xml("value", &value)).unwrap(), value);
        }
    }
}
