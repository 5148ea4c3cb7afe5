//! The cases of the Kubernetes node lifecycle controller, and cases it handles wrongly.

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

fn decide_once(node: &Node, vm_state: &VmState, policy: &Policy) -> Action {
    Deletions::default().decide(node, vm_state, (10, 0), policy, Instant::now())
}

fn without_delay() -> Policy {
    Policy { delay: Duration::ZERO, ..Policy::default() }
}

#[tokio::test]
async fn taints_follow_the_power_state_of_vms_whose_nodes_are_not_ready() {
    let other = Taint::new("dedicated", None, "NoSchedule");
    let (on, off) = (Some(Power::On), Some(Power::Off));
    for (what, node, power, expected) in [
        ("ready and on", node("n"), on, None),
        ("ready, the VM is reported off: a Ready kubelet takes precedence", node("n"), off, None),
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
        ("ready, nothing to remove", with(node("n"), &[other]), on, None),
    ] {
        let expected = expected.map_or(Action::Leave, Action::SetTaints);
        assert_eq!(
            decide_once(&node, &VmState::Present(power), &Policy::default()),
            expected,
            "{what}"
        );
    }
}

#[tokio::test]
async fn the_out_of_service_taint_is_set_only_if_configured_and_removed_with_the_other() {
    let ours = Taint::new(OUT_OF_SERVICE, Some("vdo-powered-off"), "NoExecute");
    let theirs = Taint::new(OUT_OF_SERVICE, Some("nodeshutdown"), "NoExecute");
    let policy = Policy { out_of_service: true, ..Policy::default() };
    let taints = |node: &Node, power| taints(node, Some(power), &policy);
    assert_eq!(taints(&not_ready("n"), Power::Off), Some(vec![shutdown(), ours.clone()]));
    assert_eq!(taints(&not_ready("n"), Power::Suspended), Some(vec![shutdown()]));
    assert_eq!(taints(&with(node("n"), &[shutdown(), ours]), Power::On), Some(vec![]));
    assert_eq!(taints(&with(node("n"), &[theirs]), Power::On), None, "not set by this controller");
}

#[tokio::test]
async fn a_node_is_deleted_only_when_its_vm_is_proven_gone_and_it_is_not_ready() {
    let gone = || VmState::Gone(Proof::for_test());
    let unsure = || VmState::Uncertain("vCenter is unreachable".into());
    let deleting = || Node { deleting: true, ..not_ready("n") };
    let waiting = || with(not_ready("n"), &[Taint::new(UNINITIALIZED, None, "NoSchedule")]);
    let policy = without_delay();
    let skip = Policy { skip_deletion: true, ..policy };
    let none = Policy { limit: 0, ..policy };
    for (what, node, vm_state, policy, expected) in [
        ("gone and not ready", not_ready("n"), gone(), &policy, "delete"),
        ("gone, but the node is Ready", node("n"), gone(), &policy, "leave"),
        (
            "gone, tainted as shut down",
            with(not_ready("n"), &[shutdown()]),
            gone(),
            &policy,
            "delete",
        ),
        ("gone before it was initialised", waiting(), gone(), &policy, "delete"),
        ("gone, and the Node is already being deleted", deleting(), gone(), &policy, "leave"),
        ("uncertain", not_ready("n"), unsure(), &policy, "leave"),
        ("uncertain, ready", node("n"), unsure(), &policy, "leave"),
        ("exists and on", not_ready("n"), VmState::Present(Some(Power::On)), &policy, "leave"),
        ("exists, power unknown", not_ready("n"), VmState::Present(None), &policy, "leave"),
        ("exists and off", not_ready("n"), VmState::Present(Some(Power::Off)), &policy, "taint"),
        ("gone, deletion is skipped", not_ready("n"), gone(), &skip, "hold"),
        ("gone, the limit is 0", not_ready("n"), gone(), &none, "hold"),
    ] {
        let action = match decide_once(&node, &vm_state, policy) {
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
async fn a_proof_expires() {
    let proof = Proof::for_test();
    tokio::time::advance(PROOF_VALIDITY).await;
    assert!(!proof.is_stale());
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(proof.is_stale(), "vCenter is asked again");
}

#[tokio::test(start_paused = true)]
async fn uncertainty_restarts_the_delay() {
    let gone = VmState::Gone(Proof::for_test());
    let policy = Policy { delay: Duration::from_secs(30), ..Policy::default() };
    let (node, mut deletions) = (not_ready("n"), Deletions::default());
    let start = Instant::now();
    let mut at = |seconds: u64, vm_state: &VmState| {
        let now = start + Duration::from_secs(seconds);
        deletions.decide(&node, vm_state, (10, 0), &policy, now)
    };
    assert_eq!(at(0, &gone), Action::Wait(start + policy.delay));
    assert_eq!(at(29, &gone), Action::Wait(start + policy.delay));
    assert_eq!(at(30, &VmState::Uncertain(String::new())), Action::Leave);
    assert_eq!(at(31, &gone), Action::Wait(start + Duration::from_secs(61)));
    assert_eq!(at(61, &gone), Action::Delete(Proof::for_test()));
}

#[tokio::test(start_paused = true)]
async fn no_more_nodes_are_deleted_within_the_window_than_allowed() {
    let gone = VmState::Gone(Proof::for_test());
    let policy = Policy { limit: 2, window: Duration::from_mins(1), ..without_delay() };
    let mut deletions = Deletions::default();
    let start = Instant::now();
    for name in ["a", "b"] {
        let node = not_ready(name);
        assert!(matches!(
            deletions.decide(&node, &gone, (100, 0), &policy, start),
            Action::Delete(_)
        ));
        deletions.deleted(&node.uid);
    }
    let third = not_ready("c");
    let still_held = deletions.decide(&third, &gone, (100, 0), &policy, start);
    let until = Some(start + Duration::from_mins(1));
    assert!(matches!(&still_held, Action::Hold(_, at) if *at == until), "{still_held:?}");
    let later = start + Duration::from_mins(1);
    assert!(matches!(deletions.decide(&third, &gone, (100, 0), &policy, later), Action::Delete(_)));
}

#[tokio::test(start_paused = true)]
async fn concurrent_decisions_stay_within_the_limit_together() {
    let gone = VmState::Gone(Proof::for_test());
    let policy = Policy { limit: 2, window: Duration::from_mins(1), ..without_delay() };
    let mut deletions = Deletions::default();
    let start = Instant::now();
    let nodes: Vec<Node> = (0..16).map(|n| not_ready(&n.to_string())).collect();
    // All decisions are made before the first deletion.
    let actions: Vec<Action> =
        nodes.iter().map(|n| deletions.decide(n, &gone, (100, 0), &policy, start)).collect();
    let deleting = actions.iter().filter(|a| matches!(a, Action::Delete(_))).count();
    assert_eq!(deleting, 2, "{actions:?}");
    // The API server refused one deletion: it is retried and does not use up the limit.
    deletions.not_deleted(&nodes[0].uid);
    assert!(matches!(
        deletions.decide(&nodes[0], &gone, (100, 0), &policy, start),
        Action::Delete(_)
    ));
    // It is unknown whether the other one was deleted: a second attempt does not count again.
    assert!(matches!(
        deletions.decide(&nodes[1], &gone, (100, 0), &policy, start),
        Action::Delete(_)
    ));
    assert!(matches!(
        deletions.decide(&nodes[2], &gone, (100, 0), &policy, start),
        Action::Hold(..)
    ));
}

#[tokio::test]
async fn a_mass_disappearance_deletes_nothing() {
    let gone = VmState::Gone(Proof::for_test());
    // All disappear before the delay of the first is over, as when a folder is lost.
    let waiting = Policy { delay: Duration::from_secs(1), ..Policy::default() };
    let mut deletions = Deletions::default();
    let start = Instant::now();
    for n in 0..40 {
        let node = not_ready(&n.to_string());
        assert!(matches!(
            deletions.decide(&node, &gone, (100, 0), &waiting, start),
            Action::Wait(_)
        ));
    }
    let later = start + Duration::from_secs(2);
    for n in 0..40 {
        let node = not_ready(&n.to_string());
        let action = deletions.decide(&node, &gone, (100, 0), &waiting, later);
        assert!(matches!(&action, Action::Hold(why, _) if why.contains("40 of 100")), "{action:?}");
    }
    // Some come back, and the rest can be deleted.
    for n in 0..10 {
        deletions.decide(
            &not_ready(&n.to_string()),
            &VmState::Present(Some(Power::On)),
            (100, 0),
            &waiting,
            later,
        );
    }
    let action = deletions.decide(&not_ready("39"), &gone, (100, 0), &waiting, later);
    assert!(matches!(action, Action::Delete(_)), "{action:?}");
}

#[tokio::test]
async fn nodes_that_are_ready_or_not_proven_gone_count_as_gone_too() {
    let gone = VmState::Gone(Proof::for_test());
    let mut deletions = Deletions::default();
    let mut decide = |without_vm| {
        deletions.decide(
            &not_ready("first"),
            &gone,
            (5000, without_vm),
            &without_delay(),
            Instant::now(),
        )
    };
    let action = decide(1501);
    assert!(matches!(&action, Action::Hold(why, _) if why.contains("1501 of 5000")), "{action:?}");
    let action = decide(1500);
    assert!(matches!(action, Action::Delete(_)), "{action:?}");
}

#[tokio::test]
async fn a_share_of_any_size_works() {
    let gone = VmState::Gone(Proof::for_test());
    for share in [usize::MAX, usize::MAX / 2, 100] {
        let policy = Policy { share, ..without_delay() };
        let mut deletions = Deletions::default();
        let action =
            deletions.decide(&not_ready("n"), &gone, (5000, 5000), &policy, Instant::now());
        assert!(matches!(action, Action::Delete(_)), "{share}: {action:?}");
    }
}

#[tokio::test]
async fn in_a_small_cluster_three_nodes_can_be_deleted_at_once() {
    let gone = VmState::Gone(Proof::for_test());
    let mut deletions = Deletions::default();
    for name in ["a", "b", "c"] {
        let action =
            deletions.decide(&not_ready(name), &gone, (3, 0), &without_delay(), Instant::now());
        assert!(matches!(action, Action::Delete(_)), "{action:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_held_node_needs_no_new_proof_until_the_hold_ends() {
    let gone = VmState::Gone(Proof::for_test());
    let policy = Policy { limit: 1, window: Duration::from_mins(1), ..Policy::default() };
    let (first, second) = (not_ready("a"), not_ready("b"));
    let mut deletions = Deletions::default();
    let start = Instant::now();
    let due = start + policy.delay;
    assert_eq!(deletions.still_held(&first, (100, 99), &policy, start), None, "not proven yet");
    for node in [&first, &second] {
        deletions.decide(node, &gone, (100, 2), &policy, start);
        assert_eq!(deletions.still_held(node, (100, 99), &policy, start), None, "not due yet");
    }
    let still_held = deletions.still_held(&first, (100, 31), &policy, due);
    assert!(
        matches!(&still_held, Some(Action::Hold(why, _)) if why.contains("31 of 100")),
        "{still_held:?}"
    );
    assert_eq!(deletions.still_held(&first, (100, 30), &policy, due), None, "a proof is needed");
    assert!(matches!(deletions.decide(&first, &gone, (100, 2), &policy, due), Action::Delete(_)));
    assert_eq!(deletions.still_held(&first, (100, 2), &policy, due), None, "being deleted");
    let still_held = deletions.still_held(&second, (100, 2), &policy, due);
    let until = Some(due + policy.window);
    assert!(matches!(&still_held, Some(Action::Hold(_, at)) if *at == until), "{still_held:?}");
    assert_eq!(deletions.still_held(&second, (100, 2), &policy, due + policy.window), None);
}
