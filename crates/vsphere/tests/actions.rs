//! The client's operations on every supported release.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use common::{RELEASES, client_of, connected, counted, everything, on_every_release, quick};
use jiff::Timestamp;
use testkit::{Fault, Inventory, Permission, Role, Vcenter, VcenterUser, Vm as SimulatedVm};
use vsphere::authorization::EntityPermission;
use vsphere::inventory::{DeviceDetail, HostConnection, PowerState, Selection, ToolsRunning, Vm};
use vsphere::tags::Tag;
use vsphere::vm::VmChange;
use vsphere::{ApiVersion, Credentials, FaultKind, Limits};

/// The API version of each release.
const APIS: [&str; 4] = ["6.7.3", "7.0.3.0", "8.0.3.0", "9.0.0.0"];

const SOON: Duration = Duration::from_mins(4);

#[tokio::test(flavor = "multi_thread")]
async fn every_release_reports_its_version() {
    for (version, api) in RELEASES.into_iter().zip(APIS) {
        let vcenter = Vcenter::start(Inventory::small().version(version)).await;
        let client = connected(&vcenter).await;
        let about = client.about().unwrap();
        assert_eq!((about.version.as_str(), about.api_version.as_str()), (version, api));
        assert_eq!(client.api_version().unwrap(), api.parse::<ApiVersion>().unwrap());
        assert!(client.api_version().unwrap() >= ApiVersion::V6_7U3);
        assert!(about.instance_uuid.is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn vms_hosts_and_datastores_are_read_on_every_release() {
    for version in RELEASES {
        let mut vm = SimulatedVm::named("node-1");
        vm.snapshots = vec!["before-upgrade".to_owned()];
        vm.extra_config.insert("guestinfo.hello".to_owned(), "world & <co>".to_owned());
        vm.host_name = "node-1.example.com".to_owned();
        vm.host = "esx-a2".to_owned();
        let uuid = vm.uuid.clone();
        let vcenter = Vcenter::start(Inventory::small().vms([vm]).version(version)).await;
        let client = connected(&vcenter).await;
        let tree = client.collect(&everything()).await.unwrap();

        let vm = tree.vm_by_dns_name("NODE-1.example.com").found().cloned().expect("by DNS name");
        assert_eq!(vm.bios_uuid.unwrap().to_string(), uuid);
        assert_eq!(
            (vm.power.clone(), vm.tools_running.clone()),
            (Some(PowerState::On), Some(ToolsRunning::Running))
        );
        assert_eq!(vm.hardware_version.as_deref(), Some("vmx-19"));
        assert!(vm.cpus.unwrap() > 0 && vm.memory_mib.unwrap() > 0 && vm.shows_disk_uuids());
        let option = vm.extra_config.as_ref().and_then(|c| c.get("GUESTINFO.hello")?.to_text());
        assert_eq!(option.as_deref(), Some("world & <co>"));
        let snapshots = vm.snapshots.as_ref().unwrap().all();
        assert_eq!(&*snapshots[0].name, "before-upgrade");
        assert!(snapshots[0].created <= Timestamp::now());
        let devices = vm.devices.as_ref().unwrap();
        assert!(
            devices
                .iter()
                .any(|d| matches!(&d.detail, DeviceDetail::Disk(disk) if disk.capacity > 0))
        );
        assert!(devices.iter().any(|d| &*d.type_name == "ParaVirtualSCSIController"));

        let host = tree.get(vm.host.as_ref().unwrap()).and_then(|o| o.as_host()).cloned().unwrap();
        assert_eq!(host.name.as_deref(), Some("esx-a2"));
        assert_eq!(
            (host.connection.clone(), host.in_maintenance),
            (Some(HostConnection::Connected), Some(false))
        );
        assert!(host.version.is_some() && host.build.is_some());
        let above: Vec<_> = tree
            .ancestors(&host.reference)
            .iter()
            .filter_map(|o| o.name())
            .map(str::to_owned)
            .collect();
        assert_eq!(above[..3], ["cluster-a", "host", "DC0"]);
        assert_eq!(tree.datacenter_of(&vm.reference).unwrap().name.as_deref(), Some("DC0"));

        let hosts: Vec<_> = tree.hosts().iter().map(|h| h.reference.clone()).collect();
        let names = |datastores: Vec<std::sync::Arc<vsphere::inventory::Datastore>>| {
            let mut names: Vec<_> =
                datastores.iter().filter_map(|d| d.name.as_deref().map(str::to_owned)).collect();
            names.sort();
            names
        };
        assert_eq!(names(tree.shared_datastores(&hosts)), ["shared"]);
        assert_eq!(
            names(tree.shared_datastores(std::slice::from_ref(&host.reference))),
            ["shared", "shared-a"]
        );
        assert!(tree.mounts().iter().any(|(h, d, m)| h.name == host.name
            && d.name.as_deref() == Some("shared-a")
            && m.is_usable()));
        let shared =
            tree.by_path("/DC0/datastore/shared").and_then(|o| o.as_datastore()).cloned().unwrap();
        assert_eq!(shared.url.as_deref(), Some("ds:///vmfs/volumes/shared/"));
        assert_eq!(
            (shared.kind.as_deref(), shared.multiple_host_access),
            (Some("VMFS"), Some(true))
        );
        assert!(
            shared.capacity.unwrap() >= shared.free_space.unwrap()
                && shared.accessible == Some(true)
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_lookups_cost_one_call_and_none_with_a_watch() {
    let vcenter = Vcenter::start(Inventory::with_vms(1_000)).await;
    let (client, counter) = counted(&vcenter).await;
    let uuids: Vec<_> =
        (1..=1_000).map(|n| SimulatedVm::numbered("node", n).uuid.parse().unwrap()).collect();
    let before = counter.total();
    let found = client.find_by_bios_uuid(&uuids).await.unwrap();
    assert_eq!(found.iter().flatten().count(), 1_000);
    assert_eq!(counter.total() - before, 1);

    let (_watch, inventory, _events) =
        common::watching(&client, Selection::new().vms(&[Vm::IDENTITY])).await;
    common::holds("the watch is quiet", || counter.count("WaitForUpdatesEx") > 1).await;
    let others = || -> u64 {
        let all = counter.all();
        all.iter().filter(|(method, _)| *method != "WaitForUpdatesEx").map(|(_, n)| *n).sum()
    };
    let before = others();
    for uuid in uuids {
        assert!(inventory.view().vm_by_bios_uuid(uuid.swapped()).found().is_some());
    }
    assert_eq!(others(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_is_changed() {
    for version in RELEASES {
        let mut vm = SimulatedVm::named("node-1");
        vm.disk_uuid = false;
        let vcenter = Vcenter::start(Inventory::small().vms([vm]).version(version)).await;
        let client = connected(&vcenter).await;
        let selection = Selection::new().vms(&[Vm::IDENTITY, Vm::CONFIG, Vm::EXTRA_CONFIG]);
        let vm = client.collect(&selection).await.unwrap().vms()[0].clone();
        assert!(!vm.shows_disk_uuids());
        let change = VmChange::default()
            .show_disk_uuids(true)
            .option("guestinfo.note", "a \"quoted\" <note>");
        client.reconfigure(&vm.reference, &change).await.unwrap().wait(SOON).await.unwrap();
        let vm = client.collect(&selection).await.unwrap().vms()[0].clone();
        assert!(vm.shows_disk_uuids());
        let note = vm.extra_config.as_ref().and_then(|c| c.get("guestinfo.note")?.to_text());
        assert_eq!(note.as_deref(), Some("a \"quoted\" <note>"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tags_of_many_objects_cost_one_call_and_changes_are_detected() {
    for version in RELEASES {
        let inventory = Inventory::with_vms(3)
            .category("k8s-region", &[("eu", &["/DC0"])])
            .category(
                "k8s-zone",
                &[("a", &["/DC0/host/cluster-a"]), ("b", &["/DC0/host/cluster-b"])],
            )
            .version(version);
        let vcenter = Vcenter::start(inventory).await;
        let (client, counter) = counted(&vcenter).await;
        let tree = client.collect(&everything()).await.unwrap();
        let at = |path: &str| tree.by_path(path).unwrap().reference().clone();
        let objects = [
            at("/DC0"),
            at("/DC0/host/cluster-a"),
            at("/DC0/host/cluster-b"),
            at("/DC0/vm/node-1"),
        ];
        let tags = client.tags(Duration::from_mins(10));
        let categories = tags.categories().await.unwrap();
        let names: Vec<_> =
            categories.iter().map(|c| (c.name.as_str(), c.cardinality.as_str())).collect();
        assert_eq!(names, [("k8s-region", "SINGLE"), ("k8s-zone", "SINGLE")]);

        let attached = tags.changed(&objects).await.unwrap().expect("the first result is a change");
        let shown = |tags: &[Tag]| {
            tags.iter().map(|t| format!("{}={}", t.category, t.name)).collect::<Vec<_>>()
        };
        assert_eq!(shown(&attached[&objects[0]]), ["k8s-region=eu"]);
        assert_eq!(shown(&attached[&objects[1]]), ["k8s-zone=a"]);
        assert_eq!(shown(&attached[&objects[2]]), ["k8s-zone=b"]);
        assert!(attached[&objects[3]].is_empty());

        let before = counter.total();
        assert_eq!(tags.changed(&objects).await.unwrap(), None, "nothing has changed");
        assert_eq!(counter.total() - before, 1, "names are cached: {:?}", counter.all());
        vcenter.attach_tag("k8s-zone", "c", &["/DC0/vm/node-1"]).await;
        let attached = tags.changed(&objects).await.unwrap().expect("a new tag is a change");
        assert_eq!(shown(&attached[&objects[3]]), ["k8s-zone=c"]);
        let style = if version == "6.7.3" { "/rest/com/vmware/" } else { "/api/" };
        let rest: Vec<_> = counter.all().into_keys().filter(|m| m.contains(" /")).collect();
        assert!(rest.iter().all(|method| method.contains(style)), "{rest:?}");

        // The client also opens an ended REST session again.
        vcenter.expire_sessions("").await;
        assert_eq!(tags.attached(&objects).await.unwrap()[&objects[1]].len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_permissions_and_privileges_are_read_and_changed() {
    for version in RELEASES {
        let user = VcenterUser::new("vdo@vsphere.local", "Secret-1");
        let reader = Role::new("reader", &["System.Anonymous", "System.View", "System.Read"]);
        let inventory = Inventory::with_vms(2).user(user.clone(), &reader, &["/"]).version(version);
        let vcenter = Vcenter::start(inventory).await;
        let administrator = connected(&vcenter).await;
        let limited = common::client_of(&vcenter)
            .credentials(Credentials::new("vdo@vsphere.local", "Secret-1"));
        let limited = limited.connect().await.unwrap();
        let tree = administrator.collect(&everything()).await.unwrap();
        let at = |path: &str| tree.by_path(path).unwrap().reference().clone();
        let entities =
            [at("/DC0/datastore/shared"), at("/DC0/datastore/shared-a"), at("/DC0/vm/node-1")];

        let wanted = ["Datastore.FileManagement".to_owned(), "System.Read".to_owned()];
        let checks = limited.check_privileges(&entities, &wanted).await.unwrap();
        assert_eq!(checks.len(), 3);
        assert!(
            checks.iter().all(|c| c.missing().collect::<Vec<_>>() == ["Datastore.FileManagement"]),
            "{checks:?}"
        );

        let privileges =
            [reader.privileges.clone(), vec!["Datastore.FileManagement".to_owned()]].concat();
        let id = administrator.create_role("CNS-DATASTORE", &privileges[..3]).await.unwrap();
        administrator.update_role(id, "CNS-DATASTORE", &privileges).await.unwrap();
        let roles = administrator.roles().await.unwrap();
        let role = roles.iter().find(|role| role.id == id).expect("the new role");
        assert_eq!((role.name.as_str(), role.system), ("CNS-DATASTORE", false));
        assert!(role.privileges.contains(&"Datastore.FileManagement".to_owned()));

        let principal = limited.user().await.unwrap().to_string();
        let permission = EntityPermission {
            entity: None,
            principal: principal.clone(),
            group: false,
            role: id,
            propagate: false,
        };
        administrator.set_permissions(&entities[0], &[permission]).await.unwrap();
        let held = administrator.permissions(&entities[0], false).await.unwrap();
        assert!(held.iter().any(|p| p.role == id), "{held:?}");
        let effective = limited.own_privileges(&entities).await.unwrap();
        let has = |n: usize| {
            let found = effective.iter().find(|e| e.entity == entities[n]).unwrap();
            found.privileges.iter().any(|p| p == "Datastore.FileManagement")
        };
        assert_eq!((has(0), has(1), has(2)), (true, false, false), "{effective:?}");

        let error = limited.create_role("mine", &[]).await.unwrap_err();
        let kind = error.fault().map(|fault| fault.kind.clone());
        assert!(
            matches!(kind, Some(FaultKind::NoPermission { privilege: Some(p), .. }) if &*p == "Authorization.ModifyRoles"),
            "{}",
            error.error_chain()
        );

        administrator.remove_permission(&entities[0], &principal, false).await.unwrap();
        let checks = limited.check_privileges(&entities[..1], &wanted).await.unwrap();
        assert_eq!(checks[0].missing().collect::<Vec<_>>(), ["Datastore.FileManagement"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn storage_policies_and_compatible_datastores_are_listed() {
    for version in RELEASES {
        let vcenter = Vcenter::start(Inventory::small().version(version)).await;
        let client = connected(&vcenter).await;
        let policies = client.storage_policies().await.unwrap();
        assert!(policies.iter().any(|policy| policy.name.contains("vSAN Default")), "{policies:?}");
        let tree = client.collect(&everything()).await.unwrap();
        let datastores: Vec<_> = tree.datastores().iter().map(|d| d.reference.clone()).collect();
        let fits = client.compatible_datastores(&policies[0].id, &datastores).await.unwrap();
        assert_eq!(fits.len(), datastores.len());
        assert!(
            fits.iter().all(|fit| fit.is_compatible() && datastores.contains(&fit.datastore)),
            "{fits:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_file_service_of_vsan() {
    on_every_release(async |version| {
        let mut inventory = Inventory::small().version(version);
        inventory.datacenters[0].clusters[0].file_service = Some(true);
        let vcenter = Vcenter::start(inventory).await;
        let client = connected(&vcenter).await;
        let tree = client.collect(&everything()).await.unwrap();
        let at = |path: &str| tree.by_path(path).unwrap().reference().clone();
        assert!(client.vsan_state(&at("/DC0/host/cluster-a")).await.unwrap().file_service);
        assert!(!client.vsan_state(&at("/DC0/host/cluster-b")).await.unwrap().file_service);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_counted_by_user_and_program() {
    on_every_release(async |version| {
        let vcenter = Vcenter::start(Inventory::small().version(version)).await;
        let mut leaky = Vec::new();
        for _ in 0..3 {
            leaky.push(client_of(&vcenter).user_agent("leaky/0.1").connect().await.unwrap());
        }
        let client = connected(&vcenter).await;
        let sessions = client.sessions().await.unwrap();
        let held = vsphere::sessions::holders(&sessions);
        let by_agent = |agent: &str| {
            held.iter().filter(|((_, a), _)| *a == agent).map(|(_, n)| *n).sum::<usize>()
        };
        assert_eq!((by_agent("leaky/0.1"), by_agent("vsphere-test/1")), (3, 1), "{held:?}");

        let limited = VcenterUser::new("vdo@vsphere.local", "Secret-1");
        vcenter.set_user(&limited).await;
        vcenter.permit(&Permission::new(&limited.name, "ReadOnly", "/")).await;
        let limited = client_of(&vcenter).credentials(Credentials::new(limited.name, "Secret-1"));
        let error = limited.connect().await.unwrap().sessions().await.unwrap_err();
        let kind = error.fault().map(|fault| fault.kind.clone());
        assert!(
            matches!(&kind, Some(FaultKind::NoPermission { privilege: Some(p), .. }) if &**p == "Sessions.TerminateSession"),
            "{}",
            error.error_chain()
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_waits_for_tags_does_not_block_others() {
    on_every_release(async |version| {
        let inventory = Inventory::with_vms(1).category("k8s-zone", &[("a", &["/DC0/vm/node-1"])]);
        let vcenter = Vcenter::start(inventory.version(version)).await;
        // No call times out during this test.
        let long = Duration::from_hours(1);
        let limits = Limits { call: long, idle: long, ..quick() };
        let client = client_of(&vcenter).limits(limits).connect().await.unwrap();
        let vm = client.collect(&everything()).await.unwrap().vms()[0].reference.clone();
        let tags = client.tags(long);
        let names = |attached: vsphere::tags::Attached| attached[&vm][0].name.to_string();
        assert_eq!(names(tags.attached(std::slice::from_ref(&vm)).await.unwrap()), "a");

        let style = if common::has_api(version) { "/api" } else { "/rest/com/vmware" };
        vcenter.fault(Fault::on(&format!("GET {style}/cis/tagging/category")).hangs()).await;
        let stuck = tags.categories();
        let others = async {
            for _ in 0..3 {
                let attached = tags.attached(std::slice::from_ref(&vm)).await.unwrap();
                assert_eq!(names(attached), "a");
            }
        };
        tokio::select! {
            biased;
            outcome = stuck => panic!("it was to hang: {outcome:?}"),
            () = others => {}
            () = tokio::time::sleep(SOON) => panic!("the others are held up"),
        }
    })
    .await;
}
