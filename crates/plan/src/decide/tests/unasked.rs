//! A driver without a section in the spec.

use super::*;

fn left_alone(world: &mut World, driver: Driver) {
    let before = world.record(driver).clone();
    world.settle();
    assert_eq!(world.done, Vec::<String>::new());
    assert_eq!(world.record(driver), &before);
    let plan = world.plan();
    let finding = plan.findings.iter().find(|finding| finding.code == "VDO-1910").unwrap();
    assert!(finding.seen.as_deref().unwrap().contains(&driver.to_string()), "{finding:?}");
    assert!(finding.remedy.iter().any(|step| step.contains("Removed")), "{finding:?}");
}

#[test]
fn a_driver_is_not_removed_because_its_section_is_gone() {
    let mut world = World::installed();
    world.edit_spec(|config| config.spec.cloud_provider = None);
    left_alone(&mut world, Driver::Cpi);
    let mut world = World::installed();
    world.edit_spec(|config| config.spec.storage_provider = None);
    left_alone(&mut world, Driver::Csi);
}

#[test]
fn a_driver_is_not_removed_because_its_list_of_vcenters_is_empty() {
    let mut world = World::installed();
    world.edit_spec(|config| {
        config.spec.cloud_provider.as_mut().unwrap().vsphere_cloud_configs.clear();
    });
    left_alone(&mut world, Driver::Cpi);
}

#[test]
fn a_config_that_comes_after_another_removes_nothing_it_does_not_mention() {
    let mut world = World::installed();
    let mut other = config(&json!({"storageProvider": {"vsphereCloudConfig": "vc"}}));
    other.metadata.name = Some("other".into());
    world.facts.config = Arc::new(other);
    left_alone(&mut world, Driver::Cpi);
}

#[test]
fn a_driver_nobody_mentions_does_not_hold_up_the_other_and_goes_when_it_is_asked_for() {
    let mut world = older("3.6.3");
    world.edit_spec(|config| {
        config.spec.cloud_provider = None;
        config.spec.storage_provider.as_mut().unwrap().version = None;
    });
    world.settle();
    assert_eq!(running(&world), Some(NEWEST_CSI));
    let cloud = world.driver(Driver::Cpi);
    assert_eq!((cloud.mode, cloud.next), (api::vdo_config::Mode::Observe, Next::Nothing));

    let removed = json!({"mode": "Removed"});
    world.edit_spec(|config| config.spec.cloud_provider = serde_json::from_value(removed).unwrap());
    world.settle();
    assert!(world.record(Driver::Cpi).objects.is_empty());
    world.edit_spec(|config| config.spec.cloud_provider = None);
    assert!(!world.codes().contains(&"VDO-1910".into()));
}

#[test]
fn an_observed_driver_outlives_the_vdoconfig() {
    let mut world = World::installed();
    world.edit_spec(|config| {
        config.spec.deletion_policy = serde_json::from_value(json!("Remove")).unwrap();
        let storage = config.spec.storage_provider.as_mut().unwrap();
        storage.mode = serde_json::from_value(json!("Observe")).unwrap();
    });
    let finalizers = &mut Arc::make_mut(&mut world.facts.config).metadata.finalizers;
    *finalizers = Some(vec![names::FINALIZER.into()]);
    deleted(&mut world);
    world.settle();
    assert!(!world.done.iter().any(|done| done.starts_with("delete") && done.contains("csi")));
    assert!(world.done.iter().any(|done| done.contains("delete DaemonSet vsphere-cloud")));
    assert_eq!(finalizer_of(&world), Finalizer::Clear, "it holds up nobody");
}
