//! Install, upgrade, rollback and pruning: VDO takes one action at a time, and records it first.

use super::*;
use health::facts::Conflict;

use crate::facts::{ApplyFailure, PullSecret, RefusalCause};

#[test]
fn every_object_is_recorded_before_it_is_applied() {
    let mut world = World::new();
    for _ in 0..100 {
        for plan in world.plan().drivers {
            if let Next::Apply(objects) = &plan.next {
                let recorded = &world.record(plan.driver).objects;
                for object in objects {
                    assert!(
                        recorded.contains(&ObjectId::from_object(object)),
                        "{}",
                        ObjectId::from_object(object)
                    );
                }
            }
        }
        if !world.step() {
            break;
        }
    }
    assert!(world.record(Driver::Csi).healthy);
}

#[test]
fn the_steps_of_an_install_come_in_order() {
    let mut world = World::new();
    world.settle();
    let place = |what: &str| {
        let at = world.done.iter().position(|done| done.starts_with(what));
        at.unwrap_or_else(|| panic!("{what} in {:?}", world.done))
    };
    assert!(place("apply CustomResourceDefinition") < place("apply ServiceAccount vsphere-csi"));
    assert!(
        place("apply Secret vsphere-config-secret")
            < place("apply Deployment vsphere-csi-controller")
    );
    assert!(
        place("apply Deployment vsphere-csi-controller")
            < place("apply DaemonSet vsphere-csi-node")
    );
}

#[test]
fn the_node_drivers_wait_for_a_healthy_controller() {
    let mut world = World::new();
    world.broken.push(NEWEST_CSI.into());
    world.settle();
    assert!(!world.done.iter().any(|done| done == "apply DaemonSet vsphere-csi-node"));
    let plan = world.driver(Driver::Csi);
    assert_eq!(plan.next, Next::Wait);
    let waits = plan.steps.iter().find_map(|step| step.message.as_deref()).unwrap();
    assert!(waits.contains("it crashes"), "{waits}");
}

#[test]
fn storage_waits_for_a_node_that_is_initialised() {
    let mut world = World::new();
    for node in &mut world.facts.cluster.nodes {
        node.node.taints = vec![(names::UNINITIALIZED.into(), "NoSchedule".into())];
    }
    world.settle();
    assert!(world.record(Driver::Cpi).healthy);
    assert_eq!(world.driver(Driver::Csi).next, Next::Wait);
    world.facts.cluster.nodes[0].node.taints.clear();
    world.settle();
    assert!(world.record(Driver::Csi).healthy);
}

#[test]
fn the_first_object_to_change_in_an_upgrade_is_the_record() {
    let mut world = older("3.6.3");
    pin(&mut world, NEWEST_CSI);
    world.settle();
    assert_eq!(world.done[0], "record CSI");
    assert_eq!(running(&world), Some(NEWEST_CSI));
}

#[test]
fn a_release_that_does_not_become_healthy_is_rolled_back_and_not_retried() {
    let mut world = older("3.6.3");
    world.broken.push(NEWEST_CSI.into());
    pin(&mut world, NEWEST_CSI);
    world.settle();
    assert_eq!(running(&world), Some(NEWEST_CSI), "the timeout is not over");
    let wake = world.plan().wake.expect("it looks again after the timeout");
    world.facts.now = wake;
    world.settle();
    assert_eq!(running(&world), Some("3.6.3"));
    assert!(world.record(Driver::Csi).healthy);
    let rejected = world.record(Driver::Csi).rejected.clone().unwrap();
    assert!(rejected.why.contains("it crashes"), "{rejected:?}");
    assert!(world.codes().contains(&"VDO-1905".into()));

    world.done.clear();
    world.pass(SignedDuration::from_hours(48));
    world.settle();
    assert_eq!(world.done, Vec::<String>::new(), "nothing has changed, nothing is tried");

    world.broken.clear();
    world.edit_spec(|_| {});
    world.settle();
    assert_eq!(running(&world), Some(NEWEST_CSI), "somebody changed the spec");
    assert!(!world.codes().contains(&"VDO-1905".into()));
}

#[test]
fn a_first_install_that_never_becomes_healthy_can_be_replaced_by_another_release() {
    let mut world = World::new();
    world.broken.push(NEWEST_CSI.into());
    world.settle();
    assert!(!world.record(Driver::Csi).healthy);
    pin(&mut world, "3.6.3");
    world.settle();
    assert_eq!(running(&world), Some("3.6.3"));
    assert!(world.record(Driver::Csi).healthy);
}

#[test]
fn one_hop_at_a_time() {
    let mut world = older("3.6.3");
    // A release that is reachable only over another one.
    let catalog = Arc::make_mut(&mut world.facts.catalog);
    let between = "3.7.0".parse().unwrap();
    for release in &mut catalog.releases {
        if release.driver == Driver::Csi && release.version.to_string() == NEWEST_CSI {
            release.upgrade_from = Some(between);
            break;
        }
    }
    pin(&mut world, NEWEST_CSI);
    world.broken.push("3.7.2".into());
    world.settle();
    assert_eq!(running(&world), Some("3.7.2"), "it is not healthy, so the next hop does not begin");
    world.broken.clear();
    for workload in world.facts.workloads.values_mut() {
        workload.available = workload.wanted;
    }
    world.settle();
    assert_eq!(running(&world), Some(NEWEST_CSI));
}

#[test]
fn objects_that_the_new_release_lacks_are_pruned_only_if_recorded_and_after_it_is_healthy() {
    let mut world = older("3.6.3");
    let extra = |name: &str| ObjectId {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        namespace: names::CSI_NAMESPACE.into(),
        name: name.into(),
    };
    let seen =
        || AppliedObject { digest: None, settled: true, terminating: false, mark: String::new() };
    world.facts.records.csi.objects.insert(extra("of-the-old-release"));
    world.facts.objects.insert(extra("of-the-old-release"), seen());
    world.facts.objects.insert(extra("not-on-record"), seen());
    world.broken.push(NEWEST_CSI.into());
    pin(&mut world, NEWEST_CSI);
    world.settle();
    assert!(world.facts.objects.contains_key(&extra("of-the-old-release")), "not healthy yet");
    for workload in world.facts.workloads.values_mut() {
        workload.available = workload.wanted;
    }
    world.broken.clear();
    world.settle();
    assert!(!world.facts.objects.contains_key(&extra("of-the-old-release")));
    assert!(world.facts.objects.contains_key(&extra("not-on-record")));
    assert!(!world.record(Driver::Csi).objects.contains(&extra("of-the-old-release")));
}

#[test]
fn storage_is_not_upgraded_while_the_cloud_controller_is_being_changed() {
    let mut world = World::new();
    world.edit_spec(|config| {
        let cloud = config.spec.cloud_provider.as_mut().unwrap();
        cloud.version = Some(api::text::ReleaseVersion("1.33.1".into()));
    });
    pin(&mut world, "3.6.3");
    world.settle();
    world.done.clear();
    world.broken.push("1.34.0".into());
    world.edit_spec(|config| {
        config.spec.cloud_provider.as_mut().unwrap().version = None;
        config.spec.storage_provider.as_mut().unwrap().version = None;
    });
    world.settle();
    assert_eq!(world.record(Driver::Cpi).version.as_deref(), Some("1.34.0"));
    assert_eq!(running(&world), Some("3.6.3"));
    assert!(world.driver(Driver::Csi).held.is_some());
}

#[test]
fn with_the_manual_policy_an_upgrade_waits_for_approval() {
    let latest = "3.8.0";
    let mut world = older("3.6.3");
    world.edit_spec(|config| {
        config.spec.storage_provider.as_mut().unwrap().version = None;
        let upgrades = json!({"policy": "Manual"});
        config.spec.upgrades = Some(serde_json::from_value(upgrades).unwrap());
    });
    world.settle();
    assert_eq!(world.done, Vec::<String>::new());
    let held = world.driver(Driver::Csi).held.unwrap();
    assert!(held.contains(&format!("vdo.vmware.com/approve-csi={latest}")), "{held}");
    world.annotate(names::APPROVE_CSI, latest);
    world.settle();
    assert_eq!(running(&world), Some(latest));
}

#[test]
fn a_spec_change_during_a_rollback_starts_from_the_previous_release() {
    let mut world = older("3.6.3");
    let record = &mut world.facts.records.csi;
    record.healthy = false;
    let rejected = json!({
        "version": "3.7.3", "why": "it crashed", "generation": 0, "circumstances": "approved: nothing",
    });
    record.rejected = Some(serde_json::from_value(rejected).unwrap());
    world.edit_spec(|config| {
        config.spec.storage_provider.as_mut().unwrap().version = None;
        let upgrades = json!({"policy": "Manual"});
        config.spec.upgrades = Some(serde_json::from_value(upgrades).unwrap());
    });
    world.settle();
    assert_eq!(running(&world), Some("3.6.3"), "nothing newer without approval");
    let held = world.driver(Driver::Csi).held.unwrap();
    assert!(held.contains("vdo.vmware.com/approve-csi="), "{held}");
}

#[test]
fn an_upgrade_waits_for_its_window_and_a_repair_does_not() {
    let mut world = older("3.6.3");
    world.edit_spec(|config| {
        config.spec.storage_provider.as_mut().unwrap().version = None;
        let upgrades = json!({"window": {"start": "22:00", "duration": "2h"}});
        config.spec.upgrades = Some(serde_json::from_value(upgrades).unwrap());
    });
    for seen in world.facts.objects.values_mut() {
        seen.settled = false;
    }
    world.settle();
    assert!(world.done.contains(&"apply DaemonSet vsphere-csi-node".into()), "repaired");
    assert_eq!(running(&world), Some("3.6.3"));
    let opens = world.plan().wake.unwrap();
    assert_eq!(opens.to_string(), "2026-11-14T22:00:00Z");
    world.facts.now = opens;
    world.settle();
    assert_eq!(running(&world), Some(NEWEST_CSI));
}

#[test]
fn an_older_release_than_the_one_that_runs_is_refused() {
    let mut world = World::installed();
    pin(&mut world, "3.6.3");
    world.settle();
    assert_eq!(world.done, Vec::<String>::new());
    assert!(world.codes().contains(&"VDO-1115".into()), "{:?}", world.codes());
}

#[test]
fn an_unknown_release_is_refused_and_the_running_one_stays() {
    let mut world = World::installed();
    pin(&mut world, "9.9.9");
    world.settle();
    assert_eq!(world.done, Vec::<String>::new());
    assert!(world.codes().contains(&"VDO-1114".into()), "{:?}", world.codes());
}

#[test]
fn the_cloud_controller_follows_the_kubernetes_minor() {
    let mut world = World::new();
    world.facts.cluster.version = "v1.35.4".parse().unwrap();
    world.settle();
    assert_eq!(world.record(Driver::Cpi).version.as_deref(), Some("1.35.1"));
    world.facts.cluster.version = "v1.36.0".parse().unwrap();
    world.settle();
    assert_eq!(world.record(Driver::Cpi).version.as_deref(), Some("1.36.0"));
}

#[test]
fn an_object_that_the_api_server_rejects_is_reported() {
    let mut world = World::new();
    world.step();
    let text = "the API server refused ServiceAccount x: quota".to_owned();
    for firm in [false, true] {
        let refusal = ApplyFailure { text: text.clone(), firm, cause: RefusalCause::Quota };
        world.facts.refused.insert(Driver::Cpi, refusal);
        let steps = world.driver(Driver::Cpi).steps;
        let shown = |message: &String| message.contains("quota");
        assert!(steps.iter().any(|step| step.message.as_ref().is_some_and(shown)));
        assert_eq!(world.codes().contains(&"VDO-1909".into()), firm, "a passing trouble is none");
    }
}

#[test]
fn a_writer_that_keeps_changing_an_object_is_named_and_it_is_repaired_with_growing_pauses() {
    let mut world = World::installed();
    let id = world.facts.objects.keys().find(|id| id.name == "vsphere-csi-controller").unwrap();
    let id = id.clone();
    world.facts.objects.get_mut(&id).unwrap().settled = false;
    let last = world.facts.now;
    let manager = "argocd-controller";
    let conflict = |times| Conflict { manager: manager.into(), times, last, ..Conflict::default() };
    world.facts.conflicts.insert(id.clone(), conflict(4));
    assert!(matches!(world.driver(Driver::Csi).next, Next::Apply(_)), "at once, to begin with");
    assert_eq!(world.codes(), Vec::<String>::new());

    let mut before = SignedDuration::ZERO;
    for times in [5, 6, 7, 30] {
        world.facts.conflicts.insert(id.clone(), conflict(times));
        world.facts.now = last;
        let plan = world.plan();
        assert_eq!(plan.drivers[1].next, Next::Nothing, "everything else goes on");
        let finding = &plan.findings[0];
        assert_eq!(finding.code, "VDO-1805");
        assert!(finding.seen.as_deref().unwrap().contains("argocd-controller"));
        let pause = plan.wake.unwrap().duration_since(last);
        assert!(pause > before && pause <= SignedDuration::from_mins(30), "{pause}");
        before = pause;
        world.facts.now = plan.wake.unwrap();
        assert!(matches!(world.driver(Driver::Csi).next, Next::Apply(_)), "then VDO repairs it");
    }
}

#[test]
fn a_writer_that_removes_the_digest_gets_the_same_pauses() {
    for name in ["vsphere-csi-controller", "vsphere-config-secret", "cpi-global-secret"] {
        let mut world = World::installed();
        let id = world.facts.objects.keys().find(|id| id.name == name).unwrap().clone();
        let seen = world.facts.objects.get_mut(&id).unwrap();
        (seen.settled, seen.digest) = (false, None);
        let applies = |world: &mut World| {
            [Driver::Cpi, Driver::Csi].map(|driver| world.driver(driver).next).iter().any(|next| {
                matches!(next, Next::Apply(objects) if objects.iter().any(|o| o.name() == name))
            })
        };
        assert!(applies(&mut world), "{name}: at once, to begin with");
        let conflict = Conflict {
            manager: "argocd-controller".into(),
            times: 6,
            last: world.facts.now,
            ..Conflict::default()
        };
        world.facts.conflicts.insert(id, conflict);
        assert!(!applies(&mut world), "{name}: VDO pauses");
        assert!(world.codes().contains(&"VDO-1805".into()), "{name}: {:?}", world.codes());
        world.pass(SignedDuration::from_mins(2));
        assert!(applies(&mut world), "{name}: then VDO repairs it");
    }
}

#[test]
fn secrets_to_pull_with_are_copied_to_where_the_drivers_are() {
    let mut world = World::new();
    let token = k8s_openapi::ByteString(b"token-of-the-registry".to_vec());
    let secret = PullSecret {
        kind: "kubernetes.io/dockerconfigjson".into(),
        data: BTreeMap::from([(".dockerconfigjson".to_owned(), token)]),
        version: "uid/1".into(),
    };
    world.facts.pull_secrets.insert("registry".into(), secret);
    let images = json!({"pullSecrets": ["registry"]});
    world.edit_spec(|config| config.spec.images = serde_json::from_value(images).unwrap());
    let mut allowed_namespaces = Vec::new();
    loop {
        for driver in world.plan().drivers {
            let Next::Apply(objects) = driver.next else { continue };
            for object in objects.iter().filter(|object| object.name() == "registry") {
                allowed_namespaces.push(object.namespace().to_owned());
                assert!(text_of(object).contains("token-of-the-registry"));
            }
        }
        if !world.step() {
            break;
        }
    }
    assert_eq!(allowed_namespaces, ["kube-system", "vmware-system-csi"]);
}

#[test]
fn the_nsx_settings_reach_the_cloud_controller() {
    let mut world = World::new();
    let nsx = json!({
        "host": "nsx.example.com", "credentials": "nsx", "routerPath": "/infra/tier-1s/k8s",
        "loadBalancer": {
            "tier1GatewayPath": "/infra/tier-1s/k8s", "ipPoolName": "pool-1", "size": "MEDIUM",
            "tcpProfile": "/infra/lb-app-profiles/tcp", "tags": {"team": "platform"},
            "classes": [{"name": "public", "ipPoolId": "pool-2"}],
        },
    });
    world.edit_spec(|config| {
        let cloud = config.spec.cloud_provider.as_mut().unwrap();
        cloud.nsx = Some(serde_json::from_value(nsx).unwrap());
    });
    let mut text = String::new();
    while !text.contains("vsphere.conf") {
        text = world.rendered();
        assert!(world.step(), "it is never rendered");
    }
    let expected = [
        "nsx.example.com",
        "secretName: nsx",
        "/infra/tier-1s/k8s",
        "pool-1",
        "MEDIUM",
        "/infra/lb-app-profiles/tcp",
        "public",
        "pool-2",
    ];
    let text = text.replace("\\\"", "");
    for line in expected {
        assert!(text.contains(line), "{line} is missing in {text}");
    }
}

#[test]
fn storage_classes_come_last_and_stay_when_they_are_no_longer_asked_for() {
    let mut world = World::new();
    let classes = json!([{"name": "fast", "storagePolicy": "Gold", "default": true}]);
    world.edit_spec(|config| {
        let storage = config.spec.storage_provider.as_mut().unwrap();
        storage.storage_classes = serde_json::from_value(classes).unwrap();
    });
    world.settle();
    let place = |what: &str| world.done.iter().position(|done| done == what).unwrap();
    assert!(place("apply StorageClass fast") > place("apply DaemonSet vsphere-csi-node"));
    world.edit_spec(|config| {
        config.spec.storage_provider.as_mut().unwrap().storage_classes.clear();
    });
    world.settle();
    assert!(!world.done.iter().any(|done| done.starts_with("delete")));
    assert!(world.facts.objects.keys().any(|id| id.name == "fast"));
}

#[test]
fn a_snapshot_class_is_created_last_and_stays() {
    let mut world = World::new();
    world.edit_spec(|config| {
        let storage = config.spec.storage_provider.as_mut().unwrap();
        storage.snapshots = serde_json::from_value(json!({"installController": true})).unwrap();
    });
    world.settle();
    let class = "apply VolumeSnapshotClass vsphere-csi".to_owned();
    let place = |what: &str| world.done.iter().position(|done| done.starts_with(what)).unwrap();
    assert!(place(&class) > place("apply DaemonSet vsphere-csi-node"));
    assert!(place(&class) > place("apply CustomResourceDefinition volumesnapshotclasses"));
    world.done.clear();
    remove_storage(&mut world);
    world.settle();
    assert!(!world.done.contains(&"delete VolumeSnapshotClass vsphere-csi".into()));
}

#[test]
fn a_node_labelled_as_not_on_vsphere_blocks_nothing_and_gets_no_storage() {
    let mut world = World::new();
    let bare = &mut world.facts.cluster.nodes[1];
    (bare.vm, bare.node.provider_id) = (NodeVm::Missing, None);
    let mut sets = Vec::new();
    loop {
        if let Next::Apply(objects) = world.driver(Driver::Csi).next {
            sets.extend(objects.into_iter().filter(|o| o.name() == "vsphere-csi-node"));
        }
        if !world.step() {
            break;
        }
    }
    let ready = |world: &World| {
        let status = crate::status::status(&world.facts, &world.plan());
        api::condition::is_true(&status.conditions, "Ready")
    };
    assert!(!ready(&world), "VDO waits for its VM");
    let labels = &mut world.facts.cluster.nodes[1].node.labels;
    labels.insert(health::facts::VSPHERE_LABEL.into(), "false".into());
    assert!(ready(&world), "{:#?}", world.plan());
    let set = sets.iter().find(|o| o.kind() == "DaemonSet").unwrap();
    let affinity = set.0.pointer("/spec/template/spec/affinity/nodeAffinity").unwrap().to_string();
    for label in [health::facts::VSPHERE_LABEL, health::facts::PLATFORM_LABEL] {
        assert!(affinity.contains(label), "{affinity}");
    }
}
