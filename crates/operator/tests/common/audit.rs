//! What the operator asked of the API server, as the audit log has it.

use jiff::Timestamp;
use serde_json::Value;
use testkit::Process;

use super::{NAMESPACE, Stage};

impl Stage {
    /// Every request of an account beside the operator, or of the operator itself.
    fn requests_of(&self, account: &str) -> impl Iterator<Item = Value> {
        let own = format!("system:serviceaccount:{NAMESPACE}:{account}");
        let events = self.plane.audit().into_iter();
        events.filter(move |event| event["impersonatedUser"]["username"] == own.as_str())
    }

    /// What an account of any namespace changed but leases: verb and path of every request that was accepted.
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

    /// Requests of the operator that were refused for lack of rights.
    pub fn refusals(&self) -> Vec<String> {
        let by_quota = |event: &Value| {
            let message = event["responseStatus"]["message"].as_str().unwrap_or_default();
            message.contains("exceeded quota")
        };
        let refused = self
            .requests_of("vdo")
            .filter(|event| event["responseStatus"]["code"] == 403 && !by_quota(event));
        refused.map(|event| format!("{} {}", event["verb"], event["requestURI"])).collect()
    }

    /// Requests of the operator that were refused because somebody else wrote meanwhile, but for leases.
    pub fn conflicts(&self) -> Vec<String> {
        let refused = self.requests_of("vdo").filter(|e| e["responseStatus"]["code"] == 409);
        let uris = refused.map(|event| event["requestURI"].to_string());
        uris.filter(|uri| !uri.contains("leases")).collect()
    }

    /// What the operator wrote: verb and path of every request that changed something but leases,
    /// events, status and the record of which VDOConfig it follows.
    pub fn writes(&self) -> Vec<String> {
        self.writes_since(Timestamp::MIN)
    }

    /// The same, of what came after this instant. An entry may come into the log after the answer was
    /// sent: what was there before is told by the time of the request, not by the length of the list.
    pub fn writes_since(&self, since: Timestamp) -> Vec<String> {
        self.writes_by("vdo", since)
    }

    /// The same of whoever uses another account beside the operator's.
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

    /// Deletions by the operator of what it must never delete.
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

    /// What the operator wrote since then, in the end.
    pub async fn writes_in_the_end(&self, operator: &Process, since: Timestamp) -> Vec<String> {
        self.two_more_rounds(operator).await;
        self.writes_since(since)
    }

    /// What the operator deleted.
    pub fn deletions(&self) -> Vec<String> {
        self.writes().into_iter().filter(|write| write.starts_with("delete")).collect()
    }
}
