//! Objects and changes, read from the reply straight into the types that hold them.

use super::managed::{Managed, Mask};
use crate::moref::MoRef;
use crate::soap::Fault;
use crate::xml::XmlError;
use crate::xml::codec::{Decode, data};
use crate::xml::reader::{Reader, Start};

data! {
    /// A property that was asked for and not given.
    pub(crate) struct MissingProperty {
        /// The property.
        path: String = "path",
        /// Why not.
        fault: Fault = "fault",
    }
}

/// An object of a one-off retrieval.
#[derive(Debug)]
pub(crate) struct RetrievedObject<T> {
    pub(crate) reference: MoRef,
    /// `None` when `T` does not hold objects of this type.
    pub(crate) value: Option<T>,
    pub(crate) missing: Vec<MissingProperty>,
}

/// A change of an object that is watched.
#[derive(Debug)]
pub(crate) enum Change<T> {
    /// The object came into view, with all that was asked for.
    Enter(T),
    /// Some properties changed: those in the mask.
    Modify(T, Mask),
    /// The object is no longer in view. Why is not said.
    Leave(MoRef),
    /// An object of a type that `T` does not hold.
    Foreign,
}

impl<T: Managed> Decode for RetrievedObject<T> {
    /// `ObjectContent`
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
            reference.ok_or(XmlError::Missing { of: "an object", field: "its reference" })?;
        Ok(Self { reference, value, missing })
    }
}

impl<T: Managed> Decode for Change<T> {
    /// `ObjectUpdate`
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
        let reference =
            reference.ok_or(XmlError::Missing { of: "a change", field: "its object" })?;
        Ok(match (kind.as_str(), value) {
            ("leave", _) => Self::Leave(reference),
            ("enter", Some(value)) => Self::Enter(value),
            ("modify", Some(value)) => Self::Modify(value, mask),
            ("enter" | "modify", None) => Self::Foreign,
            _ => return Err(XmlError::unreadable(&kind, "a kind of change")),
        })
    }
}

/// `DynamicProperty` or `PropertyChange`: name, perhaps an operation, perhaps a value.
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

/// A property that is not set has no value, or one that says so.
fn is_set(start: &Start<'_>) -> bool {
    start.attribute("xsi:nil").is_none_or(|nil| &*nil != "true")
}
