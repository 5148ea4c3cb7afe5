//! Operations without a record: a repeated call after a crash ends with the same result.

use csi::proto::csi::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerModifyVolumeRequest,
    CreateSnapshotRequest, DeleteSnapshotRequest, DeleteVolumeRequest,
};

use super::*;

const POLICY: &str = "vSAN Default Storage Policy";

#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    Expand(i64),
    Modify,
    DeleteSnapshot,
    Delete,
}

impl Call {
    /// The method of vCenter that does the work.
    fn method(self) -> &'static str {
        match self {
            Self::Expand(_) => "CnsExtendVolume",
            Self::Modify => "CnsReconfigVolumePolicy",
            Self::DeleteSnapshot => "CnsDeleteSnapshots",
            Self::Delete => "CnsDeleteVolume",
        }
    }
}

impl Site {
    /// Calls the controller for a volume, or for a snapshot.
    pub(crate) async fn call(&self, call: Call, id: &str) -> Result<(), Status> {
        let (mut client, id) = (self.client().await?, id.to_owned());
        match call {
            Call::Expand(bytes) => {
                let capacity_range = Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 });
                let volume_capability = Some(common::mount());
                let request = ControllerExpandVolumeRequest {
                    volume_id: id,
                    capacity_range,
                    volume_capability,
                    ..Default::default()
                };
                let answer = client.controller_expand_volume(request).await?.into_inner();
                assert!(answer.capacity_bytes >= bytes, "{answer:?}");
            }
            Call::Modify => {
                let mutable_parameters = [("storagePolicyName".into(), POLICY.into())].into();
                let request = ControllerModifyVolumeRequest {
                    volume_id: id,
                    mutable_parameters,
                    ..Default::default()
                };
                client.controller_modify_volume(request).await?;
            }
            Call::DeleteSnapshot => {
                let request = DeleteSnapshotRequest { snapshot_id: id, ..Default::default() };
                client.delete_snapshot(request).await?;
            }
            Call::Delete => {
                let request = DeleteVolumeRequest { volume_id: id, ..Default::default() };
                client.delete_volume(request).await?;
            }
        }
        Ok(())
    }

    async fn snapshot(&self, volume: &str) -> String {
        let request = CreateSnapshotRequest {
            name: "snapshot-1".into(),
            source_volume_id: volume.into(),
            ..Default::default()
        };
        let made = self.client().await.unwrap().create_snapshot(request).await.unwrap();
        made.into_inner().snapshot.unwrap().snapshot_id
    }

    /// Kills the controller while vCenter works on the call, and repeats the call with the next controller.
    async fn interrupt(&self, process: Process, call: Call, id: &str, fault: Fault) -> Process {
        self.vcenter.forget_calls().await;
        self.vcenter.fault(fault.times(1)).await;
        let begun = eventually("vCenter has the call", 30, async || {
            let calls = self.vcenter.calls().await;
            if calls.count(call.method()) > 0 { Ok(()) } else { Err(format!("{:?}", calls.total)) }
        });
        tokio::select! {
            result = self.call(call, id) => panic!("{call:?}: {result:?}"),
            () = begun => {}
        }
        process.kill();
        self.vcenter.clear_faults().await;
        let process = self.controller("next").await;
        eventually("the repeated call succeeds", 60, async || self.call(call, id).await).await;
        process
    }
}

/// vCenter works on the call after the controller is gone.
fn slow(call: Call) -> Fault {
    Fault::on(call.method()).task_takes(Duration::from_secs(2))
}

/// vCenter never gets to the call.
fn lost(call: Call) -> Fault {
    Fault::on(call.method()).hangs()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_without_a_record_is_repeated_after_a_crash() {
    let site = Site::start().await;
    let mut process = site.controller("first").await;
    let volume = site.create_at_last().await.volume_id;
    for (call, fault) in [
        (Call::Expand(2 * GIB), slow as fn(Call) -> Fault),
        (Call::Expand(4 * GIB), lost),
        (Call::Modify, slow),
        (Call::Modify, lost),
    ] {
        process = site.interrupt(process, call, &volume, fault(call)).await;
    }
    let in_cns = site.cns_volumes().await.remove(0);
    assert_eq!(in_cns.backing.unwrap().capacity_mib(), 4096);
    assert!(in_cns.policy.is_some_and(|policy| !policy.is_empty()));

    let snapshot = site.snapshot(&volume).await;
    let call = Call::DeleteSnapshot;
    process = site.interrupt(process, call, &snapshot, slow(call)).await;
    process = site.interrupt(process, Call::Delete, &volume, slow(Call::Delete)).await;
    assert_eq!(site.volumes().await, 0);

    let mut names = site.record_names().await;
    names.sort();
    assert_eq!(names, [NAME.to_owned(), format!("snapshot-1-{volume}")], "only what creates");
    process.kill();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_another_controller_expanded_more_is_large_enough() {
    let mut site = Site::start().await;
    let first = site.controller("first").await;
    let volume = site.create_at_last().await.volume_id;
    site.socket = "second.sock";
    // It reads the volumes while this one is small.
    let second = site.controller("second").await;
    site.socket = "csi.sock";
    site.call(Call::Expand(4 * GIB), &volume).await.unwrap();
    site.socket = "second.sock";
    site.call(Call::Expand(2 * GIB), &volume).await.unwrap();
    let in_cns = site.cns_volumes().await.remove(0);
    assert_eq!(in_cns.backing.unwrap().capacity_mib(), 4096);
    drop((first, second));
}
