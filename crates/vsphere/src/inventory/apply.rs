//! Applies a change to the inventory tree.

use super::model::Object;
use super::tree::Tree;
use super::watch::Event;
use crate::collector::Change;

/// A change of an object that is not in view: the watch has missed an update.
#[derive(Debug)]
pub(super) struct MissedUpdate;

/// Applies a change and returns the event to send.
pub(super) fn apply(
    tree: &mut Tree,
    change: Change<Object>,
) -> Result<Option<Event>, MissedUpdate> {
    match change {
        Change::Enter(mut object) => {
            if let Some(before) = tree.get(object.reference()) {
                object.keep_identity(before);
            }
            Ok(match tree.insert(object.clone()) {
                None => Some(Event::Appeared(object)),
                Some(before) if before == object => None,
                Some(before) => Some(Event::Changed { before, after: object }),
            })
        }
        Change::Modify(partial, mask) => {
            let before = tree.remove(partial.reference()).ok_or(MissedUpdate)?;
            let mut after = before.clone();
            after.merge(partial, mask);
            after.keep_identity(&before);
            tree.insert(after.clone());
            Ok((before != after).then_some(Event::Changed { before, after }))
        }
        Change::Leave(reference) => {
            // The watch sends the event when it knows the reason.
            if let Some(object) = tree.remove(&reference) {
                tree.depart(object);
            }
            Ok(None)
        }
        Change::Foreign => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::{Absence, PowerState, Presence};
    use crate::moref::MoRef;
    use crate::xml::codec::from_xml;

    /// Hand-made data: the simulator never sends changes out of order.
    fn change(kind: &str, properties: &str) -> Change<Object> {
        from_xml(&format!(
            "<objectSet><kind>{kind}</kind><obj type=\"VirtualMachine\">vm-1</obj>{properties}</objectSet>"
        ))
        .unwrap()
    }

    fn set(path: &str, value: &str) -> String {
        format!("<changeSet><name>{path}</name><op>assign</op><val>{value}</val></changeSet>")
    }

    fn unset(path: &str) -> String {
        format!("<changeSet><name>{path}</name><op>indirectRemove</op></changeSet>")
    }

    const UUID: &str = "56492e42-22ad-3911-6d72-59cc8f26bc90";

    #[test]
    fn a_change_of_an_unknown_object_is_a_missed_update() {
        let mut tree = Tree::default();
        assert!(apply(&mut tree, change("modify", &set("name", "a"))).is_err());
        assert!(tree.is_empty(), "no object is invented");
    }

    #[test]
    fn a_change_touches_only_the_changed_properties() {
        let mut tree = Tree::default();
        let all =
            [set("name", "a"), set("runtime.powerState", "poweredOn"), set("config.uuid", UUID)];
        apply(&mut tree, change("enter", &all.concat())).unwrap();
        let off = change("modify", &set("runtime.powerState", "poweredOff"));
        assert!(matches!(apply(&mut tree, off), Ok(Some(Event::Changed { .. }))));
        let vm = tree.vm_by_name("a").found().cloned().unwrap();
        assert_eq!(vm.power, Some(PowerState::Off));
        let same = change("modify", &set("runtime.powerState", "poweredOff"));
        assert!(matches!(apply(&mut tree, same), Ok(None)), "an unchanged value sends no event");
    }

    #[test]
    fn a_removed_property_is_cleared_with_its_children_but_uuids_stay() {
        let mut tree = Tree::default();
        let all = [set("name", "a"), set("config.version", "vmx-19"), set("config.uuid", UUID)];
        apply(&mut tree, change("enter", &all.concat())).unwrap();
        apply(&mut tree, change("modify", &unset("config"))).unwrap();
        let vm = tree.vm_by_name("a").found().cloned().unwrap();
        assert_eq!(vm.hardware_version, None);
        assert_eq!(vm.bios_uuid.map(|uuid| uuid.to_string()).as_deref(), Some(UUID));
        assert!(tree.vm_by_bios_uuid(UUID.parse().unwrap()).found().is_some());
    }

    #[test]
    fn an_object_that_leaves_is_departed_for_an_unknown_reason() {
        let mut tree = Tree::default();
        apply(&mut tree, change("enter", &set("name", "a"))).unwrap();
        assert!(matches!(apply(&mut tree, change("leave", "")), Ok(None)));
        let presence = tree.presence(&MoRef::new("VirtualMachine", "vm-1"));
        assert!(matches!(presence, Presence::Departed(d) if d.absence == Absence::Unreachable));
        assert!(apply(&mut tree, change("leave", "")).is_ok(), "a second leave is harmless");
    }
}
