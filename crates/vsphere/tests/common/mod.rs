//! Helpers for the tests of this crate.
#![allow(dead_code, reason = "each test binary uses its part")]

pub(crate) mod web;

use std::sync::Arc;
use std::time::Duration;

use testkit::{Permission, Vcenter, VcenterUser, eventually};
use vsphere::inventory::{Event, Events, Inventory, Selection, Vm, Watch};
use vsphere::{CallCounter, Client, ClientBuilder, Credentials, Limits, Trust};

/// The supported releases, as version settings of the simulator.
pub(crate) const RELEASES: [&str; 4] = ["6.7.3", "7.0.3", "8.0.3", "9.0.0"];

/// Runs `test` on each of [`RELEASES`]. The output of a failed test names the release.
#[allow(clippy::print_stdout, reason = "shown only when the test fails")]
pub(crate) async fn on_every_release(test: impl AsyncFn(&'static str)) {
    for version in RELEASES {
        println!("vSphere {version}");
        test(version).await;
    }
}

/// Whether a release has `/api`.
pub(crate) fn has_api(version: &str) -> bool {
    version != "6.7.3"
}

/// Limits for a vCenter on this host: short pauses, and timeouts that a busy host does not exceed.
pub(crate) fn quick() -> Limits {
    Limits {
        connect: Duration::from_secs(30),
        call: Duration::from_mins(1),
        idle: Duration::from_mins(1),
        wait: Duration::from_secs(1),
        pause: Duration::from_millis(20),
        longest_pause: Duration::from_millis(200),
        login_backoff: Duration::from_millis(20),
        ..Limits::default()
    }
}

/// A client builder for the simulator's first user.
pub(crate) fn client_of(vcenter: &Vcenter) -> ClientBuilder {
    client_at(vcenter, &vcenter.address().to_string())
}

/// A client builder with another address for the simulator.
pub(crate) fn client_at(vcenter: &Vcenter, address: &str) -> ClientBuilder {
    Client::builder(address)
        .trust(Trust::CaBundle(vcenter.ca_pem()))
        .credentials(Credentials::new(vcenter.user(), vcenter.password()))
        .user_agent("vsphere-test/1")
        .limits(quick())
}

pub(crate) async fn connected(vcenter: &Vcenter) -> Client {
    client_of(vcenter).connect().await.expect("the simulator accepts the login")
}

/// A connected client with tight limits. On a busy host, connecting can take several attempts.
pub(crate) async fn connected_within(vcenter: &Vcenter, limits: &Limits) -> Client {
    let connect = async || {
        let connected = client_of(vcenter).limits(limits.clone()).connect().await;
        connected.map_err(|error| error.error_chain())
    };
    eventually("the simulator accepts the login", 60, connect).await
}

pub(crate) async fn counted(vcenter: &Vcenter) -> (Client, Arc<CallCounter>) {
    let counter = Arc::new(CallCounter::default());
    let client = client_of(vcenter)
        .observer(counter.clone())
        .connect()
        .await
        .expect("the simulator accepts the login");
    (client, counter)
}

/// Selects all property groups of all types.
pub(crate) fn everything() -> Selection {
    use vsphere::inventory::{Cluster, Datastore, Host, Network, ResourcePool};
    Selection::new()
        .vms(&[
            Vm::IDENTITY,
            Vm::CONFIG,
            Vm::EXTRA_CONFIG,
            Vm::GUEST,
            Vm::RUNTIME,
            Vm::PLACEMENT,
            Vm::HARDWARE,
            Vm::SNAPSHOTS,
        ])
        .hosts(&[Host::IDENTITY, Host::STATE, Host::STORAGE])
        .clusters(&[Cluster::IDENTITY, Cluster::MEMBERS])
        .resource_pools(&[ResourcePool::IDENTITY])
        .datacenter_folders()
        .datastores(&[Datastore::IDENTITY, Datastore::STATE, Datastore::HOSTS])
        .networks(&[Network::IDENTITY])
}

/// A watch with a complete snapshot, and its later events.
pub(crate) async fn watching(client: &Client, selection: Selection) -> (Watch, Inventory, Events) {
    let watch = client.watch(selection);
    let inventory = watch.inventory().clone();
    let mut events = inventory.events();
    inventory.ready().await.expect("a first view");
    let first = next(&mut events).await;
    assert!(matches!(first, Event::Snapshot), "the first event is {first:?}");
    (watch, inventory, events)
}

/// The next event, within a timeout.
pub(crate) async fn next(events: &mut Events) -> Event {
    let event = tokio::time::timeout(Duration::from_mins(4), events.next()).await;
    event.expect("an event within minutes").expect("the watch continues")
}

/// Reads events until one matches.
pub(crate) async fn until(events: &mut Events, mut fits: impl FnMut(&Event) -> bool) -> Event {
    loop {
        let event = next(events).await;
        if fits(&event) {
            return event;
        }
    }
}

/// Waits until `check` holds.
pub(crate) async fn holds(what: &str, mut check: impl FnMut() -> bool) {
    eventually(what, 60, async || if check() { Ok(()) } else { Err("not yet") }).await;
}

/// A user whose account is locked after three wrong passwords.
pub(crate) fn lockable() -> (VcenterUser, testkit::Inventory) {
    let user = VcenterUser { lock_after: 3, ..VcenterUser::new("vdo@vsphere.local", "Right-1") };
    let mut inventory = testkit::Inventory::with_vms(2);
    inventory.users.push(user.clone());
    inventory.permissions.push(Permission::new(&user.name, "Admin", "/"));
    (user, inventory)
}

/// The number of consecutive rejected logins of the user.
pub(crate) async fn failed_logins(vcenter: &Vcenter, user: &str) -> u64 {
    let users = vcenter.users().await;
    let found = users.as_array().unwrap().iter().find(|u| u["name"] == user).unwrap();
    found["failed"].as_u64().unwrap()
}
