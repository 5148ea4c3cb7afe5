//! One session for all callers: opened once, kept alive, reopened, closed, without login storms.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{
    client_of, connected, failed_logins, has_api, holds, lockable, on_every_release, quick,
};
use testkit::{Fault, Inventory, Vcenter, VcenterUser, eventually};
use vsphere::inventory::{Selection, Status, Vm};
use vsphere::sessions::holders;
use vsphere::{Call, CallObserver, Client, Credentials, Error, Limits, LoginRefusal, Outcome};

fn vms() -> Selection {
    Selection::new().vms(&[Vm::IDENTITY])
}

/// Makes many concurrent reads. Returns how many succeeded.
async fn read_at_once(client: &Client, times: usize) -> usize {
    let vms = vms();
    let outcomes = futures::future::join_all((0..times).map(|_| client.collect(&vms))).await;
    outcomes.iter().filter(|outcome| outcome.is_ok()).count()
}

fn credentials(user: &VcenterUser, password: &str) -> Credentials {
    Credentials::new(user.name.as_str(), password)
}

fn refusal(error: &Error) -> Option<LoginRefusal> {
    match error {
        Error::LoginRefused { reason, .. } => Some(*reason),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_callers_share_one_session_that_names_the_program() {
    on_every_release(async |version| {
        let vcenter = Vcenter::start(Inventory::with_vms(2).version(version)).await;
        let client = connected(&vcenter).await;
        assert_eq!(read_at_once(&client, 100).await, 100);
        assert_eq!(vcenter.calls().await.count("Login"), 1);
        let sessions = client.sessions().await.unwrap();
        let held = holders(&sessions);
        let ours: Vec<_> =
            held.iter().filter(|((_, agent), _)| *agent == "vsphere-test/1").collect();
        assert_eq!(ours.iter().map(|(_, n)| **n).sum::<usize>(), 1, "{held:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ended_session_is_reopened_once_for_all_callers() {
    on_every_release(async |version| {
        let vcenter = Vcenter::start(Inventory::with_vms(2).version(version)).await;
        let client = connected(&vcenter).await;
        for round in 2..5 {
            vcenter.expire_sessions(vcenter.user()).await;
            assert_eq!(read_at_once(&client, 100).await, 100);
            assert_eq!(vcenter.calls().await.count("Login"), round);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_ended_by_an_administrator_breaks_no_call() {
    on_every_release(async |version| {
        let vcenter = Vcenter::start(Inventory::with_vms(2).version(version)).await;
        let (client, other) = (connected(&vcenter).await, connected(&vcenter).await);
        let key = client.session_key().await.unwrap();
        other.end_sessions(&[key]).await.unwrap();
        assert_eq!(read_at_once(&client, 10).await, 10);
        assert_eq!(read_at_once(&other, 10).await, 10);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_login_is_tried_only_once() {
    on_every_release(async |version| {
        let (user, inventory) = lockable();
        let vcenter = Vcenter::start(inventory.version(version)).await;
        let error = client_of(&vcenter)
            .credentials(credentials(&user, "Wrong"))
            .connect()
            .await
            .unwrap_err();
        assert_eq!(refusal(&error), Some(LoginRefusal::Credentials));
        let text = error.to_string();
        assert!(
            text.contains("does not let vdo@vsphere.local log in")
                && text.contains("the user name or password is wrong"),
            "{text}"
        );
        assert_eq!(failed_logins(&vcenter, &user.name).await, 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn vcenters_reason_for_a_refused_login_is_reported() {
    on_every_release(async |version| {
        let (user, inventory) = lockable();
        let vcenter = Vcenter::start(inventory.version(version)).await;
        let try_with = async |password: &str| {
            let error = client_of(&vcenter)
                .credentials(credentials(&user, password))
                .connect()
                .await
                .unwrap_err();
            refusal(&error).unwrap_or_else(|| panic!("{}", error.error_chain()))
        };
        vcenter.fault(Fault::on("Login").fails("PasswordExpired").times(1)).await;
        assert_eq!(try_with("Right-1").await, LoginRefusal::PasswordExpired);
        vcenter
            .fault(
                Fault::on("Login")
                    .fails("InvalidLogin")
                    .message("The account of the user is locked.")
                    .times(1),
            )
            .await;
        assert_eq!(try_with("Right-1").await, LoginRefusal::Locked);
        vcenter.fault(Fault::on("Login").fails("NoPermission").times(1)).await;
        assert_eq!(try_with("Right-1").await, LoginRefusal::NoPermission);

        vcenter.forget_calls().await;
        for (password, reason) in
            [("", LoginRefusal::Missing), ("Right-1\n", LoginRefusal::LineBreak)]
        {
            assert_eq!(try_with(password).await, reason);
        }
        assert_eq!(vcenter.calls().await.count("Login"), 0, "nothing was sent");

        // Another client sends three wrong passwords; then vCenter rejects even the right one.
        for _ in 0..3 {
            try_with("Wrong").await;
        }
        let users = vcenter.users().await;
        let locked = users.as_array().unwrap().iter().find(|u| u["name"] == user.name.as_str());
        assert_eq!(locked.unwrap()["locked"], true, "{users}");
        // vCenter gives the same answer for a locked account and a wrong password, and so does our
        // error.
        assert_eq!(try_with("Right-1").await, LoginRefusal::Credentials);
        assert!(LoginRefusal::Credentials.to_string().contains("or the account is locked"));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_are_replaced_only_after_a_successful_login() {
    on_every_release(async |version| {
        let (user, inventory) = lockable();
        let vcenter = Vcenter::start(inventory.version(version)).await;
        let client = client_of(&vcenter)
            .credentials(credentials(&user, &user.password))
            .connect()
            .await
            .unwrap();
        client.tags(Duration::ZERO).categories().await.unwrap();

        client.set_credentials(credentials(&user, "Wrong")).await.unwrap_err();
        assert_eq!(read_at_once(&client, 5).await, 5, "the old credentials stay in use");

        let rotated = VcenterUser { password: "Rotated-2".to_owned(), ..user.clone() };
        vcenter.set_user(&rotated).await;
        client.set_credentials(credentials(&user, "Rotated-2")).await.unwrap();
        vcenter.expire_sessions(&user.name).await;
        assert_eq!(read_at_once(&client, 5).await, 5, "the next session uses the new credentials");
        client.tags(Duration::ZERO).categories().await.expect("for REST too");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_continues_with_new_credentials() {
    on_every_release(async |version| {
        let (user, inventory) = lockable();
        let vcenter = Vcenter::start(inventory.version(version)).await;
        let client = client_of(&vcenter)
            .credentials(credentials(&user, &user.password))
            .connect()
            .await
            .unwrap();
        let (_watch, inventory, _events) = common::watching(&client, vms()).await;
        let administrator = Credentials::new(vcenter.user(), vcenter.password());
        client.set_credentials(administrator).await.unwrap();
        vcenter.patch_vm("/DC0/vm/node-1", serde_json::json!({"name": "renamed"})).await;
        holds("the watch continues", || inventory.view().vm_by_name("renamed").found().is_some())
            .await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shutting_down_logs_out_of_both_sessions_and_ends_all_waits() {
    on_every_release(async |version| {
        let vcenter = Vcenter::start(Inventory::with_vms(1).version(version)).await;
        let client = connected(&vcenter).await;
        client.tags(Duration::ZERO).categories().await.unwrap();
        assert_eq!(
            vcenter.sessions().await.as_array().map(Vec::len),
            Some(2),
            "{}",
            vcenter.sessions().await
        );
        let (_watch, inventory, mut events) = common::watching(&client, vms()).await;

        client.shut_down().await;
        // At once, or soon after on a busy host.
        none_is_open(&vcenter).await;
        let error = client.collect(&vms()).await.unwrap_err();
        assert!(matches!(error, Error::ShutDown { .. }), "{error}");
        while events.next().await.is_some() {}
        assert!(matches!(inventory.status(), Status::Ended));
        assert!(inventory.events().next().await.is_none());
    })
    .await;
}

/// Waits until the simulator has seen this many calls of `method`.
async fn arrived(vcenter: &Vcenter, method: &str, times: u64) {
    eventually(&format!("{method} has arrived"), 60, async || {
        let seen = vcenter.calls().await.count(method);
        if seen >= times { Ok(()) } else { Err(format!("{seen} of {times}")) }
    })
    .await;
}

async fn open_sessions(vcenter: &Vcenter) -> usize {
    vcenter.sessions().await.as_array().map_or(0, Vec::len)
}

/// Waits until every session is ended.
async fn none_is_open(vcenter: &Vcenter) {
    eventually("no session is open", 60, async || {
        let open = open_sessions(vcenter).await;
        if open == 0 { Ok(()) } else { Err(vcenter.sessions().await.to_string()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_dropped_during_the_login_loses_no_session() {
    on_every_release(async |version| {
        let vcenter = Vcenter::start(Inventory::with_vms(1).version(version)).await;
        let client = connected(&vcenter).await;
        vcenter.expire_sessions("").await;
        vcenter.fault(Fault::on("Login").delayed(Duration::from_secs(1))).await;
        let mut canceled = tokio::task::JoinSet::new();
        let other = client.clone();
        canceled.spawn(async move { other.collect(&vms()).await.map(drop) });
        arrived(&vcenter, "Login", 2).await;
        canceled.shutdown().await;
        client.collect(&vms()).await.expect("the running login is used");
        assert_eq!(vcenter.calls().await.count("Login"), 2);
        assert_eq!(open_sessions(&vcenter).await, 1);

        // The same for a caller that drops a change of credentials.
        let (other, user) = (client.clone(), (vcenter.user(), vcenter.password()));
        let again = Credentials::new(user.0, user.1);
        canceled.spawn(async move { other.set_credentials(again).await });
        arrived(&vcenter, "Login", 3).await;
        canceled.shutdown().await;
        eventually("the new session replaces the old one", 60, async || {
            let (open, out) =
                (open_sessions(&vcenter).await, vcenter.calls().await.count("Logout"));
            if (open, out) == (1, 1) { Ok(()) } else { Err(format!("{open} open, {out} left")) }
        })
        .await;
        client.collect(&vms()).await.expect("it is in use");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shutting_down_during_a_login_leaves_no_session() {
    on_every_release(async |version| {
        let open_rest = if has_api(version) {
            "POST /api/session"
        } else {
            "POST /rest/com/vmware/cis/session"
        };
        for login in ["Login", open_rest] {
            let vcenter = Vcenter::start(Inventory::with_vms(1).version(version)).await;
            let client = connected(&vcenter).await;
            client.tags(Duration::ZERO).categories().await.unwrap();
            assert_eq!(open_sessions(&vcenter).await, 2);
            vcenter.expire_sessions("").await;
            vcenter.forget_calls().await;
            vcenter.fault(Fault::on(login).delayed(Duration::from_secs(1))).await;
            let other = client.clone();
            let mut caller = tokio::task::JoinSet::new();
            caller.spawn(async move {
                if login == "Login" {
                    other.collect(&vms()).await.map(drop)
                } else {
                    other.tags(Duration::ZERO).categories().await.map(drop)
                }
            });
            arrived(&vcenter, login, 1).await;
            client.shut_down().await;
            // The session was opened and closed again, soon after on a busy host.
            let logout = if login == "Login" {
                "Logout".to_owned()
            } else {
                login.replace("POST", "DELETE")
            };
            eventually(&format!("{login}: nothing is left behind"), 60, async || {
                let (open, out) =
                    (open_sessions(&vcenter).await, vcenter.calls().await.count(&logout));
                if (open, out) == (0, 1) { Ok(()) } else { Err(format!("{open} open, {out} left")) }
            })
            .await;
            // Only a caller that was answered before the shutdown can succeed.
            if let Err(error) = caller.join_next().await.unwrap().unwrap() {
                assert!(
                    matches!(error, Error::ShutDown { .. }),
                    "{login}: {}",
                    error.error_chain()
                );
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shutting_down_does_not_wait_for_a_silent_vcenter_or_a_turn() {
    // No call times out during this test.
    let limits = Limits {
        call: Duration::from_hours(1),
        idle: Duration::from_hours(1),
        concurrency: 2,
        ..quick()
    };
    let vcenter = Vcenter::start(Inventory::with_vms(1)).await;
    let client = client_of(&vcenter).limits(limits.clone()).connect().await.unwrap();
    vcenter.fault(Fault::on("RetrievePropertiesEx").hangs()).await;
    let mut stalled = tokio::task::JoinSet::new();
    for _ in 0..5 {
        let client = client.clone();
        stalled.spawn(async move { client.collect(&vms()).await.map(drop) });
    }
    arrived(&vcenter, "RetrievePropertiesEx", 2).await;
    client.shut_down().await;
    // The logout overtook the waiting calls.
    none_is_open(&vcenter).await;
    stalled.shutdown().await;

    vcenter.clear_faults().await;
    let client = client_of(&vcenter).limits(limits).connect().await.unwrap();
    vcenter.expire_sessions("").await;
    vcenter.forget_calls().await;
    vcenter.fault(Fault::on("Login").hangs()).await;
    let other = client.clone();
    stalled.spawn(async move { other.collect(&vms()).await.map(drop) });
    arrived(&vcenter, "Login", 1).await;
    tokio::time::timeout(Duration::from_mins(4), client.shut_down())
        .await
        .expect("it does not wait for a login that is never answered");
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_callers_share_a_failed_attempt() {
    let vcenter = Vcenter::start(Inventory::with_vms(1)).await;
    let limits = Limits { attempts: 1, ..quick() };
    let client = client_of(&vcenter).limits(limits).connect().await.unwrap();
    vcenter.expire_sessions("").await;
    assert!(client.user().await.is_ok(), "no caller has noticed yet");
    vcenter.fault(Fault::on("Login").status(503)).await;
    assert_eq!(read_at_once(&client, 1).await, 0, "the session is lost");
    vcenter.clear_faults().await;
    vcenter.fault(Fault::on("Login").status(503).delayed(Duration::from_secs(10))).await;
    vcenter.forget_calls().await;
    // All callers ask before the first attempt ends.
    assert_eq!(read_at_once(&client, 200).await, 0);
    assert_eq!(vcenter.calls().await.count("Login"), 1, "one attempt for 200 callers");
    vcenter.clear_faults().await;
    assert_eq!(read_at_once(&client, 10).await, 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_session_is_kept_alive() {
    on_every_release(async |version| {
        let vcenter = Vcenter::start(Inventory::with_vms(1).version(version)).await;
        let alive = Duration::from_millis(100);
        let touch = if has_api(version) {
            "GET /api/session"
        } else {
            "POST /rest/com/vmware/cis/session?~action=get"
        };
        let limits = Limits { keep_alive: alive, rest_keep_alive: alive, ..quick() };
        let counter = Arc::new(vsphere::CallCounter::default());
        let client =
            client_of(&vcenter).limits(limits).observer(counter.clone()).connect().await.unwrap();
        client.tags(Duration::ZERO).categories().await.unwrap();
        holds("both sessions are touched", || {
            counter.count("CurrentTime") > 1 && counter.count(touch) > 1
        })
        .await;
        drop(client);
    })
    .await;
}

#[derive(Debug, Default)]
struct InFlight {
    now: AtomicUsize,
    most: AtomicUsize,
    done: AtomicUsize,
    refused: AtomicUsize,
}

impl CallObserver for InFlight {
    fn started(&self, _: Call<'_>) {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
    }

    fn finished(&self, call: Call<'_>, outcome: Outcome, _: Duration) {
        self.now.fetch_sub(1, Ordering::SeqCst);
        assert!(call.vcenter.starts_with("127.0.0.1"));
        match outcome {
            Outcome::Done => self.done.fetch_add(1, Ordering::SeqCst),
            Outcome::Refused => self.refused.fetch_add(1, Ordering::SeqCst),
            Outcome::Failed | Outcome::Cancelled => 0,
        };
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_are_bounded_and_observed() {
    let vcenter = Vcenter::start(Inventory::with_vms(1)).await;
    let observer = Arc::new(InFlight::default());
    let limits = Limits { concurrency: 3, ..quick() };
    let client =
        client_of(&vcenter).limits(limits).observer(observer.clone()).connect().await.unwrap();
    vcenter.fault(Fault::on("RetrievePropertiesEx").delayed(Duration::from_millis(30))).await;
    assert_eq!(read_at_once(&client, 30).await, 30);
    assert_eq!(observer.most.load(Ordering::SeqCst), 3);
    assert_eq!(observer.now.load(Ordering::SeqCst), 0, "every call that started has ended");
    vcenter.clear_faults().await;
    vcenter.fault(Fault::on("RetrieveEntityPermissions").fails("NoPermission").times(1)).await;
    client.permissions(&client.root_folder().unwrap(), false).await.unwrap_err();
    assert_eq!(observer.refused.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_tried_once_for_soap_and_rest_together() {
    on_every_release(async |version| {
        let (user, inventory) = lockable();
        let vcenter = Vcenter::start(inventory.version(version)).await;
        let client = client_of(&vcenter)
            .credentials(credentials(&user, &user.password))
            .connect()
            .await
            .unwrap();
        vcenter.set_user(&VcenterUser { password: "Changed-2".to_owned(), ..user.clone() }).await;
        vcenter.expire_sessions(&user.name).await;

        let (vms, tags) = (vms(), client.tags(Duration::ZERO));
        let calls = (0..20).map(|_| async {
            let (soap, rest) = tokio::join!(client.collect(&vms), tags.categories());
            [refusal(&soap.unwrap_err()), refusal(&rest.unwrap_err())]
        });
        for refused in futures::future::join_all(calls).await {
            assert_eq!(refused, [Some(LoginRefusal::Credentials); 2]);
        }
        assert_eq!(failed_logins(&vcenter, &user.name).await, 1);

        client.set_credentials(credentials(&user, "Changed-2")).await.unwrap();
        client.collect(&vms).await.unwrap();
        tags.categories().await.unwrap();
    })
    .await;
}
