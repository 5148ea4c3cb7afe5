//! The last log lines of containers that crashed.
//!
//! The drivers write no termination message. The drivers that VDO renders leave the end of their log in the
//! pod's status. For other drivers, installed by somebody else or by an earlier VDO, VDO requests the log of
//! the run that ended. It reads few lines, of few containers, a few at a time, and once for each crash.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use health::facts::{AccessReview, Known};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::{Api, Client, ResourceExt, api::LogParams};
use tokio::{sync::watch, task::JoinSet, time::timeout};

use super::cache::Filler;

/// The number of lines to read, from the end.
pub(crate) const LINES: usize = 20;
/// The maximum number of bytes to read.
const BYTES: i64 = 8 * 1024;
/// The maximum number of characters to keep of a line.
const WIDTH: usize = 1000;
/// Timeout for the kubelet to return a log.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The number of logs to read concurrently.
const AT_ONCE: usize = 4;
/// The maximum number of containers to read. If a driver crashes everywhere, the other containers log the
/// same.
pub(crate) const MOST: usize = 24;

/// The reason reported for a container beyond [`MOST`].
const TOO_MANY: &str = "so many containers crash that only the logs of the first ones are read";

/// The reason reported when the account lacks the permission to read logs.
const FORBIDDEN: &str = "this account cannot read logs: get pods/log is forbidden";

/// A container that ended.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CrashedContainer {
    namespace: String,
    pod: String,
    container: String,
}

/// The crash logs of a container, and the restart count of the run they belong to.
type Logs = BTreeMap<CrashedContainer, (i32, Known<Vec<String>>)>;

/// The last termination message in the status of a container; empty if there is none.
pub(crate) fn message(status: &ContainerStatus) -> &str {
    let ended = [&status.last_state, &status.state].into_iter().flatten();
    let ended = ended.filter_map(|state| state.terminated.as_ref());
    ended.filter_map(|ended| ended.message.as_deref()).next_back().unwrap_or_default()
}

/// Whether a container crashed and its status has no termination message.
fn lacks_message(status: &ContainerStatus) -> bool {
    let state = status.state.as_ref();
    let waiting = state.and_then(|state| state.waiting.as_ref()?.reason.as_deref());
    let ended = status.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    let failed = ended.is_some_and(|ended| ended.exit_code != 0);
    let crashed = waiting == Some("CrashLoopBackOff") || (status.restart_count > 0 && failed);
    !status.ready && crashed && message(status).is_empty()
}

/// The containers of a pod whose logs VDO must request, and the restart count of each.
fn without_message(pod: &Pod) -> impl Iterator<Item = (CrashedContainer, i32)> {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    statuses.filter(|status| lacks_message(status)).map(|status| {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        let container = status.name.clone();
        (CrashedContainer { namespace, pod: name, container }, status.restart_count)
    })
}

/// The same for all these pods, limited to the first [`MOST`] containers.
pub(crate) fn all_without_message<'p>(
    pods: impl Iterator<Item = &'p Pod>,
) -> BTreeMap<CrashedContainer, i32> {
    let mut all: BTreeMap<CrashedContainer, i32> = pods.flat_map(without_message).collect();
    while all.len() > MOST {
        all.pop_last();
    }
    all
}

/// Reads the end of the log of the run that ended.
async fn read(client: &Client, ended: &CrashedContainer) -> Known<Vec<String>> {
    let pods = Api::<Pod>::namespaced(client.clone(), &ended.namespace);
    let parameters = LogParams {
        container: Some(ended.container.clone()),
        previous: true,
        tail_lines: i64::try_from(LINES).ok(),
        limit_bytes: Some(BYTES),
        ..LogParams::default()
    };
    match timeout(TIMEOUT, pods.logs(&ended.pod, &parameters)).await {
        Ok(Ok(text)) => Known::Known(lines(&text)),
        // The same reason has the same message for every pod, so that many pods yield one finding.
        Ok(Err(kube::Error::Api(status))) if status.code == 403 => Known::unknown(FORBIDDEN),
        Ok(Err(kube::Error::Api(status))) if [400, 404].contains(&status.code) => {
            Known::unknown("the log of the run that ended is gone")
        }
        Ok(Err(_)) => Known::unknown("the kubelet does not give its log"),
        Err(_) => Known::unknown("the kubelet does not give its log in time"),
    }
}

/// The last lines of a text, shortened and redacted, because findings quote them.
pub(crate) fn lines(text: &str) -> Vec<String> {
    let text = redaction::redact_text(text);
    let all: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = &all[all.len().saturating_sub(LINES)..];
    last.iter().map(|line| line.chars().take(WIDTH).collect()).collect()
}

/// The crash logs read so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReadLogs(Logs);

impl ReadLogs {
    /// The last lines of a container and, if VDO cannot read them, the reason. Both are empty while VDO reads
    /// them for the first time.
    pub(crate) fn last_lines(
        &self,
        pod: &Pod,
        status: &ContainerStatus,
    ) -> (Vec<String>, Option<String>) {
        let message = message(status);
        if !message.is_empty() || !lacks_message(status) {
            return (lines(message), None);
        }
        let ended = CrashedContainer {
            namespace: pod.namespace().unwrap_or_default(),
            pod: pod.name_any(),
            container: status.name.clone(),
        };
        match self.0.get(&ended) {
            Some((_, Known::Known(lines))) => (lines.clone(), None),
            Some((_, Known::Unknown { reason })) => (Vec::new(), Some(reason.clone())),
            None if self.0.len() >= MOST => (Vec::new(), Some(TOO_MANY.to_owned())),
            None => (Vec::new(), None),
        }
    }

    /// The permission to read logs, if a read failed because it is missing.
    pub(crate) fn missing_permission(&self) -> Option<AccessReview> {
        let mut reasons = self.0.values().filter_map(|(_, log)| log.reason());
        reasons.any(|reason| reason == FORBIDDEN).then(permission)
    }
}

fn permission() -> AccessReview {
    AccessReview {
        group: String::new(),
        resource: "pods/log".to_owned(),
        namespace: None,
        verb: "get".to_owned(),
        allowed: false,
        needed_for: "reading the crash logs of drivers that are not managed by VDO".to_owned(),
    }
}

type LogResult = (CrashedContainer, i32, Known<Vec<String>>);

async fn fetch(client: Client, ended: CrashedContainer, restarts: i32) -> LogResult {
    let log = read(&client, &ended).await;
    (ended, restarts, log)
}

fn store(logs: &mut Logs, result: Option<Result<LogResult, tokio::task::JoinError>>) {
    if let Some(Ok((ended, restarts, log))) = result {
        logs.insert(ended, (restarts, log));
    }
}

/// Reads the crash logs of the requested containers: once, and again after each further crash.
pub(crate) struct CrashLogs {
    wanted: watch::Sender<BTreeMap<CrashedContainer, i32>>,
    logs: Arc<RwLock<Logs>>,
}

impl CrashLogs {
    /// The task notifies `changed` whenever it has read a log.
    pub(crate) fn new(client: &Client, changed: &Arc<watch::Sender<()>>) -> (Self, Filler) {
        let wanted = watch::Sender::new(BTreeMap::new());
        let logs = Arc::new(RwLock::new(Logs::new()));
        let filler = follow(client.clone(), wanted.subscribe(), logs.clone(), changed.clone());
        (Self { wanted, logs }, Box::pin(filler))
    }

    /// Replaces the set of containers to read.
    pub(crate) fn follow(&self, crashed: BTreeMap<CrashedContainer, i32>) {
        self.wanted.send_if_modified(|before| {
            let news = *before != crashed;
            *before = crashed;
            news
        });
    }

    /// Whether the log of every requested container was read.
    pub(crate) fn is_read(&self) -> bool {
        let logs = self.logs.read().unwrap_or_else(PoisonError::into_inner);
        self.wanted.borrow().keys().all(|ended| logs.contains_key(ended))
    }

    /// The crash logs read so far.
    pub(crate) fn read_logs(&self) -> ReadLogs {
        ReadLogs(self.logs.read().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

async fn follow(
    client: Client,
    mut requested: watch::Receiver<BTreeMap<CrashedContainer, i32>>,
    logs: Arc<RwLock<Logs>>,
    changed: Arc<watch::Sender<()>>,
) {
    let mut tasks = JoinSet::new();
    let mut asked: BTreeSet<(CrashedContainer, i32)> = BTreeSet::new();
    loop {
        let wanted = requested.borrow_and_update().clone();
        asked.retain(|(ended, restarts)| wanted.get(ended) == Some(restarts));
        {
            let mut logs = logs.write().unwrap_or_else(PoisonError::into_inner);
            logs.retain(|ended, _| wanted.contains_key(ended));
        }
        for one in wanted {
            if tasks.len() < AT_ONCE && asked.insert(one.clone()) {
                tasks.spawn(fetch(client.clone(), one.0, one.1));
            }
        }
        tokio::select! {
            more = requested.changed() => if more.is_err() { return },
            done = tasks.join_next(), if !tasks.is_empty() => {
                store(&mut logs.write().unwrap_or_else(PoisonError::into_inner), done);
                changed.send_replace(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, status: &Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "vsphere"},
            "status": {"containerStatuses": [status]},
        }))
        .unwrap()
    }

    fn crashed(message: Option<&str>) -> Value {
        json!({
            "name": "syncer", "ready": false, "restartCount": 4, "image": "", "imageID": "",
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"exitCode": 1, "message": message}},
        })
    }

    #[test]
    fn only_crashed_containers_without_a_termination_message_need_their_log() {
        let mut running = crashed(None);
        running["state"] = json!({"running": {}});
        running["lastState"]["terminated"]["exitCode"] = json!(0);
        let mut starting = crashed(None);
        starting["restartCount"] = json!(0);
        starting["state"] = json!({"waiting": {"reason": "ContainerCreating"}});
        let mut again = crashed(None);
        again["state"] = json!({"running": {}});
        let mut well = again.clone();
        well["ready"] = json!(true);
        for (status, expected) in [
            (crashed(None), 1),
            (crashed(Some("bind: address already in use")), 0),
            (again, 1),
            (well, 0),
            (running, 0),
            (starting, 0),
        ] {
            assert_eq!(
                all_without_message([pod("one", &status)].iter()).len(),
                expected,
                "{status}"
            );
        }
    }

    #[test]
    fn of_a_driver_that_crashes_everywhere_few_logs_are_read_and_the_others_are_unknown() {
        let pods: Vec<Pod> = (0..1000).map(|n| pod(&format!("{n:04}"), &crashed(None))).collect();
        let wanted = all_without_message(pods.iter());
        assert_eq!(wanted.len(), MOST);
        let logs = wanted.into_keys().map(|ended| (ended, (4, vec!["why".to_owned()].into())));
        let read = ReadLogs(logs.collect());
        let last_lines = |pod: &Pod| {
            let status = pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap();
            read.last_lines(pod, &status[0])
        };
        assert_eq!(last_lines(&pods[0]), (vec!["why".to_owned()], None));
        assert_eq!(last_lines(&pods[999]), (Vec::new(), Some(TOO_MANY.to_owned())));
    }

    #[test]
    fn a_crash_log_has_few_lines_of_limited_length() {
        let text = format!("{}\n\n{}\n", "early\n".repeat(30), "x".repeat(5000));
        let lines = lines(&text);
        assert_eq!(lines.len(), LINES);
        assert_eq!(lines[LINES - 1].len(), WIDTH);
    }
}
