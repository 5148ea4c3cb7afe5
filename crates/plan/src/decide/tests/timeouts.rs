//! The rollout timeout of a release, and the failures that count against it.

use super::*;

const BEFORE: &str = "3.6.3";

/// Starts an upgrade of storage, and carries it out step by step until `stop` returns true.
fn upgrading(broken: bool, stop: impl Fn(&World) -> bool) -> World {
    let mut world = older(BEFORE);
    if broken {
        world.broken.push(NEWEST_CSI.into());
    }
    pin(&mut world, NEWEST_CSI);
    while !stop(&world) {
        assert!(world.step(), "it never comes so far: {:#?}", world.plan());
    }
    world
}

fn has_done(what: &'static str) -> impl Fn(&World) -> bool {
    move |world| world.done.iter().any(|done| done == what)
}

fn storage<'a>(world: &'a mut World, name: &str) -> &'a mut DriverWorkload {
    let mut all = world.facts.workloads.iter_mut();
    all.find(|(id, _)| id.name == name).map(|(_, workload)| workload).unwrap()
}

#[test]
fn a_release_that_became_healthy_while_nobody_looked_stays() {
    let stops = [
        "record CSI",
        "apply Deployment vsphere-csi-controller",
        "apply DaemonSet vsphere-csi-node",
    ];
    for stop in stops {
        let mut world = upgrading(false, has_done(stop));
        assert!(!world.record(Driver::Csi).healthy);
        world.pass(SignedDuration::from_hours(1));
        world.settle();
        assert_eq!(running(&world), Some(NEWEST_CSI), "after {stop}");
        let record = world.record(Driver::Csi);
        assert!(record.healthy && record.rejected.is_none(), "after {stop}: {record:?}");
    }
}

#[test]
fn a_pause_between_two_steps_is_not_held_against_a_release() {
    let mut world = upgrading(false, has_done("apply Deployment vsphere-csi-controller"));
    world.pass(SignedDuration::from_mins(5));
    world.step();
    world.annotate(names::PAUSED, "true");
    world.pass(SignedDuration::from_hours(1));
    world.settle();
    world.annotate(names::PAUSED, "false");
    while !has_done("apply DaemonSet vsphere-csi-node")(&world) {
        assert!(world.step());
    }
    // VDO has applied it this very moment, so it cannot run yet.
    storage(&mut world, "vsphere-csi-node").available = 0;
    world.settle();
    assert_eq!(running(&world), Some(NEWEST_CSI));
}

#[test]
fn another_change_of_the_spec_in_between_keeps_rollback_possible() {
    let mut world = upgrading(true, has_done("apply Deployment vsphere-csi-controller"));
    world.pass(SignedDuration::from_mins(5));
    world.edit_spec(|config| {
        let classes = json!([{"name": "fast", "storagePolicy": "Gold"}]);
        let storage = config.spec.storage_provider.as_mut().unwrap();
        storage.storage_classes = serde_json::from_value(classes).unwrap();
    });
    world.settle();
    assert_eq!(running(&world), Some(NEWEST_CSI), "the timeout is not over");
    world.facts.now = world.plan().wake.expect("it looks again");
    world.settle();
    assert_eq!(running(&world), Some(BEFORE));
}

#[test]
fn a_release_that_comes_on_slowly_is_not_given_up_and_one_that_stops_is() {
    let mut world = upgrading(false, has_done("apply DaemonSet vsphere-csi-node"));
    let node = storage(&mut world, "vsphere-csi-node");
    (node.wanted, node.available) = (100, 0);
    for available in 1..60 {
        world.pass(SignedDuration::from_mins(10));
        storage(&mut world, "vsphere-csi-node").available = available;
        world.settle();
        assert_eq!(running(&world), Some(NEWEST_CSI), "{available} of 100");
    }
    let writes = world.done.iter().filter(|done| *done == "record CSI").count();
    assert!(writes < 70, "it is written down now and then: {writes}");
    // A pod that comes and goes is no progress.
    storage(&mut world, "vsphere-csi-node").available = 58;
    world.pass(SignedDuration::from_mins(10));
    storage(&mut world, "vsphere-csi-node").available = 59;
    world.pass(SignedDuration::from_mins(10));
    world.settle();
    assert_eq!(running(&world), Some(BEFORE));
}

#[test]
fn a_vcenter_that_has_just_come_back_gives_the_pods_time_to_notice() {
    let mut world = upgrading(true, has_done("apply Deployment vsphere-csi-controller"));
    world.vcenter().state = unreachable_vcenter(false);
    world.pass(SignedDuration::from_hours(1));
    world.settle();
    assert_eq!(running(&world), Some(NEWEST_CSI), "nothing is judged meanwhile");
    let now = world.facts.now;
    (world.vcenter().state, world.vcenter().since) = (verified(), now);
    world.pass(SignedDuration::from_mins(1));
    world.settle();
    assert_eq!(running(&world), Some(NEWEST_CSI), "its pods wait before they start again");
    world.pass(SignedDuration::from_mins(10));
    world.settle();
    assert_eq!(running(&world), Some(BEFORE), "and do not start");
}

#[test]
fn a_node_that_is_down_holds_up_neither_an_install_nor_an_upgrade() {
    let mut world = upgrading(false, has_done("apply DaemonSet vsphere-csi-node"));
    let node = storage(&mut world, "vsphere-csi-node");
    (node.wanted, node.available) = (3, 2);
    assert_eq!(world.driver(Driver::Csi).next, Next::Wait, "one of three does not run");
    storage(&mut world, "vsphere-csi-node").unreachable = 1;
    world.settle();
    assert!(world.record(Driver::Csi).healthy);
    // The driver is not healthy if no pod runs at all.
    let node = storage(&mut world, "vsphere-csi-node");
    (node.unreachable, node.available) = (3, 0);
    assert!(!node.is_healthy());
}

#[test]
fn pods_on_nodes_that_are_down_do_not_count_towards_max_unavailable() {
    let mut world = older(BEFORE);
    let node = storage(&mut world, "vsphere-csi-node");
    (node.wanted, node.available, node.unreachable) = (12, 10, 2);
    assert_eq!(world.driver(Driver::Csi).next, Next::Nothing, "a node that dies changes nothing");
    pin(&mut world, NEWEST_CSI);
    let mut seen = Vec::new();
    loop {
        if let Next::Apply(objects) = world.driver(Driver::Csi).next {
            let sets = objects.iter().filter(|object| object.kind() == "DaemonSet");
            seen.extend(sets.map(|set| {
                set.0["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"].clone()
            }));
        }
        if !world.step() {
            break;
        }
    }
    assert_eq!(
        seen,
        [json!(4), json!("10%")],
        "two of twelve at a time, and the dead; then as ever"
    );
    assert!(world.record(Driver::Csi).healthy);
}

#[test]
fn a_rollout_under_which_nodes_go_down_stops_and_is_rolled_back() {
    let mut world = older(BEFORE);
    let node = storage(&mut world, "vsphere-csi-node");
    (node.wanted, node.available) = (12, 12);
    pin(&mut world, NEWEST_CSI);
    while !has_done("apply DaemonSet vsphere-csi-node")(&world) {
        assert!(world.step());
    }
    // A single pod can fail by chance.
    let mut by_chance = world.clone();
    let node = storage(&mut by_chance, "vsphere-csi-node");
    (node.available, node.unreachable, node.suspect) = (11, 1, 1);
    by_chance.settle();
    assert!(by_chance.record(Driver::Csi).healthy);

    let node = storage(&mut world, "vsphere-csi-node");
    (node.available, node.unreachable, node.suspect) = (10, 2, 2);
    world.done.clear();
    world.settle();
    assert_eq!(world.done, Vec::<String>::new(), "no more may be unavailable for them");
    assert!(!world.record(Driver::Csi).healthy);
    // The timeout counts from the last pods that started.
    for _ in 0..2 {
        world.pass(SignedDuration::from_mins(20));
        world.settle();
    }
    assert_eq!(running(&world), Some(BEFORE));
}

#[test]
fn different_clocks_of_leaders_cause_no_early_rollback() {
    for ahead in [SignedDuration::from_hours(1), SignedDuration::from_hours(-1)] {
        let mut world = upgrading(true, has_done("apply Deployment vsphere-csi-controller"));
        world.facts.started = world.facts.now;
        let since = world.facts.now + ahead;
        world.facts.records.csi.since = Some(since);
        world.settle();
        world.pass(SignedDuration::from_mins(5));
        world.settle();
        assert_eq!(running(&world), Some(NEWEST_CSI), "{ahead}: it has just begun to look");
        world.pass(SignedDuration::from_hours(2));
        world.settle();
        assert_eq!(running(&world), Some(BEFORE), "{ahead}: nor is it waited for for ever");
    }
}

#[test]
fn other_settings_of_the_same_release_are_rolled_out_past_nodes_that_are_down_too() {
    let mut world = World::installed();
    let node = storage(&mut world, "vsphere-csi-node");
    (node.wanted, node.available, node.unreachable) = (12, 10, 2);
    let at_a_time = |world: &mut World| match world.driver(Driver::Csi).next {
        Next::Apply(objects) => {
            let set = objects.iter().find(|object| object.kind() == "DaemonSet").unwrap();
            set.0["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"].clone()
        }
        other => json!(format!("{other:?}")),
    };
    assert_eq!(at_a_time(&mut world), json!("Nothing"));
    let node = storage(&mut world, "vsphere-csi-node");
    (node.available, node.rolled_out) = (3, false);
    assert_eq!(at_a_time(&mut world), json!(4), "two of twelve at a time, and the dead");
    world.step();
    let node = storage(&mut world, "vsphere-csi-node");
    (node.wanted, node.available, node.unreachable) = (12, 10, 2);
    assert_eq!(at_a_time(&mut world), json!("10%"), "as ever once it is over");
}

#[test]
fn the_health_of_the_previous_workload_does_not_count_for_the_applied_one() {
    let mut world = upgrading(false, has_done("record CSI"));
    let before = world.facts.workloads.clone();
    while !has_done("apply Deployment vsphere-csi-controller")(&world) {
        assert!(world.step());
    }
    // One watch has reported the change, the other has not.
    world.facts.workloads = before;
    world.settle();
    assert_eq!(world.driver(Driver::Csi).next, Next::Wait);
    assert!(!has_done("apply DaemonSet vsphere-csi-node")(&world), "{:?}", world.done);
    assert!(!world.record(Driver::Csi).healthy);
}

#[test]
fn a_controller_with_zero_desired_pods_is_not_healthy() {
    let mut world = World::installed();
    let controller = storage(&mut world, "vsphere-csi-controller");
    (controller.wanted, controller.available) = (0, 0);
    assert_eq!(world.driver(Driver::Csi).next, Next::Wait);
    let status = crate::status::status(&world.facts, &world.plan());
    assert!(!api::condition::is_true(&status.conditions, "Ready"));
    assert!(!api::condition::is_true(&status.conditions, "StorageReady"));
}

#[test]
fn a_cloud_controller_that_crashes_is_rolled_back_even_while_a_vm_is_missing() {
    let pinned = |version: &str| {
        let version = api::text::ReleaseVersion(version.into());
        move |config: &mut VDOConfig| {
            config.spec.cloud_provider.as_mut().unwrap().version = Some(version);
        }
    };
    let mut world = World::new();
    world.edit_spec(pinned("1.33.0"));
    world.settle();
    world.broken.push("1.34.0".into());
    world.edit_spec(pinned("1.34.0"));
    world.settle();
    assert_eq!(world.record(Driver::Cpi).version.as_deref(), Some("1.34.0"));
    world.facts.cluster.nodes[1].vm = NodeVm::Missing;
    world.pass(SignedDuration::from_mins(16));
    world.settle();
    assert_eq!(world.record(Driver::Cpi).version.as_deref(), Some("1.33.0"));
    assert!(world.record(Driver::Cpi).healthy);
}

#[test]
fn a_taint_that_comes_and_goes_restarts_nothing() {
    let mut world = World::new();
    let role = ("node-role.kubernetes.io/control-plane".to_owned(), "NoSchedule".to_owned());
    let own = ("dedicated".to_owned(), "NoSchedule".to_owned());
    for node in &mut world.facts.cluster.nodes {
        node.node.control_plane = Some(role.0.clone());
        node.node.taints = vec![role.clone(), own.clone()];
    }
    let mut rendered = String::new();
    while world.step() {
        rendered += &world.rendered();
    }
    assert!(rendered.contains("dedicated"), "what all of them have is tolerated");
    world.done.clear();
    let passing = [
        ("node.cloudprovider.kubernetes.io/shutdown", "NoSchedule"),
        ("node.cilium.io/agent-not-ready", "NoExecute"),
        ("ToBeDeletedByClusterAutoscaler", "NoSchedule"),
        ("node.kubernetes.io/unreachable", "NoExecute"),
        ("somebody/debugs", "NoSchedule"),
    ];
    for (key, effect) in passing {
        world.facts.cluster.nodes[0].node.taints.push((key.into(), effect.into()));
        world.settle();
        assert_eq!(world.done, Vec::<String>::new(), "{key}");
    }
}

#[test]
fn a_pod_that_did_not_run_before_an_upgrade_is_not_held_against_it() {
    let mut world = older(BEFORE);
    let node = storage(&mut world, "vsphere-csi-node");
    (node.wanted, node.available) = (100, 99);
    pin(&mut world, NEWEST_CSI);
    while !has_done("apply DaemonSet vsphere-csi-node")(&world) {
        assert!(world.step());
    }
    storage(&mut world, "vsphere-csi-node").available = 98;
    world.settle();
    assert!(!world.record(Driver::Csi).healthy, "one that ran before does not run");
    storage(&mut world, "vsphere-csi-node").available = 99;
    world.pass(SignedDuration::from_hours(1));
    world.settle();
    let record = world.record(Driver::Csi);
    assert_eq!(record.version.as_deref(), Some(NEWEST_CSI));
    assert!(record.healthy && record.rejected.is_none(), "{record:?}");
    // VDO still reports that one pod does not run.
    storage(&mut world, "vsphere-csi-node").available = 99;
    assert_eq!(world.driver(Driver::Csi).next, Next::Wait);
}

#[test]
fn one_more_pod_that_does_not_run_is_held_against_an_upgrade() {
    let mut world = older(BEFORE);
    let node = storage(&mut world, "vsphere-csi-node");
    (node.wanted, node.available) = (3, 2);
    pin(&mut world, NEWEST_CSI);
    while !has_done("apply DaemonSet vsphere-csi-node")(&world) {
        assert!(world.step());
    }
    storage(&mut world, "vsphere-csi-node").available = 1;
    world.settle();
    world.pass(SignedDuration::from_hours(1));
    world.step();
    storage(&mut world, "vsphere-csi-node").available = 1;
    world.pass(SignedDuration::from_hours(1));
    world.settle();
    assert_eq!(running(&world), Some(BEFORE));
}

/// The API server rejects StorageClasses, and nothing else.
fn refuse_classes(world: &mut World) {
    let text = "StorageClass fast: forbidden".into();
    let refusal =
        crate::facts::ApplyFailure { text, firm: true, cause: crate::facts::RefusalCause::Other };
    world.facts.refused.insert(Driver::Csi, refusal);
}

/// Carries out the plan, except for the classes.
fn settle_without_classes(world: &mut World) {
    for _ in 0..200 {
        let next = world.driver(Driver::Csi).next;
        let of_classes = |objects: &[catalog::manifest::Object]| {
            objects.iter().all(|o| o.kind() == "StorageClass")
        };
        if matches!(&next, Next::Apply(objects) if of_classes(objects)) || !world.step() {
            return;
        }
    }
    panic!("never comes to rest");
}

#[test]
fn a_refused_class_rolls_no_release_back_and_keeps_rollback_possible() {
    let mut world = older(BEFORE);
    world.edit_spec(|config| {
        let classes = json!([{"name": "fast", "storagePolicy": "Gold"}]);
        let storage = config.spec.storage_provider.as_mut().unwrap();
        storage.storage_classes = serde_json::from_value(classes).unwrap();
    });
    refuse_classes(&mut world);
    pin(&mut world, NEWEST_CSI);
    settle_without_classes(&mut world);
    world.pass(SignedDuration::from_hours(1));
    settle_without_classes(&mut world);
    let record = world.record(Driver::Csi);
    assert_eq!(record.version.as_deref(), Some(NEWEST_CSI), "all of its pods run");
    assert!(record.healthy, "{record:?}");

    // The next release can be rolled back, even if VDO installed the first one under the same rejection.
    let mut world = World::new();
    pin(&mut world, BEFORE);
    world.edit_spec(|config| {
        let classes = json!([{"name": "fast", "storagePolicy": "Gold"}]);
        let storage = config.spec.storage_provider.as_mut().unwrap();
        storage.storage_classes = serde_json::from_value(classes).unwrap();
    });
    refuse_classes(&mut world);
    settle_without_classes(&mut world);
    world.broken.push(NEWEST_CSI.into());
    pin(&mut world, NEWEST_CSI);
    settle_without_classes(&mut world);
    world.pass(SignedDuration::from_hours(1));
    settle_without_classes(&mut world);
    assert_eq!(running(&world), Some(BEFORE));
}

#[test]
fn a_release_that_was_rolled_back_is_retried_once_it_is_approved_again() {
    let mut world = older(BEFORE);
    world.edit_spec(|config| {
        config.spec.storage_provider.as_mut().unwrap().version = None;
        config.spec.upgrades = serde_json::from_value(json!({"policy": "Manual"})).unwrap();
    });
    world.broken.push(NEWEST_CSI.into());
    world.annotate(names::APPROVE_CSI, NEWEST_CSI);
    world.settle();
    assert_eq!(running(&world), Some(NEWEST_CSI));
    world.pass(SignedDuration::from_hours(1));
    world.settle();
    assert_eq!(running(&world), Some(BEFORE));
    assert!(world.codes().contains(&"VDO-1905".into()));
    world.broken.clear();
    world.settle();
    assert_eq!(running(&world), Some(BEFORE), "nothing has changed");

    world.annotate(names::APPROVE_CSI, "");
    world.settle();
    assert_eq!(running(&world), Some(BEFORE), "nothing is approved");
    world.annotate(names::APPROVE_CSI, NEWEST_CSI);
    let mut states = Vec::new();
    while world.step() {
        let plan = world.plan();
        states.push(crate::status::status(&world.facts, &plan).plan.unwrap().state.unwrap());
    }
    assert_eq!(running(&world), Some(NEWEST_CSI));
    let back = api::vdo_config::PlanState::RollingBack;
    assert!(!states.contains(&back), "it goes forward: {states:?}");
}

/// Writes the status as the operator does. Returns which of these conditions are true.
fn reported<const N: usize>(world: &mut World, kinds: [&str; N]) -> [bool; N] {
    let status = crate::status::status(&world.facts, &world.plan());
    let all = kinds.map(|kind| api::condition::is_true(&status.conditions, kind));
    Arc::make_mut(&mut world.facts.config).status = Some(status);
    all
}

#[test]
fn a_node_pod_that_starts_again_raises_no_alarm_before_it_does_not_pass() {
    let mut world = World::installed();
    let ready = |world: &mut World| reported(world, ["Ready", "StorageReady", "Upgradeable"]);
    assert_eq!(ready(&mut world), [true; 3]);
    storage(&mut world, "vsphere-csi-node").wanted = 3;
    storage(&mut world, "vsphere-csi-node").available = 2;
    assert_eq!(ready(&mut world), [true; 3]);
    let wake = world.plan().wake.expect("it looks again");
    assert_eq!(wake, world.facts.now + world.facts.grace());
    world.facts.now = wake;
    assert_eq!(ready(&mut world), [false; 3], "it did not pass");
    storage(&mut world, "vsphere-csi-node").available = 3;
    assert_eq!(ready(&mut world), [true; 3]);
    storage(&mut world, "vsphere-csi-node").available = 1;
    assert_eq!(ready(&mut world), [false; 3], "two of three are more than a pod that starts again");
}

#[test]
fn a_node_that_joins_raises_no_alarm_before_it_is_left_waiting() {
    let mut world = World::installed();
    let ready =
        |world: &mut World| reported(world, ["Ready", "CloudProviderReady", "StorageReady"]);
    assert_eq!(ready(&mut world), [true; 3]);
    let mut joins = world.facts.cluster.nodes.first().unwrap().clone();
    joins.node.name = "joins".into();
    joins.node.provider_id = None;
    joins.node.taints.push((names::UNINITIALIZED.into(), "NoSchedule".into()));
    world.facts.cluster.nodes.push(joins);
    assert_eq!(ready(&mut world), [true; 3]);
    let late = api::finding::codes::NODE_UNINITIALIZED.found().with("node", "joins").build();
    world.facts.health.findings.push(late);
    assert!(!ready(&mut world)[0], "it is left waiting");
    world.facts.health.findings.clear();
    Arc::make_mut(&mut world.facts.config).status = None;
    assert!(!ready(&mut world)[0], "it never was ready");
}

#[test]
fn an_upgrade_that_is_paused_in_the_middle_is_not_over() {
    let mut world = upgrading(false, has_done("apply Deployment vsphere-csi-controller"));
    world.annotate(names::PAUSED, "true");
    let status = crate::status::status(&world.facts, &world.plan());
    assert!(!api::condition::is_true(&status.conditions, "Upgradeable"));
}
