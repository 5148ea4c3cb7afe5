//! One vCenter: its connection, inventory watch, volumes and tags, independent of the others.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Duration,
};

use runtime::backoff::Backoff;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use vsphere::{
    BiosUuid, Client, Credentials, LoginPace,
    cns::ContainerCluster,
    inventory::{
        Absence, Cluster, Datastore, Event, Host, Inventory, Lookup, Selection, Status, Vm, Watch,
    },
};

use super::{
    AttachQueue, Policies, SharedSettings, SnapshotQueue, Unavailable, VcenterSnafu, VolumeIndex,
    WritableDatastores,
    tags::{TagTable, Tags},
};
use crate::{configuration::VcenterSettings, metrics::Metrics};

const FIRST_RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_mins(1);

/// Bursts of changes, such as the free space of a datastore during many creations, arrive in few calls.
const GATHER: Duration = Duration::from_millis(100);

/// A configured vCenter. It connects in [`Vcenter::run`].
#[derive(Debug)]
pub struct Vcenter {
    settings: VcenterSettings,
    shared: SharedSettings,
    connection: RwLock<Option<Connection>>,
    problem: Mutex<Option<String>>,
    credentials: watch::Sender<Credentials>,
}

/// A connected vCenter. Clones share everything.
#[derive(Clone, Debug)]
pub struct Connection {
    pub name: Arc<str>,
    pub client: Client,
    /// The user as vCenter spells it.
    pub user: Arc<str>,
    pub volumes: Arc<VolumeIndex>,
    pub policies: Arc<Policies>,
    pub attachments: Arc<AttachQueue>,
    pub snapshots: Arc<SnapshotQueue>,
    pub writable_datastores: Arc<WritableDatastores>,
    inventory: Inventory,
    tags: Arc<Tags>,
    shared: SharedSettings,
}

impl Connection {
    pub fn cluster_id(&self) -> &str {
        &self.shared.cluster_id
    }

    pub fn distribution(&self) -> &str {
        &self.shared.distribution
    }

    /// This cluster as an owner of volumes.
    pub fn container_cluster(&self) -> ContainerCluster {
        let distribution = self.distribution();
        ContainerCluster {
            kind: "KUBERNETES".to_owned(),
            id: self.cluster_id().to_owned(),
            user: self.user.to_string(),
            flavor: Some("VANILLA".to_owned()),
            distribution: (!distribution.is_empty()).then(|| distribution.to_owned()),
            delete: None,
        }
    }

    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// The tags as last read.
    pub fn tags(&self) -> Arc<TagTable> {
        self.tags.table()
    }

    /// Fails if tags are needed and were never read.
    pub fn require_tags(&self) -> Result<Arc<TagTable>, Unavailable> {
        match self.tags.problem() {
            Some(why) => VcenterSnafu { vcenter: self.name.clone(), why }.fail(),
            None => Ok(self.tags.table()),
        }
    }

    pub fn find_vm(&self, uuid: BiosUuid) -> Lookup {
        self.inventory.view().vm_by_bios_uuid(uuid)
    }

    /// The absences of all VMs with this uuid that are no longer in the inventory.
    pub fn absences(&self, uuid: BiosUuid) -> Vec<Absence> {
        let view = self.inventory.view();
        view.departures_by_bios_uuid(uuid).map(|departure| departure.absence.clone()).collect()
    }

    /// Fails if the inventory is outdated.
    pub fn require_live(&self) -> Result<(), Unavailable> {
        let why = match self.inventory.status() {
            Status::Live => return Ok(()),
            Status::Starting => "its inventory is not read yet".to_owned(),
            Status::Unreachable(error) => LoginPace::error_chain(&error),
            Status::Ended => "the inventory watch ended".to_owned(),
        };
        VcenterSnafu { vcenter: self.name.clone(), why }.fail()
    }
}

impl Vcenter {
    pub fn new(settings: VcenterSettings, shared: SharedSettings) -> Arc<Self> {
        let credentials = settings.credentials();
        Arc::new(Self {
            settings,
            shared,
            connection: RwLock::default(),
            problem: Mutex::new(Some("not connected yet".into())),
            credentials: watch::Sender::new(credentials),
        })
    }

    /// Whether these settings differ at most in the credentials.
    pub(super) fn can_become(&self, new: &VcenterSettings, shared: &SharedSettings) -> bool {
        let VcenterSettings { name, user: _, password: _, trust, datacenters } = &self.settings;
        *name == new.name
            && *trust == new.trust
            && *datacenters == new.datacenters
            && self.shared.with_tags == shared.with_tags
    }

    pub(super) fn offer_credentials(&self, new: &VcenterSettings) {
        let offered = new.credentials();
        self.credentials.send_if_modified(|known| {
            let changed = *known != offered;
            *known = offered;
            changed
        });
    }

    /// Whether these settings have other credentials.
    pub(super) fn has_other_credentials(&self, new: &VcenterSettings) -> bool {
        *self.credentials.borrow() != new.credentials()
    }

    /// `Err` before the first complete inventory.
    pub fn connection(&self) -> Result<Connection, Unavailable> {
        let connection = self.connection.read().unwrap_or_else(PoisonError::into_inner).clone();
        connection.ok_or_else(|| Unavailable::Vcenter {
            vcenter: self.settings.name.clone(),
            why: self.problem().unwrap_or_else(|| "it is connecting".into()),
        })
    }

    /// Why the vCenter cannot be used now.
    pub fn problem(&self) -> Option<String> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_problem(&self, problem: Option<String>) {
        let vcenter = &*self.settings.name;
        let mut known = self.problem.lock().unwrap_or_else(PoisonError::into_inner);
        match &problem {
            None if known.is_some() => tracing::info!(vcenter, "the vCenter is live"),
            Some(problem) if known.as_ref() != Some(problem) => {
                tracing::warn!(vcenter, problem, "the vCenter is unavailable");
            }
            _ => {}
        }
        self.shared.metrics.vcenters.set_live(vcenter, problem.is_none());
        *known = problem;
    }

    /// Connects and watches until `stop`, then logs out.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut credentials = self.credentials.subscribe();
        let connecting = self.connect(&mut credentials);
        let Some(client) = stop.run_until_cancelled(connecting).await else { return };
        let watch = client.watch(selection(&self.settings.datacenters));
        let following = async {
            tokio::select! {
                () = self.follow(&client, &watch) => {}
                never = self.keep_logged_in(&client, &mut credentials) => match never {},
            }
        };
        stop.run_until_cancelled(Box::pin(following)).await;
        *self.connection.write().unwrap_or_else(PoisonError::into_inner) = None;
        watch.stop().await;
        client.shut_down().await;
    }

    /// Retries until connected: rejected credentials at the pace of refused logins.
    async fn connect(&self, credentials: &mut watch::Receiver<Credentials>) -> Client {
        let (logins, backoff) = (&self.shared.logins, Backoff::new(FIRST_RETRY, MAX_RETRY));
        loop {
            let offered = credentials.borrow_and_update().clone();
            if let Some(refusal) = logins.refusal(&self.settings.name, &offered) {
                self.set_problem(Some(LoginPace::error_chain(&refusal)));
            }
            tokio::select! {
                () = self.new_credentials(credentials) => continue,
                () = logins.turn(&self.settings.name, &offered) => {}
            }
            let connecting = Client::builder(&*self.settings.name)
                .trust(self.settings.trust.clone())
                .credentials(offered.clone())
                .user_agent(self.shared.user_agent.clone())
                .limits(self.shared.intervals.limits.clone())
                .observer(self.shared.metrics.observer())
                .login_pace(logins.clone())
                .connect();
            let error = match connecting.await {
                Ok(client) => return client,
                Err(error) => error,
            };
            self.set_problem(Some(LoginPace::error_chain(&error)));
            let again = async {
                if error.is_unsent_login() {
                    std::future::pending::<()>().await;
                }
                sleep(backoff.failed(())).await;
            };
            tokio::select! {
                () = self.new_credentials(credentials) => {}
                () = again => {}
            }
        }
    }

    /// Uses new credentials once vCenter accepts them, and repeats refused logins at their pace.
    async fn keep_logged_in(
        &self,
        client: &Client,
        credentials: &mut watch::Receiver<Credentials>,
    ) -> Infallible {
        let (logins, backoff) = (&self.shared.logins, Backoff::new(FIRST_RETRY, MAX_RETRY));
        loop {
            let offered = credentials.borrow().clone();
            let mut is_new = tokio::select! {
                () = self.new_credentials(credentials) => true,
                () = logins.repeat(&self.settings.name, &offered) => false,
            };
            loop {
                let offered = credentials.borrow_and_update().clone();
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
                    logins.turn(&self.settings.name, &offered).await;
                };
                tokio::select! {
                    () = self.new_credentials(credentials) => is_new = true,
                    () = again => {}
                }
            }
        }
    }

    /// Waits until the credentials change, and allows a login with them.
    async fn new_credentials(&self, credentials: &mut watch::Receiver<Credentials>) {
        credentials_changed(credentials).await;
        self.shared.logins.allow(&self.settings.name, &credentials.borrow());
    }

    /// Publishes the connection once inventory, volumes and tags are known, and keeps them current.
    async fn follow(&self, client: &Client, watch: &Watch) {
        let mut events = watch.inventory().events();
        while let Err(error) = watch.inventory().ready().await {
            self.set_problem(Some(LoginPace::error_chain(&error)));
            // The watch keeps trying; the next event says that something changed.
            if events.next().await.is_none() {
                return;
            }
        }
        let connection = self.open(client, watch.inventory()).await;
        let mut background = JoinSet::new();
        if self.shared.with_tags {
            let reading = Arc::clone(&connection.tags);
            let intervals = self.shared.intervals.clone();
            background.spawn(reading.refresh(client.clone(), watch.inventory().clone(), intervals));
            connection.tags.first_read().await;
        }
        *self.connection.write().unwrap_or_else(PoisonError::into_inner) = Some(connection.clone());
        self.set_problem(None);
        while let Some(event) = events.next().await {
            self.handle(event, &connection, &mut background);
        }
        self.set_problem(Some("the inventory watch ended".into()));
    }

    async fn open(&self, client: &Client, inventory: &Inventory) -> Connection {
        let backoff = Backoff::new(FIRST_RETRY, MAX_RETRY);
        let volumes = Arc::new(VolumeIndex::default());
        let user = loop {
            let read = async {
                volumes.refresh(client, &self.shared.cluster_id).await?;
                client.user().await
            };
            match read.await {
                Ok(user) => break user,
                Err(error) => {
                    self.set_problem(Some(LoginPace::error_chain(&error)));
                    sleep(backoff.failed(())).await;
                }
            }
        };
        Connection {
            name: self.settings.name.clone(),
            client: client.clone(),
            user,
            volumes,
            policies: Arc::new(Policies::new(client.clone(), self.shared.intervals.clone())),
            attachments: Arc::new(AttachQueue::new(client.clone(), self.shared.metrics.clone())),
            snapshots: Arc::new(SnapshotQueue::new(client.clone())),
            writable_datastores: Arc::new(WritableDatastores::new(
                client.clone(),
                self.shared.intervals.clone(),
            )),
            inventory: inventory.clone(),
            tags: Arc::default(),
            shared: self.shared.clone(),
        }
    }

    fn handle(&self, event: Event, connection: &Connection, background: &mut JoinSet<()>) {
        while background.try_join_next().is_some() {}
        match event {
            Event::Snapshot | Event::Resynced => {
                self.set_problem(None);
                connection.tags.request_refresh();
                // Changes can be missing: volumes too may have come and gone.
                let connection = connection.clone();
                background.spawn(async move {
                    let cluster = connection.cluster_id().to_owned();
                    let read = connection.volumes.refresh(&connection.client, &cluster).await;
                    if let Err(error) = read {
                        let (vcenter, error) = (&*connection.name, error.error_chain());
                        tracing::warn!(vcenter, error, "cannot read the volumes again");
                    }
                });
            }
            Event::Unreachable(error) => self.set_problem(Some(LoginPace::error_chain(&error))),
            Event::Appeared(object) | Event::Changed { after: object, .. } => {
                if object.as_vm().is_none() && object.as_datastore().is_none() {
                    connection.tags.request_refresh();
                }
            }
            Event::Left(_) => {}
        }
    }

    /// Changes the credentials after vCenter accepted them.
    async fn use_credentials(
        &self,
        client: &Client,
        offered: Credentials,
        is_new: bool,
    ) -> Result<(), vsphere::Error> {
        let vcenter = &*self.settings.name;
        let began = Instant::now();
        let Err(error) = client.set_credentials(offered).await else {
            let took = began.elapsed();
            if is_new {
                tracing::info!(vcenter, ?took, "the new credentials are in use");
            } else {
                tracing::info!(vcenter, ?took, "vCenter accepts the login now");
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
                "the new credentials are not accepted; the old ones stay in use"
            );
        } else {
            tracing::warn!(vcenter, error = chain, "vCenter still refuses the login");
        }
        Err(error)
    }
}

/// Waits until the credentials change; forever if the sender is gone.
async fn credentials_changed<T>(credentials: &mut watch::Receiver<T>) {
    if credentials.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn selection(datacenters: &[String]) -> Selection {
    Selection::new()
        .vms(&[Vm::IDENTITY, Vm::HARDWARE, &["runtime.host", "runtime.powerState"]])
        .hosts(&[Host::IDENTITY, Host::STATE])
        .clusters(&[Cluster::IDENTITY])
        .datastores(&[Datastore::IDENTITY, Datastore::STATE, Datastore::HOSTS])
        .in_datacenters(datacenters.to_vec())
        .gathering(GATHER)
}
