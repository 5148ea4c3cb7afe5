//! Keeps the operator's facts up to date: it collects all facts at first, and then updates the changed ones.

mod changes;
mod compared;
mod now;

use std::{
    collections::{BTreeMap, BTreeSet},
    mem::take,
    sync::Arc,
};

use api::{
    Finding, Severity,
    finding::{NAMED_OBJECTS, Subject, Theme, codes},
    vdo_config::Remediation,
};
use health::{
    Entry, Examination, Page, Report, Touched, View, VmRef,
    facts::{AccessReview, Attachment, Claim, Drivers, Facts, Known, Node, Snapshots, Volume},
    repair,
};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use plan::{
    facts::{self, Health, Paged, VcenterState},
    names,
};

pub(super) use self::changes::Concern;
use self::{
    changes::{change_machines, change_nodes, change_volumes, repaired_machine},
    compared::Compared,
    now::{
        drivers, frame, network_is_incomplete, nodes_now, pending_claims, same_releases,
        volumes_now,
    },
};
use crate::{
    audit::{Audit, Domain, Question, inventory::id},
    cluster::{Stores, site::Site},
    vcenters::{Touches, Vcenters},
};

/// The storage driver's default limit of missing volumes when it lists volumes.
pub(super) const LIST_THRESHOLD: u32 = 50;
/// With more changes than this at once, VDO looks at everything instead.
const FEW: usize = 200;
/// The longest pause between two looks at everything.
const AT_LEAST: SignedDuration = SignedDuration::from_mins(10);
/// VDO looks at an incomplete network plugin again after this time.
const NETWORK_AGAIN: SignedDuration = SignedDuration::from_secs(30);
/// VDO reports missing first answers of a vCenter after this time.
const FIRST_ANSWERS: SignedDuration = SignedDuration::from_secs(60);
/// Limit of the list of all objects of all findings, in bytes.
const MOST_BYTES: usize = 700 * 1024;
/// For a finding with more objects than this, the list contains only the names.
const MOST_TEXTS: usize = 2000;

/// The facts and the findings of the checks, kept up to date.
#[derive(Debug, Default)]
pub struct Live {
    examination: Option<Examination>,
    /// The facts that do not change object by object: all but nodes, VMs, volumes and pods.
    frame: Facts,
    /// The time of the next look at everything, because an answer can change with time alone.
    due: Timestamp,
    /// Revisions of the stores that the node facts come from.
    nodes_mark: [u64; 4],
    /// Revisions of the stores that the volume facts come from.
    volumes_mark: [u64; 4],
    /// The result of comparing each vCenter's answer with the cluster.
    compared: Compared,
    /// VMs on which VDO set `disk.EnableUUID`, with the time.
    repaired: BTreeMap<String, Timestamp>,
    /// The permissions that the operator lacks for remediations.
    denied: Vec<AccessReview>,
    /// The remediations that the spec allows.
    rules: Remediation,
    health: Health,
}

/// The facts that change object by object.
struct Parts {
    /// None if nothing changed.
    nodes: Option<BTreeMap<String, Node>>,
    drivers: Drivers,
    leases: Known<Vec<health::facts::Lease>>,
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
    snapshots: Known<BTreeMap<String, Snapshots>>,
}

impl Live {
    /// Updates the facts, and returns the current result of the checks.
    pub fn look(&mut self, facts: &facts::Facts, stores: &Stores, vcenters: &Vcenters) -> Health {
        let now = facts.now;
        let audits = audits(facts, vcenters);
        let site = stores.site.site();
        let mut frame = frame(facts, stores, vcenters, &audits, &site);
        if let Known::Known(access) = &mut frame.cluster.access {
            access.extend(self.denied.iter().cloned());
        }
        self.compared.take(&audits, stores);
        let expected = frame.wanted.storage.as_ref().map(|storage| storage.vcenters.clone());
        self.compared.put(&mut frame.storage, &expected.unwrap_or_default());
        let parts = self.parts(facts, stores, vcenters, &site);
        let rebuilt = parts.touches.values().any(|touches| touches.everything);
        let several = parts.touches.values().map(|t| t.vms.len()).sum::<usize>() > FEW;
        let whole = self.examination.is_none()
            || frame != self.frame
            || rebuilt
            || several
            || now >= self.due;
        let changed = if whole {
            self.look_at_everything(now, frame, parts, facts, stores, vcenters);
            true
        } else {
            self.look_at_changes(now, parts, facts, vcenters)
        };
        if network_is_incomplete(stores) {
            self.due = self.due.min(now + NETWORK_AGAIN);
        }
        let pending = is_pending(facts, vcenters);
        let asked = asked(facts);
        let rules = facts.config.spec.remediation.clone().unwrap_or_default();
        if changed || self.health.pending != pending || self.rules != rules {
            self.rules = rules;
            self.judge(facts);
        }
        self.health.pending = pending;
        self.health.audited = audits.values().map(|audit| audit.at).min();
        let answered = !audits.is_empty() && !pending && audits.values().all(|a| a.asked == asked);
        if answered && !asked.is_empty() {
            self.health.checked = Some(asked);
        }
        self.health.due = Some(self.due);
        self.health.network = self.frame.cluster.network.clone();
        self.ask(facts, vcenters, &site.domains());
        let mut health = self.health.clone();
        let untried = facts.vcenters.values().any(|v| v.state == VcenterState::Untried);
        if (untried || pending) && is_early(facts) {
            keep_what_was_known(&mut health.findings, facts);
        }
        health
    }

    /// Records the permissions that the operator lacks for the requested remediations.
    pub fn note_denied(&mut self, denied: Vec<AccessReview>) {
        self.denied = denied;
    }

    /// Records when VDO set `disk.EnableUUID` on which VM. The setting has no effect until the VM was powered
    /// off, and vCenter does not report that.
    pub fn remember(&mut self, repaired: BTreeMap<String, Timestamp>) {
        if self.repaired != repaired {
            self.repaired = repaired;
            self.due = Timestamp::UNIX_EPOCH;
        }
    }

    fn parts(
        &mut self,
        facts: &facts::Facts,
        stores: &Stores,
        vcenters: &Vcenters,
        site: &Site,
    ) -> Parts {
        let mark = stores.nodes_mark();
        let changed = self.examination.is_none() || self.nodes_mark != mark;
        let nodes = changed.then(|| nodes_now(stores));
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
        let touches =
            facts.vcenters.keys().map(|name| (name.clone(), vcenters.touches(&key(facts, name))));
        Parts {
            nodes,
            drivers: drivers(facts, stores, site),
            leases: stores.site.leases(),
            pending: pending_claims(stores),
            volumes,
            touches: touches.collect(),
        }
    }

    fn look_at_everything(
        &mut self,
        now: Timestamp,
        frame: Facts,
        parts: Parts,
        facts: &facts::Facts,
        stores: &Stores,
        vcenters: &Vcenters,
    ) {
        // Reuse unchanged nodes, and drop the other facts before building their successors, to save memory.
        let before = self.examination.take().map(Examination::into_facts);
        let nodes_before = before.and_then(|mut facts| facts.cluster.nodes.get_mut().map(take));
        let mut whole = frame.clone();
        self.frame = frame;
        whole.now = now;
        let nodes = parts.nodes.or(nodes_before);
        whole.cluster.nodes = nodes.unwrap_or_else(|| nodes_now(stores)).into();
        whole.cluster.drivers = parts.drivers;
        whole.cluster.leases = parts.leases;
        whole.storage.pending = parts.pending;
        let now_held = parts.volumes.unwrap_or_else(|| volumes_now(stores));
        whole.storage.volumes = now_held.volumes;
        whole.storage.attachments = now_held.attachments;
        whole.storage.growing = now_held.growing;
        whole.storage.snapshots = now_held.snapshots;
        let concern = Concern::of(&whole);
        for (name, vcenter) in &mut whole.vcenters {
            let known = vcenters.known(&key(facts, name)).and_then(|known| known.inventory);
            let (Some(known), Some(inventory)) = (known, vcenter.inventory.get_mut()) else {
                continue;
            };
            let tree = known.view();
            let vms = tree.vms().into_iter().filter(|vm| concern.is_of_interest(vm));
            inventory.vms = vms
                .map(|vm| (id(&vm.reference), repaired_machine(&self.repaired, name, &tree, &vm)))
                .collect();
        }
        let examination = Examination::of(whole);
        self.due = due(&examination);
        self.examination = Some(examination);
    }

    /// Returns whether anything changed.
    fn look_at_changes(
        &mut self,
        now: Timestamp,
        parts: Parts,
        facts: &facts::Facts,
        vcenters: &Vcenters,
    ) -> bool {
        let Some(examination) = &mut self.examination else { return false };
        let mut machines: BTreeSet<VmRef> = BTreeSet::new();
        for (vcenter, touches) in &parts.touches {
            let vms = touches.vms.iter();
            machines.extend(vms.map(|vm| VmRef { vcenter: vcenter.clone(), vm: id(vm) }));
        }
        let mut changed = parts.nodes.is_some_and(|nodes| {
            change_nodes(examination, now, nodes, facts, vcenters, &mut machines)
        });
        if !machines.is_empty() {
            changed = true;
            change_machines(examination, now, &machines, facts, vcenters, &self.repaired);
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

    /// Converts the report into the form that `plan` and `report` need.
    fn judge(&mut self, facts: &facts::Facts) {
        let Some(examination) = &self.examination else { return };
        let report = examination.report();
        let early = is_early(facts);
        let mut findings = report.findings();
        if early {
            findings.retain(|finding| finding.code != codes::CHECK_INCOMPLETE.code);
        }
        self.health.paged = paged(&report, &findings);
        self.health.blockers = report.blockers();
        let mut vcenters = examination.facts().vcenters.values();
        self.health.tags_are_known = vcenters.all(|vcenter| {
            vcenter.inventory.get().is_some_and(|inventory| inventory.tags.get().is_some())
        });
        self.health.unplaced = unplaced(examination.view());
        self.health.repairs = repair::propose(examination, &self.rules);
        self.health.findings = findings;
        if early {
            self.due = self.due.min(facts.started + FIRST_ANSWERS);
        }
    }

    /// Sets the next audit question of every vCenter.
    fn ask(&self, facts: &facts::Facts, vcenters: &Vcenters, domains: &[Domain]) {
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
        let amiss = self.health.findings.iter().any(is_asked_for);
        for name in facts.vcenters.keys() {
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
                domains: domains.to_vec(),
                asked: asked(facts),
                amiss,
            };
            vcenters.ask(&key(facts, name), question);
        }
    }

    /// The current facts.
    pub fn facts(&self) -> Option<&Facts> {
        self.examination.as_ref().map(Examination::facts)
    }
}

/// Whether only another query to vCenter can close this finding.
fn is_asked_for(finding: &Finding) -> bool {
    let of_vcenter = finding.definition().is_some_and(|definition| {
        matches!(
            definition.theme,
            Theme::Vcenters | Theme::Privileges | Theme::Storage | Theme::Zones
        )
    });
    of_vcenter && finding.severity >= Severity::Error && finding.acknowledged.is_none()
}

/// The key of a vCenter in the pool: namespace and name.
fn key(facts: &facts::Facts, name: &str) -> String {
    format!("{}/{name}", facts.config.namespace().unwrap_or_default())
}

fn asked(facts: &facts::Facts) -> String {
    facts.config.annotations().get(names::CHECK_NOW).cloned().unwrap_or_default()
}

/// The nodes whose VM is known but not its host.
fn unplaced(view: View<'_>) -> BTreeSet<String> {
    if view.facts.wanted.categories().is_empty() {
        return BTreeSet::new();
    }
    let hidden = |node: &&Node| view.only_vm(node).is_some_and(|found| found.host.is_none());
    view.nodes().filter(hidden).map(|node| node.name.clone()).collect()
}

/// Whether the operator started so recently that it can still be waiting for first answers.
fn is_early(facts: &facts::Facts) -> bool {
    facts.now.duration_since(facts.started) < FIRST_ANSWERS
}

/// Keeps the findings from before a restart until the checks run again, so that VDO never clears a finding
/// without checking.
fn keep_what_was_known(findings: &mut Vec<Finding>, facts: &facts::Facts) {
    let before = facts.config.status.iter().flat_map(|status| &status.findings);
    let is_checked =
        |finding: &&Finding| finding.definition().is_some_and(|d| d.theme.is_checked());
    for finding in before.filter(is_checked) {
        if !findings.iter().any(|other| other.code == finding.code) {
            findings.push(finding.clone());
        }
    }
}

fn audits(facts: &facts::Facts, vcenters: &Vcenters) -> BTreeMap<String, Arc<Audit>> {
    let audit = |name: &String| vcenters.known(&key(facts, name)).and_then(|known| known.audit);
    facts.vcenters.keys().filter_map(|name| Some((name.clone(), audit(name)?))).collect()
}

/// Whether a vCenter that accepted the login has not been audited yet.
fn is_pending(facts: &facts::Facts, vcenters: &Vcenters) -> bool {
    facts.vcenters.iter().any(|(name, vcenter)| {
        let verified = matches!(vcenter.state, VcenterState::Verified { .. });
        verified && vcenters.known(&key(facts, name)).is_some_and(|known| known.audit.is_none())
    })
}

/// The time of the next look at everything if nothing changes.
fn due(examination: &Examination) -> Timestamp {
    let latest = examination.facts().now + AT_LEAST;
    examination.recheck_at().map_or(latest, |at| at.min(latest))
}

/// Lists every object, if findings name more objects than they show.
fn paged(report: &Report<'_>, shown: &[Finding]) -> Option<Paged> {
    let left_out = shown.iter().any(|finding| finding.code == codes::FINDINGS_LEFT_OUT.code);
    let all = if left_out { report.all() } else { shown.to_vec() };
    let more = |finding: &&Finding| {
        usize::try_from(finding.count).is_ok_and(|count| count > NAMED_OBJECTS)
            || left_out && !shown.contains(finding)
    };
    let codes: BTreeSet<&str> = all.iter().filter(more).map(|f| f.code.as_str()).collect();
    if codes.is_empty() {
        return None;
    }
    let all = codes.into_iter().map(|code| (code, report.objects(code)));
    let mut all: Vec<(&str, Vec<&Subject>)> = all.collect();
    // Where space is short, the observations go first and the names last. So the longest pages come last.
    all.sort_by_key(|(_, objects)| objects.len());
    let names = |objects: &[&Subject]| -> String {
        objects.iter().map(|subject| format!("{} {}\n", subject.kind, subject.name)).collect()
    };
    let mut left: usize = all.iter().map(|(_, objects)| names(objects).len()).sum();
    let mut room = MOST_BYTES;
    let mut paged = Paged::default();
    for (code, objects) in all {
        let names = names(&objects);
        left -= names.len();
        // A longer list does not fit, and tens of thousands of texts would waste memory.
        let whole =
            (objects.len() <= MOST_TEXTS).then(|| listed(&report.page(code, 0, usize::MAX)));
        let whole = whole.filter(|whole| whole.len() + left < room);
        let text = whole.unwrap_or_else(|| cut(names, room));
        room = room.saturating_sub(text.len() + code.len());
        paged.pages.insert(code.to_owned(), text);
    }
    Some(paged)
}

/// One line for each object, with its observation.
fn listed(page: &Page) -> String {
    let lines = page
        .entries
        .iter()
        .map(|Entry { subject, seen }| format!("{} {}: {seen}\n", subject.kind, subject.name));
    lines.collect()
}

/// As many lines as fit, and the number of omitted lines.
fn cut(text: String, room: usize) -> String {
    if text.len() < room {
        return text;
    }
    let (lines, mut kept) = (text.lines().count(), String::new());
    for (number, line) in text.lines().enumerate() {
        if kept.len() + line.len() + 64 > room {
            let more = lines - number;
            kept.extend(["... and ", &more.to_string(), " more\n"]);
            break;
        }
        kept.push_str(line);
        kept.push('\n');
    }
    kept
}
