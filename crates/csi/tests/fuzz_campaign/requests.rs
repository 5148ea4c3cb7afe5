//! Random requests, made of values near those that the driver accepts.

use std::{
    collections::{BTreeSet, HashMap},
    path::PathBuf,
    sync::Mutex,
};

use csi::proto::csi::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerGetCapabilitiesRequest,
    ControllerGetVolumeRequest, ControllerModifyVolumeRequest, ControllerPublishVolumeRequest,
    ControllerUnpublishVolumeRequest, CreateSnapshotRequest, CreateVolumeRequest,
    DeleteSnapshotRequest, DeleteVolumeRequest, GetCapacityRequest, GetPluginCapabilitiesRequest,
    GetPluginInfoRequest, GetSnapshotRequest, ListSnapshotsRequest, ListVolumesRequest,
    NodeExpandVolumeRequest, NodeGetCapabilitiesRequest, NodeGetInfoRequest,
    NodeGetVolumeStatsRequest, NodePublishVolumeRequest, NodeStageVolumeRequest,
    NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, ProbeRequest, Topology,
    TopologyRequirement, ValidateVolumeCapabilitiesRequest, VolumeCapability, VolumeContentSource,
    volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume},
    volume_content_source::{SnapshotSource, Type, VolumeSource},
};
use testkit::SeededRandom;

/// The objects in vCenter and on the node.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) nodes: Vec<String>,
    pub(crate) folder: PathBuf,
    pub(crate) volumes: Mutex<BTreeSet<String>>,
    pub(crate) snapshots: Mutex<BTreeSet<String>>,
}

pub(crate) struct Requests<'a> {
    pub(crate) random: &'a mut SeededRandom,
    pub(crate) known: &'a Known,
}

/// A request of this kind.
pub(crate) trait Random {
    fn random(requests: &mut Requests<'_>) -> Self;
}

impl Requests<'_> {
    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.random.below(bound.max(1) as u64)).unwrap()
    }

    fn pick<T: Clone>(&mut self, among: &[T]) -> T {
        among[self.below(among.len())].clone()
    }

    /// Mostly a known value, else any text.
    fn mostly(&mut self, known: &[String]) -> String {
        if known.is_empty() || self.random.one_in(5) { self.text() } else { self.pick(known) }
    }

    fn text(&mut self) -> String {
        const NEAR: [&str; 12] = [
            "",
            "",
            "pvc-1",
            "a+b",
            "+",
            "after:",
            "file:1",
            "../../etc",
            "datastoreurl",
            "storagepolicyname",
            "vSAN Default Storage Policy",
            "ds:///vmfs/volumes/shared/",
        ];
        match self.below(8) {
            0..=4 => self.pick(&NEAR).to_owned(),
            5 => "x".repeat(self.below(300)),
            _ => {
                let character = |requests: &mut Self| {
                    let any = requests.below(0x0011_0000);
                    char::from_u32(u32::try_from(any).unwrap_or(0)).unwrap_or('\u{fffd}')
                };
                (0..self.below(14)).map(|_| character(self)).collect()
            }
        }
    }

    fn volume(&mut self) -> String {
        let known: Vec<String> = self.known.volumes.lock().unwrap().iter().cloned().collect();
        self.mostly(&known)
    }

    fn snapshot(&mut self) -> String {
        let known: Vec<String> = self.known.snapshots.lock().unwrap().iter().cloned().collect();
        self.mostly(&known)
    }

    fn node(&mut self) -> String {
        let known = &self.known.nodes;
        self.mostly(known)
    }

    /// Few, so that calls meet objects that exist.
    fn name(&mut self, kind: &str) -> String {
        if self.random.one_in(20) { self.text() } else { format!("{kind}-{}", self.below(8)) }
    }

    fn path(&mut self) -> String {
        let paths: Vec<String> = (0..6)
            .map(|number| self.known.folder.join(format!("path-{number}")).display().to_string())
            .collect();
        self.mostly(&paths)
    }

    fn map(&mut self) -> HashMap<String, String> {
        let count = if self.random.one_in(8) { 1 + self.below(2) } else { 0 };
        (0..count).map(|_| (self.text(), self.text())).collect()
    }

    fn number(&mut self) -> i64 {
        match self.below(8) {
            0 => self.pick(&[-1, 1, i64::MAX, i64::MIN]),
            1 => i64::try_from(self.random.below(1 << 46)).unwrap(),
            2 | 3 => 0,
            _ => i64::try_from(self.random.below(4)).unwrap() << 30,
        }
    }

    fn range(&mut self) -> Option<CapacityRange> {
        let limit_bytes = if self.random.one_in(3) { self.number() } else { 0 };
        let range = CapacityRange { required_bytes: self.number(), limit_bytes };
        (!self.random.one_in(6)).then_some(range)
    }

    fn capability(&mut self) -> VolumeCapability {
        let mode = if self.random.one_in(8) { self.below(10) } else { 1 };
        let fs_type = if self.random.one_in(8) { self.text() } else { "ext4".to_owned() };
        let flags = usize::from(self.random.one_in(5));
        let mount_flags = (0..flags).map(|_| self.text()).collect();
        let access_type = match self.below(16) {
            0 => None,
            1 => Some(AccessType::Block(BlockVolume {})),
            _ => Some(AccessType::Mount(MountVolume {
                fs_type,
                mount_flags,
                volume_mount_group: String::new(),
            })),
        };
        let mode = AccessMode { mode: i32::try_from(mode).unwrap() };
        let access_mode = (!self.random.one_in(10)).then_some(mode);
        VolumeCapability { access_mode, access_type }
    }

    fn capabilities(&mut self) -> Vec<VolumeCapability> {
        let count = if self.random.one_in(8) { self.below(3) } else { 1 };
        (0..count).map(|_| self.capability()).collect()
    }

    fn maybe_capability(&mut self) -> Option<VolumeCapability> {
        let capability = self.capability();
        (!self.random.one_in(8)).then_some(capability)
    }

    fn source(&mut self) -> Option<VolumeContentSource> {
        let r#type = match self.below(8) {
            0 => Some(Type::Volume(VolumeSource { volume_id: self.volume() })),
            1 => Some(Type::Snapshot(SnapshotSource { snapshot_id: self.snapshot() })),
            2 if self.random.one_in(3) => None,
            _ => return None,
        };
        Some(VolumeContentSource { r#type })
    }

    fn topologies(&mut self) -> Vec<Topology> {
        let count = if self.random.one_in(5) { 1 + self.below(2) } else { 0 };
        (0..count).map(|_| Topology { segments: self.map() }).collect()
    }

    fn requirement(&mut self) -> Option<TopologyRequirement> {
        let requirement =
            TopologyRequirement { requisite: self.topologies(), preferred: self.topologies() };
        self.random.one_in(8).then_some(requirement)
    }

    fn entries(&mut self) -> i32 {
        let number = self.number();
        i32::try_from(number.clamp(i64::from(i32::MIN), i64::from(i32::MAX))).unwrap()
    }

    fn publish_context(&mut self) -> HashMap<String, String> {
        let disk = match self.below(3) {
            0 => self.text(),
            _ => format!("{:032x}", self.random.below(u64::MAX)),
        };
        let kind = match self.below(4) {
            0 => self.text(),
            _ => "vSphere CNS Block Volume".to_owned(),
        };
        HashMap::from([("diskUUID".to_owned(), disk), ("type".to_owned(), kind)])
    }

    fn flag(&mut self) -> bool {
        self.random.one_in(8)
    }
}

macro_rules! random {
    ($($request:ident { $($field:ident: $value:ident $(($argument:expr))?),* })*) => {
        $(impl Random for $request {
            #[allow(unused_variables, reason = "some requests have no field")]
            #[allow(clippy::needless_update, reason = "some requests have no other field")]
            fn random(requests: &mut Requests<'_>) -> Self {
                $(let $field = requests.$value($($argument)?);)*
                Self { $($field,)* ..Default::default() }
            }
        })*
    };
}

random! {
    GetPluginInfoRequest {}
    GetPluginCapabilitiesRequest {}
    ProbeRequest {}
    CreateVolumeRequest {
        name: name("pvc"), capacity_range: range, volume_capabilities: capabilities, parameters: map,
        volume_content_source: source, accessibility_requirements: requirement, mutable_parameters: map
    }
    DeleteVolumeRequest { volume_id: volume }
    ControllerPublishVolumeRequest {
        volume_id: volume, node_id: node, volume_capability: maybe_capability, readonly: flag, volume_context: map
    }
    ControllerUnpublishVolumeRequest { volume_id: volume, node_id: node }
    ValidateVolumeCapabilitiesRequest {
        volume_id: volume, volume_context: map, volume_capabilities: capabilities, parameters: map
    }
    ListVolumesRequest { max_entries: entries, starting_token: text }
    GetCapacityRequest { volume_capabilities: capabilities, parameters: map }
    ControllerGetCapabilitiesRequest {}
    CreateSnapshotRequest { source_volume_id: volume, name: name("snapshot"), parameters: map }
    DeleteSnapshotRequest { snapshot_id: snapshot }
    ListSnapshotsRequest {
        max_entries: entries, starting_token: text, source_volume_id: volume, snapshot_id: snapshot
    }
    GetSnapshotRequest { snapshot_id: snapshot }
    ControllerExpandVolumeRequest { volume_id: volume, capacity_range: range, volume_capability: maybe_capability }
    ControllerGetVolumeRequest { volume_id: volume }
    ControllerModifyVolumeRequest { volume_id: volume, mutable_parameters: map }
    NodeStageVolumeRequest {
        volume_id: volume, publish_context: publish_context, staging_target_path: path,
        volume_capability: maybe_capability, volume_context: map
    }
    NodeUnstageVolumeRequest { volume_id: volume, staging_target_path: path }
    NodePublishVolumeRequest {
        volume_id: volume, publish_context: publish_context, staging_target_path: path, target_path: path,
        volume_capability: maybe_capability, readonly: flag, volume_context: map
    }
    NodeUnpublishVolumeRequest { volume_id: volume, target_path: path }
    NodeGetVolumeStatsRequest { volume_id: volume, volume_path: path, staging_target_path: path }
    NodeGetCapabilitiesRequest {}
    NodeGetInfoRequest {}
    NodeExpandVolumeRequest {
        volume_id: volume, volume_path: path, capacity_range: range, staging_target_path: path,
        volume_capability: maybe_capability
    }
}
