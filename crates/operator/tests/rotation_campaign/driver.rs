//! The simulated drivers of the campaign: which of their pods log in, and with which credentials.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use driver_config::{SecretText, credentials::Credentials};
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::{
    Api, Client, ResourceExt as _,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event, watcher},
    },
};
use tokio::{task::JoinSet, time::Instant};

/// The prefix of the names of nodes whose kubelet is down.
pub(crate) const DEAD: &str = "dead-";
/// How long a driver without a session waits after its first refused login. The time doubles with each one, as that
/// of the CSI sidecars does.
const FIRST_RETRY: Duration = Duration::from_secs(2);

/// User and password by host.
type Logins = BTreeMap<String, (String, SecretText)>;

/// When the pods of a driver read the Secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reads {
    /// At the start of the pod, as upstream's cloud controller.
    AtStart,
    /// From a file, at every login, as the storage driver. A kubelet renews the file when it syncs the pod: when the pod
    /// changes, or else so late that this test does not wait for it.
    File,
}

/// A simulated driver. One of its pods leads, and only this one logs in. If its pod ends, another one leads: the test
/// selects the pod with the oldest credentials.
pub(crate) struct Driver {
    pub(crate) namespace: &'static str,
    pub(crate) secret: &'static str,
    /// The nodes of which each must have a pod.
    nodes: &'static [&'static str],
    observed: Arc<Mutex<Observed>>,
    leader: Option<String>,
    _watch: JoinSet<()>,
}

/// The Secret and the pods of a driver, in the order of the API server's resource versions.
#[derive(Default)]
struct Observed {
    /// The logins by the version of the Secret.
    logins: BTreeMap<u64, Logins>,
    /// By uid.
    pods: BTreeMap<String, DriverPod>,
}

#[derive(Clone, Debug)]
pub(crate) struct DriverPod {
    pub(crate) node: String,
    /// Whether it is Ready and nobody deleted it.
    pub(crate) runs: bool,
    /// The state at which it read the Secret, and the version at that time.
    read: (Option<String>, u64),
}

impl Driver {
    pub(crate) fn watch(
        client: &Client,
        (namespace, secret): (&'static str, &'static str),
        selector: &str,
        reads: Reads,
        nodes: &'static [&'static str],
    ) -> Self {
        let observed = Arc::<Mutex<Observed>>::default();
        let mut watch = JoinSet::new();
        let secrets = Api::<Secret>::namespaced(client.clone(), namespace);
        let one = watcher::Config::default().fields(&format!("metadata.name={secret}"));
        let noted = observed.clone();
        watch.spawn(async move {
            let mut events = std::pin::pin!(watcher(secrets, one).default_backoff());
            // After an error, the watcher lists again.
            loop {
                if let Ok(Some(Event::Apply(secret) | Event::InitApply(secret))) =
                    events.try_next().await
                {
                    lock(&noted).note_secret(secret);
                }
            }
        });
        let pods = Api::<Pod>::namespaced(client.clone(), namespace);
        let own = watcher::Config::default().labels(selector);
        let noted = observed.clone();
        watch.spawn(async move {
            let mut events = std::pin::pin!(watcher(pods, own).default_backoff());
            let mut listed = BTreeSet::new();
            loop {
                // After an error, the watcher lists again.
                let Ok(Some(event)) = events.try_next().await else { continue };
                match event {
                    Event::Init => listed.clear(),
                    Event::InitApply(pod) => {
                        listed.insert(pod.uid().unwrap());
                        lock(&noted).note_pod(pod, reads);
                    }
                    // Pods that ended between two watches have no event. The others keep what they read.
                    Event::InitDone => lock(&noted).pods.retain(|uid, _| listed.contains(uid)),
                    Event::Apply(pod) => lock(&noted).note_pod(pod, reads),
                    Event::Delete(pod) => {
                        lock(&noted).pods.remove(&pod.uid().unwrap());
                    }
                }
            }
        });
        Self { namespace, secret, nodes, observed, leader: None, _watch: watch }
    }

    /// The pods on the nodes of which the name begins with this prefix.
    pub(crate) fn pods_on(&self, prefix: &str) -> Vec<DriverPod> {
        let observed = lock(&self.observed);
        observed.pods.values().filter(|pod| pod.node.starts_with(prefix)).cloned().collect()
    }

    /// The pods that can log in, with their logins.
    fn live_pods(&self) -> BTreeMap<String, (DriverPod, Logins)> {
        let observed = lock(&self.observed);
        let live = observed.pods.iter().filter(|(_, pod)| pod.runs && !pod.node.starts_with(DEAD));
        let with_logins = live.filter_map(|(uid, pod)| {
            let (_, logins) = observed.logins.range(..=pod.read.1).next_back()?;
            Some((uid.clone(), (pod.clone(), logins.clone())))
        });
        with_logins.collect()
    }

    /// The pod that leads, and its login for a host. `None` while no pod runs.
    pub(crate) fn leader(&mut self, host: &str) -> Option<(String, (String, SecretText))> {
        let live = self.live_pods();
        if self.leader.as_ref().is_none_or(|leader| !live.contains_key(leader)) {
            let oldest = live.iter().min_by_key(|(_, (pod, _))| pod.read.1);
            self.leader = oldest.map(|(uid, _)| uid.clone());
        }
        let leader = self.leader.clone()?;
        let login = live[&leader].1[host].clone();
        Some((leader, login))
    }

    /// Whether each node has a pod, and no pod that can log in has another password.
    pub(crate) fn all_have(&self, host: &str, password: &str) -> bool {
        let live = self.live_pods();
        let nodes: BTreeSet<&str> = live.values().map(|(pod, _)| pod.node.as_str()).collect();
        self.nodes.iter().all(|node| nodes.contains(node))
            && !live.is_empty()
            && live.values().all(|(_, logins)| logins[host].1.expose() == password)
    }

    /// The pods, without their passwords.
    pub(crate) fn describe(&self) -> String {
        let observed = lock(&self.observed);
        let secrets: Vec<&u64> = observed.logins.keys().collect();
        format!("{} {secrets:?} {:#?}", self.secret, observed.pods)
    }
}

impl Observed {
    fn note_secret(&mut self, secret: Secret) {
        let version = version(&secret);
        let data = secret.data.unwrap_or_default().into_iter();
        let read = Credentials::read(&data.map(|(key, value)| (key, value.0)).collect()).unwrap();
        let logins = read
            .all
            .into_iter()
            .map(|login| (login.server.unwrap_or_default(), (login.username, login.password)));
        self.logins.insert(version, logins.collect());
    }

    fn note_pod(&mut self, pod: Pod, reads: Reads) {
        let version = version(&pod);
        let state = match reads {
            Reads::AtStart => None,
            Reads::File => pod.annotations().get(plan::names::FILES_RENEWED).cloned(),
        };
        let uid = pod.uid().unwrap();
        let deleted = pod.metadata.deletion_timestamp.is_some();
        let conditions = pod.status.and_then(|status| status.conditions).unwrap_or_default();
        let runs = conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True");
        let node = pod.spec.and_then(|spec| spec.node_name).unwrap_or_default();
        let before =
            self.pods.remove(&uid).map(|pod| pod.read).filter(|(known, _)| *known == state);
        let read = before.unwrap_or((state, version));
        self.pods.insert(uid, DriverPod { node, runs: runs && !deleted, read });
    }
}

fn lock(observed: &Mutex<Observed>) -> MutexGuard<'_, Observed> {
    observed.lock().unwrap()
}

/// The version of an object. Versions of one API server grow with every write, whatever the kind.
fn version(object: &impl kube::Resource) -> u64 {
    object.meta().resource_version.as_deref().unwrap().parse().unwrap()
}

/// The attempts of a driver to get a session.
#[derive(Default)]
pub(crate) struct Session {
    /// The uid of the pod that logged in last.
    pod: String,
    pub(crate) accepted: bool,
    refused: u32,
    last: Option<Instant>,
}

impl Session {
    /// A pod that begins to lead logs in at once.
    pub(crate) fn is_due(&self, leader: &str) -> bool {
        let pause = FIRST_RETRY * 2_u32.pow(self.refused.saturating_sub(1));
        let retries = !self.accepted && self.last.is_none_or(|last| last.elapsed() >= pause);
        self.pod != leader || retries
    }

    pub(crate) fn note(&mut self, leader: String, accepted: bool) {
        let refused = if self.pod == leader { self.refused } else { 0 };
        *self = Self {
            pod: leader,
            accepted,
            refused: refused + u32::from(!accepted),
            last: Some(Instant::now()),
        };
    }
}
