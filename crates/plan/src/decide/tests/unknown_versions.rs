//! Versions that the catalog does not know yet, and releases that it warns of.

use std::collections::BTreeSet;

use api::text::ReleaseVersion;
use catalog::model::{Condition, KnownBad, Severity};

use super::*;

#[test]
fn a_kubernetes_that_is_newer_than_the_catalog_is_reported_once_and_the_drivers_stay() {
    let mut world = World::installed();
    world.facts.cluster.version = "v1.99.0".parse().unwrap();
    let plan = world.plan();
    let findings: Vec<_> = plan.findings.iter().filter(|f| f.code == "VDO-1111").collect();
    let seen: BTreeSet<_> = findings.iter().map(|finding| &finding.seen).collect();
    assert_eq!(findings.len(), seen.len(), "{findings:#?}");
    assert!(findings[0].seen.as_deref().unwrap().contains("1.99"));
    assert_eq!(plan.drivers[1].next, Next::Nothing);
}

#[test]
fn a_vcenter_that_is_newer_than_the_catalog_is_reported() {
    let mut world = World::installed();
    let VcenterState::Verified { version, api_version, .. } = &mut world.vcenter().state else {
        unreachable!("it is verified")
    };
    (*version, *api_version) = ("99.0.0".into(), "99.0.0.0".into());
    assert!(world.codes().contains(&"VDO-1112".to_owned()), "{:?}", world.codes());
}

#[test]
fn a_requested_release_with_a_known_bug_is_not_installed_and_the_finding_has_the_way_out() {
    let mut world = World::installed();
    let before = world.record(Driver::Csi).version.clone();
    let bug = KnownBad {
        id: "lost-disks".into(),
        severity: Severity::Refuse,
        when: Condition::default(),
        reason: "it detaches disks in use".into(),
        remedy: "take 3.7.3".into(),
        sources: Vec::new(),
    };
    let catalog = Arc::make_mut(&mut world.facts.catalog);
    let csi = catalog.releases.iter_mut().filter(|release| {
        release.driver == Driver::Csi && Some(release.version.to_string()) != before
    });
    let bad = csi.max_by_key(|release| release.version.clone()).unwrap();
    bad.kubernetes.max = "1.99".parse().unwrap();
    bad.known_bad.push(bug);
    let pinned = ReleaseVersion(bad.version.to_string());
    world.edit_spec(|config| {
        config.spec.storage_provider.as_mut().unwrap().version = Some(pinned);
    });
    let plan = world.plan();
    let finding = plan.findings.iter().find(|finding| finding.code == "VDO-1113");
    let finding = finding.unwrap_or_else(|| panic!("{:#?}", plan.findings));
    assert_eq!(finding.remedy[0], "# Take 3.7.3");
    assert_eq!(world.record(Driver::Csi).version, before);
}

fn vcenter_is(world: &mut World, new: &str) {
    let VcenterState::Verified { version, api_version, .. } = &mut world.vcenter().state else {
        unreachable!("it is verified")
    };
    (*version, *api_version) = (new.into(), format!("{new}.0"));
}

fn known_faults(world: &World) -> Vec<(String, api::Severity, Vec<String>)> {
    let findings = world.plan().findings.into_iter().filter(|finding| finding.code == "VDO-1113");
    findings
        .map(|finding| (finding.seen.unwrap_or_default(), finding.severity, finding.remedy))
        .collect()
}

#[test]
fn a_running_release_that_is_known_to_fail_here_is_reported_with_the_fix_and_stays() {
    let mut world = World::installed();
    assert!(known_faults(&world).is_empty());
    vcenter_is(&mut world, "7.0.3");
    let found = known_faults(&world);
    let [(seen, severity, remedy)] = &found[..] else { panic!("{found:#?}") };
    assert!(seen.contains(NEWEST_CSI) && seen.contains("Extended Master Secret"), "{seen}");
    assert_eq!(*severity, api::Severity::Error);
    assert!(remedy[0].starts_with("# Upgrade vCenter to 8.0 or newer"), "{remedy:?}");
    let before = world.record(Driver::Csi).clone();
    world.settle();
    assert_eq!(world.record(Driver::Csi), &before, "VDO does not touch a running driver");
    assert_eq!(world.done, Vec::<String>::new());
    // An outage does not fix the driver.
    let about = api::vsphere_cloud_config::About {
        version: Some("7.0.3".into()),
        ..api::vsphere_cloud_config::About::default()
    };
    world.vcenter().status = Some(api::VsphereCloudConfigStatus {
        about: Some(about),
        ..api::VsphereCloudConfigStatus::default()
    });
    world.vcenter().state = unreachable_vcenter(false);
    assert_eq!(known_faults(&world).len(), 1);
}

#[test]
fn hosts_that_are_older_than_their_vcenter_count() {
    let mut world = World::installed();
    vcenter_is(&mut world, "9.1.0");
    world.vcenter().oldest_host = Some("9.1".parse().unwrap());
    assert!(known_faults(&world).is_empty());
    world.vcenter().oldest_host = Some("9.0.2".parse().unwrap());
    let found = known_faults(&world);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(found[0].0.contains("older than 9.1"), "{found:#?}");
    assert_eq!(world.driver(Driver::Csi).next, Next::Nothing);
}

#[test]
fn faults_of_a_driver_that_vdo_did_not_install_are_reported() {
    let mut world = World::with_spec(&json!({"storageProvider": {"vsphereCloudConfig": "vc"}}));
    let name = "vsphere-csi-controller";
    let place = "vmware-system-csi";
    theirs(&mut world, "Deployment", place, name, Driver::Csi, WorkloadRole::Controller);
    let mut run = |version: &str| {
        for workload in world.facts.workloads.values_mut() {
            workload.version = Some(version.into());
        }
        vcenter_is(&mut world, "7.0.3");
        known_faults(&world)
    };
    assert_eq!(run("3.7.2-rancher700").len(), 1);
    assert!(run("3.5.1").is_empty());
    assert_eq!(run("3.4.0")[0].1, api::Severity::Warning, "a fault that only warns");
}
