//! References to managed objects.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::xml::codec::{Decode, Encode};
use crate::xml::reader::{Reader, Start, XmlError};
use crate::xml::writer::Writer;

/// vCenter's reference to an object, such as `VirtualMachine:vm-42`. It is valid only in one
/// vCenter, which never reuses it. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MoRef {
    pub kind: Kind,
    pub id: Arc<str>,
}

macro_rules! kinds {
    ($($kind:ident),* $(,)?) => {
        /// The type of a managed object. `Other` holds the name of a type that this crate does not
        /// use.
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Kind {
            $($kind,)*
            Other(Arc<str>),
        }

        impl Kind {
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$kind => stringify!($kind),)*
                    Self::Other(name) => name,
                }
            }
        }

        impl From<&str> for Kind {
            fn from(name: &str) -> Self {
                match name {
                    $(stringify!($kind) => Self::$kind,)*
                    other => Self::Other(other.into()),
                }
            }
        }
    };
}
kinds! {
    VirtualMachine, HostSystem, ClusterComputeResource, ComputeResource, ResourcePool, VirtualApp, Folder, Datacenter,
    Datastore, StoragePod, Network, DistributedVirtualPortgroup, OpaqueNetwork, Task, SessionManager,
    AuthorizationManager, TaskManager,
}

impl MoRef {
    /// Creates the reference `kind:id`.
    pub fn new(kind: &str, id: impl Into<Arc<str>>) -> Self {
        Self { kind: kind.into(), id: id.into() }
    }
}

impl fmt::Display for MoRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind.as_str(), self.id)
    }
}

impl fmt::Debug for MoRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for MoRef {
    type Err = XmlError;

    /// Parses the format of `Display`.
    fn from_str(text: &str) -> Result<Self, XmlError> {
        match text.split_once(':') {
            Some((kind, id)) if !kind.is_empty() && !id.is_empty() => Ok(Self::new(kind, id)),
            _ => Err(XmlError::unreadable(text, "a reference of the form Type:id")),
        }
    }
}

impl Decode for MoRef {
    fn decode(start: &Start<'_>, reader: &mut Reader<'_>) -> Result<Self, XmlError> {
        let kind = start.attribute("type").map(|kind| Kind::from(&*kind));
        let id: Arc<str> = reader.text()?.trim().into();
        let kind = kind.ok_or(XmlError::Missing { of: "a reference", field: "type" })?;
        Ok(Self { kind, id })
    }
}

impl Encode for MoRef {
    fn encode(&self, name: &str, writer: &mut Writer) {
        writer.open_with(name, &[("type", self.kind.as_str())]);
        writer.text(&self.id);
        writer.close(name);
    }
}
