//! VDO does not touch a running driver, and keeps objects that do not belong to it.

use super::*;

#[test]
fn a_running_driver_is_kept_when_nothing_fits() {
    let mut world = World::installed();
    world.facts.cluster.version = "v1.10.0".parse().unwrap();
    world.settle();
    assert_eq!(world.done, Vec::<String>::new());
    assert!(world.codes().contains(&"VDO-1110".into()), "{:?}", world.codes());
    assert_eq!(world.record(Driver::Csi).version.as_deref(), Some(NEWEST_CSI));
}

#[test]
fn a_running_driver_is_kept_while_vcenter_is_unreachable_whatever_else_changes() {
    for transient in [true, false] {
        for minutes in [1, 60] {
            let mut world = World::installed();
            world.vcenter().state = unreachable_vcenter(transient);
            world.vcenter().since = world.facts.now;
            world.pass(SignedDuration::from_mins(minutes));
            world.edit_spec(|config| {
                config.spec.storage_provider.as_mut().unwrap().max_volumes_per_node = Some(20);
            });
            world.settle();
            assert_eq!(world.done, Vec::<String>::new());
            assert!(world.codes().contains(&"VDO-1901".into()));
        }
    }
}

#[test]
fn deleted_objects_are_restored_while_vcenter_is_unreachable() {
    let mut world = World::installed();
    world.vcenter().state = unreachable_vcenter(true);
    let gone =
        |id: &ObjectId| ["vsphere-csi-controller", "vsphere-config-secret"].contains(&&*id.name);
    world.facts.objects.retain(|id, _| !gone(id) || id.kind == "ServiceAccount");
    world.settle();
    let done = world.done.join(", ");
    assert!(done.contains("apply Deployment vsphere-csi-controller"), "{done}");
    assert!(!done.contains("Secret"), "no driver gets unproven settings: {done}");
    // VDO waits if the spec asks for more than that.
    world.done.clear();
    world.edit_spec(|config| {
        let storage = config.spec.storage_provider.as_mut().unwrap();
        storage.cluster_distribution = Some("another".into());
    });
    world.facts.objects.retain(|id, _| !gone(id) || id.kind == "ServiceAccount");
    world.settle();
    assert_eq!(world.done, Vec::<String>::new());
}

#[test]
fn one_unreachable_vcenter_of_two_changes_nothing() {
    let mut world = World::installed();
    world.facts.vcenters.insert("other".into(), vcenter("other.example.com", "second"));
    world.facts.vcenters.get_mut("other").unwrap().state = unreachable_vcenter(true);
    world.edit_spec(|config| {
        let cloud = config.spec.cloud_provider.as_mut().unwrap();
        cloud.vsphere_cloud_configs.push(api::text::ObjectName("other".into()));
    });
    world.settle();
    assert_eq!(world.done, Vec::<String>::new());
    assert_eq!(world.driver(Driver::Cpi).next, Next::Blocked);
}

#[test]
fn a_vcenter_that_is_unreachable_for_a_moment_is_no_problem_yet() {
    let mut world = World::installed();
    world.vcenter().state = unreachable_vcenter(true);
    world.vcenter().since = world.facts.now;
    let young = world.plan();
    assert_eq!(young.findings[0].severity, api::Severity::Warning);
    assert_eq!(young.drivers[1].next, Next::Nothing);
    let wake = young.wake.unwrap();
    world.facts.now = wake;
    let old = world.plan();
    assert_eq!(old.findings[0].severity, api::Severity::Error);
    assert_eq!(old.drivers[1].next, Next::Blocked);
}

#[test]
fn attached_volumes_refuse_removal_and_are_named() {
    let mut world = World::installed();
    world.facts.attached = vec![("pv-7".into(), "node-2".into())];
    world.edit_spec(|config| {
        config.spec.storage_provider.as_mut().unwrap().mode = Some(api::vdo_config::Mode::Removed);
    });
    world.settle();
    assert_eq!(world.done, Vec::<String>::new());
    let plan = world.plan();
    let finding = plan.findings.iter().find(|finding| finding.code == "VDO-1904").unwrap();
    assert!(finding.seen.as_deref().unwrap().contains("pv-7 on node-2"));
    assert_eq!(finding.objects[0].name, "pv-7");

    world.facts.attached.clear();
    world.settle();
    assert!(world.done.contains(&"delete Deployment vsphere-csi-controller".into()));
    assert!(world.record(Driver::Csi).objects.is_empty());
}

#[test]
fn no_object_of_a_kind_that_holds_user_data_is_ever_deleted() {
    let mut world = World::installed();
    // The content of the record does not matter: an earlier release can have had more objects, or a person
    // can have edited it.
    let forbidden = [
        ("v1", "Namespace"),
        ("v1", "PersistentVolume"),
        ("v1", "PersistentVolumeClaim"),
        ("v1", "Node"),
        ("storage.k8s.io/v1", "VolumeAttachment"),
        ("storage.k8s.io/v1", "StorageClass"),
        ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
    ];
    for (api_version, kind) in forbidden {
        let id = ObjectId {
            api_version: api_version.into(),
            kind: kind.into(),
            namespace: String::new(),
            name: "precious".into(),
        };
        world.facts.records.csi.objects.insert(id.clone());
        world.facts.objects.insert(
            id,
            AppliedObject { digest: None, settled: true, terminating: false, mark: String::new() },
        );
    }
    world.settle();
    assert_eq!(world.done.iter().filter(|done| done.starts_with("delete")).count(), 0);
    remove_storage(&mut world);
    world.settle();
    let deleted: Vec<_> = world.done.iter().filter(|done| done.starts_with("delete")).collect();
    assert!(!deleted.is_empty());
    for (_, kind) in forbidden {
        assert!(!deleted.iter().any(|done| done.starts_with(&format!("delete {kind} "))), "{kind}");
    }
}

#[test]
fn removal_deletes_the_recorded_objects_and_nothing_else() {
    let mut world = World::installed();
    let other = ObjectId {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        namespace: names::CSI_NAMESPACE.into(),
        name: "somebody-elses".into(),
    };
    world.facts.objects.insert(
        other.clone(),
        AppliedObject { digest: None, settled: true, terminating: false, mark: String::new() },
    );
    remove_storage(&mut world);
    world.settle();
    assert!(world.facts.objects.contains_key(&other));
    assert!(world.facts.workloads.keys().all(|id| id.name == "vsphere-cloud-controller-manager"));
}

#[test]
fn a_driver_not_installed_by_vdo_is_untouched_and_reported() {
    let places = [
        ("Deployment", "vmware-system-csi", "vsphere-csi-controller", WorkloadRole::Controller),
        ("Deployment", "kube-system", "vsphere-csi-controller", WorkloadRole::Controller),
        ("DaemonSet", "rancher", "storage", WorkloadRole::Node),
    ];
    for (kind, namespace, name, role) in places {
        let mut world = World::new();
        theirs(&mut world, kind, namespace, name, Driver::Csi, role);
        world.settle();
        assert_eq!(world.driver(Driver::Csi).next, Next::Blocked, "{namespace}/{name}");
        assert_eq!(world.record(Driver::Csi), &Record::default());
        let plan = world.plan();
        let finding = plan.findings.iter().find(|finding| finding.code == "VDO-1902").unwrap();
        assert_eq!(finding.objects[0].name, format!("{namespace}/{name}"));
    }
}

#[test]
fn our_own_driver_that_lost_its_label_is_still_ours() {
    let mut world = World::installed();
    for workload in world.facts.workloads.values_mut() {
        workload.labelled = false;
    }
    assert!(!world.codes().contains(&"VDO-1902".into()));
    assert_eq!(world.driver(Driver::Csi).next, Next::Nothing);
}

#[test]
fn a_second_driver_next_to_ours_is_reported_and_ours_goes_on() {
    let mut world = World::installed();
    theirs(&mut world, "DaemonSet", "elsewhere", "storage", Driver::Csi, WorkloadRole::Node);
    assert!(world.codes().contains(&"VDO-1617".into()), "{:?}", world.codes());
    assert_eq!(world.driver(Driver::Csi).next, Next::Nothing);
}

#[test]
fn workloads_that_only_look_like_drivers_are_named_and_change_nothing() {
    let mut world = World::new();
    let of = |name: &str| ObjectId {
        api_version: "apps/v1".into(),
        kind: "Deployment".into(),
        namespace: "tenant".into(),
        name: name.into(),
    };
    world.facts.lookalikes = ["vdo-controller-manager", "vsphere-csi-controller"].map(of).into();
    world.settle();
    assert!(world.record(Driver::Cpi).healthy && world.record(Driver::Csi).healthy);
    let findings = world.plan().findings;
    let reported: Vec<_> =
        findings.iter().map(|f| (f.code.as_str(), f.severity, f.count)).collect();
    assert_eq!(reported, [("VDO-1914", api::Severity::Info, 2)]);
}

#[test]
fn paused_means_nothing_is_done() {
    let mut worlds = [World::new(), World::installed()];
    for world in &mut worlds {
        world.annotate(names::PAUSED, "true");
        world.edit_spec(|config| {
            config.spec.deletion_policy = Some(api::vdo_config::DeletionPolicy::Remove);
        });
        world.settle();
        assert_eq!(world.done, Vec::<String>::new());
        assert_eq!(finalizer_of(world), Finalizer::Stay);
        assert!(world.codes().contains(&"VDO-1906".into()));
    }
}

#[test]
fn on_a_platform_that_owns_its_drivers_nothing_is_applied() {
    let mut world = World::new();
    world.facts.cluster.platform = Platform::OpenShift;
    world.facts.cluster.owns_drivers = true;
    world.settle();
    assert_eq!(world.done, Vec::<String>::new());
}

#[test]
fn a_second_config_is_named_and_changes_nothing() {
    let mut world = World::installed();
    world.facts.rivals = vec![crate::facts::Rival {
        namespace: world.facts.operator_namespace.clone(),
        name: "other".into(),
        uid: "2".into(),
        generation: Some(1),
        status: None,
    }];
    world.settle();
    assert_eq!(world.done, Vec::<String>::new());
    let plan = world.plan();
    let finding = plan.findings.iter().find(|finding| finding.code == "VDO-1001").unwrap();
    assert_eq!(finding.objects[0].name, format!("{}/other", world.facts.operator_namespace));
    // The command deletes the VDOConfigs that VDO does not follow, and names nothing else.
    let command = &finding.remedy[1];
    let expected =
        format!("kubectl delete vdoconfig --namespace {} other   ", world.facts.operator_namespace);
    assert!(command.starts_with(&expected), "{command}");
}

#[test]
fn drivers_outlive_a_config_that_is_deleted() {
    let mut world = World::installed();
    deleted(&mut world);
    world.settle();
    assert_eq!(world.done, Vec::<String>::new());
    assert_eq!(finalizer_of(&world), Finalizer::Stay);
}

#[test]
fn drivers_go_before_a_config_that_asks_for_it_and_not_while_volumes_are_attached() {
    let mut world = World::installed();
    world.edit_spec(|config| {
        config.spec.deletion_policy = Some(api::vdo_config::DeletionPolicy::Remove);
    });
    assert_eq!(finalizer_of(&world), Finalizer::Set);
    let metadata = &mut Arc::make_mut(&mut world.facts.config).metadata;
    metadata.finalizers = Some(vec![names::FINALIZER.into()]);
    world.facts.attached = vec![("pv-1".into(), "node-1".into())];
    deleted(&mut world);
    world.settle();
    assert!(!world.record(Driver::Csi).objects.is_empty());
    assert_eq!(finalizer_of(&world), Finalizer::Stay, "it waits for the volume");
    world.facts.attached.clear();
    world.settle();
    assert!(world.facts.workloads.is_empty());
    assert_eq!(finalizer_of(&world), Finalizer::Clear);
}

#[test]
fn an_object_that_is_terminating_is_not_deleted_again() {
    let mut world = World::installed();
    for seen in world.facts.objects.values_mut() {
        seen.terminating = true;
    }
    remove_storage(&mut world);
    assert_eq!(world.driver(Driver::Csi).next, Next::Wait);
    assert!(!world.record(Driver::Csi).objects.is_empty(), "it is not forgotten before it is gone");
}
