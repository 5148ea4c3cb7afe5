//! The operator's requests to the API server, from the audit log.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use serde_json::{Value, json};
use testkit::Process;
use tokio::time::Instant;

use super::{NAMESPACE, Testbed};

/// The maximum number of writes of an object's status while its cluster is in a lasting state.
const STATUS_WRITES: usize = 6;

/// The largest page of a list that can contain objects of a tenant.
const TENANT_PAGE: u32 = 25;

/// The kinds that only admins, nodes and controllers write.
const OF_THE_CLUSTER: [&str; 17] = [
    "clusterrolebindings",
    "clusterroles",
    "csidrivers",
    "csinodes",
    "csinodetopologies",
    "customresourcedefinitions",
    "infrastructures",
    "mutatingwebhookconfigurations",
    "nodes",
    "persistentvolumes",
    "proxies",
    "securitycontextconstraints",
    "storageclasses",
    "validatingwebhookconfigurations",
    "volumeattachments",
    "volumesnapshotclasses",
    "volumesnapshotcontents",
];

/// The operator's writes of an object's status: the last one before a time, and all since then.
#[derive(Default)]
struct StatusWrites {
    /// The last status, without numbers, and its audit.
    last: Option<String>,
    /// The times of audits of vCenter.
    audits: BTreeSet<String>,
    /// The number of writes since that time.
    count: usize,
}

impl Testbed {
    /// Every request of a service account in VDO's namespace.
    fn requests_of(&self, account: &str) -> impl Iterator<Item = Value> {
        let own = format!("system:serviceaccount:{NAMESPACE}:{account}");
        let events = self.plane.audit().into_iter();
        events.filter(move |event| event["impersonatedUser"]["username"] == own.as_str())
    }

    /// Verb and path of every successful write of an account, without leases.
    pub fn changes_of(&self, namespace: &str, account: &str) -> Vec<String> {
        let own = format!("system:serviceaccount:{namespace}:{account}");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let all = self.plane.audit().into_iter().filter(|event| {
            let uri = event["requestURI"].as_str().unwrap_or_default();
            let verb = event["verb"].as_str().unwrap_or_default();
            event["impersonatedUser"]["username"] == own.as_str()
                && !matches!(verb, "get" | "list" | "watch")
                && !["/leases", "selfsubject"].iter().any(|part| uri.contains(part))
                && event["responseStatus"]["code"].as_u64().is_some_and(|code| code < 300)
        });
        all.map(|e| format!("{} {}", text(&e["verb"]), text(&e["requestURI"]))).collect()
    }

    /// Requests of the operator that RBAC denied.
    pub fn denied_requests(&self) -> Vec<String> {
        let by_quota = |event: &Value| {
            let message = event["responseStatus"]["message"].as_str().unwrap_or_default();
            message.contains("exceeded quota")
        };
        let refused = self
            .requests_of("vdo")
            .filter(|event| event["responseStatus"]["code"] == 403 && !by_quota(event));
        refused.map(|event| format!("{} {}", event["verb"], event["requestURI"])).collect()
    }

    /// Lists of the operator that can contain objects of tenants, in pages so large that such objects fill its memory.
    pub fn lists_in_large_pages(&self) -> BTreeSet<String> {
        let large = self.requests_of("vdo").filter(|event| {
            let object = &event["objectRef"];
            let kind = object["resource"].as_str().unwrap_or_default();
            let uri = event["requestURI"].as_str().unwrap_or_default();
            let (_, query) = uri.split_once('?').unwrap_or_default();
            let limit = query.split('&').find_map(|part| part.strip_prefix("limit="));
            let limit = limit.and_then(|limit| limit.parse::<u32>().ok());
            event["verb"] == "list"
                && object["namespace"].is_null()
                && !OF_THE_CLUSTER.contains(&kind)
                && limit.is_none_or(|limit| limit == 0 || limit > TENANT_PAGE)
        });
        large.map(|event| event["requestURI"].to_string()).collect()
    }

    /// Requests of the operator that failed with a conflict, without leases.
    pub fn conflicts(&self) -> Vec<String> {
        let refused = self.requests_of("vdo").filter(|e| e["responseStatus"]["code"] == 409);
        let uris = refused.map(|event| event["requestURI"].to_string());
        uris.filter(|uri| !uri.contains("leases")).collect()
    }

    /// Verb and path of the operator's writes, without leases, events, status and the record of the VDOConfig
    /// that it follows.
    pub fn writes(&self) -> Vec<String> {
        self.writes_since(Timestamp::MIN)
    }

    /// The writes since this time. The API server can log a request after it has answered, so this compares the
    /// times of requests, not the length of the list.
    pub fn writes_since(&self, since: Timestamp) -> Vec<String> {
        self.writes_by("vdo", since)
    }

    /// The writes of another service account in VDO's namespace.
    pub fn writes_of(&self, account: &str) -> Vec<String> {
        self.writes_by(account, Timestamp::MIN)
    }

    fn writes_by(&self, account: &str, since: Timestamp) -> Vec<String> {
        let writes = self.requests_of(account).filter(|event| {
            let uri = event["requestURI"].as_str().unwrap_or_default();
            let verb = event["verb"].as_str().unwrap_or_default();
            let received = event["requestReceivedTimestamp"].as_str().unwrap_or_default();
            received.parse::<Timestamp>().is_ok_and(|received| received >= since)
                && !matches!(verb, "get" | "list" | "watch")
                && !["leases", "events", "/status", "selfsubject", "configmaps/vdo-followed"]
                    .iter()
                    .any(|p| uri.contains(p))
        });
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        writes.map(|e| format!("{} {}", text(&e["verb"]), text(&e["requestURI"]))).collect()
    }

    /// Statuses that the operator wrote three times in a row without a change, although nobody else wrote the object in
    /// between. A second time can be a retry: a test cut the connection, or killed the operator, after the API server
    /// had stored the status.
    pub fn repeated_status_writes(&self) -> Vec<String> {
        let own = format!("system:serviceaccount:{NAMESPACE}:vdo");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut events: Vec<Value> = self.plane.audit();
        events.retain(|event| {
            // VDO reports once per start that it does not follow objects in other namespaces.
            let object = &event["objectRef"];
            let ours = object["apiGroup"] == "vdo.vmware.com" && object["namespace"] == NAMESPACE;
            let verb = event["verb"].as_str().unwrap_or_default();
            ours && !matches!(verb, "get" | "list" | "watch")
        });
        events.sort_by_key(|event| text(&event["requestReceivedTimestamp"]));
        let mut last: BTreeMap<String, (Value, usize)> = BTreeMap::new();
        let mut repeated = Vec::new();
        for event in events {
            let object =
                ["resource", "namespace", "name"].map(|key| text(&event["objectRef"][key]));
            let object = object.join("/");
            let status = event["objectRef"]["subresource"] == "status";
            let written = event["responseStatus"]["code"].as_u64().is_some_and(|code| code < 300);
            if event["impersonatedUser"]["username"] != own.as_str() || !status || !written {
                last.remove(&object);
                continue;
            }
            let body = event["requestObject"].clone();
            let before = last.get(&object).filter(|(before, _)| *before == body);
            let times = before.map_or(1, |(_, times)| times + 1);
            if times > 2 {
                repeated.push(format!("{object} at {}", event["requestReceivedTimestamp"]));
            }
            last.insert(object, (body, times));
        }
        repeated
    }

    /// Statuses that the operator wrote since this time, although its previous write of the object had the same status,
    /// apart from numbers and times. The time of one audit of vCenter is news. A status can change back: while vCenter
    /// is unreachable, the text of the error depends on how the connection fails. But more than [`STATUS_WRITES`]
    /// writes of an object are too many.
    fn needless_status_writes(&self, since: Timestamp) -> Vec<String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut writes: Vec<Value> = self.requests_of("vdo").collect();
        writes.retain(|event| {
            let written = event["responseStatus"]["code"].as_u64().is_some_and(|code| code < 300);
            written && event["objectRef"]["subresource"] == "status"
        });
        writes.sort_by_key(|event| text(&event["requestReceivedTimestamp"]));
        let mut objects: BTreeMap<String, StatusWrites> = BTreeMap::new();
        let mut needless = Vec::new();
        for event in writes {
            let received = text(&event["requestReceivedTimestamp"]);
            let status = &event["requestObject"]["status"];
            let audits = [&status["health"]["audited"], &status["privileges"]["checkedAt"]];
            let (status, audit) = (status.to_string(), format!("{audits:?}"));
            let masked = status.split(|c: char| c.is_ascii_digit()).filter(|part| !part.is_empty());
            let masked = masked.collect::<Vec<_>>().join("#");
            let object = objects.entry(text(&event["requestURI"])).or_default();
            if received.parse::<Timestamp>().is_ok_and(|received| received < since) {
                *object = StatusWrites::default();
            } else {
                object.count += 1;
            }
            object.audits.insert(audit.clone());
            let before = object.last.replace(masked + &audit);
            let same = before == object.last;
            if same || object.audits.len() > 2 || object.count > STATUS_WRITES {
                needless.push(format!("{} at {received}: {status}", event["requestURI"]));
            }
        }
        needless
    }

    /// The operator's status writes without a reason while a cluster is in a lasting state, for ten seconds and at least
    /// four rounds. Meanwhile somebody writes annotations, so that the operator does not stop to compare.
    pub async fn status_writes_in_a_lasting_state(&self, operator: &Process) -> Vec<String> {
        self.two_more_rounds(operator).await;
        let (since, before) = (Timestamp::now(), self.rounds(operator).await);
        let (began, mut rounds) = (Instant::now(), 0);
        while rounds < 4 || began.elapsed() < Duration::from_secs(10) {
            let late = began.elapsed() > Duration::from_mins(2);
            assert!(!late, "{rounds} rounds in two minutes: {}", operator.tail());
            let note = json!({"example.com/busy": Timestamp::now().to_string()});
            self.change(json!({"metadata": {"annotations": note}})).await;
            tokio::time::sleep(Duration::from_millis(500)).await;
            rounds = self.rounds(operator).await - before;
        }
        self.needless_status_writes(since)
    }

    /// The operator's deletions of objects that it must never delete.
    pub fn forbidden_deletions(&self) -> Vec<String> {
        let kept = [
            "/namespaces/",
            "customresourcedefinitions/",
            "persistentvolumes/",
            "volumeattachments/",
            "/nodes/",
            "storageclasses/",
            "csinodes/",
            "persistentvolumeclaims/",
            "volumesnapshotclasses/",
            "/pods/",
        ];
        let mut writes = self.writes();
        writes.retain(|write| {
            let object = write.rsplit("/namespaces/").next().unwrap_or_default();
            let namespace = write.contains("/namespaces/") && !object.contains('/');
            let other = kept[1..].iter().any(|kind| write.contains(kind));
            write.starts_with("delete") && (namespace || other)
        });
        writes
    }

    /// The writes since this time, after two more rounds of the operator.
    pub async fn writes_after_two_rounds(
        &self,
        operator: &Process,
        since: Timestamp,
    ) -> Vec<String> {
        self.two_more_rounds(operator).await;
        self.writes_since(since)
    }

    pub fn deletions(&self) -> Vec<String> {
        self.writes().into_iter().filter(|write| write.starts_with("delete")).collect()
    }
}
