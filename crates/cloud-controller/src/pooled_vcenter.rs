//! One vCenter: connected, followed, and asked, without regard to how the others are.

mod tags;

use std::{
    sync::{
        Arc, Mutex, PoisonError, RwLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use runtime::backoff::Backoff;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;
use vsphere::{
    Client, Credentials, Limits, Trust,
    inventory::{Event, Inventory, Object, Status, Tree, View, Watch},
};

use crate::{
    catalogue::{Catalogue, Scope, selection},
    configuration::{Bundle, TrustSource, Vcenter},
    metrics::Metrics,
    model::Place,
    secrets::{self, Known},
    zones::Categories,
};
use tags::TagBoard;

/// A login that failed is tried again after this long, doubling up to [`LONGEST`].
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_mins(1);

/// What is told to the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Something about this machine, or what stands above machines, changed.
    VirtualMachine(Place),
    /// Anything may have changed.
    Anything,
}

/// What all vCenters share.
#[derive(Clone)]
pub struct Common {
    /// What zones are read from.
    pub categories: Categories,
    /// How often tags are read again.
    pub tag_period: Duration,
    /// Which machines count.
    pub scope: Scope,
    /// Whether changes of what stands above machines matter.
    pub refresh_labels: bool,
    /// Timeouts and limits towards vCenter.
    pub limits: Limits,
    /// Who we say we are.
    pub user_agent: String,
    /// What is counted.
    pub metrics: Metrics,
    /// Where signals go.
    pub signals: mpsc::UnboundedSender<Signal>,
    /// The cluster that holds the Secrets.
    pub kubernetes: kube::Client,
}

/// A vCenter that is followed.
pub struct PooledVcenter {
    /// Its configuration.
    pub settings: Vcenter,
    common: Common,
    connected: RwLock<Option<Connected>>,
    trouble: Mutex<Option<String>>,
    /// Whether it was ever followed, or failed to be.
    settled: AtomicBool,
    live: watch::Sender<bool>,
    tags: TagBoard,
    everything: tokio::sync::Mutex<Option<(Instant, Weak<Tree>)>>,
}

#[derive(Clone)]
struct Connected {
    client: Client,
    /// Which vCenter it is.
    uuid: Arc<str>,
    inventory: Inventory,
}

impl PooledVcenter {
    /// A vCenter to be followed with [`PooledVcenter::run`].
    pub fn new(settings: Vcenter, common: Common) -> Arc<Self> {
        Arc::new(Self {
            settings,
            common,
            connected: RwLock::default(),
            trouble: Mutex::new(Some("not connected yet".into())),
            settled: AtomicBool::new(false),
            live: watch::Sender::new(false),
            tags: TagBoard::default(),
            everything: tokio::sync::Mutex::default(),
        })
    }

    /// What it is called.
    pub fn name(&self) -> &Arc<str> {
        &self.settings.name
    }

    /// Whether it was made for these settings.
    pub fn is_as(&self, settings: &Vcenter, common: &Common) -> bool {
        self.settings == *settings && self.common.categories == common.categories
    }

    /// What is wrong with it at present; `None` while its inventory is as vCenter's.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether it is still on its way to be followed for the first time.
    pub fn is_starting(&self) -> bool {
        !self.settled.load(Ordering::Relaxed)
    }

    /// Changes between being followed and not.
    pub fn liveness(&self) -> watch::Receiver<bool> {
        self.live.subscribe()
    }

    /// Looks at its machines as last seen; `None` before the first look.
    pub fn look<T>(&self, at: impl FnOnce(&Catalogue<'_>) -> T) -> Option<T> {
        let Connected { inventory, uuid, .. } = self.connected()?;
        if matches!(inventory.status(), Status::Starting) {
            return None;
        }
        let view: View<'_> = inventory.view();
        let (vcenter, scope) = (&self.settings.name, &self.common.scope);
        Some(at(&Catalogue { vcenter, uuid: &uuid, tree: &view, scope }))
    }

    /// Which vCenter answers: its own uuid. `None` before it was connected.
    pub fn uuid(&self) -> Option<Arc<str>> {
        Some(self.connected()?.uuid)
    }

    /// The connection, once there is one.
    pub fn client(&self) -> Option<Client> {
        self.connected().map(|connected| connected.client)
    }

    /// How many sessions are open in it: one for its inventory, one for its tags.
    pub fn sessions(&self) -> usize {
        self.connected().map_or(0, |connected| connected.client.open_sessions())
    }

    /// All machines this user may see, in every datacenter, asked for at `since` or later. Many who
    /// ask at once share one answer.
    pub async fn everything(&self, since: Instant) -> Result<Arc<Tree>, String> {
        let client = self.client().ok_or("it was never connected")?;
        let mut last = self.everything.lock().await;
        if let Some((at, tree)) = &*last
            && *at >= since
            && let Some(tree) = tree.upgrade()
        {
            return Ok(tree);
        }
        let asked = Instant::now();
        let tree = Arc::new(client.find_vms().await.map_err(|error| error.error_chain())?);
        // Kept only as long as somebody works with it.
        *last = Some((asked, Arc::downgrade(&tree)));
        Ok(tree)
    }

    fn connected(&self) -> Option<Connected> {
        self.connected.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Says that what is known of machines is another from here on.
    pub fn announce(&self) {
        self.tell(Signal::Anything);
    }

    fn tell(&self, signal: Signal) {
        // Nobody listening means that the process ends.
        let _ = self.common.signals.send(signal);
    }

    fn set_trouble(&self, trouble: Option<String>) {
        let mut known = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        match &trouble {
            None if known.is_some() => tracing::info!(vcenter = &**self.name(), "followed"),
            Some(text) if known.as_ref() != Some(text) => {
                tracing::warn!(vcenter = &**self.name(), trouble = text, "not followed");
            }
            _ => {}
        }
        let live = trouble.is_none();
        *known = trouble;
        drop(known);
        let first = !self.settled.swap(true, Ordering::Relaxed);
        self.common.metrics.vcenter(self.name(), live);
        self.live.send_replace(live);
        if first {
            self.tell(Signal::Anything);
        }
    }

    /// Connects and follows until `stop`; then takes leave of vCenter.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut beside = JoinSet::new();
        let (known, mut credentials) = watch::channel(Known::default());
        beside.spawn(secrets::follow(self.settings.clone(), self.common.kubernetes.clone(), known));
        let connecting = self.connect(&mut credentials);
        let Some(client) = stop.run_until_cancelled(connecting).await else { return };
        let with_tree =
            !self.common.categories.is_empty() || !self.common.scope.clusters.is_empty();
        let following = client.watch(selection(&self.settings.datacenters, with_tree));
        let inventory = following.inventory().clone();
        let about = client.about().ok();
        let uuid = about.and_then(|about| about.instance_uuid).unwrap_or_default().into();
        let connected = Connected { client: client.clone(), uuid, inventory };
        *self.connected.write().unwrap_or_else(PoisonError::into_inner) = Some(connected);
        if !self.common.categories.is_empty() {
            beside.spawn(self.clone().follow_tags(client.clone()));
        }
        self.follow(&client, &following, &mut credentials, &stop).await;
        beside.abort_all();
        following.stop().await;
        client.shut_down().await;
    }

    /// Tries until it is connected. Refused credentials are not tried again until they change.
    async fn connect(&self, credentials: &mut watch::Receiver<Known>) -> Client {
        let backoff = Backoff::new(FIRST, LONGEST);
        loop {
            let known = credentials.borrow_and_update().clone();
            let refused = match known {
                Known::Nothing => true,
                Known::Unusable(why) => {
                    self.set_trouble(Some(why));
                    true
                }
                Known::These(these) => match self.try_connect(these).await {
                    Ok(client) => return client,
                    Err((why, refused)) => {
                        self.set_trouble(Some(why));
                        refused
                    }
                },
            };
            let changed = change(credentials);
            if refused {
                changed.await;
            } else {
                tokio::select! {
                    () = changed => {}
                    () = sleep(backoff.failed(())) => {}
                }
            }
        }
    }

    async fn try_connect(&self, credentials: Credentials) -> Result<Client, (String, bool)> {
        let trust = match &self.settings.trust {
            TrustSource::System => Trust::System,
            TrustSource::Insecure => Trust::Insecure,
            TrustSource::Thumbprint(thumbprint) => Trust::Thumbprint(thumbprint.clone()),
            TrustSource::CaFile(_, Bundle::Pem(pem)) => Trust::CaBundle(pem.to_string()),
            TrustSource::CaFile(path, bundle) => {
                let why = match bundle {
                    Bundle::Unreadable(why) => why,
                    Bundle::Unread | Bundle::Pem(_) => "nobody looked yet",
                };
                return Err((
                    format!("the CA file {} cannot be read: {why}", path.display()),
                    false,
                ));
            }
        };
        let connecting = Client::builder(&*self.settings.name)
            .trust(trust)
            .credentials(credentials)
            .user_agent(self.common.user_agent.clone())
            .limits(self.common.limits.clone())
            .observer(self.common.metrics.observer(self.name()))
            .connect();
        connecting.await.map_err(|error| {
            (error.error_chain(), matches!(error, vsphere::Error::LoginRefused { .. }))
        })
    }

    /// Passes on what happens, and new credentials, until `stop`.
    async fn follow(
        &self,
        client: &Client,
        following: &Watch,
        credentials: &mut watch::Receiver<Known>,
        stop: &CancellationToken,
    ) {
        let mut events = following.inventory().events();
        // What happened before the line above is in the status.
        self.note(&following.inventory().status());
        let mut again: Option<Instant> = None;
        let backoff = Backoff::new(FIRST, LONGEST);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                event = events.next() => match event {
                    Some(event) => self.pass_on(event, following.inventory()),
                    None => return self.set_trouble(Some("the watch ended".into())),
                },
                () = change(credentials) => again = Some(Instant::now()),
                () = sleep_until(again.unwrap_or_else(Instant::now)), if again.is_some() => {
                    again = None;
                    let known = credentials.borrow_and_update().clone();
                    if let Known::These(these) = known {
                        again = self.use_credentials(client, these, &backoff).await;
                    }
                }
            }
        }
    }

    /// Changes the credentials after vCenter accepted them; says when to try again if it could not
    /// be asked.
    async fn use_credentials(
        &self,
        client: &Client,
        these: Credentials,
        backoff: &Backoff<()>,
    ) -> Option<Instant> {
        let vcenter = &**self.name();
        match client.set_credentials(these).await {
            Ok(()) => {
                tracing::info!(vcenter, "the new credentials are in use");
                backoff.succeeded(&());
                None
            }
            Err(error) if matches!(error, vsphere::Error::LoginRefused { .. }) => {
                tracing::error!(
                    vcenter,
                    error = error.error_chain(),
                    "the new credentials are refused; the old ones stay in use"
                );
                None
            }
            Err(error) => {
                tracing::warn!(
                    vcenter,
                    error = error.error_chain(),
                    "the new credentials cannot be proven yet"
                );
                Some(Instant::now() + backoff.failed(()))
            }
        }
    }

    fn pass_on(&self, event: Event, inventory: &Inventory) {
        let vm = |object: &Object| Place {
            vcenter: self.name().clone(),
            vm: object.reference().clone(),
        };
        match event {
            Event::Snapshot | Event::Resynced => {
                self.note(&inventory.status());
                self.tags.want_all();
                self.tell(Signal::Anything);
            }
            Event::Unreachable(_) => {
                self.note(&inventory.status());
                self.tell(Signal::Anything);
            }
            Event::Appeared(object) | Event::Changed { after: object, .. } => {
                // What stands above machines matters to nodes whose machine is not in view.
                self.tell(Signal::VirtualMachine(vm(&object)));
                if object.as_vm().is_none() {
                    self.tags.want_all();
                    if self.common.refresh_labels {
                        self.tell(Signal::Anything);
                    }
                }
            }
            Event::Left(departure) => {
                if departure.object.as_vm().is_some() {
                    self.tell(Signal::VirtualMachine(vm(&departure.object)));
                }
            }
        }
    }

    fn note(&self, status: &Status) {
        match status {
            Status::Live => self.set_trouble(None),
            Status::Starting => {}
            Status::Unreachable(error) => self.set_trouble(Some(error.error_chain())),
            Status::Ended => self.set_trouble(Some("it is not followed any more".into())),
        }
    }
}

/// Waits until credentials change; for ever if nobody is left who could tell.
async fn change(credentials: &mut watch::Receiver<Known>) {
    if credentials.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn credentials_that_nobody_tells_of_any_more_do_not_change() {
        let (known, mut credentials) = watch::channel(Known::default());
        known.send_replace(Known::Unusable("no such Secret".into()));
        let soon = Duration::from_secs(1);
        assert!(tokio::time::timeout(soon, change(&mut credentials)).await.is_ok());
        drop(known);
        assert!(tokio::time::timeout(soon, change(&mut credentials)).await.is_err());
    }
}
