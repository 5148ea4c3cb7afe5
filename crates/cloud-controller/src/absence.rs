//! Proof that a machine is gone, from every vCenter's own mouth.
//!
//! A machine that is not in view may be hidden from this user, moved out of the configured
//! datacenters, registered anew under another reference, or its vCenter may be away. Each looks the
//! same in a watch. So, before a Node may be deleted:
//!
//! 1. every configured vCenter is followed and seen whole;
//! 2. the vCenter that had the machine is the very one that answers now, by its own uuid, is asked
//!    for the machine by reference, and says that it does not exist;
//! 3. the folder it stood in is known and can still be seen, or does not exist either: who lost sight of
//!    the folder would not see the machine registered there anew. A machine in a vApp stands in none;
//! 4. every vCenter is asked for all its machines, in all datacenters, and none has one of the node's
//!    uuids;
//! 5. none has a machine without a uuid, as those are that vCenter itself cannot reach, unless its
//!    uuid was seen before: it could be the one, registered anew;
//! 6. that folder lists no machine that may not be seen: it could be the one, registered anew and
//!    hidden while nobody looked;
//! 7. every vCenter is the very one the nodes know, whatever it is called in the configuration now, and
//!    hides no folder in which a machine of any of them stood: whoever took such rights away may have
//!    hidden this one too, after it went there. What stood in no folder must be in view;
//! 8. every vCenter is still followed;
//! 9. the node shows no uuid of another computer: that one goes on without the machine;
//! 10. and the configuration on disk is the one in use: one that cannot be read may name another
//!     vCenter, to which the machine went.

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
    identity,
    lifecycle::{Proof, Standing},
    model::{Node, Place},
    pooled_vcenter::PooledVcenter,
    record::{ANNOTATION, Record},
    vcenter_pool::VcenterPool,
};

/// Where the machines of all nodes stood when they were last seen.
#[derive(Debug, Default)]
pub struct LastSeen {
    /// By what the vCenter was called then, and its own uuid.
    vcenters: BTreeMap<(String, String), There>,
}

/// What all nodes together know of a vCenter.
#[derive(Debug, Default, PartialEq, Eq)]
struct There {
    /// The folders of their machines.
    folders: BTreeSet<MoRef>,
    /// Nodes whose machine stood in no folder, and is not in view.
    elsewhere: BTreeSet<Arc<str>>,
}

impl LastSeen {
    /// Notes what a node knows.
    pub fn note(&mut self, node: &Arc<str>, record: Record, in_view: impl FnOnce() -> bool) {
        let folder = record.folder();
        let there = self.vcenters.entry((record.vcenter, record.vcenter_uuid)).or_default();
        match folder {
            Some(folder) => {
                there.folders.insert(folder);
            }
            None if in_view() => {}
            None => {
                there.elsewhere.insert(node.clone());
            }
        }
    }

    /// What is known of the vCenter with this name and uuid: under the name, and under the uuid, by
    /// whatever name it went.
    fn of(&self, name: &str, uuid: &str) -> There {
        let mut all = There::default();
        for ((called, own), there) in &self.vcenters {
            if called == name || (!uuid.is_empty() && own == uuid) {
                all.folders.extend(there.folders.iter().cloned());
                all.elsewhere.extend(there.elsewhere.iter().cloned());
            }
        }
        all
    }

    /// The uuid of another vCenter that had this name, and that none of `present` is.
    fn replaced(&self, name: &str, present: &BTreeSet<Arc<str>>) -> Option<&str> {
        let mut own = self.vcenters.keys().filter(|(called, _)| called == name);
        own.find_map(|(_, uuid)| {
            (!uuid.is_empty() && !present.contains(uuid.as_str())).then_some(uuid.as_str())
        })
    }
}

/// Asks for the machine of a node that is not in view.
pub async fn ask(pool: &VcenterPool, node: &Node, last_seen: &LastSeen) -> Standing {
    match prove(pool, node, last_seen).await {
        Ok(proof) if proof.is_stale() => Standing::Uncertain(
            "its machine seems gone, but the vCenters took more than a minute to say so, in which it may have come \
             back: it is asked for again"
                .into(),
        ),
        Ok(proof) => Standing::Gone(proof),
        Err(why) => Standing::Uncertain(why),
    }
}

/// Whether the machine on record is gone, as in a proof; else why nobody can say so. Another machine may
/// have the node's uuid: this is no proof that the node has none, only that it is not this one.
pub async fn is_gone(
    pool: &VcenterPool,
    node: &Node,
    record: &Record,
    last_seen: &LastSeen,
) -> Result<(), String> {
    whole(pool)?;
    let stood = recorded(home(pool, &record.place(), Some(record)), record)?;
    // It would keep its instance uuid if it were registered anew.
    let known = |tree: &Tree| with_instance_uuid(tree, record.instance_uuid());
    vanished(pool, node, &stood, last_seen, &known).await.map(drop)
}

async fn prove(pool: &VcenterPool, node: &Node, nodes: &LastSeen) -> Result<Proof, String> {
    whole(pool)?;
    let record = identity::record_of(node);
    let (place, folder) = last_seen(pool, node, record.as_ref()).ok_or(
        "no vCenter knows its uuid, but which machine it was is not on record, so nobody can prove that it is \
         gone: if it is, delete the Node",
    )?;
    let pooled = home(pool, &place, record.as_ref()).ok_or_else(|| {
        format!("its machine was {place}, and that vCenter is not configured any more")
    })?;
    if let Some(record) = &record {
        is_the_same(&pooled, record)?;
    }
    let folder = folder_of(&place, folder)?;
    let instance = record.as_ref().and_then(Record::instance_uuid);
    let bios = identity::provider_uuid(&node.provider_id);
    if identity::shows_another(node, bios, instance) {
        return Err(format!(
            "the node shows the system uuid {} of another computer than its provider id and record say ({place}): it \
             is never deleted with that one; if it is gone, delete the Node",
            node.system_uuid
        ));
    }
    if identity::uuids(node).is_empty() && instance.is_none() {
        return Err(
            "the node has no uuid by which it could be looked for, so nobody can prove that its \
                    machine is gone: if it is, delete the Node"
                .into(),
        );
    }
    let stood = Stood { pooled, place, folder };
    let known = |tree: &Tree| known(tree, node, instance);
    let (gone, at) = vanished(pool, node, &stood, nodes, &known).await?;
    let Stood { pooled, place, .. } = stood;
    let evidence = format!(
        "{} says that {} does not exist, and none of {} vCenter(s) knows its uuid",
        pooled.name(),
        place.vm.id,
        pool.pooled_vcenters().len()
    );
    Ok(Proof::new(&gone, evidence, at))
}

/// Where a machine stood.
struct Stood {
    pooled: Arc<PooledVcenter>,
    place: Place,
    folder: MoRef,
}

/// Where the machine on record stood, in the vCenter that had it.
fn recorded(home: Option<Arc<PooledVcenter>>, record: &Record) -> Result<Stood, String> {
    let place = record.place();
    let pooled = home.ok_or_else(|| {
        format!(
            "that was {place}, and that vCenter is not configured any more, so nobody can say whether it is \
             gone: if it is, take the annotation {ANNOTATION} off the Node"
        )
    })?;
    is_the_same(&pooled, record)?;
    Ok(Stood { folder: folder_of(&place, record.folder())?, pooled, place })
}

/// The folder, which those who want to prove something must know.
fn folder_of(place: &Place, folder: Option<MoRef>) -> Result<MoRef, String> {
    folder.ok_or_else(|| {
        format!(
            "its machine was {place}, in no folder, as those of a vApp are, so nobody can prove that it is not \
             hidden there: if it is gone, delete the Node"
        )
    })
}

/// A machine is gone from where it stood, and nothing hints at it anywhere else: `known` finds it in a list
/// of all machines. Returns the word of its vCenter, and when that was given: all the rest was asked later.
async fn vanished(
    pool: &VcenterPool,
    node: &Node,
    stood: &Stood,
    nodes: &LastSeen,
    known: &(dyn Fn(&Tree) -> Option<Arc<Vm>> + Sync),
) -> Result<(Gone, Instant), String> {
    let (word, stands) = gone(&stood.pooled, &stood.place, &stood.folder).await?;
    let present: BTreeSet<Arc<str>> =
        pool.pooled_vcenters().iter().filter_map(|m| m.uuid()).collect();
    // A machine registered anew is in no list that is older than its old reference's end.
    let since = Instant::now();
    let mut home_is_asked = false;
    for asked in pool.pooled_vcenters() {
        let name = asked.name();
        let everything = asked.everything(since).await;
        let everything = everything.map_err(|why| format!("{name} cannot be asked: {why}"))?;
        if let Some(other) = known(&everything) {
            let other = path(&everything, &other);
            return Err(format!("its machine is gone, but {name} has one with its uuid: {other}"));
        }
        if let Some(other) = nameless(&asked, &everything, node) {
            return Err(format!(
                "its machine is gone, but {name} has one without a uuid, which may be it, registered anew: \
                 {other}; make that one accessible again, or take it out of the inventory"
            ));
        }
        if stood.pooled.name() == name {
            home_is_asked = true;
            if let Some(folder) = &stands {
                nothing_is_hidden(&asked, folder, &everything).await?;
            }
        }
        all_are_seen(&asked, nodes, &present).await?;
    }
    whole(pool)?;
    if !home_is_asked {
        return Err("its vCenter left the configuration while it was asked".into());
    }
    Ok((word, since))
}

/// The vCenter that had the machine: by its own uuid, whatever it is called in the configuration now; else
/// by its name.
fn home(pool: &VcenterPool, place: &Place, record: Option<&Record>) -> Option<Arc<PooledVcenter>> {
    let named = pool.pooled(&place.vcenter);
    let uuid = record.map(|record| record.vcenter_uuid.as_str()).filter(|uuid| !uuid.is_empty());
    let is_it = |pooled: &Arc<PooledVcenter>| pooled.uuid().as_deref() == uuid;
    match (uuid, named) {
        (Some(_), Some(named)) if is_it(&named) => Some(named),
        (Some(_), named) => pool.pooled_vcenters().into_iter().find(is_it).or(named),
        (None, named) => named,
    }
}

/// The vCenter that answers is the one that had the machine. Another one in its place truthfully says
/// that it knows nothing of it.
fn is_the_same(pooled: &PooledVcenter, record: &Record) -> Result<(), String> {
    let now = pooled.uuid().unwrap_or_default();
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
        pooled.name()
    ))
}

/// Every vCenter is followed, as the configuration wants it.
fn whole(pool: &VcenterPool) -> Result<(), String> {
    if let Some(why) = pool.unusable() {
        return Err(format!("the configuration on disk cannot be used, and may say more: {why}"));
    }
    match pool.troubles().first() {
        None => Ok(()),
        Some((name, why)) => Err(format!("{name} is not followed at present: {why}")),
    }
}

/// Where the node's machine was, and in which folder: by the record, else by what left the view.
fn last_seen(
    pool: &VcenterPool,
    node: &Node,
    record: Option<&Record>,
) -> Option<(Place, Option<MoRef>)> {
    if let Some(record) = record {
        return Some((record.place(), record.folder()));
    }
    let uuids = identity::uuids(node);
    pool.pooled_vcenters().iter().find_map(|pooled| {
        let departed = pooled.look(|catalogue| {
            uuids.iter().find_map(|uuid| match catalogue.tree.vm_by_bios_uuid(*uuid) {
                Lookup::Departed(departure) => Some(departure),
                Lookup::Found(_) | Lookup::Several(_) | Lookup::Unseen => None,
            })
        })??;
        let place =
            Place { vcenter: pooled.name().clone(), vm: departed.object.reference().clone() };
        Some((place, departed.object.parent().cloned()))
    })
}

/// The vCenter is the one the nodes know, and hides none of their folders.
async fn all_are_seen(
    pooled: &PooledVcenter,
    nodes: &LastSeen,
    present: &BTreeSet<Arc<str>>,
) -> Result<(), String> {
    let name = pooled.name();
    let client = pooled.client().ok_or_else(|| format!("{name} was never connected"))?;
    let now = pooled.uuid().unwrap_or_default();
    if let Some(was) = nodes.replaced(name, present) {
        return Err(format!(
            "other nodes' machines were in another vCenter than the one that answers at {name} now (it was \
             {was}, now it is {now}), and this one may have gone there: delete Nodes whose machines are gone"
        ));
    }
    let There { folders, elsewhere } = nodes.of(name, &now);
    if let Some(node) = elsewhere.first() {
        return Err(format!(
            "the machine of the node {node} in {name} is not in view either, and stood in no folder, as those \
             of a vApp do, so nobody can say what is hidden there: if it is gone, delete that Node"
        ));
    }
    let folders: Vec<MoRef> = folders.into_iter().collect();
    for (folder, word) in client.ask_for(&folders).await {
        let folder =
            format!("the folder {} of other nodes' machines in {}", folder.id, pooled.name());
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
    pooled: &PooledVcenter,
    folder: &MoRef,
    everything: &Tree,
) -> Result<(), String> {
    let silent = |why: String| format!("{} cannot be asked: {why}", pooled.name());
    let client = pooled.client().ok_or_else(|| silent("it was never connected".into()))?;
    let listed = client.listed_in(folder).await.map_err(|error| silent(error.error_chain()))?;
    let is_vm = |object: &&MoRef| object.kind == Kind::VirtualMachine;
    let unseen: Vec<MoRef> =
        listed.iter().filter(is_vm).filter(|vm| everything.get(vm).is_none()).cloned().collect();
    // What ended a moment ago may still be listed.
    let answers = client.ask_for(&unseen).await;
    let hidden = answers.iter().find(|(_, word)| !matches!(word, Word::Absent(Absence::Gone(_))));
    hidden.map_or(Ok(()), |(vm, _)| {
        Err(format!(
            "the folder of its machine holds one that the controller's user may not see ({} {}), which may be \
             it: give the user the role ReadOnly on the folder",
            pooled.name(),
            vm.id
        ))
    })
}

/// vCenter's word that the machine does not exist, and the folder it stood in, if that exists.
async fn gone(
    pooled: &PooledVcenter,
    place: &Place,
    folder: &MoRef,
) -> Result<(Gone, Option<MoRef>), String> {
    let client = pooled.client().ok_or_else(|| format!("{} was never connected", pooled.name()))?;
    let questions = [place.vm.clone(), folder.clone()];
    let (mut gone, mut stands) = (None, None);
    for (object, word) in client.ask_for(&questions).await {
        let is_vm = object == place.vm;
        match word {
            Word::Absent(Absence::Gone(word)) if is_vm => gone = Some(word),
            Word::Present if is_vm => {
                return Err(format!("its machine {place} exists, outside of what is watched"));
            }
            Word::Present => stands = Some(object),
            Word::Absent(Absence::Gone(_)) => {}
            Word::Absent(Absence::Invisible { .. }) => {
                let what = if is_vm { "its machine" } else { "the folder of its machine" };
                return Err(format!(
                    "{what} ({place}) may not be seen by the controller's user any more: give it the role \
                     ReadOnly there"
                ));
            }
            Word::Absent(Absence::Unreachable | Absence::Elsewhere) => {
                return Err(format!("{} could not say whether {place} exists", pooled.name()));
            }
        }
    }
    let gone =
        gone.ok_or_else(|| format!("{} could not say whether {place} exists", pooled.name()));
    Ok((gone?, stands))
}

/// A machine without a uuid that may be the node's. One that is in view is known by the uuid it had
/// while vCenter could still read it.
fn nameless(pooled: &PooledVcenter, tree: &Tree, node: &Node) -> Option<String> {
    let own = identity::uuids(node);
    let is_own = |uuid: BiosUuid| own.iter().any(|o| *o == uuid || o.swapped() == uuid);
    let earlier = |vm: &Vm| {
        let seen = pooled.look(|c| c.tree.get(&vm.reference)?.as_vm()?.bios_uuid).flatten();
        seen.filter(|uuid| !uuid.is_nil())
    };
    let mut vms = tree.objects().filter_map(Object::as_vm);
    let vm =
        vms.find(|vm| vm.bios_uuid.is_none_or(BiosUuid::is_nil) && earlier(vm).is_none_or(is_own))?;
    Some(path(tree, vm))
}

/// A machine with one of the node's uuids.
fn known(tree: &Tree, node: &Node, instance: Option<InstanceUuid>) -> Option<Arc<Vm>> {
    let by_bios = identity::uuids(node).into_iter().flat_map(|uuid| tree.vms_by_bios_uuid(uuid));
    by_bios.chain(with_instance_uuid(tree, instance)).next()
}

/// The machine, or one of those, with this instance uuid.
fn with_instance_uuid(tree: &Tree, uuid: Option<InstanceUuid>) -> Option<Arc<Vm>> {
    match tree.vm_by_instance_uuid(uuid?) {
        Lookup::Found(vm) => Some(vm),
        Lookup::Several(vms) => vms.into_iter().next(),
        Lookup::Departed(_) | Lookup::Unseen => None,
    }
}

/// What a person calls a machine.
fn path(tree: &Tree, vm: &Vm) -> String {
    tree.path_of(&vm.reference).unwrap_or_else(|| vm.reference.to_string())
}

#[cfg(test)]
mod tests;
