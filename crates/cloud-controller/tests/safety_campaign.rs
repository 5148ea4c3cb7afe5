//! Random runs of faults and changes. In none of them is a Node deleted whose machine exists, and in
//! the end every Node goes whose machine is really gone.
//!
//! Machines stand in several folders of two vCenters, move between these, leave and come back, are
//! hidden, and get copies with the same uuid; Nodes lose the note that says which machine they are.
//!
//! `VDO_SEEDS` says how many runs; `VDO_SEED` repeats one.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a failed unwrap fails the test"
)]

mod common;

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Duration,
};

use common::*;
use kube::api::ListParams;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::json;
use testkit::{Fault, Inventory, Node, Permission, Port, Process, Vcenter, Vm, eventually};

/// Nodes at the start of a run.
const NODES: usize = 5;
/// Things that happen in a run.
const STEPS: usize = 18;
/// Where machines stand.
const FOLDERS: [&str; 3] = ["", "k8s", "k8s/workers"];
/// Runs that go on at once.
const LANES: usize = 3;
/// Runs on one cluster before it is made anew.
const RUNS_ON_A_STAGE: usize = 10;

struct Run<'a> {
    stage: &'a Stage,
    /// A second vCenter, with which machines go and come.
    other: &'a Vcenter,
    /// Where nobody listens.
    silent: Port,
    seed: u64,
    random: StdRng,
    /// Machines that exist, by name; all of this run.
    alive: BTreeSet<String>,
    /// Those of them that moved to the second vCenter.
    moved: BTreeSet<String>,
    /// Whether the folders of the first vCenter are hidden, and of the second.
    hidden: BTreeSet<bool>,
    /// Machines that were destroyed.
    destroyed: BTreeSet<String>,
    /// Those of them whose node had no note of its machine then: whether it is gone, nobody may know.
    unknown: BTreeSet<String>,
    /// Every machine there ever was, by name.
    machines: BTreeMap<String, Vm>,
    /// Copies with the uuid of another machine: of which, whether in the second vCenter, and where.
    copies: Vec<(String, bool, String)>,
    story: Vec<String>,
    ccm: Option<Process>,
    /// Whether the configuration says where the second vCenter is.
    reachable: bool,
    starts: usize,
    next: usize,
}

impl<'a> Run<'a> {
    async fn new(stage: &'a Stage, other: &'a Vcenter, seed: u64) -> Self {
        let mut run = Run {
            stage,
            other,
            silent: Port::reserve().unwrap(),
            seed,
            random: StdRng::seed_from_u64(seed),
            alive: BTreeSet::new(),
            moved: BTreeSet::new(),
            hidden: BTreeSet::new(),
            destroyed: BTreeSet::new(),
            unknown: BTreeSet::new(),
            machines: BTreeMap::new(),
            copies: Vec::new(),
            story: Vec::new(),
            ccm: None,
            reachable: true,
            starts: 0,
            next: 0,
        };
        for _ in 0..NODES {
            run.add().await;
        }
        run.start();
        for name in run.alive.clone() {
            run.stage.initialised(&name, run.ccm.as_ref().unwrap()).await;
        }
        run
    }

    fn start(&mut self) {
        self.starts += 1;
        let label = format!("ccm-{}-{}", self.seed, self.starts);
        let flags = [
            "--leader-elect=false",
            "--node-deletion-delay=200ms",
            "--node-deletion-limit=1000",
            // Most of a run's few machines may really be destroyed at once.
            "--node-deletion-share=100",
            "--vcenter-retry-period=300ms",
        ];
        let port = if self.reachable { self.other.address().port() } else { self.silent.number };
        let configuration = self.configure(port);
        self.ccm = Some(self.stage.controller_named(&label, &configuration, &flags, &[]));
    }

    /// Names both vCenters, the second at this port.
    fn configure(&self, port: u16) -> PathBuf {
        self.stage.configuration(&format!(
            "  two:\n    server: localhost\n    port: {port}\n    insecureFlag: true\n    user: {USER}\n    \
             password: {PASSWORD}\n    datacenters: [DC0]"
        ))
    }

    /// Whether a machine that goes there can be missed: every folder there is hidden, and no Node tells that
    /// there is one.
    async fn is_unknown_and_hidden(&self, other: bool) -> bool {
        let all = self.stage.api().list(&ListParams::default()).await.unwrap();
        let there = |node: &k8s_openapi::api::core::v1::Node| {
            let name = node.metadata.name.as_deref().unwrap_or_default();
            self.alive.contains(name) && is_recorded_in(node, other)
        };
        self.hidden.contains(&other) && !all.items.iter().any(there)
    }

    /// Moves a machine to the other vCenter, where it has the same uuid and another reference.
    async fn move_over(&mut self, name: &str, path: &str) {
        let vm = self.machines[name].clone();
        let there = self.moved.contains(name);
        let (from, to) = if there {
            (self.other, &self.stage.vcenter)
        } else {
            (&self.stage.vcenter, self.other)
        };
        to.add_vms("DC0", [vm]).await;
        from.destroy_vm(path).await;
        if !self.moved.remove(name) {
            self.moved.insert(name.to_owned());
        }
    }

    /// Whether the controller knows where each machine is. One that moved to another vCenter and is hidden
    /// there before anybody noticed is gone by every answer vCenter can give: see docs/cloud-controller.md.
    async fn moves_are_noticed(&self) -> bool {
        let all = self.stage.api().list(&ListParams::default()).await.unwrap();
        let at_home = |node: &k8s_openapi::api::core::v1::Node| {
            let name = node.metadata.name.as_deref().unwrap_or_default();
            !self.alive.contains(name) || is_recorded_in(node, self.moved.contains(name))
        };
        all.items.iter().all(at_home)
    }

    /// The vCenter that has a machine.
    fn home(&self, name: &str) -> &'a Vcenter {
        if self.moved.contains(name) { self.other } else { &self.stage.vcenter }
    }

    async fn add(&mut self) {
        let name = format!("s{}-n{}", self.seed, self.next);
        self.next += 1;
        let folder = FOLDERS[self.random.random_range(0..FOLDERS.len())];
        let vm = Vm { folder: folder.into(), ..Vm::named(&name) };
        self.machines.insert(name.clone(), vm.clone());
        self.alive.insert(name.clone());
        self.stage.vcenter.add_vms("DC0", [vm.clone()]).await;
        self.stage.nodes.add(Node::named(&name).system_uuid(&vm.uuid).uninitialized()).await;
        self.story.push(format!("add {name}"));
    }

    fn any(&mut self) -> Option<(String, String)> {
        let at = self.random.random_range(0..self.alive.len().max(1));
        let name = self.alive.iter().nth(at)?.clone();
        Some((name.clone(), path_of(&self.machines[&name])))
    }

    async fn node(&self, name: &str) -> k8s_openapi::api::core::v1::Node {
        self.stage.node(name).await
    }

    /// A copy of a machine, in either vCenter: the same BIOS uuid, all else its own.
    async fn copy(&mut self, name: &str) {
        let copy = format!("{name}-copy-{}", self.next);
        self.next += 1;
        let folder = FOLDERS[self.random.random_range(0..FOLDERS.len())];
        let second = self.random.random_bool(0.5);
        let power = ["on", "off"][self.random.random_range(0..2)];
        let uuid = self.machines[name].uuid.clone();
        let vm = Vm { uuid, folder: folder.into(), power: power.into(), ..Vm::named(&copy) };
        self.copies.push((name.to_owned(), second, path_of(&vm)));
        let vcenter = if second { self.other } else { &self.stage.vcenter };
        vcenter.add_vms("DC0", [vm]).await;
    }

    async fn destroy_copy(&mut self, at: usize) {
        let (_, second, path) = self.copies.swap_remove(at);
        let vcenter = if second { self.other } else { &self.stage.vcenter };
        vcenter.destroy_vm(&path).await;
    }

    /// A machine leaves the inventory and comes back, while its kubelet answers.
    async fn leave_and_come_back(&mut self, name: &str, path: &str) {
        self.stage.nodes.set_ready(name, true).await;
        let is_ready = |node: &k8s_openapi::api::core::v1::Node| {
            let mut all = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
            all.any(|c| c.type_ == "Ready" && c.status == "True")
        };
        self.stage.until("its kubelet answers", name, is_ready).await;
        self.home(name).destroy_vm(path).await;
        let away = self.random.random_range(0..600);
        tokio::time::sleep(Duration::from_millis(away)).await;
        if self.random.random_bool(0.3) {
            self.ccm = None;
            self.start();
        }
        self.home(name).add_vms("DC0", [self.machines[name].clone()]).await;
    }

    /// As it is with a node that another controller initialised.
    async fn lose_the_note(&self, name: &str) {
        let patch = json!({"metadata": {"annotations": {RECORD: null}}});
        let patch = kube::api::Patch::Merge(patch);
        let parameters = kube::api::PatchParams::default();
        self.stage.api().patch(name, &parameters, &patch).await.unwrap();
    }

    async fn step(&mut self) {
        let Some((name, path)) = self.any() else { return };
        let vcenter = self.home(&name);
        let ready = |ready| self.stage.nodes.set_ready(&name, ready);
        let kind = self.random.random_range(0..27);
        let misses = match kind {
            5 | 7 => !self.moves_are_noticed().await,
            // Who leaves a hidden vCenter takes along what the controller knows of it.
            15 | 16 => {
                let there = self.moved.contains(&name);
                self.hidden.contains(&there)
                    || self.is_unknown_and_hidden(!there).await
                    || !self.hidden.is_empty() && !self.moves_are_noticed().await
            }
            // Which of two is the node's machine is told by the note alone.
            23 | 24 => record(&self.node(&name).await).is_none(),
            // While it is away, the copy alone is there, and is taken for it.
            20..=22 => self.copies.iter().any(|(of, ..)| *of == name),
            26 => self.copies.iter().any(|(of, ..)| *of == name) || !self.hidden.is_empty(),
            _ => false,
        };
        if misses {
            return;
        }
        self.story.push(format!("{kind} {name}"));
        match kind {
            0 => {
                if record(&self.node(&name).await).is_none() {
                    self.unknown.insert(name.clone());
                }
                vcenter.destroy_vm(&path).await;
                self.alive.remove(&name);
                self.destroyed.insert(name.clone());
                ready(false).await;
            }
            1 | 2 => ready(false).await,
            3 => ready(true).await,
            4 => vcenter.reregister_vm(&path).await,
            5 => {
                ready(false).await;
                vcenter.permit(&Permission::new(USER, "NoAccess", &path)).await;
            }
            6 => vcenter.permit(&Permission::new(USER, "reader", &path)).await,
            7 => {
                for way in ["/DC0/host", "/DC0/vm"] {
                    vcenter.permit(&Permission::new(USER, "NoAccess", way)).await;
                }
                self.hidden.insert(self.moved.contains(&name));
                ready(false).await;
            }
            8 => {
                for way in ["/DC0/host", "/DC0/vm"] {
                    vcenter.permit(&Permission::new(USER, "reader", way)).await;
                }
                self.hidden.remove(&self.moved.contains(&name));
            }
            9 => vcenter.expire_sessions("").await,
            10 => {
                let down = self.random.random_range(50..400);
                vcenter.restart(Duration::from_millis(down)).await;
            }
            11 => {
                let fault =
                    ["NoPermission", "ManagedObjectNotFound", "NotAuthenticated", "RuntimeFault"];
                let fault = fault[self.random.random_range(0..fault.len())];
                let method = ["RetrievePropertiesEx", "WaitForUpdatesEx", "*"];
                let method = method[self.random.random_range(0..method.len())];
                let times = self.random.random_range(1..5);
                vcenter.fault(Fault::on(method).fails(fault).times(times)).await;
            }
            12 => {
                let power = ["on", "off", "suspended"][self.random.random_range(0..3)];
                vcenter.patch_vm(&path, json!({ "power": power })).await;
            }
            13 => {
                self.ccm = None;
                self.start();
            }
            14 => {
                // The next one begins before the last one ends, and for a moment both are at work.
                let last = self.ccm.take();
                self.start();
                let both = self.random.random_range(0..400);
                tokio::time::sleep(Duration::from_millis(both)).await;
                drop(last);
            }
            15 | 16 => self.move_over(&name, &path).await,
            17 | 18 => {
                // A configuration that names the second where nobody answers, or the right one again.
                self.reachable = !self.reachable;
                self.ccm = None;
                self.start();
            }
            20..=22 => self.leave_and_come_back(&name, &path).await,
            23 | 24 => self.copy(&name).await,
            25 if !self.copies.is_empty() => {
                let at = self.random.random_range(0..self.copies.len());
                self.destroy_copy(at).await;
            }
            26 => {
                self.lose_the_note(&name).await;
                if self.random.random_bool(0.5) {
                    ready(false).await;
                }
            }
            _ => {
                let method =
                    ["RetrievePropertiesEx", "WaitForUpdatesEx"][self.random.random_range(0..2)];
                vcenter.fault(Fault::on(method).truncated().times(2)).await;
            }
        }
        let pause = self.random.random_range(0..180);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        self.check().await;
    }

    /// No Node whose machine exists is missing.
    async fn check(&self) {
        let present = self.present().await;
        for name in &self.alive {
            assert!(
                present.contains(name),
                "seed {}: the node {name} was deleted although its machine exists\n{}\n{}",
                self.seed,
                self.story.join("\n"),
                self.ccm.as_ref().unwrap().tail(),
            );
        }
    }

    async fn present(&self) -> BTreeSet<String> {
        let all = self.stage.api().list(&ListParams::default()).await.unwrap();
        all.items.into_iter().filter_map(|node| node.metadata.name).collect()
    }

    /// Everything is well again: what is gone goes, what is there stays.
    async fn end(mut self) {
        self.configure(self.other.address().port());
        for vcenter in [&self.stage.vcenter, self.other] {
            vcenter.clear_faults().await;
            for way in ["/DC0/host", "/DC0/vm"] {
                vcenter.permit(&Permission::new(USER, "reader", way)).await;
            }
        }
        for name in &self.alive {
            let vcenter = self.home(name);
            let path = path_of(&self.machines[name]);
            vcenter.permit(&Permission::new(USER, "reader", &path)).await;
        }
        while !self.copies.is_empty() {
            self.destroy_copy(0).await;
        }
        eventually("every node whose machine is gone is deleted", 150, async || {
            let present = self.present().await;
            let known = self.destroyed.difference(&self.unknown);
            let left: Vec<&String> = known.filter(|name| present.contains(*name)).collect();
            if left.is_empty() {
                return Ok(());
            }
            let (story, tail) = (self.story.join("\n"), self.ccm.as_ref().unwrap().tail());
            Err(format!("seed {}: {left:?}\n{story}\n{tail}", self.seed))
        })
        .await;
        self.check().await;
        self.ccm = None;
        for name in &self.alive {
            self.home(name).destroy_vm(&path_of(&self.machines[name])).await;
        }
        let present = self.present().await;
        for name in self.alive.iter().chain(&self.unknown).filter(|name| present.contains(*name)) {
            let deleted = self.stage.api().delete(name, &kube::api::DeleteParams::default()).await;
            deleted.unwrap();
        }
    }
}

/// The inventory path of a machine.
fn path_of(vm: &Vm) -> String {
    let folder = if vm.folder.is_empty() { String::new() } else { format!("{}/", vm.folder) };
    format!("/DC0/vm/{folder}{}", vm.name)
}

/// An inventory without machines, but with folders for them.
fn empty() -> Inventory {
    let mut inventory = Inventory::small();
    let folders = FOLDERS.iter().filter(|folder| !folder.is_empty());
    inventory.datacenters[0].folders = folders.map(ToString::to_string).collect();
    inventory
}

/// Whether the controller knows the machine of a node to be in the second vCenter, or in the first.
fn is_recorded_in(node: &k8s_openapi::api::core::v1::Node, second: bool) -> bool {
    let is = |vcenter: &str| vcenter.starts_with("localhost") == second;
    record(node).is_some_and(|record| is(record["vcenter"].as_str().unwrap()))
}

#[tokio::test(flavor = "multi_thread")]
async fn no_node_is_deleted_whose_machine_exists() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds: Vec<u64> = match number("VDO_SEED") {
        Some(seed) => vec![seed],
        None => (1..=number("VDO_SEEDS").unwrap_or(30)).collect(),
    };
    let began = tokio::time::Instant::now();
    let count = seeds.len();
    // A run mostly waits, so several go on at once; each of these lanes has a cluster and a vCenter of
    // its own, because faults and restarts strike all who use one.
    let left = RefCell::new(seeds.into_iter());
    let lane = async || {
        loop {
            let some: Vec<u64> = left.borrow_mut().by_ref().take(RUNS_ON_A_STAGE).collect();
            if some.is_empty() {
                return;
            }
            runs(&some).await;
        }
    };
    futures::future::join_all((0..LANES).map(|_| lane())).await;
    println!("{count} runs in {} s", began.elapsed().as_secs());
}

/// One stage serves many runs, each with machines and nodes of its own.
async fn runs(seeds: &[u64]) {
    let mut other = readable(empty());
    let uuid = "22222222-0000-4000-8000-000000000002".to_owned();
    other.about.insert("instanceUuid".to_owned(), uuid);
    let (stage, other) = tokio::join!(Stage::with(empty()), Vcenter::start(other));
    for seed in seeds {
        let mut run = Run::new(&stage, &other, *seed).await;
        for _ in 0..STEPS {
            run.step().await;
        }
        run.end().await;
    }
}
