//! The controller service in this process, on the vCenter simulator.
#![allow(dead_code, clippy::unwrap_used, clippy::panic, reason = "each test uses a part of it")]

use std::{collections::BTreeSet, path::PathBuf, sync::Arc};

use csi::{
    configuration::{Category, SnapshotLimits, VcenterSettings},
    controller::{ControllerService, ControllerSettings},
    metrics::Metrics,
    node_set::NodeSet,
    proto::csi::{
        CapacityRange, ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest,
        CreateVolumeRequest, DeleteVolumeRequest, Volume, VolumeCapability,
        controller_server::Controller as _,
        volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode},
    },
    records::{MemoryRecords, OperationRecords},
    vcenters::{Intervals, SharedSettings, Supervisor, Vcenters},
};
use testkit::{Inventory, Vcenter, Vm, Workdir, eventually};
use tonic::{Request, Status};
use vsphere::{
    Client, Credentials, LoginPace, Trust,
    cns::{QueryFilter, Volume as CnsVolume},
};

pub(crate) const GIB: i64 = 1 << 30;
pub(crate) const CLUSTER: &str = "test-cluster";

pub(crate) struct Stage {
    pub(crate) service: ControllerService,
    pub(crate) vcenters: Vcenters,
    pub(crate) nodes: NodeSet,
    pub(crate) vcenter: Vcenter,
    pub(crate) workdir: Workdir,
    supervisor: Supervisor,
}

impl Stage {
    pub(crate) async fn with(inventory: Inventory) -> Self {
        Self::with_records(inventory, &[], Arc::new(MemoryRecords::default())).await
    }

    pub(crate) async fn with_categories(inventory: Inventory, categories: &[&str]) -> Self {
        Self::with_records(inventory, categories, Arc::new(MemoryRecords::default())).await
    }

    pub(crate) async fn with_records(
        inventory: Inventory,
        categories: &[&str],
        records: Arc<dyn OperationRecords>,
    ) -> Self {
        Self::with_intervals(inventory, categories, records, Intervals::default()).await
    }

    pub(crate) async fn with_intervals(
        inventory: Inventory,
        categories: &[&str],
        records: Arc<dyn OperationRecords>,
        intervals: Intervals,
    ) -> Self {
        let vms: Vec<String> =
            inventory.datacenters[0].vms.iter().map(|vm| vm.uuid.clone()).collect();
        let vcenter = Vcenter::start(inventory).await;
        let workdir = Workdir::new("csi").unwrap();
        let metrics = Metrics::default();
        let (vcenters, supervisor) = connect(&vcenter, !categories.is_empty(), &metrics, intervals);
        let nodes = NodeSet::default();
        nodes.set(vms.iter().map(|uuid| uuid.parse().unwrap()).collect::<BTreeSet<_>>());
        let category = |name: &&str| Category {
            name: (*name).to_owned(),
            label: format!("topology.csi.vmware.com/{name}"),
        };
        let settings = ControllerSettings {
            categories: categories.iter().map(category).collect(),
            max_snapshots: SnapshotLimits { any: 3, vsan: None, vvol: None },
        };
        let service =
            ControllerService::new(vcenters.clone(), records, nodes.clone(), settings, metrics);
        let stage = Self { service, vcenters, nodes, vcenter, workdir, supervisor };
        stage.ready().await;
        stage
    }

    /// A new process replaces the controller. It has seen nothing of the past.
    pub(crate) async fn restart(&mut self) {
        let metrics = Metrics::default();
        (self.vcenters, self.supervisor) =
            connect(&self.vcenter, false, &metrics, Intervals::default());
        let max_snapshots = SnapshotLimits { any: 3, vsan: None, vvol: None };
        let settings = ControllerSettings { categories: Vec::new(), max_snapshots };
        let (records, nodes) = (Arc::new(MemoryRecords::default()), self.nodes.clone());
        self.service =
            ControllerService::new(self.vcenters.clone(), records, nodes, settings, metrics);
        self.ready().await;
    }

    pub(crate) async fn ready(&self) {
        eventually("the vCenter is connected", 60, async || {
            self.vcenters.all_live().map(drop).map_err(|error| error.to_string())
        })
        .await;
    }

    /// A client of the test itself, to look at the truth in vCenter.
    pub(crate) async fn observer(&self) -> Client {
        Client::builder(self.vcenter.address().to_string())
            .trust(Trust::CaBundle(self.vcenter.ca_pem()))
            .credentials(Credentials::new(
                self.vcenter.user().to_owned(),
                self.vcenter.password().to_owned(),
            ))
            .connect()
            .await
            .unwrap()
    }

    pub(crate) async fn volumes(&self) -> Vec<CnsVolume> {
        let client = self.observer().await;
        let volumes = client.query_volumes(&QueryFilter::default()).await.unwrap();
        client.shut_down().await;
        volumes
    }

    pub(crate) async fn create(&self, name: &str) -> Result<Volume, Status> {
        self.create_with(create_request(name, GIB)).await
    }

    pub(crate) async fn create_with(&self, request: CreateVolumeRequest) -> Result<Volume, Status> {
        let response = self.service.create_volume(Request::new(request)).await?;
        Ok(response.into_inner().volume.unwrap())
    }

    pub(crate) async fn delete(&self, volume: &str) -> Result<(), Status> {
        let request = DeleteVolumeRequest { volume_id: volume.into(), ..Default::default() };
        self.service.delete_volume(Request::new(request)).await.map(drop)
    }

    /// Returns the disk's uuid.
    pub(crate) async fn publish(&self, volume: &str, node: &str) -> Result<String, Status> {
        let request = ControllerPublishVolumeRequest {
            volume_id: volume.into(),
            node_id: node.into(),
            volume_capability: Some(mount()),
            ..Default::default()
        };
        let response = self.service.controller_publish_volume(Request::new(request)).await?;
        Ok(response.into_inner().publish_context.remove("diskUUID").unwrap())
    }

    pub(crate) async fn unpublish(&self, volume: &str, node: &str) -> Result<(), Status> {
        let request = ControllerUnpublishVolumeRequest {
            volume_id: volume.into(),
            node_id: node.into(),
            ..Default::default()
        };
        self.service.controller_unpublish_volume(Request::new(request)).await.map(drop)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.workdir.path().join("csi.sock")
    }
}

fn connect(
    vcenter: &Vcenter,
    with_tags: bool,
    metrics: &Metrics,
    intervals: Intervals,
) -> (Vcenters, Supervisor) {
    let vcenters = Vcenters::default();
    let mut supervisor = Supervisor::new(vcenters.clone());
    let settings = VcenterSettings {
        name: vcenter.address().to_string().into(),
        user: vcenter.user().to_owned(),
        password: vcenter.password().into(),
        trust: Trust::CaBundle(vcenter.ca_pem()),
        datacenters: Vec::new(),
    };
    let shared = SharedSettings {
        cluster_id: CLUSTER.into(),
        distribution: "".into(),
        with_tags,
        user_agent: "vsphere-csi/test".into(),
        intervals,
        logins: LoginPace::default(),
        metrics: metrics.clone(),
    };
    supervisor.apply(&[settings], &shared);
    (vcenters, supervisor)
}

/// The node id of a VM of the inventory.
pub(crate) fn node(number: usize) -> String {
    Vm::numbered("node", number).uuid
}

pub(crate) fn mount() -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    }
}

pub(crate) fn create_request(name: &str, bytes: i64) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.into(),
        capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
        volume_capabilities: vec![mount()],
        ..Default::default()
    }
}
