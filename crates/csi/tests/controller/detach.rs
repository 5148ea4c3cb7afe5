//! Detaches from VMs that a new controller has never seen.

use testkit::{Permission, Vm};
use vsphere::{
    cns::{AttachSpec, VolumeId},
    inventory::Lookup,
};

use super::{bad_days::holders, *};

const USER: &str = "csi@vsphere.local";
const VM: &str = "/DC0/vm/node-1";

#[tokio::test]
async fn a_hidden_vm_keeps_its_disk_and_a_destroyed_one_does_not() {
    let mut inventory = Inventory::with_vms(2);
    inventory.users.insert(0, VcenterUser::new(USER, "csi-Dr1ver!"));
    inventory.permissions.push(Permission::new(USER, "Admin", "/"));
    let mut stage = Stage::with(inventory).await;
    let id = stage.create("pvc-1").await.unwrap().volume_id;
    stage.publish(&id, &node(1)).await.unwrap();

    stage.vcenter.permit(&Permission::new(USER, "NoAccess", VM)).await;
    stage.restart().await;
    for node in [node(1), String::new()] {
        let hidden = stage.unpublish(&id, &node).await.unwrap_err();
        assert_eq!(hidden.code(), Code::Unavailable, "{hidden}");
        assert!(hidden.message().contains("does not see that VM"), "{hidden}");
    }

    stage.vcenter.destroy_vm(VM).await;
    stage.restart().await;
    stage.unpublish(&id, &node(1)).await.unwrap();
    stage.publish(&id, &node(2)).await.unwrap();
}

/// The copy that the driver sees answers that it does not have the disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_in_view_does_not_replace_the_vm_that_the_driver_lost() {
    let mut inventory = Inventory::with_vms(1);
    inventory.users.insert(0, VcenterUser::new(USER, "csi-Dr1ver!"));
    inventory.permissions.push(Permission::new(USER, "Admin", "/"));
    let stage = Stage::with(inventory).await;
    let id = stage.create("pvc-1").await.unwrap().volume_id;
    stage.publish(&id, &node(1)).await.unwrap();
    let seen = async |count: usize| {
        eventually("the driver sees the VMs", 30, async || {
            let view = stage.vcenters.all_live().unwrap().remove(0);
            let vms = match view.find_vm(node(1).parse().unwrap()) {
                Lookup::Found(_) => 1,
                Lookup::Several(vms) => vms.len(),
                Lookup::Departed(_) | Lookup::Unseen => 0,
            };
            if vms == count { Ok(()) } else { Err(vms) }
        })
        .await;
    };
    // vCenter gives each VM its own instance uuid.
    let instance_uuid = Vm::numbered("node", 2).instance_uuid;
    let copy = Vm { name: "copy".into(), instance_uuid, ..Vm::numbered("node", 1) };
    stage.vcenter.add_vms("DC0", [copy]).await;
    seen(2).await;
    stage.vcenter.permit(&Permission::new(USER, "NoAccess", VM)).await;
    seen(1).await;
    let hidden = stage.unpublish(&id, &node(1)).await.unwrap_err();
    assert_eq!(hidden.code(), Code::Unavailable, "{hidden}");
}

/// CNS says that the volume is not attached, and no VM shows the disk. A moment later the VM has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_a_dead_controller_attaches_is_not_detached_before_it_is_attached() {
    let stage = Stage::with(Inventory::with_vms(1)).await;
    let id = stage.create("pvc-1").await.unwrap().volume_id;
    let view = stage.vcenters.all_live().unwrap().remove(0);
    let vsphere::inventory::Lookup::Found(vm) = view.find_vm(node(1).parse().unwrap()) else {
        unreachable!()
    };
    let slow = Fault::on("CnsAttachVolume").task_takes(Duration::from_secs(5)).times(1);
    stage.vcenter.fault(slow).await;
    let dead = stage.observer().await;
    let spec = [AttachSpec { volume: VolumeId::from(id.as_str()), vm: vm.reference.clone() }];
    let attach = dead.attach_volumes(&spec).await.unwrap();
    let early = stage.unpublish(&id, &node(1)).await.unwrap_err();
    assert_eq!(early.code(), Code::Unavailable, "{early}");
    assert!(early.message().contains("attaches a disk"), "{early}");
    attach.wait(Duration::from_mins(1)).await.unwrap();
    dead.shut_down().await;
    stage.unpublish(&id, &node(1)).await.unwrap();
    assert!(holders(&stage, &id).await.is_empty());
    stage.unpublish(&id, &node(1)).await.unwrap();
}

/// CNS fails the task of a whole batch if one of its volumes is attached already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_fails_as_a_whole_is_repeated_one_by_one() {
    let stage = Stage::with(Inventory::with_vms(1)).await;
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.push(stage.create(&format!("pvc-{n}")).await.unwrap().volume_id);
    }
    // The first call is for one volume; the others wait and share the second one, which fails.
    let slow = Fault::on("CnsAttachVolume").task_takes(Duration::from_millis(500)).times(1);
    stage.vcenter.fault(slow).await;
    stage.vcenter.fault(Fault::on("CnsAttachVolume").task_fails("ResourceInUse").times(1)).await;
    let node = node(1);
    for attached in join_all(ids.iter().map(|id| stage.publish(id, &node))).await {
        attached.unwrap();
    }
}
