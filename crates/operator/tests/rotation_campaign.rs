//! Passwords of two vCenters that change again and again, while nodes die, the other vCenter is cut off,
//! operators are killed, upgrades wait and catalogs expire. From the moment vCenter accepts a password, no
//! driver logs in with another one for longer than thirty seconds, and no account is ever locked.
//!
//! The drivers' pods do not run here. The test plays them, see [`Driver`]: it logs in to the vCenter with what
//! stands in the driver's Secret, as often as a driver does that got no session.
//!
//! A few rotations are tried, or as many as `VDO_SEEDS` says; a failure names its seed, and `VDO_SEED` tries
//! that one.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use api::VsphereCloudConfig;
use common::{NAMESPACE, Stage};
use driver_config::{SecretText, credentials::Credentials};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Node as KubeNode, Secret},
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use testkit::{FaultProxy, Inventory, Node, Process, Vcenter, VcenterUser, Vm};
use tokio::time::Instant;
use vsphere::{Client, Credentials as Login, Trust};

/// From the moment vCenter accepts a password, a driver has so long to use it.
const WITHIN: Duration = Duration::from_secs(30);
/// A driver without a session tries again after this time.
const TRIES_AGAIN: Duration = Duration::from_secs(2);
/// So many wrong passwords in a row lock an account: those of two drivers within [`WITHIN`].
const LOCKED_AFTER: u32 = 30;
/// The longest campaign.
const MOST: u64 = 200;

const CPI: &str = "vsphere-cloud-controller-manager";
const CHANGED: &str = "vdo.vmware.com/credentials-changed";

/// A stream of numbers that follows from a seed (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound
    }

    fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }
}

fn seeds() -> Vec<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match (number("VDO_SEED"), number("VDO_SEEDS")) {
        (Some(seed), _) => vec![seed],
        (None, Some(count)) => (1..=count.min(MOST)).collect(),
        (None, None) => (1..=8).collect(),
    }
}

/// What goes on while a password changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rotation {
    /// The account at the second vCenter, not at the first.
    second: bool,
    /// A Node is there whose VM is not.
    dead_node: bool,
    /// The other vCenter is cut off.
    other_is_cut: bool,
    /// The operator is killed so many milliseconds after the admin wrote the Secret.
    killed_after: Option<u64>,
    /// The window for a new release is shut, else the release waits for an approval.
    window: bool,
    /// A catalog comes that expires at once.
    catalog: bool,
    /// Milliseconds from the change in vCenter to the change of the Secret.
    pause: u64,
}

impl Rotation {
    fn of(seed: u64) -> Self {
        let mut numbers = Numbers(seed);
        Self {
            second: numbers.one_in(3),
            dead_node: numbers.one_in(2),
            other_is_cut: numbers.one_in(3),
            killed_after: numbers.one_in(4).then(|| numbers.below(1_500)),
            window: numbers.one_in(2),
            catalog: numbers.one_in(5),
            pause: numbers.below(800),
        }
    }
}

#[test]
fn the_sample_has_every_trouble() {
    let sample: Vec<Rotation> = (1..=8).map(Rotation::of).collect();
    let some = |is: fn(&Rotation) -> bool| sample.iter().any(is);
    assert!(some(|r| r.second) && some(|r| !r.second), "{sample:?}");
    assert!(some(|r| r.dead_node) && some(|r| r.other_is_cut), "{sample:?}");
    assert!(some(|r| r.killed_after.is_some()) && some(|r| r.catalog), "{sample:?}");
    assert!(some(|r| r.window) && some(|r| !r.window), "{sample:?}");
}

#[tokio::test]
async fn no_driver_logs_in_with_an_old_password_for_long_and_no_account_is_locked() {
    let mut campaign = Campaign::start().await;
    let mut slowest = Duration::ZERO;
    let began = Instant::now();
    for seed in seeds() {
        let took = campaign.rotate(seed, Rotation::of(seed)).await;
        slowest = slowest.max(took);
    }
    campaign.rotate_while_paused().await;
    campaign.nobody_is_locked("in the end").await;
    println!(
        "{} rotations in {:.0?}: the slowest reached both drivers after {slowest:.1?}, {} logins of drivers, {} \
         of them refused",
        seeds().len(),
        began.elapsed(),
        campaign.logins,
        campaign.refused,
    );
    assert_eq!(campaign.stage.refusals(), Vec::<String>::new());
    assert_eq!(campaign.stage.forbidden_deletions(), Vec::<String>::new());
}

/// User and password by host.
type Logins = BTreeMap<String, (String, SecretText)>;

/// A driver as this test plays it. The storage driver reads its Secret whenever it logs in. Upstream's cloud
/// controller keeps what it read when its pods started, which the pod template tells.
struct Driver {
    namespace: &'static str,
    secret: &'static str,
    /// The logins it started with, by host, and since when, of one that reads them once.
    started: Option<(Option<String>, Logins)>,
}

/// One of the two vCenters, as an admin knows it.
struct Known {
    /// The name of its VsphereCloudConfig.
    name: &'static str,
    /// Its host, as the drivers know it.
    host: &'static str,
    /// The Secret with its credentials.
    credentials: &'static str,
    password: String,
}

struct Campaign {
    stage: Stage,
    other: Vcenter,
    /// Before the first vCenter and before the other.
    proxies: [FaultProxy; 2],
    known: [Known; 2],
    drivers: [Driver; 2],
    operator: Process,
    serial: u64,
    logins: usize,
    refused: usize,
}

impl Campaign {
    /// Both drivers run, an upgrade waits, and both vCenters lock accounts.
    async fn start() -> Self {
        let mut stage = Stage::of(2, false).await;
        stage.lease = 4;
        let mut inventory = Inventory::small()
            .vms([Vm::numbered("far", 1)])
            .category("k8s-region", &[("region-1", &["/DC0"])])
            .category("k8s-zone", &[("zone-a", &["/DC0/host/cluster-a"])]);
        for datastore in inventory.datacenters.iter_mut().flat_map(|dc| &mut dc.datastores) {
            datastore.url = format!("ds:///vmfs/volumes/other-{}/", datastore.name);
        }
        let other = Vcenter::start(inventory).await;
        let proxies = [
            FaultProxy::before(stage.vcenter.address()).await,
            FaultProxy::before(other.address()).await,
        ];
        stage.address = Some(proxies[0].address());
        let known = |name, host, credentials, vcenter: &Vcenter| Known {
            name,
            host,
            credentials,
            password: vcenter.password().to_owned(),
        };
        let known = [
            known("vc", "127.0.0.1", "vc-credentials", &stage.vcenter),
            known("other", "localhost", "other-credentials", &other),
        ];
        stage.use_catalog().await;
        let operator = stage.operator_with(ARGUMENTS);
        let mut campaign = Self {
            stage,
            other,
            proxies,
            known,
            drivers: [
                Driver {
                    namespace: "kube-system",
                    secret: plan::names::CPI_SECRET,
                    started: Some((None, BTreeMap::new())),
                },
                Driver {
                    namespace: "vmware-system-csi",
                    secret: plan::names::CSI_SECRET,
                    started: None,
                },
            ],
            operator,
            serial: 1_000,
            logins: 0,
            refused: 0,
        };
        campaign.install().await;
        // The cloud controller's pods started with what is there now.
        campaign.login_of(0, 0).await;
        campaign
    }

    async fn install(&mut self) {
        let stage = &self.stage;
        self.write_secret(1, self.other.password()).await;
        let port = self.proxies[1].address().port();
        let config = json!({
            "metadata": {"name": self.known[1].name},
            "spec": {
                "vcIp": format!("{}:{port}", self.known[1].host), "insecure": false,
                "thumbprint": self.other.thumbprint_sha1(),
                "credentials": self.known[1].credentials, "datacenters": ["DC0"],
            },
        });
        let config: VsphereCloudConfig = serde_json::from_value(config).unwrap();
        let vcenters = Api::<VsphereCloudConfig>::namespaced(stage.client(), NAMESPACE);
        vcenters.create(&PostParams::default(), &config).await.unwrap();
        stage
            .configure(json!({
                "cloudProvider": {
                    "vsphereCloudConfigs": ["vc", "other"],
                    "topology": {"zone": "k8s-zone", "region": "k8s-region"},
                },
                "storageProvider": {"vsphereCloudConfigs": ["vc", "other"], "version": "3.6.3"},
            }))
            .await;
        stage.ready(&self.operator, 120).await;
        // From now on an upgrade waits.
        self.hold_the_upgrade(false).await;
    }

    /// A newer release of the storage driver is there, and waits: for a window, or for an approval.
    async fn hold_the_upgrade(&self, window: bool) {
        let later = Timestamp::now() + SignedDuration::from_hours(6);
        let window =
            window.then(|| json!({"start": later.strftime("%H:00").to_string(), "duration": "1h"}));
        let policy = if window.is_some() { "Stable" } else { "Manual" };
        let upgrades = json!({"policy": policy, "window": window});
        let change = json!({"upgrades": upgrades, "storageProvider": {"version": null}});
        self.stage.change(json!({"spec": change})).await;
    }

    /// A catalog that is good for a second.
    async fn expiring_catalog(&mut self) {
        self.serial += 1;
        let expires = Timestamp::now() + SignedDuration::from_secs(1);
        let serial = self.serial;
        let text = common::catalog().lines().fold(String::new(), |text, line| {
            text + &match line.split_once(':') {
                Some(("serial", _)) => format!("serial: {serial}\n"),
                Some(("expires", _)) => format!("expires: {expires}\n"),
                _ => format!("{line}\n"),
            }
        });
        self.stage.write_catalog(&text).await;
    }

    /// A Node whose VM is gone. Each is another one: parts of a Node stay for a while.
    async fn dead_node(&self, seed: u64, there: bool) {
        let nodes = Api::<KubeNode>::all(self.stage.client());
        let all = nodes.list(&ListParams::default()).await.unwrap().items;
        let names = all.into_iter().filter_map(|node| node.metadata.name);
        let dead: Vec<String> = names.filter(|name| name.starts_with("dead-")).collect();
        if there && dead.is_empty() {
            let uuid = format!("42100000-dead-dead-dead-{seed:012}");
            let node = Node::named(&format!("dead-{seed}")).system_uuid(&uuid);
            let node = node.provider_id(&format!("vsphere://{uuid}"));
            self.stage.nodes.as_ref().unwrap().add(node).await;
        }
        for name in dead.iter().filter(|_| !there) {
            nodes.delete(name, &DeleteParams::default()).await.unwrap();
        }
    }

    /// Writes the credentials of a vCenter, as an admin does.
    async fn write_secret(&self, number: usize, password: &str) {
        let name = self.known[number].credentials;
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/basic-auth",
            "metadata": {"name": name, "namespace": "kube-system"},
            "stringData": {"username": self.vcenter(number).user(), "password": password},
        });
        let secrets = Api::<Secret>::namespaced(self.stage.client(), "kube-system");
        let apply = PatchParams::apply("test").force();
        secrets.patch(name, &apply, &Patch::Apply(secret)).await.unwrap();
    }

    fn vcenter(&self, number: usize) -> &Vcenter {
        if number == 0 { &self.stage.vcenter } else { &self.other }
    }

    async fn nobody_is_locked(&self, when: &str) {
        for number in 0..2 {
            let users = self.vcenter(number).users().await;
            let locked = |user: &serde_json::Value| user["locked"] == true;
            assert!(!users.as_array().unwrap().iter().any(locked), "{when}: {users}");
        }
    }

    /// Changes the password of one account. Returns after which time both drivers used the new one.
    async fn rotate(&mut self, seed: u64, rotation: Rotation) -> Duration {
        let what = format!("seed {seed} {rotation:?}");
        let number = usize::from(rotation.second);
        self.nobody_is_locked(&what).await;
        self.hold_the_upgrade(rotation.window).await;
        self.dead_node(seed, rotation.dead_node).await;
        if rotation.catalog {
            self.expiring_catalog().await;
        }
        let others = &self.proxies[1 - number];
        if rotation.other_is_cut {
            others.cut();
        } else {
            others.heal();
        }
        self.proxies[number].heal();

        let old = self.known[number].password.clone();
        let new = format!("p#{seed}\"\\ä;{}", Timestamp::now().as_nanosecond());
        self.known[number].password.clone_from(&new);
        let mut user = VcenterUser::new(self.vcenter(number).user(), &new);
        user.lock_after = LOCKED_AFTER;
        self.vcenter(number).set_user(&user).await;
        tokio::time::sleep(Duration::from_millis(rotation.pause)).await;
        self.write_secret(number, &new).await;
        let since = Instant::now();
        if let Some(pause) = rotation.killed_after {
            tokio::time::sleep(Duration::from_millis(pause)).await;
            self.operator.kill();
            self.operator = self.stage.operator_with(ARGUMENTS);
        }
        self.drivers_log_in(number, since, &what).await;
        let took = since.elapsed();
        for driver in &self.drivers {
            let secrets = Api::<Secret>::namespaced(self.stage.client(), driver.namespace);
            let data = secrets.get(driver.secret).await.unwrap().data.unwrap();
            let has = |text: &str| data.values().any(|value| contains(&value.0, text.as_bytes()));
            // In the storage driver's file some characters are escaped.
            let part = |text: &str| text.rsplit(';').next().unwrap_or_default().to_owned();
            assert!(has(&part(&new)), "{what}: {}", driver.secret);
            // Before their first change both vCenters have the same one.
            let shared = self.known[1 - number].password == old;
            assert!(shared || !has(&part(&old)), "{what}: {} has the old one too", driver.secret);
        }
        took
    }

    /// A paused VDO hands nothing on, and reports what waits.
    async fn rotate_while_paused(&mut self) {
        for proxy in &self.proxies {
            proxy.heal();
        }
        self.stage.change(json!({"spec": {"paused": true}})).await;
        self.stage.finding("VDO-1906", 30).await;
        let new = format!("paused-{}", Timestamp::now().as_nanosecond());
        let mut user = VcenterUser::new(self.vcenter(0).user(), &new);
        user.lock_after = LOCKED_AFTER;
        self.vcenter(0).set_user(&user).await;
        self.write_secret(0, &new).await;
        let waits = self.stage.finding_about("VDO-1316", 30, &["vc", "paused"]).await;
        let text = serde_json::to_string(&waits).unwrap();
        assert!(!text.contains(&new), "a finding shows no password: {text}");
        for driver in 0..2 {
            let (_, password) = self.login_of(driver, 0).await;
            assert_eq!(password.expose(), self.known[0].password, "VDO changes nothing");
        }
        self.known[0].password = new;
        self.stage.change(json!({"spec": {"paused": null}})).await;
        self.drivers_log_in(0, Instant::now(), "after the pause").await;
    }

    /// Each driver has lost its session at a vCenter and logs in until it has one.
    async fn drivers_log_in(&mut self, number: usize, since: Instant, what: &str) {
        let mut without: BTreeSet<usize> = (0..self.drivers.len()).collect();
        while !without.is_empty() {
            let mut turn = Vec::new();
            for driver in &without {
                let (user, password) = self.login_of(*driver, number).await;
                let accepted = self.log_in(number, &user, &password).await;
                let late = since.elapsed() > WITHIN;
                assert!(
                    accepted || !late,
                    "{what}: {} logs in with an old password after {:.1?}\n{}",
                    self.drivers[*driver].secret,
                    since.elapsed(),
                    self.operator.tail()
                );
                turn.push((*driver, accepted));
            }
            for (driver, accepted) in turn {
                self.logins += 1;
                if accepted {
                    without.remove(&driver);
                } else {
                    self.refused += 1;
                }
            }
            if self.operator.ended().is_some() {
                // As a kubelet does.
                self.operator = self.stage.operator_with(ARGUMENTS);
            }
            if !without.is_empty() {
                tokio::time::sleep(TRIES_AGAIN).await;
            }
        }
    }

    /// The login a driver uses at a vCenter now.
    async fn login_of(&mut self, driver: usize, number: usize) -> (String, SecretText) {
        let client = self.stage.client();
        let Driver { namespace, secret, .. } = self.drivers[driver];
        let secret = Api::<Secret>::namespaced(client.clone(), namespace).get(secret).await;
        let secret = secret.unwrap();
        let data = secret.data.unwrap_or_default().into_iter();
        let read = Credentials::read(&data.map(|(key, value)| (key, value.0)).collect()).unwrap();
        let logins = read
            .all
            .into_iter()
            .map(|login| (login.server.unwrap_or_default(), (login.username, login.password)));
        let logins: Logins = logins.collect();
        let host = self.known[number].host;
        let Some((since, started)) = &mut self.drivers[driver].started else {
            return logins[host].clone();
        };
        let set = Api::<DaemonSet>::namespaced(client, namespace).get(CPI).await.unwrap();
        let template = set.spec.unwrap().template.metadata.unwrap_or_default();
        let restarted = template.annotations.unwrap_or_default().remove(CHANGED);
        if started.is_empty() || *since != restarted {
            (*since, *started) = (restarted, logins);
        }
        started[host].clone()
    }

    /// Whether a vCenter accepts a login.
    async fn log_in(&self, number: usize, user: &str, password: &SecretText) -> bool {
        let vcenter = self.vcenter(number);
        let login = Login::new(user, password.expose().to_owned());
        let builder = Client::builder(vcenter.address().to_string());
        let client = builder.trust(Trust::Insecure).credentials(login).connect().await;
        match client {
            Ok(client) => {
                client.shut_down().await;
                true
            }
            Err(vsphere::Error::LoginRefused { .. }) => false,
            Err(error) => panic!("the simulator is there: {error}"),
        }
    }
}

/// Whether some bytes contain others.
fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// What operators are started with.
const ARGUMENTS: &[&str] = &["--grace=5"];
