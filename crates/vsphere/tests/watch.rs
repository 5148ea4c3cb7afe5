//! Inventory watches: correct events, no false departures, and recovery.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{
    RELEASES, client_at, client_of, connected, counted, everything, holds, next, on_every_release,
    quick, until, watching,
};
use serde_json::json;
use testkit::{
    Fault, FaultProxy, Inventory, Permission, Role, Vcenter, VcenterUser, Vm as SimulatedVm,
};
use vsphere::inventory::{
    Absence, Event, HostConnection, Lookup, PowerState, Presence, Selection, Status, ToolsRunning,
    Vm,
};
use vsphere::{CallCounter, Client, Credentials, Error, Limits, MoRef};

fn vms() -> Selection {
    Selection::new().vms(&[Vm::IDENTITY, Vm::GUEST, Vm::RUNTIME])
}

#[tokio::test(flavor = "multi_thread")]
async fn every_change_of_a_vm_reaches_the_reader() {
    on_every_release(async |version| {
        let vcenter = Vcenter::start(Inventory::with_vms(3).version(version)).await;
        let client = connected(&vcenter).await;
        let (watch, inventory, mut events) = watching(&client, everything()).await;
        let path = "/DC0/vm/node-2";
        let host_before = inventory.view().vm_by_name("node-2").found().unwrap().host.clone();

        vcenter.patch_vm(path, json!({"hostName": "other.example.com"})).await;
        until(&mut events, |e| {
            matches!(e, Event::Changed { after, .. }
            if after.as_vm().is_some_and(|vm| vm.host_name.as_deref() == Some("other.example.com")))
        })
        .await;
        assert!(inventory.view().vm_by_dns_name("OTHER.example.com").found().is_some());

        let nics = json!([{"network": "VM Network", "connected": true, "addresses": ["10.9.8.7/24", "fd00::7/64"]}]);
        vcenter.patch_vm(path, json!({ "nics": nics })).await;
        holds("both addresses find the VM", || {
            let view = inventory.view();
            ["10.9.8.7", "fd00::7"]
                .iter()
                .all(|ip| view.vm_by_ip(ip.parse().unwrap()).found().is_some())
        })
        .await;

        vcenter.patch_vm(path, json!({"uuid": "42000000-1111-2222-3333-444444444444"})).await;
        holds("the new uuid finds the VM, in both byte orders", || {
            let view = inventory.view();
            let of = |uuid: &str| view.vm_by_bios_uuid(uuid.parse().unwrap()).found().is_some();
            of("42000000-1111-2222-3333-444444444444") && of("00000042-1111-2222-3333-444444444444")
        })
        .await;

        vcenter.patch_vm(path, json!({"host": "esx-b3"})).await;
        holds("the VM is on another host", || {
            inventory.view().vm_by_name("node-2").found().unwrap().host != host_before
        })
        .await;

        vcenter.patch_vm(path, json!({"extraConfig": {"guestinfo.x": "y"}})).await;
        holds("the option is seen", || {
            let view = inventory.view();
            let vm = view.vm_by_name("node-2").found().cloned().unwrap();
            vm.extra_config.as_ref().and_then(|c| c.get("guestinfo.x")?.to_text()).as_deref()
                == Some("y")
        })
        .await;

        vcenter.patch_vm(path, json!({"tools": "notRunning"})).await;
        holds("the tools do not run", || {
            let view = inventory.view();
            view.vm_by_name("node-2").found().unwrap().tools_running == Some(ToolsRunning::NotRunning)
        })
        .await;

        vcenter.patch_vm(path, json!({"power": "off"})).await;
        holds("the VM is off", || {
            inventory.view().vm_by_name("node-2").found().unwrap().power == Some(PowerState::Off)
        })
        .await;

        vcenter.patch_vm(path, json!({"name": "renamed"})).await;
        holds("the new name finds the VM and the old one does not", || {
            let view = inventory.view();
            view.vm_by_name("renamed").found().is_some()
                && view.vm_by_name("node-2") == Lookup::Unseen
                && view.by_path("/DC0/vm/renamed").is_some()
        })
        .await;
        watch.stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_and_datastores_are_watched_too() {
    on_every_release(async |version| {
        let vcenter = Vcenter::start(Inventory::small().version(version)).await;
        let client = connected(&vcenter).await;
        let (_watch, inventory, _events) = watching(&client, everything()).await;
        let host = |name: &str| {
            let view = inventory.view();
            view.hosts().into_iter().find(|host| host.name.as_deref() == Some(name)).unwrap()
        };

        vcenter.patch_host("/DC0/host/cluster-a/esx-a1", json!({"maintenance": true})).await;
        holds("the host is in maintenance", || host("esx-a1").in_maintenance == Some(true)).await;
        vcenter
            .patch_host("/DC0/host/cluster-a/esx-a2", json!({"connection": "notResponding"}))
            .await;
        holds("the host does not respond", || {
            host("esx-a2").connection == Some(HostConnection::NotResponding)
        })
        .await;
        vcenter.patch_datastore("/DC0/datastore/shared", json!({"accessible": false})).await;
        holds("the datastore is inaccessible", || {
            inventory
                .view()
                .datastores()
                .iter()
                .any(|d| d.name.as_deref() == Some("shared") && d.accessible == Some(false))
        })
        .await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_vm_is_proven_gone() {
    on_every_release(async |version| {
        let vcenter = Vcenter::start(Inventory::with_vms(3).version(version)).await;
        let client = connected(&vcenter).await;
        let (_watch, inventory, mut events) = watching(&client, vms()).await;
        let vm = inventory.view().vm_by_name("node-1").found().cloned().unwrap();

        vcenter.add_vms("DC0", [SimulatedVm::named("newcomer")]).await;
        let event = until(&mut events, |e| matches!(e, Event::Appeared(_))).await;
        assert!(
            matches!(&event, Event::Appeared(object) if object.name() == Some("newcomer")),
            "{event:?}"
        );

        vcenter.destroy_vm("/DC0/vm/node-1").await;
        let event = until(&mut events, |e| matches!(e, Event::Left(_))).await;
        let Event::Left(departure) = event else { panic!("{event:?}") };
        assert_eq!(departure.gone().map(vsphere::inventory::Gone::reference), Some(&vm.reference));
        let view = inventory.view();
        assert!(matches!(view.presence(&vm.reference), Presence::Departed(d) if d.gone().is_some()));
        assert!(
            matches!(view.vm_by_bios_uuid(vm.bios_uuid.unwrap()), Lookup::Departed(d) if d.gone().is_some())
        );
    })
    .await;
}

fn restricted() -> (VcenterUser, Inventory) {
    let user = VcenterUser::new("vdo@vsphere.local", "Secret-123");
    let role = Role::new("reader", &["System.Anonymous", "System.View", "System.Read"]);
    let inventory = Inventory::with_vms(4).user(user.clone(), &role, &["/"]);
    (user, inventory)
}

async fn client_as(vcenter: &Vcenter, user: &VcenterUser) -> Client {
    let credentials = Credentials::new(user.name.as_str(), user.password.as_str());
    client_of(vcenter).credentials(credentials).connect().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_without_permission_is_invisible_and_not_gone() {
    on_every_release(async |version| {
        let (user, inventory) = restricted();
        let vcenter = Vcenter::start(inventory.version(version)).await;
        let client = client_as(&vcenter, &user).await;
        let (_watch, inventory, mut events) = watching(&client, vms()).await;
        let vm = inventory.view().vm_by_name("node-3").found().cloned().unwrap();

        vcenter.permit(&Permission::new(&user.name, "NoAccess", "/DC0/vm/node-3")).await;
        let event = until(&mut events, |e| matches!(e, Event::Left(_))).await;
        let Event::Left(departure) = event else { panic!("{event:?}") };
        assert_eq!(departure.object.reference(), &vm.reference);
        assert!(matches!(departure.absence, Absence::Invisible { .. }), "{departure:?}");
        assert!(departure.gone().is_none());

        vcenter.forbid("/DC0/vm/node-3", &user.name).await;
        let event = until(&mut events, |e| matches!(e, Event::Appeared(_))).await;
        assert!(
            matches!(&event, Event::Appeared(object) if object.reference() == &vm.reference),
            "{event:?}"
        );
        assert!(inventory.view().departures().next().is_none());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_vcenter_keeps_the_view_and_is_reported() {
    on_every_release(async |version| {
        let vcenter = Vcenter::start(Inventory::with_vms(3).version(version)).await;
        let proxy = FaultProxy::before(vcenter.address()).await;
        let client = client_at(&vcenter, &proxy.address().to_string()).connect().await.unwrap();
        let (_watch, inventory, mut events) = watching(&client, vms()).await;

        proxy.cut();
        let event = until(&mut events, |e| matches!(e, Event::Unreachable(_))).await;
        assert!(matches!(inventory.status(), Status::Unreachable(_)), "{event:?}");
        vcenter.destroy_vm("/DC0/vm/node-1").await;
        vcenter.patch_vm("/DC0/vm/node-2", json!({"power": "off"})).await;
        let view_of = |name: &str| inventory.view().vm_by_name(name).found().cloned();
        assert!(view_of("node-1").is_some(), "no object is gone while vCenter is unreachable");
        assert_eq!(view_of("node-2").unwrap().power, Some(PowerState::On));

        proxy.heal();
        until(&mut events, |e| matches!(e, Event::Resynced)).await;
        assert_eq!(view_of("node-2").unwrap().power, Some(PowerState::Off));
        let event = until(&mut events, |e| matches!(e, Event::Left(_))).await;
        assert!(
            matches!(&event, Event::Left(d) if d.gone().is_some() && d.object.name() == Some("node-1")),
            "{event:?}"
        );
        assert!(matches!(inventory.status(), Status::Live));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_cannot_be_checked_is_unreachable_and_reported_once() {
    let on = async |version| {
        let vcenter = Vcenter::start(Inventory::with_vms(3).version(version)).await;
        let counter = Arc::new(CallCounter::default());
        // One call per check.
        let limits = Limits { attempts: 1, ..quick() };
        let client = client_of(&vcenter).limits(limits).observer(counter.clone()).connect();
        let client = client.await.unwrap();
        let (_watch, inventory, mut events) = watching(&client, vms()).await;
        let vm = inventory.view().vm_by_name("node-1").found().cloned().unwrap();

        vcenter.fault(Fault::on("RetrievePropertiesEx").status(503)).await;
        vcenter.destroy_vm("/DC0/vm/node-1").await;
        let event = until(&mut events, |e| matches!(e, Event::Left(_))).await;
        assert!(matches!(&event, Event::Left(d) if d.absence == Absence::Unreachable), "{event:?}");
        assert!(
            matches!(inventory.view().presence(&vm.reference), Presence::Departed(d) if d.gone().is_none())
        );
        holds("the check is repeated", || counter.count("RetrievePropertiesEx") >= 3).await;

        vcenter.clear_faults().await;
        let event = until(&mut events, |e| matches!(e, Event::Left(_))).await;
        assert!(matches!(&event, Event::Left(d) if d.gone().is_some()), "{version}: {event:?}");
    };
    futures::future::join_all(RELEASES.map(on)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_departed_objects_are_checked_but_not_at_a_silent_vcenter() {
    let vcenter = Vcenter::start(Inventory::with_vms(40)).await;
    let proxy = FaultProxy::before(vcenter.address()).await;
    let counter = Arc::new(CallCounter::default());
    let client = client_at(&vcenter, &proxy.address().to_string()).observer(counter.clone());
    let client = client.connect().await.unwrap();
    let (watch, inventory, mut events) = watching(&client, vms()).await;
    proxy.cut();
    until(&mut events, |event| matches!(event, Event::Unreachable(_))).await;
    for n in 1..=30 {
        vcenter.destroy_vm(&format!("/DC0/vm/node-{n}")).await;
    }
    vcenter.fault(Fault::on("RetrievePropertiesEx").status(503)).await;
    proxy.heal();
    holds("all have left and none is reported gone", || {
        let view = inventory.view();
        view.departures().count() == 30 && view.departures().all(|d| d.gone().is_none())
    })
    .await;
    // One check for all objects with some retries, then less and less often.
    let asked = counter.count("RetrievePropertiesEx");
    assert!(asked < 60, "{asked} questions to a vCenter that does not answer");

    vcenter.clear_faults().await;
    holds("each is gone, with proof", || inventory.view().departures().all(|d| d.gone().is_some()))
        .await;
    assert_eq!(inventory.view().vms().len(), 10);
    watch.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_in_pages_is_one_view_and_no_change_is_lost() {
    on_every_release(async |version| {
        // vCenter sends 100 objects per reply and reports that more are waiting.
        let vcenter = Vcenter::start(Inventory::with_vms(250).version(version)).await;
        let (client, counter) = counted(&vcenter).await;
        let (watch, inventory, mut events) = watching(&client, vms()).await;
        assert!(counter.count("WaitForUpdatesEx") >= 3, "{:?}", counter.all());
        assert_eq!(inventory.view().vms().len(), 250, "the first view is whole");

        let added: Vec<_> = (0..150).map(|n| SimulatedVm::named(&format!("added-{n}"))).collect();
        vcenter.add_vms("DC0", added).await;
        for _ in 0..150 {
            let event = next(&mut events).await;
            assert!(matches!(&event, Event::Appeared(_)), "{event:?}");
        }
        assert_eq!(inventory.view().vms().len(), 400);
        watch.stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn expiry_restart_and_lag_cause_a_resync() {
    on_every_release(async |version| {
        let vcenter = Vcenter::start(Inventory::with_vms(20).version(version)).await;
        let client = connected(&vcenter).await;
        let (_watch, inventory, mut events) = watching(&client, vms()).await;
        let named = |name: &str| inventory.view().vm_by_name(name).found().is_some();

        vcenter.expire_sessions(vcenter.user()).await;
        vcenter.patch_vm("/DC0/vm/node-1", json!({"name": "after-expiry"})).await;
        until(&mut events, |e| matches!(e, Event::Resynced)).await;
        holds("the view is correct after the session ended", || named("after-expiry")).await;

        vcenter.restart(Duration::from_millis(300)).await;
        vcenter.patch_vm("/DC0/vm/node-2", json!({"name": "after-restart"})).await;
        until(&mut events, |e| matches!(e, Event::Resynced)).await;
        holds("the view is correct after the restart", || named("after-restart")).await;

        vcenter.fault(Fault::on("WaitForUpdatesEx").truncated().times(1)).await;
        vcenter.patch_vm("/DC0/vm/node-3", json!({"name": "after-truncation"})).await;
        until(&mut events, |e| matches!(e, Event::Resynced)).await;
        holds("the view is correct after a partial reply", || named("after-truncation")).await;

        vcenter
            .fault(Fault::on("WaitForUpdatesEx").fails("InvalidCollectorVersion").times(1))
            .await;
        vcenter.patch_vm("/DC0/vm/node-4", json!({"name": "after-wrong-version"})).await;
        until(&mut events, |e| matches!(e, Event::Resynced)).await;
        holds("the view is correct after an invalid collector version", || {
            named("after-wrong-version")
        })
        .await;
        assert!(inventory.view().departures().next().is_none(), "nothing ever left");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_selected_datacenters_are_watched() {
    on_every_release(async |version| {
        let mut inventory = Inventory::with_vms(2);
        let mut second = inventory.datacenters[0].clone();
        second.name = "DC1".to_owned();
        second.folder = "europe".to_owned();
        second.vms = vec![SimulatedVm::named("abroad")];
        for (cluster, host) in second.clusters.iter_mut().zip(["x", "y"]) {
            for h in &mut cluster.hosts {
                h.name = format!("{host}-{}", h.name);
            }
        }
        second.datastores.truncate(1);
        second.datastores[0].name = "abroad".to_owned();
        inventory.datacenters.push(second);
        let vcenter = Vcenter::start(inventory.version(version)).await;
        let client = connected(&vcenter).await;
        let (_watch, inventory, mut events) =
            watching(&client, vms().in_datacenters(["/europe/DC1"])).await;
        {
            let view = inventory.view();
            let names: Vec<_> = view.vms().iter().filter_map(|vm| vm.name.clone()).collect();
            assert_eq!(names, ["abroad".into()]);
            assert!(view.by_path("/europe/DC1/vm/abroad").is_some());
        }
        vcenter.add_vms("DC0", [SimulatedVm::named("at-home")]).await;
        vcenter.add_vms("DC1", [SimulatedVm::named("abroad-2")]).await;
        let event = until(&mut events, |e| matches!(e, Event::Appeared(_))).await;
        assert!(matches!(&event, Event::Appeared(o) if o.name() == Some("abroad-2")), "{event:?}");
        assert_eq!(inventory.view().vm_by_name("at-home"), Lookup::Unseen);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_datacenter_is_reported_with_the_existing_ones() {
    on_every_release(async |version| {
        let vcenter = Vcenter::start(Inventory::small().version(version)).await;
        let client = connected(&vcenter).await;
        let watch = client.watch(vms().in_datacenters(["DC0", "Atlantis"]));
        let error = watch.inventory().ready().await.unwrap_err();
        assert!(
            matches!(&*error, Error::NoSuchDatacenter { wanted, .. } if wanted == "Atlantis"),
            "{error:?}"
        );
        let text = error.to_string();
        assert!(
            text.contains("no datacenter Atlantis") && text.contains("this user sees /DC0"),
            "{text}"
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_costs_one_filter_and_cleans_up() {
    on_every_release(async |version| {
        let vcenter = Vcenter::start(Inventory::with_vms(5).version(version)).await;
        let (client, counter) = counted(&vcenter).await;
        let (watch, _inventory, _events) = watching(&client, everything()).await;
        assert_eq!((counter.count("CreateFilter"), counter.count("CreateContainerView")), (1, 1));
        watch.stop().await;
        assert_eq!(
            (counter.count("DestroyPropertyCollector"), counter.count("DestroyView")),
            (1, 1)
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn existence_checks_distinguish_present_gone_and_invisible() {
    on_every_release(async |version| {
        let (user, inventory) = restricted();
        let vcenter = Vcenter::start(inventory.version(version)).await;
        let client = client_as(&vcenter, &user).await;
        let tree = client.collect(&vms()).await.unwrap();
        let vm = |name: &str| tree.vm_by_name(name).found().unwrap().reference.clone();
        let (present, hidden, destroyed) = (vm("node-1"), vm("node-2"), vm("node-3"));
        vcenter.permit(&Permission::new(&user.name, "NoAccess", "/DC0/vm/node-2")).await;
        vcenter.destroy_vm("/DC0/vm/node-3").await;

        let objects = [present.clone(), hidden.clone(), destroyed.clone()];
        let answers = client.ask_for(&objects).await;
        let of =
            |object: &MoRef| format!("{:?}", answers.iter().find(|(o, _)| o == object).unwrap().1);
        assert_eq!(of(&present), "Present");
        assert!(of(&hidden).starts_with("Absent(Invisible"), "{}", of(&hidden));
        assert!(of(&destroyed).starts_with("Absent(Gone"), "{}", of(&destroyed));

        client.shut_down().await;
        let answers = client.ask_for(&objects).await;
        assert!(
            answers.iter().all(|(_, s)| format!("{s:?}") == "Absent(Unreachable)"),
            "{answers:?}"
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_collectors_are_destroyed_in_vcenter() {
    let vcenter = Vcenter::start(Inventory::with_vms(2)).await;
    let (client, counter) = counted(&vcenter).await;
    let (watch, _, mut events) = watching(&client, everything()).await;
    for (method, fault) in [
        ("WaitForUpdatesEx", Fault::on("WaitForUpdatesEx").dropped()),
        ("CreateFilter", Fault::on("CreateFilter").dropped()),
        ("CreateContainerView", Fault::on("CreateContainerView").fails("RuntimeFault")),
    ] {
        vcenter.fault(fault.times(3)).await;
        if method != "WaitForUpdatesEx" {
            vcenter.fault(Fault::on("WaitForUpdatesEx").dropped().times(1)).await;
        }
        until(&mut events, |event| matches!(event, Event::Resynced)).await;
        vcenter.clear_faults().await;
    }
    let made = counter.count("CreatePropertyCollector");
    assert!(made >= 10, "each fault costs a collector: {:?}", counter.all());
    holds("all but one are destroyed", || {
        counter.count("DestroyPropertyCollector") == counter.count("CreatePropertyCollector") - 1
    })
    .await;
    watch.stop().await;
    assert_eq!(counter.count("DestroyPropertyCollector"), counter.count("CreatePropertyCollector"));
}
