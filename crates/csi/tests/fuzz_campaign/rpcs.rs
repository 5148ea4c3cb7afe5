//! The RPCs of the driver, with the codes that the CSI specification lists for each.

use csi::proto::csi::{
    ControllerExpandVolumeRequest, ControllerGetCapabilitiesRequest, ControllerGetVolumeRequest,
    ControllerModifyVolumeRequest, ControllerPublishVolumeRequest,
    ControllerUnpublishVolumeRequest, CreateSnapshotRequest, CreateVolumeRequest,
    DeleteSnapshotRequest, DeleteVolumeRequest, GetCapacityRequest, GetPluginCapabilitiesRequest,
    GetPluginInfoRequest, GetSnapshotRequest, ListSnapshotsRequest, ListVolumesRequest,
    NodeExpandVolumeRequest, NodeGetCapabilitiesRequest, NodeGetInfoRequest,
    NodeGetVolumeStatsRequest, NodePublishVolumeRequest, NodeStageVolumeRequest,
    NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, ProbeRequest,
    ValidateVolumeCapabilitiesRequest,
};
use prost::Message;
use tonic::Code::{
    self, AlreadyExists, FailedPrecondition, Internal, NotFound, OutOfRange, ResourceExhausted,
    Unavailable,
};

use crate::requests::{Random as _, Requests};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    Identity,
    Controller,
    Node,
}

pub(crate) struct Rpc {
    pub(crate) service: Service,
    pub(crate) method: &'static str,
    /// In addition to those of every RPC.
    pub(crate) codes: &'static [Code],
    pub(crate) request: fn(&mut Requests<'_>) -> Vec<u8>,
    pub(crate) is_message: fn(&[u8]) -> bool,
}

impl Rpc {
    pub(crate) fn path(&self) -> String {
        format!("/csi.v1.{:?}/{}", self.service, self.method)
    }
}

macro_rules! rpcs {
    ($($service:ident $method:ident($request:ident) $codes:expr;)*) => {
        &[$(Rpc {
            service: Service::$service,
            method: stringify!($method),
            codes: &$codes,
            request: |requests| $request::random(requests).encode_to_vec(),
            is_message: |bytes| $request::decode(bytes).is_ok(),
        }),*]
    };
}

pub(crate) const ALL: &[Rpc] = rpcs! {
    Identity GetPluginInfo(GetPluginInfoRequest) [];
    Identity GetPluginCapabilities(GetPluginCapabilitiesRequest) [];
    Identity Probe(ProbeRequest) [FailedPrecondition];
    Controller CreateVolume(CreateVolumeRequest) [NotFound, AlreadyExists, OutOfRange, ResourceExhausted];
    Controller DeleteVolume(DeleteVolumeRequest) [FailedPrecondition];
    Controller ControllerPublishVolume(ControllerPublishVolumeRequest)
        [NotFound, AlreadyExists, FailedPrecondition, ResourceExhausted];
    Controller ControllerUnpublishVolume(ControllerUnpublishVolumeRequest) [NotFound];
    Controller ValidateVolumeCapabilities(ValidateVolumeCapabilitiesRequest) [NotFound];
    Controller ListVolumes(ListVolumesRequest) [];
    Controller GetCapacity(GetCapacityRequest) [];
    Controller ControllerGetCapabilities(ControllerGetCapabilitiesRequest) [];
    Controller CreateSnapshot(CreateSnapshotRequest) [NotFound, AlreadyExists, ResourceExhausted];
    Controller DeleteSnapshot(DeleteSnapshotRequest) [FailedPrecondition];
    Controller ListSnapshots(ListSnapshotsRequest) [];
    Controller GetSnapshot(GetSnapshotRequest) [NotFound];
    Controller ControllerExpandVolume(ControllerExpandVolumeRequest)
        [NotFound, FailedPrecondition, OutOfRange, ResourceExhausted];
    Controller ControllerGetVolume(ControllerGetVolumeRequest) [NotFound];
    Controller ControllerModifyVolume(ControllerModifyVolumeRequest) [NotFound];
    // The disk is not there yet: the kubelet tries again.
    Node NodeStageVolume(NodeStageVolumeRequest)
        [NotFound, AlreadyExists, FailedPrecondition, Internal, Unavailable];
    Node NodeUnstageVolume(NodeUnstageVolumeRequest) [NotFound, Internal];
    Node NodePublishVolume(NodePublishVolumeRequest)
        [NotFound, AlreadyExists, FailedPrecondition, Internal, Unavailable];
    Node NodeUnpublishVolume(NodeUnpublishVolumeRequest) [NotFound, Internal];
    Node NodeGetVolumeStats(NodeGetVolumeStatsRequest) [NotFound];
    Node NodeGetCapabilities(NodeGetCapabilitiesRequest) [];
    Node NodeGetInfo(NodeGetInfoRequest) [];
    Node NodeExpandVolume(NodeExpandVolumeRequest) [NotFound, FailedPrecondition, OutOfRange];
};
