//! Random interleavings of change, cut, expiry and restart. After each, the view is the inventory,
//! and nothing was ever called gone that was not.
//!
//! `VDO_SEEDS` says how many (50 unless said otherwise); `VDO_SEED` runs a single one again.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::client_at;
use futures::StreamExt as _;
use rand::prelude::*;
use rand::rngs::StdRng;
use serde_json::{Value as Json, json};
use testkit::{
    Fault, FaultProxy, Inventory, Permission, Role, Vcenter, VcenterUser, Vm as SimulatedVm,
    eventually,
};
use vsphere::Credentials;
use vsphere::inventory::{Absence, Event, Host, Selection, Vm};

const USER: &str = "vdo@vsphere.local";

/// What is compared of a machine: name, BIOS uuid, power, host.
type Seen = (String, String, String, String);

#[tokio::test(flavor = "multi_thread")]
async fn the_view_is_the_inventory_after_every_interleaving() {
    let number =
        |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seeds: Vec<u64> = match number("VDO_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("VDO_SEEDS").unwrap_or(50)).collect(),
    };
    let mut resyncs = 0;
    let mut runs = futures::stream::iter(seeds).map(Campaign::run).buffer_unordered(4);
    while let Some(resynced) = runs.next().await {
        resyncs += resynced;
    }
    assert!(
        resyncs > 0,
        "no interleaving ever lost the watch: the campaign does not do what it is for"
    );
}

struct Campaign {
    seed: u64,
    random: StdRng,
    vcenter: Vcenter,
    proxy: FaultProxy,
    /// References that were destroyed; written before the deed.
    destroyed: Arc<Mutex<BTreeSet<String>>>,
    /// Paths hidden from the user.
    hidden: BTreeSet<String>,
    added: usize,
}

impl Campaign {
    /// Runs one interleaving; returns how often the watch had to start anew.
    async fn run(seed: u64) -> usize {
        let role = Role::new("reader", &["System.Anonymous", "System.View", "System.Read"]);
        let inventory =
            Inventory::with_vms(8).user(VcenterUser::new(USER, "Secret-1"), &role, &["/"]);
        let vcenter = Vcenter::start(inventory).await;
        let proxy = FaultProxy::before(vcenter.address()).await;
        let client = client_at(&vcenter, &proxy.address().to_string())
            .credentials(Credentials::new(USER, "Secret-1"))
            .connect()
            .await
            .unwrap();
        let selection = Selection::new()
            .vms(&[Vm::IDENTITY, Vm::CONFIG, Vm::GUEST, Vm::RUNTIME])
            .hosts(&[Host::IDENTITY]);
        let watch = client.watch(selection);
        let inventory = watch.inventory().clone();
        let mut events = inventory.events();
        let destroyed = Arc::new(Mutex::new(BTreeSet::new()));
        let known = Arc::clone(&destroyed);
        let mut reader = tokio::task::JoinSet::new();
        reader.spawn(async move {
            let mut resyncs = 0;
            while let Some(event) = events.next().await {
                match event {
                    Event::Resynced => resyncs += 1,
                    Event::Left(departure) => {
                        if let Some(gone) = departure.gone() {
                            let id = gone.reference().id.to_string();
                            assert!(
                                known.lock().unwrap().contains(&id),
                                "seed {seed}: {id} is called gone and is not"
                            );
                        }
                    }
                    _ => {}
                }
            }
            resyncs
        });
        let random = StdRng::seed_from_u64(seed);
        let mut campaign =
            Self { seed, random, vcenter, proxy, destroyed, hidden: BTreeSet::new(), added: 0 };
        for _ in 0..campaign.random.random_range(10..25) {
            campaign.step().await;
        }
        campaign.proxy.heal();
        campaign.vcenter.clear_faults().await;
        campaign.compare(&inventory).await;
        watch.stop().await;
        client.shut_down().await;
        reader.join_next().await.unwrap().expect("the reader found nothing wrong")
    }

    async fn step(&mut self) {
        let paths: Vec<(String, String)> = self.machines().await;
        let (path, id) = paths.choose(&mut self.random).cloned().unwrap_or_default();
        match self.random.random_range(0..20) {
            0 => self.patch(&path, json!({"power": "off"})).await,
            1 => self.patch(&path, json!({"power": "on"})).await,
            2 => {
                let name = format!("renamed-{}", self.random.random::<u16>());
                if !self.hidden.contains(&path) {
                    self.patch(&path, json!({ "name": name })).await;
                }
            }
            3 => {
                let uuid = format!("42000000-0000-0000-0000-{:012x}", self.random.random::<u32>());
                self.patch(&path, json!({ "uuid": uuid })).await;
            }
            4 => {
                let host = ["esx-a1", "esx-a2", "esx-b1", "esx-b3"]
                    .choose(&mut self.random)
                    .copied()
                    .unwrap();
                self.patch(&path, json!({ "host": host })).await;
            }
            5 | 6 => {
                self.added += 1;
                self.vcenter
                    .add_vms("DC0", [SimulatedVm::named(&format!("added-{}", self.added))])
                    .await;
            }
            7 | 8 if !path.is_empty() => {
                self.destroyed.lock().unwrap().insert(id);
                self.hidden.remove(&path);
                self.vcenter.destroy_vm(&path).await;
            }
            9 if !path.is_empty() && !self.hidden.contains(&path) => {
                self.destroyed.lock().unwrap().insert(id);
                self.vcenter.reregister_vm(&path).await;
            }
            10 if !path.is_empty() => {
                self.vcenter.permit(&Permission::new(USER, "NoAccess", &path)).await;
                self.hidden.insert(path);
            }
            11 => {
                if let Some(path) = self.hidden.pop_first() {
                    self.vcenter.forbid(&path, USER).await;
                }
            }
            12 => self.proxy.cut(),
            13 => self.proxy.reset(),
            14 => {
                let bytes = self.random.random_range(1..4_000);
                self.proxy.half_an_answer(bytes);
            }
            15 => self.proxy.heal(),
            16 => self.vcenter.expire_sessions(USER).await,
            17 => {
                let down = self.random.random_range(0..60);
                self.vcenter.restart(Duration::from_millis(down)).await;
            }
            18 => {
                let method = ["WaitForUpdatesEx", "CreateFilter", "RetrievePropertiesEx", "Login"];
                let method = method.choose(&mut self.random).copied().unwrap();
                let fault = Fault::on(method);
                let fault = match self.random.random_range(0..5) {
                    0 => fault.dropped(),
                    1 => fault.truncated(),
                    2 => fault.status(503),
                    3 if method == "WaitForUpdatesEx" => fault.fails("InvalidCollectorVersion"),
                    3 => fault.delayed(Duration::from_millis(20)),
                    _ => fault.fails("NotAuthenticated"),
                };
                // A login that is refused is refused for good: that is another test's matter.
                self.vcenter.fault(fault.times(1)).await;
            }
            _ => {
                let pause = self.random.random_range(0..80);
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
        }
    }

    async fn patch(&self, path: &str, change: Json) {
        if !path.is_empty() {
            self.vcenter.patch_vm(path, change).await;
        }
    }

    /// Paths and references of all machines there are.
    async fn machines(&self) -> Vec<(String, String)> {
        let truth = self.vcenter.truth().await;
        let vms = truth["datacenters"][0]["vms"].as_array().cloned().unwrap_or_default();
        let text = |value: &Json| value.as_str().unwrap_or_default().to_owned();
        let id = |moref: &Json| text(moref).rsplit(':').next().unwrap_or_default().to_owned();
        vms.iter().map(|vm| (format!("/DC0/vm/{}", text(&vm["name"])), id(&vm["moref"]))).collect()
    }

    /// Waits until the view is the truth, as far as this user may see it.
    async fn compare(&self, inventory: &vsphere::inventory::Inventory) {
        let truth = self.vcenter.truth().await;
        let vms = truth["datacenters"][0]["vms"].as_array().cloned().unwrap_or_default();
        let text = |value: &Json| value.as_str().unwrap_or_default().to_owned();
        let mut expected: BTreeMap<String, Seen> = BTreeMap::new();
        let mut hidden = BTreeSet::new();
        for vm in &vms {
            let id = text(&vm["moref"]).rsplit(':').next().unwrap_or_default().to_owned();
            if self.hidden.contains(&format!("/DC0/vm/{}", text(&vm["name"]))) {
                hidden.insert(id);
            } else {
                expected.insert(
                    id,
                    (text(&vm["name"]), text(&vm["uuid"]), text(&vm["power"]), text(&vm["host"])),
                );
            }
        }
        eventually(&format!("seed {}: the view is the inventory", self.seed), 30, async || {
            let view = inventory.view();
            let mut seen: BTreeMap<String, Seen> = BTreeMap::new();
            for vm in view.vms() {
                let power = match vm.power.as_ref().map(vsphere::inventory::PowerState::as_str) {
                    Some("poweredOn") => "on",
                    Some("poweredOff") => "off",
                    _ => "?",
                };
                let host =
                    vm.host.as_ref().and_then(|host| Some(view.get(host)?.name()?.to_owned()));
                let uuid = vm.bios_uuid.map(|uuid| uuid.to_string()).unwrap_or_default();
                let name = vm.name.as_deref().unwrap_or_default().to_owned();
                seen.insert(
                    vm.reference.id.to_string(),
                    (name, uuid, power.to_owned(), host.unwrap_or_default()),
                );
            }
            if seen != expected {
                return Err(format!("seen {seen:#?}\nexpected {expected:#?}"));
            }
            let destroyed = self.destroyed.lock().unwrap();
            for departure in view.departures() {
                let id = departure.object.reference().id.to_string();
                let right = match &departure.absence {
                    Absence::Gone(_) => destroyed.contains(&id),
                    // What is destroyed while it is hidden is found out later.
                    Absence::Invisible { .. } => hidden.contains(&id) || destroyed.contains(&id),
                    Absence::Elsewhere | Absence::Unreachable => false,
                };
                if !right {
                    return Err(format!("{departure:?}"));
                }
            }
            Ok(())
        })
        .await;
    }
}
