//! One run: its VMs, its controller and the invariants.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Node as KubeNode;
use kube::api::{DeleteParams, ListParams};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use testkit::{Nic, Node, Permission, Port, Process, Vcenter, VcenterUser, Vm, eventually};

use super::{Environment, FOLDERS, Tally, common::*};

/// Nodes at the start of a run.
const NODES: usize = 5;
/// The system uuid of a physical server.
const SERVER: &str = "4c4c4544-0043-4b10-8050-b4c04f4d3732";

pub(crate) struct Run<'a> {
    pub(crate) environment: &'a Environment,
    pub(crate) tally: &'a Tally,
    /// A port without a listener.
    unused: Port,
    pub(crate) seed: u64,
    pub(crate) random: StdRng,
    /// Names of the VMs that exist.
    pub(crate) alive: BTreeSet<String>,
    /// VMs in the second vCenter.
    pub(crate) moved: BTreeSet<String>,
    /// vCenters whose folders are hidden; `true` is the second.
    pub(crate) hidden: BTreeSet<bool>,
    /// Hanging vCenters, and for how many more steps; `true` is the second.
    pub(crate) hanging: BTreeMap<bool, usize>,
    pub(crate) destroyed: BTreeSet<String>,
    /// Destroyed VMs whose node had no record then: the controller cannot know that they are gone.
    pub(crate) unknown: BTreeSet<String>,
    /// Every VM that ever existed, by name.
    pub(crate) vms: BTreeMap<String, Vm>,
    /// Copies: name of the original, whether in the second vCenter, and path.
    pub(crate) copies: Vec<(String, bool, String)>,
    /// The VM with the name and the address of the physical server, and whether it exists.
    pub(crate) double: (Vm, bool),
    pub(crate) log: Vec<String>,
    pub(crate) ccm: Option<Process>,
    /// Whether the configuration has the right port of the second vCenter.
    pub(crate) reachable: bool,
    /// Whether the configuration names datacenters by their path.
    pub(crate) by_path: bool,
    /// The password of the controller's user in each vCenter.
    pub(crate) passwords: [String; 2],
    starts: usize,
    /// For unique names and uuids.
    pub(crate) next: usize,
}

impl<'a> Run<'a> {
    pub(crate) async fn new(environment: &'a Environment, tally: &'a Tally, seed: u64) -> Self {
        let double = Vm {
            nics: vec![Nic::with_address("10.9.9.9/24")],
            ..Vm::named(&format!("s{seed}-metal"))
        };
        let mut run = Run {
            environment,
            tally,
            unused: Port::reserve().unwrap(),
            seed,
            random: StdRng::seed_from_u64(seed),
            alive: BTreeSet::new(),
            moved: BTreeSet::new(),
            hidden: BTreeSet::new(),
            hanging: BTreeMap::new(),
            destroyed: BTreeSet::new(),
            unknown: BTreeSet::new(),
            vms: BTreeMap::new(),
            copies: Vec::new(),
            double: (double.clone(), true),
            log: Vec::new(),
            ccm: None,
            reachable: true,
            by_path: false,
            passwords: [PASSWORD.to_owned(), PASSWORD.to_owned()],
            starts: 0,
            next: 0,
        };
        let stage = &environment.stage;
        stage.vcenter.add_vms("DC0", [double.clone()]).await;
        let metal = Node::named(&double.name).system_uuid(SERVER).internal_ip("10.9.9.9");
        stage.nodes.add(metal).await;
        for _ in 0..NODES {
            run.add().await;
        }
        run.start();
        for name in run.alive.clone() {
            stage.initialised(&name, run.ccm.as_ref().unwrap()).await;
        }
        run
    }

    pub(crate) fn start(&mut self) {
        self.starts += 1;
        let label = format!("ccm-{}-{}", self.seed, self.starts);
        let flags = [
            "--leader-elect=false",
            "--node-deletion-delay=200ms",
            "--node-deletion-limit=1000",
            // A run can destroy most of its few VMs at once.
            "--node-deletion-share=100",
            "--vcenter-retry-period=300ms",
        ];
        self.configure("");
        let configuration = self.environment.stage.workdir.path().join(CONFIGURATION);
        self.ccm =
            Some(self.environment.stage.controller_named(&label, &configuration, &flags, &[]));
    }

    /// Writes the current configuration, with `more` appended.
    pub(crate) fn configure(&self, more: &str) {
        let [first, second] = &self.environment.proxies;
        let port = if self.reachable { second.address().port() } else { self.unused.number };
        let second = format!(
            "  two:\n    server: localhost\n    port: {port}\n    insecureFlag: true\n    user: {USER}\n    \
             password: {}\n    datacenters: [DC0]\n{more}",
            self.passwords[1]
        );
        let stage = &self.environment.stage;
        let path = stage.configuration_at(first.address().port(), &second);
        if self.by_path {
            let text = std::fs::read_to_string(path).unwrap();
            stage.workdir.write(CONFIGURATION, text.replace("[DC0]", "[/DC0]")).unwrap();
        }
    }

    pub(crate) fn vcenter(&self, second: bool) -> &'a Vcenter {
        if second { &self.environment.other } else { &self.environment.stage.vcenter }
    }

    /// The vCenter of a VM.
    pub(crate) fn vcenter_of(&self, name: &str) -> &'a Vcenter {
        self.vcenter(self.moved.contains(name))
    }

    /// Changes the password of the controller's user in vCenter, then in the controller's configuration.
    pub(crate) async fn set_password(&mut self, second: bool, password: &str) {
        self.vcenter(second).set_user(&VcenterUser::new(USER, password)).await;
        password.clone_into(&mut self.passwords[usize::from(second)]);
        if second {
            self.configure("");
        } else {
            self.environment.stage.set_secret(&[("127.0.0.1", USER, password)]).await;
        }
    }

    pub(crate) async fn add(&mut self) {
        let name = format!("s{}-n{}", self.seed, self.next);
        self.next += 1;
        let folder = FOLDERS[self.random.random_range(0..FOLDERS.len())];
        let vm = Vm { folder: folder.into(), ..Vm::named(&name) };
        self.vms.insert(name.clone(), vm.clone());
        self.alive.insert(name.clone());
        let stage = &self.environment.stage;
        stage.vcenter.add_vms("DC0", [vm.clone()]).await;
        stage.nodes.add(Node::named(&name).system_uuid(&vm.uuid).uninitialized()).await;
        self.log.push(format!("add {name}"));
    }

    /// Destroys a VM and stops its kubelet.
    pub(crate) async fn destroy(&mut self, name: &str) {
        if record(&self.environment.stage.node(name).await).is_none() {
            self.unknown.insert(name.to_owned());
        }
        self.vcenter_of(name).destroy_vm(&path_of(&self.vms[name])).await;
        self.alive.remove(name);
        self.destroyed.insert(name.to_owned());
        self.environment.stage.nodes.set_ready(name, false).await;
    }

    pub(crate) async fn destroy_copy(&mut self, at: usize) {
        let (_, second, path) = self.copies.swap_remove(at);
        self.vcenter(second).destroy_vm(&path).await;
    }

    pub(crate) async fn nodes(&self) -> Vec<KubeNode> {
        self.environment.stage.api().list(&ListParams::default()).await.unwrap().items
    }

    async fn present(&self) -> BTreeSet<String> {
        self.nodes().await.into_iter().filter_map(|node| node.metadata.name).collect()
    }

    fn history(&self) -> String {
        let tail = self.ccm.as_ref().map(Process::tail).unwrap_or_default();
        format!("seed {}\n{}\n{tail}", self.seed, self.log.join("\n"))
    }

    /// Every VM has its Node, and the physical server is unchanged.
    pub(crate) async fn check(&self) {
        let nodes = self.nodes().await;
        let named = |name: &str| nodes.iter().find(|n| n.metadata.name.as_deref() == Some(name));
        for name in &self.alive {
            assert!(
                named(name).is_some(),
                "the node {name} was deleted although its VM exists\n{}",
                self.history(),
            );
        }
        let metal = named(&self.double.0.name);
        assert!(metal.is_some(), "the physical server was deleted\n{}", self.history());
        assert!(!is_written(metal.unwrap()), "{:?}\n{}", metal.unwrap(), self.history());
    }

    /// Ends all faults and checks that exactly the Nodes of gone VMs are deleted.
    pub(crate) async fn end(mut self) {
        self.heal().await;
        // Every run deletes at least one Node.
        if self.alive.is_empty() {
            self.add().await;
        }
        let at = self.random.random_range(0..self.alive.len());
        let last = self.alive.iter().nth(at).unwrap().clone();
        self.environment.stage.nodes.set_ready(&last, false).await;
        eventually("the VM of the last node is recorded", 150, async || {
            let node = self.environment.stage.node(&last).await;
            if record(&node).is_some() { Ok(()) } else { Err(self.history()) }
        })
        .await;
        self.destroy(&last).await;
        self.log.push(format!("at the end, destroy {last}"));
        eventually("every node whose VM is gone is deleted", 150, async || {
            let present = self.present().await;
            let known = self.destroyed.difference(&self.unknown);
            let left: Vec<&String> = known.filter(|name| present.contains(*name)).collect();
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}\n{}", self.history())) }
        })
        .await;
        assert!(!self.unknown.contains(&last));
        self.check().await;
        self.clean_up().await;
    }

    /// Ends all faults.
    async fn heal(&mut self) {
        self.reachable = true;
        self.configure("");
        for way in &self.environment.proxies {
            way.heal();
        }
        for vcenter in [self.vcenter(false), self.vcenter(true)] {
            vcenter.clear_faults().await;
            for way in ["/DC0/host", "/DC0/vm"] {
                vcenter.permit(&Permission::new(USER, "reader", way)).await;
            }
        }
        for name in &self.alive {
            let path = path_of(&self.vms[name]);
            self.vcenter_of(name).permit(&Permission::new(USER, "reader", &path)).await;
        }
        while !self.copies.is_empty() {
            self.destroy_copy(0).await;
        }
    }

    /// Removes everything this run created.
    async fn clean_up(mut self) {
        self.ccm = None;
        for second in [false, true] {
            if self.passwords[usize::from(second)] != PASSWORD {
                self.set_password(second, PASSWORD).await;
            }
        }
        for name in &self.alive {
            self.vcenter_of(name).destroy_vm(&path_of(&self.vms[name])).await;
        }
        let (double, exists) = &self.double;
        if *exists {
            self.vcenter(false).destroy_vm(&path_of(double)).await;
        }
        let present = self.present().await;
        let mine = self.alive.iter().chain(&self.unknown).chain([&double.name]);
        for name in mine.filter(|name| present.contains(*name)) {
            let deleted = self.environment.stage.api().delete(name, &DeleteParams::default()).await;
            deleted.unwrap();
        }
    }
}

pub(crate) fn path_of(vm: &Vm) -> String {
    let folder = if vm.folder.is_empty() { String::new() } else { format!("{}/", vm.folder) };
    format!("/DC0/vm/{folder}{}", vm.name)
}

/// Whether the node's record names the second (or first) vCenter.
pub(crate) fn is_recorded_in(node: &KubeNode, second: bool) -> bool {
    let is = |vcenter: &str| vcenter.starts_with("localhost") == second;
    record(node).is_some_and(|record| is(record["vcenter"].as_str().unwrap()))
}
