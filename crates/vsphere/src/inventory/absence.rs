//! Why an object is not in view.
//!
//! Losing an object, losing the right to see it and losing vCenter all look the same in a watch:
//! the object is not there. Treating the second or third as the first destroys things. So an object
//! that is not in view is asked for by its reference, and only vCenter's word that there is no such
//! object makes a [`Gone`].

use std::sync::atomic::{AtomicBool, Ordering};

use futures::StreamExt as _;

use super::model::Object;
use crate::client::{Client, Effort};
use crate::collector::spec::{FilterSpec, ObjectSpec, PropertySpec};
use crate::collector::{RetrievedObject, managed, retrieve, retrieve_with};
use crate::error::Error;
use crate::moref::MoRef;
use crate::session::Side;
use crate::soap::FaultKind;
use crate::wire::Nature;

/// Questions asked at the same time.
const AT_ONCE: usize = 4;

/// Proof that vCenter was asked for an object and said that it does not exist. Only this module
/// makes one: a function that must not act on less takes a `&Gone`.
///
/// It is the word of the vCenter the client first met: another one at the same address is not
/// listened to ([`Error::OtherVcenter`]). A vCenter restored from an older backup is the same one
/// and is believed, though it does not know what was made since.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gone(MoRef);

impl Gone {
    /// The object that is no more.
    pub fn reference(&self) -> &MoRef {
        &self.0
    }
}

/// Why an object is not in view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Absence {
    /// It does not exist any more.
    Gone(Gone),
    /// It exists, but this user may no longer see it.
    Invisible {
        /// The privilege vCenter names as missing.
        privilege: Option<Box<str>>,
    },
    /// It exists and can be seen, but not below what is watched: it was moved.
    Elsewhere,
    /// vCenter could not be asked yet. It will be.
    Unreachable,
}

/// An object that was in view and is not any more.
#[derive(Debug, Clone, PartialEq)]
pub struct Departure {
    /// As it was last seen.
    pub object: Object,
    /// Why it is not in view.
    pub absence: Absence,
}

impl Departure {
    /// The proof that it is gone, if there is one.
    pub fn gone(&self) -> Option<&Gone> {
        match &self.absence {
            Absence::Gone(gone) => Some(gone),
            Absence::Invisible { .. } | Absence::Elsewhere | Absence::Unreachable => None,
        }
    }
}

/// What vCenter says of an object when asked for it by its reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It exists and can be seen.
    Present,
    /// Not so.
    Absent(Absence),
}

managed! {
    /// What stands in a folder.
    struct Content of Folder {
        /// The list.
        LIST {
            /// The list.
            children: Box<[MoRef]> = "childEntity",
        }
    }
}

impl Client {
    /// What a folder lists, whether or not this user may see each of it: whoever finds something here
    /// that is in no tree of his knows that something is hidden from him.
    pub async fn listed_in(&self, folder: &MoRef) -> Result<Vec<MoRef>, Error> {
        let spec = FilterSpec {
            properties: vec![PropertySpec::new("Folder", Content::LIST.iter().copied())],
            objects: vec![ObjectSpec::just(folder.clone())],
            missing_is_fine: false,
        };
        let mut all = Vec::new();
        for found in retrieve::<Content>(self, &spec, None).await? {
            if let Some(missing) = found.missing.into_iter().next() {
                return Err(self.wire().fault("childEntity", missing.fault));
            }
            all.extend(found.value.and_then(|content| content.children).unwrap_or_default());
        }
        Ok(all)
    }

    /// Asks vCenter whether these objects exist. One call for those that do; one each for the
    /// others, because only a refusal that names an object proves anything about it.
    ///
    /// Never fails: an object that could not be asked for is [`Absence::Unreachable`].
    pub async fn ask_for(&self, objects: &[MoRef]) -> Vec<(MoRef, Standing)> {
        self.ask(objects, || self.effort(Side::Soap, Nature::Read)).await
    }

    /// The same, each question asked once: for a caller who asks again in time.
    pub(super) async fn ask_once_for(&self, objects: &[MoRef]) -> Vec<(MoRef, Standing)> {
        self.ask(objects, || self.effort(Side::Soap, Nature::Read).once()).await
    }

    async fn ask<'c>(
        &'c self,
        objects: &[MoRef],
        effort: impl Fn() -> Effort<'c>,
    ) -> Vec<(MoRef, Standing)> {
        let mut answers = Vec::with_capacity(objects.len());
        let mut open: Vec<MoRef> = objects.to_vec();
        // Once vCenter does not answer, the remaining questions are not asked.
        let silent = AtomicBool::new(false);
        if open.len() > 1 {
            match retrieve_with::<Object>(effort(), self, &question(&open, true), None).await {
                Ok(all) => {
                    for found in all {
                        open.retain(|object| *object != found.reference);
                        answers.push((found.reference.clone(), standing(&found)));
                    }
                }
                // A refusal because of one object says nothing of the others; the single
                // questions do.
                Err(error) => silent.store(error.fault().is_none(), Ordering::Relaxed),
            }
        }
        let single = futures::stream::iter(open).map(|object| {
            let (effort, silent) = (effort(), &silent);
            async move {
                let standing = self.ask_for_one(effort, &object, silent).await;
                (object, standing)
            }
        });
        answers.extend(single.buffer_unordered(AT_ONCE).collect::<Vec<_>>().await);
        answers
    }

    async fn ask_for_one(
        &self,
        effort: Effort<'_>,
        object: &MoRef,
        silent: &AtomicBool,
    ) -> Standing {
        if silent.load(Ordering::Relaxed) {
            return Standing::Absent(Absence::Unreachable);
        }
        let question = question(std::slice::from_ref(object), false);
        match retrieve_with::<Object>(effort, self, &question, None).await {
            Ok(found) => match found.iter().find(|found| found.reference == *object) {
                Some(found) => standing(found),
                // Neither the object nor a refusal: no proof of anything.
                None => Standing::Absent(Absence::Unreachable),
            },
            Err(error) => {
                silent.fetch_or(error.fault().is_none(), Ordering::Relaxed);
                Standing::Absent(verdict(object, &error))
            }
        }
    }
}

fn question(objects: &[MoRef], missing_is_fine: bool) -> FilterSpec {
    FilterSpec {
        properties: vec![PropertySpec::new("ManagedEntity", ["name"])],
        objects: objects.iter().cloned().map(ObjectSpec::just).collect(),
        missing_is_fine,
    }
}

fn standing(found: &RetrievedObject<Object>) -> Standing {
    let refused = found.missing.iter().find_map(|missing| match &missing.fault.kind {
        FaultKind::NoPermission { privilege, .. } => Some(privilege.clone()),
        _ => None,
    });
    match refused {
        Some(privilege) => Standing::Absent(Absence::Invisible { privilege }),
        // Its name is asked for, which everything has: whatever else keeps it back says nothing of
        // the object.
        None if !found.missing.is_empty() => Standing::Absent(Absence::Unreachable),
        None => Standing::Present,
    }
}

/// What a failed question proves: nothing, unless vCenter says exactly why.
fn verdict(object: &MoRef, error: &Error) -> Absence {
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

/// A proof without a vCenter, for tests of what is done with proofs.
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
    fn an_object_whose_name_is_kept_back_is_not_called_present() {
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
    fn nothing_but_the_word_of_vcenter_makes_an_object_gone() {
        let vm = MoRef::new("VirtualMachine", "vm-1");
        let fault = |kind| Error::Fault {
            address: "vc".to_owned(),
            method: "RetrievePropertiesEx".to_owned(),
            source: Box::new(Fault { kind, ..Fault::from_message("") }),
        };
        let not_found = |object| fault(FaultKind::ManagedObjectNotFound { object });
        assert!(matches!(verdict(&vm, &not_found(Some(vm.clone()))), Absence::Gone(_)));
        let denied = fault(FaultKind::NoPermission {
            object: Some(vm.clone()),
            privilege: Some("System.View".into()),
        });
        assert!(matches!(verdict(&vm, &denied), Absence::Invisible { .. }));
        let of_another = not_found(Some(MoRef::new("VirtualMachine", "vm-2")));
        for silent in [
            not_found(None),
            of_another,
            fault(FaultKind::NotFound),
            fault(FaultKind::NotAuthenticated),
        ] {
            assert_eq!(verdict(&vm, &silent), Absence::Unreachable, "{silent:?}");
        }
        let away = Error::Unavailable { address: "vc".to_owned(), status: 503, retry_after: None };
        assert_eq!(verdict(&vm, &away), Absence::Unreachable);
    }
}
