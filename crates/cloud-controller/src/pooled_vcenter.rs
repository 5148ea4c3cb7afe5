//! One vCenter of the pool: its connection, inventory watch and queries, independent of the others.

mod tags;

use std::{
    convert::Infallible,
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
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use vsphere::{
    Client, Credentials, Limits, LoginPace, Trust,
    inventory::{Event, Inventory, Object, Status, Tree, View, Watch},
};

use crate::{
    catalogue::{Catalogue, Scope, selection},
    configuration::{CaBundle, TrustSource, Vcenter},
    metrics::Metrics,
    model::VmRef,
    secrets::{self, CredentialState},
    zones::Categories,
};
use tags::TagCache;

/// Pause after a failed login; it grows up to [`MAX_RETRY`].
const FIRST_RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_mins(1);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Signal {
    /// This VM changed, or an object above VMs.
    VirtualMachine(VmRef),
    /// Any VM can have changed: sync all nodes.
    Resync,
}

#[derive(Clone)]
pub struct SharedSettings {
    pub categories: Categories,
    pub tag_period: Duration,
    pub scope: Scope,
    /// Whether changes of tags above VMs (hosts, clusters, folders) affect labels of initialised nodes.
    pub refresh_labels: bool,
    /// Whether nodes have labels with their host and cluster.
    pub host_labels: bool,
    pub limits: Limits,
    /// Shared by all connections, whatever settings they have.
    pub logins: LoginPace,
    pub user_agent: String,
    pub metrics: Metrics,
    pub signals: mpsc::UnboundedSender<Signal>,
    /// The cluster that holds the Secrets.
    pub kubernetes: kube::Client,
}

pub struct PooledVcenter {
    pub settings: Vcenter,
    shared: SharedSettings,
    connection: RwLock<Option<Connection>>,
    problem: Mutex<Option<String>>,
    /// Whether it connected or failed at least once.
    started: AtomicBool,
    live: watch::Sender<bool>,
    tags: TagCache,
    all_vms: tokio::sync::Mutex<Option<(Instant, Weak<Tree>)>>,
}

#[derive(Clone)]
struct Connection {
    client: Client,
    /// The vCenter's own uuid.
    uuid: Arc<str>,
    inventory: Inventory,
}

impl PooledVcenter {
    /// Connects in [`PooledVcenter::run`].
    pub fn new(settings: Vcenter, shared: SharedSettings) -> Arc<Self> {
        Arc::new(Self {
            settings,
            shared,
            connection: RwLock::default(),
            problem: Mutex::new(Some("not connected yet".into())),
            started: AtomicBool::new(false),
            live: watch::Sender::new(false),
            tags: TagCache::default(),
            all_vms: tokio::sync::Mutex::default(),
        })
    }

    /// The name in the configuration.
    pub fn name(&self) -> &Arc<str> {
        &self.settings.name
    }

    pub fn has_settings(&self, settings: &Vcenter, shared: &SharedSettings) -> bool {
        self.settings == *settings && self.shared.categories == shared.categories
    }

    /// Why the inventory is not current; `None` while the watch is live.
    pub fn problem(&self) -> Option<String> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether it neither connected nor failed yet.
    pub fn is_starting(&self) -> bool {
        !self.started.load(Ordering::Relaxed)
    }

    /// Whether the inventory watch is live.
    pub fn liveness(&self) -> watch::Receiver<bool> {
        self.live.subscribe()
    }

    /// Reads the VMs as last seen; `None` before the first inventory.
    pub fn with_catalogue<T>(&self, read: impl FnOnce(&Catalogue<'_>) -> T) -> Option<T> {
        let Connection { inventory, uuid, .. } = self.connection()?;
        if matches!(inventory.status(), Status::Starting) {
            return None;
        }
        let view: View<'_> = inventory.view();
        let (vcenter, scope) = (&self.settings.name, &self.shared.scope);
        Some(read(&Catalogue { vcenter, uuid: &uuid, tree: &view, scope }))
    }

    /// The vCenter's own uuid; `None` before the first connection.
    pub fn uuid(&self) -> Option<Arc<str>> {
        Some(self.connection()?.uuid)
    }

    /// `None` before the first connection.
    pub fn client(&self) -> Option<Client> {
        self.connection().map(|connection| connection.client)
    }

    /// Number of open sessions: one for the inventory, one for tags.
    pub fn sessions(&self) -> usize {
        self.connection().map_or(0, |connection| connection.client.open_sessions())
    }

    /// All VMs that the user can see, in every datacenter, queried at `since` or later. Concurrent
    /// callers share one answer.
    pub async fn all_vms(&self, since: Instant) -> Result<Arc<Tree>, String> {
        let client = self.client().ok_or("the controller never connected to it")?;
        let mut last = self.all_vms.lock().await;
        if let Some((at, tree)) = &*last
            && *at >= since
            && let Some(tree) = tree.upgrade()
        {
            return Ok(tree);
        }
        let asked = Instant::now();
        let tree = Arc::new(client.find_vms().await.map_err(|error| error.error_chain())?);
        // A weak reference: freed when no caller uses it.
        *last = Some((asked, Arc::downgrade(&tree)));
        Ok(tree)
    }

    fn connection(&self) -> Option<Connection> {
        self.connection.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn notify_resync(&self) {
        self.signal(Signal::Resync);
    }

    fn signal(&self, signal: Signal) {
        // The receiver is gone only when the process ends.
        let _ = self.shared.signals.send(signal);
    }

    fn set_problem(&self, problem: Option<String>) {
        let mut known = self.problem.lock().unwrap_or_else(PoisonError::into_inner);
        match &problem {
            None if known.is_some() => {
                tracing::info!(vcenter = &**self.name(), "the inventory watch is live");
            }
            Some(text) if known.as_ref() != Some(text) => {
                tracing::warn!(
                    vcenter = &**self.name(),
                    problem = text,
                    "the vCenter is unavailable"
                );
            }
            _ => {}
        }
        let live = problem.is_none();
        *known = problem;
        drop(known);
        let first = !self.started.swap(true, Ordering::Relaxed);
        self.shared.metrics.vcenters.set_live(self.name(), live);
        self.live.send_replace(live);
        if first {
            self.signal(Signal::Resync);
        }
    }

    /// Connects and watches the inventory until `stop`, then logs out.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut background = JoinSet::new();
        let (known, mut credentials) = watch::channel(CredentialState::default());
        background.spawn(secrets::watch_credentials(
            self.settings.clone(),
            self.shared.kubernetes.clone(),
            known,
        ));
        let connecting = self.connect(&mut credentials);
        let Some(client) = stop.run_until_cancelled(connecting).await else { return };
        let with_tree = !self.shared.categories.is_empty()
            || !self.shared.scope.clusters.is_empty()
            || self.shared.host_labels;
        let watch = client.watch(selection(&self.settings.datacenters, with_tree));
        let inventory = watch.inventory().clone();
        let about = client.about().ok();
        let uuid = about.and_then(|about| about.instance_uuid).unwrap_or_default().into();
        let connection = Connection { client: client.clone(), uuid, inventory };
        *self.connection.write().unwrap_or_else(PoisonError::into_inner) = Some(connection);
        if !self.shared.categories.is_empty() {
            background.spawn(self.clone().refresh_tags(client.clone()));
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.follow(&watch) => {}
            never = self.keep_logged_in(&client, &mut credentials) => match never {},
        }
        background.abort_all();
        watch.stop().await;
        client.shut_down().await;
    }

    /// Retries until connected: rejected credentials at the pace of refused logins.
    async fn connect(&self, credentials: &mut watch::Receiver<CredentialState>) -> Client {
        let (logins, backoff) = (&self.shared.logins, Backoff::new(FIRST_RETRY, MAX_RETRY));
        let mut before: Option<Credentials> = None;
        loop {
            let offered = match credentials.borrow_and_update().clone() {
                CredentialState::Usable(offered) => Some(offered),
                CredentialState::Unusable(why) => {
                    self.set_problem(Some(why));
                    None
                }
                CredentialState::Pending => None,
            };
            let Some(offered) = offered else {
                credentials_changed(credentials).await;
                continue;
            };
            // An earlier connection can have tried the first credentials. Later ones are a change.
            if before.replace(offered.clone()).is_some_and(|before| before != offered) {
                logins.allow(self.name(), &offered);
            }
            if let Some(refusal) = logins.refusal(self.name(), &offered) {
                self.set_problem(Some(LoginPace::error_chain(&refusal)));
            }
            tokio::select! {
                () = credentials_changed(credentials) => continue,
                () = logins.turn(self.name(), &offered) => {}
            }
            let (why, is_unsent) = match self.try_connect(offered).await {
                Ok(client) => return client,
                Err(failure) => failure,
            };
            self.set_problem(Some(why));
            let again = async {
                if is_unsent {
                    std::future::pending::<()>().await;
                }
                sleep(backoff.failed(())).await;
            };
            tokio::select! {
                () = credentials_changed(credentials) => {}
                () = again => {}
            }
        }
    }

    /// The error contains its text and whether the controller sent nothing, because of the credentials.
    async fn try_connect(&self, credentials: Credentials) -> Result<Client, (String, bool)> {
        let trust = match &self.settings.trust {
            TrustSource::System => Trust::System,
            TrustSource::Insecure => Trust::Insecure,
            TrustSource::Thumbprint(thumbprint) => Trust::Thumbprint(thumbprint.clone()),
            TrustSource::CaFile(_, CaBundle::Pem(pem)) => Trust::CaBundle(pem.to_string()),
            TrustSource::CaFile(path, bundle) => {
                let why = match bundle {
                    CaBundle::Unreadable(why) => why,
                    CaBundle::Unread | CaBundle::Pem(_) => "it was not read yet",
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
            .user_agent(self.shared.user_agent.clone())
            .limits(self.shared.limits.clone())
            .observer(self.shared.metrics.observer(self.name()))
            .login_pace(self.shared.logins.clone())
            .connect();
        connecting.await.map_err(|error| (LoginPace::error_chain(&error), error.is_unsent_login()))
    }

    /// Forwards inventory events until the watch ends.
    async fn follow(&self, watch: &Watch) {
        let mut events = watch.inventory().events();
        // The status covers everything before the subscription above.
        self.apply_status(&watch.inventory().status());
        while let Some(event) = events.next().await {
            self.handle_event(event, watch.inventory());
        }
        self.set_problem(Some("the watch ended".into()));
    }

    /// Uses new credentials once vCenter accepts them, and repeats refused logins at their pace.
    async fn keep_logged_in(
        &self,
        client: &Client,
        credentials: &mut watch::Receiver<CredentialState>,
    ) -> Infallible {
        let (logins, backoff) = (&self.shared.logins, Backoff::new(FIRST_RETRY, MAX_RETRY));
        loop {
            let offered = credentials.borrow().usable().cloned();
            let repeating = async {
                match &offered {
                    Some(offered) => logins.repeat(self.name(), offered).await,
                    None => std::future::pending().await,
                }
            };
            let mut is_new = tokio::select! {
                () = self.new_credentials(credentials) => true,
                () = repeating => false,
            };
            loop {
                let offered = credentials.borrow_and_update().usable().cloned();
                let Some(offered) = offered else { break };
                let used = self.use_credentials(client, offered.clone(), is_new).await;
                let Err(error) = used else {
                    backoff.succeeded(&());
                    break;
                };
                if error.is_unsent_login() {
                    break;
                }
                is_new &= !matches!(error, vsphere::Error::LoginRefused { .. });
                let again = async {
                    sleep(backoff.failed(())).await;
                    logins.turn(self.name(), &offered).await;
                };
                tokio::select! {
                    () = self.new_credentials(credentials) => is_new = true,
                    () = again => {}
                }
            }
        }
    }

    /// Waits until the credentials change, and allows a login with them.
    async fn new_credentials(&self, credentials: &mut watch::Receiver<CredentialState>) {
        credentials_changed(credentials).await;
        if let Some(new) = credentials.borrow().usable() {
            self.shared.logins.allow(self.name(), new);
        }
    }

    /// Changes the credentials after vCenter accepted them.
    async fn use_credentials(
        &self,
        client: &Client,
        offered: Credentials,
        is_new: bool,
    ) -> Result<(), vsphere::Error> {
        let vcenter = &**self.name();
        let Err(error) = client.set_credentials(offered).await else {
            if is_new {
                tracing::info!(vcenter, "the new credentials are in use");
            } else {
                tracing::info!(vcenter, "vCenter accepts the login now");
            }
            return Ok(());
        };
        let chain = LoginPace::error_chain(&error);
        if !matches!(error, vsphere::Error::LoginRefused { .. }) {
            tracing::warn!(vcenter, error = chain, "the credentials cannot be verified yet");
        } else if is_new {
            tracing::error!(
                vcenter,
                error = chain,
                "vCenter rejects the new credentials; the old ones stay in use"
            );
        } else {
            tracing::warn!(vcenter, error = chain, "vCenter still refuses the login");
        }
        Err(error)
    }

    fn handle_event(&self, event: Event, inventory: &Inventory) {
        let vm_ref = |object: &Object| VmRef {
            vcenter: self.name().clone(),
            vm: object.reference().clone(),
        };
        match event {
            Event::Snapshot | Event::Resynced => {
                self.apply_status(&inventory.status());
                self.tags.request_refresh();
                self.signal(Signal::Resync);
            }
            Event::Unreachable(_) => {
                self.apply_status(&inventory.status());
                self.signal(Signal::Resync);
            }
            Event::Appeared(object) | Event::Changed { after: object, .. } => {
                // An object above VMs can make a VM visible, so nodes without a VM need the signal too.
                self.signal(Signal::VirtualMachine(vm_ref(&object)));
                if object.as_vm().is_none() {
                    self.tags.request_refresh();
                    if self.shared.refresh_labels || self.shared.host_labels {
                        self.signal(Signal::Resync);
                    }
                }
            }
            Event::Left(departure) => {
                if departure.object.as_vm().is_some() {
                    self.signal(Signal::VirtualMachine(vm_ref(&departure.object)));
                }
            }
        }
    }

    fn apply_status(&self, status: &Status) {
        match status {
            Status::Live => self.set_problem(None),
            Status::Starting => {}
            Status::Unreachable(error) => self.set_problem(Some(LoginPace::error_chain(error))),
            Status::Ended => self.set_problem(Some("the inventory watch ended".into())),
        }
    }
}

/// Waits until the credentials change; forever if the sender is gone.
async fn credentials_changed(credentials: &mut watch::Receiver<CredentialState>) {
    if credentials.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn without_a_sender_credentials_never_change() {
        let (known, mut credentials) = watch::channel(CredentialState::default());
        known.send_replace(CredentialState::Unusable("no such Secret".into()));
        let soon = Duration::from_secs(1);
        assert!(tokio::time::timeout(soon, credentials_changed(&mut credentials)).await.is_ok());
        drop(known);
        assert!(tokio::time::timeout(soon, credentials_changed(&mut credentials)).await.is_err());
    }
}
