//! The status and the findings show the state as it is.

use api::condition;

use super::*;
use crate::status::status;

fn refused(vcenter: &mut VcenterConnection) {
    vcenter.state = VcenterState::Failed {
        reason: "LoginRefused".into(),
        message: "the user name or password is wrong".into(),
        transient: false,
    };
}

/// The status of a condition of these facts; `None` without the condition.
fn answer(world: &World, kind: &str) -> Option<String> {
    let status = status(&world.facts, &world.plan());
    condition::get(&status.conditions, kind).map(|condition| condition.status.clone())
}

#[test]
fn drivers_that_run_untouched_stay_ready_with_a_wrong_password() {
    let mut world = World::installed();
    refused(world.vcenter());
    world.pass(SignedDuration::from_hours(1));
    world.settle();
    assert_eq!(answer(&world, condition::DEGRADED).as_deref(), Some("True"));
    assert_eq!(answer(&world, condition::READY).as_deref(), Some("False"));
    for kind in [condition::CLOUD_PROVIDER_READY, condition::STORAGE_READY] {
        assert_eq!(answer(&world, kind).as_deref(), Some("True"), "{kind}");
    }
}

#[test]
fn ready_names_what_is_impaired_while_a_vcenter_is_unreachable_for_a_moment() {
    let mut world = World::installed();
    let ready = |world: &World| {
        let status = status(&world.facts, &world.plan());
        let ready = condition::get(&status.conditions, condition::READY).unwrap().clone();
        (ready.status, ready.reason, ready.message)
    };
    world.vcenter().state = unreachable_vcenter(true);
    world.vcenter().since = world.facts.now;
    let (answer, reason, message) = ready(&world);
    assert_eq!((answer.as_str(), reason.as_str()), ("True", "VcenterNotVerified"));
    assert_eq!(
        message,
        "VDO cannot verify the vCenter vc. While it is unreachable, volumes are not created, attached or detached, \
         and new nodes are not initialized. The drivers keep running."
    );
    // After the grace period it is a finding.
    world.facts.now = world.plan().wake.unwrap();
    let (answer, reason, _) = ready(&world);
    assert_eq!((answer.as_str(), reason.as_str()), ("False", "Finding"));

    world.vcenter().state = verified();
    let (answer, reason, _) = ready(&world);
    assert_eq!((answer.as_str(), reason.as_str()), ("True", "Healthy"));
    world.vcenter().state = unreachable_vcenter(true);
    world.vcenter().since = world.facts.now;
    let other = world.vcenter().clone();
    world.facts.vcenters.insert("forgotten".into(), other);
    let (_, _, message) = ready(&world);
    assert!(!message.contains("forgotten"), "nothing depends on that one: {message}");
}

#[test]
fn the_message_names_only_the_driver_whose_vcenter_is_unreachable() {
    let mut world = World::installed();
    world.facts.vcenters.insert("other".into(), vcenter("other.example.com", "second"));
    world.edit_spec(|config| {
        let cloud = config.spec.cloud_provider.as_mut().unwrap();
        cloud.vsphere_cloud_configs.push(api::text::ObjectName("other".into()));
    });
    world.settle();
    let other = world.facts.vcenters.get_mut("other").unwrap();
    (other.state, other.since) = (unreachable_vcenter(true), world.facts.now);
    let message = |world: &World| {
        let status = status(&world.facts, &world.plan());
        condition::get(&status.conditions, condition::READY).unwrap().message.clone()
    };
    let text = message(&world);
    assert!(text.contains("vCenter other") && text.contains("new nodes"), "{text}");
    assert!(!text.contains("volumes"), "no volume is on that vCenter: {text}");
    world.vcenter().state = unreachable_vcenter(true);
    world.vcenter().since = world.facts.now;
    let text = message(&world);
    assert!(
        text.contains("vCenters other, vc. While they are") && text.contains("volumes"),
        "{text}"
    );
}

#[test]
fn a_removed_driver_has_no_condition_any_more() {
    let mut world = World::installed();
    world.edit_spec(|config| {
        config.spec.storage_provider.as_mut().unwrap().mode = Some(api::vdo_config::Mode::Removed);
    });
    assert_eq!(answer(&world, condition::STORAGE_READY).as_deref(), Some("False"));
    world.settle();
    assert_eq!(answer(&world, condition::STORAGE_READY), None);
    assert_eq!(answer(&world, condition::READY).as_deref(), Some("True"));
}

#[test]
fn a_vcenter_that_nothing_refers_to_is_no_trouble() {
    let mut world = World::installed();
    let mut other = world.vcenter().clone();
    refused(&mut other);
    world.facts.vcenters.insert("forgotten".into(), other);
    assert_eq!(world.codes(), [""; 0]);
    assert_eq!(answer(&world, condition::VCENTER_READY).as_deref(), Some("True"));
}

#[test]
fn the_status_lists_no_more_vcenters_than_the_api_server_accepts() {
    let mut world = World::installed();
    for number in 0..40 {
        let other = world.vcenter().clone();
        world.facts.vcenters.insert(format!("vc-{number}"), other);
    }
    let listed = status(&world.facts, &world.plan()).versions.unwrap().vcenters.len();
    let crds = api::crds();
    let crd = crds.iter().find(|crd| crd.spec.names.kind == "VDOConfig").unwrap();
    let crd = json!(crd);
    let schema = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/versions";
    let most = crd.pointer(&format!("{schema}/properties/vcenters/maxItems")).unwrap();
    assert_eq!(json!(listed), *most);
}

#[test]
fn a_window_in_a_time_zone_that_does_not_exist_is_reported_at_once() {
    let mut world = World::installed();
    world.edit_spec(|config| {
        let window = json!({"start": "02:00", "duration": "1h", "timeZone": "Mars/Olympus"});
        let upgrades = json!({"window": window});
        config.spec.upgrades = serde_json::from_value(upgrades).unwrap();
    });
    let plan = world.plan();
    let finding = plan.findings.iter().find(|finding| finding.code == "VDO-1012").unwrap();
    assert!(finding.seen.as_ref().unwrap().contains("Mars/Olympus"), "{finding:?}");
}

#[test]
fn the_fix_of_a_rejected_object_depends_on_who_rejects_it() {
    use crate::facts::{ApplyFailure, RefusalCause};
    let mut world = World::installed();
    let mut fixes = std::collections::BTreeSet::new();
    let causes = [
        RefusalCause::Quota,
        RefusalCause::Admission,
        RefusalCause::Permission,
        RefusalCause::Undefined,
    ];
    for cause in causes {
        let refusal = ApplyFailure { text: "no".into(), firm: true, cause };
        world.facts.refused.insert(Driver::Csi, refusal);
        let plan = world.plan();
        let finding = plan.findings.iter().find(|finding| finding.code == "VDO-1909").unwrap();
        fixes.insert(finding.remedy.clone());
    }
    assert_eq!(fixes.len(), causes.len(), "{fixes:?}");
}

#[test]
fn commands_name_the_vdoconfig_and_its_namespace() {
    let mut world = World::installed();
    world.annotate(names::PAUSED, "true");
    let (namespace, name) = super::super::own_name(&world.facts);
    let command =
        format!("kubectl annotate vdoconfig --namespace {namespace} {name} {}-", names::PAUSED);
    let plan = world.plan();
    let finding = plan.findings.iter().find(|finding| finding.code == "VDO-1906").unwrap();
    assert_eq!(finding.remedy, [command]);
}

#[test]
fn a_record_that_does_not_exist_is_not_to_be_deleted() {
    let mut world = World::installed();
    world.facts.unreadable.insert(Driver::Csi, "no JSON".into());
    let fix = |world: &World| {
        let findings = world.plan().findings;
        let finding = findings.into_iter().find(|finding| finding.code == "VDO-1911").unwrap();
        finding.remedy.join("\n")
    };
    assert!(fix(&world).contains("kubectl delete configmap"), "{}", fix(&world));
    world.facts.unreadable.clear();
    world.facts.records = Records::default();
    world.facts.cluster_id = Err("two Secrets contain different ids".into());
    assert!(!fix(&world).contains("kubectl delete"), "{}", fix(&world));
}

#[test]
fn a_cluster_id_that_vdo_cannot_read_is_reported_with_the_command_that_grants_the_permission() {
    let mut lost = World::installed();
    lost.facts.records = Records::default();
    for mut world in [World::new(), lost] {
        let why = "Secret vmware-system-csi/vsphere-config-secret cannot be read";
        world.facts.cluster_id = Err(why.into());
        world.settle();
        let plan = world.plan();
        let finding = plan.findings.iter().find(|finding| finding.code == "VDO-1911").unwrap();
        assert!(finding.seen.as_deref().unwrap().contains(why), "{finding:?}");
        assert!(finding.remedy[0].starts_with("vdoctl deploy   "), "{:?}", finding.remedy);
        assert_eq!(world.driver(Driver::Csi).next, Next::Blocked);
    }
}
