//! Leader election on a real API server, with connections cut for real.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use runtime::lease::{Contender, Leadership, Terms};
use testkit::{ControlPlane, FaultProxy, User, eventually};
use tokio::{task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

const QUICK: Terms = Terms {
    lease_duration: Duration::from_secs(1),
    renew_deadline: Duration::from_millis(600),
    retry_period: Duration::from_millis(150),
};

fn contender(client: Client, lease: &str, identity: &str, terms: Terms) -> Contender {
    Contender::new(client, "default", lease, identity, terms).unwrap()
}

/// One term of office: from the first to the last instant at which somebody found itself leading.
#[derive(Clone, Debug)]
struct Term {
    who: usize,
    from: Instant,
    to: Instant,
}

/// Leads whenever it can and notes each instant at which it could have written something.
async fn serve(who: usize, contender: Contender, terms: Arc<Mutex<Vec<Term>>>) {
    loop {
        let leadership = contender.lead().await;
        let mut term: Option<Term> = None;
        while leadership.is_held() {
            let now = Instant::now();
            // Asked again after the clock was read: between the two this instance was the leader.
            if leadership.is_held() {
                let from = term.as_ref().map_or(now, |term| term.from);
                term = Some(Term { who, from, to: now });
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        terms.lock().unwrap().extend(term);
    }
}

/// Two contenders for one lease, each behind its own proxy; the leader is cut off `handovers` times.
async fn a_duel(plane: &ControlPlane, number: usize, handovers: usize) -> Vec<Term> {
    let lease = format!("duel-{number}");
    let finished = Arc::new(Mutex::new(Vec::new()));
    let mut contenders = JoinSet::new();
    let mut proxies = Vec::new();
    for who in 0..2 {
        let proxy = FaultProxy::before(plane.address()).await;
        let client = plane.client_via(&User::admin(), proxy.address());
        let contender = contender(client, &lease, &format!("contender-{who}"), QUICK);
        contenders.spawn(serve(who, contender, finished.clone()));
        proxies.push(proxy);
    }
    let leases = Api::<Lease>::namespaced(plane.client(), "default");
    let holder = async || -> Result<usize, String> {
        let lease = leases.get(&lease).await.map_err(|e| e.to_string())?;
        let holder = lease.spec.unwrap_or_default().holder_identity.unwrap_or_default();
        let number = holder.strip_prefix("contender-").ok_or(holder.clone())?;
        number.parse().map_err(|_| holder.clone())
    };
    for round in 0..handovers {
        let leader = eventually("somebody leads", 30, async || holder().await).await;
        match round % 3 {
            0 => proxies[leader].black_hole(),
            1 => proxies[leader].cut(),
            _ => proxies[leader].reset(),
        }
        eventually("the other one leads", 30, async || match holder().await {
            Ok(now) if now != leader => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
        proxies[leader].heal();
    }
    // The last leader steps down too, so that every term is on record.
    proxies.iter().for_each(FaultProxy::black_hole);
    eventually("every term has ended", 30, async || {
        let ended = finished.lock().unwrap().len();
        if ended > handovers { Ok(()) } else { Err(format!("{ended} of {}", handovers + 1)) }
    })
    .await;
    finished.lock().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn there_are_never_two_leaders_over_200_forced_handovers() {
    let plane = ControlPlane::start().await;
    let duels = (0..10).map(|number| a_duel(&plane, number, 20));
    let mut handovers = 0;
    for mut terms in futures::future::join_all(duels).await {
        terms.sort_by_key(|term| term.from);
        for pair in terms.windows(2) {
            assert!(pair[0].to < pair[1].from, "two leaders at once: {pair:?}");
            handovers += usize::from(pair[0].who != pair[1].who);
        }
    }
    assert!(handovers >= 200, "only {handovers} hand-overs");
}

#[tokio::test]
async fn a_released_lease_is_taken_at_once_and_not_after_its_duration() {
    let plane = ControlPlane::start().await;
    // So long that only a release explains a quick hand-over.
    let terms = Terms {
        lease_duration: Duration::from_mins(10),
        renew_deadline: Duration::from_mins(9),
        retry_period: Duration::from_mins(1),
    };
    let first = contender(plane.client(), "released", "first", terms).lead().await;
    let second = contender(plane.client(), "released", "second", terms);
    let mut waiting = Box::pin(second.lead());
    tokio::select! {
        _ = &mut waiting => panic!("two leaders"),
        () = tokio::time::sleep(Duration::from_millis(500)) => {}
    }
    let token = first.token();
    first.release().await;
    assert!(token.is_cancelled(), "writers must have been stopped before the release");
    let next = tokio::time::timeout(Duration::from_secs(2), waiting).await;
    assert!(next.expect("a released lease is taken in under two seconds").is_held());
}

#[tokio::test]
async fn writers_are_stopped_when_somebody_else_takes_the_lease_by_force() {
    let plane = ControlPlane::start().await;
    let leadership: Leadership = contender(plane.client(), "forced", "me", QUICK).lead().await;
    let token: CancellationToken = leadership.token();
    let leases = Api::<Lease>::namespaced(plane.client(), "default");
    let patch = serde_json::json!({"spec": {"holderIdentity": "somebody-else"}});
    let by_force = kube::api::Patch::Merge(patch);
    leases.patch("forced", &kube::api::PatchParams::default(), &by_force).await.unwrap();

    tokio::time::timeout(Duration::from_secs(10), token.cancelled()).await.unwrap();
    assert!(!leadership.is_held());
}

#[tokio::test]
async fn a_leader_stays_leader_when_somebody_labels_its_lease() {
    let plane = ControlPlane::start().await;
    let leadership = contender(plane.client(), "labelled", "me", QUICK).lead().await;
    let leases = Api::<Lease>::namespaced(plane.client(), "default");
    let patch = serde_json::json!({"metadata": {"labels": {"seen": "yes"}}});
    let patch = kube::api::Patch::Merge(patch);
    leases.patch("labelled", &kube::api::PatchParams::default(), &patch).await.unwrap();
    let renewed = leases.get("labelled").await.unwrap().spec.unwrap().renew_time;
    eventually("it renews twice more", 10, async || {
        let lease = leases.get("labelled").await.map_err(|e| e.to_string())?;
        let now = lease.spec.unwrap_or_default().renew_time;
        if now > renewed { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await;
    assert!(leadership.is_held());
    assert!(leases.get("labelled").await.unwrap().metadata.labels.unwrap().contains_key("seen"));
}

#[test]
fn times_that_cannot_keep_two_leaders_apart_are_refused() {
    let bad = Terms { renew_deadline: Duration::from_secs(15), ..Terms::default() };
    let client = {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _entered = runtime.enter();
        testkit::install_tls_provider();
        Client::try_from(kube::Config::new("https://127.0.0.1:1".parse().unwrap())).unwrap()
    };
    let refused = Contender::new(client, "default", "x", "me", bad).unwrap_err();
    assert!(refused.to_string().contains("shorter than the lease duration"), "{refused}");
}
