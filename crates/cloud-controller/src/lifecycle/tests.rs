//! The cases of the Kubernetes node-lifecycle controller, and those it gets wrong.

use super::*;
use crate::{model::UNINITIALIZED, testing::node};

fn not_ready(name: &str) -> Node {
    Node { ready: false, ..node(name) }
}

fn with(node: Node, taints: &[Taint]) -> Node {
    Node { taints: taints.into(), ..node }
}

fn shutdown() -> Taint {
    Taint::new(SHUTDOWN, None, "NoSchedule")
}

fn once(node: &Node, standing: &Standing, policy: &Policy) -> Action {
    Deletions::default().decide(node, standing, (10, 0), policy, Instant::now())
}

fn at_once() -> Policy {
    Policy { delay: Duration::ZERO, ..Policy::default() }
}

#[tokio::test]
async fn taints_follow_the_power_of_machines_whose_nodes_are_not_ready() {
    let other = Taint::new("dedicated", None, "NoSchedule");
    let (on, off) = (Some(Power::On), Some(Power::Off));
    for (what, node, power, expected) in [
        ("ready and on", node("n"), on, None),
        (
            "ready, the machine said to be off: a kubelet that answers knows better",
            node("n"),
            off,
            None,
        ),
        ("not ready and on", not_ready("n"), on, None),
        ("not ready and off", not_ready("n"), off, Some(vec![shutdown()])),
        ("not ready and suspended", not_ready("n"), Some(Power::Suspended), Some(vec![shutdown()])),
        ("not ready, power unknown", not_ready("n"), None, None),
        ("tainted already", with(not_ready("n"), &[shutdown()]), off, None),
        (
            "other taints stay",
            with(not_ready("n"), std::slice::from_ref(&other)),
            off,
            Some(vec![other.clone(), shutdown()]),
        ),
        (
            "ready again",
            with(node("n"), &[shutdown(), other.clone()]),
            on,
            Some(vec![other.clone()]),
        ),
        ("on again but not ready yet", with(not_ready("n"), &[shutdown()]), on, None),
        ("ready, nothing to take away", with(node("n"), &[other]), on, None),
    ] {
        let expected = expected.map_or(Action::Leave, Action::SetTaints);
        assert_eq!(once(&node, &Standing::Present(power), &Policy::default()), expected, "{what}");
    }
}

#[tokio::test]
async fn the_out_of_service_taint_comes_only_if_asked_for_and_goes_with_the_other() {
    let ours = Taint::new(OUT_OF_SERVICE, Some("vdo-powered-off"), "NoExecute");
    let theirs = Taint::new(OUT_OF_SERVICE, Some("nodeshutdown"), "NoExecute");
    let policy = Policy { out_of_service: true, ..Policy::default() };
    let taints = |node: &Node, power| taints(node, Some(power), &policy);
    assert_eq!(taints(&not_ready("n"), Power::Off), Some(vec![shutdown(), ours.clone()]));
    assert_eq!(taints(&not_ready("n"), Power::Suspended), Some(vec![shutdown()]));
    assert_eq!(taints(&with(node("n"), &[shutdown(), ours]), Power::On), Some(vec![]));
    assert_eq!(taints(&with(node("n"), &[theirs]), Power::On), None, "set by somebody else");
}

#[tokio::test]
async fn a_node_goes_only_when_its_machine_is_proven_gone_and_it_is_not_ready() {
    let gone = || Standing::Gone(Proof::for_test());
    let unsure = || Standing::Uncertain("vCenter is away".into());
    let deleting = || Node { deleting: true, ..not_ready("n") };
    let waiting = || with(not_ready("n"), &[Taint::new(UNINITIALIZED, None, "NoSchedule")]);
    let policy = at_once();
    let skip = Policy { skip_deletion: true, ..policy };
    let none = Policy { most: 0, ..policy };
    for (what, node, standing, policy, expected) in [
        ("gone and not ready", not_ready("n"), gone(), &policy, "delete"),
        ("gone, but its kubelet answers", node("n"), gone(), &policy, "leave"),
        (
            "gone, tainted as shut down",
            with(not_ready("n"), &[shutdown()]),
            gone(),
            &policy,
            "delete",
        ),
        ("gone before it was initialised", waiting(), gone(), &policy, "delete"),
        ("gone, and somebody else deletes it already", deleting(), gone(), &policy, "leave"),
        ("nobody can say", not_ready("n"), unsure(), &policy, "leave"),
        ("nobody can say, ready", node("n"), unsure(), &policy, "leave"),
        ("there and on", not_ready("n"), Standing::Present(Some(Power::On)), &policy, "leave"),
        ("there, power unknown", not_ready("n"), Standing::Present(None), &policy, "leave"),
        ("there and off", not_ready("n"), Standing::Present(Some(Power::Off)), &policy, "taint"),
        ("gone, deletion is to be skipped", not_ready("n"), gone(), &skip, "hold"),
        ("gone, none may be deleted", not_ready("n"), gone(), &none, "hold"),
    ] {
        let action = match once(&node, &standing, policy) {
            Action::Delete(_) => "delete",
            Action::Leave => "leave",
            Action::SetTaints(_) => "taint",
            Action::Hold(_, None) => "hold",
            other => panic!("{what}: {other:?}"),
        };
        assert_eq!(action, expected, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_proof_does_not_last() {
    let proof = Proof::for_test();
    tokio::time::advance(PROOF_LASTS).await;
    assert!(!proof.is_stale());
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(proof.is_stale(), "it is asked for again");
}

#[tokio::test(start_paused = true)]
async fn one_moment_of_doubt_starts_the_delay_anew() {
    let gone = Standing::Gone(Proof::for_test());
    let policy = Policy { delay: Duration::from_secs(30), ..Policy::default() };
    let (node, mut memory) = (not_ready("n"), Deletions::default());
    let start = Instant::now();
    let mut at = |seconds: u64, standing: &Standing| {
        let now = start + Duration::from_secs(seconds);
        memory.decide(&node, standing, (10, 0), &policy, now)
    };
    assert_eq!(at(0, &gone), Action::Wait(start + policy.delay));
    assert_eq!(at(29, &gone), Action::Wait(start + policy.delay));
    assert_eq!(at(30, &Standing::Uncertain(String::new())), Action::Leave);
    assert_eq!(at(31, &gone), Action::Wait(start + Duration::from_secs(61)));
    assert_eq!(at(61, &gone), Action::Delete(Proof::for_test()));
}

#[tokio::test(start_paused = true)]
async fn no_more_nodes_go_in_a_time_than_allowed() {
    let gone = Standing::Gone(Proof::for_test());
    let policy = Policy { most: 2, window: Duration::from_mins(1), ..at_once() };
    let mut memory = Deletions::default();
    let start = Instant::now();
    for name in ["a", "b"] {
        let node = not_ready(name);
        assert!(matches!(memory.decide(&node, &gone, (100, 0), &policy, start), Action::Delete(_)));
        memory.deleted(&node.uid);
    }
    let third = not_ready("c");
    let held = memory.decide(&third, &gone, (100, 0), &policy, start);
    let until = Some(start + Duration::from_mins(1));
    assert!(matches!(&held, Action::Hold(_, at) if *at == until), "{held:?}");
    let later = start + Duration::from_mins(1);
    assert!(matches!(memory.decide(&third, &gone, (100, 0), &policy, later), Action::Delete(_)));
}

#[tokio::test(start_paused = true)]
async fn many_who_decide_at_once_stay_within_the_limit_together() {
    let gone = Standing::Gone(Proof::for_test());
    let policy = Policy { most: 2, window: Duration::from_mins(1), ..at_once() };
    let mut memory = Deletions::default();
    let start = Instant::now();
    let nodes: Vec<Node> = (0..16).map(|n| not_ready(&n.to_string())).collect();
    // Nothing is deleted before the last of them has decided.
    let actions: Vec<Action> =
        nodes.iter().map(|n| memory.decide(n, &gone, (100, 0), &policy, start)).collect();
    let deleting = actions.iter().filter(|a| matches!(a, Action::Delete(_))).count();
    assert_eq!(deleting, 2, "{actions:?}");
    // The API server refused one: it may try again, and took the place of nobody.
    memory.not_deleted(&nodes[0].uid);
    assert!(matches!(memory.decide(&nodes[0], &gone, (100, 0), &policy, start), Action::Delete(_)));
    // Whether the other was deleted is not known: another attempt at it is no further deletion.
    assert!(matches!(memory.decide(&nodes[1], &gone, (100, 0), &policy, start), Action::Delete(_)));
    assert!(matches!(memory.decide(&nodes[2], &gone, (100, 0), &policy, start), Action::Hold(..)));
}

#[tokio::test]
async fn a_mass_disappearance_deletes_nothing() {
    let gone = Standing::Gone(Proof::for_test());
    // All are seen gone before the delay of the first is over, as it is when a folder is lost.
    let waiting = Policy { delay: Duration::from_secs(1), ..Policy::default() };
    let mut memory = Deletions::default();
    let start = Instant::now();
    for n in 0..40 {
        let node = not_ready(&n.to_string());
        assert!(matches!(memory.decide(&node, &gone, (100, 0), &waiting, start), Action::Wait(_)));
    }
    let later = start + Duration::from_secs(2);
    for n in 0..40 {
        let node = not_ready(&n.to_string());
        let action = memory.decide(&node, &gone, (100, 0), &waiting, later);
        assert!(matches!(&action, Action::Hold(why, _) if why.contains("40 of 100")), "{action:?}");
    }
    // A few of them were an accident: they come back, and the rest may go.
    for n in 0..10 {
        memory.decide(
            &not_ready(&n.to_string()),
            &Standing::Present(Some(Power::On)),
            (100, 0),
            &waiting,
            later,
        );
    }
    let action = memory.decide(&not_ready("39"), &gone, (100, 0), &waiting, later);
    assert!(matches!(action, Action::Delete(_)), "{action:?}");
}

#[tokio::test]
async fn nodes_that_are_ready_or_not_proven_gone_count_as_gone_with_the_rest() {
    let gone = Standing::Gone(Proof::for_test());
    let mut memory = Deletions::default();
    let mut decide = |unseen| {
        memory.decide(&not_ready("first"), &gone, (5000, unseen), &at_once(), Instant::now())
    };
    let action = decide(1501);
    assert!(matches!(&action, Action::Hold(why, _) if why.contains("1501 of 5000")), "{action:?}");
    let action = decide(1500);
    assert!(matches!(action, Action::Delete(_)), "{action:?}");
}

#[tokio::test]
async fn a_share_of_any_size_is_a_share() {
    let gone = Standing::Gone(Proof::for_test());
    for share in [usize::MAX, usize::MAX / 2, 100] {
        let policy = Policy { share, ..at_once() };
        let mut deletions = Deletions::default();
        let action =
            deletions.decide(&not_ready("n"), &gone, (5000, 5000), &policy, Instant::now());
        assert!(matches!(action, Action::Delete(_)), "{share}: {action:?}");
    }
}

#[tokio::test]
async fn in_a_small_cluster_a_few_may_go_at_once() {
    let gone = Standing::Gone(Proof::for_test());
    let mut memory = Deletions::default();
    for name in ["a", "b", "c"] {
        let action = memory.decide(&not_ready(name), &gone, (3, 0), &at_once(), Instant::now());
        assert!(matches!(action, Action::Delete(_)), "{action:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_is_held_is_not_asked_for_again_until_that_ends() {
    let gone = Standing::Gone(Proof::for_test());
    let policy = Policy { most: 1, window: Duration::from_mins(1), ..Policy::default() };
    let (first, second) = (not_ready("a"), not_ready("b"));
    let mut memory = Deletions::default();
    let start = Instant::now();
    let due = start + policy.delay;
    assert_eq!(memory.held(&first, (100, 99), &policy, start), None, "nothing is proven yet");
    for node in [&first, &second] {
        memory.decide(node, &gone, (100, 2), &policy, start);
        assert_eq!(memory.held(node, (100, 99), &policy, start), None, "it is not due yet");
    }
    let held = memory.held(&first, (100, 31), &policy, due);
    assert!(matches!(&held, Some(Action::Hold(why, _)) if why.contains("31 of 100")), "{held:?}");
    assert_eq!(memory.held(&first, (100, 30), &policy, due), None, "a proof is wanted");
    assert!(matches!(memory.decide(&first, &gone, (100, 2), &policy, due), Action::Delete(_)));
    assert_eq!(memory.held(&first, (100, 2), &policy, due), None, "it is being deleted");
    let held = memory.held(&second, (100, 2), &policy, due);
    let until = Some(due + policy.window);
    assert!(matches!(&held, Some(Action::Hold(_, at)) if *at == until), "{held:?}");
    assert_eq!(memory.held(&second, (100, 2), &policy, due + policy.window), None);
}
