//! Finds out why an object is not in view.
//!
//! A deleted object, a lost permission and an unreachable vCenter look the same in a watch: the
//! object is not there. Treating the second or third case as the first destroys things. The client
//! therefore checks each absent object by its reference. It creates a [`Gone`] only if vCenter
//! answers that the object does not exist.

use std::sync::atomic::{AtomicBool, Ordering};

use futures::StreamExt as _;

use super::model::Object;
use crate::client::{Client, Retries};
use crate::collector::spec::{FilterSpec, ObjectSpec, PropertySpec};
use crate::collector::{RetrievedObject, managed, retrieve, retrieve_with};
use crate::error::Error;
use crate::moref::MoRef;
use crate::session::Protocol;
use crate::soap::FaultKind;
use crate::wire::CallKind;

/// The number of concurrent existence checks.
const CONCURRENT_CHECKS: usize = 4;

/// Proof that an object does not exist, from vCenter's own answer. Only this module creates it. A
/// function that must not act on less takes a `&Gone`.
///
/// The proof comes from the vCenter that the client first connected to. The client rejects any
/// other vCenter at the same address ([`Error::OtherVcenter`]). A vCenter restored from an older
/// backup counts as the same one, although it does not know newer objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gone(MoRef);

impl Gone {
    /// The object that no longer exists.
    pub fn reference(&self) -> &MoRef {
        &self.0
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Absence {
    /// The object no longer exists.
    Gone(Gone),
    /// The object exists, but the user lacks the permission to see it.
    Invisible {
        /// The missing privilege, if vCenter names it.
        privilege: Option<Box<str>>,
    },
    /// The object exists and is visible, but outside the watched part of the tree: it was moved.
    Elsewhere,
    /// vCenter has not answered yet. The watch asks again.
    Unreachable,
}

/// An object that is no longer in view.
#[derive(Debug, Clone, PartialEq)]
pub struct Departure {
    /// The last known state.
    pub object: Object,
    pub absence: Absence,
}

impl Departure {
    /// The proof that the object is gone, if any.
    pub fn gone(&self) -> Option<&Gone> {
        match &self.absence {
            Absence::Gone(gone) => Some(gone),
            Absence::Invisible { .. } | Absence::Elsewhere | Absence::Unreachable => None,
        }
    }
}

/// The result of an existence check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// The object exists and is visible.
    Present,
    /// The object is not visible, for this reason.
    Absent(Absence),
}

managed! {
    /// The children of a folder.
    struct FolderChildren of Folder {
        LIST {
            children: Box<[MoRef]> = "childEntity",
        }
    }
}

impl Client {
    /// The children of a folder, including objects that the user has no permission to see. A child
    /// that is in no [`Tree`](super::Tree) is hidden from the user.
    pub async fn listed_in(&self, folder: &MoRef) -> Result<Vec<MoRef>, Error> {
        let spec = FilterSpec {
            properties: vec![PropertySpec::new("Folder", FolderChildren::LIST.iter().copied())],
            objects: vec![ObjectSpec::just(folder.clone())],
            skip_missing: false,
        };
        let mut all = Vec::new();
        for found in retrieve::<FolderChildren>(self, &spec, None).await? {
            if let Some(missing) = found.missing.into_iter().next() {
                return Err(self.wire().fault("childEntity", missing.fault));
            }
            all.extend(found.value.and_then(|content| content.children).unwrap_or_default());
        }
        Ok(all)
    }

    /// Checks whether objects exist. Makes one call for all existing objects and one for each other
    /// object, because only a fault that names an object proves anything about it.
    ///
    /// Never fails. The result is [`Absence::Unreachable`] for an object without an answer.
    pub async fn ask_for(&self, objects: &[MoRef]) -> Vec<(MoRef, Standing)> {
        self.check_all(objects, || self.retries(Protocol::Soap, CallKind::Read)).await
    }

    /// Like [`Client::ask_for`], without retries, for callers that repeat the check.
    pub(super) async fn ask_for_once(&self, objects: &[MoRef]) -> Vec<(MoRef, Standing)> {
        self.check_all(objects, || self.retries(Protocol::Soap, CallKind::Read).without_retry())
            .await
    }

    async fn check_all<'c>(
        &'c self,
        objects: &[MoRef],
        retries: impl Fn() -> Retries<'c>,
    ) -> Vec<(MoRef, Standing)> {
        let mut results = Vec::with_capacity(objects.len());
        let mut unchecked: Vec<MoRef> = objects.to_vec();
        // Set when vCenter does not answer: the remaining checks are skipped.
        let unreachable = AtomicBool::new(false);
        if unchecked.len() > 1 {
            match retrieve_with::<Object>(retries(), self, &existence_spec(&unchecked, true), None)
                .await
            {
                Ok(all) => {
                    for found in all {
                        unchecked.retain(|object| *object != found.reference);
                        results.push((found.reference.clone(), standing(&found)));
                    }
                }
                // A fault about one object says nothing about the others; the single checks do.
                Err(error) => unreachable.store(error.fault().is_none(), Ordering::Relaxed),
            }
        }
        let single = futures::stream::iter(unchecked).map(|object| {
            let (retries, unreachable) = (retries(), &unreachable);
            async move {
                let standing = self.check_one(retries, &object, unreachable).await;
                (object, standing)
            }
        });
        results.extend(single.buffer_unordered(CONCURRENT_CHECKS).collect::<Vec<_>>().await);
        results
    }

    async fn check_one(
        &self,
        retries: Retries<'_>,
        object: &MoRef,
        unreachable: &AtomicBool,
    ) -> Standing {
        if unreachable.load(Ordering::Relaxed) {
            return Standing::Absent(Absence::Unreachable);
        }
        let spec = existence_spec(std::slice::from_ref(object), false);
        match retrieve_with::<Object>(retries, self, &spec, None).await {
            Ok(found) => match found.iter().find(|found| found.reference == *object) {
                Some(found) => standing(found),
                // A reply with neither the object nor a fault proves nothing.
                None => Standing::Absent(Absence::Unreachable),
            },
            Err(error) => {
                unreachable.fetch_or(error.fault().is_none(), Ordering::Relaxed);
                Standing::Absent(absence_from(object, &error))
            }
        }
    }
}

fn existence_spec(objects: &[MoRef], skip_missing: bool) -> FilterSpec {
    FilterSpec {
        properties: vec![PropertySpec::new("ManagedEntity", ["name"])],
        objects: objects.iter().cloned().map(ObjectSpec::just).collect(),
        skip_missing,
    }
}

fn standing(found: &RetrievedObject<Object>) -> Standing {
    let refused = found.missing.iter().find_map(|missing| match &missing.fault.kind {
        FaultKind::NoPermission { privilege, .. } => Some(privilege.clone()),
        _ => None,
    });
    match refused {
        Some(privilege) => Standing::Absent(Absence::Invisible { privilege }),
        // Every object has a name, so any other fault says nothing about the object.
        None if !found.missing.is_empty() => Standing::Absent(Absence::Unreachable),
        None => Standing::Present,
    }
}

/// A failed check proves nothing unless vCenter names the exact reason.
fn absence_from(object: &MoRef, error: &Error) -> Absence {
    match error.fault() {
        Some(fault) if fault.proves_absence_of(object) => Absence::Gone(Gone(object.clone())),
        Some(fault) => match &fault.kind {
            FaultKind::NoPermission { privilege, .. } => {
                Absence::Invisible { privilege: privilege.clone() }
            }
            _ => Absence::Unreachable,
        },
        None => Absence::Unreachable,
    }
}

/// A proof without a vCenter, for tests.
#[cfg(test)]
pub(super) fn gone_for_test(object: &MoRef) -> Absence {
    Absence::Gone(Gone(object.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soap::Fault;
    use crate::xml::codec::from_xml;

    #[test]
    fn an_object_without_a_readable_name_is_not_present() {
        let found = |fault: &str| {
            let missing = if fault.is_empty() {
                "<propSet><name>name</name><val>a</val></propSet>".to_owned()
            } else {
                format!(
                    "<missingSet><path>name</path><fault><fault xsi:type=\"{fault}\"/>\
                     <localizedMessage/></fault></missingSet>"
                )
            };
            let text =
                format!("<objects><obj type=\"VirtualMachine\">vm-1</obj>{missing}</objects>");
            standing(&from_xml(&text).unwrap())
        };
        assert_eq!(found(""), Standing::Present);
        assert!(matches!(found("NoPermission"), Standing::Absent(Absence::Invisible { .. })));
        for other in ["SystemError", "HostNotConnected", "ManagedObjectNotFound"] {
            assert_eq!(found(other), Standing::Absent(Absence::Unreachable), "{other}");
        }
    }

    #[test]
    fn only_vcenters_own_answer_proves_an_object_gone() {
        let vm = MoRef::new("VirtualMachine", "vm-1");
        let fault = |kind| Error::Fault {
            address: "vc".to_owned(),
            method: "RetrievePropertiesEx".to_owned(),
            source: Box::new(Fault { kind, ..Fault::from_message("") }),
        };
        let not_found = |object| fault(FaultKind::ManagedObjectNotFound { object });
        assert!(matches!(absence_from(&vm, &not_found(Some(vm.clone()))), Absence::Gone(_)));
        let denied = fault(FaultKind::NoPermission {
            object: Some(vm.clone()),
            privilege: Some("System.View".into()),
        });
        assert!(matches!(absence_from(&vm, &denied), Absence::Invisible { .. }));
        let of_another = not_found(Some(MoRef::new("VirtualMachine", "vm-2")));
        for unreachable in [
            not_found(None),
            of_another,
            fault(FaultKind::NotFound),
            fault(FaultKind::NotAuthenticated),
        ] {
            assert_eq!(absence_from(&vm, &unreachable), Absence::Unreachable, "{unreachable:?}");
        }
        let unavailable =
            Error::Unavailable { address: "vc".to_owned(), status: 503, retry_after: None };
        assert_eq!(absence_from(&vm, &unavailable), Absence::Unreachable);
    }
}
