//! The simulator's control API: faults, changes and counters.

use std::{collections::BTreeMap, time::Duration};

use reqwest::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Permission, Role, Vcenter, VcenterUser, Vm};
use crate::error::{Error, LeverSnafu, must};

/// A fault on demand: the calls it affects, and their outcome.
#[derive(Clone, Debug, Serialize)]
pub struct Fault(Value);

/// Calls counted since the start or the last [`Vcenter::forget_calls`].
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Calls {
    /// By method; REST calls as `GET /rest/...`.
    pub total: BTreeMap<String, u64>,
    /// By session.
    pub sessions: BTreeMap<String, SessionCalls>,
}

/// Calls of one session.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct SessionCalls {
    /// The user of the session.
    #[serde(default)]
    pub user: String,
    /// The user agent that opened it.
    #[serde(default)]
    pub agent: String,
    /// By method.
    #[serde(default)]
    pub calls: BTreeMap<String, u64>,
}

impl Calls {
    /// The number of calls of this method.
    pub fn count(&self, method: &str) -> u64 {
        self.total.get(method).copied().unwrap_or(0)
    }

    pub fn sum(&self) -> u64 {
        self.total.values().sum()
    }
}

impl Fault {
    /// For calls of this method (`Login`, `POST /rest/com/vmware/cis/session`); `*` for all.
    pub fn on(method: &str) -> Self {
        Self(json!({ "method": method }))
    }

    fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.0[key] = value.into();
        self
    }

    /// The call fails with this fault type: `NoPermission`, `NotAuthenticated`, ...
    #[must_use]
    pub fn fails(self, fault: &str) -> Self {
        self.with("fault", fault)
    }

    /// The message of the fault.
    #[must_use]
    pub fn message(self, text: &str) -> Self {
        self.with("message", text)
    }

    /// The response is delayed.
    #[must_use]
    pub fn delayed(self, by: Duration) -> Self {
        self.with("delayMs", u64::try_from(by.as_millis()).unwrap_or(u64::MAX))
    }

    /// The call gets no response.
    #[must_use]
    pub fn hangs(self) -> Self {
        self.with("hang", true)
    }

    /// The connection is closed without a response.
    #[must_use]
    pub fn dropped(self) -> Self {
        self.with("drop", true)
    }

    /// Half of the response is sent, then the connection is closed.
    #[must_use]
    pub fn truncated(self) -> Self {
        self.with("truncate", true)
    }

    /// The response has this HTTP status and no body.
    #[must_use]
    pub fn status(self, status: u16) -> Self {
        self.with("status", status)
    }

    /// The task that the call starts fails with this fault.
    #[must_use]
    pub fn task_fails(self, fault: &str) -> Self {
        self.with("task", "fail").with("taskFault", fault)
    }

    /// The task that the call starts takes this long, and reports progress.
    #[must_use]
    pub fn task_takes(self, time: Duration) -> Self {
        self.with("task", "slow")
            .with("taskDelayMs", u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
    }

    /// The task that the call starts never ends.
    #[must_use]
    pub fn task_never_ends(self) -> Self {
        self.with("task", "never")
    }

    /// Only for calls of this user.
    #[must_use]
    pub fn for_user(self, user: &str) -> Self {
        self.with("user", user)
    }

    /// Only on this object, by its reference (`vm-12`).
    #[must_use]
    pub fn on_object(self, reference: &str) -> Self {
        self.with("object", reference)
    }

    /// Skips this many calls first.
    #[must_use]
    pub fn after(self, calls: u32) -> Self {
        self.with("skip", calls)
    }

    /// Only this many times.
    #[must_use]
    pub fn times(self, count: u32) -> Self {
        self.with("count", count)
    }

    /// Only with this probability, from a seeded generator.
    #[must_use]
    pub fn with_probability(self, probability: f64, seed: u64) -> Self {
        self.with("probability", probability).with("seed", seed)
    }
}

impl Vcenter {
    /// Sets a fault. Several can be set; the first that matches a call applies.
    pub async fn fault(&self, fault: Fault) {
        self.lever(Method::POST, "/faults", Some(json!([fault]))).await;
    }

    /// Removes all faults.
    pub async fn clear_faults(&self) {
        self.lever(Method::DELETE, "/faults", None).await;
    }

    /// The counted calls.
    pub async fn calls(&self) -> Calls {
        let counted = self.lever(Method::GET, "/counts", None).await;
        serde_json::from_value(counted).expect("the simulator's counters have our shape")
    }

    /// Resets the counters.
    pub async fn forget_calls(&self) {
        self.lever(Method::DELETE, "/counts", None).await;
    }

    /// The current inventory, in the format of the inventory file plus `moref`s, to compare with a client's view.
    pub async fn truth(&self) -> Value {
        self.lever(Method::GET, "/inventory", None).await
    }

    /// Adds VMs to a datacenter.
    pub async fn add_vms(&self, datacenter: &str, vms: impl IntoIterator<Item = Vm>) {
        let vms: Vec<Value> = vms
            .into_iter()
            .map(|vm| {
                let mut vm = serde_json::to_value(vm).expect("plain data");
                vm["datacenter"] = datacenter.into();
                vm
            })
            .collect();
        self.lever(Method::POST, "/vms", Some(vms.into())).await;
    }

    /// Changes fields of a VM (`host` is a vMotion, `power`, `nics`, `uuid`, ...).
    pub async fn patch_vm(&self, path: &str, change: Value) {
        self.lever(Method::PATCH, &format!("/vms?path={}", escape(path)), Some(change)).await;
    }

    pub async fn destroy_vm(&self, path: &str) {
        self.lever(Method::DELETE, &format!("/vms?path={}", escape(path)), None).await;
    }

    /// Unregisters and registers a VM: same uuids, new reference.
    pub async fn reregister_vm(&self, path: &str) {
        self.lever(Method::POST, &format!("/vms/reregister?path={}", escape(path)), None).await;
    }

    /// Changes fields of a host (`maintenance`, `connection`, `version`).
    pub async fn patch_host(&self, path: &str, change: Value) {
        self.lever(Method::PATCH, &format!("/hosts?path={}", escape(path)), Some(change)).await;
    }

    /// Changes fields of a datastore (`accessible`, `maintenance`, `freeGiB`, `hosts`).
    pub async fn patch_datastore(&self, path: &str, change: Value) {
        self.lever(Method::PATCH, &format!("/datastores?path={}", escape(path)), Some(change))
            .await;
    }

    /// Sets a permission.
    pub async fn permit(&self, permission: &Permission) {
        self.lever(Method::POST, "/permissions", Some(json!([permission]))).await;
    }

    /// Removes the permission of `principal` on `entity`.
    pub async fn forbid(&self, entity: &str, principal: &str) {
        let query = format!("entity={}&principal={}", escape(entity), escape(principal));
        self.lever(Method::DELETE, &format!("/permissions?{query}"), None).await;
    }

    /// Creates a role or replaces its privileges.
    pub async fn set_role(&self, role: &Role) {
        self.lever(Method::POST, "/roles", Some(json!([role]))).await;
    }

    /// Attaches a tag to these paths, and creates category and tag if they are missing.
    pub async fn attach_tag(&self, category: &str, tag: &str, paths: &[&str]) {
        let body = json!({"category": category, "tag": tag, "attach": paths});
        self.lever(Method::POST, "/tags", Some(body)).await;
    }

    /// Detaches a tag from these paths.
    pub async fn detach_tag(&self, category: &str, tag: &str, paths: &[&str]) {
        let body = json!({"category": category, "tag": tag, "detach": paths});
        self.lever(Method::POST, "/tags", Some(body)).await;
    }

    /// Ends all sessions of a user (of all users, if empty): the next call with them is `NotAuthenticated`.
    pub async fn expire_sessions(&self, user: &str) {
        self.lever(Method::DELETE, &format!("/sessions?user={}", escape(user)), None).await;
    }

    /// The open sessions.
    pub async fn sessions(&self) -> Value {
        self.lever(Method::GET, "/sessions", None).await
    }

    /// Adds or replaces a user: a changed password, an unlocked account.
    pub async fn set_user(&self, user: &VcenterUser) {
        self.lever(Method::POST, "/users", Some(json!([user]))).await;
    }

    /// Users with their failed logins and whether they are locked.
    pub async fn users(&self) -> Value {
        self.lever(Method::GET, "/users", None).await
    }

    /// Restarts the vCenter service: 503 for this long, then all sessions, filters and views are gone.
    pub async fn restart(&self, down: Duration) {
        let down = u64::try_from(down.as_millis()).unwrap_or(u64::MAX);
        self.lever(Method::POST, "/restart", Some(json!({ "downMs": down }))).await;
    }

    /// A restart after which vCenter does not know its running tasks any more, although their work goes on.
    pub async fn restart_and_forget_tasks(&self, down: Duration) {
        let down = u64::try_from(down.as_millis()).unwrap_or(u64::MAX);
        let how = json!({ "downMs": down, "forgetTasks": true });
        self.lever(Method::POST, "/restart", Some(how)).await;
    }

    /// Creates many volumes of a cluster at once, and attaches some of them to each VM, in the order of their names.
    /// Returns the ids of the volumes.
    pub async fn add_volumes(
        &self,
        cluster: &str,
        count: usize,
        attach_each: usize,
    ) -> Vec<String> {
        let volumes = json!({ "cluster": cluster, "count": count, "megabytes": 8, "attachEach": attach_each });
        let added = self.lever(Method::POST, "/volumes", Some(volumes)).await;
        let ids = added["ids"].as_array().into_iter().flatten();
        ids.filter_map(|id| id.as_str().map(str::to_owned)).collect()
    }

    /// Moves the disk of a volume to another datastore, like a Storage vMotion.
    pub async fn move_volume(&self, volume: &str, datastore: &str) {
        let path = format!("/volumes?id={}", escape(volume));
        self.lever(Method::PATCH, &path, Some(json!({ "datastore": datastore }))).await;
    }

    /// Sets the clock of its responses: this many seconds ahead of the computer.
    pub async fn set_clock(&self, ahead: i64) {
        self.lever(Method::POST, "/clock", Some(json!({ "aheadSeconds": ahead }))).await;
    }

    /// Any request to the control port.
    ///
    /// # Panics
    /// If the simulator rejects it.
    pub async fn lever(&self, method: Method, path: &str, body: Option<Value>) -> Value {
        must(self.try_lever(method, path, body).await)
    }

    async fn try_lever(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<Value, Error> {
        let what = format!("{method} {path}");
        let fail = |text: String| LeverSnafu { what: what.clone(), text }.fail();
        let mut request = self.http.request(method, format!("{}{path}", self.control));
        if let Some(body) = body {
            request = request.json(&body);
        }
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) => return fail(format!("{error}\n{}", self.process.tail())),
        };
        let status = response.status();
        let text = response.text().await.unwrap_or_default();
        if !status.is_success() {
            return fail(format!("{status} {text}"));
        }
        Ok(serde_json::from_str(&text).unwrap_or(Value::Null))
    }
}

/// A percent-encoded query value.
fn escape(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~/@".contains(&byte);
    text.bytes()
        .map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") })
        .collect()
}
