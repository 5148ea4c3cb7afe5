//! The steps of a run: faults and changes.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node as KubeNode;
use rand::RngExt as _;
use serde_json::json;
use testkit::{Fault, Permission, Vm, eventually};

use super::{
    FOLDERS,
    common::*,
    run::{Run, is_recorded_in, path_of},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Add a VM and its node.
    Add,
    /// Destroy a VM and stop its kubelet.
    Destroy,
    NotReady,
    Ready,
    /// Ready is Unknown.
    Silence,
    /// Register a VM again under a new reference.
    Reregister,
    /// Hide a VM from the user.
    HideOne,
    ShowOne,
    /// Hide all VMs of a vCenter from the user.
    HideAll,
    ShowAll,
    ExpireSessions,
    RestartVcenter,
    /// Some calls fail with faults.
    Fault,
    /// Some answers are truncated.
    HalfAnswers,
    /// A vCenter delays all answers for some steps.
    Hang,
    Power,
    RestartController,
    /// The next controller starts before the last one stops.
    OverlapControllers,
    /// Move a VM to the other vCenter: the same uuid, another reference.
    Move,
    /// Switch the second vCenter to a port without a listener, or back.
    SwitchAddress,
    /// A VM leaves the inventory and comes back while its node is Ready.
    LeaveAndComeBack,
    /// Add a VM with the same BIOS uuid.
    Copy,
    DestroyCopy,
    /// Remove the record, as on a node that another controller initialised.
    LoseRecord,
    NewInstanceUuid,
    /// Change the password in vCenter and for the controller.
    NewPassword,
    /// Write an equivalent or an invalid configuration.
    Reload,
    /// Change the physical server, or the VM with its name.
    Metal,
    RestartApiServer,
}

/// Weights of the random choice. An API server restart takes long, so only some runs have one.
pub(crate) const WEIGHTS: &[(Kind, usize)] = &[
    (Kind::Add, 1),
    (Kind::Destroy, 1),
    (Kind::NotReady, 2),
    (Kind::Ready, 1),
    (Kind::Silence, 1),
    (Kind::Reregister, 1),
    (Kind::HideOne, 1),
    (Kind::ShowOne, 1),
    (Kind::HideAll, 1),
    (Kind::ShowAll, 1),
    (Kind::ExpireSessions, 1),
    (Kind::RestartVcenter, 1),
    (Kind::Fault, 1),
    (Kind::HalfAnswers, 1),
    (Kind::Hang, 2),
    (Kind::Power, 1),
    (Kind::RestartController, 1),
    (Kind::OverlapControllers, 1),
    (Kind::Move, 2),
    (Kind::SwitchAddress, 2),
    (Kind::LeaveAndComeBack, 3),
    (Kind::Copy, 2),
    (Kind::DestroyCopy, 3),
    (Kind::LoseRecord, 1),
    (Kind::NewInstanceUuid, 1),
    (Kind::NewPassword, 1),
    (Kind::Reload, 1),
    (Kind::Metal, 1),
    (Kind::RestartApiServer, 0),
];

/// In every 10th run, the API server restarts in this step.
const API_SERVER: (u64, usize) = (10, 9);

impl Run<'_> {
    /// Runs a random step, except one that the controller cannot handle correctly.
    pub(crate) async fn step(&mut self, number: usize) {
        self.end_hangs();
        let (kind, name) = loop {
            if self.alive.is_empty() {
                break (Kind::Add, String::new());
            }
            let at = self.random.random_range(0..self.alive.len());
            let name = self.alive.iter().nth(at).unwrap().clone();
            let kind = self.draw(number);
            if !self.is_undecidable(kind, &name).await {
                break (kind, name);
            }
        };
        *self.tally.borrow_mut().entry(kind).or_default() += 1;
        self.log.push(format!("{kind:?} {name}"));
        self.apply(kind, &name).await;
        let pause = self.random.random_range(0..180);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        self.check().await;
    }

    fn draw(&mut self, number: usize) -> Kind {
        if self.seed.is_multiple_of(API_SERVER.0) && number == API_SERVER.1 {
            return Kind::RestartApiServer;
        }
        let all: usize = WEIGHTS.iter().map(|(_, weight)| weight).sum();
        let mut at = self.random.random_range(0..all);
        for (kind, weight) in WEIGHTS {
            if at < *weight {
                return *kind;
            }
            at -= weight;
        }
        Kind::NotReady
    }

    /// Whether the controller cannot be expected to handle this step correctly.
    async fn is_undecidable(&self, kind: Kind, name: &str) -> bool {
        let there = self.moved.contains(name);
        let has_copy = || self.copies.iter().any(|(of, ..)| of == name);
        match kind {
            // A VM that moved to another vCenter and is hidden there before the controller saw it is gone by
            // every answer vCenter can give: see docs/cloud-controller.md.
            Kind::HideOne => !is_recorded_in(&self.environment.stage.node(name).await, there),
            Kind::HideAll => !self.moves_are_noticed(Some(there)).await,
            // With the last VM, the record of a hidden vCenter would disappear.
            Kind::Move => {
                self.hidden.contains(&there)
                    || self.is_unknown_and_hidden(!there).await
                    || !self.hidden.is_empty() && !self.moves_are_noticed(None).await
            }
            // Only the record distinguishes the VM from its copy.
            Kind::Copy => record(&self.environment.stage.node(name).await).is_none(),
            Kind::DestroyCopy => self.copies.is_empty(),
            // While the VM is absent, the controller accepts the copy.
            Kind::LeaveAndComeBack => has_copy(),
            Kind::LoseRecord => has_copy() || !self.hidden.is_empty(),
            _ => false,
        }
    }

    /// Whether all folders of a vCenter are hidden and no record names one of them.
    async fn is_unknown_and_hidden(&self, second: bool) -> bool {
        let there = |node: &KubeNode| {
            let name = node.metadata.name.as_deref().unwrap_or_default();
            self.alive.contains(name) && is_recorded_in(node, second)
        };
        self.hidden.contains(&second) && !self.nodes().await.iter().any(there)
    }

    /// Whether the record of each node names the right vCenter; or of each node of one vCenter.
    async fn moves_are_noticed(&self, second: Option<bool>) -> bool {
        let is_recorded = |node: &KubeNode| {
            let name = node.metadata.name.as_deref().unwrap_or_default();
            let there = self.moved.contains(name);
            !self.alive.contains(name)
                || second.is_some_and(|second| second != there)
                || is_recorded_in(node, there)
        };
        self.nodes().await.iter().all(is_recorded)
    }

    /// Ends hangs whose time is over.
    fn end_hangs(&mut self) {
        for (second, left) in &mut self.hanging {
            *left -= 1;
            if *left == 0 {
                self.environment.proxies[usize::from(*second)].heal();
            }
        }
        self.hanging.retain(|_, left| *left > 0);
    }

    async fn apply(&mut self, kind: Kind, name: &str) {
        match kind {
            Kind::Add => self.add().await,
            Kind::Destroy => self.destroy(name).await,
            Kind::Move => self.move_over(name).await,
            Kind::LeaveAndComeBack => self.leave_and_come_back(name).await,
            Kind::Copy => self.copy(name).await,
            Kind::DestroyCopy => {
                let at = self.random.random_range(0..self.copies.len());
                self.destroy_copy(at).await;
            }
            Kind::Metal => self.touch_metal().await,
            Kind::RestartApiServer => self.restart_api_server().await,
            Kind::NotReady | Kind::Ready | Kind::Silence | Kind::LoseRecord => {
                self.change_node(kind, name).await;
            }
            Kind::Reregister | Kind::Power | Kind::NewInstanceUuid => {
                self.change_vm(kind, name).await;
            }
            Kind::RestartController
            | Kind::OverlapControllers
            | Kind::SwitchAddress
            | Kind::Reload => self.change_controller(kind).await,
            Kind::HideOne | Kind::ShowOne | Kind::HideAll | Kind::ShowAll | Kind::NewPassword => {
                self.change_permissions(kind, name).await;
            }
            Kind::ExpireSessions
            | Kind::RestartVcenter
            | Kind::Fault
            | Kind::HalfAnswers
            | Kind::Hang => self.change_vcenter(kind, name).await,
        }
    }

    async fn change_node(&mut self, kind: Kind, name: &str) {
        let nodes = &self.environment.stage.nodes;
        match kind {
            Kind::Ready => nodes.set_ready(name, true).await,
            Kind::Silence => nodes.silence(name).await,
            Kind::LoseRecord => {
                let patch = json!({"metadata": {"annotations": {RECORD: null}}});
                let patch = kube::api::Patch::Merge(patch);
                let parameters = kube::api::PatchParams::default();
                self.environment.stage.api().patch(name, &parameters, &patch).await.unwrap();
                if self.random.random_bool(0.5) {
                    nodes.set_ready(name, false).await;
                }
            }
            _ => nodes.set_ready(name, false).await,
        }
    }

    async fn change_vm(&mut self, kind: Kind, name: &str) {
        let path = path_of(&self.vms[name]);
        let vcenter = self.vcenter_of(name);
        match kind {
            Kind::Reregister => vcenter.reregister_vm(&path).await,
            Kind::NewInstanceUuid => {
                self.next += 1;
                let uuid = format!("50{:06x}-0000-4000-8000-{:012x}", self.seed, self.next);
                vcenter.patch_vm(&path, json!({ "instanceUuid": uuid })).await;
                self.vms.get_mut(name).unwrap().instance_uuid = uuid;
            }
            _ => {
                let power = ["on", "off", "suspended"][self.random.random_range(0..3)];
                vcenter.patch_vm(&path, json!({ "power": power })).await;
            }
        }
    }

    async fn change_controller(&mut self, kind: Kind) {
        match kind {
            Kind::OverlapControllers => {
                let last = self.ccm.take();
                self.start();
                let both = self.random.random_range(0..400);
                tokio::time::sleep(Duration::from_millis(both)).await;
                drop(last);
            }
            Kind::Reload => {
                self.by_path = !self.by_path;
                let more = ["", "globl: {}\n"][self.random.random_range(0..2)];
                self.configure(more);
            }
            _ => {
                self.reachable ^= kind == Kind::SwitchAddress;
                self.ccm = None;
                self.start();
            }
        }
    }

    async fn change_permissions(&mut self, kind: Kind, name: &str) {
        let vcenter = self.vcenter_of(name);
        let second = self.moved.contains(name);
        let role =
            if matches!(kind, Kind::HideOne | Kind::HideAll) { "NoAccess" } else { "reader" };
        let hides = role == "NoAccess";
        match kind {
            Kind::NewPassword => {
                self.next += 1;
                let password = format!("cloud-Contr0ller!{}", self.next);
                self.set_password(second, &password).await;
            }
            Kind::HideOne | Kind::ShowOne => {
                let path = path_of(&self.vms[name]);
                vcenter.permit(&Permission::new(USER, role, &path)).await;
            }
            _ => {
                for way in ["/DC0/host", "/DC0/vm"] {
                    vcenter.permit(&Permission::new(USER, role, way)).await;
                }
                if hides {
                    self.hidden.insert(second);
                } else {
                    self.hidden.remove(&second);
                }
            }
        }
        if hides {
            self.environment.stage.nodes.set_ready(name, false).await;
        }
    }

    async fn change_vcenter(&mut self, kind: Kind, name: &str) {
        let vcenter = self.vcenter_of(name);
        match kind {
            Kind::ExpireSessions => vcenter.expire_sessions("").await,
            Kind::RestartVcenter => {
                let down = self.random.random_range(50..400);
                vcenter.restart(Duration::from_millis(down)).await;
            }
            Kind::Fault => {
                let fault =
                    ["NoPermission", "ManagedObjectNotFound", "NotAuthenticated", "RuntimeFault"];
                let fault = fault[self.random.random_range(0..fault.len())];
                let method = ["RetrievePropertiesEx", "WaitForUpdatesEx", "*"];
                let method = method[self.random.random_range(0..method.len())];
                let times = self.random.random_range(1..5);
                vcenter.fault(Fault::on(method).fails(fault).times(times)).await;
            }
            Kind::Hang => {
                let second = self.moved.contains(name);
                self.environment.proxies[usize::from(second)].black_hole();
                self.hanging.insert(second, self.random.random_range(1..5));
            }
            _ => {
                let method =
                    ["RetrievePropertiesEx", "WaitForUpdatesEx"][self.random.random_range(0..2)];
                vcenter.fault(Fault::on(method).truncated().times(2)).await;
            }
        }
    }

    async fn move_over(&mut self, name: &str) {
        let vm = self.vms[name].clone();
        let there = self.moved.contains(name);
        let path = path_of(&vm);
        self.vcenter(!there).add_vms("DC0", [vm]).await;
        self.vcenter(there).destroy_vm(&path).await;
        if !self.moved.remove(name) {
            self.moved.insert(name.to_owned());
        }
    }

    /// Adds a copy of a VM to either vCenter, with the same BIOS uuid.
    async fn copy(&mut self, name: &str) {
        let copy = format!("{name}-copy-{}", self.next);
        self.next += 1;
        let folder = FOLDERS[self.random.random_range(0..FOLDERS.len())];
        let second = self.random.random_bool(0.5);
        let power = ["on", "off"][self.random.random_range(0..2)];
        let uuid = self.vms[name].uuid.clone();
        let vm = Vm { uuid, folder: folder.into(), power: power.into(), ..Vm::named(&copy) };
        self.copies.push((name.to_owned(), second, path_of(&vm)));
        self.vcenter(second).add_vms("DC0", [vm]).await;
    }

    async fn leave_and_come_back(&mut self, name: &str) {
        let stage = &self.environment.stage;
        stage.nodes.set_ready(name, true).await;
        let is_ready = |node: &KubeNode| {
            let mut all = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
            all.any(|c| c.type_ == "Ready" && c.status == "True")
        };
        stage.until("the node is Ready", name, is_ready).await;
        self.vcenter_of(name).destroy_vm(&path_of(&self.vms[name])).await;
        let absent = self.random.random_range(0..600);
        tokio::time::sleep(Duration::from_millis(absent)).await;
        if self.random.random_bool(0.3) {
            self.ccm = None;
            self.start();
        }
        self.vcenter_of(name).add_vms("DC0", [self.vms[name].clone()]).await;
    }

    /// Changes the physical server or the VM with its name.
    async fn touch_metal(&mut self) {
        let (double, exists) = self.double.clone();
        let nodes = &self.environment.stage.nodes;
        let vcenter = self.vcenter(false);
        match self.random.random_range(0..4) {
            0 => nodes.set_ready(&double.name, true).await,
            1 => nodes.silence(&double.name).await,
            2 if exists => {
                vcenter.patch_vm(&path_of(&double), json!({"power": "off"})).await;
                nodes.set_ready(&double.name, false).await;
            }
            _ => {
                nodes.set_ready(&double.name, false).await;
                if exists {
                    vcenter.destroy_vm(&path_of(&double)).await;
                } else {
                    vcenter.add_vms("DC0", [double]).await;
                }
                self.double.1 = !exists;
            }
        }
    }

    async fn restart_api_server(&self) {
        self.environment.stage.plane.restart_api_server().await;
        eventually("the API server answers", 60, async || {
            let all = self.environment.stage.api().list(&kube::api::ListParams::default()).await;
            all.map(drop).map_err(|e| e.to_string())
        })
        .await;
    }
}
