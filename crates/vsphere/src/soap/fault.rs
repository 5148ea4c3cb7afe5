//! vCenter's typed errors.

use std::fmt;

use crate::moref::MoRef;
use crate::xml::codec::{Decode, Encode};
use crate::xml::reader::{Reader, Start, XmlError};
use crate::xml::writer::Writer;

/// A vCenter fault: its type, messages and cause.
#[derive(Debug, Clone, PartialEq)]
pub struct Fault {
    pub kind: FaultKind,
    /// The API type name, also for types without a [`FaultKind`].
    pub type_name: Box<str>,
    /// vCenter's message in the locale of the session. May be empty.
    pub message: Box<str>,
    /// Further messages, often the useful ones.
    pub details: Vec<Box<str>>,
    pub cause: Option<Box<Fault>>,
}

/// The faults that callers distinguish. Each variant is the API fault of the same name.
#[derive(Debug, Clone, PartialEq)]
pub enum FaultKind {
    /// The session is not logged in, or no longer.
    NotAuthenticated,
    /// The user lacks a privilege on an object.
    NoPermission {
        object: Option<MoRef>,
        privilege: Option<Box<str>>,
    },
    /// Wrong user name or password, or a locked account. vCenter does not always distinguish them.
    InvalidLogin,
    /// The password is correct but has expired.
    PasswordExpired,
    /// The object does not exist. No other fault proves that.
    ManagedObjectNotFound {
        object: Option<MoRef>,
    },
    InvalidProperty {
        name: Option<Box<str>>,
    },
    InvalidCollectorVersion,
    InvalidArgument {
        property: Option<Box<str>>,
    },
    InvalidType,
    InvalidRequest,
    MethodNotFound,
    NotFound,
    NotSupported,
    AlreadyExists {
        name: Option<Box<str>>,
    },
    DuplicateName {
        name: Option<Box<str>>,
        object: Option<MoRef>,
    },
    ResourceInUse {
        name: Option<Box<str>>,
    },
    InvalidState,
    InvalidPowerState,
    TaskInProgress,
    RequestCanceled,
    ConcurrentAccess,
    FileNotFound {
        file: Option<Box<str>>,
    },
    TooManyDevices,
    HostNotConnected,
    NoDiskSpace,
    SystemError {
        reason: Option<Box<str>>,
    },
    /// Any other fault of the container storage service.
    CnsFault {
        reason: Option<Box<str>>,
    },
    CnsVolumeNotFound {
        volume: Option<Box<str>>,
    },
    CnsNotRegistered {
        volume: Option<Box<str>>,
    },
    CnsVolumeAlreadyExists {
        volume: Option<Box<str>>,
    },
    CnsAlreadyRegistered {
        volume: Option<Box<str>>,
    },
    CnsSnapshotNotFound {
        volume: Option<Box<str>>,
        snapshot: Option<Box<str>>,
    },
    CnsSnapshotCreated {
        volume: Option<Box<str>>,
        snapshot: Option<Box<str>>,
    },
    /// Any other fault. [`Fault::type_name`] holds its type.
    Other,
}

impl Fault {
    /// A fault with nothing but a message.
    pub(crate) fn from_message(message: &str) -> Self {
        let (type_name, message) = ("".into(), message.into());
        Self { kind: FaultKind::Other, type_name, message, details: Vec::new(), cause: None }
    }

    /// The fault and its causes, outermost first.
    pub fn chain(&self) -> impl Iterator<Item = &Fault> {
        std::iter::successors(Some(self), |fault| fault.cause.as_deref())
    }

    /// Whether this fault proves that `object` does not exist. `NoPermission` and all other faults
    /// do not.
    pub fn proves_absence_of(&self, object: &MoRef) -> bool {
        matches!(&self.kind, FaultKind::ManagedObjectNotFound { object: Some(missing) } if missing == object)
    }
}

impl fmt::Display for Fault {
    /// Type and message: `NoPermission: Permission to perform this operation was denied, needs …`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.type_name.is_empty() { "fault" } else { &self.type_name };
        f.write_str(name)?;
        if !self.message.is_empty() {
            write!(f, ": {}", self.message.trim_end_matches('.'))?;
        }
        match &self.kind {
            FaultKind::NoPermission { object, privilege } => {
                if let Some(privilege) = privilege {
                    write!(f, ", needs {privilege}")?;
                }
                if let Some(object) = object {
                    write!(f, " on {object}")?;
                }
            }
            FaultKind::ManagedObjectNotFound { object: Some(object) } => write!(f, " ({object})")?,
            FaultKind::InvalidArgument { property: Some(name) }
            | FaultKind::InvalidProperty { name: Some(name) } => {
                write!(f, " ({name})")?;
            }
            FaultKind::CnsFault { reason: Some(reason) }
            | FaultKind::SystemError { reason: Some(reason) } => {
                write!(f, " ({reason})")?;
            }
            _ => {}
        }
        for detail in &self.details {
            if **detail != *self.message {
                write!(f, "; {}", detail.trim_end_matches('.'))?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Fault {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.as_deref().map(|cause| cause as _)
    }
}

/// The members of all known faults, by name. No two faults use a name with different meanings.
#[derive(Default)]
struct Members {
    object: Option<MoRef>,
    text: Vec<(&'static str, Box<str>)>,
}

impl Members {
    fn get(&self, name: &str) -> Option<Box<str>> {
        self.text.iter().find(|(known, _)| *known == name).map(|(_, text)| text.clone())
    }

    fn kind(self, type_name: &str) -> FaultKind {
        let name = self.get("name");
        let reason = self.get("reason");
        let volume = self.get("volumeId");
        let snapshot = self.get("snapshotId");
        let privilege = self.get("privilegeId");
        let property = self.get("invalidProperty");
        let file = self.get("file");
        let object = self.object;
        match type_name {
            "NotAuthenticated" => FaultKind::NotAuthenticated,
            "NoPermission" => FaultKind::NoPermission { object, privilege },
            "InvalidLogin" => FaultKind::InvalidLogin,
            "PasswordExpired" => FaultKind::PasswordExpired,
            "ManagedObjectNotFound" => FaultKind::ManagedObjectNotFound { object },
            "InvalidProperty" => FaultKind::InvalidProperty { name },
            "InvalidCollectorVersion" => FaultKind::InvalidCollectorVersion,
            "InvalidArgument" => FaultKind::InvalidArgument { property },
            "InvalidType" => FaultKind::InvalidType,
            "InvalidRequest" => FaultKind::InvalidRequest,
            "MethodNotFound" => FaultKind::MethodNotFound,
            "NotFound" => FaultKind::NotFound,
            "NotSupported" => FaultKind::NotSupported,
            "AlreadyExists" => FaultKind::AlreadyExists { name },
            "DuplicateName" => FaultKind::DuplicateName { name, object },
            "ResourceInUse" => FaultKind::ResourceInUse { name },
            "InvalidState" => FaultKind::InvalidState,
            "InvalidPowerState" => FaultKind::InvalidPowerState,
            "TaskInProgress" => FaultKind::TaskInProgress,
            "RequestCanceled" => FaultKind::RequestCanceled,
            "ConcurrentAccess" => FaultKind::ConcurrentAccess,
            "FileNotFound" => FaultKind::FileNotFound { file },
            "TooManyDevices" => FaultKind::TooManyDevices,
            "HostNotConnected" => FaultKind::HostNotConnected,
            "NoDiskSpace" => FaultKind::NoDiskSpace,
            "SystemError" => FaultKind::SystemError { reason },
            "CnsVolumeNotFoundFault" => FaultKind::CnsVolumeNotFound { volume },
            "CnsNotRegisteredFault" => FaultKind::CnsNotRegistered { volume },
            "CnsVolumeAlreadyExistsFault" => FaultKind::CnsVolumeAlreadyExists { volume },
            "CnsAlreadyRegisteredFault" => FaultKind::CnsAlreadyRegistered { volume },
            "CnsSnapshotNotFoundFault" => FaultKind::CnsSnapshotNotFound { volume, snapshot },
            "CnsSnapshotCreatedFault" => FaultKind::CnsSnapshotCreated { volume, snapshot },
            cns if cns.starts_with("Cns") => FaultKind::CnsFault { reason },
            _ => FaultKind::Other,
        }
    }
}

/// Reads the content of an element that is a `MethodFault`.
fn read_method_fault(type_name: &str, reader: &mut Reader<'_>) -> Result<Fault, XmlError> {
    let mut members = Members::default();
    let mut details = Vec::new();
    let mut cause = None;
    while let Some(start) = reader.next_child()? {
        let known = match start.name() {
            "faultCause" => {
                cause = Some(Box::new(Fault::decode(&start, reader)?));
                continue;
            }
            "faultMessage" => {
                details.extend(read_message(reader)?);
                continue;
            }
            "object" | "obj" if start.attribute("type").is_some() => {
                members.object = Some(MoRef::decode(&start, reader)?);
                continue;
            }
            "name" => "name",
            "reason" => "reason",
            "privilegeId" => "privilegeId",
            "invalidProperty" => "invalidProperty",
            "file" => "file",
            id @ ("volumeId" | "snapshotId" | "SnapshotId") => {
                let known = if id == "volumeId" {
                    read_nested_id("volumeId", reader)?
                } else {
                    read_nested_id("snapshotId", reader)?
                };
                members.text.extend(known);
                continue;
            }
            _ => {
                reader.skip()?;
                continue;
            }
        };
        members.text.push((known, reader.text()?.into()));
    }
    let kind = members.kind(type_name);
    Ok(Fault { kind, type_name: type_name.into(), message: "".into(), details, cause })
}

/// `<volumeId><id>…</id></volumeId>`
fn read_nested_id(
    name: &'static str,
    reader: &mut Reader<'_>,
) -> Result<Option<(&'static str, Box<str>)>, XmlError> {
    let mut found = None;
    while let Some(start) = reader.next_child()? {
        match start.name() {
            "id" => found = Some((name, reader.text()?.into())),
            _ => reader.skip()?,
        }
    }
    Ok(found)
}

/// Reads the text of a `LocalizableMessage`.
fn read_message(reader: &mut Reader<'_>) -> Result<Option<Box<str>>, XmlError> {
    let mut found = None;
    while let Some(start) = reader.next_child()? {
        match start.name() {
            "message" => found = Some(reader.text()?.into()),
            _ => reader.skip()?,
        }
    }
    Ok(found)
}

/// Decodes a `LocalizedMethodFault`: a fault inside a reply.
impl Decode for Fault {
    fn decode(_: &Start<'_>, reader: &mut Reader<'_>) -> Result<Self, XmlError> {
        let mut fault = Fault::from_message("");
        let mut message = Box::default();
        while let Some(start) = reader.next_child()? {
            match start.name() {
                "fault" => {
                    let type_name = start.xsi_type().unwrap_or("MethodFault".into()).into_owned();
                    fault = read_method_fault(&type_name, reader)?;
                }
                "localizedMessage" => message = reader.text()?.into(),
                _ => reader.skip()?,
            }
        }
        fault.message = message;
        Ok(fault)
    }
}

/// A client never sends a fault. The impl exists so that `data!` can declare types that hold one.
impl Encode for Fault {
    fn encode(&self, _: &str, _: &mut Writer) {}
}

/// Reads the content of a SOAP `Fault`: the reply to a failed call.
pub(crate) fn read_soap_fault(reader: &mut Reader<'_>) -> Result<Fault, XmlError> {
    let mut fault = Fault::from_message("");
    let mut message = Box::default();
    while let Some(start) = reader.next_child()? {
        match start.name() {
            "faultstring" => message = reader.text()?.into(),
            "detail" => {
                while let Some(detail) = reader.next_child()? {
                    let name = detail.name().trim_end_matches("Fault").to_owned();
                    let type_name = detail.xsi_type().map_or(name, std::borrow::Cow::into_owned);
                    fault = read_method_fault(&type_name, reader)?;
                }
            }
            _ => reader.skip()?,
        }
    }
    fault.message = message;
    Ok(fault)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xml::codec::from_xml;

    /// Hand-made data: the simulator never nests faults.
    #[test]
    fn the_chain_of_causes_is_decoded() {
        let fault: Fault = from_xml(
            r#"<error><fault xsi:type="CnsFault"><faultCause><fault xsi:type="NoPermission">
               <object type="Datastore">datastore-7</object><privilegeId>Datastore.FileManagement</privilegeId></fault>
               <localizedMessage>Permission to perform this operation was denied.</localizedMessage></faultCause>
               <faultMessage><key>k</key><message>CNS: Failed to create disk.</message></faultMessage>
               <reason>VSLM task failed</reason></fault><localizedMessage>CnsFault error</localizedMessage></error>"#,
        )
        .unwrap();
        assert_eq!(fault.kind, FaultKind::CnsFault { reason: Some("VSLM task failed".into()) });
        let chain: Vec<String> = fault.chain().map(ToString::to_string).collect();
        assert_eq!(
            chain,
            [
                "CnsFault: CnsFault error (VSLM task failed); CNS: Failed to create disk",
                "NoPermission: Permission to perform this operation was denied, needs Datastore.FileManagement on \
                 Datastore:datastore-7",
            ]
        );
    }

    #[test]
    fn only_not_found_for_the_same_object_proves_its_absence() {
        let vm = MoRef::new("VirtualMachine", "vm-1");
        let fault = |kind| Fault { kind, ..Fault::from_message("") };
        let gone = FaultKind::ManagedObjectNotFound { object: Some(vm.clone()) };
        assert!(fault(gone).proves_absence_of(&vm));
        let other =
            FaultKind::ManagedObjectNotFound { object: Some(MoRef::new("VirtualMachine", "vm-2")) };
        assert!(!fault(other).proves_absence_of(&vm));
        assert!(!fault(FaultKind::ManagedObjectNotFound { object: None }).proves_absence_of(&vm));
        assert!(
            !fault(FaultKind::NoPermission { object: Some(vm.clone()), privilege: None })
                .proves_absence_of(&vm)
        );
    }
}
