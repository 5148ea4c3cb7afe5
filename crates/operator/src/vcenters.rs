//! The vCenter pool: one session and one inventory watch for each VsphereCloudConfig.
//!
//! A connection lasts until its VsphereCloudConfig or its Secret changes. VDO tries each revision of the Secret at
//! once. It repeats a login that vCenter refused at the pace of [`vsphere::login_pace`], since more attempts would lock
//! the account. Another operator keeps the pace, because it finds the last attempt in the status. VDO retries
//! temporary failures (a vCenter that restarts, a privilege that an admin grants later) with growing pauses, on the
//! same session if there is one.

mod hosts;
pub(crate) mod pace;
pub mod refusal;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use api::{VsphereCloudConfigSpec, vsphere_cloud_config::RefusedLogin};
use catalog::version::VsphereVersion;
use driver_config::credentials::Credential;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use plan::facts::{NodeVm, VcenterState};
use runtime::{backoff::Backoff, build::BuildInfo};
use tokio::{sync::watch, task::JoinSet};
use vsphere::{
    BiosUuid, CallObserver, Client, ClientBuilder, Credentials, MoRef, Trust,
    inventory::{Datastore, Event, Inventory, Lookup, Object, Status, Tree, Vm},
    login_pace::{Account, Attempts},
};

use self::{pace::CnsAnswer, refusal::Refused};
use crate::audit::{self, Audit, Question, Sights};

/// The pause between two probes, the timeout of one, and how many in a row show that a vCenter hangs: it is
/// noticed within 30 seconds. A probe needs no session and no login, and all share one connection.
const PROBE_AGAIN_AFTER: Duration = Duration::from_secs(12);
const PROBE_TIMEOUT: Duration = Duration::from_secs(7);
const SILENT_PROBES: u32 = 2;

/// The pause after an audit before changes lead to another one.
const AUDIT_AGAIN_AFTER: Duration = Duration::from_secs(5);
/// The first pause before VDO asks again, while something is wrong that only vCenter can report. The pause
/// doubles each time.
const AMISS_AGAIN_AFTER: Duration = Duration::from_mins(1);
/// VDO combines changes within this time into one audit.
const AUDIT_SETTLES: Duration = Duration::from_millis(500);

/// The inputs of a connection. Equal inputs lead to the same connection.
#[derive(Clone, Debug)]
pub struct ConnectionInputs {
    pub spec: VsphereCloudConfigSpec,
    /// The CA certificates to trust, if the spec names a bundle.
    pub ca_bundle: Option<String>,
    pub credential: Credential,
    /// Identifies the credential: equal if and only if the credentials are equal.
    pub version: String,
    /// The revision of the Secret that holds the credential.
    pub revision: String,
    /// The login with this revision of the Secret that vCenter refused, if the status records one.
    pub refused: Option<Refused>,
}

impl PartialEq for ConnectionInputs {
    fn eq(&self, other: &Self) -> bool {
        let same_credential = self.version == other.version;
        same_credential && self.spec == other.spec && self.ca_bundle == other.ca_bundle
    }
}

/// The current state of a vCenter.
#[derive(Clone, Debug)]
pub struct ConnectionState {
    /// The result of the last attempt.
    pub state: VcenterState,
    /// The time of the last change of `state`.
    pub since: Timestamp,
    /// The credential that vCenter accepted last, and its version.
    pub proven: Option<(Credential, String)>,
    /// Whether vCenter accepted the last login of this very connection. The proven credential is then the one
    /// in the connection's inputs. vCenter can meanwhile refuse a credential that an earlier connection
    /// proved, or refuse it at this address.
    pub accepted: bool,
    /// The inventory, while there is one.
    pub inventory: Option<Inventory>,
    /// The reason why the vCenter is not verified, if VDO tried.
    pub error: Option<Arc<vsphere::Error>>,
    /// The last login, if vCenter refused it because of the credential. Later failures without a login keep it.
    pub refused: Option<Refused>,
    /// The session, while there is one.
    pub client: Option<Client>,
    /// The last answer to the questions that VDO does not watch.
    pub audit: Option<Arc<Audit>>,
}

/// Changes in an inventory since the last look.
#[derive(Clone, Debug, Default)]
pub struct Touches {
    /// The changed VMs.
    pub vms: BTreeSet<MoRef>,
    /// True if anything else changed.
    pub everything: bool,
}

#[derive(Debug)]
pub struct Vcenters {
    build: BuildInfo,
    calls: Arc<dyn CallObserver>,
    connections: BTreeMap<String, PooledConnection>,
    /// Notifies of any change to any vCenter.
    changed: Arc<watch::Sender<()>>,
    /// The last answer of CNS about the owners of the volumes under a cluster id.
    pub(crate) asked: Option<CnsAnswer>,
    /// The last answer of CNS about the cluster id that the volumes were created under.
    pub(crate) inherited: Option<CnsAnswer>,
    logins: LoginPace,
}

/// The pace of repeated logins after a refusal.
#[derive(Clone, Debug, Default)]
struct LoginPace {
    /// The longest pause before a refused login is repeated. `None` means that it is never repeated.
    repeat_after: Option<Duration>,
    /// The refused attempts of all connections.
    attempts: Arc<Attempts>,
}

#[derive(Debug)]
struct PooledConnection {
    inputs: ConnectionInputs,
    known: watch::Sender<ConnectionState>,
    touches: Arc<Mutex<Touches>>,
    question: watch::Sender<Option<Question>>,
    _task: JoinSet<()>,
}

impl Vcenters {
    /// Creates an empty pool. `calls` observes every call to any vCenter.
    pub fn new(
        build: BuildInfo,
        changed: Arc<watch::Sender<()>>,
        calls: Arc<dyn CallObserver>,
    ) -> Self {
        Self {
            build,
            calls,
            connections: BTreeMap::new(),
            changed,
            asked: None,
            inherited: None,
            logins: LoginPace::default(),
        }
    }

    /// Repeats a login that vCenter refused, once within each period of this length; see
    /// [`vsphere::login_pace::REPEAT_AFTER`]. A pool without this call never repeats it.
    #[must_use]
    pub fn repeating_refused_logins(mut self, after: Duration) -> Self {
        self.logins.repeat_after = Some(after);
        self
    }

    /// Opens the desired connections that are missing, and closes those that are no longer desired.
    pub fn follow(&mut self, inputs: BTreeMap<String, ConnectionInputs>) {
        self.connections.retain(|name, _| inputs.contains_key(name));
        // Connections to the same account share their attempts, so all that the statuses record count first.
        for (name, inputs) in &inputs {
            let new = !self.connections.contains_key(name);
            if let Some(refused) = inputs.refused.filter(|_| new) {
                self.logins.attempts.note(&refusal::account(inputs), refused.at);
            }
        }
        for (name, inputs) in inputs {
            let before = self.connections.get_mut(&name);
            let same = |connection: &&mut PooledConnection| {
                connection.inputs == inputs && !connection.is_to_try_again(&inputs)
            };
            if let Some(same) = before.filter(same) {
                same.inputs.revision = inputs.revision;
                continue;
            }
            let before = self.connections.get(&name);
            // The status can be older than the last login of this process.
            let refused = match before.filter(|before| before.has_tried(&inputs)) {
                Some(before) => before.refused(),
                None => inputs.refused,
            };
            // The drivers keep the previously proven credential until vCenter accepts the new one.
            let proven = before.and_then(|connection| connection.known.borrow().proven.clone());
            let known = watch::Sender::new(ConnectionState {
                state: VcenterState::Untried,
                since: Timestamp::now(),
                proven,
                accepted: false,
                inventory: None,
                error: None,
                refused: None,
                client: None,
                audit: None,
            });
            let touches = Arc::new(Mutex::new(Touches::default()));
            let question = watch::Sender::new(None);
            let reporter = ConnectionReporter {
                inputs: inputs.clone(),
                known: known.clone(),
                touches: touches.clone(),
                question: question.subscribe(),
                changed: self.changed.clone(),
            };
            if let Some(refused) = refused {
                reporter.failed(&Arc::new(refusal::error(&inputs, refused.reason)), None);
                reporter.note_refused(refused);
            }
            let mut task = JoinSet::new();
            let (build, calls, logins) = (self.build, self.calls.clone(), self.logins.clone());
            task.spawn(stay_connected(reporter, build, calls, logins));
            let connection = PooledConnection { inputs, known, touches, question, _task: task };
            self.connections.insert(name, connection);
        }
    }

    pub fn known(&self, name: &str) -> Option<ConnectionState> {
        self.connections.get(name).map(|connection| connection.known.borrow().clone())
    }

    /// The login that this vCenter refused, until it accepts one.
    pub fn refused(&self, name: &str) -> Option<RefusedLogin> {
        let connection = self.connections.get(name)?;
        let Refused { reason, at } = connection.refused()?;
        let (address, secret) =
            (connection.inputs.spec.vc_ip.0.clone(), connection.inputs.revision.clone());
        Some(RefusedLogin {
            address,
            secret,
            reason: format!("{reason:?}"),
            attempted_at: Some(Time(at)),
        })
    }

    /// The changes since the last call.
    pub fn touches(&self, name: &str) -> Touches {
        let touches = self.connections.get(name).map(|connection| &connection.touches);
        touches.map(|touches| std::mem::take(&mut *lock(touches))).unwrap_or_default()
    }

    /// Sets the next audit question of a vCenter. A new question starts an audit at once; otherwise the slow
    /// pace of audits continues.
    pub fn ask(&self, name: &str, question: Question) {
        let Some(connection) = self.connections.get(name) else { return };
        connection.question.send_if_modified(|before| {
            let news = before
                .as_ref()
                .is_none_or(|before| !before.is_like(&question) || question.amiss && !before.amiss);
            *before = Some(question);
            news
        });
    }

    /// The inputs of a connection.
    pub fn inputs(&self, name: &str) -> Option<&ConnectionInputs> {
        self.connections.get(name).map(|connection| &connection.inputs)
    }

    /// Finds the vCenters that have a VM with this BIOS uuid.
    pub fn vm(&self, system_uuid: &str) -> NodeVm {
        let Ok(uuid) = system_uuid.parse() else {
            return NodeVm::Unknown("the node does not say its system uuid".into());
        };
        let (mut seen, mut doubt) = (Vec::new(), None);
        for (name, connection) in &self.connections {
            let known = connection.known.borrow();
            let Some(inventory) = &known.inventory else {
                doubt = Some(format!("{name} is not connected"));
                continue;
            };
            match inventory.view().vm_by_bios_uuid(uuid) {
                Lookup::Found(_) | Lookup::Several(_) => seen.push(name.clone()),
                Lookup::Departed(_) => doubt = Some(format!("it left the view of {name}")),
                Lookup::Unseen => {}
            }
            if !matches!(inventory.status(), Status::Live) {
                doubt = Some(format!("{name} is unreachable"));
            }
        }
        match doubt {
            _ if !seen.is_empty() => NodeVm::Found(seen),
            Some(doubt) => NodeVm::Unknown(doubt),
            None => NodeVm::Missing,
        }
    }

    /// The oldest ESXi host in the clusters of a vCenter that run the VMs with these uuids, if VDO sees it.
    pub fn oldest_host(&self, name: &str, uuids: &[BiosUuid]) -> Option<VsphereVersion> {
        let known = self.connections.get(name)?.known.borrow();
        hosts::oldest(&known.inventory.as_ref()?.view(), uuids)
    }

    /// Whether VDO has tried each vCenter.
    pub fn all_tried(&self) -> bool {
        let untried =
            |c: &PooledConnection| matches!(c.known.borrow().state, VcenterState::Untried);
        !self.connections.values().any(untried)
    }

    /// Ends all sessions.
    pub fn disconnect_all(&mut self) {
        self.connections.clear();
    }

    /// Ends all sessions, and waits for the logouts. For a process that exits next.
    pub async fn log_out_all(&mut self) {
        let clients = self.connections.values().filter_map(|c| c.known.borrow().client.clone());
        let clients: Vec<Client> = clients.collect();
        self.connections.clear();
        futures::future::join_all(clients.iter().map(Client::shut_down)).await;
    }
}

impl PooledConnection {
    fn refused(&self) -> Option<Refused> {
        self.known.borrow().refused
    }

    /// Whether VDO has tried to connect with this credential to this address, even if other inputs have changed.
    fn has_tried(&self, inputs: &ConnectionInputs) -> bool {
        let (was, is) = (&self.inputs, inputs);
        let same = was.version == is.version && was.spec.vc_ip == is.spec.vc_ip;
        let tried = !matches!(self.known.borrow().state, VcenterState::Untried);
        tried && same && was.revision == is.revision
    }

    /// Whether somebody wrote the refused Secret again, even unchanged: vCenter can accept it by now.
    fn is_to_try_again(&self, inputs: &ConnectionInputs) -> bool {
        self.inputs.revision != inputs.revision && self.refused().is_some()
    }
}

/// Reports the observations of a connection.
struct ConnectionReporter {
    inputs: ConnectionInputs,
    known: watch::Sender<ConnectionState>,
    touches: Arc<Mutex<Touches>>,
    question: watch::Receiver<Option<Question>>,
    changed: Arc<watch::Sender<()>>,
}

impl ConnectionReporter {
    /// Records that vCenter accepted the login.
    fn accepted(&self) {
        let proven = (self.inputs.credential.clone(), self.inputs.version.clone());
        self.known.send_modify(|now| {
            now.proven = Some(proven);
            now.accepted = true;
            now.refused = None;
        });
        self.changed.send_replace(());
    }

    /// Records a verified vCenter.
    fn verified(&self, state: VcenterState, client: &Client, inventory: &Inventory) {
        self.report(state, |now| {
            now.inventory = Some(inventory.clone());
            now.client = Some(client.clone());
            now.error = None;
        });
    }

    /// Records a failure. The known inventory can be kept for a while.
    fn failed(&self, error: &Arc<vsphere::Error>, inventory: Option<&Inventory>) {
        self.report(failure(error), |now| {
            now.inventory = inventory.cloned();
            now.error = Some(error.clone());
            if matches!(**error, vsphere::Error::LoginRefused { .. }) {
                let reason = refusal::remembered(error);
                now.refused = reason.map(|reason| Refused { reason, at: Timestamp::now() });
                now.accepted = false;
            }
        });
    }

    /// Records a refused login that the status shows, or that VDO is about to repeat.
    fn note_refused(&self, refused: Refused) {
        self.known.send_modify(|now| now.refused = Some(refused));
        self.changed.send_replace(());
    }

    fn refused(&self) -> Option<Refused> {
        self.known.borrow().refused
    }

    fn report(&self, state: VcenterState, change: impl FnOnce(&mut ConnectionState)) {
        self.known.send_modify(|now| {
            if std::mem::discriminant(&now.state) != std::mem::discriminant(&state) {
                now.since = Timestamp::now();
            }
            now.state = state;
            change(now);
        });
        self.changed.send_replace(());
    }

    fn touch(&self, what: impl FnOnce(&mut Touches)) {
        what(&mut lock(&self.touches));
    }

    fn is_verified(&self) -> bool {
        matches!(self.known.borrow().state, VcenterState::Verified { .. })
    }
}

fn lock(touches: &Mutex<Touches>) -> std::sync::MutexGuard<'_, Touches> {
    touches.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Connects, and stays connected until dropped.
async fn stay_connected(
    reporter: ConnectionReporter,
    build: BuildInfo,
    calls: Arc<dyn CallObserver>,
    logins: LoginPace,
) {
    let backoff = Backoff::new(Duration::from_secs(2), Duration::from_mins(2));
    let inputs = &reporter.inputs;
    let account = refusal::account(inputs);
    let mut has_turn = false;
    loop {
        if let Some(refused) = reporter.refused().filter(|_| !has_turn) {
            logins.turn(&account).await;
            reporter.note_refused(Refused { at: Timestamp::now(), ..refused });
            tokio::time::sleep(refusal::ANNOUNCED).await;
            has_turn = true;
        }
        let bundle = inputs.ca_bundle.as_ref();
        let client = builder(&inputs.spec, bundle, &inputs.credential, build);
        let failed = match client.observer(calls.clone()).connect().await {
            Ok(client) => {
                reporter.accepted();
                logins.attempts.forget(&account);
                has_turn = false;
                follow_session(&client, &reporter, &backoff).await
            }
            Err(error) => Arc::new(error),
        };
        reporter.failed(&failed, None);
        let error = refusal::error_chain(&failed);
        tracing::warn!(vcenter = %inputs.spec.vc_ip, error, "vCenter not verified");
        // vCenter counts an attempt that it did not answer too.
        let counts = refusal::remembered(&failed).is_some() || failed.is_unanswered_login();
        if counts && reporter.refused().is_some() {
            logins.attempts.note(&account, Timestamp::now());
            has_turn = false;
            continue;
        }
        if is_permanent(&failed) {
            // The login may have been one. An admin can fix its cause, for example grant a role to the account.
            logins.attempts.note(&account, Timestamp::now());
            logins.turn(&account).await;
            continue;
        }
        tokio::time::sleep(backoff.failed(())).await;
    }
}

impl LoginPace {
    /// Waits until VDO can repeat a refused login.
    async fn turn(&self, account: &Account) {
        match self.repeat_after {
            Some(repeat_after) => self.attempts.turn(account, repeat_after).await,
            None => std::future::pending().await,
        }
    }
}

/// Whether VDO connects again only at the pace of repeated logins. VDO can retry any failure before the login (no
/// answer, a certificate, a server that is not a vCenter) without limit, and so notices a fix by itself.
fn is_permanent(failed: &vsphere::Error) -> bool {
    use vsphere::Error;
    let before = matches!(
        failed,
        Error::Certificate { .. } | Error::NotTls { .. } | Error::NotVcenter { .. }
    );
    !(failed.is_transient() || before)
}

/// Follows the inventory on one session, through every failure except a refused login. The user's permissions
/// change, datacenters come and go, and none of that needs another session.
async fn follow_session(
    client: &Client,
    reporter: &ConnectionReporter,
    backoff: &Backoff<()>,
) -> Arc<vsphere::Error> {
    loop {
        if let Err(failed) = follow_inventory(client, reporter).await {
            if matches!(*failed, vsphere::Error::LoginRefused { .. }) {
                return failed;
            }
            reporter.failed(&failed, None);
        }
        tokio::time::sleep(backoff.failed(())).await;
    }
}

/// Connects to a vCenter as its VsphereCloudConfig specifies.
pub(crate) async fn connect(
    spec: &VsphereCloudConfigSpec,
    ca_bundle: Option<&String>,
    credential: &Credential,
    build: BuildInfo,
) -> Result<Client, Arc<vsphere::Error>> {
    builder(spec, ca_bundle, credential, build).connect().await.map_err(Arc::new)
}

fn builder(
    spec: &VsphereCloudConfigSpec,
    ca_bundle: Option<&String>,
    credential: &Credential,
    build: BuildInfo,
) -> ClientBuilder {
    let trust = match (&spec.thumbprint, ca_bundle) {
        _ if spec.insecure => Trust::Insecure,
        (Some(thumbprint), _) => match thumbprint.0.parse() {
            Ok(thumbprint) => Trust::Thumbprint(thumbprint),
            Err(_) => Trust::System,
        },
        (None, Some(bundle)) => Trust::CaBundle(bundle.clone()),
        (None, None) => Trust::System,
    };
    let credentials =
        Credentials::new(credential.username.as_str(), credential.password.expose().to_owned());
    Client::builder(spec.vc_ip.0.as_str())
        .trust(trust)
        .credentials(credentials)
        .user_agent(build.user_agent())
}

/// Watches the inventory and reports its changes. Alongside, it audits everything that cannot be watched.
async fn follow_inventory(
    client: &Client,
    reporter: &ConnectionReporter,
) -> Result<(), Arc<vsphere::Error>> {
    let selection = audit::selection().in_datacenters(reporter.inputs.spec.datacenter_names());
    let watch = client.watch(selection);
    let inventory = watch.inventory().clone();
    let mut events = inventory.events();
    inventory.ready().await?;
    let about = client.about().map_err(Arc::new)?;
    let verified = VcenterState::Verified {
        version: about.version.clone(),
        api_version: about.api_version.clone(),
        build: about.build.clone(),
        instance_uuid: about.instance_uuid.unwrap_or_default(),
        product: about.full_name.clone(),
    };
    reporter.touch(|touches| touches.everything = true);
    reporter.verified(verified.clone(), client, &inventory);
    let watching = async {
        while let Some(event) = events.next().await {
            match inventory.status() {
                Status::Unreachable(error) if !error.is_transient() => return Err(error),
                Status::Unreachable(error) => reporter.failed(&error, Some(&inventory)),
                Status::Live | Status::Starting => {
                    // An event that affects no fact is no news, unless the vCenter was unreachable.
                    if record_changes(&event, &inventory, reporter) || !reporter.is_verified() {
                        reporter.verified(verified.clone(), client, &inventory);
                    }
                }
                Status::Ended => break,
            }
        }
        Ok(())
    };
    tokio::select! {
        ended = watching => ended,
        () = audits(client, &inventory, reporter) => Ok(()),
        () = answers(&inventory, reporter, &verified, client) => Ok(()),
    }
}

/// Notices a vCenter that accepts connections and does not answer. The watch alone would wait for minutes.
async fn answers(
    inventory: &Inventory,
    reporter: &ConnectionReporter,
    verified: &VcenterState,
    client: &Client,
) {
    let address = reporter.inputs.spec.vc_ip.0.as_str();
    let probe = audit::AnswerProbe::new(address, PROBE_TIMEOUT);
    let mut silent = 0;
    loop {
        tokio::time::sleep(if silent == 0 { PROBE_AGAIN_AFTER } else { Duration::ZERO }).await;
        if probe.is_answered().await {
            if silent >= SILENT_PROBES && matches!(inventory.status(), Status::Live) {
                reporter.verified(verified.clone(), client, inventory);
            }
            silent = 0;
            continue;
        }
        silent += 1;
        if silent == SILENT_PROBES && reporter.is_verified() {
            let error = vsphere::Error::Timeout {
                address: address.to_owned(),
                method: "a probe".to_owned(),
                after: PROBE_TIMEOUT,
            };
            reporter.failed(&Arc::new(error), Some(inventory));
        }
        if silent >= SILENT_PROBES {
            tokio::time::sleep(PROBE_TIMEOUT).await;
        }
    }
}

/// Records the changes of an event. Returns whether they affect any fact.
fn record_changes(event: &Event, inventory: &Inventory, reporter: &ConnectionReporter) -> bool {
    let touch_vm = |reference: &MoRef| {
        reporter.touch(|touches| {
            touches.vms.insert(reference.clone());
        });
        true
    };
    let everything = || {
        reporter.touch(|touches| touches.everything = true);
        true
    };
    match event {
        Event::Unreachable(_) => false,
        Event::Appeared(Object::Vm(vm)) => touch_vm(&vm.reference),
        Event::Left(departure) => match &departure.object {
            Object::Vm(vm) => touch_vm(&vm.reference),
            _ => everything(),
        },
        Event::Changed { before: Object::Vm(before), after: Object::Vm(after) } => {
            let news = is_news(&inventory.view(), before, after);
            news && touch_vm(&after.reference)
        }
        Event::Changed { before: Object::Datastore(before), after: Object::Datastore(after) } => {
            // Free space changes all the time, but whether it is scarce does not.
            let mut same = Datastore::clone(after);
            if is_scarce(before) == is_scarce(after) {
                same.free_space = before.free_space;
            }
            same != **before && everything()
        }
        Event::Snapshot | Event::Resynced | Event::Appeared(_) | Event::Changed { .. } => {
            everything()
        }
    }
}

/// Whether the change of a VM can change a fact. A VM that was powered off and on between two updates differs only in its
/// boot time.
fn is_news(tree: &Tree, before: &Vm, after: &Vm) -> bool {
    before.boot_time != after.boot_time
        || audit::vm_facts(tree, before) != audit::vm_facts(tree, after)
}

fn is_scarce(datastore: &Datastore) -> bool {
    let (free, all) = (datastore.free_space, datastore.capacity);
    free.zip(all).is_some_and(|(free, all)| free < all / 20)
}

/// Audits everything that VDO does not watch: when the question changes, less and less often while something
/// is wrong, and otherwise at a slow pace.
async fn audits(client: &Client, inventory: &Inventory, reporter: &ConnectionReporter) {
    let mut question = reporter.question.clone();
    let mut while_amiss = AMISS_AGAIN_AFTER;
    loop {
        let asked = question.wait_for(Option::is_some).await.ok().and_then(|asked| asked.clone());
        let Some(asked) = asked else { return std::future::pending().await };
        let sights = Sights::new(&inventory.view(), &asked.vms);
        let audit = Box::pin(audit::audit(client, &sights, &asked)).await;
        let mut news = false;
        reporter.known.send_modify(|now| {
            let same = now.audit.as_ref().is_some_and(|before| before.says_the_same_as(&audit));
            news = !same;
            now.audit = Some(Arc::new(audit));
        });
        if news {
            reporter.changed.send_replace(());
        }
        let urgent =
            |now: &Option<Question>| now.as_ref().is_some_and(|now| now.asked != asked.asked);
        let other = |now: &Option<Question>| now.as_ref().is_some_and(|now| !now.is_like(&asked));
        tokio::select! {
            () = tokio::time::sleep(AUDIT_AGAIN_AFTER) => {}
            () = until(&mut question, urgent) => continue,
        }
        let is_amiss = |now: &Option<Question>| now.as_ref().is_some_and(|now| now.amiss);
        if !is_amiss(&question.borrow()) {
            while_amiss = AMISS_AGAIN_AFTER;
        }
        let mut news = reporter.question.clone();
        let amiss = async {
            until(&mut news, is_amiss).await;
            tokio::time::sleep(while_amiss + random(while_amiss / 4)).await;
        };
        tokio::select! {
            () = tokio::time::sleep(audit_pace()) => {}
            () = amiss => while_amiss *= 2,
            // Combine simultaneous changes into one audit.
            () = until(&mut question, other) => {
                while_amiss = AMISS_AGAIN_AFTER;
                tokio::time::sleep(AUDIT_SETTLES).await;
            }
        }
    }
}

/// Waits for another question.
async fn until(
    question: &mut watch::Receiver<Option<Question>>,
    is: impl FnMut(&Option<Question>) -> bool,
) {
    if question.wait_for(is).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Between an hour and an hour and a half. A quiet cluster stays cheap for vCenter, and many clusters do not
/// query one vCenter at the same time.
fn audit_pace() -> Duration {
    Duration::from_hours(1) + random(Duration::from_mins(30))
}

/// A random duration below the limit, different for every vCenter.
fn random(below: Duration) -> Duration {
    below.mul_f64(f64::from(Timestamp::now().subsec_nanosecond().unsigned_abs()) / 1e9)
}

fn failure(error: &vsphere::Error) -> VcenterState {
    VcenterState::Failed {
        reason: camel(error.kind()),
        message: refusal::error_chain(error),
        transient: error.is_transient(),
    }
}

/// Converts `login_refused` to a condition's reason: `LoginRefused`.
fn camel(kind: &str) -> String {
    kind.split('_')
        .map(|word| {
            let mut letters = word.chars();
            letters.next().map(|first| first.to_uppercase().collect::<String>() + letters.as_str())
        })
        .map(Option::unwrap_or_default)
        .collect()
}

#[cfg(test)]
mod tests {
    use vsphere::{LoginRefusal, login_pace::REPEAT_AFTER};

    use super::*;

    const NAME: &str = "vdo/vc";

    fn inputs(host: &str, revision: &str) -> ConnectionInputs {
        let spec = serde_json::json!({"vcIp": host, "credentials": "s"});
        let data = [("username", "user"), ("password", "one")];
        let data: BTreeMap<String, Vec<u8>> =
            data.iter().map(|(key, text)| ((*key).to_owned(), text.as_bytes().to_vec())).collect();
        let credentials = driver_config::credentials::Credentials::read(&data).unwrap();
        ConnectionInputs {
            spec: serde_json::from_value(spec).unwrap(),
            ca_bundle: None,
            credential: credentials.for_server(host).unwrap().clone(),
            version: "uid/1".into(),
            revision: revision.into(),
            refused: None,
        }
    }

    fn follow_one(vcenters: &mut Vcenters, inputs: ConnectionInputs) {
        vcenters.follow(BTreeMap::from([(NAME.to_owned(), inputs)]));
    }

    /// The reporter of the connection's task.
    fn reporter(vcenters: &Vcenters) -> ConnectionReporter {
        let connection = &vcenters.connections[NAME];
        ConnectionReporter {
            inputs: connection.inputs.clone(),
            known: connection.known.clone(),
            touches: connection.touches.clone(),
            question: connection.question.subscribe(),
            changed: vcenters.changed.clone(),
        }
    }

    /// The test awaits nothing, so that no connection opens.
    #[tokio::test]
    async fn a_credential_is_accepted_only_after_a_login_of_the_present_connection() {
        let calls = Arc::new(vsphere::CallCounter::default());
        let changed = Arc::new(watch::Sender::new(()));
        let mut vcenters = Vcenters::new(BuildInfo::new("vdo"), changed, calls);
        let accepted = |vcenters: &Vcenters| {
            let known = vcenters.known(NAME).unwrap();
            (known.accepted, known.proven.is_some())
        };
        follow_one(&mut vcenters, inputs("a.example.com", "uid/1"));
        assert_eq!(accepted(&vcenters), (false, false));
        reporter(&vcenters).accepted();
        assert_eq!(accepted(&vcenters), (true, true));
        // An annotation on the Secret changes nothing.
        follow_one(&mut vcenters, inputs("a.example.com", "uid/2"));
        assert_eq!(accepted(&vcenters), (true, true));

        // The password changed at vCenter. VDO retries the refused password once somebody writes the Secret,
        // and does not count it as accepted before vCenter accepts the login.
        let refused = refusal::error(&inputs("a.example.com", "uid/2"), LoginRefusal::Credentials);
        reporter(&vcenters).failed(&Arc::new(refused), None);
        assert_eq!(accepted(&vcenters), (false, true));
        follow_one(&mut vcenters, inputs("a.example.com", "uid/3"));
        assert!(vcenters.refused(NAME).is_none(), "it is tried again");
        assert_eq!(accepted(&vcenters), (false, true));
        reporter(&vcenters).accepted();
        assert_eq!(accepted(&vcenters), (true, true));

        // VDO never tried the other host.
        follow_one(&mut vcenters, inputs("b.example.com", "uid/3"));
        assert_eq!(accepted(&vcenters), (false, true));
    }

    /// The longest pause before these tests repeat a refused login.
    const SOON: Duration = Duration::from_secs(6);

    /// A vCenter that locks the account of this user after three wrong passwords.
    async fn locking() -> (testkit::Vcenter, testkit::VcenterUser) {
        let mut inventory = testkit::Inventory::with_vms(1);
        let user = testkit::VcenterUser {
            lock_after: 3,
            ..testkit::VcenterUser::new("vdo@vsphere.local", "first")
        };
        inventory.users.push(user.clone());
        inventory.permissions.push(testkit::Permission::new(&user.name, "Admin", "/"));
        (testkit::Vcenter::start(inventory).await, user)
    }

    fn inputs_for(vcenter: &testkit::Vcenter, user: &str, password: &str) -> ConnectionInputs {
        let mut inputs = inputs(&vcenter.address().to_string(), "uid/1");
        inputs.spec.insecure = true;
        inputs.credential.username = user.into();
        inputs.credential.password = password.into();
        inputs
    }

    fn pool(repeat_after: Option<Duration>) -> Vcenters {
        let calls = Arc::new(vsphere::CallCounter::default());
        let changed = Arc::new(watch::Sender::new(()));
        let vcenters = Vcenters::new(BuildInfo::new("vdo"), changed, calls);
        match repeat_after {
            Some(after) => vcenters.repeating_refused_logins(after),
            None => vcenters,
        }
    }

    async fn refuses(vcenters: &Vcenters) -> RefusedLogin {
        testkit::eventually("vCenter refuses the login", 60, async || {
            vcenters.refused(NAME).ok_or_else(|| format!("{:?}", vcenters.known(NAME)))
        })
        .await
    }

    /// Waits until vCenter accepts the login with the same Secret.
    async fn accepts(vcenters: &Vcenters, within: u64) {
        testkit::eventually("vCenter accepts the login", within, async || {
            let known = vcenters.known(NAME).unwrap();
            if known.accepted { Ok(()) } else { Err(format!("{:?}", known.state)) }
        })
        .await;
        assert!(vcenters.refused(NAME).is_none(), "nothing is remembered any more");
    }

    #[tokio::test]
    async fn a_right_password_that_was_refused_because_of_a_lock_is_tried_again() {
        let (vcenter, user) = locking().await;
        // The password changed in vCenter, and the drivers still use the old one.
        let changed = testkit::VcenterUser { password: "second".into(), ..user.clone() };
        vcenter.set_user(&changed).await;
        for _ in 0..user.lock_after {
            let old = inputs_for(&vcenter, &user.name, "first");
            connect(&old.spec, None, &old.credential, BuildInfo::new("driver")).await.unwrap_err();
        }
        let mut vcenters = pool(Some(SOON));
        follow_one(&mut vcenters, inputs_for(&vcenter, &user.name, "second"));
        refuses(&vcenters).await;
        // The lockout ends. Nobody writes the Secret again.
        vcenter.set_user(&changed).await;
        accepts(&vcenters, 60).await;
    }

    #[tokio::test]
    async fn a_secret_can_be_written_before_vcenter_has_the_password() {
        let (vcenter, user) = locking().await;
        let mut vcenters = pool(Some(SOON));
        follow_one(&mut vcenters, inputs_for(&vcenter, &user.name, "second"));
        refuses(&vcenters).await;
        let changed = testkit::VcenterUser { password: "second".into(), ..user };
        vcenter.set_user(&changed).await;
        accepts(&vcenters, 60).await;
    }

    /// The account gets its role after the Secret, or vCenter answers the repeated login with a fault of its own.
    #[tokio::test]
    async fn a_login_that_fails_for_another_reason_is_tried_again_too() {
        for fault in ["NoPermission", "SystemError"] {
            let (vcenter, user) = locking().await;
            let mut vcenters = pool(Some(SOON));
            follow_one(&mut vcenters, inputs_for(&vcenter, &user.name, "second"));
            refuses(&vcenters).await;
            vcenter.fault(testkit::Fault::on("Login").fails(fault).times(1)).await;
            let changed = testkit::VcenterUser { password: "second".into(), ..user };
            vcenter.set_user(&changed).await;
            accepts(&vcenters, 60).await;
        }
    }

    /// A restarted operator and `vdoctl` find the attempt in the status.
    #[tokio::test]
    async fn a_refused_login_on_record_is_not_repeated_before_its_time() {
        let (vcenter, user) = locking().await;
        let mut vcenters = pool(Some(REPEAT_AFTER));
        follow_one(&mut vcenters, inputs_for(&vcenter, &user.name, "wrong"));
        let at = refuses(&vcenters).await.attempted_at.unwrap().0;
        vcenter.forget_calls().await;
        let on_record = |revision: &str| {
            let refused = Some(Refused { reason: LoginRefusal::Credentials, at });
            let inputs = inputs_for(&vcenter, &user.name, "wrong");
            ConnectionInputs { refused, revision: revision.into(), ..inputs }
        };
        let mut restarted = pool(Some(REPEAT_AFTER));
        let mut vdoctl = pool(None);
        for vcenters in [&mut vcenters, &mut restarted, &mut vdoctl] {
            // Other certificates are another connection, but the same login.
            for ca_bundle in [None, Some("other".to_owned()), None] {
                follow_one(vcenters, ConnectionInputs { ca_bundle, ..on_record("uid/1") });
                tokio::time::sleep(Duration::from_millis(200)).await;
                assert_eq!(refuses(vcenters).await.attempted_at, Some(Time(at)));
            }
        }
        assert_eq!(vcenter.calls().await.count("Login"), 0);
        // vdoctl does not repeat even an old attempt.
        let mut vdoctl = pool(None);
        let refused = Some(Refused { reason: LoginRefusal::Locked, at: Timestamp::UNIX_EPOCH });
        follow_one(&mut vdoctl, ConnectionInputs { refused, ..on_record("uid/1") });
        tokio::time::sleep(refusal::ANNOUNCED * 2).await;
        assert_eq!(vcenter.calls().await.count("Login"), 0);
        // An operator does, and announces that before it does.
        let mut restarted = pool(Some(REPEAT_AFTER));
        follow_one(&mut restarted, ConnectionInputs { refused, ..on_record("uid/1") });
        let announced = testkit::eventually("the attempt is announced", 10, async || {
            let announced = restarted.refused(NAME).unwrap().attempted_at.unwrap().0;
            if announced > at { Ok(announced) } else { Err(announced) }
        })
        .await;
        testkit::eventually("vCenter gets the attempt", 60, async || {
            if vcenter.calls().await.count("Login") > 0 { Ok(()) } else { Err("none") }
        })
        .await;
        let passed = Timestamp::now().duration_since(announced);
        assert!(passed.unsigned_abs() >= refusal::ANNOUNCED, "{passed:?}");
        assert_eq!(vcenter.calls().await.count("Login"), 1);
    }

    /// vCenter counts an attempt although its answer is lost. An attempt that did not reach vCenter does not count.
    #[tokio::test]
    async fn a_repeated_login_without_an_answer_counts_as_an_attempt() {
        let (vcenter, user) = locking().await;
        let mut vcenters = pool(Some(REPEAT_AFTER));
        let refused = Refused { reason: LoginRefusal::Credentials, at: Timestamp::UNIX_EPOCH };
        vcenter.fault(testkit::Fault::on("Login").dropped()).await;
        let inputs = inputs_for(&vcenter, &user.name, "wrong");
        follow_one(&mut vcenters, ConnectionInputs { refused: Some(refused), ..inputs });
        testkit::eventually("vCenter gets the attempt", 60, async || {
            if vcenter.calls().await.count("Login") > 0 { Ok(()) } else { Err("none") }
        })
        .await;
        tokio::time::sleep(Duration::from_secs(8)).await;
        assert_eq!(vcenter.calls().await.count("Login"), 1);
        assert!(vcenters.refused(NAME).is_some(), "a restart finds the attempt");
    }

    /// A stopped process still accepts connections: the kernel does.
    #[tokio::test]
    async fn a_vcenter_that_never_answers_is_noticed_within_thirty_seconds() {
        let vcenter = testkit::Vcenter::start(testkit::Inventory::with_vms(1)).await;
        let mut inputs = inputs(&vcenter.address().to_string(), "uid/1");
        inputs.spec.insecure = true;
        inputs.credential.username = vcenter.user().into();
        inputs.credential.password = vcenter.password().into();
        let calls = Arc::new(vsphere::CallCounter::default());
        let changed = Arc::new(watch::Sender::new(()));
        let mut vcenters = Vcenters::new(BuildInfo::new("vdo"), changed, calls);
        follow_one(&mut vcenters, inputs);
        let becomes = async |what: &str, within: u64, is_verified: bool| {
            testkit::eventually(what, within, async || {
                let state = vcenters.known(NAME).unwrap().state;
                let is = matches!(state, VcenterState::Verified { .. });
                (is == is_verified).then_some(()).ok_or(format!("{state:?}"))
            })
            .await;
        };
        becomes("the vCenter is verified", 60, true).await;
        vcenter.process().signal(rustix::process::Signal::STOP);
        becomes("VDO notices that the vCenter hangs", 30, false).await;
        vcenter.process().signal(rustix::process::Signal::CONT);
        becomes("VDO notices that the vCenter answers", 60, true).await;
    }

    #[test]
    fn a_power_cycle_between_two_updates_is_news() {
        let on_since = |second: i64| {
            let mut vm = Vm::new(MoRef::new("VirtualMachine", "vm-1"));
            vm.power = Some(vsphere::inventory::PowerState::On);
            vm.boot_time = Timestamp::from_second(second).ok();
            vm
        };
        let tree = Tree::default();
        assert!(is_news(&tree, &on_since(1), &on_since(2)));
        assert!(!is_news(&tree, &on_since(1), &on_since(1)));
    }
}
