//! The Controller service behind the loops of a test: it counts calls, and fails or hangs on demand.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::{Arc, Mutex},
};

use csi::proto::csi::{
    controller_server::Controller, controller_service_capability as capability,
    controller_service_capability::rpc::Type as Rpc, *,
};
use tokio::sync::Notify;
use tonic::{Request, Response, Status, async_trait};

type Answer<T> = Result<Response<T>, Status>;

#[derive(Clone, Debug)]
pub(crate) struct MadeVolume {
    pub(crate) id: String,
    pub(crate) bytes: i64,
    pub(crate) nodes: BTreeSet<String>,
    pub(crate) request: CreateVolumeRequest,
    pub(crate) mutable: HashMap<String, String>,
}

#[derive(Default)]
struct State {
    /// By name.
    volumes: BTreeMap<String, MadeVolume>,
    snapshots: BTreeMap<String, Snapshot>,
    deleted: Vec<String>,
    calls: BTreeMap<&'static str, usize>,
    failures: HashMap<&'static str, VecDeque<Status>>,
    /// Calls of this kind wait until they are released.
    held: BTreeSet<&'static str>,
    next: usize,
}

/// Volumes in memory. Clones share them: they outlive the process that the loops belong to.
#[derive(Clone, Default)]
pub(crate) struct Driver {
    state: Arc<Mutex<State>>,
    released: Arc<Notify>,
}

impl Driver {
    /// The next calls of this kind fail, one for each status.
    pub(crate) fn fail(&self, call: &'static str, with: impl IntoIterator<Item = Status>) {
        self.state.lock().unwrap().failures.entry(call).or_default().extend(with);
    }

    pub(crate) fn hold(&self, call: &'static str) {
        self.state.lock().unwrap().held.insert(call);
    }

    pub(crate) fn release(&self, call: &'static str) {
        self.state.lock().unwrap().held.remove(call);
        self.released.notify_waiters();
    }

    pub(crate) fn calls(&self, call: &'static str) -> usize {
        self.state.lock().unwrap().calls.get(call).copied().unwrap_or_default()
    }

    pub(crate) fn volumes(&self) -> BTreeMap<String, MadeVolume> {
        self.state.lock().unwrap().volumes.clone()
    }

    pub(crate) fn snapshots(&self) -> BTreeMap<String, Snapshot> {
        self.state.lock().unwrap().snapshots.clone()
    }

    pub(crate) fn deleted(&self) -> Vec<String> {
        self.state.lock().unwrap().deleted.clone()
    }

    /// Detaches a volume as an admin can do in vCenter.
    pub(crate) fn detach_by_hand(&self, volume: &str) {
        self.state.lock().unwrap().volumes.get_mut(volume).unwrap().nodes.clear();
    }

    async fn begin(&self, call: &'static str) -> Result<(), Status> {
        {
            let mut state = self.state.lock().unwrap();
            *state.calls.entry(call).or_default() += 1;
        }
        loop {
            let mut released = std::pin::pin!(self.released.notified());
            released.as_mut().enable();
            if !self.state.lock().unwrap().held.contains(call) {
                break;
            }
            released.await;
        }
        let mut state = self.state.lock().unwrap();
        match state.failures.get_mut(call).and_then(VecDeque::pop_front) {
            Some(status) => Err(status),
            None => Ok(()),
        }
    }

    fn change<T>(&self, id: &str, change: impl FnOnce(&mut MadeVolume) -> T) -> Result<T, Status> {
        let mut state = self.state.lock().unwrap();
        let found = state.volumes.values_mut().find(|volume| volume.id == id);
        found.map(change).ok_or_else(|| Status::not_found(format!("there is no volume {id}")))
    }
}

fn answer(volume: &MadeVolume) -> Response<CreateVolumeResponse> {
    let accessible = volume.request.accessibility_requirements.iter();
    let accessible = accessible.filter_map(|requirement| requirement.preferred.first().cloned());
    Response::new(CreateVolumeResponse {
        volume: Some(Volume {
            capacity_bytes: volume.bytes,
            volume_id: volume.id.clone(),
            volume_context: [("type".into(), "vSphere CNS Block Volume".into())].into(),
            content_source: volume.request.volume_content_source.clone(),
            accessible_topology: accessible.collect(),
        }),
    })
}

#[async_trait]
impl Controller for Driver {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Answer<CreateVolumeResponse> {
        self.begin("create").await?;
        let request = request.into_inner();
        let mut state = self.state.lock().unwrap();
        state.next += 1;
        let id = format!("fcd-{}", state.next);
        let volume = state.volumes.entry(request.name.clone()).or_insert_with(|| MadeVolume {
            id,
            bytes: request.capacity_range.unwrap_or_default().required_bytes,
            nodes: BTreeSet::new(),
            mutable: request.mutable_parameters.clone(),
            request,
        });
        Ok(answer(volume))
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Answer<DeleteVolumeResponse> {
        self.begin("delete").await?;
        let id = request.into_inner().volume_id;
        let mut state = self.state.lock().unwrap();
        state.volumes.retain(|_, volume| volume.id != id);
        state.deleted.push(id);
        Ok(Response::new(DeleteVolumeResponse {}))
    }

    async fn controller_publish_volume(
        &self,
        request: Request<ControllerPublishVolumeRequest>,
    ) -> Answer<ControllerPublishVolumeResponse> {
        self.begin("publish").await?;
        let ControllerPublishVolumeRequest { volume_id, node_id, .. } = request.into_inner();
        self.change(&volume_id, |volume| volume.nodes.insert(node_id))?;
        let publish_context = [("diskUUID".into(), format!("6000{volume_id}"))].into();
        Ok(Response::new(ControllerPublishVolumeResponse { publish_context }))
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<ControllerUnpublishVolumeRequest>,
    ) -> Answer<ControllerUnpublishVolumeResponse> {
        self.begin("unpublish").await?;
        let ControllerUnpublishVolumeRequest { volume_id, node_id, .. } = request.into_inner();
        let _ = self.change(&volume_id, |volume| volume.nodes.remove(&node_id));
        Ok(Response::new(ControllerUnpublishVolumeResponse {}))
    }

    async fn validate_volume_capabilities(
        &self,
        _: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Answer<ValidateVolumeCapabilitiesResponse> {
        Err(Status::unimplemented("no loop calls this"))
    }

    async fn list_volumes(&self, _: Request<ListVolumesRequest>) -> Answer<ListVolumesResponse> {
        self.begin("list").await?;
        let entries = self.volumes().into_values().map(|volume| list_volumes_response::Entry {
            volume: Some(Volume { volume_id: volume.id, ..Volume::default() }),
            status: Some(list_volumes_response::VolumeStatus {
                published_node_ids: volume.nodes.into_iter().collect(),
                volume_condition: None,
            }),
        });
        Ok(Response::new(ListVolumesResponse {
            entries: entries.collect(),
            next_token: String::new(),
        }))
    }

    async fn get_capacity(
        &self,
        request: Request<GetCapacityRequest>,
    ) -> Answer<GetCapacityResponse> {
        self.begin("capacity").await?;
        // Zones have 10, 20, 30 GiB: one more for each letter.
        let topology = request.into_inner().accessible_topology.unwrap_or_default();
        let zone = topology.segments.into_values().next().unwrap_or_default();
        let letter = zone.bytes().last().unwrap_or(b'a');
        let bytes = i64::from(letter - b'a' + 1) * (10 << 30);
        Ok(Response::new(GetCapacityResponse {
            available_capacity: bytes,
            maximum_volume_size: Some(bytes / 2),
            minimum_volume_size: None,
        }))
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Answer<ControllerGetCapabilitiesResponse> {
        let all = [
            Rpc::CreateDeleteVolume,
            Rpc::PublishUnpublishVolume,
            Rpc::ExpandVolume,
            Rpc::CreateDeleteSnapshot,
            Rpc::ListSnapshots,
            Rpc::CloneVolume,
            Rpc::ModifyVolume,
            Rpc::GetCapacity,
            Rpc::ListVolumes,
            Rpc::ListVolumesPublishedNodes,
        ];
        let capabilities = all.into_iter().map(|kind| ControllerServiceCapability {
            r#type: Some(capability::Type::Rpc(capability::Rpc { r#type: kind.into() })),
        });
        Ok(Response::new(ControllerGetCapabilitiesResponse {
            capabilities: capabilities.collect(),
        }))
    }

    async fn create_snapshot(
        &self,
        request: Request<CreateSnapshotRequest>,
    ) -> Answer<CreateSnapshotResponse> {
        self.begin("create-snapshot").await?;
        let CreateSnapshotRequest { source_volume_id, name, .. } = request.into_inner();
        let bytes = self.change(&source_volume_id, |volume| volume.bytes)?;
        let mut state = self.state.lock().unwrap();
        let snapshot = state.snapshots.entry(name.clone()).or_insert_with(|| Snapshot {
            size_bytes: bytes,
            snapshot_id: format!("{source_volume_id}+{name}"),
            source_volume_id,
            creation_time: Some(prost_types::Timestamp { seconds: 1_700_000_000, nanos: 0 }),
            ready_to_use: true,
            ..Snapshot::default()
        });
        Ok(Response::new(CreateSnapshotResponse { snapshot: Some(snapshot.clone()) }))
    }

    async fn delete_snapshot(
        &self,
        request: Request<DeleteSnapshotRequest>,
    ) -> Answer<DeleteSnapshotResponse> {
        self.begin("delete-snapshot").await?;
        let id = request.into_inner().snapshot_id;
        self.state.lock().unwrap().snapshots.retain(|_, snapshot| snapshot.snapshot_id != id);
        Ok(Response::new(DeleteSnapshotResponse {}))
    }

    async fn list_snapshots(
        &self,
        request: Request<ListSnapshotsRequest>,
    ) -> Answer<ListSnapshotsResponse> {
        self.begin("list-snapshots").await?;
        let id = request.into_inner().snapshot_id;
        let found = self.snapshots().into_values().filter(|s| s.snapshot_id == id);
        let entries =
            found.map(|snapshot| list_snapshots_response::Entry { snapshot: Some(snapshot) });
        Ok(Response::new(ListSnapshotsResponse {
            entries: entries.collect(),
            next_token: String::new(),
        }))
    }

    async fn get_snapshot(&self, _: Request<GetSnapshotRequest>) -> Answer<GetSnapshotResponse> {
        Err(Status::unimplemented("no loop calls this"))
    }

    async fn controller_expand_volume(
        &self,
        request: Request<ControllerExpandVolumeRequest>,
    ) -> Answer<ControllerExpandVolumeResponse> {
        self.begin("expand").await?;
        let ControllerExpandVolumeRequest { volume_id, capacity_range, volume_capability, .. } =
            request.into_inner();
        let wanted = capacity_range.unwrap_or_default().required_bytes;
        let bytes = self.change(&volume_id, |volume| {
            volume.bytes = volume.bytes.max(wanted);
            volume.bytes
        })?;
        let is_block = volume_capability.is_some_and(|c| {
            matches!(c.access_type, Some(volume_capability::AccessType::Block(_)))
        });
        Ok(Response::new(ControllerExpandVolumeResponse {
            capacity_bytes: bytes,
            node_expansion_required: !is_block,
        }))
    }

    async fn controller_get_volume(
        &self,
        _: Request<ControllerGetVolumeRequest>,
    ) -> Answer<ControllerGetVolumeResponse> {
        Err(Status::unimplemented("no loop calls this"))
    }

    async fn controller_modify_volume(
        &self,
        request: Request<ControllerModifyVolumeRequest>,
    ) -> Answer<ControllerModifyVolumeResponse> {
        self.begin("modify").await?;
        let ControllerModifyVolumeRequest { volume_id, mutable_parameters, .. } =
            request.into_inner();
        self.change(&volume_id, |volume| volume.mutable = mutable_parameters)?;
        Ok(Response::new(ControllerModifyVolumeResponse {}))
    }
}
