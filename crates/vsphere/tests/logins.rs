//! Interrupted logins: no session stays behind, and the client does not repeat the password.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{RELEASES, client_of, connected, has_api, holds, on_every_release, quick, watching};
use testkit::{Fault, Inventory, Permission, Vcenter, VcenterUser, eventually};
use tokio::task::JoinSet;
use vsphere::inventory::{Selection, Status, Vm};
use vsphere::{CallCounter, Credentials, Error, Limits};

fn vms() -> Selection {
    Selection::new().vms(&[Vm::IDENTITY])
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

/// Waits until the simulator has seen this many calls of `method`.
async fn arrived(vcenter: &Vcenter, method: &str, times: u64) {
    eventually(&format!("{method} has arrived"), 60, async || {
        let seen = vcenter.calls().await.count(method);
        if seen >= times { Ok(()) } else { Err(format!("{seen} of {times}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_without_an_answer_is_not_repeated_at_once() {
    let on = async |version| {
        let vcenter = Vcenter::start(Inventory::with_vms(1).version(version)).await;
        let counter = Arc::new(CallCounter::default());
        // Longer than any stall of the host.
        let limits = Limits { login_backoff: Duration::from_secs(10), ..quick() };
        let client = client_of(&vcenter).limits(limits).observer(counter.clone());
        let client = client.connect().await.unwrap();
        vcenter.fault(Fault::on("Login").dropped()).await;
        vcenter.expire_sessions("").await;
        let before = counter.count("Login");
        let error = client.collect(&vms()).await.unwrap_err();
        assert!(matches!(&error, Error::Dropped { method, .. } if method == "Login"), "{error}");
        assert_eq!(counter.count("Login"), before + 1);

        vcenter.clear_faults().await;
        eventually("it is tried again by itself", 60, async || {
            client.collect(&vms()).await.map(drop).map_err(|error| error.error_chain())
        })
        .await;
        assert_eq!(counter.count("Login"), before + 2);

        vcenter.expire_sessions("").await;
        vcenter.fault(Fault::on("Login").status(503).times(2)).await;
        client.collect(&vms()).await.expect("a login that vCenter never received is retried");
    };
    futures::future::join_all(RELEASES.map(on)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_without_an_answer_is_tried_once_for_all_callers() {
    on_every_release(async |version| {
        let user =
            VcenterUser { lock_after: 3, ..VcenterUser::new("vdo@vsphere.local", "Right-1") };
        let mut inventory = Inventory::with_vms(1).version(version);
        inventory.users.push(user.clone());
        inventory.permissions.push(Permission::new(&user.name, "Admin", "/"));
        let vcenter = Vcenter::start(inventory).await;
        let credentials = |password: &str| Credentials::new(user.name.as_str(), password);
        let counter = Arc::new(CallCounter::default());
        // The second attempt is not due during this test.
        let limits = Limits { login_backoff: Duration::from_hours(1), ..quick() };
        let client = client_of(&vcenter).limits(limits).observer(counter.clone());
        let client = client.credentials(credentials(&user.password)).connect().await.unwrap();
        let (watch, inventory, _events) = watching(&client, vms()).await;

        vcenter.set_user(&VcenterUser { password: "Changed-2".to_owned(), ..user.clone() }).await;
        let open_rest = if has_api(version) {
            "POST /api/session"
        } else {
            "POST /rest/com/vmware/cis/session"
        };
        vcenter.fault(Fault::on("Login").truncated()).await;
        vcenter.fault(Fault::on(open_rest).dropped()).await;
        vcenter.expire_sessions("").await;
        let (before, selection, tags) =
            (counter.count("Login"), vms(), client.tags(Duration::ZERO));
        for _ in 0..5 {
            let callers = (0..20).map(|n| {
                let (client, selection, tags) = (&client, &selection, &tags);
                async move {
                    if n % 4 == 0 {
                        tags.categories().await.map(drop)
                    } else {
                        client.collect(selection).await.map(drop)
                    }
                }
            });
            for outcome in futures::future::join_all(callers).await {
                let error = outcome.unwrap_err();
                assert!(error.is_transient(), "{}", error.error_chain());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(counter.count("Login"), before + 1, "{version}: {:?}", counter.all());
        // REST may have tried first; SOAP then tries on its own.
        assert!(counter.count(open_rest) <= 1, "{version}: {:?}", counter.all());

        vcenter.clear_faults().await;
        client.set_credentials(credentials("Changed-2")).await.unwrap();
        client.collect(&vms()).await.unwrap();
        tags.categories().await.unwrap();
        holds("the watch continues", || matches!(inventory.status(), Status::Live)).await;
        watch.stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_from_a_truncated_login_reply_is_ended() {
    on_every_release(async |version| {
        let vcenter = Vcenter::start(Inventory::with_vms(1).version(version)).await;
        vcenter.fault(Fault::on("Login").truncated()).await;
        let error = client_of(&vcenter).connect().await.unwrap_err();
        assert!(error.is_transient(), "{}", error.error_chain());
        // vCenter accepted the login.
        arrived(&vcenter, "Logout", 1).await;
        none_is_open(&vcenter).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelling_connect_leaves_no_session() {
    on_every_release(async |version| {
        let vcenter = Vcenter::start(Inventory::with_vms(1).version(version)).await;
        vcenter.fault(Fault::on("Login").delayed(Duration::from_secs(1))).await;
        let mut canceled = JoinSet::new();
        canceled.spawn(client_of(&vcenter).connect());
        arrived(&vcenter, "Login", 1).await;
        canceled.shutdown().await;
        arrived(&vcenter, "Logout", 1).await;
        none_is_open(&vcenter).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_the_last_clone_ends_the_sessions() {
    let vcenter = Vcenter::start(Inventory::with_vms(1)).await;
    let client = connected(&vcenter).await;
    client.tags(Duration::ZERO).categories().await.unwrap();
    let other = client.clone();
    drop(client);
    other.collect(&vms()).await.unwrap();
    assert_eq!(open_sessions(&vcenter).await, 2, "one session per protocol");
    drop(other);
    none_is_open(&vcenter).await;
}
