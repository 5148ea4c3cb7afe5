//! The control loop: observe, decide, act and report whenever something changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use catalog::Driver;
use jiff::Timestamp;
use kube::{
    Client, Resource as _, ResourceExt,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use plan::{
    decide,
    facts::{ApplyFailure, Facts, Paged},
    names,
};
use runtime::{
    backoff::Backoff,
    build::BuildInfo,
    checks::{Check, Watchdog},
    error_chain::error_chain,
    kubernetes::{self, ClusterOptions},
    lease::Mandate,
    tasks::Tasks,
};
use snafu::{ResultExt, Snafu};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;
use vsphere::login_pace::REPEAT_AFTER;

use crate::{
    act,
    applied::Applied,
    catalogs::Catalogs,
    cluster::Stores,
    followed,
    health_facts::Live,
    observe::{self, Surroundings, Timeouts},
    probes::{self, LeaderProbes},
    remediation::Remediator,
    report::{self, Followed, Olm, OperatorMetrics, Statuses},
    unreadable::Unreadable,
    vcenters::Vcenters,
};

/// The operator handles changes within this time together.
const SETTLE: Duration = Duration::from_millis(100);
/// The interval of rounds without a change. The watches are reliable; this covers a missed event.
const RESYNC: Duration = Duration::from_mins(10);
/// The interval of rounds while something could not be read, because no watch reports when it can be.
const UNSURE: Duration = Duration::from_secs(30);
/// The maximum age of the API server's version.
const VERSION_AGE: Duration = Duration::from_mins(1);
/// How long a round waits for the version. One of several API servers may hang, and passwords must not wait for it.
const VERSION_ANSWER: Duration = Duration::from_secs(5);
/// The minimum number of version requests before VDO accepts a newer version.
const QUESTIONS: u32 = 10;

/// Reported if the operator lacks the permission to write an object.
const CANNOT_WRITE: &str = "the operator lacks the permission to write this object. Run vdoctl deploy: it \
     restores the operator's permissions and adds the names that only this cluster uses, such as those of \
     spec.images.pullSecrets. install.yaml restores them for the usual names";

/// Reported if a driver's role has rules that the operator does not hold.
const CANNOT_GRANT: &str = "this release gives its driver the permissions listed above. The operator \
     does not hold them, so it cannot grant them. Run vdoctl deploy from a VDO release whose catalog has \
     this driver release; on Kubernetes before 1.32, run vdoctl deploy from this one";

/// How long every round of a leader can fail before it gives up its leadership: longer than an API server or
/// an admission webhook takes to restart.
pub const FAILING: Duration = Duration::from_mins(5);

/// The reason why [`Engine::run`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The caller stopped it, or the mandate ended.
    Stopped,
    /// Every round failed for too long. Another instance can run in a better environment.
    Failing,
}

/// Measures how long rounds have failed without a success in between.
#[derive(Debug)]
struct Failures {
    limit: Duration,
    since: Option<Instant>,
}

impl Failures {
    fn new(limit: Duration) -> Self {
        Self { limit, since: None }
    }

    fn succeeded(&mut self) {
        self.since = None;
    }

    /// Notes a failure. Returns whether rounds have failed for too long.
    fn failed(&mut self) -> bool {
        self.since.get_or_insert_with(Instant::now).elapsed() >= self.limit
    }
}

/// The reason why a round failed. The next round retries.
#[derive(Debug, Snafu)]
#[allow(missing_docs, reason = "a field is named as in the text it stands in")]
pub enum Error {
    #[snafu(display("the cluster could not be observed"))]
    Observe {
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },
    #[snafu(display("the VDOConfig that is followed could not be recorded"))]
    Record {
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },
    #[snafu(display("no connection could be made to ask for the version of the API server"))]
    Ask { source: kubernetes::Error },
    #[snafu(display("a step of the plan for {driver} failed"))]
    Act {
        driver: Driver,
        #[snafu(source(from(act::Error, Box::new)))]
        source: Box<act::Error>,
        /// The time until the other driver, or another part of this one, needs the next round.
        next: Duration,
    },
    #[snafu(display("the status could not be written"))]
    Report {
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
        /// The time until the next round, if the rest of this one succeeded.
        next: Option<Duration>,
    },
}

impl Error {
    /// Whether the API server refused an object of a driver for another reason than missing permissions. The
    /// status shows such a refusal, and the operator itself works.
    fn is_refusal_of_a_driver(&self) -> bool {
        matches!(self, Self::Act { source, .. } if !source.lacks_a_permission())
    }

    /// The time until the next round at the latest, if a part of this one succeeded.
    fn next(&self) -> Option<Duration> {
        match self {
            Self::Report { next, .. } => *next,
            // The failed step is not worth a round without any pause.
            Self::Act { next, .. } => Some((*next).max(Duration::from_secs(1))),
            _ => None,
        }
    }
}

/// The first report of a round that the API server did not accept. The drivers get passwords and repairs all the same: an
/// admission webhook that is down can make every report fail.
#[derive(Debug, Default)]
struct Unreported(Option<kube::Error>);

impl Unreported {
    /// Notes the error that the API server answered. Without an answer, no other request would succeed either.
    fn note<T>(&mut self, reported: Result<T, kube::Error>) -> Result<(), Error> {
        match reported {
            Ok(_) => Ok(()),
            Err(error @ kube::Error::Api(_)) => {
                tracing::debug!(error = error_chain(&error), "a report failed");
                self.0.get_or_insert(error);
                Ok(())
            }
            Err(error) => Err(error).context(ReportSnafu { next: None::<Duration> }),
        }
    }

    /// Fails with the error, if there is one.
    fn check(&mut self, next: Option<Duration>) -> Result<(), Error> {
        self.0.take().map_or(Ok(()), |error| Err(error).context(ReportSnafu { next }))
    }
}

pub struct Engine {
    client: Client,
    around: Surroundings,
    stores: Stores,
    vcenters: Vcenters,
    catalogs: Catalogs,
    health_facts: Live,
    remediator: Remediator,
    /// The list of findings next to the status, as it was last written.
    listed: Option<Paged>,
    statuses: Statuses,
    applied: Applied,
    recorder: Recorder,
    olm: Olm,
    metrics: OperatorMetrics,
    /// The objects that the API server refused in the last round. VDO retries them, and shows them meanwhile.
    refused: BTreeMap<Driver, ApplyFailure>,
    /// The VDOConfig of the last round, and the drivers that run because of it.
    followed: Option<Followed>,
    /// Whether the operator has found out since its start if a VDOConfig exists.
    met: bool,
    /// The last report about a VDOConfig that cannot be parsed.
    unreadable: Unreadable,
    /// When the operator last requested the API server's version.
    asked: Instant,
    /// The options for a separate connection to request the version.
    version_connection: Option<(ClusterOptions, BuildInfo)>,
    changed: Arc<watch::Sender<()>>,
    /// The permission of this instance to write, as long as it leads.
    mandate: Mandate,
    /// The watches that fill the stores, and the task that reports on them.
    watches: Tasks,
    /// Detects a round that hangs.
    progress: Option<Watchdog>,
    /// The client of tasks next to the rounds. Their requests are no progress of a round.
    background: Client,
    failures: Failures,
}

impl Engine {
    /// Reads the cluster and starts the watches.
    pub async fn start(
        client: Client,
        namespace: &str,
        timeouts: impl Into<Timeouts>,
        build: BuildInfo,
        metrics: OperatorMetrics,
    ) -> Result<Self, Error> {
        let name = build.to_string();
        let around = observe::surroundings(&client, namespace, timeouts.into(), &name);
        let around = around.await.context(ObserveSnafu)?;
        let changed = Arc::new(watch::Sender::new(()));
        let (stores, fillers) = Stores::new(&client, namespace, &changed);
        let mut watches = Tasks::default();
        for filler in fillers {
            watches.spawn("watch", filler);
        }
        stores.ready().await;
        let recorded = followed::recorded(&client, namespace).await.context(ObserveSnafu)?;
        let around = around.remembered(&stores, recorded.as_ref(), Timestamp::now());
        let reporter = Reporter {
            controller: names::FIELD_MANAGER.into(),
            instance: std::env::var("POD_NAME").ok(),
        };
        Ok(Self {
            recorder: Recorder::new(client.clone(), reporter),
            olm: Olm::from_environment(),
            vcenters: Vcenters::new(build, changed.clone(), Arc::new(metrics.clone()))
                .repeating_refused_logins(REPEAT_AFTER),
            catalogs: Catalogs::new(changed.clone()),
            health_facts: Live::default(),
            remediator: Remediator::default(),
            listed: None,
            statuses: Statuses::default(),
            background: client.clone(),
            client,
            around,
            stores,
            applied: Applied::default(),
            metrics,
            refused: BTreeMap::new(),
            followed: None,
            met: false,
            unreadable: Unreadable::default(),
            asked: Instant::now(),
            version_connection: None,
            changed,
            mandate: Mandate::unlimited(),
            watches,
            progress: None,
            failures: Failures::new(FAILING),
        })
    }

    /// Limits writes to the time in which this mandate holds.
    #[must_use]
    pub fn under(self, mandate: Mandate) -> Self {
        Self { mandate, ..self }
    }

    /// Lets VDO adopt drivers with any object names in these namespaces, which can include the usual ones.
    #[must_use]
    pub fn adopting_in(mut self, namespaces: BTreeSet<String>) -> Self {
        self.around.open_namespaces = namespaces;
        self
    }

    /// Requests the API server's version on a new connection each time. A connection that stays open leads to
    /// a single API server, whatever versions the others run.
    #[must_use]
    pub fn reconnecting(self, options: ClusterOptions, build: BuildInfo) -> Self {
        Self { version_connection: Some((options, build)), ..self }
    }

    /// Reports to these checks whether rounds make progress and the watches work.
    #[must_use]
    pub fn probed(mut self, probes: &LeaderProbes) -> Self {
        (self.client, self.background) = clients(&self.client, &probes.progress);
        self.progress = Some(probes.progress.clone());
        let interruptions = self.stores.interruptions.clone();
        self.watches.spawn("watch check", interruptions.report_to(probes.watches.clone()));
        self
    }

    /// Repeats a login that vCenter refused after this time instead of [`REPEAT_AFTER`].
    #[must_use]
    pub fn repeating_refused_logins(self, after: Duration) -> Self {
        Self { vcenters: self.vcenters.repeating_refused_logins(after), ..self }
    }

    /// Gives up after rounds have failed for this time; see [`FAILING`].
    #[must_use]
    pub fn failing_for(self, limit: Duration) -> Self {
        Self { failures: Failures::new(limit), ..self }
    }

    /// Runs until `stop` is cancelled, the mandate ends, or rounds fail for too long. When the mandate ends, the current round makes no
    /// further step. That holds even for a process that was frozen meanwhile and resumes right before a
    /// write.
    pub async fn run(mut self, stop: CancellationToken, rounds: Check) -> Ended {
        let limit = self.progress.as_ref().map_or(probes::LIMIT, Watchdog::limit);
        let finished = |pause: Duration| {
            let due = pause + limit;
            rounds.pass_for(due, format!("no round has finished for {} seconds", due.as_secs()));
        };
        let mut changes = self.changed.subscribe();
        let mut tasks = Tasks::default();
        let (client, namespace) = (self.background.clone(), self.around.namespace.clone());
        tasks.spawn(
            "other namespaces",
            report::other_namespaces(client, namespace, self.mandate.clone()),
        );
        let backoff = Backoff::new(Duration::from_millis(500), Duration::from_mins(1));
        let mut ended = Ended::Stopped;
        loop {
            changes.mark_unchanged();
            let began = Instant::now();
            let mandate = self.mandate.clone();
            let work = self.progress.as_ref().map(Watchdog::begin);
            let Some(round) = mandate.while_it_holds(Box::pin(self.round())).await else { break };
            drop(work);
            let pause = match round {
                Ok(pause) => {
                    finished(pause);
                    self.failures.succeeded();
                    backoff.succeeded(&());
                    pause
                }
                Err(error) => {
                    let text = error_chain(&error);
                    tracing::error!(error = text, "a reconcile round failed");
                    let pause = backoff.failed(());
                    let pause = error.next().map_or(pause, |next| pause.min(next));
                    if error.is_refusal_of_a_driver() {
                        finished(pause);
                    } else {
                        rounds.fail(text);
                    }
                    // A round that ended with a step has observed and reported. The next leader has the same
                    // permissions, and could do no more.
                    if matches!(error, Error::Act { .. }) {
                        self.failures.succeeded();
                    } else if self.failures.failed() {
                        ended = Ended::Failing;
                        break;
                    }
                    pause
                }
            };
            self.metrics.round(began.elapsed().as_secs_f64());
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(pause) => {}
                _ = changes.changed() => tokio::time::sleep(SETTLE).await,
            }
        }
        self.vcenters.disconnect_all();
        ended
    }

    /// Detects an upgrade of the control plane, so that the cloud controller can follow it.
    async fn ask_for_version(&mut self) -> Result<(), Error> {
        let client = match &self.version_connection {
            Some((options, build)) => {
                kubernetes::client(options, *build).await.context(AskSnafu)?
            }
            None => self.client.clone(),
        };
        let Surroundings { namespace, timeouts, build, .. } = &self.around;
        let now = observe::surroundings(&client, namespace, *timeouts, build)
            .await
            .context(ObserveSnafu)?;
        tracing::debug!(answered = now.version.text, "asked for the version");
        self.around = now.after(&self.around, Timestamp::now());
        self.asked = Instant::now();
        Ok(())
    }

    /// Runs one round. Returns the time until the next one if nothing changes before.
    async fn round(&mut self) -> Result<Duration, Error> {
        let age = version_age(self.around.timeouts);
        if self.asked.elapsed() >= age {
            let answer = tokio::time::timeout(VERSION_ANSWER, self.ask_for_version()).await;
            let error = match answer {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error_chain(&error)),
                Err(_) => Some(format!("no answer within {} s", VERSION_ANSWER.as_secs())),
            };
            // The accepted version stays: one of several API servers may be unreachable.
            if let Some(error) = error {
                tracing::warn!(error, "cannot read the Kubernetes version");
                self.asked = Instant::now();
            }
        }
        let Self { client, around, stores, vcenters, catalogs, applied, refused, .. } = self;
        let observed =
            observe::observe(client, around, stores, vcenters, catalogs, applied, refused)
                .await
                .context(ObserveSnafu)?;
        // The operator records the VDOConfig before it acts on it.
        if let Some(new) = &observed.new {
            followed::record(client, &around.namespace, new).await.context(RecordSnafu)?;
        }
        let (statuses, mut unreported) = (&mut self.statuses, Unreported::default());
        unreported.note(report::vcenters(client, &observed.vcenters, statuses).await)?;
        let config = observed.facts.as_ref().map(|facts| facts.config.name_any());
        // While a VDOConfig cannot be parsed, VDO asks nobody to confirm another one.
        if observed.unreadable.is_none() {
            let reported =
                report::rivals(client, &observed.rivals, config.as_deref(), statuses).await;
            unreported.note(reported)?;
        }
        let reported =
            report::catalog(client, catalogs, observed.compatibility.as_ref(), statuses).await;
        unreported.note(reported)?;
        let unhurried = match () {
            () if observed.unsure => UNSURE,
            () if around.version.is_in_doubt() => age,
            () => RESYNC,
        };
        let unhurried = catalogs.next_fetch().map_or(unhurried, |next| unhurried.min(next));
        self.unreadable.report(client, &self.recorder, observed.unreadable.as_ref()).await;
        let Some(mut facts) = observed.facts else {
            self.metrics.clear();
            if observed.unreadable.is_none() {
                let waiting: Vec<_> = observed.rivals.iter().map(report::unconfirmed).collect();
                self.metrics.show_only(&waiting);
                // The previous operator may have stopped between the deletion and the event about it. In that
                // case this one publishes the event.
                if !std::mem::replace(&mut self.met, true) && self.followed.is_none() {
                    let records = observe::records(client, &around.namespace).await;
                    let (records, _) = records.context(ObserveSnafu)?;
                    self.followed = Some(Followed::left(&around.namespace, &records));
                }
                if let Some(last) = &self.followed {
                    let reported = report::deletion_outcome(&self.recorder, last).await;
                    reported.context(ReportSnafu { next: None::<Duration> })?;
                    self.followed = None;
                }
            }
            unreported.check(Some(unhurried))?;
            return Ok(unhurried);
        };
        statuses.complete(&mut facts);
        let version = stores.map_version(names::REPAIRS, &around.namespace);
        let repaired = self.remediator.set(client, &around.namespace, version).await;
        let repaired = repaired.context(ObserveSnafu)?;
        self.health_facts.remember(repaired);
        let denied = self.remediator.denied(client, &facts.config.spec).await;
        let unhurried = if denied.is_empty() { unhurried } else { unhurried.min(UNSURE) };
        self.health_facts.note_denied(denied);
        facts.health = self.health_facts.examine(&facts, stores, vcenters);
        (self.followed, self.met) = (Some(Followed::from_facts(&facts)), true);
        let plan = decide(&facts);
        tracing::debug!(next = ?summary(&facts, &plan), "decided");
        let (recorder, metrics) = (&self.recorder, &self.metrics);
        let reported =
            report::report(client, recorder, metrics, &facts, &plan, &mut self.listed, statuses)
                .await;
        unreported.note(reported)?;
        self.olm.report(client, &around.namespace, &plan::status(&facts, &plan)).await;
        // While the Go VDO runs, it owns the objects that VDO would repair.
        if !plan.paused && facts.predecessor.runs.is_none() {
            act::nodes::label(client, &self.recorder, &facts, &plan.nodes).await;
            let (client, mandate) = (&self.background, &self.mandate);
            self.remediator.remediate(client, &self.recorder, &facts, vcenters, mandate);
        }
        let done = act::act(client, &around.namespace, &facts, &plan, applied).await;
        for reverted in &done.restored {
            tracing::info!(object = %reverted.object, "{reverted}");
            // The object is restored even if the event cannot be published.
            let event = restored(reverted);
            let _ = self.recorder.publish(&event, &facts.config.object_ref(&())).await;
        }
        self.refused.clear();
        for (driver, error) in &done.failed {
            let holds = act::terminating::holds(client, error).await;
            let permission = error.lacks_a_permission().then(|| CANNOT_WRITE.to_owned());
            let held = error.lacks_a_permission_to_grant().then(|| CANNOT_GRANT.to_owned());
            let more = holds.or(permission).or(held);
            let text = more.map_or_else(
                || error_chain(error),
                |more| format!("{}: {more}", error_chain(error)),
            );
            self.refused.insert(
                *driver,
                ApplyFailure { text, firm: error.is_firm(), cause: error.cause() },
            );
        }
        let wake = plan.wake.into_iter().chain(facts.health.due).min();
        let wake = wake.map(|when| when.duration_since(facts.now));
        let wake = wake.and_then(|wait| Duration::try_from(wait).ok());
        let due = done.due.map(|due| due.saturating_duration_since(Instant::now()));
        let unhurried = due.map_or(unhurried, |due| unhurried.min(due));
        let next = wake.map_or(unhurried, |wait| unhurried.min(wait + SETTLE));
        if let Some((driver, error)) = done.failed.into_iter().next() {
            unreported.check(Some(next))?;
            return Err(error).context(ActSnafu { driver, next });
        }
        if done.something {
            unreported.check(Some(Duration::ZERO))?;
            return Ok(Duration::ZERO);
        }
        unreported.check(Some(next))?;
        Ok(next)
    }
}

/// The event about an object that VDO restored.
fn restored(reverted: &act::Reverted) -> Event {
    let text = reverted.to_string();
    // Kubernetes merges events with the same action, and shows the text of the first one.
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let object: String = reverted.object.to_string().chars().take(100).collect();
    Event {
        type_: EventType::Normal,
        reason: "Restored".into(),
        note: Some(report::shortened(text)),
        action: format!("{object} {:x}", hasher.finish()),
        secondary: None,
    }
}

/// The client of rounds, whose requests are their progress, and the client of tasks next to them.
fn clients(client: &Client, progress: &Watchdog) -> (Client, Client) {
    (kubernetes::watched(client, progress), client.clone())
}

/// The maximum age of a version answer. It is short enough for [`QUESTIONS`] requests within the time after
/// which VDO accepts a newer version.
fn version_age(timeouts: Timeouts) -> Duration {
    let settled = Duration::try_from(timeouts.settled).unwrap_or_default();
    (settled / QUESTIONS).min(VERSION_AGE)
}

fn summary(facts: &Facts, plan: &plan::Plan) -> Vec<String> {
    let name = facts.config.metadata.name.as_deref().unwrap_or_default();
    let drivers = plan.drivers.iter().map(|driver| {
        let next = match &driver.next {
            plan::Next::Apply(objects) => format!("apply {} objects", objects.len()),
            plan::Next::Delete(objects) => format!("delete {} objects", objects.len()),
            plan::Next::Record(_) => "record".into(),
            plan::Next::Restart { workload, .. } => format!("restart {workload}"),
            plan::Next::RenewFiles { .. } => "renew files".into(),
            other => format!("{other:?}"),
        };
        format!("{name}: {} {next}", driver.driver)
    });
    drivers.collect()
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use runtime::checks::Checks;
    use serde_json::{Value, json};

    use super::*;
    use crate::fake_api::{answering, serving};

    const NAMESPACE: &str = "vmware-system-vdo";

    /// The answer of an API server with a VDOConfig. The admission webhook for its status is down.
    fn without_statuses(verb: &str, uri: &str) -> (u16, Value) {
        let failure = |code: u16, reason: &str, message: &str| {
            let status = kube::core::Status::failure(message, reason).with_code(code);
            (code, json!(status))
        };
        let config = json!({
            "apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VDOConfig",
            "metadata": {
                "name": "vdo-config", "namespace": NAMESPACE, "uid": "1", "resourceVersion": "1",
                "generation": 1,
            },
            "spec": {"deletionPolicy": "Remove"},
        });
        let path = uri.split('?').next().unwrap_or_default();
        match (verb, path) {
            ("GET", "/version") => (200, json!({"gitVersion": "v1.34.0"})),
            ("GET", "/apis") => (200, json!({"groups": []})),
            ("GET", "/api/v1/namespaces/kube-system") => (200, json!({"metadata": {"uid": "2"}})),
            ("GET", path) if uri.contains("limit=") => {
                let configs = path.ends_with("/vdoconfigs").then_some(config);
                let items: Vec<Value> = configs.into_iter().collect();
                let metadata = json!({"resourceVersion": "1"});
                (
                    200,
                    json!({"apiVersion": "v1", "kind": "List", "metadata": metadata, "items": items}),
                )
            }
            ("GET", _) => failure(404, "NotFound", "not found"),
            ("PATCH", path) if path.ends_with("/status") => {
                failure(500, "InternalError", "failed calling webhook")
            }
            ("PATCH", _) => (200, json!({"metadata": {"name": "patched"}})),
            _ => (201, json!({"metadata": {}, "status": {"allowed": true}})),
        }
    }

    #[tokio::test]
    async fn a_round_acts_although_a_webhook_for_the_status_is_down() {
        let patched = Arc::new(Mutex::new(Vec::new()));
        let seen = patched.clone();
        let (client, _api_server) = serving(move |request: String| {
            let seen = seen.clone();
            async move {
                if request.contains("watch=") {
                    std::future::pending::<()>().await;
                }
                let mut words = request.split(' ').map(str::to_owned);
                let (verb, uri) = (words.next().unwrap(), words.next().unwrap());
                if verb == "PATCH" {
                    let path = uri.split('?').next().unwrap_or_default().to_owned();
                    seen.lock().unwrap_or_else(PoisonError::into_inner).push(path);
                }
                without_statuses(&verb, &uri)
            }
        })
        .await;
        let (timeouts, build) = (Timeouts::default(), BuildInfo::new("vdo"));
        let metrics = OperatorMetrics::default();
        let engine = Engine::start(client, NAMESPACE, timeouts, build, metrics).await;
        let error = Box::pin(engine.unwrap().round()).await.unwrap_err();
        assert!(error_chain(&error).contains("failed calling webhook"), "{}", error_chain(&error));
        let own =
            format!("/apis/vdo.vmware.com/v1alpha1/namespaces/{NAMESPACE}/vdoconfigs/vdo-config");
        let patched = patched.lock().unwrap_or_else(PoisonError::into_inner);
        let status = patched.iter().position(|path| *path == format!("{own}/status"));
        let finalizer = patched.iter().position(|path| *path == own);
        assert!(status.is_some() && finalizer.is_some(), "{patched:?}");
    }

    #[tokio::test]
    async fn requests_next_to_a_round_do_not_hide_that_it_hangs() {
        let limit = Duration::from_secs(1);
        let live = Checks::default();
        let progress = live.watchdog("progress", limit);
        let (client, _api_server) = answering(200, &serde_json::json!({})).await;
        let (rounds, background) = clients(&client, &progress);
        let request = async |client: &Client| drop(client.apiserver_version().await);
        let _hangs = progress.begin();
        tokio::time::sleep(limit).await;
        assert!(!live.pass());
        request(&background).await;
        assert!(!live.pass(), "the round still hangs");
        request(&rounds).await;
        assert!(live.pass(), "a request of the round has ended");
    }

    #[test]
    fn a_round_goes_on_after_the_api_server_refused_a_report_and_fails_at_its_end() {
        let answer = |code| {
            let status = kube::core::Status::failure("failed calling webhook", "InternalError");
            kube::Error::Api(Box::new(status.with_code(code)))
        };
        let mut unreported = Unreported::default();
        assert!(unreported.check(None).is_ok());
        for code in [500, 503, 403, 429] {
            assert!(unreported.note::<()>(Err(answer(code))).is_ok(), "{code}");
        }
        assert!(unreported.note(Ok(true)).is_ok());
        let error = unreported.check(Some(Duration::from_secs(7))).unwrap_err();
        assert!(error_chain(&error).contains("failed calling webhook"), "{error:?}");
        assert_eq!(error.next(), Some(Duration::from_secs(7)));

        let broken = std::io::Error::other("the connection broke");
        let none = unreported.note::<()>(Err(kube::Error::ReadEvents(broken)));
        assert!(none.is_err(), "the API server did not answer");
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_gives_up_after_rounds_have_failed_for_a_while_without_a_success() {
        let mut failures = Failures::new(Duration::from_mins(5));
        assert!(!failures.failed(), "one failure is not enough");
        tokio::time::sleep(Duration::from_mins(4)).await;
        assert!(!failures.failed());
        failures.succeeded();
        tokio::time::sleep(Duration::from_mins(4)).await;
        assert!(!failures.failed(), "the time counts from the first failure after a success");
        tokio::time::sleep(Duration::from_mins(5)).await;
        assert!(failures.failed());
    }
}
