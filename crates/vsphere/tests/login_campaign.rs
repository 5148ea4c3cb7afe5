//! A wrong password and a thousand callers do not lock the account: one client tries it once. The operator repeats it with
//! another client, whose pace the tests of `operator::vcenters` show.
//!
//! Takes ten seconds; with `VDO_SEEDS` of a hundred or more (`make soak`), a minute.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use common::{client_of, failed_logins, lockable, on_every_release, quick, watching};
use futures::future::join_all;
use testkit::{Vcenter, VcenterUser};
use tokio::time::{Instant, sleep};
use vsphere::inventory::{Selection, Status, Vm};
use vsphere::{Client, Credentials, Error, Limits, LoginRefusal};

const CALLERS: u32 = 1_000;

fn vms() -> Selection {
    Selection::new().vms(&[Vm::IDENTITY])
}

#[allow(clippy::print_stdout, reason = "shown only when the test fails")]
fn is_refused<T>(outcome: Result<T, Error>) -> bool {
    match outcome {
        Err(Error::LoginRefused { reason: LoginRefusal::Credentials, .. }) => true,
        Err(other) => {
            println!("refused otherwise: {}", other.error_chain());
            false
        }
        Ok(_) => false,
    }
}

/// Calls about once a second until the end of the test. Returns the number of calls and of expected
/// refusals.
async fn caller(client: &Client, number: u32, until: Instant) -> (u32, u32) {
    sleep(Duration::from_millis(u64::from(number) % 1_000)).await;
    let tags = client.tags(Duration::ZERO);
    let (vms, mut calls, mut refused) = (vms(), 0, 0);
    while Instant::now() < until {
        calls += 1;
        refused += u32::from(match number % 4 {
            0 => is_refused(tags.categories().await),
            1 => is_refused(client.sessions().await),
            _ => is_refused(client.collect(&vms).await),
        });
        sleep(Duration::from_secs(1)).await;
    }
    (calls, refused)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_tried_once_however_many_call_for_however_long() {
    let soak = std::env::var("VDO_SEEDS").is_ok_and(|n| n.parse().is_ok_and(|n: u64| n >= 100));
    let seconds = if soak { 60 } else { 10 };
    let (user, inventory) = lockable();
    let vcenter = Vcenter::start(inventory).await;
    let brief = Duration::from_millis(200);
    let limits = Limits { keep_alive: brief, rest_keep_alive: brief, ..quick() };
    let credentials = |password: &str| Credentials::new(user.name.as_str(), password);
    let client =
        client_of(&vcenter).limits(limits).credentials(credentials(&user.password)).connect();
    let client = client.await.unwrap();
    client.tags(Duration::ZERO).categories().await.unwrap();
    let (_watch, inventory, _events) = watching(&client, vms()).await;

    // The password changes in vCenter and all sessions end.
    vcenter.set_user(&VcenterUser { password: "Changed-2".to_owned(), ..user.clone() }).await;
    vcenter.expire_sessions(&user.name).await;
    let until = Instant::now() + Duration::from_secs(seconds);
    let outcomes = join_all((0..CALLERS).map(|number| caller(&client, number, until))).await;
    let (calls, refused) = outcomes.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    assert!(calls >= CALLERS, "{calls} calls");
    assert_eq!(refused, calls, "every caller gets the reason");
    assert_eq!(failed_logins(&vcenter, &user.name).await, 1);
    common::holds("the watch reports why it stopped", || {
        matches!(inventory.status(), Status::Unreachable(error) if matches!(*error, Error::LoginRefused { .. }))
    })
    .await;

    // Wrong credentials count as one attempt each; right ones end the block.
    assert!(is_refused(client.set_credentials(credentials("Wrong-3")).await));
    assert!(is_refused(client.collect(&vms()).await));
    assert_eq!(failed_logins(&vcenter, &user.name).await, 2);
    client.set_credentials(credentials("Changed-2")).await.unwrap();
    client.collect(&vms()).await.unwrap();
    client.tags(Duration::ZERO).categories().await.unwrap();
    common::holds("the watch continues", || matches!(inventory.status(), Status::Live)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_tried_once_on_every_release() {
    on_every_release(async |version| {
        let (user, inventory) = lockable();
        let vcenter = Vcenter::start(inventory.version(version)).await;
        let credentials = Credentials::new(user.name.as_str(), user.password.as_str());
        let client = client_of(&vcenter).credentials(credentials).connect().await.unwrap();
        vcenter.set_user(&VcenterUser { password: "Changed-2".to_owned(), ..user.clone() }).await;
        vcenter.expire_sessions(&user.name).await;
        let until = Instant::now() + Duration::from_secs(2);
        let outcomes = join_all((0..100).map(|number| caller(&client, number, until))).await;
        assert!(outcomes.iter().all(|(calls, refused)| calls == refused), "{outcomes:?}");
        assert_eq!(failed_logins(&vcenter, &user.name).await, 1);
    })
    .await;
}
