//! Random interleavings of changes, broken connections, session expiry and restarts, on every
//! release. After each run, the view equals the inventory, a mirror built from events equals the
//! view, and no existing object was reported as gone.
//!
//! `VDO_SEEDS` sets the number of runs (default 50). `VDO_SEED` repeats a single run.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{RELEASES, client_at};
use futures::StreamExt as _;
use rand::prelude::*;
use rand::rngs::StdRng;
use serde_json::{Value as Json, json};
use testkit::{
    Fault, FaultProxy, Inventory, Permission, Role, Vcenter, VcenterUser, Vm as SimulatedVm,
    eventually,
};
use vsphere::inventory::{
    Absence, Cluster, Datastore, Event, Host, HostConnection, Inventory as View, Network, Object,
    PowerState, ResourcePool, Selection, Tree, Vm,
};
use vsphere::{Credentials, MoRef};

const USER: &str = "vdo@vsphere.local";

/// The compared state: name, BIOS uuid, power and host of a VM; connection and maintenance of a
/// host; accessibility of a datastore. By reference, or by name where the simulator reports no
/// reference.
type ComparedState = BTreeMap<String, Vec<String>>;

/// A mirror that follows events and reads the view again after a resync.
type Mirror = Arc<Mutex<BTreeMap<MoRef, Object>>>;

#[tokio::test(flavor = "multi_thread")]
async fn the_view_equals_the_inventory_after_every_interleaving() {
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
    assert!(resyncs > 0, "no interleaving interrupted the watch: the campaign tests nothing");
}

struct Campaign {
    seed: u64,
    random: StdRng,
    vcenter: Vcenter,
    proxy: FaultProxy,
    /// References of destroyed VMs, recorded before the deletion.
    destroyed: Arc<Mutex<BTreeSet<String>>>,
    /// Paths hidden from the user.
    hidden: BTreeSet<String>,
    added: usize,
}

impl Campaign {
    /// Runs one interleaving. Returns how often the watch had to resync.
    async fn run(seed: u64) -> usize {
        let role = Role::new("reader", &["System.Anonymous", "System.View", "System.Read"]);
        let inventory =
            Inventory::with_vms(8).user(VcenterUser::new(USER, "Secret-1"), &role, &["/"]);
        let release = RELEASES[usize::try_from(seed % 4).unwrap()];
        let vcenter = Vcenter::start(inventory.version(release)).await;
        let proxy = FaultProxy::before(vcenter.address()).await;
        let client = client_at(&vcenter, &proxy.address().to_string())
            .credentials(Credentials::new(USER, "Secret-1"))
            .connect()
            .await
            .unwrap();
        let selection = Selection::new()
            .vms(&[Vm::IDENTITY, Vm::CONFIG, Vm::GUEST, Vm::RUNTIME])
            .hosts(&[Host::IDENTITY, Host::STATE])
            .clusters(&[Cluster::IDENTITY])
            .resource_pools(&[ResourcePool::IDENTITY])
            .datastores(&[Datastore::IDENTITY, Datastore::STATE])
            .networks(&[Network::IDENTITY]);
        let watch = client.watch(selection);
        let inventory = watch.inventory().clone();
        let mut events = inventory.events();
        let destroyed = Arc::new(Mutex::new(BTreeSet::new()));
        let known = Arc::clone(&destroyed);
        let mirror = Mirror::default();
        let (view, shown) = (inventory.clone(), Arc::clone(&mirror));
        let mut reader = tokio::task::JoinSet::new();
        reader.spawn(async move {
            let mut resyncs = 0;
            while let Some(event) = events.next().await {
                resyncs += usize::from(matches!(event, Event::Resynced));
                if let Event::Left(departure) = &event
                    && let Some(gone) = departure.gone()
                {
                    let id = gone.reference().id.to_string();
                    let is_destroyed = known.lock().unwrap().contains(&id);
                    assert!(is_destroyed, "seed {seed}: {id} was reported gone but exists");
                }
                reflect(&mut shown.lock().unwrap(), &view, event);
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
        campaign.compare(&inventory, &mirror).await;
        watch.stop().await;
        client.shut_down().await;
        reader.join_next().await.unwrap().expect("the reader reports no error")
    }

    async fn step(&mut self) {
        let paths: Vec<(String, String)> = self.vms().await;
        let (path, id) = paths.choose(&mut self.random).cloned().unwrap_or_default();
        match self.random.random_range(0..23) {
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
                // Rejected logins are final. Another test covers them.
                self.vcenter.fault(fault.times(1)).await;
            }
            19 => {
                let host = ["cluster-a/esx-a1", "cluster-a/esx-a2", "cluster-b/esx-b1"]
                    .choose(&mut self.random)
                    .unwrap();
                let change = [
                    json!({"maintenance": true}),
                    json!({"maintenance": false}),
                    json!({"connection": "notResponding"}),
                    json!({"connection": "connected"}),
                ];
                let change = change.choose(&mut self.random).cloned().unwrap();
                self.vcenter.patch_host(&format!("/DC0/host/{host}"), change).await;
            }
            20 => {
                let accessible = self.random.random::<bool>();
                let change = json!({ "accessible": accessible });
                self.vcenter.patch_datastore("/DC0/datastore/shared", change).await;
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

    /// Paths and references of all VMs.
    async fn vms(&self) -> Vec<(String, String)> {
        let truth = self.vcenter.truth().await;
        let vms = truth["datacenters"][0]["vms"].as_array().cloned().unwrap_or_default();
        let text = |value: &Json| value.as_str().unwrap_or_default().to_owned();
        let id = |moref: &Json| text(moref).rsplit(':').next().unwrap_or_default().to_owned();
        vms.iter().map(|vm| (format!("/DC0/vm/{}", text(&vm["name"])), id(&vm["moref"]))).collect()
    }

    /// Waits until the view equals the inventory that the user can see, and the mirror equals the
    /// view.
    async fn compare(&self, inventory: &View, mirror: &Mirror) {
        let truth = self.vcenter.truth().await;
        let (expected, hidden) = self.expected(&truth["datacenters"][0]);
        eventually(&format!("seed {}: the view equals the inventory", self.seed), 60, async || {
            let view = inventory.view();
            let seen = seen(&view);
            if seen != expected {
                return Err(format!("seen {seen:#?}\nexpected {expected:#?}"));
            }
            let destroyed = self.destroyed.lock().unwrap();
            for departure in view.departures() {
                let id = departure.object.reference().id.to_string();
                let right = match &departure.absence {
                    Absence::Gone(_) => destroyed.contains(&id),
                    // The watch finds out later about VMs that were deleted while hidden.
                    Absence::Invisible { .. } => hidden.contains(&id) || destroyed.contains(&id),
                    Absence::Elsewhere | Absence::Unreachable => false,
                };
                if !right {
                    return Err(format!("{departure:?}"));
                }
            }
            let mirror = mirror.lock().unwrap();
            let whole = read(&view);
            let differs =
                |(reference, object): &(&MoRef, &Object)| whole.get(reference) != Some(object);
            match mirror.iter().find(differs) {
                Some(wrong) => Err(format!("the mirror has {wrong:?}")),
                None if mirror.len() < whole.len() => Err("the mirror lacks objects".to_owned()),
                None => Ok(()),
            }
        })
        .await;
    }

    /// The visible VMs and the hidden VMs.
    fn expected(&self, datacenter: &Json) -> (ComparedState, BTreeSet<String>) {
        let text = |value: &Json| value.as_str().unwrap_or_default().to_owned();
        let list = |value: &Json| value.as_array().cloned().unwrap_or_default();
        let (mut expected, mut hidden) = (ComparedState::new(), BTreeSet::new());
        for vm in list(&datacenter["vms"]) {
            let id = text(&vm["moref"]).rsplit(':').next().unwrap_or_default().to_owned();
            if self.hidden.contains(&format!("/DC0/vm/{}", text(&vm["name"]))) {
                hidden.insert(id);
            } else {
                let fields = ["name", "uuid", "power", "host"];
                expected.insert(id, fields.iter().map(|field| text(&vm[*field])).collect());
            }
        }
        for cluster in list(&datacenter["clusters"]) {
            for host in list(&cluster["hosts"]) {
                let connection = match text(&host["connection"]).as_str() {
                    "" => "connected".to_owned(),
                    other => other.to_owned(),
                };
                let maintenance = host["maintenance"].as_bool().unwrap_or_default();
                expected.insert(text(&host["name"]), vec![connection, maintenance.to_string()]);
            }
        }
        for datastore in list(&datacenter["datastores"]) {
            let accessible = datastore["accessible"].as_bool().unwrap_or(true);
            expected.insert(text(&datastore["name"]), vec![accessible.to_string()]);
        }
        (expected, hidden)
    }
}

/// Applies an event to the mirror.
fn reflect(mirror: &mut BTreeMap<MoRef, Object>, inventory: &View, event: Event) {
    match event {
        Event::Snapshot | Event::Resynced => *mirror = read(&inventory.view()),
        Event::Appeared(object) | Event::Changed { after: object, .. } => {
            mirror.insert(object.reference().clone(), object);
        }
        Event::Left(departure) => {
            mirror.remove(departure.object.reference());
        }
        Event::Unreachable(_) => {}
    }
}

fn read(view: &Tree) -> BTreeMap<MoRef, Object> {
    view.objects().map(|object| (object.reference().clone(), object.clone())).collect()
}

fn seen(view: &Tree) -> ComparedState {
    let mut seen = ComparedState::new();
    for vm in view.vms() {
        let power = match vm.power.as_ref().map(PowerState::as_str) {
            Some("poweredOn") => "on",
            Some("poweredOff") => "off",
            _ => "?",
        };
        let host = vm.host.as_ref().and_then(|host| Some(view.get(host)?.name()?.to_owned()));
        let uuid = vm.bios_uuid.map(|uuid| uuid.to_string()).unwrap_or_default();
        let name = vm.name.as_deref().unwrap_or_default().to_owned();
        let fields = vec![name, uuid, power.to_owned(), host.unwrap_or_default()];
        seen.insert(vm.reference.id.to_string(), fields);
    }
    for host in view.hosts() {
        let name = host.name.as_deref().unwrap_or_default().to_owned();
        let connection = host.connection.as_ref().map_or("?", HostConnection::as_str).to_owned();
        let maintenance = host.in_maintenance.map_or("?".to_owned(), |is| is.to_string());
        seen.insert(name, vec![connection, maintenance]);
    }
    for datastore in view.datastores() {
        let name = datastore.name.as_deref().unwrap_or_default().to_owned();
        let accessible = datastore.accessible.map_or("?".to_owned(), |is| is.to_string());
        seen.insert(name, vec![accessible]);
    }
    seen
}
