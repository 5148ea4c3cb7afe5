//! From upstream's cloud controller to the Rust implementation and back, on a running cluster.

use api::vdo_config::Implementation as Maker;

use super::*;

const UPSTREAM: &str = "1.34.0";
const OURS: &str = env!("CARGO_PKG_VERSION");

fn choose(world: &mut World, maker: Maker) {
    world.edit_spec(|config| {
        config.spec.cloud_provider.as_mut().unwrap().implementation = Some(maker);
    });
}

fn running(world: &World) -> (Implementation, Option<&str>) {
    let record = world.record(Driver::Cpi);
    (record.implementation, record.version.as_deref())
}

fn position(world: &World, what: &str) -> usize {
    let found = world.done.iter().position(|done| done == what);
    found.unwrap_or_else(|| panic!("{what} is not among {:#?}", world.done))
}

#[test]
fn by_default_the_upstream_cloud_controller_runs() {
    let world = World::installed();
    assert_eq!(running(&world), (Implementation::Upstream, Some(UPSTREAM)));
}

#[test]
fn a_switch_of_implementation_is_an_upgrade_in_both_directions() {
    let mut world = World::installed();
    choose(&mut world, Maker::Rust);
    let plan = world.driver(Driver::Cpi);
    assert_eq!(plan.target.as_deref(), Some(OURS));
    world.settle();
    assert_eq!(running(&world), (Implementation::Rust, Some(OURS)));
    assert!(world.record(Driver::Cpi).healthy);
    assert_eq!(world.done[0], "record CPI", "what is applied is recorded first");
    let daemon_set = "DaemonSet vsphere-cloud-controller-manager";
    let rolled = position(&world, &format!("apply {daemon_set}"));
    let granted = position(&world, "apply ClusterRole vdo:vsphere-cloud-controller-manager");
    let pruned = position(&world, "delete ClusterRole system:cloud-controller-manager");
    assert!(granted < rolled && rolled < pruned, "{:#?}", world.done);
    assert!(!world.done.contains(&format!("delete {daemon_set}")), "it is changed in place");
    world.done.clear();
    choose(&mut world, Maker::Upstream);
    world.settle();
    assert_eq!(running(&world), (Implementation::Upstream, Some(UPSTREAM)));
    let rolled = position(&world, &format!("apply {daemon_set}"));
    let pruned = position(&world, "delete ClusterRole vdo:vsphere-cloud-controller-manager");
    assert!(rolled < pruned, "{:#?}", world.done);
    assert_eq!(world.codes(), Vec::<String>::new());
}

#[test]
fn a_switch_that_does_not_become_healthy_is_rolled_back_and_not_retried() {
    let mut world = World::installed();
    world.broken.push(OURS.into());
    choose(&mut world, Maker::Rust);
    world.settle();
    assert_eq!(running(&world), (Implementation::Rust, Some(OURS)));
    let theirs = "system:cloud-controller-manager";
    let kept = world.facts.objects.keys().any(|id| id.kind == "ClusterRole" && id.name == theirs);
    assert!(kept, "the one before it may still be needed");
    world.pass(SignedDuration::from_mins(16));
    world.settle();
    assert_eq!(running(&world), (Implementation::Upstream, Some(UPSTREAM)));
    assert!(world.record(Driver::Cpi).healthy);
    let finding = world.plan().findings.into_iter().next().unwrap();
    assert_eq!(finding.code, api::finding::codes::UPGRADE_ROLLED_BACK.code);
    assert!(finding.seen.as_deref().unwrap().contains(OURS), "{finding:?}");
    world.done.clear();
    world.settle();
    assert_eq!(world.done, Vec::<String>::new());
    // The release is fixed, and a new generation of the spec asks for it: VDO tries it again.
    world.broken.clear();
    choose(&mut world, Maker::Upstream);
    world.settle();
    choose(&mut world, Maker::Rust);
    world.settle();
    assert_eq!(running(&world), (Implementation::Rust, Some(OURS)));
}

#[test]
fn a_switch_of_implementation_waits_for_its_window_and_for_every_vm() {
    let mut world = World::installed();
    world.edit_spec(|config| {
        let upgrades = json!({"window": {"start": "22:00", "duration": "2h"}});
        config.spec.upgrades = Some(serde_json::from_value(upgrades).unwrap());
    });
    choose(&mut world, Maker::Rust);
    world.settle();
    assert_eq!(running(&world), (Implementation::Upstream, Some(UPSTREAM)));
    assert!(world.driver(Driver::Cpi).held.unwrap().contains("maintenance window"));
    world.edit_spec(|config| config.spec.upgrades = None);
    world.facts.cluster.nodes[1].vm = NodeVm::Missing;
    world.settle();
    assert_eq!(running(&world), (Implementation::Upstream, Some(UPSTREAM)));
    assert_eq!(world.driver(Driver::Cpi).next, Next::Blocked);
}

#[test]
fn a_version_of_the_other_implementation_changes_nothing_and_is_reported() {
    let mut world = World::installed();
    world.edit_spec(|config| {
        let cloud = config.spec.cloud_provider.as_mut().unwrap();
        cloud.version = Some(api::text::ReleaseVersion(UPSTREAM.into()));
        cloud.implementation = Some(Maker::Rust);
    });
    world.settle();
    assert_eq!(running(&world), (Implementation::Upstream, Some(UPSTREAM)));
    let finding = world.plan().findings.into_iter().next().unwrap();
    assert_eq!(finding.code, api::finding::codes::VERSION_UNKNOWN.code);
    assert!(finding.seen.as_deref().unwrap().contains(OURS), "{finding:?}");
}

#[test]
fn nsx_needs_the_upstream_cloud_controller_and_the_status_names_it() {
    let mut world = World::installed();
    world.edit_spec(|config| {
        let cloud = config.spec.cloud_provider.as_mut().unwrap();
        cloud.implementation = Some(Maker::Rust);
        let nsx = json!({"host": "nsx.example.com", "credentials": "nsx"});
        cloud.nsx = Some(serde_json::from_value(nsx).unwrap());
    });
    world.settle();
    assert_eq!(running(&world).0, Implementation::Upstream);
    assert_eq!(world.codes(), [api::finding::codes::UPSTREAM_NEEDED.code]);
    world.edit_spec(|config| config.spec.cloud_provider.as_mut().unwrap().nsx = None);
    world.settle();
    assert_eq!(running(&world), (Implementation::Rust, Some(OURS)));
    assert_eq!(world.codes(), Vec::<String>::new());
}

#[test]
fn ours_is_not_restarted_for_a_new_password_and_upstreams_is() {
    for (maker, restarts) in [(Maker::Rust, false), (Maker::Upstream, true)] {
        let mut world = World::installed();
        choose(&mut world, maker);
        world.settle();
        world.done.clear();
        world.rotate("vc", "second");
        world.settle();
        let rolled =
            world.done.iter().any(|d| d == "restart DaemonSet vsphere-cloud-controller-manager");
        assert_eq!(rolled, restarts, "{maker:?}: {:#?}", world.done);
        assert!(world.done.contains(&"apply Secret cpi-global-secret".to_owned()));
    }
}

#[test]
fn a_running_storage_driver_is_not_replaced_by_the_other_implementation() {
    let mut world = World::installed();
    let before = world.facts.records.csi.running().unwrap();
    world.edit_spec(|config| {
        config.spec.storage_provider.as_mut().unwrap().implementation = Some(Maker::Rust);
    });
    world.settle();
    assert_eq!(world.facts.records.csi.running().unwrap(), before);
    assert_eq!(world.codes(), [api::finding::codes::STORAGE_DRIVER_KEPT.code]);
}
