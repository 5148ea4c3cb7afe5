//! VDO knows the privileges of a new vCenter user before a driver gets that user.

use api::finding::codes;

use super::*;

const SECRET: &str = "apply Secret vsphere-config-secret";

fn lacks() -> api::Finding {
    codes::PRIVILEGE_ROOT.found().severity(api::Severity::Error).build()
}

#[test]
fn another_user_is_not_handed_to_storage_before_it_is_known_to_have_the_privileges() {
    let mut world = World::installed();
    let vcenter = world.vcenter();
    let username = "new@vsphere.local".into();
    vcenter.credentials = Some(Credential { username, ..credential("of somebody else") });
    vcenter.credentials_version = "stands for another".into();
    world.facts.health.pending = true;
    world.settle();
    assert!(!world.done.contains(&SECRET.into()), "vCenter has not been asked yet");
    world.facts.health.pending = false;
    world.facts.health.findings = vec![lacks()];
    world.settle();
    assert!(!world.done.contains(&SECRET.into()));
    let plan = world.driver(Driver::Csi);
    assert_eq!(plan.next, Next::Blocked);
    let why = plan.steps[0].message.as_deref().unwrap();
    assert!(why.contains("VDO-1401"), "{why}");
    world.facts.health.findings.clear();
    world.settle();
    assert!(world.done.contains(&SECRET.into()));
}

#[test]
fn a_new_password_of_the_same_user_does_not_wait_for_privileges() {
    let mut world = World::installed();
    world.facts.health.findings = vec![lacks()];
    world.vcenter().credentials = Some(credential("second password"));
    world.vcenter().credentials_version = "stands for the second".into();
    world.settle();
    assert!(world.done.contains(&SECRET.into()), "{:?}", world.done);
}
