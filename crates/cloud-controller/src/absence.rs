//! Proof that a machine is gone, from every vCenter's own mouth.
//!
//! A machine that is not in view may be hidden from this user, moved out of the configured
//! datacenters, registered anew under another reference, or its vCenter may be away. Each looks the
//! same in a watch. So, before a Node may be deleted:
//!
//! 1. every configured vCenter is followed and seen whole;
//! 2. the vCenter that had the machine is the very one that answers now, by its own uuid, is asked
//!    for the machine by reference, and says that it does not exist;
//! 3. the folder it stood in can still be seen, or does not exist either: who lost sight of the
//!    folder would not see the machine registered there anew;
//! 4. every vCenter is asked for all its machines, in all datacenters, and none has one of the node's
//!    uuids;
//! 5. none has a machine without a uuid, as those are that vCenter itself cannot reach, unless its
//!    uuid was seen before: it could be the one, registered anew;
//! 6. that folder lists no machine that may not be seen: it could be the one, registered anew and
//!    hidden while nobody looked;
//! 7. every vCenter is the very one the nodes know, and hides no folder in which a machine of any of them
//!    stood: whoever took such rights away may have hidden this one too, after it went there;
//! 8. every vCenter is still followed;
//! 9. and the configuration on disk is the one in use: one that cannot be read may name another
//!    vCenter, to which the machine went.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tokio::time::Instant;
use vsphere::{
    BiosUuid, InstanceUuid, Kind, MoRef,
    inventory::{Absence, Gone, Lookup, Object, Standing as Word, Tree, Vm},
};

use crate::{
    fleet::Fleet,
    identity,
    lifecycle::{Proof, Standing},
    member::Member,
    model::{Node, Place},
    record::Record,
};

/// Where the machines of all nodes stood when they were last seen, by vCenter.
pub type LastSeen = BTreeMap<Arc<str>, There>;

/// What all nodes together know of a vCenter.
#[derive(Debug, Default)]
pub struct There {
    /// The folders of their machines.
    pub folders: BTreeSet<MoRef>,
    /// Its own uuid; several if another one took its place.
    pub uuids: BTreeSet<String>,
}

/// Asks for the machine of a node that is not in view.
pub async fn ask(fleet: &Fleet, node: &Node, last_seen: &LastSeen) -> Standing {
    match prove(fleet, node, last_seen).await {
        Ok(proof) => Standing::Gone(proof),
        Err(why) => Standing::Uncertain(why),
    }
}

async fn prove(fleet: &Fleet, node: &Node, nodes: &LastSeen) -> Result<Proof, String> {
    whole(fleet)?;
    let record = identity::record_of(node);
    let (place, folder) = last_seen(fleet, node, record.as_ref()).ok_or(
        "no vCenter knows its uuid, but which machine it was is not on record, so nobody can prove that it is \
         gone: if it is, delete the Node",
    )?;
    let member = fleet.member(&place.vcenter).ok_or_else(|| {
        format!("its machine was {place}, and that vCenter is not configured any more")
    })?;
    if let Some(record) = &record {
        is_the_same(&member, record)?;
    }
    let instance = record.as_ref().and_then(Record::instance_uuid);
    if identity::uuids(node).is_empty() && instance.is_none() {
        return Err(
            "the node has no uuid by which it could be looked for, so nobody can prove that its \
                    machine is gone: if it is, delete the Node"
                .into(),
        );
    }
    let (gone, folder) = gone(&member, &place, folder).await?;
    // A machine registered anew is in no list that is older than its old reference's end.
    let since = Instant::now();
    for member in fleet.members() {
        let everything = member.everything(since).await;
        let everything =
            everything.map_err(|why| format!("{} cannot be asked: {why}", member.name()))?;
        if let Some(other) = known(&everything, node, instance) {
            return Err(format!(
                "its machine {place} is gone, but {} has one with its uuid: {other}",
                member.name()
            ));
        }
        if let Some(other) = nameless(&member, &everything, node) {
            return Err(format!(
                "its machine {place} is gone, but {} has one without a uuid, which may be it, registered anew: \
                 {other}; make that one accessible again, or take it out of the inventory",
                member.name()
            ));
        }
        if let (Some(folder), true) = (&folder, *member.name() == place.vcenter) {
            nothing_is_hidden(&member, folder, &everything).await?;
        }
        if let Some(there) = nodes.get(member.name()) {
            all_are_seen(&member, there).await?;
        }
    }
    whole(fleet)?;
    let members = fleet.members().len();
    let evidence = format!(
        "{} says that {} does not exist, and none of {members} vCenter(s) knows its uuid",
        place.vcenter, place.machine.id
    );
    Ok(Proof::new(&gone, evidence))
}

/// The vCenter that answers is the one that had the machine. Another one in its place truthfully says
/// that it knows nothing of it.
fn is_the_same(member: &Member, record: &Record) -> Result<(), String> {
    let now = member.uuid().unwrap_or_default();
    if record.vcenter_uuid == *now {
        return Ok(());
    }
    let was = match record.vcenter_uuid.as_str() {
        "" => "one that is not on record",
        uuid => uuid,
    };
    Err(format!(
        "its machine was in another vCenter than the one that answers at {} now (it was {was}, now it is {now}), \
         so nobody can prove that it is gone: if it is, delete the Node",
        member.name()
    ))
}

/// Every vCenter is followed, as the configuration wants it.
fn whole(fleet: &Fleet) -> Result<(), String> {
    if let Some(why) = fleet.unusable() {
        return Err(format!("the configuration on disk cannot be used, and may say more: {why}"));
    }
    match fleet.troubles().first() {
        None => Ok(()),
        Some((name, why)) => Err(format!("{name} is not followed at present: {why}")),
    }
}

/// Where the node's machine was, and in which folder: by the record, else by what left the view.
fn last_seen(
    fleet: &Fleet,
    node: &Node,
    record: Option<&Record>,
) -> Option<(Place, Option<MoRef>)> {
    if let Some(record) = record {
        return Some((record.place(), record.folder()));
    }
    let uuids = identity::uuids(node);
    fleet.members().iter().find_map(|member| {
        let departed = member.look(|catalogue| {
            uuids.iter().find_map(|uuid| match catalogue.tree.vm_by_bios_uuid(*uuid) {
                Lookup::Departed(departure) => Some(departure),
                Lookup::Found(_) | Lookup::Several(_) | Lookup::Unseen => None,
            })
        })??;
        let place =
            Place { vcenter: member.name().clone(), machine: departed.object.reference().clone() };
        Some((place, departed.object.parent().cloned()))
    })
}

/// The vCenter is the one the nodes know, and hides none of their folders.
async fn all_are_seen(member: &Member, there: &There) -> Result<(), String> {
    let client = member.client().ok_or_else(|| format!("{} was never connected", member.name()))?;
    let now = member.uuid().unwrap_or_default();
    if let Some(was) = there.uuids.iter().find(|uuid| !uuid.is_empty() && **uuid != *now) {
        return Err(format!(
            "other nodes' machines were in another vCenter than the one that answers at {} now (it was {was}, \
             now it is {now}), and this one may have gone there: delete Nodes whose machines are gone",
            member.name()
        ));
    }
    let folders: Vec<MoRef> = there.folders.iter().cloned().collect();
    for (folder, word) in client.ask_for(&folders).await {
        let folder =
            format!("the folder {} of other nodes' machines in {}", folder.id, member.name());
        match word {
            Word::Present | Word::Absent(Absence::Gone(_)) => {}
            Word::Absent(Absence::Invisible { .. }) => {
                return Err(format!(
                    "its machine is in no list, but {folder} may not be seen by the controller's user any more, \
                     and it may be there: give the user the role ReadOnly on the folder"
                ));
            }
            Word::Absent(Absence::Unreachable | Absence::Elsewhere) => {
                return Err(format!("nobody could say whether {folder} exists"));
            }
        }
    }
    Ok(())
}

/// The folder of the machine lists none that is not in the list of all machines.
async fn nothing_is_hidden(
    member: &Member,
    folder: &MoRef,
    everything: &Tree,
) -> Result<(), String> {
    let silent = |why: String| format!("{} cannot be asked: {why}", member.name());
    let client = member.client().ok_or_else(|| silent("it was never connected".into()))?;
    let listed = client.listed_in(folder).await.map_err(|error| silent(error.story()))?;
    let is_machine = |object: &&MoRef| object.kind == Kind::VirtualMachine;
    let unseen: Vec<MoRef> = listed
        .iter()
        .filter(is_machine)
        .filter(|machine| everything.get(machine).is_none())
        .cloned()
        .collect();
    // What ended a moment ago may still be listed.
    let answers = client.ask_for(&unseen).await;
    let hidden = answers.iter().find(|(_, word)| !matches!(word, Word::Absent(Absence::Gone(_))));
    hidden.map_or(Ok(()), |(machine, _)| {
        Err(format!(
            "the folder of its machine holds one that the controller's user may not see ({} {}), which may be \
             it: give the user the role ReadOnly on the folder",
            member.name(),
            machine.id
        ))
    })
}

/// vCenter's word that the machine does not exist, and the folder it stood in, if that exists.
async fn gone(
    member: &Member,
    place: &Place,
    folder: Option<MoRef>,
) -> Result<(Gone, Option<MoRef>), String> {
    let client = member.client().ok_or_else(|| format!("{} was never connected", member.name()))?;
    let mut questions = vec![place.machine.clone()];
    questions.extend(folder.iter().cloned());
    let (mut gone, mut stands) = (None, None);
    for (object, word) in client.ask_for(&questions).await {
        let is_machine = object == place.machine;
        match word {
            Word::Absent(Absence::Gone(word)) if is_machine => gone = Some(word),
            Word::Present if is_machine => {
                return Err(format!("its machine {place} exists, outside of what is watched"));
            }
            Word::Present => stands = Some(object),
            Word::Absent(Absence::Gone(_)) => {}
            Word::Absent(Absence::Invisible { .. }) => {
                let what = if is_machine { "its machine" } else { "the folder of its machine" };
                return Err(format!(
                    "{what} ({place}) may not be seen by the controller's user any more: give it the role \
                     ReadOnly there"
                ));
            }
            Word::Absent(Absence::Unreachable | Absence::Elsewhere) => {
                return Err(format!("{} could not say whether {place} exists", member.name()));
            }
        }
    }
    let gone =
        gone.ok_or_else(|| format!("{} could not say whether {place} exists", member.name()));
    Ok((gone?, stands))
}

/// A machine without a uuid that may be the node's. One that is in view is known by the uuid it had
/// while vCenter could still read it.
fn nameless(member: &Member, tree: &Tree, node: &Node) -> Option<String> {
    let own = identity::uuids(node);
    let is_own = |uuid: BiosUuid| own.iter().any(|o| *o == uuid || o.swapped() == uuid);
    let earlier = |vm: &Vm| {
        let seen = member.look(|c| c.tree.get(&vm.reference)?.as_vm()?.bios_uuid).flatten();
        seen.filter(|uuid| !uuid.is_nil())
    };
    let mut machines = tree.objects().filter_map(Object::as_vm);
    let vm = machines
        .find(|vm| vm.bios_uuid.is_none_or(BiosUuid::is_nil) && earlier(vm).is_none_or(is_own))?;
    Some(tree.path_of(&vm.reference).unwrap_or_else(|| vm.reference.to_string()))
}

/// A machine with one of the node's uuids.
fn known(tree: &Tree, node: &Node, instance: Option<InstanceUuid>) -> Option<String> {
    let by_bios = identity::uuids(node).into_iter().flat_map(|uuid| tree.vms_by_bios_uuid(uuid));
    let by_instance =
        instance.into_iter().filter_map(|uuid| match tree.vm_by_instance_uuid(uuid) {
            Lookup::Found(vm) => Some(vm),
            Lookup::Several(vms) => vms.into_iter().next(),
            Lookup::Departed(_) | Lookup::Unseen => None,
        });
    let vm = by_bios.chain(by_instance).next()?;
    Some(tree.path_of(&vm.reference).unwrap_or_else(|| vm.reference.to_string()))
}
