//! The checks run over facts, wholly once and then only where something changed.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    check::{Check, Hit, Part, Run, Sink},
    checks,
    facts::{Facts, Node, Vm, Volume},
    index::{self, Index, VmRef},
    report::Report,
    view::{NodeVm, View},
};

/// Facts with everything that was found in them.
///
/// Costs: [`Examination::of`] grows with the facts; [`Examination::change`] with the objects that
/// were touched, plus one pass of those cluster-wide checks that look at such objects.
#[derive(Debug)]
pub struct Examination {
    facts: Facts,
    index: Index,
    /// Hits of the cluster-wide checks, by their place in [`checks::all`].
    cluster: Vec<Vec<Hit>>,
    nodes: BTreeMap<String, Vec<Hit>>,
    volumes: BTreeMap<String, Vec<Hit>>,
}

/// What a change touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Touched {
    /// One VM: changed, appeared or went.
    Vm(VmRef),
    /// One host: state or datastores, not what stands above it.
    Host {
        /// Name of the vCenter's object.
        vcenter: String,
        /// Reference of the host.
        host: String,
    },
    /// One node, by name.
    Node(String),
    /// One volume, by handle.
    Volume(String),
    /// Attachments that are not finished, and claims that wait.
    Waiting,
    /// Pods and workloads of the drivers: their states. A driver that appears, goes or changes its
    /// release is [`Touched::Everything`].
    Pods,
    /// Anything.
    Everything,
}

impl Examination {
    /// Runs every check.
    pub fn of(facts: Facts) -> Self {
        let index = Index::of(&facts);
        let mut examination = Self {
            facts,
            index,
            cluster: checks::all().iter().map(|_| Vec::new()).collect(),
            nodes: BTreeMap::new(),
            volumes: BTreeMap::new(),
        };
        examination.run_all();
        examination
    }

    /// The facts.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The facts, without what was found in them.
    pub fn into_facts(self) -> Facts {
        self.facts
    }

    /// The facts as the checks see them.
    pub fn view(&self) -> View<'_> {
        View { facts: &self.facts, index: &self.index }
    }

    /// Changes the facts and runs what depends on the change.
    ///
    /// `edit` must change nothing beyond what `touched` says; with [`Touched::Everything`] it may
    /// change anything.
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
                // What is found about nodes does not depend on pods, what is said about them does.
                let nodes: Vec<String> = self.nodes.keys().cloned().collect();
                self.run_nodes(&nodes);
                self.run_cluster(&[Part::Pods]);
            }
            Touched::Everything => {
                edit(&mut self.facts);
                self.index = Index::of(&self.facts);
                self.run_all();
            }
        }
    }

    /// What was found, brought together.
    pub fn report(&self) -> Report<'_> {
        Report::of(self.hits(), &self.facts)
    }

    /// What was found, one by one.
    pub fn hits(&self) -> impl Iterator<Item = &Hit> {
        let hits = self.cluster.iter().chain(self.nodes.values()).chain(self.volumes.values());
        hits.flatten()
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
        let nodes = view.nodes().map(|node| (&node.name, hits_of_node(&view, node)));
        let nodes = nodes.filter(|(_, hits)| !hits.is_empty());
        let nodes: BTreeMap<String, Vec<Hit>> =
            nodes.map(|(name, hits)| (name.clone(), hits)).collect();
        let volumes = self.facts.storage.volumes.get().into_iter().flatten();
        let volumes = volumes.map(|(handle, volume)| (handle, hits_of_volume(&view, volume)));
        let volumes = volumes.filter(|(_, hits)| !hits.is_empty());
        let volumes: BTreeMap<String, Vec<Hit>> =
            volumes.map(|(handle, hits)| (handle.clone(), hits)).collect();
        self.nodes = nodes;
        self.volumes = volumes;
    }

    /// Runs the cluster-wide checks that read one of these parts; all if none is named.
    fn run_cluster(&mut self, touched: &[Part]) {
        for (place, check) in checks::all().iter().enumerate() {
            let Run::Cluster(reads, run) = check.run else { continue };
            if touched.is_empty() || touched.iter().any(|part| reads.contains(part)) {
                let mut sink = Sink::default();
                run(&self.view(), &mut sink);
                self.cluster[place] = sink.hits;
            }
        }
    }

    fn run_nodes(&mut self, names: &[String]) {
        for name in names {
            let stored = self.stored_node(name);
            let hits = stored.map_or_else(Vec::new, |node| hits_of_node(&self.view(), node));
            put(&mut self.nodes, name, hits);
        }
    }

    fn run_volumes(&mut self, handles: &[String]) {
        for handle in handles {
            let stored = self.stored_volume(handle);
            let hits = stored.map_or_else(Vec::new, |volume| hits_of_volume(&self.view(), volume));
            put(&mut self.volumes, handle, hits);
        }
    }
}

fn hits_of_node(view: &View<'_>, node: &Node) -> Vec<Hit> {
    let mut sink = Sink::default();
    examine_node(view, node, checks::of_nodes(), &mut sink);
    sink.hits
}

fn hits_of_volume(view: &View<'_>, volume: &Volume) -> Vec<Hit> {
    let mut sink = Sink::default();
    examine_volume(view, volume, checks::of_volumes(), &mut sink);
    sink.hits
}

fn put(table: &mut BTreeMap<String, Vec<Hit>>, key: &str, hits: Vec<Hit>) {
    if hits.is_empty() {
        table.remove(key);
    } else {
        table.insert(key.to_owned(), hits);
    }
}

pub(crate) fn examine_node(view: &View<'_>, node: &Node, checks: &[&Check], sink: &mut Sink) {
    let vm = view.node_vm(node);
    for check in checks {
        match (check.run, &vm) {
            (Run::Node(run), _) => run(view, node, sink),
            (Run::NodeVm(run), NodeVm::One(found)) => run(view, node, found, sink),
            _ => {}
        }
    }
}

pub(crate) fn examine_volume(view: &View<'_>, volume: &Volume, checks: &[&Check], sink: &mut Sink) {
    for check in checks {
        if let Run::Volume(run) = check.run {
            run(view, volume, sink);
        }
    }
}
