//! Records that are lost or unreadable.

use super::*;
use crate::facts::ClusterId;

fn lose(world: &mut World) -> Record {
    let record = std::mem::take(&mut world.facts.records.csi);
    let id = record.cluster_id.clone().unwrap();
    world.facts.cluster_id = Ok(Some(ClusterId { id, kept_by_driver: false }));
    record
}

fn applied(world: &World) -> Vec<&String> {
    world.done.iter().filter(|done| !done.starts_with("record")).collect()
}

#[test]
fn a_driver_whose_record_is_lost_is_recorded_again_and_not_touched() {
    let mut world = older("3.6.3");
    world.edit_spec(|config| {
        config.spec.storage_provider.as_mut().unwrap().version = None;
        config.spec.upgrades = serde_json::from_value(json!({"policy": "Manual"})).unwrap();
    });
    world.settle();
    world.done.clear();
    let before = lose(&mut world);
    world.settle();
    assert_eq!(applied(&world), Vec::<&String>::new(), "policy Manual holds as before");
    let after = world.record(Driver::Csi);
    assert!(after.healthy);
    assert_eq!(after.version, before.version);
    assert_eq!(after.cluster_id, before.cluster_id);
    assert_eq!(after.objects, before.objects);
    assert_eq!(after.names, None, "it has the names releases have");
}

#[test]
fn an_adopted_driver_whose_record_is_lost_keeps_its_names_and_is_not_doubled() {
    let mut world = World::installed();
    // The driver looks adopted: other names, other labels, another Secret.
    let names = crate::record::Names {
        namespace: names::CSI_NAMESPACE.into(),
        settings: Some("their-settings".into()),
        workloads: [("vsphere-csi-controller", "ctrl"), ("vsphere-csi-node", "agent")]
            .map(|(rendered, name)| {
                let selector = BTreeMap::from([("team".to_owned(), name.to_owned())]);
                (rendered.to_owned(), crate::record::Named { name: name.into(), selector })
            })
            .into(),
    };
    world.facts.records.csi.names = Some(names.clone());
    world.settle();
    for (id, workload) in &mut world.facts.workloads {
        match id.name.as_str() {
            "ctrl" => workload.role = WorkloadRole::Controller,
            "agent" => workload.role = WorkloadRole::Node,
            _ => {}
        }
    }
    world.done.clear();
    let before = lose(&mut world);
    world.settle();
    let after = world.record(Driver::Csi);
    assert_eq!(after.names, Some(names));
    assert_eq!(after.cluster_id, before.cluster_id);
    assert_eq!(applied(&world), Vec::<&String>::new());
}

#[test]
fn a_lost_record_is_not_restored_without_its_cluster_id() {
    let mut world = World::installed();
    lose(&mut world);
    for unknown in [Ok(None), Err("Secret x is in use and cannot be read".to_owned())] {
        world.facts.cluster_id = unknown;
        world.settle();
        assert_eq!(world.done, Vec::<String>::new());
        assert_eq!(world.driver(Driver::Csi).next, Next::Blocked);
        assert!(world.codes().contains(&"VDO-1911".into()), "{:?}", world.codes());
    }
    let status = api::VDOConfigStatus { cluster_id: Some("known".into()), ..Default::default() };
    world.facts.cluster_id = Ok(None);
    Arc::make_mut(&mut world.facts.config).status = Some(status);
    world.step();
    assert_eq!(world.record(Driver::Csi).cluster_id.as_deref(), Some("known"));
}

#[test]
fn settings_that_cannot_be_read_from_a_running_driver_are_left_alone() {
    let mut world = World::installed();
    lose(&mut world);
    for workload in world.facts.workloads.values_mut() {
        workload.version = Some("0.0.1".into());
    }
    world.settle();
    assert_eq!(world.done, Vec::<String>::new());
    assert!(world.codes().contains(&"VDO-1911".into()), "{:?}", world.codes());
}

#[test]
fn a_record_that_cannot_be_read_is_named_and_nothing_of_its_driver_is_touched() {
    let mut world = World::installed();
    world.facts.records.csi = Record::default();
    world.facts.unreadable.insert(Driver::Csi, "it is gibberish".into());
    pin(&mut world, "3.8.0");
    world.settle();
    assert_eq!(world.done, Vec::<String>::new());
    let plan = world.plan();
    let finding = plan.findings.iter().find(|finding| finding.code == "VDO-1911").unwrap();
    assert!(finding.seen.as_deref().unwrap().contains("gibberish"), "{finding:?}");
    // The other driver can need the objects of this one, so VDO does not delete them either.
    let removed = json!({"mode": "Removed"});
    world.edit_spec(|config| config.spec.cloud_provider = serde_json::from_value(removed).unwrap());
    world.settle();
    assert_eq!(world.done, Vec::<String>::new());
}

#[test]
fn a_driver_whose_record_is_lost_is_not_called_removed_while_it_runs() {
    for deletion_outcome in [false, true] {
        let mut world = World::installed();
        world.facts.records = Records::default();
        world.edit_spec(|config| {
            config.spec.deletion_policy = Some(api::vdo_config::DeletionPolicy::Remove);
            config.spec.storage_provider.as_mut().unwrap().mode =
                (!deletion_outcome).then_some(api::vdo_config::Mode::Removed);
            config.metadata.finalizers = Some(vec![names::FINALIZER.to_owned()]);
            if deletion_outcome {
                config.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
            }
        });
        world.settle();
        let deleted = world.done.iter().filter(|done| done.starts_with("delete")).count();
        assert_eq!(deleted, 0, "{:?}", world.done);
        assert!(world.codes().contains(&"VDO-1911".into()), "{:?}", world.codes());
        assert_eq!(world.plan().finalizer, crate::plan::Finalizer::Stay);
    }
}
