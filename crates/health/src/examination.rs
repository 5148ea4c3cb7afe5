//! Runs all checks once, then only those that a change affects.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::{
    check::{CheckScope, Hit, Part, Sink, examine_node, examine_volume},
    checks,
    facts::{Facts, Node, Vm, Volume},
    index::{self, Index, VmRef},
    report::Report,
    view::FactsView,
};

/// Facts and the results of all checks on them.
///
/// The cost of [`Examination::run`] grows with the facts. The cost of [`Examination::change`] grows with
/// the touched objects, plus one pass of the cluster-wide checks that read such objects.
#[derive(Debug)]
pub struct Examination {
    facts: Facts,
    index: Index,
    /// Results of the cluster-wide checks, by their position in [`checks::all`].
    cluster: Vec<Sink>,
    /// Only nodes with results.
    nodes: BTreeMap<String, Sink>,
    /// Only volumes with results.
    volumes: BTreeMap<String, Sink>,
    /// How many hits about volumes, claims and attachments keep their texts: for each code of a cluster-wide check,
    /// and the volumes of the others.
    limit: Option<usize>,
    /// How many of `volumes` have hits with texts, and how many have hits without.
    described: usize,
    brief: usize,
}

/// The objects that a change affects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Touched {
    /// One VM changed, appeared or disappeared.
    Vm(VmRef),
    /// State or datastores of one host changed, but not its ancestors.
    Host {
        /// Name of the VsphereCloudConfig.
        vcenter: String,
        /// Managed object id of the host.
        host: String,
    },
    /// By name.
    Node(String),
    /// By handle.
    Volume(String),
    /// Unfinished attachments and pending claims.
    Waiting,
    /// States of the drivers' pods and workloads. A driver that appears, disappears or changes its
    /// release needs [`Touched::Everything`].
    Pods,
    Everything,
}

impl Examination {
    /// Runs every check.
    pub fn run(facts: Facts) -> Self {
        Self::new(facts, None)
    }

    /// Like [`Self::run`], for a process that keeps the results. It keeps the texts of up to `limit` hits about volumes,
    /// claims and attachments for each code, and only the objects of the others. The findings count all of them.
    pub fn limited(facts: Facts, limit: usize) -> Self {
        Self::new(facts, Some(limit))
    }

    fn new(facts: Facts, limit: Option<usize>) -> Self {
        let index = Index::new(&facts);
        let mut examination = Self {
            facts,
            index,
            cluster: checks::all().iter().map(|_| Sink::default()).collect(),
            nodes: BTreeMap::new(),
            volumes: BTreeMap::new(),
            limit,
            described: 0,
            brief: 0,
        };
        examination.run_all();
        examination
    }

    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    pub fn into_facts(self) -> Facts {
        self.facts
    }

    pub fn view(&self) -> FactsView<'_> {
        FactsView { facts: &self.facts, index: &self.index }
    }

    /// Changes the facts and runs the affected checks.
    ///
    /// `edit` must change only the objects named by `touched`, and `Facts::now`.
    pub fn change(&mut self, touched: &Touched, edit: impl FnOnce(&mut Facts)) {
        match touched {
            Touched::Vm(at) => self.change_vm(at, edit),
            Touched::Host { vcenter, host } => {
                edit(&mut self.facts);
                let nodes = self.nodes_on_host(vcenter, host);
                self.run_nodes(&nodes);
                self.run_cluster(&[Part::Vms]);
            }
            Touched::Node(name) => self.change_node(name, edit),
            Touched::Volume(handle) => self.change_volume(handle, edit),
            Touched::Waiting => {
                edit(&mut self.facts);
                self.run_cluster(&[Part::Volumes]);
            }
            Touched::Pods => {
                edit(&mut self.facts);
                // Hits of nodes do not depend on pods, but their texts do.
                let nodes: Vec<String> = self.nodes.keys().cloned().collect();
                self.run_nodes(&nodes);
                self.run_cluster(&[Part::Pods]);
            }
            Touched::Everything => {
                edit(&mut self.facts);
                self.index = Index::new(&self.facts);
                self.run_all();
            }
        }
    }

    pub fn report(&self) -> Report<'_> {
        Report::new(self.hits(), &self.facts)
    }

    pub fn hits(&self) -> impl Iterator<Item = &Hit> {
        self.results().flat_map(|sink| &sink.hits)
    }

    /// The earliest moment at which time alone changes an answer, if no fact changes before.
    pub fn recheck_at(&self) -> Option<Timestamp> {
        let checks = self.results().filter_map(|sink| sink.recheck_at);
        let acknowledged = self.facts.operator.acknowledged.iter();
        let ends = acknowledged.filter_map(|a| a.until).filter(|until| *until > self.facts.now);
        checks.chain(ends).min()
    }

    fn results(&self) -> impl Iterator<Item = &Sink> {
        self.cluster.iter().chain(self.nodes.values()).chain(self.volumes.values())
    }

    fn change_vm(&mut self, at: &VmRef, edit: impl FnOnce(&mut Facts)) {
        let before = self.stored_vm(at).cloned();
        edit(&mut self.facts);
        let after = self.stored_vm(at).cloned();
        let mut nodes = BTreeSet::new();
        let mut volumes = BTreeSet::new();
        for vm in before.iter().chain(&after) {
            nodes.extend(self.index.nodes_with_uuid(&vm.bios_uuid).iter().cloned());
            nodes.extend(self.index.nodes_with_guest_name(&vm.guest_name).iter().cloned());
            volumes.extend(vm.volumes.iter().cloned());
        }
        if let Some(vm) = &before {
            self.index.remove_vm(at, vm);
        }
        if let Some(vm) = &after {
            self.index.add_vm(at, vm);
        }
        for node in &nodes {
            self.index.bind(&self.facts, node);
            volumes.extend(self.index.volumes_on_node(node).iter().cloned());
        }
        self.run_nodes(&nodes.into_iter().collect::<Vec<_>>());
        self.run_volumes(&volumes.into_iter().collect::<Vec<_>>());
        self.run_cluster(&[Part::Vms]);
    }

    fn change_node(&mut self, name: &str, edit: impl FnOnce(&mut Facts)) {
        if let Some(node) = self.stored_node(name).cloned() {
            self.index.remove_node(&node);
        }
        edit(&mut self.facts);
        if let Some(node) = self.stored_node(name).cloned() {
            self.index.add_node(&node);
        }
        self.index.bind(&self.facts, name);
        self.run_nodes(&[name.to_owned()]);
        let volumes = self.index.volumes_on_node(name).to_vec();
        self.run_volumes(&volumes);
        self.run_cluster(&[Part::Nodes]);
    }

    fn change_volume(&mut self, handle: &str, edit: impl FnOnce(&mut Facts)) {
        if let Some(volume) = self.stored_volume(handle).cloned() {
            self.index.remove_volume(&volume);
        }
        edit(&mut self.facts);
        if let Some(volume) = self.stored_volume(handle).cloned() {
            self.index.add_volume(&volume);
        }
        self.run_volumes(&[handle.to_owned()]);
        self.run_cluster(&[Part::Volumes]);
    }

    fn stored_vm(&self, at: &VmRef) -> Option<&Vm> {
        index::stored_vm(&self.facts, at)
    }

    fn stored_node(&self, name: &str) -> Option<&Node> {
        self.facts.cluster.nodes.get()?.get(name)
    }

    fn stored_volume(&self, handle: &str) -> Option<&Volume> {
        self.facts.storage.volumes.get()?.get(handle)
    }

    fn nodes_on_host(&self, vcenter: &str, host: &str) -> Vec<String> {
        let vms = self.index.vms_on_host(vcenter, host).iter();
        let uuids = vms.filter_map(|at| self.stored_vm(at)).map(|vm| vm.bios_uuid.as_str());
        uuids.flat_map(|uuid| self.index.nodes_with_uuid(uuid)).cloned().collect()
    }

    fn run_all(&mut self) {
        self.run_cluster(&[]);
        let view = self.view();
        let mut nodes = BTreeMap::new();
        for node in view.nodes() {
            put(&mut nodes, &node.name, Some(results_of_node(&view, node)));
        }
        self.nodes = nodes;
        self.volumes = BTreeMap::new();
        (self.described, self.brief) = (0, 0);
        let handles: Vec<String> = self
            .facts
            .storage
            .volumes
            .get()
            .into_iter()
            .flatten()
            .map(|(h, _)| h.clone())
            .collect();
        self.run_volumes(&handles);
    }

    /// Runs the cluster-wide checks that read one of these parts, or all of them if `touched` is empty.
    fn run_cluster(&mut self, touched: &[Part]) {
        for (place, check) in checks::all().iter().enumerate() {
            let CheckScope::Cluster(reads, run) = check.run else { continue };
            if touched.is_empty() || touched.iter().any(|part| reads.contains(part)) {
                let mut sink = Sink::limited(self.limit);
                run(&self.view(), &mut sink);
                sink.hits.shrink_to_fit();
                self.cluster[place] = sink;
            }
        }
    }

    fn run_nodes(&mut self, names: &[String]) {
        for name in names {
            let stored = self.stored_node(name);
            let results = stored.map(|node| results_of_node(&self.view(), node));
            put(&mut self.nodes, name, results);
        }
    }

    fn run_volumes(&mut self, handles: &[String]) {
        for handle in handles {
            let stored = self.stored_volume(handle);
            let results = stored.map(|volume| results_of_volume(&self.view(), volume));
            self.put_volume(handle, results);
        }
        // Volumes have recovered: others can be described again.
        if let Some(limit) =
            self.limit.filter(|limit| self.brief > 0 && self.described <= limit / 2)
        {
            let brief = self.volumes.iter().filter(|(_, sink)| is_brief(sink));
            let brief: Vec<String> =
                brief.map(|(handle, _)| handle.clone()).take(limit - self.described).collect();
            for handle in brief {
                let stored = self.stored_volume(&handle);
                let results = stored.map(|volume| results_of_volume(&self.view(), volume));
                self.put_volume(&handle, results);
            }
        }
    }

    fn put_volume(&mut self, handle: &str, mut results: Option<Sink>) {
        let count = |sink: Option<&Sink>| match sink.filter(|sink| !sink.hits.is_empty()) {
            None => (0, 0),
            Some(sink) if is_brief(sink) => (0, 1),
            Some(_) => (1, 0),
        };
        let before = count(self.volumes.get(handle));
        (self.described, self.brief) = (self.described - before.0, self.brief - before.1);
        if let Some(sink) = &mut results {
            if self.limit.is_some_and(|limit| self.described >= limit) {
                sink.hits.iter_mut().for_each(Hit::shorten);
            }
            sink.hits.shrink_to_fit();
        }
        put(&mut self.volumes, handle, results);
        let after = count(self.volumes.get(handle));
        (self.described, self.brief) = (self.described + after.0, self.brief + after.1);
    }
}

fn is_brief(sink: &Sink) -> bool {
    sink.hits.first().is_some_and(|hit| hit.brief)
}

fn results_of_node(view: &FactsView<'_>, node: &Node) -> Sink {
    let mut sink = Sink::default();
    examine_node(view, node, checks::node_checks(), &mut sink);
    sink
}

fn results_of_volume(view: &FactsView<'_>, volume: &Volume) -> Sink {
    let mut sink = Sink::default();
    examine_volume(view, volume, checks::volume_checks(), &mut sink);
    sink
}

fn put(table: &mut BTreeMap<String, Sink>, key: &str, results: Option<Sink>) {
    match results.filter(|sink| !sink.hits.is_empty() || sink.recheck_at.is_some()) {
        Some(sink) => table.insert(key.to_owned(), sink),
        None => table.remove(key),
    };
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;
    use crate::{
        facts::{Acknowledged, Attachment, Known, Reach},
        shortcuts::Shortcuts,
        testing::healthy,
    };

    fn recheck_after(change: impl FnOnce(&mut Facts)) -> Option<i64> {
        let mut facts = healthy();
        // A healthy controller renews its lease long before it expires.
        facts.cluster.leases = Vec::new().into();
        let usual = until_certificates_expire(&facts);
        change(&mut facts);
        let now = facts.now;
        let at = Examination::run(facts).recheck_at()?.duration_since(now).as_secs();
        (at < usual).then_some(at)
    }

    /// Seconds until a certificate of the healthy sample is about to expire.
    fn until_certificates_expire(facts: &Facts) -> i64 {
        let at = Examination::run(facts.clone()).recheck_at();
        at.map_or(i64::MAX, |at| at.duration_since(facts.now).as_secs())
    }

    #[test]
    fn time_alone_changes_an_answer_when_a_grace_period_ends() {
        let ago = |facts: &Facts, seconds| facts.now - SignedDuration::from_secs(seconds);
        assert_eq!(recheck_after(|_| {}), None);
        let new_node = |facts: &mut Facts| facts.node("worker-1").created = ago(facts, 20);
        assert_eq!(recheck_after(new_node), Some(101));
        let down = |facts: &mut Facts| {
            facts.node("worker-1").ready = false;
            facts.node("worker-1").ready_since = ago(facts, 60);
        };
        assert_eq!(recheck_after(down), Some(301));
        let unreachable = |facts: &mut Facts| {
            facts.vcenter().since = ago(facts, 20);
            facts.vcenter().reach = Reach::NoAnswer { reason: "timed out".into() }.into();
        };
        assert_eq!(recheck_after(unreachable), Some(101));
        let expires = |facts: &mut Facts| {
            facts.vcenter().password_expires = Known::Known(Some(ago(facts, -3600)));
        };
        assert_eq!(recheck_after(expires), Some(3601));
        let accepted = |facts: &mut Facts| {
            let until = Some(ago(facts, -600));
            facts.operator.acknowledged = vec![Acknowledged { until, ..Acknowledged::default() }];
        };
        assert_eq!(recheck_after(accepted), Some(600));
        let rollout = |facts: &mut Facts| {
            facts.storage_driver().workloads[1].ready -= 1;
            facts.storage_driver().workloads[1].changing = true;
        };
        assert_eq!(recheck_after(rollout), Some(31));
    }

    #[test]
    fn a_change_of_one_node_updates_the_next_check() {
        let mut examination = Examination::run(healthy());
        let usual = examination.recheck_at();
        let created = examination.facts().now;
        examination.change(&Touched::Node("worker-1".into()), |facts| {
            facts.node("worker-1").created = created;
        });
        let at = examination.recheck_at().map(|at| at.duration_since(created).as_secs());
        assert_eq!(at, Some(121));
        examination.change(&Touched::Node("worker-1".into()), |facts| {
            facts.node("worker-1").created = Timestamp::UNIX_EPOCH;
        });
        assert_eq!(examination.recheck_at(), usual);
    }

    /// As many volumes as a tenant can create, all unknown to CNS and all failing to attach.
    fn many_faulty_volumes(count: usize) -> Facts {
        let mut facts = healthy();
        let model = facts.storage.volumes.get().unwrap().values().next().unwrap().clone();
        let volumes = (0..count).map(|number| {
            let (handle, name) = (format!("handle-{number:05}"), format!("pvc-{number:05}"));
            (handle.clone(), Volume { handle, name, node: None, ..model.clone() })
        });
        facts.storage.volumes = volumes.collect::<BTreeMap<_, _>>().into();
        let attachments = (0..count).map(|number| Attachment {
            name: format!("csi-{number:05}"),
            volume: format!("handle-{number:05}"),
            node: "worker-1".into(),
            detaching: false,
            message: format!("failed to attach pvc-{number:05}"),
            since: Timestamp::UNIX_EPOCH,
        });
        facts.storage.attachments = attachments.collect::<Vec<_>>().into();
        facts
    }

    #[test]
    fn texts_of_many_faulty_volumes_are_limited_and_all_are_counted() {
        let (count, limit) = (600, 50);
        let whole = Examination::run(many_faulty_volumes(count));
        let mut examination = Examination::limited(many_faulty_volumes(count), limit);
        let described = |examination: &Examination, code: &str| {
            let hits = examination.hits().filter(|hit| hit.definition.code == code);
            hits.filter(|hit| !hit.brief && !hit.own.is_empty()).count()
        };
        let (missing, failing) = ("VDO-1515", "VDO-1520");
        let expected = whole.report().all();
        for code in [missing, failing] {
            assert_eq!(described(&whole, code), count, "{code}");
            assert_eq!(described(&examination, code), limit, "{code}");
        }
        // The findings are the same: texts, causes, counts and names.
        assert_eq!(examination.report().all(), expected);
        let finding = expected.iter().find(|finding| finding.code == failing).unwrap();
        assert_eq!(finding.count, 600);
        assert!(finding.seen.as_deref().unwrap().ends_with("and 597 more"), "{:?}", finding.seen);
        assert_eq!(examination.report().page(failing, 0, usize::MAX).entries.len(), count);

        // All but a few recover: the rest is described again.
        let left = 20;
        for number in 0..count - left {
            let handle = format!("handle-{number:05}");
            examination.change(&Touched::Volume(handle.clone()), |facts| {
                facts.storage.volumes.get_mut().unwrap().remove(&handle);
            });
        }
        assert_eq!(described(&examination, missing), left);
        assert!(
            examination.hits().filter(|hit| hit.definition.code == missing).all(|hit| !hit.brief)
        );
    }
}
