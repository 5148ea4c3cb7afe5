//! The controller is killed in the middle of an operation. Records are in a real API server.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::panic)]

mod common;
#[path = "crash/orphans.rs"]
mod orphans;
#[path = "crash/repeated.rs"]
mod repeated;
#[path = "crash/sidecars.rs"]
mod sidecars;
#[path = "crash/wiring.rs"]
mod wiring;

use std::{path::PathBuf, time::Duration};

use common::{GIB, create_request};
use csi::proto::csi::{
    CreateSnapshotRequest, ListVolumesRequest, Volume, controller_client::ControllerClient,
};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, PostParams},
    core::gvk::GroupVersionKind,
};
use testkit::{ControlPlane, Fault, Inventory, Process, Vcenter, Workdir, eventually};
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint},
};
use vsphere::{
    Client, Credentials, Trust,
    cns::{QueryFilter, Volume as CnsVolume},
};

const NAMESPACE: &str = "vmware-system-csi";
const NAME: &str = "pvc-0d3c8a1e-2b1f-4c55-9f0e-3f8f3a1d2c4b";

struct Site {
    plane: ControlPlane,
    vcenter: Vcenter,
    workdir: Workdir,
    /// The controller that calls go to.
    socket: &'static str,
    /// The address of the controller's metrics.
    http_address: String,
}

impl Site {
    async fn start() -> Self {
        Self::on(ControlPlane::start().await).await
    }

    async fn on(plane: ControlPlane) -> Self {
        let vcenter = Vcenter::start(Inventory::with_vms(2)).await;
        let mut namespace = Namespace::default();
        namespace.metadata.name = Some(NAMESPACE.into());
        let namespaces = Api::<Namespace>::all(plane.client());
        namespaces.create(&PostParams::default(), &namespace).await.unwrap();
        let workdir = Workdir::new("csi-crash").unwrap();
        let http_address = "127.0.0.1:0".to_owned();
        Self { plane, vcenter, workdir, socket: "csi.sock", http_address }
    }

    fn socket(&self) -> PathBuf {
        self.workdir.path().join(self.socket)
    }

    /// Starts the controller without loops and waits until it serves and has read the vCenter.
    async fn controller(&self, label: &str) -> Process {
        self.controller_with(label, &["--sidecars"]).await
    }

    async fn controller_with(&self, label: &str, more: &[&str]) -> Process {
        let ca = self.workdir.write("ca.pem", self.vcenter.ca_pem()).unwrap();
        let (address, port) = (self.vcenter.address().ip(), self.vcenter.address().port());
        let configuration = format!(
            "[Global]\ncluster-id = \"crash\"\n[VirtualCenter \"{address}\"]\nuser = \"{}\"\npassword = \"{}\"\nport = \"{port}\"\nca-file = \"{}\"\n",
            self.vcenter.user(),
            self.vcenter.password(),
            ca.display(),
        );
        let configuration = self.workdir.write("csi-vsphere.conf", configuration).unwrap();
        let _ = std::fs::remove_file(self.socket());
        let mut arguments = vec![
            "controller".to_owned(),
            format!("--endpoint=unix://{}", self.socket().display()),
            format!("--config={}", configuration.display()),
            format!("--kubeconfig={}", self.plane.kubeconfig().display()),
            format!("--http-address={}", self.http_address),
        ];
        arguments.extend(more.iter().map(ToString::to_string));
        let program = PathBuf::from(env!("CARGO_BIN_EXE_vsphere-csi"));
        let process = Process::spawn(&program, label, arguments, &[], &self.workdir).unwrap();
        eventually("the socket exists", 60, async || {
            match (self.socket().exists(), process.ended()) {
                (true, _) => Ok(()),
                (false, Some(_)) => panic!("{}", process.log()),
                (false, None) => Err("no socket yet"),
            }
        })
        .await;
        eventually("the controller has read the vCenter", 60, async || {
            let listing = self.client().await?.list_volumes(ListVolumesRequest::default()).await;
            listing.map(drop)
        })
        .await;
        process
    }

    async fn client(&self) -> Result<ControllerClient<Channel>, Status> {
        let endpoint = Endpoint::try_from(format!("unix:{}", self.socket().display())).unwrap();
        let channel = endpoint.connect().await;
        channel.map(ControllerClient::new).map_err(|error| Status::unavailable(error.to_string()))
    }

    async fn create(&self) -> Result<Volume, Status> {
        let response = self.client().await?.create_volume(create_request(NAME, GIB)).await?;
        Ok(response.into_inner().volume.unwrap())
    }

    async fn create_at_last(&self) -> Volume {
        eventually("the volume is created", 90, async || self.create().await).await
    }

    fn records(&self) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("cns.vmware.com", "v1alpha1", "CnsVolumeOperationRequest");
        let resource = ApiResource::from_gvk_with_plural(&kind, "cnsvolumeoperationrequests");
        Api::namespaced_with(self.plane.client(), NAMESPACE, &resource)
    }

    /// Waits for the record; with a task if asked.
    async fn recorded(&self, with_task: bool) {
        self.recorded_as(NAME, with_task).await;
    }

    async fn recorded_as(&self, name: &str, with_task: bool) {
        eventually("the operation is recorded", 60, async || {
            let record = self.records().get_opt(name).await.map_err(|error| error.to_string())?;
            let record = record.ok_or("no record")?;
            let details = &record.data["status"]["latestOperationDetails"][0];
            match details["taskId"].as_str() {
                Some(task) if with_task != task.is_empty() => Ok(()),
                _ => Err(record.data["status"].to_string()),
            }
        })
        .await;
    }

    async fn volumes(&self) -> usize {
        self.cns_volumes().await.len()
    }

    async fn cns_volumes(&self) -> Vec<CnsVolume> {
        let client = Client::builder(self.vcenter.address().to_string())
            .trust(Trust::CaBundle(self.vcenter.ca_pem()))
            .credentials(Credentials::new(
                self.vcenter.user().to_owned(),
                self.vcenter.password().to_owned(),
            ))
            .connect()
            .await
            .unwrap();
        let volumes = client.query_volumes(&QueryFilter::default()).await.unwrap();
        client.shut_down().await;
        volumes
    }

    async fn record_names(&self) -> Vec<String> {
        let all = self.records().list(&ListParams::default()).await.unwrap();
        all.into_iter().map(|record| record.metadata.name.unwrap()).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_killed_in_the_middle_of_a_create_makes_exactly_one_volume() {
    let site = Site::start().await;

    // After the record, before CNS was asked.
    let process = site.controller("before-the-call").await;
    site.vcenter.fault(Fault::on("CnsCreateVolume").hangs()).await;
    tokio::select! {
        result = site.create() => panic!("{result:?}"),
        () = site.recorded(false) => {}
    }
    process.kill();
    assert_eq!(site.volumes().await, 0);
    site.vcenter.clear_faults().await;
    let process = site.controller("after-the-record").await;
    let volume = site.create_at_last().await;
    assert_eq!(site.volumes().await, 1);

    // The record is deleted by hand, and the controller starts again: CNS knows the volume by name.
    process.kill();
    site.records().delete(NAME, &DeleteParams::default()).await.unwrap();
    let process = site.controller("without-the-record").await;
    assert_eq!(site.create_at_last().await.volume_id, volume.volume_id);
    assert_eq!(site.volumes().await, 1);
    process.kill();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_killed_after_the_task_started_finds_the_task_again() {
    let site = Site::start().await;
    let process = site.controller("first").await;
    let slow = Fault::on("CnsCreateVolume").task_takes(Duration::from_secs(20)).times(1);
    site.vcenter.fault(slow).await;
    tokio::select! {
        result = site.create() => panic!("{result:?}"),
        () = site.recorded(true) => {}
    }
    process.kill();
    let process = site.controller("second").await;
    let volume = site.create_at_last().await;
    assert_eq!(site.vcenter.calls().await.count("CnsCreateVolume"), 1, "the task was resumed");
    assert_eq!(site.create_at_last().await.volume_id, volume.volume_id);
    assert_eq!(site.volumes().await, 1);
    process.kill();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_somebody_deletes_during_the_creation_does_not_double_the_volume() {
    let site = Site::start().await;
    let process = site.controller("only").await;
    let slow = Fault::on("CnsCreateVolume").task_takes(Duration::from_secs(8)).times(1);
    site.vcenter.fault(slow).await;
    let disturb = async {
        site.recorded(false).await;
        site.records().delete(NAME, &DeleteParams::default()).await.unwrap();
        let second = site.create().await.unwrap_err();
        assert_eq!(second.code(), Code::Aborted, "{second}");
    };
    let (first, ()) = tokio::join!(site.create(), disturb);
    eprintln!("the disturbed call: {first:?}");
    let volume = site.create_at_last().await;
    assert_eq!(site.create_at_last().await.volume_id, volume.volume_id);
    assert_eq!(site.vcenter.calls().await.count("CnsCreateVolume"), 1);
    assert_eq!(site.volumes().await, 1);
    process.kill();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_controller_does_not_repeat_what_the_first_one_did() {
    let mut site = Site::start().await;
    let first = site.controller("first").await;
    site.socket = "second.sock";
    let second = site.controller("second").await;
    site.socket = "csi.sock";
    let volume = site.create_at_last().await;
    // The record is gone, as after the purge. The second controller has read the volumes before this one existed.
    site.records().delete(NAME, &DeleteParams::default()).await.unwrap();
    site.socket = "second.sock";
    assert_eq!(site.create_at_last().await.volume_id, volume.volume_id);
    assert_eq!(site.volumes().await, 1);
    drop((first, second));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_controllers_at_the_same_time_make_one_snapshot() {
    let mut site = Site::start().await;
    let first = site.controller("first").await;
    let mut to_first = site.client().await.unwrap();
    let volume = site.create_at_last().await.volume_id;
    site.socket = "second.sock";
    let second = site.controller("second").await;
    let mut to_second = site.client().await.unwrap();
    let request = CreateSnapshotRequest {
        name: "snapshot-1".into(),
        source_volume_id: volume.clone(),
        ..Default::default()
    };

    // The second controller has looked for a record, and now waits for the list of the volume's snapshots.
    site.vcenter.forget_calls().await;
    let late = Fault::on("CnsQuerySnapshots").delayed(Duration::from_secs(10)).after(1).times(1);
    site.vcenter.fault(late).await;
    let slow = Fault::on("CnsCreateSnapshots").task_takes(Duration::from_secs(18)).times(1);
    site.vcenter.fault(slow).await;
    let meanwhile = async {
        eventually("the second controller waits for the list", 30, async || {
            let calls = site.vcenter.calls().await;
            let lists = calls.count("CnsQuerySnapshots");
            if lists == 2 { Ok(()) } else { Err(format!("{:?}", calls.total)) }
        })
        .await;
        to_first.create_snapshot(request.clone()).await
    };
    let (refused, made) = tokio::join!(to_second.create_snapshot(request.clone()), meanwhile);

    let made = made.unwrap().into_inner().snapshot.unwrap();
    assert_eq!(site.vcenter.calls().await.count("CnsCreateSnapshots"), 1, "{refused:?}");
    assert_eq!(refused.unwrap_err().code(), Code::Aborted);
    let again = to_second.create_snapshot(request).await.unwrap().into_inner().snapshot.unwrap();
    assert_eq!(again.snapshot_id, made.snapshot_id);
    drop((first, second));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_that_must_stop_finishes_what_it_began() {
    let site = Site::start().await;
    let process = site.controller("stopped").await;
    let slow = Fault::on("CnsCreateVolume").task_takes(Duration::from_secs(9)).times(1);
    site.vcenter.fault(slow).await;
    let stop = async {
        site.recorded(true).await;
        process.signal(rustix::process::Signal::TERM);
    };
    let (created, ()) = tokio::join!(site.create(), stop);
    let status = process.wait(30).await.expect("it ends");
    assert!(status.success(), "{}", process.log());
    assert_eq!(site.volumes().await, 1, "{created:?}");
    let record = site.records().get(NAME).await.unwrap();
    let details = &record.data["status"]["latestOperationDetails"][0];
    assert_eq!(details["taskStatus"], "Success", "{details}");
    let sessions = site.vcenter.sessions().await.to_string();
    assert!(!sessions.contains("vsphere-csi"), "it logged out: {sessions}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_another_controller_deleted_is_made_again() {
    let mut site = Site::start().await;
    let first = site.controller("first").await;
    site.socket = "second.sock";
    let second = site.controller("second").await;
    site.socket = "csi.sock";
    let volume = site.create_at_last().await.volume_id;
    site.socket = "second.sock";
    assert_eq!(site.create_at_last().await.volume_id, volume, "the second controller knows it");
    site.socket = "csi.sock";
    site.call(repeated::Call::Delete, &volume).await.unwrap();
    site.socket = "second.sock";
    let again = site.create_at_last().await.volume_id;
    assert_ne!(again, volume);
    let in_cns = site.cns_volumes().await;
    assert_eq!(in_cns.iter().map(|v| &*v.id.id).collect::<Vec<_>>(), [again]);
    drop((first, second));
}
