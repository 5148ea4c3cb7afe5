//! Leader election on a real API server, with real connection failures.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use runtime::lease::{Contender, Leadership, Terms};
use testkit::{ControlPlane, FaultProxy, User, eventually};
use tokio::{sync::OnceCell, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

/// Half of the lease lies between the end of one leader and the start of the next: more than a busy host
/// delays a timer.
const QUICK: Terms = Terms {
    lease_duration: Duration::from_secs(2),
    renew_deadline: Duration::from_secs(1),
    retry_period: Duration::from_millis(200),
};

/// A leader that keeps its lease when a busy host stalls, and renews it often.
const STEADY: Terms = Terms {
    lease_duration: Duration::from_mins(2),
    renew_deadline: Duration::from_mins(1),
    retry_period: Duration::from_millis(200),
};

/// One cluster for all tests: each test has its own lease.
async fn cluster() -> &'static ControlPlane {
    static PLANE: OnceCell<ControlPlane> = OnceCell::const_new();
    PLANE.get_or_init(ControlPlane::start).await
}

fn contender(client: Client, lease: &str, identity: &str, terms: Terms) -> Contender {
    Contender::new(client, "default", lease, identity, terms).unwrap()
}

/// One term: from the first to the last instant at which a contender found itself leading.
#[derive(Clone, Debug)]
struct Term {
    who: usize,
    from: Instant,
    to: Instant,
}

/// The observations of a duel.
#[derive(Default)]
struct Duel {
    /// The contender that can write at this instant.
    leading: Mutex<Option<usize>>,
    /// Completed terms.
    terms: Mutex<Vec<Term>>,
}

/// Leads whenever it can and records each instant at which it could have written. The token stops writers, so
/// the token decides.
async fn serve(who: usize, contender: Contender, duel: Arc<Duel>) {
    loop {
        let leadership = contender.lead().await;
        let token = leadership.token();
        let mut term: Option<Term> = None;
        loop {
            let now = Instant::now();
            if token.is_cancelled() {
                break;
            }
            let from = term.as_ref().map_or(now, |term| term.from);
            term = Some(Term { who, from, to: now });
            *duel.leading.lock().unwrap() = Some(who);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(!leadership.is_held(), "a cancelled token and a leader do not go together");
        let mut leading = duel.leading.lock().unwrap();
        if *leading == Some(who) {
            *leading = None;
        }
        duel.terms.lock().unwrap().extend(term);
    }
}

/// Two contenders for one lease, each behind its own proxy; the leader is cut off `handovers` times.
async fn a_duel(plane: &ControlPlane, number: usize, handovers: usize) -> Vec<Term> {
    let duel = Arc::new(Duel::default());
    let mut contenders = JoinSet::new();
    let mut proxies = Vec::new();
    for who in 0..2 {
        let proxy = FaultProxy::before(plane.address()).await;
        let client = plane.client_via(&User::admin(), proxy.address());
        let name = format!("contender-{who}");
        let contender = contender(client, &format!("duel-{number}"), &name, QUICK);
        contenders.spawn(serve(who, contender, duel.clone()));
        proxies.push(proxy);
    }
    let leader = async || (*duel.leading.lock().unwrap()).ok_or("no contender leads");
    for round in 0..handovers {
        let now = eventually("a contender leads", 60, async || leader().await).await;
        match round % 4 {
            0 => proxies[now].black_hole(),
            1 => proxies[now].cut(),
            2 => proxies[now].reset(),
            _ => proxies[now].delay(Duration::from_mins(1)),
        }
        eventually("the other one leads", 60, async || match leader().await {
            Ok(next) if next != now => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
        proxies[now].heal();
    }
    // The last leader steps down too, so that every term is recorded.
    proxies.iter().for_each(FaultProxy::black_hole);
    eventually("the last term has ended", 60, async || match leader().await {
        Err(_) => Ok(()),
        Ok(who) => Err(format!("{who} leads")),
    })
    .await;
    let terms = duel.terms.lock().unwrap();
    terms.clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn there_are_never_two_leaders_over_200_forced_handovers() {
    let plane = cluster().await;
    let duels = (0..20).map(|number| a_duel(plane, number, 10));
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
async fn dropping_a_leadership_stops_its_writers() {
    let plane = cluster().await;
    let leadership = contender(plane.client(), "dropped", "me", STEADY).lead().await;
    let token = leadership.token();
    drop(leadership);
    assert!(token.is_cancelled(), "nothing renews it any more: another contender will lead");
}

#[tokio::test]
async fn a_lease_is_released_even_while_a_renewal_is_in_progress() {
    let plane = cluster().await;
    let proxy = FaultProxy::before(plane.address()).await;
    let slow = plane.client_via(&User::admin(), proxy.address());
    let terms = Terms {
        lease_duration: Duration::from_mins(10),
        renew_deadline: Duration::from_mins(5),
        retry_period: Duration::from_millis(100),
    };
    let first = contender(slow, "under-way", "first", terms).lead().await;
    proxy.delay(Duration::from_millis(300));
    let leases = Api::<Lease>::namespaced(plane.client(), "default");
    let renewed = async || leases.get("under-way").await.unwrap().spec.unwrap().renew_time;
    let before = renewed().await;
    // From here on a renewal, or its response, is always in flight.
    eventually("a slow renewal was written", 20, async || {
        let now = renewed().await;
        if now == before { Err("not renewed yet") } else { Ok(()) }
    })
    .await;

    first.release().await;

    let spec = leases.get("under-way").await.unwrap().spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some(""), "released, not left to expire");
}

#[tokio::test]
async fn writers_are_stopped_before_the_release_is_written() {
    let plane = cluster().await;
    let proxy = FaultProxy::before(plane.address()).await;
    let client = plane.client_via(&User::admin(), proxy.address());
    let leadership = contender(client, "order", "me", STEADY).lead().await;
    let token = leadership.token();
    // The release cannot be written, but the writers stop anyway.
    proxy.black_hole();
    tokio::select! {
        () = leadership.release() => panic!("nothing passes"),
        () = token.cancelled() => {}
    }
}

#[tokio::test]
async fn a_released_lease_is_taken_at_once_and_not_after_its_duration() {
    let plane = cluster().await;
    // So long that only a release explains a quick handover.
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
    first.release().await;
    // Half of the retry period: the watch reported it. The benchmark measures the exact time.
    let next = tokio::time::timeout(Duration::from_secs(30), waiting).await;
    assert!(next.expect("a released lease is taken at once").is_held());
}

#[tokio::test]
async fn writers_are_stopped_when_another_contender_takes_the_lease_by_force() {
    let plane = cluster().await;
    let leadership: Leadership = contender(plane.client(), "forced", "me", STEADY).lead().await;
    let token: CancellationToken = leadership.token();
    let leases = Api::<Lease>::namespaced(plane.client(), "default");
    let patch = serde_json::json!({"spec": {"holderIdentity": "somebody-else"}});
    let by_force = kube::api::Patch::Merge(patch);
    leases.patch("forced", &kube::api::PatchParams::default(), &by_force).await.unwrap();

    tokio::time::timeout(Duration::from_mins(1), token.cancelled()).await.unwrap();
    assert!(!leadership.is_held());
}

#[tokio::test]
async fn a_new_label_on_its_lease_does_not_end_a_leadership() {
    let plane = cluster().await;
    let leadership = contender(plane.client(), "labelled", "me", STEADY).lead().await;
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
fn a_renew_deadline_that_allows_two_leaders_is_refused() {
    let bad = Terms {
        lease_duration: Duration::from_secs(15),
        renew_deadline: Duration::from_secs(15),
        retry_period: Duration::from_secs(2),
    };
    let client = {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _entered = runtime.enter();
        testkit::install_tls_provider();
        Client::try_from(kube::Config::new("https://127.0.0.1:1".parse().unwrap())).unwrap()
    };
    let refused = Contender::new(client, "default", "x", "me", bad).unwrap_err();
    assert!(refused.to_string().contains("shorter than the lease duration"), "{refused}");
}
