//! Tasks: one filter for all waits, with progress, and never lost without reason.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use common::{counted, on_every_release};
use testkit::{Fault, Inventory, Permission, Vcenter, VcenterUser};
use vsphere::inventory::{Selection, Vm};
use vsphere::vm::VmChange;
use vsphere::{Credentials, Error, FaultKind, Task};

fn vms() -> Selection {
    Selection::new().vms(&[Vm::IDENTITY])
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_slow_and_endless_tasks_are_reported() {
    on_every_release(async |version| {
        let vcenter = Vcenter::start(Inventory::with_vms(2).version(version)).await;
        let (client, counter) = counted(&vcenter).await;
        let vms = client.collect(&vms()).await.unwrap().vms();
        let (vm, other) = (vms[0].reference.clone(), vms[1].reference.clone());
        let change = VmChange::default().option("guestinfo.x", "y");
        let soon = Duration::from_mins(4);

        client.reconfigure(&vm, &change).await.unwrap().wait(soon).await.expect("it succeeds");

        vcenter.fault(Fault::on("ReconfigVM_Task").task_fails("InvalidState").times(1)).await;
        let error = client.reconfigure(&vm, &change).await.unwrap().wait(soon).await.unwrap_err();
        assert!(
            matches!(&error, Error::TaskFailed { source, .. } if source.kind == FaultKind::InvalidState),
            "{}",
            error.error_chain()
        );
        assert!(error.to_string().contains("the task ReconfigVM_Task on"), "{error}");

        vcenter.clear_faults().await;
        vcenter
            .fault(Fault::on("ReconfigVM_Task").task_takes(Duration::from_secs(20)).times(1))
            .await;
        let mut task = client.reconfigure(&vm, &change).await.unwrap();
        while task.progress() == 0 {
            assert!(task.changed().await, "progress is reported before the end");
        }
        assert!(task.progress() < 100, "it goes on");
        // No caller waits for its end.
        drop(task);

        vcenter.clear_faults().await;
        vcenter.fault(Fault::on("ReconfigVM_Task").task_never_ends().times(1)).await;
        let task = client.reconfigure(&other, &change).await.unwrap();
        let reference = task.reference().clone();
        let error = task.wait(Duration::from_millis(300)).await.unwrap_err();
        assert!(
            matches!(&error, Error::TaskUnfinished { task, .. } if *task == reference),
            "{}",
            error.error_chain()
        );
        assert!(error.to_string().contains("still runs after"), "{error}");
        assert_eq!(
            (counter.count("CreateFilter"), counter.count("CreateListView")),
            (1, 1),
            "one filter serves one task after the other"
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_filter_watches_many_tasks() {
    on_every_release(async |version| {
        let vcenter = Vcenter::start(Inventory::with_vms(40).version(version)).await;
        let (client, counter) = counted(&vcenter).await;
        let vms = client.collect(&vms()).await.unwrap().vms();
        vcenter.fault(Fault::on("ReconfigVM_Task").task_takes(Duration::from_millis(300))).await;
        let change = VmChange::default().option("guestinfo.x", "y");
        let run = |reference| {
            let (client, change) = (client.clone(), change.clone());
            async move {
                client.reconfigure(&reference, &change).await?.wait(Duration::from_mins(4)).await
            }
        };
        let outcomes =
            futures::future::join_all(vms.iter().map(|vm| run(vm.reference.clone()))).await;
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        assert_eq!(counter.count("CreateFilter"), 1, "{:?}", counter.all());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_a_task_survives_the_end_of_a_session() {
    on_every_release(async |version| {
        let vcenter = Vcenter::start(Inventory::with_vms(1).version(version)).await;
        let (client, counter) = counted(&vcenter).await;
        let vm = client.collect(&vms()).await.unwrap().vms()[0].reference.clone();
        vcenter.fault(Fault::on("ReconfigVM_Task").task_never_ends().times(1)).await;
        let change = VmChange::default().option("guestinfo.x", "y");
        let task = client.reconfigure(&vm, &change).await.unwrap();
        common::holds("the task is watched", || counter.count("WaitForUpdatesEx") > 0).await;
        vcenter.expire_sessions("").await;
        common::holds("the task is watched in a new session", || counter.count("CreateFilter") > 1)
            .await;
        let error = task.wait(Duration::from_millis(100)).await.unwrap_err();
        assert!(
            matches!(error, Error::TaskUnfinished { .. }),
            "vCenter still knows it: {}",
            error.error_chain()
        );

        let unknown = client.resume_task("Task:task-999999".parse().unwrap());
        let error = unknown.wait(Duration::from_mins(4)).await.unwrap_err();
        assert!(matches!(error, Error::TaskLost { .. }), "{}", error.error_chain());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ended_task_is_resumed_while_another_runs() {
    on_every_release(async |version| {
        let vcenter = Vcenter::start(Inventory::with_vms(2).version(version)).await;
        let (client, counter) = counted(&vcenter).await;
        let vms = client.collect(&vms()).await.unwrap().vms();
        let change = VmChange::default().option("guestinfo.x", "y");
        let soon = Duration::from_mins(4);
        vcenter.fault(Fault::on("ReconfigVM_Task").task_never_ends().times(1)).await;
        let endless = client.reconfigure(&vms[0].reference, &change).await.unwrap();
        vcenter.clear_faults().await;

        let task = client.reconfigure(&vms[1].reference, &change).await.unwrap();
        let reference = task.reference().clone();
        task.wait(soon).await.unwrap();
        for _ in 0..3 {
            let again = client.resume_task(reference.clone()).wait(soon).await;
            again.unwrap_or_else(|error| {
                panic!("its end is reported again: {}", error.error_chain())
            });
        }
        let error = endless.wait(Duration::from_millis(100)).await.unwrap_err();
        assert!(matches!(error, Error::TaskUnfinished { .. }), "{}", error.error_chain());
        assert_eq!(counter.count("CreateFilter"), 1, "one filter serves both");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_a_task_ends_with_the_reason_when_watching_is_impossible() {
    on_every_release(async |version| {
        let user = VcenterUser::new("vdo@vsphere.local", "Right-1");
        let mut inventory = Inventory::with_vms(1).version(version);
        inventory.users = vec![user.clone()];
        inventory.permissions = vec![Permission::new(&user.name, "Admin", "/")];
        let vcenter = Vcenter::start(inventory).await;
        let (client, counter) = counted(&vcenter).await;
        let vm = client.collect(&vms()).await.unwrap().vms()[0].reference.clone();
        vcenter.fault(Fault::on("ReconfigVM_Task").task_never_ends()).await;
        let change = VmChange::default().option("guestinfo.x", "y");
        // Only a reported status ends the wait.
        let wait = async |task: Task| {
            let wait = task.wait(Duration::from_hours(1));
            let outcome = tokio::time::timeout(Duration::from_mins(4), wait).await;
            outcome.expect("the wait ends").unwrap_err()
        };

        let task = client.reconfigure(&vm, &change).await.unwrap();
        common::holds("it is watched", || counter.count("WaitForUpdatesEx") > 0).await;
        vcenter.set_user(&VcenterUser { password: "Other-2".to_owned(), ..user.clone() }).await;
        vcenter.expire_sessions("").await;
        let error = wait(task).await;
        assert!(matches!(error, Error::LoginRefused { .. }), "{}", error.error_chain());

        client.set_credentials(Credentials::new(user.name.as_str(), "Other-2")).await.unwrap();
        let task = client.reconfigure(&vm, &change).await.unwrap();
        let reference = task.reference().clone();
        let mut watched = client.resume_task(reference.clone());
        let (waited, ()) = tokio::join!(wait(task), client.shut_down());
        // A caller that follows the progress ends too.
        tokio::time::timeout(Duration::from_mins(4), async { while watched.changed().await {} })
            .await
            .expect("there is nothing more to wait for");
        assert!(watched.progress() < 100, "it did not succeed");
        let late = wait(client.resume_task(reference)).await;
        for error in [waited, late] {
            assert!(matches!(error, Error::ShutDown { .. }), "{}", error.error_chain());
        }
    })
    .await;
}
