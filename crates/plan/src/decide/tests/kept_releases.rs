//! A release that only a fetched catalog lists, after that catalog is gone; and tests that public data
//! reveals no password.

use super::*;

/// A release of the storage driver that the embedded catalog does not have.
const FETCHED: &str = "3.7.99";
const GONE: fn(&ObjectId) -> bool =
    |id| id.kind == "Deployment" && id.name == "vsphere-csi-controller";

/// Both drivers run, storage at a release that only a fetched catalog has.
fn fetched() -> World {
    let mut world = World::new();
    add_release(&mut world, FETCHED);
    world.settle();
    assert_eq!(running(&world), Some(FETCHED), "{:#?}", world.plan());
    assert!(world.record(Driver::Csi).healthy);
    world.done.clear();
    world
}

/// Adds the newest release of the storage driver again, under a higher version.
fn add_release(world: &mut World, version: &str) {
    let catalog = Arc::make_mut(&mut world.facts.catalog);
    let version: semver::Version = version.parse().unwrap();
    let older = |release: &catalog::Release| {
        release.driver == Driver::Csi && release.channel == catalog::model::Channel::Stable
    };
    let newest = catalog.releases.iter().rposition(older).unwrap();
    let release = catalog::Release { version, ..catalog.releases[newest].clone() };
    catalog.releases.insert(newest + 1, release);
}

/// Replaces the catalog with the embedded one, or with one that has no release at all.
fn lose_catalog(world: &mut World, empty: bool) {
    world.facts.catalog = Arc::new(catalog::embedded().clone());
    if empty {
        Arc::make_mut(&mut world.facts.catalog).releases.clear();
    }
}

#[test]
fn a_driver_is_repaired_when_no_catalog_lists_its_release_any_more() {
    for empty in [false, true] {
        let mut world = fetched();
        lose_catalog(&mut world, empty);
        world.settle();
        world.done.clear();
        world.facts.objects.retain(|id, _| !GONE(id));
        world.settle();
        assert_eq!(world.done, ["apply Deployment vsphere-csi-controller"]);
        assert_eq!(running(&world), Some(FETCHED), "it is neither downgraded nor removed");
        assert!(world.codes().contains(&"VDO-1116".into()), "{:?}", world.codes());
        assert!(!world.codes().contains(&"VDO-1006".into()), "{:?}", world.codes());
        // An unreachable vCenter does not change that.
        world.done.clear();
        world.vcenter().state = unreachable_vcenter(true);
        world.facts.objects.retain(|id, _| !GONE(id));
        world.settle();
        assert_eq!(world.done, ["apply Deployment vsphere-csi-controller"]);
    }
}

#[test]
fn a_new_password_reaches_drivers_that_no_catalog_lists_any_more() {
    for empty in [false, true] {
        let mut world = fetched();
        lose_catalog(&mut world, empty);
        world.rotate("vc", "rotated");
        world.settle();
        for applied in [
            "apply Secret vsphere-config-secret",
            "apply Secret cpi-global-secret",
            "restart DaemonSet vsphere-cloud-controller-manager",
        ] {
            assert!(world.done.iter().any(|done| done == applied), "{applied}: {:?}", world.done);
        }
        assert_eq!(running(&world), Some(FETCHED));
    }
}

#[test]
fn a_release_that_does_not_start_is_rolled_back_though_its_catalog_is_gone() {
    let mut world = fetched();
    add_release(&mut world, "3.7.100");
    world.broken = vec!["3.7.100".into()];
    world.settle();
    assert_eq!(running(&world), Some("3.7.100"), "{:#?}", world.plan());
    lose_catalog(&mut world, true);
    world.settle();
    world.pass(SignedDuration::from_mins(16));
    world.settle();
    assert_eq!(running(&world), Some(FETCHED), "{:#?}", world.plan());
    assert!(world.record(Driver::Csi).healthy);
}

#[test]
fn a_record_from_before_releases_were_kept_gets_them_even_while_a_rendering_waits() {
    let mut world = fetched();
    world.facts.records.csi.releases.clear();
    world.settle();
    assert_eq!(world.record(Driver::Csi).releases.len(), 1);

    let text = serde_json::to_string(&*world.facts.catalog).unwrap();
    let text = text.replace("csi-attacher", "csi-attacher-rebuilt");
    world.facts.catalog = Arc::new(serde_json::from_str(&text).unwrap());
    world.facts.build = "0.8.0 (second)".into();
    world.facts.records.csi.releases.clear();
    world.done.clear();
    world.settle();
    assert!(world.driver(Driver::Csi).held.is_some(), "{:#?}", world.plan());
    assert_eq!(world.done.iter().filter(|done| *done == "record CSI").count(), 1);
    assert_eq!(world.record(Driver::Csi).releases.len(), 1);
}

#[test]
fn without_its_entry_a_driver_is_left_alone_and_that_is_reported() {
    let mut world = World::installed();
    world.facts.records.csi.releases.clear();
    lose_catalog(&mut world, true);
    world.settle();
    assert_eq!(world.done, Vec::<String>::new());
    assert_eq!(world.driver(Driver::Csi).next, Next::Blocked);
    assert!(world.codes().contains(&"VDO-1006".into()), "{:?}", world.codes());
}

/// A plan without the data that only users with permission to read Secrets can see.
fn public(plan: &Plan) -> String {
    let mut plan = plan.clone();
    for driver in &mut plan.drivers {
        if let Next::Apply(objects) = &mut driver.next {
            for object in objects.iter_mut().filter(|object| object.kind() == "Secret") {
                let data = object.0.as_object_mut().and_then(|fields| fields.remove("data"));
                assert!(data.is_some(), "a Secret without data");
            }
        }
    }
    format!("{plan:#?}")
}

/// Two clusters that differ only in the vCenter password look the same to the ClusterRole `view`: records,
/// digests, annotations, findings, and every object that is not a Secret.
#[test]
fn nothing_that_view_reads_depends_on_the_password() {
    let with = |password: &str| {
        let mut world = World::new();
        world.vcenter().credentials = Some(credential(password));
        world.vcenter().credentials_version = "uid/1".into();
        world
    };
    let passwords = ["a", "correct horse battery staple", "Tr0ub4dor&3 with \"quotes\" and $"];
    let mut worlds: Vec<World> = passwords.iter().map(|password| with(password)).collect();
    let mut rounds = 0;
    loop {
        let first = public(&worlds[0].plan());
        assert!(passwords[1..].iter().all(|password| !first.contains(password)));
        for world in &worlds[1..] {
            assert_eq!(public(&world.plan()), first, "round {rounds}");
            assert_eq!(world.facts.records, worlds[0].facts.records);
        }
        let more: Vec<bool> = worlds.iter_mut().map(World::step).collect();
        rounds += 1;
        if !more[0] {
            break;
        }
    }
    assert!(rounds > 5 && worlds[0].record(Driver::Csi).healthy);
}
