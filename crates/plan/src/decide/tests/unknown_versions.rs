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
        remedy: "Take 3.7.3".into(),
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
    assert_eq!(finding.remedy, ["# Take 3.7.3"]);
    assert_eq!(world.record(Driver::Csi).version, before);
}
