//! A new password of the same user reaches the drivers, no matter what else waits.

use super::*;
use health::facts::Conflict;

use crate::{facts::PullSecret, plan::PassedPods};

const NEW: &str = "second password";
const CLOUD: &str = "restart DaemonSet vsphere-cloud-controller-manager";
const RENEWED: &str = "renew files of vsphere-csi-controller";
const BOTH: [Driver; 2] = [Driver::Cpi, Driver::Csi];

/// Both drivers run with two vCenters.
fn with_two() -> World {
    let mut world = World::with_spec(&json!({
        "cloudProvider": {"vsphereCloudConfigs": ["vc", "other"]},
        "storageProvider": {"vsphereCloudConfigs": ["vc", "other"]},
    }));
    world.facts.vcenters.insert("other".into(), vcenter("other.example.com", "of the other"));
    world.settle();
    assert!(BOTH.iter().all(|driver| world.record(*driver).healthy), "{:#?}", world.plan());
    world.done.clear();
    world
}

fn assert_handed_over(world: &World, what: &str) {
    for driver in BOTH {
        assert!(world.has_password(driver, NEW), "{what}: {driver} in {:#?}", world.driver(driver));
        assert!(!world.has_password(driver, "first"), "{what}: {driver} has the old one too");
    }
}

/// A name, and a change that delays everything else.
type Trouble = (&'static str, fn(&mut World));

fn troubles() -> Vec<Trouble> {
    vec![
        ("a dead node", |world| world.facts.cluster.nodes[1].vm = NodeVm::Missing),
        ("a node of which nothing is known", |world| {
            world.facts.cluster.nodes[1].vm = NodeVm::Unknown("no answer".into());
        }),
        ("a catalog that lost both releases", |world| {
            Arc::make_mut(&mut world.facts.catalog).releases.clear();
        }),
        ("an expired catalog", |world| {
            Arc::make_mut(&mut world.facts.catalog).expires = Some(Timestamp::UNIX_EPOCH);
        }),
        ("a datacenter that is not there", |world| {
            world.vcenter().spec.datacenters = serde_json::from_value(json!(["none"])).unwrap();
            world.vcenter().state = unreachable_vcenter(false);
        }),
        ("a vCenter that disconnects right after the login", |world| {
            world.vcenter().state = unreachable_vcenter(true);
        }),
        ("zones that no node has", |world| {
            world.facts.health.findings = vec![api::finding::codes::TAG_MISSING.found().build()];
            world.edit_spec(|config| {
                let topology = json!({"zone": "z", "region": "r"});
                config.spec.cloud_provider.as_mut().unwrap().topology =
                    serde_json::from_value(topology).unwrap();
            });
        }),
        ("a cluster id that is shared", |world| {
            world.facts.foreign_volumes = Ok(vec!["shop/orders".into()]);
        }),
        ("CNS that does not answer", |world| world.facts.foreign_volumes = Err("no answer".into())),
        ("a release that crashes", |world| {
            world.broken.push("3.6.3".into());
            pin(world, "3.6.3");
        }),
        ("a new VDO that renders otherwise, and a window that is shut", |world| {
            world.edit_spec(|config| {
                let window = r#"{"window": {"start": "22:00", "duration": "2h"}}"#;
                config.spec.upgrades = Some(serde_json::from_str(window).unwrap());
            });
            world.facts.build = "0.8.0 (second)".into();
            let catalog = Arc::make_mut(&mut world.facts.catalog);
            let text = serde_json::to_string(&catalog).unwrap();
            let text = text.replace("csi-attacher", "another-attacher");
            *catalog = serde_json::from_str(&text).unwrap();
        }),
        ("a change of the spec that waits for a dead node", |world| {
            world.facts.cluster.nodes[1].vm = NodeVm::Missing;
            world.edit_spec(|config| {
                let storage = config.spec.storage_provider.as_mut().unwrap();
                storage.cluster_distribution = Some("another".into());
                let cloud = config.spec.cloud_provider.as_mut().unwrap();
                cloud.nodes = serde_json::from_value(json!({"ipFamilies": ["IPv6"]})).unwrap();
            });
        }),
    ]
}

#[test]
fn a_new_password_reaches_both_drivers_whatever_holds_up_everything_else() {
    for (what, befalls) in troubles() {
        for early in [true, false] {
            let mut world = World::installed();
            if early {
                befalls(&mut world);
                world.settle();
                world.rotate("vc", NEW);
            } else {
                world.rotate("vc", NEW);
                befalls(&mut world);
            }
            world.settle();
            assert_handed_over(&world, what);
            assert!(world.done.contains(&CLOUD.into()), "{what}: {:?}", world.done);
            world.done.clear();
            world.settle();
            assert_eq!(world.done, Vec::<String>::new(), "{what}: it comes to rest");
        }
    }
}

#[test]
fn each_vcenters_password_travels_by_itself() {
    let troubles: [fn(&mut VcenterConnection); 3] = [
        |other| other.state = unreachable_vcenter(true),
        |other| {
            other.state = unreachable_vcenter(false);
            other.accepted = false;
        },
        // The state that an operator sees right after its start.
        |other| {
            (other.state, other.credentials) = (unreachable_vcenter(true), None);
            (other.credentials_version, other.accepted) = (String::new(), false);
        },
    ];
    for befalls in troubles {
        let mut world = with_two();
        befalls(world.facts.vcenters.get_mut("other").unwrap());
        world.pass(SignedDuration::from_hours(1));
        world.rotate("vc", NEW);
        world.settle();
        assert_handed_over(&world, "the other is unreachable");
        for driver in BOTH {
            assert!(world.has_password(driver, "of the other"), "it keeps what it has");
        }
        assert!(world.done.contains(&CLOUD.into()), "{:?}", world.done);
        let message = world.driver(Driver::Csi).steps[0].message.clone().unwrap();
        assert!(message.contains("waiting for other"), "what waits is named: {message}");

        // The other vCenter is back, also with a new password. VDO writes nothing twice.
        let other = world.facts.vcenters.get_mut("other").unwrap();
        (other.state, other.accepted) = (verified(), true);
        world.rotate("other", "new of that one");
        world.settle();
        for driver in BOTH {
            assert!(
                world.has_password(driver, "new of that one") && world.has_password(driver, NEW)
            );
        }
        world.done.clear();
        world.settle();
        assert_eq!(world.done, Vec::<String>::new());
    }
}

#[test]
fn a_new_password_changes_only_the_password() {
    let mut world = World::installed();
    let before: Vec<_> = BOTH.map(|driver| world.record(driver).clone()).into();
    let text = |world: &World, driver| {
        let data = world.facts.driver_secrets[&driver].data.iter();
        data.map(|(key, text)| format!("{key}: {}\n", text.expose())).collect::<String>()
    };
    let then = BOTH.map(|driver| text(&world, driver));
    world.rotate("vc", NEW);
    world.settle();
    let expected =
        ["apply Secret cpi-global-secret", "apply Secret vsphere-config-secret", CLOUD, RENEWED];
    assert_eq!(world.done, expected);
    let after: Vec<_> = BOTH.map(|driver| world.record(driver).clone()).into();
    assert_eq!(before, after, "no digest of a password is on record");
    let now = BOTH.map(|driver| text(&world, driver));
    assert_eq!(then.map(|text| text.replace("first", NEW)), now);
}

#[test]
fn another_revision_of_the_same_password_waits_for_no_node() {
    let mut world = World::installed();
    world.facts.cluster.nodes[1].vm = NodeVm::Missing;
    world.vcenter().credentials_version = "another revision".into();
    world.settle();
    for driver in BOTH {
        assert_eq!(world.driver(driver).next, Next::Nothing, "{:#?}", world.driver(driver));
    }
    assert!(!world.done.contains(&CLOUD.into()), "{:?}", world.done);
}

#[test]
fn a_password_that_vcenter_has_not_accepted_goes_nowhere() {
    let mut world = World::installed();
    world.rotate("vc", NEW);
    world.vcenter().accepted = false;
    world.vcenter().state = unreachable_vcenter(false);
    world.settle();
    assert_eq!(world.done, Vec::<String>::new());
}

#[test]
fn a_paused_vdo_changes_nothing_and_reports_the_password_that_waits() {
    let mut world = World::installed();
    world.annotate(names::PAUSED, "true");
    world.rotate("vc", NEW);
    world.settle();
    assert_eq!(world.done, Vec::<String>::new());
    let findings = world.plan().findings.into_iter();
    let waits: Vec<_> = findings.filter(|finding| finding.code == "VDO-1316").collect();
    assert_eq!(waits.len(), 2, "one for each driver");
    let seen = waits[0].seen.as_deref().unwrap();
    assert!(seen.contains("vc") && seen.contains("paused") && !seen.contains(NEW), "{seen}");
    world.annotate(names::PAUSED, "false");
    world.settle();
    assert_handed_over(&world, "it goes on");
    assert!(!world.codes().contains(&"VDO-1316".into()));
}

#[test]
fn a_password_that_vdo_cannot_write_holds_up_no_other() {
    let mut world = with_two();
    let other = world.facts.vcenters.get_mut("other").unwrap();
    (other.state, other.accepted) = (unreachable_vcenter(true), true);
    // The driver reads the login of the other vCenter from a file that VDO does not write.
    let secret = world.facts.driver_secrets.get_mut(&Driver::Cpi).unwrap();
    secret.data.retain(|_, text| !text.expose().contains("of the other"));
    secret.data.retain(|key, _| !key.starts_with("other.example.com"));
    let file = "[VirtualCenter \"other.example.com\"]\nuser = \"k8s@vsphere.local\"\n\
                password = \"of the other\"\n";
    secret.data.insert("vsphere.conf".into(), file.into());
    world.rotate("other", "new of the other");
    world.rotate("vc", NEW);
    world.settle();
    assert!(world.has_password(Driver::Cpi, NEW), "{:#?}", world.driver(Driver::Cpi));
    assert!(world.done.contains(&CLOUD.into()), "it restarts: {:?}", world.done);
    assert!(world.has_password(Driver::Cpi, "of the other"), "the file stays");
    let finding = world.plan().findings.into_iter().find(|f| f.code == "VDO-1316").unwrap();
    assert!(finding.seen.unwrap().contains("other"));
}

#[test]
fn a_secret_that_is_not_understood_is_reported_and_not_overwritten_with_half_of_it() {
    let mut world = with_two();
    let other = world.facts.vcenters.get_mut("other").unwrap();
    (other.state, other.accepted) = (unreachable_vcenter(true), false);
    let secret = world.facts.driver_secrets.get_mut(&Driver::Csi).unwrap();
    secret.data.insert("csi-vsphere.conf".into(), "[Global\nbroken".into());
    world.rotate("vc", NEW);
    world.settle();
    assert!(!world.done.contains(&"apply Secret vsphere-config-secret".into()));
    let finding = world.plan().findings.into_iter().find(|f| f.code == "VDO-1316").unwrap();
    assert_eq!(finding.objects[0].name, "vmware-system-csi/vsphere-config-secret");
    assert!(world.has_password(Driver::Cpi, NEW), "the other driver gets it");
}

#[test]
fn an_adopted_driver_gets_a_new_password_under_the_name_its_secret_has() {
    let mut world = World::installed();
    let mut secret = world.facts.driver_secrets[&Driver::Csi].clone();
    secret.id.name = "rancher-config".into();
    world.facts.driver_secrets.insert(Driver::Csi, secret.clone());
    let record = &mut world.facts.records.csi;
    record.names = Some(crate::record::Names {
        namespace: names::CSI_NAMESPACE.into(),
        settings: Some("rancher-config".into()),
        ..Default::default()
    });
    (record.configuration, record.origin) = (None, None);
    world.facts.objects.retain(|id, _| id.name != names::CSI_SECRET);
    // The operator has permission for the names on record.
    world.facts.open_namespaces.clear();
    world.facts.cluster.nodes[1].vm = NodeVm::Missing;
    world.rotate("vc", NEW);
    world.settle();
    let recorded = world.done.iter().position(|done| done == "record CSI").unwrap();
    let applied = world.done.iter().position(|done| done == "apply Secret rancher-config").unwrap();
    assert!(recorded < applied, "{:?}", world.done);
    assert!(world.record(Driver::Csi).objects.contains(&secret.id));
    assert!(world.has_password(Driver::Csi, NEW));
}

#[test]
fn a_second_writer_of_the_secret_does_not_make_the_driver_restart_all_the_time() {
    let mut world = World::installed();
    let secret = &world.facts.driver_secrets[&Driver::Cpi];
    let (id, before) = (secret.id.clone(), secret.data.clone());
    let conflict = Conflict {
        manager: "argocd-controller".into(),
        times: 6,
        last: world.facts.now,
        ..Conflict::default()
    };
    world.facts.conflicts.insert(id, conflict);
    world.rotate("vc", NEW);
    world.settle();
    assert_handed_over(&world, "a new password does not wait until the pause is over");
    world.done.clear();

    world.facts.driver_secrets.get_mut(&Driver::Cpi).unwrap().data = before;
    world.settle();
    assert_eq!(world.done, Vec::<String>::new(), "VDO pauses");
    let finding = world.plan().findings.into_iter().find(|f| f.code == "VDO-1316").unwrap();
    let seen = finding.seen.as_deref().unwrap();
    assert!(seen.contains("argocd-controller"), "{seen}");

    world.pass(SignedDuration::from_mins(2));
    world.settle();
    assert_handed_over(&world, "after the pause");
    assert!(world.done.contains(&CLOUD.into()), "{:?}", world.done);
}

#[test]
fn a_restart_passes_dead_nodes_and_falls_back_to_the_apply_it_precedes() {
    let mut world = World::installed();
    let mut workloads = world.facts.workloads.values_mut();
    let cloud = workloads.find(|workload| workload.driver == Driver::Cpi).unwrap();
    (cloud.wanted, cloud.available, cloud.unreachable, cloud.orphaned) = (3, 2, 1, 1);
    for (id, seen) in &mut world.facts.objects {
        seen.settled = id.kind != "DaemonSet";
    }
    world.rotate("vc", NEW);
    assert!(world.step(), "the Secret comes first");
    let next = world.driver(Driver::Cpi).next;
    let Next::Restart { passed, otherwise, .. } = &next else { panic!("{next:?}") };
    let expected = PassedPods { unreachable: 2, unready: 0 };
    assert_eq!(*passed, expected, "Kubernetes has not deleted the pod of a deleted Node yet");
    assert!(matches!(**otherwise, Next::Apply(_)), "{otherwise:?}");
}

/// Three control-plane nodes are up, and the pod on one of them does not run.
fn with_a_broken_pod() -> World {
    let mut world = World::installed();
    let cloud = controller(&mut world, Driver::Cpi);
    (cloud.wanted, cloud.available, cloud.ready, cloud.unready) = (3, 2, 2, 1);
    cloud.trouble = Some("cpi-x: Evicted on node-3 (DiskPressure)".into());
    world
}

/// The limit of pods that restart at a time, in what VDO applies next.
fn limit(world: &World) -> Option<Value> {
    let next = world.driver(Driver::Cpi).next;
    let Next::Apply(objects) = &next else { panic!("{next:?}") };
    let set = objects.iter().find(|object| object.kind() == "DaemonSet")?;
    set.0.pointer("/spec/updateStrategy/rollingUpdate/maxUnavailable").cloned()
}

#[test]
fn a_pod_that_does_not_run_stops_no_restart_with_a_new_password() {
    let mut world = with_a_broken_pod();
    world.rotate("vc", NEW);
    assert!(world.step(), "the Secret comes first");
    let next = world.driver(Driver::Cpi).next;
    let Next::Restart { passed, workload: id, changed, .. } = next else { panic!("{next:?}") };
    assert_eq!(passed, PassedPods { unreachable: 0, unready: 1 });
    assert_eq!(passed.total(), 1);

    // The operator restarted the pods with the higher limit. The status of the DaemonSet is that from before.
    let noted = passed.noted("other digest");
    let seen = world.facts.objects.get_mut(&id).unwrap();
    (seen.digest, seen.settled, seen.mark) = (Some(noted), false, "restarted".into());
    world.facts.workloads.get_mut(&id).unwrap().origin.credentials_changed = Some(changed);
    assert_eq!(limit(&world), Some(json!(2)), "the full apply does not lower the limit yet");
    let cloud = controller(&mut world, Driver::Cpi);
    (cloud.mark, cloud.updated, cloud.rolled_out) = ("restarted".into(), 1, false);
    (cloud.available, cloud.unready) = (0, 2);
    assert_eq!(limit(&world), Some(json!(2)), "a pod that restarts does not raise it further");
    controller(&mut world, Driver::Cpi).unreachable = 1;
    assert_eq!(limit(&world), Some(json!(2)), "the node of the broken pod went down");
    controller(&mut world, Driver::Cpi).failing = 1;
    assert_eq!(limit(&world), Some(json!(3)), "another node went down");
    let cloud = controller(&mut world, Driver::Cpi);
    (cloud.unreachable, cloud.updated, cloud.rolled_out) = (0, 3, true);
    assert_eq!(limit(&world), Some(json!(1)), "after the restart");
}

#[test]
fn a_node_that_goes_down_during_a_restart_raises_the_limit_while_the_plan_is_blocked() {
    let mut world = with_a_broken_pod();
    world.rotate("vc", NEW);
    world.settle();
    // The other settings wait for the VM.
    world.facts.cluster.nodes[1].vm = NodeVm::Missing;
    world.edit_spec(|config| {
        let cloud = config.spec.cloud_provider.as_mut().unwrap();
        cloud.nodes = serde_json::from_value(json!({"ipFamilies": ["IPv6"]})).unwrap();
    });
    let ids = world.facts.workloads.iter().find(|(_, w)| w.driver == Driver::Cpi);
    let id = ids.unwrap().0.clone();
    let note = |world: &mut World, passed: PassedPods| {
        let seen = world.facts.objects.get_mut(&id).unwrap();
        seen.digest = Some(passed.noted("digest"));
    };
    note(&mut world, PassedPods { unreachable: 0, unready: 1 });
    let cloud = controller(&mut world, Driver::Cpi);
    (cloud.updated, cloud.rolled_out, cloud.unready) = (1, false, 2);
    cloud.logins = [(None, 1)].into();
    assert_eq!(world.driver(Driver::Cpi).next, Next::Blocked, "the restart goes on");

    controller(&mut world, Driver::Cpi).unreachable = 1;
    assert_eq!(world.driver(Driver::Cpi).next, Next::Blocked, "the broken pod was on that node");
    controller(&mut world, Driver::Cpi).failing = 1;
    let next = world.driver(Driver::Cpi).next;
    let Next::Restart { passed, .. } = next else { panic!("{next:?}") };
    assert_eq!(passed, PassedPods { unreachable: 1, unready: 1 }, "one of the unready restarts");
    note(&mut world, PassedPods { unreachable: 1, unready: 1 });
    assert_eq!(world.driver(Driver::Cpi).next, Next::Blocked, "the limit is high enough");
    note(&mut world, PassedPods { unreachable: 0, unready: 1 });
    controller(&mut world, Driver::Cpi).logins = [(None, 0)].into();
    assert_eq!(world.driver(Driver::Cpi).next, Next::Blocked, "no running pod is old");
}

#[test]
fn a_second_password_during_a_restart_does_not_pass_the_pod_that_restarts() {
    let passed = |digest: &str| {
        let mut world = with_a_broken_pod();
        world.rotate("vc", NEW);
        assert!(world.step(), "the Secret comes first");
        let cloud = controller(&mut world, Driver::Cpi);
        (cloud.updated, cloud.rolled_out, cloud.unready) = (1, false, 2);
        let mut objects = world.facts.objects.iter_mut();
        let (_, seen) = objects.find(|(id, _)| CLOUD.ends_with(&id.name)).unwrap();
        seen.digest = Some(digest.into());
        let next = world.driver(Driver::Cpi).next;
        let Next::Restart { passed, .. } = next else { panic!("{next:?}") };
        passed
    };
    assert_eq!(passed("d"), PassedPods::default());
    assert_eq!(passed("d+0+1"), PassedPods { unreachable: 0, unready: 1 });
}

#[test]
fn a_pod_whose_node_goes_down_during_the_rollout_counts_once() {
    let noted = |unreachable, unready| PassedPods { unreachable, unready };
    let broken = noted(0, 1);
    assert_eq!(broken.during_rollout(1, 0), broken, "its node went down");
    assert_eq!(broken.during_rollout(1, 1), noted(1, 1), "another node went down");
    assert_eq!(noted(1, 1).during_rollout(1, 0), noted(1, 1), "it starts again for a moment");
    assert_eq!(broken.during_rollout(2, 0), noted(2, 0));
    assert_eq!(broken.during_rollout(0, 2), broken, "the rollout breaks a second pod");
    assert_eq!(noted(2, 0).during_rollout(1, 1), noted(1, 0), "a node is back");
    assert_eq!(noted(1, 1).during_rollout(0, 0), broken);
}

#[test]
fn an_upgrade_does_not_pass_the_pods_that_its_release_breaks() {
    let mut world = with_a_broken_pod();
    world.facts.records.cpi.healthy = false;
    world.rotate("vc", NEW);
    assert!(world.step(), "the Secret comes first");
    let next = world.driver(Driver::Cpi).next;
    let Next::Restart { passed, .. } = next else { panic!("{next:?}") };
    assert_eq!(passed, PassedPods::default());
}

#[test]
fn a_running_pod_that_keeps_an_old_password_is_reported() {
    let mut world = with_a_broken_pod();
    world.rotate("vc", NEW);
    world.settle();
    let changed = world.facts.driver_secrets[&Driver::Cpi].changed.clone();
    let reported = |world: &World| {
        let findings = world.plan().findings.into_iter();
        findings.filter(|f| f.code == "VDO-1316").find_map(|f| f.seen)
    };
    let before = Some("2026-11-14T11:00:00Z".to_owned());
    controller(&mut world, Driver::Cpi).logins = [(changed.clone(), 1), (before, 1)].into();
    assert_eq!(reported(&world), None, "it restarts soon");
    let wake = world.plan().wake.unwrap();
    assert!(wake <= world.facts.now + SignedDuration::from_secs(30), "{wake}");
    world.pass(SignedDuration::from_secs(30));
    let seen = reported(&world).unwrap();
    assert!(seen.contains("1 running pod of DaemonSet") && seen.contains("Evicted"), "{seen}");
    assert!(!seen.contains(NEW), "{seen}");
    controller(&mut world, Driver::Cpi).logins = [(None, 2)].into();
    let seen = reported(&world).unwrap();
    assert!(seen.contains("2 running pods"), "{seen}");
    let cloud = controller(&mut world, Driver::Cpi);
    cloud.trouble = None;
    assert_eq!(cloud.wanted, 3);
    assert_eq!(reported(&world), None, "three pods restart one after another");
    let end = world.facts.now + SignedDuration::from_secs(60);
    assert!(world.plan().wake.unwrap() <= end);
    world.pass(SignedDuration::from_secs(60));
    let seen = reported(&world).unwrap();
    assert!(!seen.contains("Evicted"), "{seen}");
    controller(&mut world, Driver::Cpi).logins = [(changed, 2)].into();
    assert_eq!(reported(&world), None);
}

#[test]
fn no_digest_is_made_of_a_password() {
    let digest = |driver: Driver, password: &str| {
        let mut world = World::installed();
        let data = &mut world.facts.driver_secrets.get_mut(&driver).unwrap().data;
        if driver == Driver::Cpi {
            data.insert("gone.example.com.username".into(), "k8s@gone".into());
            data.insert("gone.example.com.password".into(), password.into());
        } else {
            let text = data["csi-vsphere.conf"].expose();
            let gone = "[VirtualCenter \"gone.example.com\"]\nuser = \"k8s@gone\"\npassword =";
            let text = format!("{text}\n{gone} \"{password}\"\n");
            data.insert("csi-vsphere.conf".into(), text.into());
        }
        world.rotate("vc", NEW);
        let next = world.driver(driver).next;
        let Next::Apply(objects) = &next else { panic!("{next:?}") };
        assert!(text_of(&objects[0]).contains(password), "the driver keeps it");
        objects[0].0["metadata"]["annotations"][names::DIGEST].clone()
    };
    for driver in BOTH {
        assert_eq!(digest(driver, "this one"), digest(driver, "that one"), "{driver}");
    }
}

#[test]
fn a_vsphere_cloud_config_with_another_name_gets_its_password_through() {
    let mut world = World::installed();
    for record in [&mut world.facts.records.cpi, &mut world.facts.records.csi] {
        record.users = ["former k8s@vsphere.local".to_owned()].into();
    }
    world.facts.cluster.nodes[1].vm = NodeVm::Missing;
    world.rotate("vc", NEW);
    world.settle();
    assert_handed_over(&world, "under another name");
}

#[test]
fn drivers_that_vdo_does_not_manage_get_nothing() {
    let mut world = World::installed();
    world.edit_spec(|config| {
        let observe = Some(api::vdo_config::Mode::Observe);
        config.spec.cloud_provider.as_mut().unwrap().mode = observe;
        config.spec.storage_provider.as_mut().unwrap().mode = observe;
    });
    world.rotate("vc", NEW);
    world.settle();
    assert_eq!(world.done, Vec::<String>::new());
}

#[test]
fn a_new_pull_secret_is_no_new_password() {
    let mut world = World::installed();
    let version = "u/1".into();
    let secret = PullSecret { kind: "Opaque".into(), data: BTreeMap::new(), version };
    world.facts.pull_secrets.insert("registry".into(), secret);
    world.settle();
    assert!(!world.done.contains(&CLOUD.into()), "{:?}", world.done);
}

#[test]
fn a_release_that_was_rolled_back_is_tried_again_only_when_its_own_entry_changes() {
    let mut world = older("3.6.3");
    world.broken.push(NEWEST_CSI.into());
    pin(&mut world, NEWEST_CSI);
    world.settle();
    world.facts.now = world.plan().wake.unwrap();
    world.settle();
    assert_eq!(running(&world), Some("3.6.3"));
    world.done.clear();

    let entry = |world: &World, version: &str| {
        let releases = &world.facts.catalog.releases;
        let of = |r: &catalog::Release| {
            r.driver == Driver::Csi
                && r.implementation == Implementation::Upstream
                && r.version.to_string() == version
        };
        releases.iter().position(of).unwrap()
    };
    let catalog = Arc::make_mut(&mut world.facts.catalog);
    catalog.serial += 1;
    let other = entry(&world, "3.7.2");
    Arc::make_mut(&mut world.facts.catalog).releases.remove(other);
    world.settle();
    let applied = world.done.iter().any(|done| done.starts_with("apply"));
    assert!(!applied, "this release is unchanged: {:?}", world.done);
    // The catalog lacks the release for a while, as when VDO loses a fetched catalog. VDO does not forget the
    // rejection.
    let full = world.facts.catalog.clone();
    let own = entry(&world, NEWEST_CSI);
    let gone = Arc::make_mut(&mut world.facts.catalog).releases.remove(own);
    world.settle();
    world.facts.catalog = full;
    world.settle();
    assert_eq!(running(&world), Some("3.6.3"), "{:?}", world.done);

    let fixed = &mut Arc::make_mut(&mut world.facts.catalog).releases[own];
    assert_eq!(fixed.version, gone.version);
    let text = serde_json::to_string(&fixed).unwrap().replace("csi-attacher", "fixed-attacher");
    *fixed = serde_json::from_str(&text).unwrap();
    world.broken.clear();
    world.settle();
    assert_eq!(running(&world), Some(NEWEST_CSI), "{:?}", world.done);
}

/// A cloud controller that VDO adopted and cannot roll out yet. It reads its own Secret.
fn adopted_cloud_controller() -> (World, ObjectId) {
    let mut world = World::installed();
    let own = ObjectId { name: "vsphere-cpi-creds".into(), ..cpi_secret(&world) };
    let secret = world.facts.driver_secrets.get_mut(&Driver::Cpi).unwrap();
    (secret.id, secret.changed) = (own.clone(), None);
    let record = &mut world.facts.records.cpi;
    record.names = Some(crate::record::Names {
        namespace: names::KUBE_SYSTEM.into(),
        settings: Some("vsphere-cloud-config".into()),
        ..Default::default()
    });
    record.objects.retain(|id| id.kind == "DaemonSet");
    (record.configuration, record.origin) = (None, None);
    world
        .facts
        .objects
        .retain(|id, _| !record.objects.contains(id) && id.name != names::CPI_SECRET);
    for workload in world.facts.workloads.values_mut().filter(|w| w.driver == Driver::Cpi) {
        (workload.labelled, workload.origin.credentials_changed) = (false, None);
    }
    world.facts.cluster.nodes[1].vm = NodeVm::Missing;
    (world, own)
}

fn cpi_secret(world: &World) -> ObjectId {
    world.facts.driver_secrets[&Driver::Cpi].id.clone()
}

#[test]
fn an_adopted_cloud_controller_gets_a_new_password_in_its_own_secret() {
    let (mut world, own) = adopted_cloud_controller();
    world.rotate("vc", NEW);
    let next = world.driver(Driver::Cpi).next;
    let Next::Apply(objects) = &next else { panic!("{next:?}") };
    assert_eq!(ObjectId::from_object(&objects[0]), own);
    assert!(text_of(&objects[0]).contains(NEW));
    assert!(objects[0].0["metadata"]["labels"].is_null(), "the Secret stays the admin's");

    let changed = objects[0].0["metadata"]["annotations"][names::CREDENTIALS_CHANGED].as_str();
    let secret = world.facts.driver_secrets.get_mut(&Driver::Cpi).unwrap();
    secret.changed = changed.map(str::to_owned);
    for text in secret.data.values_mut() {
        *text = text.expose().replace("first", NEW).into();
    }
    let next = world.driver(Driver::Cpi).next;
    assert!(matches!(next, Next::Restart { .. }), "it reads its password only at start: {next:?}");
    let recorded = &world.record(Driver::Cpi).objects;
    assert!(!recorded.contains(&own), "VDO never prunes the admin's Secret");
}

/// The Go VDO keeps the credentials in a Secret with the name that VDO uses, too.
#[test]
fn an_adopted_cloud_controller_that_reads_vdos_secret_restarts_with_a_new_password() {
    let (mut world, own) = adopted_cloud_controller();
    world.facts.driver_secrets.get_mut(&Driver::Cpi).unwrap().id =
        ObjectId { name: names::CPI_SECRET.into(), ..own };
    world.facts.records.cpi.untouched = true;
    world.rotate("vc", NEW);
    world.settle();
    assert!(world.has_password(Driver::Cpi, NEW), "{:?}", world.done);
    let restart = "restart DaemonSet vsphere-cloud-controller-manager".to_owned();
    assert!(world.done.contains(&restart), "{:?}", world.done);
    assert!(!world.done.iter().any(|done| done.starts_with("apply DaemonSet vsphere-cloud")));
}

#[test]
fn a_secret_that_vdo_has_no_permission_to_write_is_reported_with_the_fix() {
    let (mut world, own) = adopted_cloud_controller();
    world.facts.open_namespaces.clear();
    world.rotate("vc", NEW);
    world.settle();
    let applied = world.done.iter().any(|done| done.contains(&own.name));
    assert!(!applied, "{:?}", world.done);
    let finding = world.plan().findings.into_iter().find(|f| f.code == "VDO-1316").unwrap();
    assert_eq!(finding.objects[0].name, "kube-system/vsphere-cpi-creds");
    let seen = finding.seen.as_deref().unwrap();
    assert!(seen.contains("vdoctl deploy --driver-namespace kube-system"), "{seen}");
}

#[test]
fn a_secret_that_vdo_cannot_read_is_reported_after_the_grace_period() {
    let mut world = World::installed();
    // Without the dead node, VDO would write the Secret again.
    world.facts.cluster.nodes[1].vm = NodeVm::Missing;
    let secret = world.facts.driver_secrets.remove(&Driver::Csi).unwrap();
    let unusable = crate::facts::UnusableSecret {
        id: secret.id.clone(),
        reason: "secrets is forbidden".into(),
        since: world.facts.now,
    };
    world.facts.unusable_secrets.insert(Driver::Csi, unusable);
    world.rotate("vc", NEW);
    assert!(!world.codes().contains(&"VDO-1316".into()), "the next read can succeed");
    let wake = world.plan().wake.unwrap();
    world.facts.now = wake;
    let finding = world.plan().findings.into_iter().find(|f| f.code == "VDO-1316").unwrap();
    assert_eq!(finding.objects[0].name, "vmware-system-csi/vsphere-config-secret");
    let seen = finding.seen.as_deref().unwrap();
    assert!(seen.contains("vc") && seen.contains("secrets is forbidden"), "{seen}");
    world.vcenter().accepted = false;
    assert!(!world.codes().contains(&"VDO-1316".into()), "vCenter accepted no password");
}

fn controller(world: &mut World, driver: Driver) -> &mut DriverWorkload {
    let mut all = world.facts.workloads.values_mut();
    all.find(|w| w.driver == driver && w.role == WorkloadRole::Controller).unwrap()
}

#[test]
fn the_pods_of_the_storage_driver_do_not_wait_until_their_kubelet_renews_the_password() {
    let mut world = World::installed();
    world.settle();
    assert_eq!(world.done, Vec::<String>::new(), "nothing changed");
    world.rotate("vc", NEW);
    world.settle();
    let secret = world.done.iter().position(|done| done == "apply Secret vsphere-config-secret");
    let files = world.done.iter().position(|done| done == RENEWED);
    assert!(secret.is_some() && secret < files, "the Secret comes first: {:?}", world.done);
    let restarts = |done: &String| done.contains(" vsphere-csi-controller") && done != RENEWED;
    assert!(!world.done.iter().any(restarts), "{:?}", world.done);
    world.settle();
    let times = |world: &World| world.done.iter().filter(|done| *done == RENEWED).count();
    assert_eq!(times(&world), 1, "{:?}", world.done);
    // The kubelet may have seen the pod before the Secret.
    let again = world.plan().wake.unwrap();
    assert_eq!(again, world.facts.now + SignedDuration::from_secs(10));
    world.facts.now = again;
    world.settle();
    assert_eq!(times(&world), 2, "{:?}", world.done);
    world.pass(SignedDuration::from_mins(1));
    world.settle();
    assert_eq!(times(&world), 2, "{:?}", world.done);
    // A new process does not know what the one before did.
    world.facts.renewed_files.clear();
    world.settle();
    assert_eq!(times(&world), 3, "{:?}", world.done);
}

#[test]
fn files_are_renewed_only_where_vdo_has_permission_and_only_while_it_helps() {
    let renews = |change: fn(&mut World)| {
        let mut world = World::installed();
        world.rotate("vc", NEW);
        assert!(world.step(), "the Secret comes first");
        change(&mut world);
        matches!(world.driver(Driver::Csi).next, Next::RenewFiles { .. })
    };
    assert!(renews(|_| {}));
    assert!(!renews(|world| world.pass(SignedDuration::from_mins(10))), "the kubelet did it");
    let elsewhere = |world: &mut World| {
        world.facts.open_namespaces.clear();
        let secret = world.facts.driver_secrets.get_mut(&Driver::Csi).unwrap();
        secret.id.namespace = names::KUBE_SYSTEM.into();
        let ids: Vec<ObjectId> = world.facts.workloads.keys().cloned().collect();
        for id in ids.into_iter().filter(|id| id.name == "vsphere-csi-controller") {
            let workload = world.facts.workloads.remove(&id).unwrap();
            let id = ObjectId { namespace: names::KUBE_SYSTEM.into(), ..id };
            world.facts.records.csi.objects.insert(id.clone());
            world.facts.workloads.insert(id, workload);
        }
    };
    assert!(!renews(elsewhere), "a permission on pods in kube-system reaches the control plane");
    assert!(!renews(|world| world.annotate(names::PAUSED, "true")));
}

/// An adopted cloud controller that reads the Secret under VDO's name, as that of the Go VDO does.
fn adopted_with_own_secret() -> World {
    let (mut world, own) = adopted_cloud_controller();
    world.facts.driver_secrets.get_mut(&Driver::Cpi).unwrap().id =
        ObjectId { name: names::CPI_SECRET.into(), ..own };
    world.facts.records.cpi.untouched = true;
    world
}

#[test]
fn an_adopted_controller_that_restarts_on_delete_is_reported_until_its_pods_are_new() {
    let mut world = adopted_with_own_secret();
    let workload = controller(&mut world, Driver::Cpi);
    (workload.wanted, workload.ready, workload.updated) = (3, 2, 0);
    (workload.unreachable, workload.restart) = (1, RestartStrategy::OnDelete);
    workload.selector = BTreeMap::from([("k8s-app".to_owned(), "cpi".to_owned())]);
    world.rotate("vc", NEW);
    world.settle();
    let reported = |world: &World| {
        let findings = world.plan().findings.into_iter();
        findings.filter(|f| f.code == "VDO-1316").find_map(|f| f.seen)
    };
    let seen = reported(&world).unwrap();
    let fix = "kubectl delete pods --wait=false --namespace kube-system --selector k8s-app=cpi";
    assert!(seen.contains(fix), "{seen}");
    controller(&mut world, Driver::Cpi).updated = 1;
    assert!(reported(&world).is_some(), "one of two still has the old password");
    controller(&mut world, Driver::Cpi).updated = 2;
    assert_eq!(reported(&world), None, "the third is on a node that is down");
}

#[test]
fn a_new_pod_on_a_node_that_went_down_hides_no_pod_with_an_old_password() {
    let mut world = adopted_with_own_secret();
    controller(&mut world, Driver::Cpi).restart = RestartStrategy::OnDelete;
    world.rotate("vc", NEW);
    world.settle();
    let changed = world.facts.driver_secrets[&Driver::Cpi].changed.clone();
    let reported = |world: &World| world.codes().contains(&"VDO-1316".into());
    // Somebody deleted three of four pods, and then the node of one of them went down.
    let workload = controller(&mut world, Driver::Cpi);
    (workload.wanted, workload.updated, workload.ready, workload.unreachable) = (4, 3, 3, 1);
    workload.logins = [(None, 1), (changed.clone(), 2)].into();
    assert!(reported(&world), "one running pod keeps the old password");
    controller(&mut world, Driver::Cpi).logins = [(changed, 3)].into();
    assert!(!reported(&world));
}

#[test]
fn the_raised_limit_of_an_adopted_controller_is_restored() {
    let mut world = adopted_with_own_secret();
    world.rotate("vc", NEW);
    world.settle();
    let restarts = |world: &World| {
        world.done.iter().filter(|done| done.starts_with("restart DaemonSet")).count()
    };
    assert_eq!(restarts(&world), 1, "{:?}", world.done);
    controller(&mut world, Driver::Cpi).restart = RestartStrategy::RollingWithRaisedLimit;
    world.settle();
    assert_eq!(restarts(&world), 2, "{:?}", world.done);
    assert_eq!(controller(&mut world, Driver::Cpi).restart, RestartStrategy::Rolling);
}

#[test]
fn an_adopted_controller_is_watched_while_it_restarts() {
    let mut world = adopted_with_own_secret();
    world.rotate("vc", NEW);
    world.settle();
    let watched = |world: &World| matches!(world.driver(Driver::Cpi).next, Next::Restart { .. });
    assert!(!watched(&world), "all pods are new");
    let workload = controller(&mut world, Driver::Cpi);
    (workload.wanted, workload.updated) = (3, 1);
    assert!(watched(&world), "a node can go down now");
    world.pass(SignedDuration::from_mins(11));
    assert!(!watched(&world), "the restart is over, or somebody else stops it");
}
