//! Assembles the facts from their sources: all facts at first, and then the changed ones.

mod changes;
mod compared;
mod now;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use health::{
    Examination, Touched, VmRef,
    facts::{
        AccessReview, Attachment, Claim, Drivers, Facts, Known, Lease, Node, Volume,
        VolumeSnapshots,
    },
};
use jiff::{SignedDuration, Timestamp};

use self::{
    changes::{RelevantVms, change_nodes, change_vms, change_volumes, repaired_vm},
    compared::Compared,
    now::{drivers, frame, network_is_incomplete, pending_claims, same_releases, volumes_now},
};
use super::sources::Sources;
use crate::{
    audit::{Audit, Question, inventory::id},
    cluster::{Stores, site::RelatedObjects},
    vcenters::Touches,
};

/// The number of faulty volumes, claims and attachments for which the operator keeps texts, for each finding. It counts
/// and names the others.
const DESCRIBED: usize = 1_000;
/// With more changes than this at once, VDO looks at everything instead.
const FEW: usize = 200;
/// The longest pause between two looks at everything.
const AT_LEAST: SignedDuration = SignedDuration::from_mins(10);
/// VDO looks at an incomplete network plugin again after this time.
const NETWORK_AGAIN: SignedDuration = SignedDuration::from_secs(30);

/// The facts and the examination of them, kept up to date.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    pub(super) examination: Option<Examination>,
    /// The facts that do not change object by object: all but nodes, VMs, volumes and pods.
    pub(super) frame: Facts,
    /// The time of the next look at everything, because an answer can change with time alone.
    pub(super) due: Timestamp,
    /// Revisions of the stores that the node facts come from.
    nodes_mark: [u64; 4],
    /// Revisions of the stores that the volume facts come from.
    volumes_mark: [u64; 4],
    /// The result of comparing each vCenter's answer with the cluster.
    compared: Compared,
    /// VMs on which VDO set `disk.EnableUUID`, with the time.
    repaired: BTreeMap<String, Timestamp>,
    /// The permissions that the operator lacks for remediations.
    pub(super) denied: Vec<AccessReview>,
}

/// The facts that change object by object.
struct Parts {
    /// None if nothing changed.
    nodes: Option<Known<BTreeMap<String, Node>>>,
    drivers: Drivers,
    leases: Known<Vec<Lease>>,
    pending: Known<Vec<Claim>>,
    /// None if nothing changed.
    volumes: Option<VolumesNow>,
    touches: BTreeMap<String, Touches>,
}

/// Volumes, and the operations in progress on them.
struct VolumesNow {
    volumes: Known<BTreeMap<String, Volume>>,
    attachments: Known<Vec<Attachment>>,
    growing: Known<BTreeSet<String>>,
    snapshots: Known<BTreeMap<String, VolumeSnapshots>>,
}

impl Assembly {
    /// Updates the facts. Returns whether anything changed.
    pub(super) fn update(
        &mut self,
        sources: &Sources<'_>,
        audits: &BTreeMap<String, Arc<Audit>>,
    ) -> bool {
        let now = sources.settings.now;
        let site = sources.stores.map(|stores| stores.site.site()).unwrap_or_default();
        let mut frame = frame(sources, audits, &site);
        if let Known::Known(access) = &mut frame.cluster.access {
            access.extend(self.denied.iter().cloned());
        }
        self.compared.take(audits, sources.stores);
        let expected = frame.wanted.storage.as_ref().map(|storage| storage.vcenters.clone());
        self.compared.put(&mut frame.storage, &expected.unwrap_or_default());
        let parts = match sources.stores {
            Some(stores) => self.parts(sources, stores, &site),
            None => Parts::without_cluster(),
        };
        let rebuilt = parts.touches.values().any(|touches| touches.everything);
        let several = parts.touches.values().map(|t| t.vms.len()).sum::<usize>() > FEW;
        let whole = self.examination.is_none()
            || frame != self.frame
            || rebuilt
            || several
            || now >= self.due;
        let changed = if whole {
            self.look_at_everything(frame, parts, sources);
            true
        } else {
            self.look_at_changes(parts, sources)
        };
        if sources.stores.is_some_and(network_is_incomplete) {
            self.due = self.due.min(now + NETWORK_AGAIN);
        }
        changed
    }

    /// Records when VDO set `disk.EnableUUID` on which VM. The setting has no effect until the VM was powered
    /// off, and vCenter does not report that.
    pub(super) fn remember(&mut self, repaired: BTreeMap<String, Timestamp>) {
        if self.repaired != repaired {
            self.repaired = repaired;
            self.due = Timestamp::UNIX_EPOCH;
        }
    }

    fn parts(&mut self, sources: &Sources<'_>, stores: &Stores, site: &RelatedObjects) -> Parts {
        let mark = stores.nodes_mark();
        let changed = self.examination.is_none() || self.nodes_mark != mark;
        let nodes = changed.then(|| stores.node_facts());
        self.nodes_mark = mark;
        let mark = [
            stores.volumes.revision(),
            stores.attachments.revision(),
            stores.claims.revision(),
            stores.site.contents.revision(),
        ];
        let volumes =
            (self.examination.is_none() || self.volumes_mark != mark).then(|| volumes_now(stores));
        self.volumes_mark = mark;
        let names = sources.settings.vcenters.keys();
        let touches =
            names.map(|name| (name.clone(), sources.vcenters.touches(&sources.key(name))));
        Parts {
            nodes,
            drivers: drivers(sources, stores, site),
            leases: stores.site.leases(),
            pending: pending_claims(stores),
            volumes,
            touches: touches.collect(),
        }
    }

    fn look_at_everything(&mut self, frame: Facts, parts: Parts, sources: &Sources<'_>) {
        // Reuse unchanged nodes, and drop the other facts before building their successors, to save memory.
        let before = self.examination.take().map(Examination::into_facts);
        let nodes_before = before.map(|facts| facts.cluster.nodes);
        let mut whole = frame.clone();
        self.frame = frame;
        whole.now = sources.settings.now;
        whole.cluster.nodes = parts.nodes.or(nodes_before).unwrap_or_default();
        whole.cluster.drivers = parts.drivers;
        whole.cluster.leases = parts.leases;
        whole.storage.pending = parts.pending;
        let held = parts.volumes.or_else(|| sources.stores.map(volumes_now));
        if let Some(VolumesNow { volumes, attachments, growing, snapshots }) = held {
            whole.storage.volumes = volumes;
            whole.storage.attachments = attachments;
            whole.storage.growing = growing;
            whole.storage.snapshots = snapshots;
        }
        let concern = RelevantVms::new(&whole);
        for (name, vcenter) in &mut whole.vcenters {
            let known = sources.inventory(name);
            let (Some(known), Some(inventory)) = (known, vcenter.inventory.get_mut()) else {
                continue;
            };
            let tree = known.view();
            let vms = tree.vms().into_iter().filter(|vm| concern.is_of_interest(vm));
            inventory.vms = vms
                .map(|vm| (id(&vm.reference), repaired_vm(&self.repaired, name, &tree, &vm)))
                .collect();
        }
        let examination = Examination::limited(whole, DESCRIBED);
        self.due = due(&examination);
        self.examination = Some(examination);
    }

    /// Returns whether anything changed.
    fn look_at_changes(&mut self, parts: Parts, sources: &Sources<'_>) -> bool {
        let Some(examination) = &mut self.examination else { return false };
        let now = sources.settings.now;
        let mut vms: BTreeSet<VmRef> = BTreeSet::new();
        for (vcenter, touches) in &parts.touches {
            let touched = touches.vms.iter();
            vms.extend(touched.map(|vm| VmRef { vcenter: vcenter.clone(), vm: id(vm) }));
        }
        let nodes = parts.nodes.and_then(Known::ok);
        let mut changed =
            nodes.is_some_and(|nodes| change_nodes(examination, nodes, sources, &mut vms));
        if !vms.is_empty() {
            changed = true;
            change_vms(examination, &vms, sources, &self.repaired);
        }
        if let Some(volumes) = parts.volumes {
            changed |= change_volumes(examination, now, volumes);
        }
        let waiting = examination.facts().storage.pending != parts.pending;
        if waiting {
            examination.change(&Touched::Waiting, |facts| {
                facts.now = now;
                facts.storage.pending = parts.pending;
            });
        }
        let known = &examination.facts().cluster;
        let pods = known.drivers != parts.drivers || known.leases != parts.leases;
        if pods {
            let touched = if same_releases(&known.drivers, &parts.drivers) {
                Touched::Pods
            } else {
                Touched::Everything
            };
            examination.change(&touched, |facts| {
                facts.now = now;
                facts.cluster.drivers = parts.drivers;
                facts.cluster.leases = parts.leases;
            });
        }
        changed |= waiting || pods;
        if changed {
            self.due = self.due.min(due(examination));
        }
        changed
    }

    /// Sets the next audit question of every vCenter. `amiss`: only another query can close a finding.
    pub(super) fn ask(&self, sources: &Sources<'_>, amiss: bool) {
        let Some(examination) = &self.examination else { return };
        let known = examination.facts();
        let classes = known.storage.classes.get().into_iter().flatten();
        let policies = classes.filter_map(|class| class.parameter("storagepolicyname"));
        let policies: BTreeSet<String> = policies.map(str::to_owned).collect();
        let volumes = known.storage.volumes.get().into_iter().flat_map(BTreeMap::keys);
        let volumes: Vec<String> = volumes.take(20).cloned().collect();
        let mut vms: BTreeMap<&str, BTreeSet<vsphere::MoRef>> = BTreeMap::new();
        for node in examination.view().nodes() {
            if let Some(found) = examination.view().only_vm(node) {
                let vm = vsphere::MoRef::new("VirtualMachine", found.id);
                vms.entry(found.vcenter.name.as_str()).or_default().insert(vm);
            }
        }
        let domains = sources.stores.map(|stores| stores.site.site().domains());
        for name in sources.settings.vcenters.keys() {
            let question = Question {
                wanted: known.wanted.clone(),
                vms: vms.remove(name.as_str()).unwrap_or_default(),
                hosts: known
                    .vcenters
                    .get(name)
                    .and_then(|vcenter| vcenter.inventory.get())
                    .map(|inventory| inventory.hosts.keys().cloned().collect())
                    .unwrap_or_default(),
                cluster_id: known.storage.cluster_id.current().map(str::to_owned),
                volumes: volumes.clone(),
                policies: policies.clone(),
                domains: domains.clone().unwrap_or_default(),
                asked: sources.settings.asked.clone(),
                amiss,
            };
            sources.vcenters.ask(&sources.key(name), question);
        }
    }
}

impl Parts {
    /// Nothing is wrong with a cluster that nobody looks at.
    fn without_cluster() -> Self {
        Self {
            nodes: Some(BTreeMap::new().into()),
            drivers: Drivers { cloud: None.into(), storage: None.into(), others: Vec::new() },
            leases: Vec::new().into(),
            pending: Vec::new().into(),
            volumes: Some(VolumesNow {
                volumes: BTreeMap::new().into(),
                attachments: Vec::new().into(),
                growing: BTreeSet::new().into(),
                snapshots: BTreeMap::new().into(),
            }),
            touches: BTreeMap::new(),
        }
    }
}

/// The time of the next look at everything if nothing changes.
fn due(examination: &Examination) -> Timestamp {
    let latest = examination.facts().now + AT_LEAST;
    examination.recheck_at().map_or(latest, |at| at.min(latest))
}
