//! Objects and changes, decoded from the reply straight into their types.

use super::managed::{Managed, Mask};
use crate::moref::MoRef;
use crate::soap::Fault;
use crate::xml::XmlError;
use crate::xml::codec::{Decode, data};
use crate::xml::reader::{Reader, Start};

data! {
    /// A requested property that vCenter did not return.
    pub(crate) struct MissingProperty {
        path: String = "path",
        fault: Fault = "fault",
    }
}

/// An object that a retrieval returned.
#[derive(Debug)]
pub(crate) struct RetrievedObject<T> {
    pub(crate) reference: MoRef,
    /// `None` when `T` does not hold objects of this type.
    pub(crate) value: Option<T>,
    pub(crate) missing: Vec<MissingProperty>,
}

/// A change to a watched object.
#[derive(Debug)]
pub(crate) enum Change<T> {
    /// The object came into view, with all requested properties.
    Enter(T),
    /// The properties in the mask changed.
    Modify(T, Mask),
    /// The object is no longer in view. vCenter does not report why.
    Leave(MoRef),
    /// An object of a type that `T` does not hold.
    Foreign,
}

impl<T: Managed> Decode for RetrievedObject<T> {
    fn decode(_: &Start<'_>, reader: &mut Reader<'_>) -> Result<Self, XmlError> {
        let (mut reference, mut value, mut missing) = (None, None, Vec::new());
        while let Some(start) = reader.next_child()? {
            match start.name() {
                "obj" => {
                    let object = MoRef::decode(&start, reader)?;
                    value = T::empty(object.clone());
                    reference = Some(object);
                }
                "propSet" => drop(property(value.as_mut(), reader)?),
                "missingSet" => missing.push(MissingProperty::decode(&start, reader)?),
                _ => reader.skip()?,
            }
        }
        let reference =
            reference.ok_or(XmlError::Missing { of: "an object", field: "reference" })?;
        Ok(Self { reference, value, missing })
    }
}

impl<T: Managed> Decode for Change<T> {
    fn decode(_: &Start<'_>, reader: &mut Reader<'_>) -> Result<Self, XmlError> {
        let (mut kind, mut reference, mut value, mut mask) = (String::new(), None, None, 0);
        while let Some(start) = reader.next_child()? {
            match start.name() {
                "kind" => kind = reader.text()?.into_owned(),
                "obj" => {
                    let object = MoRef::decode(&start, reader)?;
                    value = T::empty(object.clone());
                    reference = Some(object);
                }
                "changeSet" => mask |= property(value.as_mut(), reader)?,
                "missingSet" => {
                    let missing = MissingProperty::decode(&start, reader)?;
                    mask |= value.as_mut().map_or(0, |value| value.clear(&missing.path));
                }
                _ => reader.skip()?,
            }
        }
        let reference = reference.ok_or(XmlError::Missing { of: "a change", field: "object" })?;
        Ok(match (kind.as_str(), value) {
            ("leave", _) => Self::Leave(reference),
            ("enter", Some(value)) => Self::Enter(value),
            ("modify", Some(value)) => Self::Modify(value, mask),
            ("enter" | "modify", None) => Self::Foreign,
            _ => return Err(XmlError::unreadable(&kind, "a kind of change")),
        })
    }
}

/// Decodes a `DynamicProperty` or `PropertyChange`: a name, and optionally an operation and a
/// value.
fn property<T: Managed>(
    mut value: Option<&mut T>,
    reader: &mut Reader<'_>,
) -> Result<Mask, XmlError> {
    let mut path = String::new();
    let mut mask = None;
    while let Some(start) = reader.next_child()? {
        match (start.name(), value.as_deref_mut()) {
            ("name", _) => path = reader.text()?.into_owned(),
            ("val", Some(value)) if is_set(&start) => {
                mask = Some(value.assign(&path, &start, reader)?);
            }
            _ => reader.skip()?,
        }
    }
    Ok(mask.unwrap_or_else(|| value.map_or(0, |value| value.clear(&path))))
}

/// An unset property has no value or the attribute `xsi:nil`.
fn is_set(start: &Start<'_>) -> bool {
    start.attribute("xsi:nil").is_none_or(|nil| &*nil != "true")
}
