//! Proof that a VM is gone, from the answers of every vCenter.
//!
//! A VM that is not visible can be hidden from the user, moved out of the configured datacenters,
//! registered again under another reference, or in an unreachable vCenter. All of this looks the same
//! in a watch. So the controller deletes a Node only if all of these hold:
//!
//! 1. Every configured vCenter is available and its inventory is complete.
//! 2. The vCenter that had the VM is the one that answers now, by its own uuid. Asked for the VM by
//!    reference, it reports that the VM does not exist.
//! 3. The folder of the VM is known, and is visible or does not exist either. In a hidden folder, the
//!    VM could be registered again. A VM in a vApp is in no folder.
//! 4. Every vCenter lists all its VMs in all datacenters, and no VM has one of the node's uuids.
//! 5. No VM is without a uuid, unless its uuid was seen before. vCenter reports no uuid for an
//!    inaccessible VM, which can be the missing one, registered again.
//! 6. The folder lists no VM that the user cannot see. It can be the missing one, registered again and
//!    hidden while no controller was running.
//! 7. Every vCenter is the one in the records of the nodes, whatever its name in the configuration is,
//!    and hides no folder that contained the VM of any node: the VM can have moved there. A VM that was
//!    in no folder must be visible.
//! 8. Every vCenter is still available at the end.
//! 9. The node does not report the uuid of another computer, which can run without the VM.
//! 10. The configuration on disk is the one in use. A configuration that cannot be read can name
//!     another vCenter that has the VM.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tokio::time::Instant;
use vsphere::{
    BiosUuid, InstanceUuid, Kind, MoRef,
    inventory::{Absence, Gone, Lookup, Object, Standing as ObjectState, Tree, Vm},
};

use crate::{
    identity,
    lifecycle::{Proof, VmState},
    model::{Node, VmRef},
    pooled_vcenter::PooledVcenter,
    record::{ANNOTATION, Record},
    vcenter_pool::VcenterPool,
};

/// The last known locations of the VMs of all nodes.
#[derive(Debug, Default)]
pub struct LastSeen {
    /// By the recorded name of the vCenter and its own uuid.
    vcenters: BTreeMap<(String, String), VcenterHistory>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct VcenterHistory {
    folders: BTreeSet<MoRef>,
    /// Nodes whose VM was in no folder and is not visible.
    without_folder: BTreeSet<Arc<str>>,
}

impl LastSeen {
    pub fn add(&mut self, node: &Arc<str>, record: Record, in_view: impl FnOnce() -> bool) {
        let folder = record.folder();
        let history = self.vcenters.entry((record.vcenter, record.vcenter_uuid)).or_default();
        match folder {
            Some(folder) => {
                history.folders.insert(folder);
            }
            None if in_view() => {}
            None => {
                history.without_folder.insert(node.clone());
            }
        }
    }

    /// Everything recorded under the name of the vCenter, or under its uuid with any name.
    fn history(&self, name: &str, uuid: &str) -> VcenterHistory {
        let mut all = VcenterHistory::default();
        for ((recorded_name, recorded_uuid), history) in &self.vcenters {
            if recorded_name == name || (!uuid.is_empty() && recorded_uuid == uuid) {
                all.folders.extend(history.folders.iter().cloned());
                all.without_folder.extend(history.without_folder.iter().cloned());
            }
        }
        all
    }

    /// The uuid of another vCenter that had this name and is not in `present`.
    fn replaced_uuid(&self, name: &str, present: &BTreeSet<Arc<str>>) -> Option<&str> {
        let mut same_name = self.vcenters.keys().filter(|(recorded_name, _)| recorded_name == name);
        same_name.find_map(|(_, uuid)| {
            (!uuid.is_empty() && !present.contains(uuid.as_str())).then_some(uuid.as_str())
        })
    }
}

/// Queries all vCenters for a VM that is not visible.
pub async fn check(pool: &VcenterPool, node: &Node, last_seen: &LastSeen) -> VmState {
    match prove(pool, node, last_seen).await {
        Ok(proof) if proof.is_stale() => VmState::Uncertain(
            "the VM seems gone, but the vCenters took more than a minute to answer, and it can have come back since: \
             the controller asks again"
                .into(),
        ),
        Ok(proof) => VmState::Gone(proof),
        Err(why) => VmState::Uncertain(why),
    }
}

/// `Ok` if the recorded VM is gone; otherwise the reason why this is unclear. Another VM can have the
/// node's uuid, so this is no proof that the node has no VM.
pub async fn is_gone(
    pool: &VcenterPool,
    node: &Node,
    record: &Record,
    last_seen: &LastSeen,
) -> Result<(), String> {
    check_all_current(pool)?;
    let location =
        recorded_location(recorded_vcenter(pool, &record.vm_ref(), Some(record)), record)?;
    // A VM keeps its instance uuid when it is registered again.
    let find_vm = |tree: &Tree| with_instance_uuid(tree, record.instance_uuid());
    prove_absence(pool, node, &location, last_seen, &find_vm).await.map(drop)
}

async fn prove(pool: &VcenterPool, node: &Node, last_seen: &LastSeen) -> Result<Proof, String> {
    check_all_current(pool)?;
    let record = identity::record_of(node);
    let (vm_ref, folder) = last_location(pool, node, record.as_ref()).ok_or(
        "no vCenter knows the node's uuid, but its VM is not recorded, so there is no proof that it is gone: if it \
         is, delete the Node",
    )?;
    let pooled = recorded_vcenter(pool, &vm_ref, record.as_ref())
        .ok_or_else(|| format!("the VM was {vm_ref}, and that vCenter is no longer configured"))?;
    if let Some(record) = &record {
        check_same_vcenter(&pooled, record)?;
    }
    let folder = require_folder(&vm_ref, folder)?;
    let instance = record.as_ref().and_then(Record::instance_uuid);
    let bios = identity::provider_uuid(&node.provider_id);
    if identity::reports_other_uuid(node, bios, instance) {
        return Err(format!(
            "the node reports the system uuid {} of another computer than its provider id and record ({vm_ref}), so \
             the controller never deletes it: if it is gone, delete the Node",
            node.system_uuid
        ));
    }
    if identity::node_uuids(node).is_empty() && instance.is_none() {
        return Err(
            "the node has no uuid to search for, so there is no proof that its VM is gone: if it is, delete the Node"
                .into(),
        );
    }
    let location = LastLocation { pooled, vm_ref, folder };
    let find_vm = |tree: &Tree| find_vm(tree, node, instance);
    let (gone, at) = prove_absence(pool, node, &location, last_seen, &find_vm).await?;
    let LastLocation { pooled, vm_ref, .. } = location;
    let evidence = format!(
        "{} reports that {} does not exist, and none of {} vCenter(s) knows its uuid",
        pooled.name(),
        vm_ref.vm.id,
        pool.pooled_vcenters().len()
    );
    Ok(Proof::new(&gone, evidence, at))
}

struct LastLocation {
    pooled: Arc<PooledVcenter>,
    vm_ref: VmRef,
    folder: MoRef,
}

fn recorded_location(
    recorded_vcenter: Option<Arc<PooledVcenter>>,
    record: &Record,
) -> Result<LastLocation, String> {
    let vm_ref = record.vm_ref();
    let pooled = recorded_vcenter.ok_or_else(|| {
        format!(
            "that was {vm_ref}, and that vCenter is no longer configured, so it is unclear whether the VM is gone: if \
             it is, remove the annotation {ANNOTATION} from the Node"
        )
    })?;
    check_same_vcenter(&pooled, record)?;
    Ok(LastLocation { folder: require_folder(&vm_ref, record.folder())?, pooled, vm_ref })
}

fn require_folder(vm_ref: &VmRef, folder: Option<MoRef>) -> Result<MoRef, String> {
    folder.ok_or_else(|| {
        format!(
            "the VM was {vm_ref}, in no folder (for example in a vApp), so there is no proof that it is not hidden \
             there: if it is gone, delete the Node"
        )
    })
}

/// Proves that a VM is gone from its last location and is nowhere else. `find_vm` finds it in a list
/// of all VMs. Returns the answer of its vCenter and the time of that answer; all other queries are later.
async fn prove_absence(
    pool: &VcenterPool,
    node: &Node,
    location: &LastLocation,
    last_seen: &LastSeen,
    find_vm: &(dyn Fn(&Tree) -> Option<Arc<Vm>> + Sync),
) -> Result<(Gone, Instant), String> {
    let (gone, existing_folder) =
        ask_vcenter(&location.pooled, &location.vm_ref, &location.folder).await?;
    let present: BTreeSet<Arc<str>> =
        pool.pooled_vcenters().iter().filter_map(|m| m.uuid()).collect();
    // A list from before the old reference ended can lack a VM that was registered again.
    let since = Instant::now();
    let mut recorded_vcenter_asked = false;
    for asked in pool.pooled_vcenters() {
        let name = asked.name();
        let all_vms = asked.all_vms(since).await;
        let all_vms = all_vms.map_err(|why| format!("{name} cannot be queried: {why}"))?;
        if let Some(other) = find_vm(&all_vms) {
            let other = path(&all_vms, &other);
            return Err(format!(
                "the VM is gone, but {name} has another VM with its uuid: {other}"
            ));
        }
        if let Some(other) = vm_without_uuid(&asked, &all_vms, node) {
            return Err(format!(
                "the VM is gone, but {name} has a VM without a uuid, which can be the same VM registered again: {other}; \
                 make that VM accessible, or remove it from the inventory"
            ));
        }
        if location.pooled.name() == name {
            recorded_vcenter_asked = true;
            if let Some(folder) = &existing_folder {
                check_folder_hides_nothing(&asked, folder, &all_vms).await?;
            }
        }
        check_recorded_folders(&asked, last_seen, &present).await?;
    }
    check_all_current(pool)?;
    if !recorded_vcenter_asked {
        return Err("its vCenter was removed from the configuration during the query".into());
    }
    Ok((gone, since))
}

/// The vCenter that had the VM: by its own uuid, whatever its name in the configuration is now, or by
/// its name.
fn recorded_vcenter(
    pool: &VcenterPool,
    vm_ref: &VmRef,
    record: Option<&Record>,
) -> Option<Arc<PooledVcenter>> {
    let named = pool.pooled(&vm_ref.vcenter);
    let uuid = record.map(|record| record.vcenter_uuid.as_str()).filter(|uuid| !uuid.is_empty());
    let has_uuid = |pooled: &Arc<PooledVcenter>| pooled.uuid().as_deref() == uuid;
    match (uuid, named) {
        (Some(_), Some(named)) if has_uuid(&named) => Some(named),
        (Some(_), named) => pool.pooled_vcenters().into_iter().find(has_uuid).or(named),
        (None, named) => named,
    }
}

/// Checks that the vCenter that answers is the one that had the VM. Another vCenter at the same
/// address correctly reports that it does not know the VM.
fn check_same_vcenter(pooled: &PooledVcenter, record: &Record) -> Result<(), String> {
    let now = pooled.uuid().unwrap_or_default();
    if record.vcenter_uuid == *now {
        return Ok(());
    }
    let was = match record.vcenter_uuid.as_str() {
        "" => "not recorded",
        uuid => uuid,
    };
    Err(format!(
        "the VM was in another vCenter than the one that answers at {} now (uuid {was} then, {now} now), so there is \
         no proof that it is gone: if it is, delete the Node",
        pooled.name()
    ))
}

/// Checks that every vCenter is available and the configuration on disk is in use.
fn check_all_current(pool: &VcenterPool) -> Result<(), String> {
    if let Some(why) = pool.configuration_problem() {
        return Err(format!(
            "the configuration on disk cannot be used and can name another vCenter: {why}"
        ));
    }
    match pool.problems().first() {
        None => Ok(()),
        Some((name, why)) => Err(format!("{name} is unavailable: {why}")),
    }
}

/// The reference and the folder of the node's VM: from the record, or from a VM that left the inventory.
fn last_location(
    pool: &VcenterPool,
    node: &Node,
    record: Option<&Record>,
) -> Option<(VmRef, Option<MoRef>)> {
    if let Some(record) = record {
        return Some((record.vm_ref(), record.folder()));
    }
    let node_uuids = identity::node_uuids(node);
    pool.pooled_vcenters().iter().find_map(|pooled| {
        let departed = pooled.with_catalogue(|catalogue| {
            node_uuids.iter().find_map(|uuid| match catalogue.tree.vm_by_bios_uuid(*uuid) {
                Lookup::Departed(departure) => Some(departure),
                Lookup::Found(_) | Lookup::Several(_) | Lookup::Unseen => None,
            })
        })??;
        let vm_ref =
            VmRef { vcenter: pooled.name().clone(), vm: departed.object.reference().clone() };
        Some((vm_ref, departed.object.parent().cloned()))
    })
}

/// Checks that the vCenter is the recorded one and hides no recorded folder.
async fn check_recorded_folders(
    pooled: &PooledVcenter,
    last_seen: &LastSeen,
    present: &BTreeSet<Arc<str>>,
) -> Result<(), String> {
    let name = pooled.name();
    let client = pooled.client().ok_or_else(|| format!("{name} was never connected"))?;
    let now = pooled.uuid().unwrap_or_default();
    if let Some(was) = last_seen.replaced_uuid(name, present) {
        return Err(format!(
            "other nodes' VMs were in another vCenter than the one that answers at {name} now (uuid {was} then, {now} \
             now), and this VM can have moved there: delete the Nodes whose VMs are gone"
        ));
    }
    let VcenterHistory { folders, without_folder } = last_seen.history(name, &now);
    if let Some(node) = without_folder.first() {
        return Err(format!(
            "the VM of the node {node} in {name} is not visible either and was in no folder (for example in a vApp), \
             so VMs can be hidden there: if that VM is gone, delete that Node"
        ));
    }
    let folders: Vec<MoRef> = folders.into_iter().collect();
    for (folder, state) in client.ask_for(&folders).await {
        let folder = format!("the folder {} of other nodes' VMs in {}", folder.id, pooled.name());
        match state {
            ObjectState::Present | ObjectState::Absent(Absence::Gone(_)) => {}
            ObjectState::Absent(Absence::Invisible { .. }) => {
                return Err(format!(
                    "the VM is in no list, but {folder} is no longer visible to the controller's user and can contain \
                     it: give the user the role ReadOnly on the folder"
                ));
            }
            ObjectState::Absent(Absence::Unreachable | Absence::Elsewhere) => {
                return Err(format!("no vCenter reports whether {folder} exists"));
            }
        }
    }
    Ok(())
}

/// Checks that the folder lists no VM that is missing from the list of all VMs.
async fn check_folder_hides_nothing(
    pooled: &PooledVcenter,
    folder: &MoRef,
    all_vms: &Tree,
) -> Result<(), String> {
    let query_failed = |why: String| format!("{} cannot be queried: {why}", pooled.name());
    let client = pooled.client().ok_or_else(|| query_failed("it was never connected".into()))?;
    let listed =
        client.listed_in(folder).await.map_err(|error| query_failed(error.error_chain()))?;
    let is_vm = |object: &&MoRef| object.kind == Kind::VirtualMachine;
    let invisible: Vec<MoRef> =
        listed.iter().filter(is_vm).filter(|vm| all_vms.get(vm).is_none()).cloned().collect();
    // The folder can still list a VM that was just deleted.
    let answers = client.ask_for(&invisible).await;
    let hidden =
        answers.iter().find(|(_, state)| !matches!(state, ObjectState::Absent(Absence::Gone(_))));
    hidden.map_or(Ok(()), |(vm, _)| {
        Err(format!(
            "the folder of the VM contains a VM that the controller's user cannot see ({} {}), which can be the same \
             VM: give the user the role ReadOnly on the folder",
            pooled.name(),
            vm.id
        ))
    })
}

/// Returns vCenter's answer that the VM does not exist, and the folder if it exists.
async fn ask_vcenter(
    pooled: &PooledVcenter,
    vm_ref: &VmRef,
    folder: &MoRef,
) -> Result<(Gone, Option<MoRef>), String> {
    let client = pooled.client().ok_or_else(|| format!("{} was never connected", pooled.name()))?;
    let objects = [vm_ref.vm.clone(), folder.clone()];
    let (mut gone, mut existing_folder) = (None, None);
    for (object, state) in client.ask_for(&objects).await {
        let is_vm = object == vm_ref.vm;
        match state {
            ObjectState::Absent(Absence::Gone(answer)) if is_vm => gone = Some(answer),
            ObjectState::Present if is_vm => {
                return Err(format!(
                    "the VM {vm_ref} exists, but outside the configured datacenters, folders and clusters"
                ));
            }
            ObjectState::Present => existing_folder = Some(object),
            ObjectState::Absent(Absence::Gone(_)) => {}
            ObjectState::Absent(Absence::Invisible { .. }) => {
                let what = if is_vm { "the VM" } else { "the folder of the VM" };
                return Err(format!(
                    "{what} ({vm_ref}) is no longer visible to the controller's user: give the user the role ReadOnly \
                     there"
                ));
            }
            ObjectState::Absent(Absence::Unreachable | Absence::Elsewhere) => {
                return Err(format!("{} does not report whether {vm_ref} exists", pooled.name()));
            }
        }
    }
    let gone =
        gone.ok_or_else(|| format!("{} does not report whether {vm_ref} exists", pooled.name()));
    Ok((gone?, existing_folder))
}

/// The path of a VM without a uuid that can be the node's VM. A VM in the watched inventory keeps the
/// uuid from when vCenter could still read it.
fn vm_without_uuid(pooled: &PooledVcenter, tree: &Tree, node: &Node) -> Option<String> {
    let node_uuids = identity::node_uuids(node);
    let is_own =
        |uuid: BiosUuid| node_uuids.iter().any(|own| *own == uuid || own.swapped() == uuid);
    let earlier = |vm: &Vm| {
        let seen =
            pooled.with_catalogue(|c| c.tree.get(&vm.reference)?.as_vm()?.bios_uuid).flatten();
        seen.filter(|uuid| !uuid.is_nil())
    };
    let mut vms = tree.objects().filter_map(Object::as_vm);
    let vm =
        vms.find(|vm| vm.bios_uuid.is_none_or(BiosUuid::is_nil) && earlier(vm).is_none_or(is_own))?;
    Some(path(tree, vm))
}

fn find_vm(tree: &Tree, node: &Node, instance: Option<InstanceUuid>) -> Option<Arc<Vm>> {
    let by_bios =
        identity::node_uuids(node).into_iter().flat_map(|uuid| tree.vms_by_bios_uuid(uuid));
    by_bios.chain(with_instance_uuid(tree, instance)).next()
}

fn with_instance_uuid(tree: &Tree, uuid: Option<InstanceUuid>) -> Option<Arc<Vm>> {
    match tree.vm_by_instance_uuid(uuid?) {
        Lookup::Found(vm) => Some(vm),
        Lookup::Several(vms) => vms.into_iter().next(),
        Lookup::Departed(_) | Lookup::Unseen => None,
    }
}

fn path(tree: &Tree, vm: &Vm) -> String {
    tree.path_of(&vm.reference).unwrap_or_else(|| vm.reference.to_string())
}

#[cfg(test)]
mod tests;
